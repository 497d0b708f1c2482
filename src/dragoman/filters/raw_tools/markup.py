"""The reader of calls whose arguments are key and value tags; it builds their JSON while they arrive.

A value that can only be a string streams at once, escaped. Any other is buffered until its end tag; values.py then
turns it into JSON. If the body is one JSON object instead of tags, that object is the arguments, byte for byte.
"""

from __future__ import annotations

import re

from msgspec import Struct

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools.json_scanner import JsonScanner
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT, LIMIT, WHITE_SPACE, CallPiece, skip_white_space
from dragoman.filters.raw_tools.table import Markup, Table
from dragoman.filters.raw_tools.values import FindParameter, ParameterSchema, escape_json, object_text, quote_json
from dragoman.wire.markers import Markers

_LINE_ENDS = ("\n", "\r\n")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


class MarkupMarkers(Struct, frozen=True):
    """The markers that a markup reader searches, by position."""

    markup: Markup
    ends: Markers  # all markers that end the call
    closes: frozenset[str]  # the end markers that belong to the call
    tags: Markers  # `ends`, and the end of an opening tag
    json: Markers  # the tags around a JSON body
    after: Markers  # `ends` and `json`
    stops: Markers  # all markers that end a value
    after_lf: Markers  # the same, and each of them after a line feed
    after_crlf: Markers  # the same, and each of them after either line end
    cdata: Markers  # the ends of a value that began as a CDATA section

    @classmethod
    def of(cls, table: Table) -> MarkupMarkers:
        """Return the markers of a table. Raises LocalMisuse for a table without markup."""
        markup, ends = table.markup, table.ends()
        if markup is None:
            raise LocalMisuse(f"the table {table.name} has no markup")
        stops = (*markup.value_ends, *markup.value_stops, *table.call_end, *table.section_end)
        return cls(
            markup,
            Markers(ends),
            frozenset(table.call_end),
            Markers((*ends, markup.open_end)),
            Markers(markup.json_tags),
            Markers((*ends, *markup.json_tags)),
            Markers(stops),
            Markers((*stops, *(f"\n{stop}" for stop in stops))),
            Markers((*stops, *(line_end + stop for line_end in _LINE_ENDS for stop in stops))),
            Markers(f"{_CDATA_END}{gap}{end}" for end in markup.value_ends for gap in ("", *_LINE_ENDS)),
        )


class TagReader:
    """The base of readers of tags: writes the JSON object, and handles text that is not a tag."""

    def __init__(self, find_parameter: FindParameter) -> None:
        self.is_over = False
        self.failed = False
        self.junk = False
        self._find_parameter = find_parameter
        self._has_parameters = False  # a parameter was sent
        self._stray: list[str] = []  # text that is not a tag, while there is nothing else
        self._size = 0  # number of buffered characters

    def _write_key(self, key: str, out: list[CallPiece]) -> None:
        out.append(f"{',' if self._has_parameters else '{'}{quote_json(key)}:")
        self._has_parameters = True

    def _skip(self, text: str, has_begun: bool) -> None:
        """Leave out text that is not a tag. It is buffered while it may be the whole body."""
        if has_begun:
            self.junk = self.junk or bool(text.strip(WHITE_SPACE))
            return
        self._stray.append(text)
        self._size += len(text)
        self.failed = self._size > (BUFFER_LIMIT if self._stray[0][0] in '{"' else LIMIT)

    def _write_stray(self, text: str, out: list[CallPiece]) -> bool:
        """Write a text without tags if it is an object; otherwise this is not a call."""
        arguments = object_text(text)
        if arguments is None:
            self.failed = True
            return False
        out.append(arguments)
        return True


class MarkupReader(TagReader):
    """Reads the arguments of one call.

    `junk`: text between the tags that is neither tag nor value was left out. A call with only such text has `failed`.
    """

    def __init__(self, marks: MarkupMarkers, find_parameter: FindParameter) -> None:
        super().__init__(find_parameter)
        self._markup = marks.markup
        self._marks = marks
        self._value_ends = frozenset(marks.markup.value_ends)
        self._step = self._between
        # the current parameter
        self._key = ""
        self._type_word = ""
        self._parameter: ParameterSchema | None = None
        self._buffered: list[str] | None = None  # the value so far; None: it streams
        self._streams = False  # within a value that streams
        self._stops = marks.stops
        self._wrapper: str | None = None  # the value of a parameter that may be the arguments as a whole
        # a JSON body
        self._scanner = JsonScanner()
        self._broken = False
        self._ahead: tuple[int, str] | None = None  # the next tag in the current text, so that it is searched once

    @property
    def closed(self) -> bool:
        return self.is_over or (self._scanner.complete and not self._broken)

    @property
    def valid(self) -> bool:
        return not self._broken

    def finish(self, text: str, at: int, out: list[CallPiece]) -> int:
        if self._step == self._between and self._has_parameters and not self._scanner.has_begun:
            out.append("}")  # all parameters are complete, so the arguments are valid JSON
        return len(text)

    def read(self, text: str, at: int, out: list[CallPiece]) -> int:
        self._ahead = None
        if self._streams:  # the fast path for most of a long value
            end, literal = self._stops.find(text, at, False)
            if not literal and end == len(text):
                self._put(text[at:] if at else text, out)
                return end
        elif self._scanner.take_string(text[at:]) is not None:
            out.append(text[at:])
            return len(text)
        while not (self.is_over or self.failed) and at < len(text):
            step = self._step
            moved = step(text, at, out)
            if moved == at and self._step == step:
                break
            at = moved
        return at

    # --- between tags

    def _between(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Find the next parameter, a JSON body or the end."""
        at = skip_white_space(text, at) if not self._stray else at
        if at == len(text):
            return at
        if not (self._stray or self._has_parameters) and self._wrapper is None:
            if text[at] == "{":
                self._step = self._opened
                return at + 1
            fence = self._marks.json.match(text, at, False)
            if fence is not None:
                return at + len(fence)
        if text[at] != "<":
            end = text.find("<", at + 1)
            return self._skip_to(text, at, len(text) if end < 0 else end)
        literal = self._marks.ends.match(text, at, False)
        if literal is not None:
            return self._end(at, literal, out) if literal else at
        if self._ahead is None or self._ahead[0] <= at:
            self._ahead = self._marks.tags.find(text, at + 1, False)
        end, literal = self._ahead
        if end - at > LIMIT or literal in self._marks.ends.markers:
            return self._skip_to(text, at, at + 1)
        if not literal:
            return at
        end += len(literal)
        tag = self._markup.opens.fullmatch(text, at, end)
        if tag is None:
            return self._skip_to(text, at, at + 1)
        self._begin(tag, out)
        return end

    def _skip_to(self, text: str, at: int, end: int) -> int:
        self._skip(text[at:end], self._has_parameters or self._wrapper is not None)
        return end

    def _end(self, at: int, literal: str, out: list[CallPiece]) -> int:
        if self._stray:
            body = "".join(self._stray).rstrip(WHITE_SPACE)
            for tag in self._markup.json_tags:
                body = body.removesuffix(tag)
            if not self._write_stray(body, out):
                return at
        elif self._wrapper is not None:
            arguments = object_text(self._wrapper)
            if arguments is None:
                self._write_wrapper(out)
            out.append("}" if arguments is None else arguments)
        else:
            out.append("}" if self._has_parameters else "{}")
        return self._stop(at, literal)

    # --- a parameter

    def _begin(self, tag: re.Match[str], out: list[CallPiece]) -> None:
        if self._stray:
            self._stray, self.junk = [], True
        if self._wrapper is not None:
            self._write_wrapper(out)
        self._key = self._markup.attribute(tag["key"])
        self._type_word = tag.groupdict().get("kind") or ""
        self._parameter = parameter = self._find_parameter("", self._key)
        self._size = 0
        self._stops = self._marks.stops
        self._step = self._value_start if self._markup.trims or self._markup.cdata else self._value
        if parameter.wrapper and not self._has_parameters:
            self._buffered, self._wrapper = [], ""
            return
        self._write_key(self._key, out)
        self._buffered = None if parameter.streams(self._type_word) else []
        if self._buffered is None:
            out.append('"')

    def _value_start(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Skip the line end after an opening tag; only then one before the end tag is skipped too.

        If the first one is a line feed, a carriage return before the last one belongs to the value.
        """
        self._step = self._value
        if self._markup.cdata:
            return self._maybe_cdata(text, at)
        if text.startswith(_LINE_ENDS, at):
            is_feed = text[at] == "\n"
            self._stops = self._marks.after_lf if is_feed else self._marks.after_crlf
            return at + (1 if is_feed else 2)
        if text[at] == "\r" and at + 1 == len(text):
            self._step = self._value_start
        return at

    def _maybe_cdata(self, text: str, at: int) -> int:
        begin = text[at : at + len(_CDATA)]
        if begin == _CDATA:
            self._stops = self._marks.cdata
            return at + len(_CDATA)
        if _CDATA.startswith(begin):
            self._step = self._value_start
        return at

    def _value(self, text: str, at: int, out: list[CallPiece]) -> int:
        self._streams = self._buffered is None
        end, literal = self._stops.find(text, at, False)
        if end > at:
            self._put(text[at:end], out)
        if literal:
            self._finish(out)
            mark = literal.removeprefix(_CDATA_END).lstrip("\r\n")
            end += len(literal) if mark in self._value_ends else len(literal) - len(mark)
        return end

    def _put(self, piece: str, out: list[CallPiece]) -> None:
        if self._buffered is None:
            out.append(escape_json(piece))
            return
        self._buffered.append(piece)
        self._size += len(piece)
        if self._size > BUFFER_LIMIT:
            if self._wrapper is not None:
                self._wrapper = None
                self._write_key(self._key, out)
            out.append(quote_json("".join(self._buffered))[:-1])
            self._buffered = None

    def _finish(self, out: list[CallPiece]) -> None:
        self._step = self._between
        self._streams = False
        if self._buffered is None:
            out.append('"')
        elif self._wrapper is not None:
            self._wrapper = "".join(self._buffered)
        elif self._parameter is not None:
            out.append(self._parameter.as_json("".join(self._buffered), self._type_word))

    def _write_wrapper(self, out: list[CallPiece]) -> None:
        """Write a parameter that could have been the whole arguments as an ordinary one."""
        raw, self._wrapper = self._wrapper or "", None
        self._write_key(self._key, out)
        if self._parameter is not None:
            out.append(self._parameter.as_json(raw, self._type_word))

    # --- a JSON body

    def _opened(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Read after an opening brace: in JSON a quote or the end follows; anything else is not JSON."""
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if text[at] in '"}':
            out.append("{")
            self._has_parameters = True
            self._scanner.scan("{", 0)
            self._step = self._json
        else:
            self._stray, self._size = ["{"], 1
            self._step = self._between
        return at

    def _json(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Pass JSON on while it arrives. A marker in one of its strings is text."""
        end = self._scanner.scan(text, at)
        if end > at:
            out.append(text[at:end])
        if self._scanner.complete:
            self._step = self._after
        elif end < len(text):
            self._broken = True
            self._step = self._to_end
        return end

    def _after(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Find the end of the call after a JSON body."""
        end, literal = self._marks.after.find(text, at, False)
        self.junk = self.junk or bool(text[at:end].strip(WHITE_SPACE))
        return self._stop(end, literal) if literal in self._marks.ends.markers else end + len(literal)

    def _to_end(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Pass broken JSON on up to the next marker, which ends the call even inside quotes."""
        end, literal = self._marks.ends.find(text, at, False)
        if end > at:
            out.append(text[at:end])
        return self._stop(end, literal) if literal else end

    def _stop(self, at: int, literal: str) -> int:
        self.is_over = True
        return at + len(literal) if literal in self._marks.closes else at
