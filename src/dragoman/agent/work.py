"""Running calls side by side, each in a thread of its own, and answering all of them whatever becomes of it."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Semaphore, Thread
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.model.blocks import Media, Text

MOST_AT_ONCE = 8
_GLANCE = 0.05  # seconds between two looks at the clock and at whether the run was cancelled

Content: TypeAlias = tuple[Text | Media, ...]
Work: TypeAlias = Callable[[str, Mapping[str, Any]], tuple[Content, bool]]


_ABANDONED: Content = (Text("(the tool ended without an answer)"),)


class Job(Struct, frozen=True):
    id: str
    name: str
    arguments: Mapping[str, Any]


class Outcome(Struct, frozen=True):
    """The one answer to a call."""

    id: str
    name: str
    content: Content
    is_error: bool
    seconds: float

    @property
    def text(self) -> str:
        return "\n".join(part.text if isinstance(part, Text) else f"[{part.kind}]" for part in self.content)


def run_jobs(jobs: Sequence[Job], work: Work, deadline: float | None, cancelled: Event) -> list[Outcome]:
    """Run all jobs, several at a time; give their outcomes in the jobs' order, one for each, in time.

    A thread that is not done in time cannot be stopped, only left behind: its outcome is an error, and what it says
    later is nobody's.
    """
    done: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
    gate, begun = Semaphore(MOST_AT_ONCE), time.monotonic()
    for number, job in enumerate(jobs):
        Thread(target=_run, args=(number, job, work, done, gate), daemon=True, name=f"tool {job.name}").start()
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(jobs):
        try:
            number, outcome = done.get(timeout=_wait(deadline))
            outcomes[number] = outcome
        except queue.Empty:
            reason = _reason(deadline, cancelled)
            if reason:
                break
    seconds = time.monotonic() - begun
    reason = _reason(deadline, cancelled)
    return [
        outcomes.get(number) or Outcome(job.id, job.name, (Text(reason),), True, seconds)
        for number, job in enumerate(jobs)
    ]


def _run(number: int, job: Job, work: Work, done: queue.SimpleQueue[tuple[int, Outcome]], gate: Semaphore) -> None:
    with gate:
        begun = time.monotonic()
        content, is_error = _ABANDONED, True
        try:
            content, is_error = work(job.name, job.arguments)
        finally:  # even a tool that ends its thread is answered
            done.put((number, Outcome(job.id, job.name, content, is_error, time.monotonic() - begun)))


def _wait(deadline: float | None) -> float:
    return _GLANCE if deadline is None else max(min(_GLANCE, deadline - time.monotonic()), 0.0)


def _reason(deadline: float | None, cancelled: Event) -> str:
    if cancelled.is_set():
        return "(cancelled before it was done)"
    if deadline is not None and time.monotonic() >= deadline:
        return "(out of time before it was done)"
    return ""
