"""WrappedJson: the reader of calls that are one JSON object with the name and the arguments in it (Hermes, Qwen)."""

from __future__ import annotations

import re
from collections.abc import Callable

from dragoman.filters.raw_tools.readers import LIMIT, skip_blank
from dragoman.filters.raw_tools.scan import JsonScanner
from dragoman.wire import jsonio
from dragoman.wire.markers import Markers

_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_ARGUMENTS = ("arguments", "parameters")


class WrappedJson:
    """`{"name": …, "arguments": {…}}` and its end tag; the arguments are passed on byte for byte.

    `read` returns as soon as it knows the `name`, and again when it is `sure`: the name is known, the arguments begin
    well. Until then it may all be no call; `failed` says that it is none.
    """

    def __init__(self, ends: Markers, closes: frozenset[str]) -> None:
        self.over = False
        self.sure = False
        self.failed = False
        self.name = ""
        self._ends = ends
        self._closes = closes
        self._step: _Step = self._open
        self._key = ""
        self._scanner = JsonScanner()
        self._given = False  # the arguments have begun
        self._settled = False  # the arguments have ended
        self._whole: list[str] | None = None  # arguments that are no object, held until they end
        self._closed = False
        self._broke = False
        self._tail = ""  # of broken arguments: braces, of which the last is the wrapper's

    @property
    def complete(self) -> bool:
        return self.over or self._closed

    def read(self, text: str, at: int, out: list[str]) -> int:
        if self.sure and not self._settled and self._scanner.inside(text):
            out.append(text[at:])
            return len(text)
        known = bool(self.name), self.sure
        while not self.over and at < len(text):
            step = self._step
            moved = step(text, at, out)
            moves = moved > at or self._step != step
            at = moved
            if self._broke:
                self._broke = False
                if not self.sure:
                    self.failed = True
                    break
                self._step = self._junk if self._settled else self._broken  # too late to take the call back
            elif not moves or (bool(self.name), self.sure) != known:
                break
        return at

    def _fail(self, at: int) -> int:
        self._broke = True
        return at

    def _open(self, text: str, at: int, out: list[str]) -> int:
        at = skip_blank(text, at)
        if at == len(text):
            return at
        if text[at] != "{":
            return self._fail(at)
        self._step = self._at_key
        return at + 1

    def _at_key(self, text: str, at: int, out: list[str]) -> int:
        at = skip_blank(text, at)
        if at < len(text) and text[at] == "}":
            return self._close(at + 1, out)
        key, at = self._token(text, at)
        if key is not None:
            self._key, self._step = key, self._at_colon
        return at

    def _at_colon(self, text: str, at: int, out: list[str]) -> int:
        at = skip_blank(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            return self._fail(at)
        self._step = self._at_value
        return at + 1

    def _at_value(self, text: str, at: int, out: list[str]) -> int:
        at = skip_blank(text, at)
        if at == len(text):
            return at
        if self._key == "name":
            name, at = self._token(text, at)
            if name is not None:
                self.name, self._step = name, self._at_comma
                self.sure = self._settled
            return at
        self._scanner = JsonScanner()
        self._step = self._skipped
        if self._key in _ARGUMENTS and not self._given:
            self._given = True
            self._whole = None if text[at] == "{" else []
            self._step = self._arguments
        return at

    def _skipped(self, text: str, at: int, out: list[str]) -> int:
        at = self._scanner.scan(text, at)
        if self._scanner.complete:
            self._step = self._at_comma
        elif at < len(text):
            return self._fail(at)
        return at

    def _arguments(self, text: str, at: int, out: list[str]) -> int:
        end = self._scanner.scan(text, at)
        if end > at:
            (out if self._whole is None else self._whole).append(text[at:end])
        if self._scanner.complete:
            self._settled = True
            self._step = self._at_comma
            if self._whole is not None:
                out.append(_unwrapped("".join(self._whole)))
        elif end < len(text):
            self._fail(end)
        if self.name and (self._settled or (self._whole is None and self._scanner.begun)):
            self.sure = True
        return end

    def _at_comma(self, text: str, at: int, out: list[str]) -> int:
        at = skip_blank(text, at)
        if at == len(text):
            return at
        if text[at] == "}":
            return self._close(at + 1, out)
        if text[at] != ",":
            return self._fail(at)
        self._step = self._at_key
        return at + 1

    def _close(self, at: int, out: list[str]) -> int:
        if not self.name:
            return self._fail(at - 1)
        if not self._given:
            out.append("{}")
        self.sure = self._settled = self._closed = True
        self._step = self._at_end
        return at

    def _at_end(self, text: str, at: int, out: list[str]) -> int:
        """After the object: its end tag, which may be missing."""
        here = skip_blank(text, at)
        if here - at > LIMIT:
            self.over = True
        elif here < len(text):
            if text[here] == "}":
                return here + 1
            literal = self._ends.match(text, here, False)
            if literal != "":
                self.over = True
                return here + len(literal) if literal in self._closes else at
        return at

    def _junk(self, text: str, at: int, out: list[str]) -> int:
        at, literal = self._ends.find(text, at, False)
        return self._ended(at, literal)

    def _broken(self, text: str, at: int, out: list[str]) -> int:
        """Arguments that are no JSON: all up to the end tag, but for the wrapper's own brace."""
        start, literal = self._ends.find(text, at, False)
        text = self._tail + text[at:start]
        split = len(text)
        while split and (text[split - 1] == "}" or text[split - 1].isspace()):
            split -= 1
        while len(text) - split > LIMIT:
            split += LIMIT
        body, self._tail = text[:split], text[split:]
        if literal:
            body += self._tail.rstrip().removesuffix("}").rstrip()
        if body:
            out.append(body)
        return self._ended(start, literal)

    def _ended(self, at: int, literal: str) -> int:
        self.over = bool(literal)
        return at + len(literal) if literal in self._closes else at

    def _token(self, text: str, at: int) -> tuple[str | None, int]:
        """The string that begins at the position and where it ends; None if it is not all there."""
        if at == len(text):
            return None, at
        found = _STRING.match(text, at)
        if found is None or found.end() - at > LIMIT:
            if text[at] != '"' or len(text) - at > LIMIT:
                self._fail(at)
            return None, at
        return _decoded(found[0], found[1]), found.end()


def _decoded(literal: str, inner: str) -> str:
    try:
        value = jsonio.decode(literal)
    except jsonio.JsonError:
        return inner  # a raw line end in it, or the like
    return value if isinstance(value, str) else inner


def _unwrapped(text: str) -> str:
    """Arguments that are no object: a JSON string is unwrapped, null is none, anything else stays as it is."""
    if text.startswith('"'):
        return _decoded(text, text) or "{}"
    return "{}" if text == "null" else text


_Step = Callable[[str, int, list[str]], int]
