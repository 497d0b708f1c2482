"""Scripts of the simulator: the replies of the model, turn by turn, from a TOML file.

docs/simulator.md lists the fields. Only `load_script` does I/O.
"""

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
from dragoman.wire.validation import explain_refusal

T = TypeVar("T", bound=Struct)

# --- one turn: the parts of a reply, its pace, and its failures


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    """One part of a reply. In a file, the name of its first field selects the kind."""


class TextPart(_Part, frozen=True):
    """A text."""

    text: str


class ReasoningPart(_Part, frozen=True, rename={"text": "reasoning"}):
    """Reasoning of the model."""

    text: str


class ToolCallPart(_Part, frozen=True, rename={"name": "tool"}):
    """A tool call. Arguments are text, so that a script can send invalid JSON."""

    name: str
    arguments: str = "{}"
    id: str = ""
    form: Literal["json", "text"] = "json"


class WaitPart(_Part, frozen=True, rename={"seconds": "wait"}):
    """A pause inside the reply."""

    seconds: float


class ExceptionPart(_Part, frozen=True, rename={"type": "exception"}):
    """An exception inside the stream."""

    type: str
    message: str = ""
    reason: str | None = None


class FramePart(_Part, frozen=True):
    """One wire frame, sent unchanged."""

    event: str
    data: Any = {}


ScriptPart: TypeAlias = TextPart | ReasoningPart | ToolCallPart | WaitPart | ExceptionPart | FramePart
_KINDS: dict[str, type[ScriptPart]] = {
    kind.__struct_encode_fields__[0]: kind
    for kind in (TextPart, ReasoningPart, WaitPart, ToolCallPart, ExceptionPart, FramePart)
}


class CutPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """The point at which a body ends early: after `byte` bytes, or before the wire frame `event` (counted from 0).

    `how`: `end` is a clean end of body, `close` leaves out the last chunk, `reset` resets the connection.
    """

    byte: Annotated[int, Meta(ge=0)] | None = None
    event: Annotated[int, Meta(ge=0)] | None = None
    how: Literal["end", "close", "reset"] = "close"

    def __post_init__(self) -> None:
        if (self.byte is None) == (self.event is None):
            raise ValueError("a cut needs exactly one of `byte` and `event`")


class StreamPace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizes and delays of a streamed reply."""

    chunk: Annotated[int, Meta(ge=1)] = 12  # characters in a text, reasoning or arguments delta
    delay: Annotated[float, Meta(ge=0)] = 0.0  # seconds before each wire frame
    first_delay: Annotated[float, Meta(ge=0)] = 0.0  # seconds before the first wire frame
    write: Annotated[int, Meta(ge=0)] = 0  # bytes in one write; 0: one wire frame


def human_pace(tokens_per_second: float) -> StreamPace:
    """Return the pace of a stream that a person can read along: a delta of one token (four characters) at a time."""
    return StreamPace(chunk=4, delay=1 / tokens_per_second)


class _AnyTurn(StreamPace, frozen=True, kw_only=True):
    """The fields of a turn, in a script and in its file."""

    message: str = ""  # this and the next four fields are for refusals
    reason: str | None = None
    type: str = ""
    retry_after: float | None = None
    headers: dict[str, str] = {}
    stop: StopReason | None = None  # None: derived from the parts
    sequence: str | None = None
    cut: CutPoint | None = None
    quirks: frozenset[str] = frozenset()
    input_tokens: int | None = None
    output_tokens: int | None = None


class ScriptTurn(_AnyTurn, frozen=True, kw_only=True):
    """One turn. `parts` None leaves the reply to the embedded model; a status other than 200 refuses the request."""

    parts: tuple[ScriptPart, ...] | None = None
    status: int = 200


class ErrorMeaning(Struct, frozen=True):
    """The canonical meaning of an AWS exception: its kind, status and default message."""

    kind: ErrorKind
    status: int
    message: str


# The meaning of an exception's name in every dialect. A script may use these names or the kinds.
_EXCEPTIONS: dict[str, ErrorMeaning] = {
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
_BY_STATUS = {meaning.status: name for name, meaning in reversed(_EXCEPTIONS.items())} | {
    529: "ServiceUnavailableException",
    502: "InternalServerException",
    504: "ModelTimeoutException",
}
_BY_KIND: dict[str, str] = {meaning.kind: name for name, meaning in _EXCEPTIONS.items()}


def exception_for(status: int) -> str:
    """Return the name of the exception for an HTTP status."""
    return _BY_STATUS.get(status, "InternalServerException" if status >= 500 else "ValidationException")


def make_fault(name: str, message: str = "", status: int | None = None, retry_after: float | None = None) -> Fault:
    """Return the canonical fault for an exception's name or kind."""
    code = _BY_KIND.get(name, name)  # the AWS name
    known = _EXCEPTIONS.get(code, _EXCEPTIONS["InternalServerException"])
    return Fault(known.kind, message or known.message, status or known.status, retry_after, code=code)


QUIRKS = frozenset({"bare_fragments", "object_input", "no_metadata", "no_usage", "no_start", "nested"})


class TokenSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokens that the service accepts, and the lifetime of those that it issues."""

    access: list[str] | None = None  # None: any
    refresh: list[str] | None = None  # None: any
    lifetime: float = 3600.0  # seconds; sent as expiresIn
    uses: int | None = None  # calls after which an access token has expired
    rotate: bool = True  # a refresh returns a new refresh token, and the old one becomes invalid
    pending: int = 1  # polls of a device login before it is granted


class Script(Struct, frozen=True, kw_only=True):
    """Turns in order. `then` is what follows the last: the embedded model, all turns again, or the last one again."""

    turns: tuple[ScriptTurn, ...] = ()
    then: Literal["model", "repeat", "last"] = "model"
    tokens: TokenSettings = TokenSettings()
    pace: StreamPace = StreamPace()  # for the turns of the embedded model


def load_script(path: str | Path) -> Script:
    """Read a script file. Raises LocalMisuse with the file and the place in it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise LocalMisuse(f"cannot read the script {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise LocalMisuse(f"cannot read the script {path}: it is not a text in UTF-8") from None
    return parse_script(text, str(path))


def parse_script(text: str, name: str = "script") -> Script:
    """Parse a script. Raises LocalMisuse with the place of the error."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LocalMisuse(f"{name} is not valid TOML: {error}") from None
    file = _read(document, _File, f"{name}: ")
    turns = [turn for index, each in enumerate(file.turn) for turn in _turns(each, file.pace, f"{name}: turn[{index}]")]
    if file.then != "model" and not turns:
        raise LocalMisuse(f"{file.then!r} needs at least one turn", at=f"{name}: then")
    return Script(turns=tuple(turns), then=file.then, tokens=file.tokens, pace=file.pace)


class ScriptPlayer:
    """Plays a script: each call of `next` returns one turn."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._played = 0

    def next(self) -> ScriptTurn:
        """Return the next turn."""
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
    """One entry of the file. It can mean several turns: `status` may be a list, and `times` repeats the entry."""

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
    """Convert a value of the file. Raises LocalMisuse with its place; `before` is the path of the value."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        refused = explain_refusal(error, kind.__struct_fields__)
        raise LocalMisuse(refused.message, at=(before + refused.at).rstrip(".: ")) from None


def _turns(table: dict[str, Any], pace: StreamPace, at: str) -> Iterator[ScriptTurn]:
    """Yield the turns of one entry."""
    entry = _read(structs.asdict(pace) | table, _TurnEntry, f"{at}.")
    if entry.text is not None and entry.parts is not None:
        raise LocalMisuse("a turn must not have both `text` and `parts`", at=at)
    unknown = sorted(entry.quirks - QUIRKS)
    if unknown:
        raise LocalMisuse(f"there is no quirk {unknown[0]!r} (known: {', '.join(sorted(QUIRKS))})", at=f"{at}.quirks")
    parts: tuple[ScriptPart, ...] | None = None if entry.text is None else (TextPart(entry.text),)
    if entry.parts is not None:
        parts = tuple(_part(part, f"{at}.parts[{index}]") for index, part in enumerate(entry.parts))
    common = {name: getattr(entry, name) for name in _AnyTurn.__struct_fields__}
    for _ in range(entry.times):
        for status in entry.status if isinstance(entry.status, list) else [entry.status]:
            yield ScriptTurn(**common, parts=parts, status=status)


def _part(table: dict[str, Any], at: str) -> ScriptPart:
    kinds = [kind for name, kind in _KINDS.items() if name in table]
    if len(kinds) != 1:
        raise LocalMisuse(f"a part must have exactly one of {', '.join(_KINDS)}", at=at)
    if isinstance(table.get("arguments"), dict):
        table = table | {"arguments": jsonio.encode(table["arguments"]).decode()}
    return _read(table, kinds[0], f"{at}.")
