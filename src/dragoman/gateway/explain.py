"""`dragoman explain ID`: what an upstream refused, as the client sent it, as the gateway sent it, and the answer
to it.

`RefusalLog` is a folder of private files: the last twenty refusals, sixteen megabytes, a day; secrets are masked before
anything is written. `ReportQueue` describes refusals beside the requests. The rule that was most likely broken stands
first: what the upstream dialect's own rules say of the request that was sent.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from dragoman.dialects.base import Dialect
from dragoman.dialects.rulebook import Breach
from dragoman.errors import DragomanError, Fault
from dragoman.gateway.jobs import ParsedRequest, PlanJob, make_plan
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.planning import render_planned
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.response_store import ResponseStore, item_references
from dragoman.gateway.secrets import make_private_folder, read_private, remove_parts, write_private
from dragoman.gateway.worker_process import WorkerProcess, WorkerUnavailable
from dragoman.http.exchange import Owner
from dragoman.model.filter import Note
from dragoman.upstream.credentials import with_headers
from dragoman.wire import jsonio
from dragoman.wire.http import Headers, HttpRequest, HttpResponse

T = TypeVar("T", Note, Breach)

MAX_REPORTS = 20
MAX_REPORT_BYTES = 16 * 1024 * 1024
MOST_SECONDS = 24 * 3600.0
_LONGEST_BODY = 2 * 1024 * 1024
_LONGEST_SECRET = 16 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_WIDTH = 100
_LONGEST_LINE = 400
MOST_WAITING = 8  # refusals that are to be described
MOST_WAITING_BYTES = 32 * 1024 * 1024  # of their requests
_CLOSE_SECONDS = 2.0


class RecordedMessage(Struct, frozen=True):
    """One side of an exchange, fit to be shown: a line, headers, and a body as text."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: str


class RefusalReport(Struct, frozen=True):
    """Everything about one refusal."""

    id: str
    at: float
    client: str
    upstream: str
    dialect: str
    model: str
    fault: str
    asked: RecordedMessage
    sent: RecordedMessage
    answered: RecordedMessage
    notes: tuple[Note, ...]
    breaches: tuple[Breach, ...]


class RefusalLog:
    """The files. `write` may be called from a thread."""

    def __init__(self, folder: Path, *, enabled: bool = True, now: Callable[[], float] = time.time) -> None:
        self.enabled = enabled
        self._folder = folder
        self._now = now

    def write(self, identity: str, data: bytes) -> bool:
        """Write what `encode_report` returned for a refusal, and drop the oldest; False if it cannot be written."""
        if not self.enabled or not _ID.match(identity):
            return False
        try:
            make_private_folder(self._folder)
            write_private(self._folder / f"{identity}.json", data)
            self._trim()
        except (OSError, ConfigError):
            return False
        return True

    def load(self, identity: str) -> RefusalReport | None:
        """The refusal of that request; None if it is not kept, or no longer."""
        if not _ID.match(identity):
            return None
        try:
            return msgspec.convert(jsonio.decode(read_private(self._folder / f"{identity}.json")), RefusalReport)
        except (OSError, ConfigError, jsonio.JsonError, msgspec.ValidationError):
            return None

    def ids(self) -> list[str]:
        """All that are kept, newest first."""
        self._trim()
        return [path.stem for path, _, _ in self._files()]

    def purge(self) -> int:
        """Remove all; tells how many there were."""
        files = self._files()
        for path, _, _ in files:
            path.unlink(missing_ok=True)
        remove_parts(self._folder, 0.0)
        return len(files)

    def _trim(self) -> None:
        total = 0
        for index, (path, size, encode_report) in enumerate(self._files()):
            total += size
            if index >= MAX_REPORTS or total > MAX_REPORT_BYTES or encode_report < self._now() - MOST_SECONDS:
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[Path, int, float]]:
        found = []
        for path in self._folder.glob("*.json"):
            try:
                stat = path.stat()
            except OSError:  # removed by another process
                continue
            found.append((path, stat.st_size, stat.st_mtime_ns / 1e9))
        return sorted(found, key=lambda each: each[2], reverse=True)


def encode_report(refusal: RefusalReport) -> bytes:
    """The content of a refusal's file. Raises JsonError."""
    return jsonio.encode(msgspec.to_builtins(refusal))


def _masked(told: T, redactor: Redactor) -> T:
    """A note or a breach: both quote what people wrote."""
    return structs.replace(told, at=redactor.text(told.at), detail=redactor.text(told.detail))


def _request(request: HttpRequest, redactor: Redactor) -> RecordedMessage:
    query = f"?{redactor.query(request.query)}" if request.query else ""
    line = redactor.text(f"{request.method} {request.path}") + query
    return RecordedMessage(line, redactor.headers(request.headers), _text(request.body, redactor))


def _text(body: bytes, redactor: Redactor) -> str:
    """The beginning of a body. It is cut before it is masked, since that takes time.

    A secret at the cut may be cut in two and not be found, so the last characters before the cut are left out.
    """
    if len(body) <= _LONGEST_BODY:
        return redactor.text(body.decode("utf-8", "replace"))
    shown = redactor.text(body[:_LONGEST_BODY].decode("utf-8", "replace"))[:-_LONGEST_SECRET]
    return f"{shown}\n… cut: the body has {len(body)} bytes"


# --- describing refusals beside the requests


class ExplainJob(Struct, frozen=True):
    """Describe a refusal."""

    plan: PlanJob
    request_names: tuple[str, str, str]  # the request's id, the client's dialect, the upstream's name
    headers: Headers  # that the upstream gets beside those of the dialect
    response: HttpResponse
    fault: Fault
    secrets: tuple[str, ...]


def build_report(job: ExplainJob, known: ParsedRequest) -> RefusalReport:
    """Describe a refusal, without secrets. Raises ClientFault if the request cannot be planned any more."""
    made, _ = make_plan(job.plan, known)
    request, _ = render_planned(made, known.request, job.plan.bounds.max_body)
    redactor, response = Redactor(lambda: job.secrets), job.response
    identity, client, upstream = job.request_names
    return RefusalReport(
        id=identity,
        at=time.time(),
        client=client,
        upstream=upstream,
        dialect=made.upstream.name,
        model=redactor.text(made.translated.model),
        fault=redactor.text(job.fault.message),
        asked=_request(known.request, redactor),
        sent=_request(with_headers(request, job.headers), redactor),
        answered=RecordedMessage(
            str(response.status), redactor.headers(response.headers), _text(response.body, redactor)
        ),
        notes=tuple(_masked(note, redactor) for note in made.notes),
        breaches=tuple(_masked(breach, redactor) for breach in made.upstream.codec.breaches(made.call())),
    )


class PendingReport(Struct, frozen=True):
    """A refusal that is to be described."""

    job: ExplainJob
    client: Dialect
    body: bytes  # of the client's request
    response_store: ResponseStore  # that knows what the request continues
    owner: Owner  # of what it continues
    worker: WorkerProcess | None  # that describes it; None: a thread does


class ReportQueue:
    """Describes refusals after their clients have been answered, one after the other.

    Those of large requests are described in the worker process, others in a thread. What waits is bounded; more than
    that is not written.
    """

    def __init__(self, *, most: int = MOST_WAITING, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self.dropped = 0
        self._most, self._most_bytes = most, most_bytes
        self._cases: deque[tuple[PendingReport, RefusalLog]] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._cases)

    def add(self, case: PendingReport, log: RefusalLog) -> None:
        """Describe it soon. Returns at once."""
        size = len(case.body) + len(case.job.response.body)
        if len(self._cases) >= self._most or self._bytes + size > self._most_bytes:
            self.dropped += 1
            return
        self._bytes += size
        self._cases.append((case, log))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Describe what waits, if that is soon done; the rest is dropped."""
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)
            task.cancel()
        self._cases.clear()
        self._bytes = 0

    async def _run(self) -> None:
        while self._cases:
            case, log = self._cases[0]
            try:
                # What the client continued may be unknown by now, and a worker may fail: then there is no description.
                with suppress(DragomanError, WorkerUnavailable, jsonio.JsonError):
                    await _keep(case, log)
            except Exception as error:  # noqa: BLE001  a bug of ours, which must not keep the others from being described
                context = {
                    "message": f"the refusal {case.job.request_names[0]} cannot be described",
                    "exception": error,
                }
                asyncio.get_running_loop().call_exception_handler(context)
            finally:
                if self._cases:  # not if all were dropped meanwhile
                    self._cases.popleft()
                    self._bytes -= len(case.body) + len(case.job.response.body)


async def _keep(case: PendingReport, log: RefusalLog) -> None:
    loop = asyncio.get_running_loop()
    request_id = case.job.request_names[0]
    if case.worker is not None:
        _, data = await case.worker.run_job(case.job, request_id, case.body)
        await loop.run_in_executor(None, log.write, request_id, data)
        return
    known, items = await loop.run_in_executor(None, _read, case)
    owner, memory = case.owner, case.response_store
    found = {item_id: blocks for item_id in items if (blocks := memory.item(owner, item_id)) is not None}
    plan = structs.replace(case.job.plan, earlier=memory.earlier(owner, known.conversation), items=found)
    job = structs.replace(case.job, plan=plan)
    await loop.run_in_executor(None, lambda: log.write(request_id, encode_report(build_report(job, known))))


def _read(case: PendingReport) -> tuple[ParsedRequest, tuple[str, ...]]:
    request = structs.replace(case.job.plan.request, body=case.body)
    call = case.client.binding.match(request)
    assert call is not None  # it was matched before
    asked = case.client.codec.parse_request(call)
    return ParsedRequest(case.client, request, asked), item_references(case.client, asked)


# --- the page


def render_report(refusal: RefusalReport, width: int = _WIDTH) -> str:
    """The refusal as text: what is most likely wrong first, then both requests side by side, then the answer."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(refusal.at))
    parts = [
        f"{refusal.id}  {when}  {refusal.client} → {refusal.upstream} ({refusal.dialect}), {refusal.model}",
        f"The upstream answered {refusal.answered.line}: {_line(refusal.fault)}",
        _suspects(refusal),
        _noted(refusal),
        _beside(refusal, width),
        f"THE ANSWER\n{_clipped(_pretty(refusal.answered.body))}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _suspects(refusal: RefusalReport) -> str:
    if not refusal.breaches:
        return f"No rule known of {refusal.dialect} is broken by what we sent: the service knows one that we do not."
    first, *others = sorted(refusal.breaches, key=lambda breach: breach.severity != "error")
    lines = [f"MOST LIKELY: {_breach(first)}", *(f"also broken: {_breach(each)}" for each in others[:9])]
    return "\n".join(lines)


def _breach(breach: Breach) -> str:
    place = f" at {breach.at}" if breach.at else ""
    return _line(f"{breach.rule}{place}: {breach.detail} ({breach.evidence})")


def _noted(refusal: RefusalReport) -> str:
    if not refusal.notes:
        return "Nothing was changed on the way."
    lines = [f"CHANGED ON THE WAY ({len(refusal.notes)})", *(f"  {_line(str(note))}" for note in refusal.notes)]
    return "\n".join(lines)


def _beside(refusal: RefusalReport, width: int) -> str:
    """Both requests in two columns, line by line."""
    half = max((width - 3) // 2, 20)
    left = ["AS THE CLIENT SENT IT", *_lines(refusal.asked)]
    right = ["AS WE SENT IT", *_lines(refusal.sent)]
    rows = zip_longest(left, right, fillvalue="")
    return "\n".join(f"{_cell(one, half):<{half}} │ {_cell(other, half)}".rstrip() for one, other in rows)


def _lines(sent: RecordedMessage) -> list[str]:
    headers = [f"{name}: {value}" for name, value in sent.headers]
    return [sent.line, *headers, "", *_clipped(_pretty(sent.body)).split("\n")]


def _pretty(body: str) -> str:
    try:
        return jsonio.encode_pretty(jsonio.decode(body)).decode()
    except jsonio.JsonError:
        return body


def _clipped(text: str) -> str:
    return "\n".join(_line(line) for line in text.split("\n"))


def _cell(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _line(text: str) -> str:
    """One line, without what a terminal would obey."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= _LONGEST_LINE else f"{plain[:_LONGEST_LINE]}…"
