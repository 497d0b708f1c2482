"""WrappedJson: the reader of calls that are JSON objects with the name and the arguments in them.

One object (Hermes), several parted by a separator (Llama 3), or an array of them (Granite, Mistral and others).
"""

from __future__ import annotations

from dragoman.filters.raw_tools.json_scanner import JsonScanner
from dragoman.filters.raw_tools.readers import (
    HELD_LIMIT,
    LIMIT,
    WHITE_SPACE,
    CallsReader,
    EndMarkerGuard,
    Piece,
    skip_white_space,
)
from dragoman.filters.raw_tools.table import Keys
from dragoman.filters.raw_tools.values import JSON_STRING
from dragoman.wire import jsonio
from dragoman.wire.markers import Markers


class WrappedJsonReader(CallsReader):
    """`{"name": …, "arguments": {…}}`, one or many; the arguments are passed on byte for byte.

    A call is named as soon as its name is known and its arguments begin well. `bare`: no marker says that this is a
    call, so an object with other members, or without arguments, is none: a tool's definition has a name, too.
    """

    def __init__(
        self, ends: Markers, closes: frozenset[str], keys: Keys, separators: str = "", *, bare: bool = False
    ) -> None:
        self._keys = keys
        self._bare = bare
        self._separators = separators
        super().__init__(ends, closes, self._open, self._between, JsonScanner)

    def _forget(self) -> None:
        super()._forget()
        self._id = self._key = ""
        self._given = False  # the arguments have begun
        self._size = 0
        self._whole = False  # the arguments have to be whole before they go out
        self._held_id: list[str] = []
        self._nested = False  # within an object that has the name and the arguments
        self._tail = ""  # of broken arguments: brackets, of which the last may be the wrapper's

    def _unsaid(self) -> list[str]:
        return [self._tail] if self._tail else []

    def _fail(self, at: int) -> int:
        if not self._named:
            return super()._fail(at)
        if self._settled:
            self._step = self._junk
        else:
            self._broke, self._step = True, self._broken
        return at

    # --- around the objects

    def _open(self, text: str, at: int, out: list[Piece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if text[at] == "[" and not self._in_list:
            self._in_list = True
            return at + 1
        if text[at] == "{":
            self._forget()
            self._step = self._at_key
            return at + 1
        return self._fail(at)

    def _between(self, text: str, at: int, out: list[Piece]) -> int:
        """After an object: a separator and another object, or the end."""
        here = self._next_call(text, at, "," if self._in_list else self._separators)
        if here is None:
            return at
        if text[here] == "{" and (self._in_list or self._separators):
            self._mark, self._step = at, self._open
            self._forget()
            return here
        self._step = self._at_end
        if self._in_list and text[here] == "]":
            self._in_list = False
            return here + 1
        return at

    # --- inside an object

    def _at_key(self, text: str, at: int, out: list[Piece]) -> int:
        at = skip_white_space(text, at)
        if at < len(text) and text[at] == "}":
            return self._close(at, out)
        key, at = self._token(text, at)
        if key is not None:
            self._key, self._step = key, self._at_colon
        return at

    def _at_colon(self, text: str, at: int, out: list[Piece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail(at)
        self._step = self._at_value
        return at + 1

    def _at_value(self, text: str, at: int, out: list[Piece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if self._keys.is_name and text[at] not in "{n":
            return self._fail(at)
        if self._keys.is_name:
            self._tool, self._key = self._key, self._keys.arguments[0]
            if self._refuses(self._tool):
                return self._fail(at)
        elif self._key in self._keys.name and not self._tool and text[at] == "{" and not self._nested:
            self._nested, self._step = True, self._at_key
            return at + 1
        elif self._key in self._keys.name and not self._tool:
            name, at = self._token(text, at)
            if name is not None and self._refuses(name):
                return self._fail(at)
            if name is not None:
                self._tool, self._step = name, self._at_comma
                self._say(out)
            return at
        self._guard = EndMarkerGuard(JsonScanner(), self._ends)
        self._step = self._member
        if self._key in self._keys.arguments and not self._given:
            self._given = True
            self._whole = text[at] not in "{["
            self._step = self._arguments
        elif self._key in self._keys.id and not self._id:
            self._step = self._at_id
        elif self._bare and self._key not in ("type", "id"):
            if not self._named:
                return self._fail(at)
            self._broke = True
        return at

    def _member(self, text: str, at: int, out: list[Piece]) -> int:
        """Skip a value that says nothing."""
        return self._value(text, at, [], out)

    def _at_id(self, text: str, at: int, out: list[Piece]) -> int:
        at = self._value(text, at, self._held_id, out)
        if self._step == self._at_comma:
            literal = "".join(self._held_id)
            self._id = "" if len(literal) > LIMIT or literal[:1] in "{[n" else _decoded(literal)
        return at

    def _value(self, text: str, at: int, value: list[str], out: list[Piece]) -> int:
        """Read a value with the guard; go on to the comma after it, or fail, or end."""
        end = self._guard.read(text, at, value, self._final)
        if self._guard.marker:
            return self._cut(end, self._guard.marker, out)
        if self._guard.machine.complete:
            self._step = self._at_comma
        elif self._guard.machine.is_broken:
            return self._fail(end)
        return end

    def _arguments(self, text: str, at: int, out: list[Piece]) -> int:
        value: list[str] = []
        end = self._guard.read(text, at, value, self._final)
        machine = self._guard.machine
        if self._whole or not self._named:
            self._held += value
            self._size += end - at
        else:
            out.extend(value)
        if self._size > HELD_LIMIT:
            if not self._tool:
                return self._fail(end)
            self._whole = False  # too long to unwrap: it goes out as it was written
        if machine.complete:
            self._settled = True
            self._step = self._at_comma
            if self._whole:
                self._held, self._whole = [_unwrapped("".join(self._held))], False
        self._say(out)
        ended = machine.complete or machine.is_broken or self._guard.marker
        self._flows = self._named and not self._whole and not ended
        if self._guard.marker:
            return self._cut(end, self._guard.marker, out)
        return self._fail(end) if machine.is_broken else end

    def _say(self, out: list[Piece]) -> None:
        """Name the call, if its name is known and its arguments begin well."""
        begins = self._settled or self._guard.machine.has_begun or self._size > HELD_LIMIT
        if self._tool and self._held and begins and not self._whole:
            self._name(self._tool, self._id, out)
            out.extend(self._held)
            self._held, self._size = [], 0

    def _at_comma(self, text: str, at: int, out: list[Piece]) -> int:
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            return self._close(at, out)
        if text[at] != ",":
            return self._fail(at)
        if self._keys.is_name and self._settled:  # the next member is another call
            self._end(out)
            self._forget()
        self._step = self._at_key
        return at + 1

    def _close(self, at: int, out: list[Piece]) -> int:
        """The object ends at the position."""
        if not self._tool or (self._given and not self._settled):
            return self._fail(at)
        if not self._given and self._bare:
            return self._fail(at)
        if not self._given:
            self._given = self._settled = True
            self._held = ["{}"]
        self._say(out)
        if self._nested:
            self._nested, self._step = False, self._at_comma
            return at + 1
        self._end(out)
        self._step = self._between
        return at + 1

    # --- where something is wrong

    def _junk(self, text: str, at: int, out: list[Piece]) -> int:
        """The arguments are whole, but something is wrong behind them."""
        if not self._closes:
            self._end(out)
            self.over = True
            return at
        at, marker = self._ends.find(text, at, self._final)
        return self._cut(at, marker, out) if marker else at

    def _broken(self, text: str, at: int, out: list[Piece]) -> int:
        """Arguments that are no JSON: all up to the end marker, but for the brackets around them."""
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
        """The string that begins at the position and where it ends; None if it is not all there."""
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
        return literal[1:-1]  # a raw line end in it, or the like
    return value if isinstance(value, str) else literal


def _unwrapped(text: str) -> str:
    """Arguments that are no object: an object in a string is unwrapped, null is none, anything else stays as it is."""
    if text in ("null", '""'):
        return "{}"
    if text.startswith('"') and (inner := _decoded(text).strip(WHITE_SPACE)).startswith("{"):
        scanner = JsonScanner()
        if scanner.scan(inner, 0) == len(inner) and scanner.complete:
            return inner
    return text
