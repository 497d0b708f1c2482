"""`dragoman explain ID`: what an upstream refused, as the client sent it, as we sent it, and what it answered.

A small ring of private files: the last twenty refusals, sixteen megabytes, a day; secrets are masked before anything
is written. The rule that was most likely broken stands first: what the upstream dialect's own rules say of our request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, structs

from dragoman.dialects.rulebook import Breach
from dragoman.errors import Fault
from dragoman.gateway.private import make_private_folder, read_private, remove_parts, write_private
from dragoman.gateway.problems import ConfigError
from dragoman.gateway.redaction import Redactor
from dragoman.model.filter import Note
from dragoman.translate import Plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest, HttpResponse

T = TypeVar("T", Note, Breach)

MOST = 20
MOST_BYTES = 16 * 1024 * 1024
MOST_SECONDS = 24 * 3600.0
_LONGEST_BODY = 2 * 1024 * 1024
_LONGEST_SECRET = 16 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_WIDTH = 100
_LONGEST_LINE = 400


class Sent(Struct, frozen=True):
    """One side of an exchange, fit to be shown: a line, headers, and a body as text."""

    line: str
    headers: tuple[tuple[str, str], ...]
    body: str


class Refusal(Struct, frozen=True):
    """Everything about one refusal."""

    id: str
    at: float
    client: str
    upstream: str
    dialect: str
    model: str
    fault: str
    asked: Sent
    sent: Sent
    answered: Sent
    notes: tuple[Note, ...]
    breaches: tuple[Breach, ...]


class Ring:
    """The files. `keep` may be called from a thread."""

    def __init__(self, folder: Path, *, enabled: bool = True, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._enabled = enabled
        self._now = now

    @property
    def enabled(self) -> bool:
        return self._enabled

    def switched(self, enabled: bool) -> Ring:
        return Ring(self._folder, enabled=enabled, now=self._now)

    def keep(self, refusal: Refusal) -> bool:
        """Write it down and let the oldest go; False if it could not be, which is nobody's trouble."""
        try:
            return self.write(refusal.id, written(refusal))
        except jsonio.JsonError:
            return False

    def write(self, identity: str, data: bytes) -> bool:
        """Write down what `written` gave for a refusal; False if it could not be."""
        if not self._enabled or not _ID.match(identity):
            return False
        try:
            make_private_folder(self._folder)
            write_private(self._folder / f"{identity}.json", data)
            self._trim()
        except (OSError, ConfigError):
            return False
        return True

    def load(self, identity: str) -> Refusal | None:
        """The refusal of that request; None if it is not kept, or no longer."""
        if not _ID.match(identity):
            return None
        try:
            return msgspec.convert(jsonio.decode(read_private(self._folder / f"{identity}.json")), Refusal)
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
        for index, (path, size, written) in enumerate(self._files()):
            total += size
            if index >= MOST or total > MOST_BYTES or written < self._now() - MOST_SECONDS:
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


def written(refusal: Refusal) -> bytes:
    """The content of a refusal's file. Raises JsonError."""
    return jsonio.encode(msgspec.to_builtins(refusal))


def remembered(
    way: tuple[str, str, str],
    made: Plan,
    words: tuple[HttpRequest, HttpRequest, HttpResponse, Fault],
    redactor: Redactor,
) -> Refusal:
    """All about a refusal, without secrets.

    `way` is the request's id, the client's dialect and the upstream's name; `words` are what the client sent, what we
    sent, what was answered, and what that means.
    """
    identity, client, upstream = way
    asked, sent, answered, fault = words
    return Refusal(
        id=identity,
        at=time.time(),
        client=client,
        upstream=upstream,
        dialect=made.upstream.name,
        model=redactor.text(made.sent.model),
        fault=redactor.text(fault.message),
        asked=_request(asked, redactor),
        sent=_request(sent, redactor),
        answered=Sent(str(answered.status), redactor.headers(answered.headers), _text(answered.body, redactor)),
        notes=tuple(_masked(note, redactor) for note in made.notes),
        breaches=tuple(_masked(breach, redactor) for breach in made.upstream.codec.breaches(made.call())),
    )


def _masked(told: T, redactor: Redactor) -> T:
    """A note or a breach: both quote what people wrote."""
    return structs.replace(told, at=redactor.text(told.at), detail=redactor.text(told.detail))


def _request(request: HttpRequest, redactor: Redactor) -> Sent:
    query = f"?{redactor.query(request.query)}" if request.query else ""
    line = redactor.text(f"{request.method} {request.path}") + query
    return Sent(line, redactor.headers(request.headers), _text(request.body, redactor))


def _text(body: bytes, redactor: Redactor) -> str:
    """The beginning of a body. It is cut before it is masked, since that takes time.

    A secret at the cut may be cut in two and not be found, so the last characters before the cut are left out.
    """
    if len(body) <= _LONGEST_BODY:
        return redactor.text(body.decode("utf-8", "replace"))
    shown = redactor.text(body[:_LONGEST_BODY].decode("utf-8", "replace"))[:-_LONGEST_SECRET]
    return f"{shown}\n… cut: the body has {len(body)} bytes"


# --- the page


def explain(refusal: Refusal, width: int = _WIDTH) -> str:
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


def _suspects(refusal: Refusal) -> str:
    if not refusal.breaches:
        return f"No rule known of {refusal.dialect} is broken by what we sent: the service knows one that we do not."
    first, *others = sorted(refusal.breaches, key=lambda breach: breach.severity != "error")
    lines = [f"MOST LIKELY: {_breach(first)}", *(f"also broken: {_breach(each)}" for each in others[:9])]
    return "\n".join(lines)


def _breach(breach: Breach) -> str:
    place = f" at {breach.at}" if breach.at else ""
    return _line(f"{breach.rule}{place}: {breach.detail} ({breach.evidence})")


def _noted(refusal: Refusal) -> str:
    if not refusal.notes:
        return "Nothing was changed on the way."
    lines = [f"CHANGED ON THE WAY ({len(refusal.notes)})", *(f"  {_line(str(note))}" for note in refusal.notes)]
    return "\n".join(lines)


def _beside(refusal: Refusal, width: int) -> str:
    """Both requests in two columns, line by line."""
    half = max((width - 3) // 2, 20)
    left = ["AS THE CLIENT SENT IT", *_lines(refusal.asked)]
    right = ["AS WE SENT IT", *_lines(refusal.sent)]
    rows = max(len(left), len(right))
    left += [""] * (rows - len(left))
    right += [""] * (rows - len(right))
    return "\n".join(
        f"{_cell(one, half):<{half}} │ {_cell(other, half)}".rstrip() for one, other in zip(left, right, strict=True)
    )


def _lines(sent: Sent) -> list[str]:
    headers = [f"{name}: {value}" for name, value in sent.headers]
    return [sent.line, *headers, "", *_clipped(_pretty(sent.body)).split("\n")]


def _pretty(body: str) -> str:
    try:
        return jsonio.pretty(jsonio.decode(body)).decode()
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
