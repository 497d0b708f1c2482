"""Cut the text of the calls out of renderings of whole conversations.

An answer that is only text shows what the template writes before and after an answer. What an answer with calls has
in addition is the text of its calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dragoman.filters.raw_tools.learning.pieces import end_in_common, start_in_common
from dragoman.filters.raw_tools.learning.probes import (
    CONTENT,
    PROBES,
    REASONING,
    ProbeCall,
    Variant,
    declared,
    messages,
)
from dragoman.wire.jsonio import Json

_TEXT_ONLY = "text only"
_REASONED = "reasoned"
_LONGEST = 100_000


class Job(Struct, frozen=True):
    """One conversation to render."""

    messages: list[Json]
    tools: list[Json]
    generation_prompt: bool = False


class Shots(Struct, frozen=True):
    """The text of the calls of each probe that the template rendered, and the text that ends an answer."""

    calls: Mapping[str, str]
    end: str = ""
    reasoning: tuple[str, str] | None = None  # what stands around reasoning


def probe_jobs(variant: Variant) -> dict[str, Job]:
    """Return the conversations that `shots_of` needs, by name."""
    tools = declared(call for calls in PROBES.values() for call in calls)
    jobs = {_TEXT_ONLY: Job(messages((), variant, content=CONTENT), tools)}
    jobs[_REASONED] = Job(messages((), variant, content=CONTENT, reasoning=REASONING), tools)
    for name, calls in PROBES.items():
        jobs[name] = Job(messages(calls, variant), tools)
        jobs[f"{name} with text"] = Job(messages(calls, variant, content=CONTENT), tools)
        jobs[f"{name} with results"] = Job(messages(calls, variant, results=True), tools, generation_prompt=True)
    return jobs


def check_jobs(sets: Sequence[Sequence[ProbeCall]], variant: Variant) -> dict[str, Job]:
    """Return the conversations that verify a table: an answer that is only text, and each set of calls."""
    jobs = {str(number): Job(messages(calls, variant), declared(calls)) for number, calls in enumerate(sets)}
    for number, calls in enumerate(sets):
        jobs[f"{number} {_TEXT_ONLY}"] = Job(messages((), variant, content=CONTENT), declared(calls))
    return jobs


def checked_text(renderings: Mapping[str, str], number: int) -> str | None:
    """Return the text of one set of `check_jobs`; None if the template did not render it."""
    text, plain = renderings.get(str(number)), renderings.get(f"{number} {_TEXT_ONLY}")
    if text is None or plain is None:
        return None
    before, after = _around(plain)
    return _cut(text, before, after)


def shots_of(renderings: Mapping[str, str]) -> Shots:
    """Cut the calls out of the renderings of `probe_jobs`; those that failed are not in it."""
    plain = renderings.get(_TEXT_ONLY, "")
    before, after = _around(plain)
    calls: dict[str, str] = {}
    for name in PROBES:
        found = _call_text(name, renderings, before, after)
        if found is not None and len(found) <= _LONGEST:
            calls[name] = found
    return Shots(calls, after, _reasoning(renderings.get(_REASONED, ""), before))


def _around(plain: str) -> tuple[str, str]:
    at = plain.rfind(CONTENT)
    return (plain, "") if at == -1 else (plain[:at], plain[at + len(CONTENT) :])


def _call_text(name: str, renderings: Mapping[str, str], before: str, after: str) -> str | None:
    """Prefer the answer that has text, too: what follows the text are the calls."""
    text = renderings.get(f"{name} with text")
    at = text.rfind(CONTENT) if text is not None else -1
    if text is not None and at != -1 and any(call.name in text[at:] for call in PROBES[name]):
        rest = text[at + len(CONTENT) :]
        return rest[: len(rest) - end_in_common(rest, after)]
    text = renderings.get(name)
    return None if text is None else _cut(text, before, after)


def _cut(text: str, before: str, after: str) -> str:
    rest = text[start_in_common(text, before) :]
    return rest[: len(rest) - end_in_common(rest, after)]


def _reasoning(text: str, before: str) -> tuple[str, str] | None:
    at, content = text.rfind(REASONING), text.rfind(CONTENT)
    if at == -1 or content < at:
        return None
    start = start_in_common(text, before)
    begin, end = text[start:at].strip(), text[at + len(REASONING) : content].strip()
    return (begin, end) if begin and end and not any(char.isspace() for char in begin + end) else None
