"""Reports about refused requests, for `dragoman explain ID`: both requests, the response, notes and broken rules.

`RefusalLog` stores reports as private files: the last twenty, at most sixteen megabytes, for a day. Secrets are masked
before a report is written. `ReportQueue` writes reports in the background. A report first names the rule that was most
likely broken: it checks the request that was sent with the rules of the upstream's dialect.
"""

from __future__ import annotations

import asyncio
import re
import textwrap
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
from dragoman.gateway.job_process import JobProcess, JobProcessUnavailable
from dragoman.gateway.jobs import ParsedRequest, PlanJob, make_plan
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.planning import render_planned
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.response_store import NOTHING_FOUND, FoundResponses, ResponseStore, item_references
from dragoman.gateway.secrets import make_private_folder, read_private, remove_parts, write_private
from dragoman.http.addresses import parse_base_url
from dragoman.http.client.response import sent_headers
from dragoman.http.exchange import Owner
from dragoman.model.filter import Note
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.http import Headers, HttpRequest, HttpResponse

T = TypeVar("T", Note, Breach)

MAX_REPORTS = 20
MAX_REPORT_BYTES = 16 * 1024 * 1024
MAX_SECONDS = 24 * 3600.0
_LONGEST_BODY = 2 * 1024 * 1024
_LONGEST_SECRET = 16 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_WIDTH = 100
_LONGEST_LINE = 400
MAX_WAITING = 8  # reports in the queue
MAX_WAITING_BYTES = 32 * 1024 * 1024  # of their requests and responses
_CLOSE_SECONDS = 2.0


class RecordedMessage(Struct, frozen=True):
    """A request or response without secrets: its first line, headers, and body as text."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: str


class RefusalReport(Struct, frozen=True):
    """The report about one refused request: `sent` is the request that the upstream refused."""

    id: str
    at: float
    client: str
    upstream: str
    dialect: str
    model: str
    fault: str
    client_request: RecordedMessage
    sent: RecordedMessage
    response: RecordedMessage
    notes: tuple[Note, ...]
    breaches: tuple[Breach, ...]
    kind: str = "invalid"  # of the error


class RefusalLog:
    """The files of the reports. `write` may be called from a thread."""

    def __init__(self, folder: Path, *, enabled: bool = True, now: Callable[[], float] = time.time) -> None:
        self.enabled = enabled
        self._folder = folder
        self._now = now

    def write(self, identity: str, data: bytes) -> bool:
        """Write an encoded report and delete old ones. Return False if it cannot be written."""
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
        """Return the report about a request, or None."""
        if not _ID.match(identity):
            return None
        try:
            return msgspec.convert(jsonio.decode(read_private(self._folder / f"{identity}.json")), RefusalReport)
        except (OSError, ConfigError, jsonio.JsonError, msgspec.ValidationError):
            return None

    def ids(self) -> list[str]:
        """Return the ids of all reports, newest first."""
        self._trim()
        return [path.stem for path, _, _ in self._files()]

    def purge(self) -> int:
        """Delete all reports. Return how many there were."""
        files = self._files()
        for path, _, _ in files:
            path.unlink(missing_ok=True)
        remove_parts(self._folder, 0.0)
        return len(files)

    def _trim(self) -> None:
        total = 0
        for index, (path, size, modified) in enumerate(self._files()):
            total += size
            if index >= MAX_REPORTS or total > MAX_REPORT_BYTES or modified < self._now() - MAX_SECONDS:
                path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[Path, int, float]]:
        files = []
        for path in self._folder.glob("*.json"):
            try:
                stat = path.stat()
            except OSError:  # removed by another process
                continue
            files.append((path, stat.st_size, stat.st_mtime_ns / 1e9))
        return sorted(files, key=lambda each: each[2], reverse=True)


def encode_report(refusal: RefusalReport) -> bytes:
    """Return the content of a report's file. Raises JsonError."""
    return jsonio.encode(msgspec.to_builtins(refusal))


def _masked(breach: T, redactor: Redactor) -> T:
    """Return a note or a breach without secrets: both may quote the request."""
    return structs.replace(breach, at=redactor.text(breach.at), detail=redactor.text(breach.detail))


def _request(request: HttpRequest, redactor: Redactor) -> RecordedMessage:
    query = f"?{redactor.query(request.query)}" if request.query else ""
    line = redactor.text(f"{request.method} {request.path}") + query
    return RecordedMessage(line, redactor.headers(request.headers), _text(request.body, redactor))


def _text(body: bytes, redactor: Redactor) -> str:
    """Return the beginning of a body, without secrets. It is cut before it is masked, because masking is slow.

    A secret that is cut in two would not be found, so the last characters before the cut are left out.
    """
    if len(body) <= _LONGEST_BODY:
        return redactor.text(body.decode("utf-8", "replace"))
    shown = redactor.text(body[:_LONGEST_BODY].decode("utf-8", "replace"))[:-_LONGEST_SECRET]
    return f"{shown}\n… cut: the body has {len(body)} bytes"


# --- writing reports in the background


class SignedRequest(Struct, frozen=True):
    """The head of a request as a credential signed it, and the beginning of a body that the credential changed.

    Rendering is deterministic, so a report renders the body again: while a response is awaited, it is not kept.
    """

    base_url: str
    method: str
    path: str
    query: str
    headers: Headers
    prefix: bytes = b""  # in place of the first byte of the rendered body

    __repr__ = object.__repr__  # the headers hold keys

    def restore(self, rendered: HttpRequest) -> HttpRequest:
        """Return the request as it was signed."""
        body = self.prefix + rendered.body[1:] if self.prefix else rendered.body
        return HttpRequest(self.method, self.path, self.query, self.headers, body)

    def on_wire(self, signed: HttpRequest) -> HttpRequest:
        """Return the signed request as it was written to the connection: with the base URL and all headers."""
        base = parse_base_url(self.base_url)
        query = "&".join(filter(None, (base.query, signed.query)))
        headers = sent_headers(base.authority, signed.headers, len(signed.body))
        return HttpRequest(signed.method, f"{base.prefix}{signed.path}", query, headers, signed.body)


class ExplainJob(Struct, frozen=True):
    """The data to build a report from; the job process can run it."""

    plan: PlanJob
    request_names: tuple[str, str, str]  # the request's id, the client's dialect, the upstream's name
    signed: SignedRequest | None  # None: the request was not kept
    response: HttpResponse
    fault: Fault
    secrets: tuple[str, ...]


def build_report(job: ExplainJob, known: ParsedRequest) -> RefusalReport:
    """Build a report, without secrets. Raises ClientFault if the request can no longer be planned."""
    planned, _ = make_plan(job.plan, known)
    request, _ = render_planned(planned, known.request, job.plan.bounds.max_body)
    if job.signed is not None:
        request = job.signed.restore(request)
    redactor, response = Redactor(lambda: job.secrets), job.response
    identity, client, upstream = job.request_names
    shown = request if job.signed is None else job.signed.on_wire(request)
    return RefusalReport(
        id=identity,
        at=time.time(),
        client=client,
        upstream=upstream,
        dialect=planned.upstream.name,
        model=redactor.text(planned.translated.model),
        fault=redactor.text(job.fault.message),
        client_request=_request(known.request, redactor),
        sent=_request(shown, redactor),
        response=RecordedMessage(
            str(response.status), redactor.headers(response.headers), _text(response.body, redactor)
        ),
        notes=tuple(_masked(note, redactor) for note in planned.notes),
        breaches=tuple(_masked(breach, redactor) for breach in _broken_rules(planned, request, job.fault)),
        kind=job.fault.kind,
    )


def _broken_rules(planned: Plan, request: HttpRequest, fault: Fault) -> list[Breach]:
    """Return the rules that the request breaks as it was sent, and those that the upstream's error names."""
    dialect = planned.upstream
    try:
        call = dialect.binding.match(request) or planned.call()
    except DragomanError:
        call = planned.call()
    named = dialect.refusal_rules(call, fault) if dialect.refusal_rules is not None else ()
    found = [*named, *dialect.codec.breaches(call)]
    return list({(breach.rule, breach.at): breach for breach in reversed(found)}.values())[::-1]


class PendingReport(Struct, frozen=True):
    """A report in the queue."""

    job: ExplainJob
    client: Dialect
    body: bytes  # of the client's request
    response_store: ResponseStore  # to find the conversation that the request continues
    owner: Owner
    job_process: JobProcess | None  # builds the report; None: a thread does
    found: FoundResponses = NOTHING_FOUND  # what other processes store

    @property
    def size(self) -> int:
        """The bytes that the report keeps in memory."""
        return len(self.body) + len(self.job.response.body) + self.found.size


class ReportQueue:
    """Writes reports one after the other, after the clients have received their responses.

    Reports about large requests are built in the job process, others in a thread. The queue is bounded; reports
    that do not fit are dropped.
    """

    def __init__(self, *, most: int = MAX_WAITING, most_bytes: int = MAX_WAITING_BYTES) -> None:
        self.dropped = 0
        self._most, self._most_bytes = most, most_bytes
        self._cases: deque[tuple[PendingReport, RefusalLog]] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of reports in the queue."""
        return len(self._cases)

    def add(self, case: PendingReport, log: RefusalLog) -> None:
        """Add a report to the queue."""
        size = case.size
        if len(self._cases) >= self._most or self._bytes + size > self._most_bytes:
            self.dropped += 1
            return
        self._bytes += size
        self._cases.append((case, log))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Write the queued reports for at most two seconds; drop the rest."""
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
                # The continued conversation may be gone by now, and a job process may fail: then there is no report.
                with suppress(DragomanError, JobProcessUnavailable, jsonio.JsonError):
                    await _keep(case, log)
            except Exception as error:  # noqa: BLE001  a bug, which must not stop the other reports
                context = {
                    "message": f"no report about the refused request {case.job.request_names[0]} can be written",
                    "exception": error,
                }
                asyncio.get_running_loop().call_exception_handler(context)
            finally:
                if self._cases:  # `close` may have emptied the queue.
                    self._cases.popleft()
                    self._bytes -= case.size


async def _keep(case: PendingReport, log: RefusalLog) -> None:
    loop = asyncio.get_running_loop()
    request_id = case.job.request_names[0]
    if case.job_process is not None:
        _, data = await case.job_process.run_job(case.job, request_id, case.body)
        await loop.run_in_executor(None, log.write, request_id, data)
        return
    known, items = await loop.run_in_executor(None, _read, case)
    owner, memory, found = case.owner, case.response_store, case.found
    earlier = memory.earlier(owner, known.conversation, found)
    plan = structs.replace(case.job.plan, earlier=earlier, items=memory.items(owner, items, found))
    job = structs.replace(case.job, plan=plan)
    await loop.run_in_executor(None, lambda: log.write(request_id, encode_report(build_report(job, known))))


def _read(case: PendingReport) -> tuple[ParsedRequest, tuple[str, ...]]:
    request = structs.replace(case.job.plan.request, body=case.body)
    call = case.client.binding.match(request)
    assert call is not None  # The request was matched before.
    conversation = case.client.codec.parse_request(call)
    return ParsedRequest(case.client, request, conversation), item_references(case.client, conversation)


# --- the text of a report


def render_report(refusal: RefusalReport, width: int = _WIDTH) -> str:
    """Return a report as text: the most likely cause, the notes, both requests side by side, and the response."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(refusal.at))
    head = [
        f"{refusal.id}  {when}  {refusal.client} → {refusal.upstream} ({refusal.dialect}), {refusal.model}",
        f"The upstream refused the request with {refusal.response.line}: {_line(refusal.fault)}",
        _suspects(refusal),
        _noted(refusal),
    ]
    parts = [
        *(_wrapped(part, width) for part in head),
        _side_by_side(refusal, width),
        f"THE RESPONSE\n{_clipped(_pretty(refusal.response.body))}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


# What an error means that no change of the request can avoid.
_NOT_THE_REQUEST = {
    "overloaded": "OVERLOAD: the upstream has no capacity now. Nothing is wrong with the request: send it again later, "
    "or add a fallback to the route.",
    "rate_limit": "RATE LIMIT: the credential has sent too many requests. Nothing is wrong with the request: send it "
    "again later, or add a credential or a fallback.",
    "quota": "QUOTA: the account has no quota left. Nothing is wrong with the request: raise the quota, or use another "
    "credential.",
    "timeout": "TIMEOUT: the upstream took too long. Send the request again, or use a faster model.",
    "server": "ERROR OF THE SERVICE: the upstream reports an error of its own. Send the request again later.",
    "auth": "CREDENTIAL: the upstream does not accept the gateway's key or login. `dragoman status` shows it.",
    "permission": "PERMISSION: the account may not use this model or feature.",
}


_ACCOUNT = frozenset({"auth", "permission"})  # errors about which advice may help


def _wrapped(text: str, width: int) -> str:
    """Return the text with its long lines wrapped to the width."""
    wrapper = textwrap.TextWrapper(width, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)
    return "\n".join(wrapper.fill(line) if len(line) > width else line for line in text.split("\n"))


def _suspects(refusal: RefusalReport) -> str:
    if cause := _NOT_THE_REQUEST.get(refusal.kind):
        shown = [each for each in refusal.breaches if each.severity == "error" or refusal.kind in _ACCOUNT]
        words = {"error": "also broken", "advice": "perhaps"}
        return "\n".join([cause, *(f"{words[each.severity]}: {_breach(each)}" for each in shown[:10])])
    if not refusal.breaches:
        return (
            f"The request breaks no known rule of {refusal.dialect}: the service has one that dragoman does not know."
        )
    first, *others = sorted(refusal.breaches, key=lambda breach: breach.severity != "error")
    lines = [f"MOST LIKELY: {_breach(first)}", *(f"also broken: {_breach(each)}" for each in others[:9])]
    return "\n".join(lines)


def _breach(breach: Breach) -> str:
    place = f" at {breach.at}" if breach.at else ""
    return _line(f"{breach.rule}{place}: {breach.detail} ({breach.evidence})")


def _noted(refusal: RefusalReport) -> str:
    if not refusal.notes:
        return "The translation changed nothing."
    lines = [f"CHANGES BY THE TRANSLATION ({len(refusal.notes)})", *(f"  {_line(str(note))}" for note in refusal.notes)]
    return "\n".join(lines)


def _side_by_side(refusal: RefusalReport, width: int) -> str:
    """Return both requests in two columns."""
    half = max((width - 3) // 2, 20)
    left = ["AS THE CLIENT SENT IT", *_lines(refusal.client_request)]
    right = ["AS THE GATEWAY SENT IT", *_lines(refusal.sent)]
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
    """Return the text as one line, without control characters."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= _LONGEST_LINE else f"{plain[:_LONGEST_LINE]}…"
