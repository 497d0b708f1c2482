"""MarkupBody: the reader of calls whose arguments are key and value tags; it builds their JSON as it goes.

A value that can only be a string streams at once, escaped. Any other waits for its end tag; values.py then makes JSON
of it. A call whose body is one JSON object instead of tags has that object as its arguments, byte for byte.
"""

from __future__ import annotations

import re

from msgspec import Struct

from dragoman.errors import LocalMisuse
from dragoman.filters.raw_tools.json_scanner import JsonScanner
from dragoman.filters.raw_tools.readers import HELD_LIMIT, LIMIT, WHITE_SPACE, Piece, skip_white_space
from dragoman.filters.raw_tools.table import Markup, Table
from dragoman.filters.raw_tools.values import FindParameter, ParameterSchema, escape_json, object_text, quote_json
from dragoman.wire.markers import Markers

_LINE_ENDS = ("\n", "\r\n")
_CDATA, _CDATA_END = "<![CDATA[", "]]>"


class MarkupMarkers(Struct, frozen=True):
    """The markers that a markup reader looks for, by where it looks for them."""

    markup: Markup
    ends: Markers  # all that end the call
    closes: frozenset[str]  # those of them that are part of it
    tags: Markers  # `ends`, and the end of an opening tag
    json: Markers  # the tags around a JSON body
    after: Markers  # `ends`, and these
    stops: Markers  # all that ends a value
    trimmed: Markers  # the same, and each of them after a line end
    cdata: Markers  # what ends a value that began as a CDATA section

    @classmethod
    def of(cls, table: Table) -> MarkupMarkers:
        """Make the markers of a format. Raises LocalMisuse for a table without markup."""
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
            Markers((*stops, *(line_end + stop for line_end in _LINE_ENDS for stop in stops))),
            Markers(f"{_CDATA_END}{gap}{end}" for end in markup.value_ends for gap in ("", *_LINE_ENDS)),
        )


class TagReader:
    """What readers of tags share: the JSON object that they write, and text that is no tag."""

    def __init__(self, shapes: FindParameter) -> None:
        self.over = False
        self.failed = False
        self.junk = False
        self._shapes = shapes
        self._any = False  # a parameter went out
        self._stray: list[str] = []  # text that is no tag, while nothing else has come
        self._size = 0  # of what is held

    def _write_key(self, key: str, out: list[Piece]) -> None:
        out.append(f"{',' if self._any else '{'}{quote_json(key)}:")
        self._any = True

    def _skip(self, text: str, has_begun: bool) -> None:
        """Leave out text that is no tag. It is kept while it may be all there is."""
        if has_begun:
            self.junk = self.junk or bool(text.strip(WHITE_SPACE))
            return
        self._stray.append(text)
        self._size += len(text)
        self.failed = self._size > (HELD_LIMIT if self._stray[0][0] in '{"' else LIMIT)

    def _write_stray(self, text: str, out: list[Piece]) -> bool:
        """Write a text without tags if it is an object; else this is no call."""
        arguments = object_text(text)
        if arguments is None:
            self.failed = True
            return False
        out.append(arguments)
        return True


class MarkupReader(TagReader):
    """Reads the arguments of one call.

    `junk`: text that is neither tag nor value stood between the tags and was left out. A call that has nothing but such
    text has `failed`.
    """

    def __init__(self, marks: MarkupMarkers, shapes: FindParameter) -> None:
        super().__init__(shapes)
        self._markup = marks.markup
        self._marks = marks
        self._value_ends = frozenset(marks.markup.value_ends)
        self._step = self._between
        # the parameter that is being read
        self._key = ""
        self._told = ""
        self._shape: ParameterSchema | None = None
        self._held: list[str] | None = None  # a value that waits; None: it streams
        self._streams = False  # within a value that streams
        self._stops = marks.stops
        self._wrapper: str | None = None  # the value of a parameter that may be the arguments as a whole
        # a JSON body
        self._scanner = JsonScanner()
        self._broken = False
        self._ahead: tuple[int, str] | None = None  # the next tag in the text that is read: to look again takes time

    @property
    def closed(self) -> bool:
        return self.over or (self._scanner.complete and not self._broken)

    @property
    def valid(self) -> bool:
        return not self._broken

    def finish(self, text: str, at: int, out: list[Piece]) -> int:
        if self._step == self._between and self._any and not self._scanner.has_begun:
            out.append("}")  # all parameters that came are whole, so that the arguments can be read
        return len(text)

    def read(self, text: str, at: int, out: list[Piece]) -> int:
        self._ahead = None
        if self._streams:  # the short way for most of a long value
            end, literal = self._stops.find(text, at, False)
            if not literal and end == len(text):
                self._put(text[at:] if at else text, out)
                return end
        elif self._scanner.take_string(text[at:]) is not None:
            out.append(text[at:])
            return len(text)
        while not (self.over or self.failed) and at < len(text):
            step = self._step
            moved = step(text, at, out)
            if moved == at and self._step == step:
                break
            at = moved
        return at

    # --- between tags

    def _between(self, text: str, at: int, out: list[Piece]) -> int:
        """Look for the next parameter, a JSON body or the end."""
        at = skip_white_space(text, at) if not self._stray else at
        if at == len(text):
            return at
        if not (self._stray or self._any) and self._wrapper is None:
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
        self._skip(text[at:end], self._any or self._wrapper is not None)
        return end

    def _end(self, at: int, literal: str, out: list[Piece]) -> int:
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
            out.append("}" if self._any else "{}")
        return self._stop(at, literal)

    # --- a parameter

    def _begin(self, tag: re.Match[str], out: list[Piece]) -> None:
        if self._stray:
            self._stray, self.junk = [], True
        if self._wrapper is not None:
            self._write_wrapper(out)
        self._key = self._markup.attribute(tag["key"])
        self._told = tag.groupdict().get("kind") or ""
        self._shape = shape = self._shapes("", self._key)
        self._size = 0
        self._stops = self._marks.stops
        self._step = self._fresh if self._markup.trims or self._markup.cdata else self._value
        if shape.wrapper and not self._any:
            self._held, self._wrapper = [], ""
            return
        self._write_key(self._key, out)
        self._held = None if shape.streams(self._told) else []
        if self._held is None:
            out.append('"')

    def _fresh(self, text: str, at: int, out: list[Piece]) -> int:
        """Cut the line end after an opening tag; only then one before the end tag belongs to the markup, too."""
        self._step = self._value
        if self._markup.cdata:
            return self._maybe_cdata(text, at)
        if text.startswith(_LINE_ENDS, at):
            self._stops = self._marks.trimmed
            return at + (1 if text[at] == "\n" else 2)
        if text[at] == "\r" and at + 1 == len(text):
            self._step = self._fresh
        return at

    def _maybe_cdata(self, text: str, at: int) -> int:
        begin = text[at : at + len(_CDATA)]
        if begin == _CDATA:
            self._stops = self._marks.cdata
            return at + len(_CDATA)
        if _CDATA.startswith(begin):
            self._step = self._fresh
        return at

    def _value(self, text: str, at: int, out: list[Piece]) -> int:
        self._streams = self._held is None
        end, literal = self._stops.find(text, at, False)
        if end > at:
            self._put(text[at:end], out)
        if literal:
            self._finish(out)
            mark = literal.removeprefix(_CDATA_END).lstrip("\r\n")
            end += len(literal) if mark in self._value_ends else len(literal) - len(mark)
        return end

    def _put(self, piece: str, out: list[Piece]) -> None:
        if self._held is None:
            out.append(escape_json(piece))
            return
        self._held.append(piece)
        self._size += len(piece)
        if self._size > HELD_LIMIT:
            if self._wrapper is not None:
                self._wrapper = None
                self._write_key(self._key, out)
            out.append(quote_json("".join(self._held))[:-1])
            self._held = None

    def _finish(self, out: list[Piece]) -> None:
        self._step = self._between
        self._streams = False
        if self._held is None:
            out.append('"')
        elif self._wrapper is not None:
            self._wrapper = "".join(self._held)
        elif self._shape is not None:
            out.append(self._shape.as_json("".join(self._held), self._told))

    def _write_wrapper(self, out: list[Piece]) -> None:
        """Write a parameter that might have been the arguments as a whole, and is an ordinary one."""
        raw, self._wrapper = self._wrapper or "", None
        self._write_key(self._key, out)
        if self._shape is not None:
            out.append(self._shape.as_json(raw, self._told))

    # --- a JSON body

    def _opened(self, text: str, at: int, out: list[Piece]) -> int:
        """After an opening brace: a JSON object goes on with a quote, or ends; anything else is no JSON."""
        at = skip_white_space(text, at)
        if at == len(text):
            return at
        if text[at] in '"}':
            out.append("{")
            self._any = True
            self._scanner.scan("{", 0)
            self._step = self._json
        else:
            self._stray, self._size = ["{"], 1
            self._step = self._between
        return at

    def _json(self, text: str, at: int, out: list[Piece]) -> int:
        """Pass JSON on as it comes. A marker in one of its strings is text."""
        end = self._scanner.scan(text, at)
        if end > at:
            out.append(text[at:end])
        if self._scanner.complete:
            self._step = self._after
        elif end < len(text):
            self._broken = True
            self._step = self._to_end
        return end

    def _after(self, text: str, at: int, out: list[Piece]) -> int:
        """After a JSON body: find the end of the call."""
        end, literal = self._marks.after.find(text, at, False)
        self.junk = self.junk or bool(text[at:end].strip(WHITE_SPACE))
        return self._stop(end, literal) if literal in self._marks.ends.markers else end + len(literal)

    def _to_end(self, text: str, at: int, out: list[Piece]) -> int:
        """In JSON that is broken: quotes are not trusted any more, the next marker ends the call."""
        end, literal = self._marks.ends.find(text, at, False)
        if end > at:
            out.append(text[at:end])
        return self._stop(end, literal) if literal else end

    def _stop(self, at: int, literal: str) -> int:
        self.over = True
        return at + len(literal) if literal in self._marks.closes else at
