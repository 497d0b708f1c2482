"""Scripts: what the simulated model says, turn by turn, from a TOML file. docs/simulator.md lists the fields."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from dragoman.errors import ErrorKind, Fault, LocalMisuse
from dragoman.model.conversation import StopReason
from dragoman.wire import jsonio

T = TypeVar("T")

# --- one turn: what the model says, at what pace, and how it goes wrong


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of an answer. In a file, the name of its first field says which kind it is."""


class TextPart(_Part, frozen=True):
    text: str


class ReasoningPart(_Part, frozen=True, rename={"text": "reasoning"}):
    text: str


class ToolCallPart(_Part, frozen=True, rename={"name": "tool"}):
    """A tool call. Arguments are text: a script may want them broken."""

    name: str
    arguments: str = "{}"
    id: str = ""
    form: Literal["json", "text"] = "json"


class WaitPart(_Part, frozen=True, rename={"seconds": "wait"}):
    seconds: float


class ExceptionPart(_Part, frozen=True, rename={"type": "exception"}):
    """An exception inside the stream."""

    type: str
    message: str = ""
    reason: str | None = None


class FramePart(_Part, frozen=True):
    """One wire frame, as it is."""

    event: str
    data: Any = {}


Part: TypeAlias = TextPart | ReasoningPart | ToolCallPart | WaitPart | ExceptionPart | FramePart
_KINDS: dict[str, type[Part]] = {
    kind.__struct_encode_fields__[0]: kind
    for kind in (TextPart, ReasoningPart, WaitPart, ToolCallPart, ExceptionPart, FramePart)
}


class CutPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the body ends early (bytes or wire frames from its beginning), and how: `end` is a clean end of body,
    `close` leaves out the last chunk, `reset` resets the connection."""

    byte: Annotated[int, Meta(ge=0)] | None = None
    event: Annotated[int, Meta(ge=0)] | None = None
    how: Literal["end", "close", "reset"] = "close"

    def __post_init__(self) -> None:
        if (self.byte is None) == (self.event is None):
            raise ValueError("a cut is at a `byte` or at an `event`")


class StreamPace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an answer is cut up and timed."""

    chunk: Annotated[int, Meta(ge=1)] = 12  # characters in a text, reasoning or arguments delta
    delay: Annotated[float, Meta(ge=0)] = 0.0  # seconds before each wire frame
    first_delay: Annotated[float, Meta(ge=0)] = 0.0  # seconds before the first
    write: Annotated[int, Meta(ge=0)] = 0  # bytes in one write; 0: one wire frame


class _AnyTurn(StreamPace, frozen=True, kw_only=True):
    """What a turn has, in a script and in its file."""

    message: str = ""  # this and the next four are of a refusal
    reason: str | None = None
    type: str = ""
    retry_after: float | None = None
    headers: dict[str, str] = {}
    stop: StopReason | None = None  # None: by what was said
    sequence: str | None = None
    cut: CutPoint | None = None
    quirks: frozenset[str] = frozenset()
    input_tokens: int | None = None
    output_tokens: int | None = None


class ScriptTurn(_AnyTurn, frozen=True, kw_only=True):
    """`parts is None`: the embedded model says what it would say. A status other than 200 refuses the request."""

    parts: tuple[Part, ...] | None = None
    status: int = 200


class ErrorMeaning(Struct, frozen=True):
    kind: ErrorKind
    status: int
    message: str


# What an exception's name means in any dialect. A script may use these names or the kinds themselves.
_TROUBLES: dict[str, ErrorMeaning] = {
    "ThrottlingException": ErrorMeaning("rate_limit", 429, "Too many requests, please wait before trying again."),
    "ServiceQuotaExceededException": ErrorMeaning("quota", 402, "You have reached the limit of your subscription."),
    "AccessDeniedException": ErrorMeaning("permission", 403, "The bearer token included in the request is invalid."),
    "ValidationException": ErrorMeaning("invalid", 400, "Improperly formed request."),
    "ContentLengthExceededException": ErrorMeaning("context_full", 400, "Input is too long."),
    "ResourceNotFoundException": ErrorMeaning("not_found", 404, "Not found."),
    "UnauthorizedException": ErrorMeaning("auth", 401, "Invalid token"),
    "RequestTooLargeException": ErrorMeaning("too_large", 413, "The request is too large."),
    "ModelTimeoutException": ErrorMeaning("timeout", 408, "The model took too long."),
    "ServiceUnavailableException": ErrorMeaning("overloaded", 503, "The service is unavailable. Please try again."),
    "InternalServerException": ErrorMeaning("server", 500, "Encountered an unexpected error. Please try again."),
}
_BY_STATUS = {trouble.status: name for name, trouble in reversed(_TROUBLES.items())} | {
    529: "ServiceUnavailableException",
    502: "InternalServerException",
    504: "ModelTimeoutException",
}
_BY_KIND: dict[str, str] = {trouble.kind: name for name, trouble in _TROUBLES.items()}


def exception_for(status: int) -> str:
    """The exception that goes with an HTTP status."""
    return _BY_STATUS.get(status, "InternalServerException" if status >= 500 else "ValidationException")


def make_fault(name: str, message: str = "", status: int | None = None, retry_after: float | None = None) -> Fault:
    """The canonical fault for an exception's name or kind."""
    code = _BY_KIND.get(name, name)  # the AWS name
    known = _TROUBLES.get(code, _TROUBLES["InternalServerException"])
    return Fault(known.kind, message or known.message, status or known.status, retry_after, code=code)


QUIRKS = frozenset({"bare_fragments", "object_input", "no_metadata", "no_usage", "no_start", "nested"})


class TokenSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tokens the service takes, and how long those it gives last."""

    access: list[str] | None = None  # None: any
    refresh: list[str] | None = None  # None: any
    lifetime: float = 3600.0  # seconds; what the answer says as expiresIn
    uses: int | None = None  # calls after which an access token has expired
    rotate: bool = True  # a refresh answers with a new refresh token, and the old one is dead
    pending: int = 1  # polls of a device login before it is granted


class Script(Struct, frozen=True, kw_only=True):
    """Turns in their order, and what comes after the last: the embedded model, all again, or the last again."""

    turns: tuple[ScriptTurn, ...] = ()
    then: Literal["model", "repeat", "last"] = "model"
    tokens: TokenSettings = TokenSettings()
    pace: StreamPace = StreamPace()  # of the turns that the model takes by itself


def load_script(path: str | Path) -> Script:
    """Read a script file. Raises LocalMisuse that names the file and the place in it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LocalMisuse(f"cannot read the script {path}: {error}") from None
    return parse_script(text, str(path))


def parse_script(text: str, name: str = "script") -> Script:
    """Read a script. Raises LocalMisuse that names the place."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LocalMisuse(f"{name} is no TOML: {error}") from None
    file = _read(document, _File, f"{name}: ")
    turns = [turn for index, each in enumerate(file.turn) for turn in _turns(each, file.pace, f"{name}: turn[{index}]")]
    if file.then != "model" and not turns:
        raise LocalMisuse(f"{file.then!r} needs a turn", at=f"{name}: then")
    return Script(turns=tuple(turns), then=file.then, tokens=file.tokens, pace=file.pace)


class ScriptPlayer:
    """Plays a script: one turn a call."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._played = 0

    def next(self) -> ScriptTurn:
        script, at = self._script, self._played
        self._played += 1
        if at < len(script.turns):
            return script.turns[at]
        match script.then:
            case "model":
                return ScriptTurn(**structs.asdict(script.pace))
            case "repeat":
                return script.turns[at % len(script.turns)]
            case "last":
                return script.turns[-1]


# --- the file


_Status = Annotated[int, Meta(ge=200, le=599)]


class _TurnEntry(_AnyTurn, frozen=True, kw_only=True):
    """One entry may stand for several turns: `status` may be a list, and `times` repeats it all."""

    text: str | None = None
    parts: list[dict[str, Any]] | None = None
    status: _Status | list[_Status] = 200
    times: Annotated[int, Meta(ge=1, le=1_000_000)] = 1


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    turn: list[dict[str, Any]] = []
    then: Literal["model", "repeat", "last"] = "model"
    tokens: TokenSettings = TokenSettings()
    pace: StreamPace = StreamPace()


def _read(value: object, kind: type[T], before: str) -> T:
    """Convert a value of the file. Raises LocalMisuse that names the place, which `before` leads to."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        raise LocalMisuse(problem, at=(before + place.strip(".`")).rstrip(".: ")) from None


def _turns(given: dict[str, Any], pace: StreamPace, at: str) -> Iterator[ScriptTurn]:
    """The turns that one entry stands for."""
    entry = _read(structs.asdict(pace) | given, _TurnEntry, f"{at}.")
    if entry.text is not None and entry.parts is not None:
        raise LocalMisuse("a turn has `text` or `parts`, not both", at=at)
    unknown = sorted(entry.quirks - QUIRKS)
    if unknown:
        raise LocalMisuse(f"no quirk {unknown[0]!r} (known: {', '.join(sorted(QUIRKS))})", at=f"{at}.quirks")
    parts: tuple[Part, ...] | None = None if entry.text is None else (TextPart(entry.text),)
    if entry.parts is not None:
        parts = tuple(_part(part, f"{at}.parts[{index}]") for index, part in enumerate(entry.parts))
    common = {name: getattr(entry, name) for name in _AnyTurn.__struct_fields__}
    for _ in range(entry.times):
        for status in entry.status if isinstance(entry.status, list) else [entry.status]:
            yield ScriptTurn(**common, parts=parts, status=status)


def _part(given: dict[str, Any], at: str) -> Part:
    kinds = [kind for name, kind in _KINDS.items() if name in given]
    if len(kinds) != 1:
        raise LocalMisuse(f"a part has exactly one of {', '.join(_KINDS)}", at=at)
    if isinstance(given.get("arguments"), dict):
        given = given | {"arguments": jsonio.encode(given["arguments"]).decode()}
    return _read(given, kinds[0], f"{at}.")
