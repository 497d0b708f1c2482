"""Scripts: what the simulated model says, turn by turn, from a TOML file. docs/simulator.md lists the fields."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.errors import Fault, Kind, LocalMisuse
from dragoman.model.conversation import Why
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# --- one turn: what the model says, at what pace, and how it goes wrong


class Say(Struct, frozen=True):
    text: str


class Reason(Struct, frozen=True):
    text: str


class Use(Struct, frozen=True):
    """A tool call. Arguments are text: a script may want them broken."""

    name: str
    arguments: str
    id: str = ""
    form: Literal["json", "text"] = "json"


class Wait(Struct, frozen=True):
    seconds: float


class Raise(Struct, frozen=True):
    """An exception inside the stream."""

    type: str
    message: str = ""
    reason: str | None = None


class Emit(Struct, frozen=True):
    """One wire frame, as it is."""

    event: str
    data: Json


Part: TypeAlias = Say | Reason | Use | Wait | Raise | Emit


class Cut(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the body ends early (bytes or wire frames from its beginning), and how: `end` is a clean end of body,
    `close` leaves out the last chunk, `reset` resets the connection."""

    byte: int | None = None
    event: int | None = None
    how: Literal["end", "close", "reset"] = "close"


class Refuse(Struct, frozen=True):
    """An HTTP refusal instead of an answer."""

    status: int
    message: str = ""
    reason: str | None = None
    type: str = ""
    retry_after: float | None = None
    headers: Mapping[str, str] = {}


class Pace(Struct, frozen=True, forbid_unknown_fields=True):
    """How an answer is cut up and timed."""

    chunk: int = 12  # characters in a text, reasoning or arguments delta
    delay: float = 0.0  # seconds before each wire frame
    first_delay: float = 0.0  # seconds before the first
    write: int = 0  # bytes in one write; 0: one wire frame


class Turn(Struct, frozen=True, kw_only=True):
    """`parts is None`: the embedded model says what it would say."""

    parts: tuple[Part, ...] | None = None
    refuse: Refuse | None = None
    stop: Why | None = None  # None: by what was said
    sequence: str | None = None
    pace: Pace = Pace()
    cut: Cut | None = None
    quirks: frozenset[str] = frozenset()
    input_tokens: int | None = None
    output_tokens: int | None = None


class Trouble(Struct, frozen=True):
    kind: Kind
    status: int
    message: str


# What an exception's name means in any dialect. A script may use these names or the kinds themselves.
TROUBLES: dict[str, Trouble] = {
    "ThrottlingException": Trouble("rate_limit", 429, "Too many requests, please wait before trying again."),
    "ServiceQuotaExceededException": Trouble("quota", 402, "You have reached the limit of your subscription."),
    "AccessDeniedException": Trouble("permission", 403, "The bearer token included in the request is invalid."),
    "ValidationException": Trouble("invalid", 400, "Improperly formed request."),
    "ContentLengthExceededException": Trouble("context_full", 400, "Input is too long."),
    "ResourceNotFoundException": Trouble("not_found", 404, "Not found."),
    "UnauthorizedException": Trouble("auth", 401, "Invalid token"),
    "RequestTooLargeException": Trouble("too_large", 413, "The request is too large."),
    "ModelTimeoutException": Trouble("timeout", 408, "The model took too long."),
    "ServiceUnavailableException": Trouble("overloaded", 503, "The service is unavailable. Please try again."),
    "InternalServerException": Trouble("server", 500, "Encountered an unexpected error. Please try again."),
}
_BY_STATUS = {trouble.status: name for name, trouble in reversed(TROUBLES.items())} | {
    529: "ServiceUnavailableException",
    502: "InternalServerException",
    504: "ModelTimeoutException",
}
_BY_KIND: dict[str, str] = {trouble.kind: name for name, trouble in TROUBLES.items()}


def exception_name(name: str) -> str:
    """The AWS name of an exception, which may be given as a kind (`rate_limit`)."""
    return _BY_KIND.get(name, name)


def exception_for(status: int) -> str:
    """The exception that goes with an HTTP status."""
    return _BY_STATUS.get(status, "InternalServerException" if status >= 500 else "ValidationException")


def fault(name: str, message: str = "", status: int | None = None, retry_after: float | None = None) -> Fault:
    """The canonical fault for an exception's name or kind."""
    known = TROUBLES.get(exception_name(name), TROUBLES["InternalServerException"])
    return Fault(known.kind, message or known.message, status or known.status, retry_after, code=exception_name(name))


_MOST_TIMES = 1_000_000
QUIRKS = frozenset({"bare_fragments", "object_input", "no_metadata", "no_usage", "no_start", "nested"})
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")


class Tokens(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens the service takes, and how long those it gives last."""

    access: list[str] | None = None  # None: any
    refresh: list[str] | None = None  # None: any
    lifetime: float = 3600.0  # seconds; what the answer says as expiresIn
    uses: int | None = None  # calls after which an access token has expired
    rotate: bool = True  # a refresh answers with a new refresh token, and the old one is dead
    pending: int = 1  # polls of a device login before it is granted


class Script(Struct, frozen=True, kw_only=True):
    """Turns in their order, and what comes after the last: the embedded model, all again, or the last again."""

    turns: tuple[Turn, ...] = ()
    then: Literal["model", "repeat", "last"] = "model"
    tokens: Tokens = Tokens()
    pace: Pace = Pace()  # of the turns that the model takes by itself


def load(path: str | Path) -> Script:
    """Read a script file. Raises LocalMisuse that names the file and the place in it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalMisuse(f"cannot read the script {path}: {error}") from None
    return parse(text, str(path))


def parse(text: str, name: str = "script") -> Script:
    """Read a script. Raises LocalMisuse that names the place."""
    try:
        entry = msgspec.convert(tomllib.loads(text), _File)
    except tomllib.TOMLDecodeError as error:
        raise LocalMisuse(f"{name} is no TOML: {error}") from None
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        problem = str(error)[: place.start()] if place else str(error)
        raise LocalMisuse(problem, at=f"{name}: {place[1]}" if place and place[1] else name) from None
    _check_pace(entry.pace, f"{name}: pace")
    turns = [turn for index, each in enumerate(entry.turn) for turn in _turns(each, entry, f"{name}: turn[{index}]")]
    if entry.then != "model" and not turns:
        raise LocalMisuse(f"{entry.then!r} needs a turn", at=f"{name}: then")
    return Script(turns=tuple(turns), then=entry.then, tokens=entry.tokens, pace=entry.pace)


class Player:
    """Plays a script: one turn a call."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._played = 0

    def next(self) -> Turn:
        script, at = self._script, self._played
        self._played += 1
        if at < len(script.turns):
            return script.turns[at]
        match script.then:
            case "model":
                return Turn(pace=script.pace)
            case "repeat":
                return script.turns[at % len(script.turns)]
            case "last":
                return script.turns[-1]


# --- the file


class _PartEntry(Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    reasoning: str | None = None
    tool: str | None = None
    wait: float | None = None
    exception: str | None = None
    event: str | None = None
    arguments: dict[str, Any] | str | None = None
    id: str = ""
    message: str = ""
    reason: str | None = None
    data: Any = None


class _TurnEntry(Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    parts: list[_PartEntry] | None = None
    status: int | list[int] | None = None
    message: str = ""
    reason: str | None = None
    type: str = ""
    retry_after: float | None = None
    headers: dict[str, str] = {}
    stop: Why | None = None
    sequence: str | None = None
    chunk: int | None = None
    delay: float | None = None
    first_delay: float | None = None
    write: int | None = None
    cut: Cut | None = None
    quirks: list[str] = []
    input_tokens: int | None = None
    output_tokens: int | None = None
    times: int = 1


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    turn: list[_TurnEntry] = []
    then: Literal["model", "repeat", "last"] = "model"
    tokens: Tokens = Tokens()
    pace: Pace = Pace()


# Each kind of part is named by its field; the others are its own.
_OWN: dict[str, frozenset[str]] = {
    "text": frozenset(),
    "reasoning": frozenset(),
    "wait": frozenset(),
    "tool": frozenset({"arguments", "id"}),
    "exception": frozenset({"message", "reason"}),
    "event": frozenset({"data"}),
}


def _turns(entry: _TurnEntry, file: _File, at: str) -> Iterator[Turn]:
    """The turns that one entry stands for: `status` may be a list, and `times` repeats it all."""
    if entry.text is not None and entry.parts is not None:
        raise LocalMisuse("a turn has `text` or `parts`, not both", at=at)
    unknown = [quirk for quirk in entry.quirks if quirk not in QUIRKS]
    if unknown:
        raise LocalMisuse(f"no quirk {unknown[0]!r} (known: {', '.join(sorted(QUIRKS))})", at=f"{at}.quirks")
    if not 0 < entry.times <= _MOST_TIMES:
        raise LocalMisuse(f"expected 1 to {_MOST_TIMES}", at=f"{at}.times")
    _check_cut(entry.cut, f"{at}.cut")
    statuses = entry.status if isinstance(entry.status, list) else [entry.status or 200]
    for status in statuses:
        if not 200 <= status <= 599:
            raise LocalMisuse(f"{status} is no status of an answer", at=f"{at}.status")
    pace = _pace(entry, file.pace, at)
    parts = (
        None
        if entry.parts is None
        else tuple(_part(part, f"{at}.parts[{index}]") for index, part in enumerate(entry.parts))
    )
    if entry.text is not None:
        parts = (Say(entry.text),)
    for _ in range(entry.times):
        for status in statuses:
            yield Turn(
                parts=parts,
                refuse=None if status == 200 else _refusal(entry, status),
                stop=entry.stop,
                sequence=entry.sequence,
                pace=pace,
                cut=entry.cut,
                quirks=frozenset(entry.quirks),
                input_tokens=entry.input_tokens,
                output_tokens=entry.output_tokens,
            )


def _refusal(entry: _TurnEntry, status: int) -> Refuse:
    return Refuse(status, entry.message, entry.reason, entry.type, entry.retry_after, entry.headers)


def _pace(entry: _TurnEntry, default: Pace, at: str) -> Pace:
    given = {field: getattr(entry, field) for field in Pace.__struct_fields__}
    pace = msgspec.structs.replace(default, **{field: value for field, value in given.items() if value is not None})
    _check_pace(pace, at)
    return pace


def _check_pace(pace: Pace, at: str) -> None:
    for field, least in (("chunk", 1), ("delay", 0), ("first_delay", 0), ("write", 0)):
        if not getattr(pace, field) >= least:
            raise LocalMisuse(f"expected at least {least}", at=f"{at}.{field}")


def _check_cut(cut: Cut | None, at: str) -> None:
    if cut is None:
        return
    if (cut.byte is None) == (cut.event is None):
        raise LocalMisuse("a cut is at a `byte` or at an `event`", at=at)
    if (cut.byte or cut.event or 0) < 0:
        raise LocalMisuse("expected at least 0", at=at)


def _part(entry: _PartEntry, at: str) -> Part:
    kinds = [kind for kind in _OWN if getattr(entry, kind) is not None]
    if len(kinds) != 1:
        raise LocalMisuse(f"a part has exactly one of {', '.join(_OWN)}", at=at)
    foreign = [
        field
        for field in ("arguments", "id", "message", "reason", "data")
        if getattr(entry, field) not in (None, "") and field not in _OWN[kinds[0]]
    ]
    if foreign:
        raise LocalMisuse(f"a part with `{kinds[0]}` takes no `{foreign[0]}`", at=at)
    match entry:
        case _PartEntry(text=str(text)):
            return Say(text)
        case _PartEntry(reasoning=str(text)):
            return Reason(text)
        case _PartEntry(tool=str(tool)):
            arguments = (
                entry.arguments if isinstance(entry.arguments, str) else jsonio.encode(entry.arguments or {}).decode()
            )
            return Use(tool, arguments, entry.id)
        case _PartEntry(exception=str(kind)):
            return Raise(kind, entry.message, entry.reason)
        case _PartEntry(event=str(kind)):
            return Emit(kind, entry.data if entry.data is not None else {})
        case _:
            return Wait(entry.wait or 0.0)
