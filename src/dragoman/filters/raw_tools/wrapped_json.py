"""The reader of calls that are JSON objects with the name and the arguments in them.

The calls are one object (Hermes), several with a separator (Llama 3), or an array (Granite, Mistral and others).
"""

from __future__ import annotations

from dragoman.filters.raw_tools.json_scanner import JsonScanner
from dragoman.filters.raw_tools.readers import (
    BUFFER_LIMIT,
    LIMIT,
    WHITE_SPACE,
    CallPiece,
    CallsReader,
    EndMarkerGuard,
    skip_white_space,
)
from dragoman.filters.raw_tools.table import Keys
from dragoman.filters.raw_tools.values import JSON_STRING
from dragoman.wire import jsonio
from dragoman.wire.markers import Markers


class WrappedJsonReader(CallsReader):
    """Reads `{"name": …, "arguments": {…}}`, one or many; the arguments are passed on byte for byte.

    A call is named as soon as its name is known and its arguments begin like JSON. `bare`: no marker shows that this is
    a call, so an object with other members, or without arguments, is not one: a tool's definition has a name too.
    """

    def __init__(
        self, ends: Markers, closes: frozenset[str], keys: Keys, separators: str = "", *, bare: bool = False
    ) -> None:
        self._keys = keys
        self._bare = bare
        self._separators = separators
        super().__init__(ends, closes, self._open, self._between, JsonScanner)

    def _reset_call(self) -> None:
        super()._reset_call()
        self._id = self._key = ""
        self._has_arguments = False  # the arguments have begun
        self._size = 0
        self._must_be_whole = False  # the arguments must be complete before they are sent
        self._id_pieces: list[str] = []
        self._is_nested = False  # within an object that has the name and the arguments
        self._tail = ""  # brackets at the end of broken arguments; the last may be the wrapper's

    def _unsent_text(self) -> list[str]:
        return [self._tail] if self._tail else []

    def _fail(self, at: int) -> int:
        if not self._named:
            return super()._fail(at)
        if self._arguments_complete:
            self._step = self._junk
        else:
            self._is_broken, self._step = True, self._broken
        return at

    # --- around the objects

    def _open(self, text: str, at: int, out: list[CallPiece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if text[at] == "[" and not self._in_list:
            self._in_list = True
            return at + 1
        if text[at] == "{":
            self._reset_call()
            self._step = self._at_key
            return at + 1
        return self._fail(at)

    def _between(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Read after an object: a separator and another object, or the end."""
        here = self._next_call(text, at, "," if self._in_list else self._separators)
        if here is None:
            return at
        if text[here] == "{" and (self._in_list or self._separators):
            self._mark, self._step = at, self._open
            self._reset_call()
            return here
        self._step = self._at_end
        if self._in_list and text[here] == "]":
            self._in_list = False
            return here + 1
        return at

    # --- inside an object

    def _at_key(self, text: str, at: int, out: list[CallPiece]) -> int:
        at = skip_white_space(text, at)
        if at < len(text) and text[at] == "}":
            return self._close(at, out)
        key, at = self._token(text, at)
        if key is not None:
            self._key, self._step = key, self._at_colon
        return at

    def _at_colon(self, text: str, at: int, out: list[CallPiece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail(at)
        self._step = self._at_value
        return at + 1

    def _at_value(self, text: str, at: int, out: list[CallPiece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if self._keys.is_name and text[at] not in "{n":
            return self._fail(at)
        if self._keys.is_name:
            self._tool, self._key = self._key, self._keys.arguments[0]
            if self._refuses(self._tool):
                return self._fail(at)
        elif self._key in self._keys.name and not self._tool and text[at] == "{" and not self._is_nested:
            self._is_nested, self._step = True, self._at_key
            return at + 1
        elif self._key in self._keys.name and not self._tool:
            name, at = self._token(text, at)
            if name is not None and self._refuses(name):
                return self._fail(at)
            if name is not None:
                self._tool, self._step = name, self._at_comma
                self._try_name(out)
            return at
        self._guard = EndMarkerGuard(JsonScanner(), self._ends)
        self._step = self._member
        if self._key in self._keys.arguments and not self._has_arguments:
            self._has_arguments = True
            self._must_be_whole = text[at] not in "{["
            self._step = self._arguments
        elif self._key in self._keys.id and not self._id:
            self._step = self._at_id
        elif self._bare and self._key not in ("type", "id"):
            if not self._named:
                return self._fail(at)
            self._is_broken = True
        return at

    def _member(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Skip a value without meaning."""
        return self._value(text, at, [], out)

    def _at_id(self, text: str, at: int, out: list[CallPiece]) -> int:
        at = self._value(text, at, self._id_pieces, out)
        if self._step == self._at_comma:
            literal = "".join(self._id_pieces)
            self._id = "" if len(literal) > LIMIT or literal[:1] in "{[n" else _decoded(literal)
        return at

    def _value(self, text: str, at: int, value: list[str], out: list[CallPiece]) -> int:
        """Read a value with the guard; then go to the comma after it, or fail, or end."""
        end = self._guard.read(text, at, value, self._final)
        if self._guard.marker:
            return self._cut(end, self._guard.marker, out)
        if self._guard.scanner.complete:
            self._step = self._at_comma
        elif self._guard.scanner.is_broken:
            return self._fail(end)
        return end

    def _arguments(self, text: str, at: int, out: list[CallPiece]) -> int:
        value: list[str] = []
        end = self._guard.read(text, at, value, self._final)
        scanner = self._guard.scanner
        if self._must_be_whole or not self._named:
            self._buffered += value
            self._size += end - at
        else:
            out.extend(value)
        if self._size > BUFFER_LIMIT:
            if not self._tool:
                return self._fail(end)
            self._must_be_whole = False  # too long to unwrap: it is sent unchanged
        if scanner.complete:
            self._arguments_complete = True
            self._step = self._at_comma
            if self._must_be_whole:
                self._buffered, self._must_be_whole = [_unwrapped("".join(self._buffered))], False
        self._try_name(out)
        ended = scanner.complete or scanner.is_broken or self._guard.marker
        self._is_streaming = self._named and not self._must_be_whole and not ended
        if self._guard.marker:
            return self._cut(end, self._guard.marker, out)
        return self._fail(end) if scanner.is_broken else end

    def _try_name(self, out: list[CallPiece]) -> None:
        """Name the call, if its name is known and its arguments begin like JSON."""
        begins = self._arguments_complete or self._guard.scanner.has_begun or self._size > BUFFER_LIMIT
        if self._tool and self._buffered and begins and not self._must_be_whole:
            self._name(self._tool, self._id, out)
            out.extend(self._buffered)
            self._buffered, self._size = [], 0

    def _at_comma(self, text: str, at: int, out: list[CallPiece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            return self._close(at, out)
        if text[at] != ",":
            return self._fail(at)
        if self._keys.is_name and self._arguments_complete:  # the next member is another call
            self._end(out)
            self._reset_call()
        self._step = self._at_key
        return at + 1

    def _close(self, at: int, out: list[CallPiece]) -> int:
        """End the object at the position."""
        if not self._tool or (self._has_arguments and not self._arguments_complete):
            return self._fail(at)
        if not self._has_arguments and self._bare:
            return self._fail(at)
        if not self._has_arguments:
            self._has_arguments = self._arguments_complete = True
            self._buffered = ["{}"]
        self._try_name(out)
        if self._is_nested:
            self._is_nested, self._step = False, self._at_comma
            return at + 1
        self._end(out)
        self._step = self._between
        return at + 1

    # --- errors

    def _junk(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Skip invalid text after complete arguments."""
        if not self._closes:
            self._end(out)
            self.is_over = True
            return at
        at, marker = self._ends.find(text, at, self._final)
        return self._cut(at, marker, out) if marker else at

    def _broken(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Pass on arguments that are not JSON, up to the end marker, without the brackets around them."""
        start, marker = self._ends.find(text, at, self._final)
        text = self._tail + text[at:start]
        split = len(text.rstrip("}]" + WHITE_SPACE))
        while len(text) - split > LIMIT:
            split += LIMIT
        body, self._tail = text[:split], text[split:]
        if marker:
            tail = self._tail.rstrip(WHITE_SPACE)
            tail = tail.removesuffix("]").rstrip(WHITE_SPACE) if self._in_list else tail
            body += tail.removesuffix("}").rstrip(WHITE_SPACE)
            self._tail = ""
        if body:
            out.append(body)
        return self._cut(start, marker, out) if marker else start

    def _token(self, text: str, at: int) -> tuple[str | None, int]:
        """Return the string that begins at the position and its end; None if it is incomplete."""
        if at == len(text):
            return None, at
        found = JSON_STRING.match(text, at, at + LIMIT)
        if found is None:
            if text[at] != '"' or len(text) - at >= LIMIT or self._final:
                self._fail(at)
            return None, at
        return _decoded(found[0]), found.end()


def _decoded(literal: str) -> str:
    try:
        value = jsonio.decode(literal)
    except jsonio.JsonError:
        return literal[1:-1]  # it contains a raw line end or similar
    return value if isinstance(value, str) else literal


def _unwrapped(text: str) -> str:
    """Return arguments that are not an object: an object in a string is unwrapped, null is `{}`, others stay."""
    if text in ("null", '""'):
        return "{}"
    if text.startswith('"') and (inner := _decoded(text).strip(WHITE_SPACE)).startswith("{"):
        scanner = JsonScanner()
        if scanner.scan(inner, 0) == len(inner) and scanner.complete:
            return inner
    return text
