"""The reader of calls whose arguments are elements named after the parameters (MiniMax M3).

Every tag has a prefix. Objects are nested elements, arrays are `<item>` elements or repeated elements of one name; the
schema decides the type of a text. A parameter that can only be a string streams at once. Any other is buffered until
its end tag, and until the next parameter is known not to be a repetition of it.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from msgspec import Struct

from dragoman.filters.raw_tools.markup import TagReader
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT, LIMIT, WHITE_SPACE, CallPiece, skip_white_space
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.values import (
    UNKNOWN_PARAMETER,
    FindParameter,
    ParameterSchema,
    escape_json,
    object_text,
    quote_json,
)
from dragoman.wire.markers import Markers

_DEEPEST = 64  # elements within elements; deeper ones are text
_TAG = re.compile(r"""\s*<(?P<end>/?)\s*(?P<tag>[^<>]+?)(?:\s+name=["']?(?P<name>[^<>"']*)["']?)?\s*>""")
_MAY_BE_TAG = re.compile(r"\s*(?:<[^<>]*)?")

Value: TypeAlias = str | list[str]  # JSON text, or the JSON texts of an array's items


class ElementsMarkers(Struct, frozen=True):
    """The prefixes and tags that the reader searches."""

    prefix: str
    prefixes: Markers
    closes: frozenset[str]  # names of the end tags that end the call
    stops: frozenset[tuple[bool, str]]  # all tags (end tag or not, name) that end the call

    @classmethod
    def of(cls, table: Table) -> ElementsMarkers:
        """Return the markers of a table."""
        tags = [re.search(r"<(/?)([^<>\s]+)[^<>]*>?$", literal) for literal in table.ends()]
        stops = frozenset((bool(tag[1]), tag[2]) for tag in tags if tag is not None)
        names = frozenset(literal.rpartition("</")[2].rstrip(">") for literal in table.call_end)
        return cls(table.tag_prefix, Markers((table.tag_prefix,)), names, stops)


class _Element:
    """An open element."""

    __slots__ = ("children", "key", "parameter", "tag", "texts")

    def __init__(self, tag: str, key: str, parameter: ParameterSchema) -> None:
        self.tag = tag
        self.key = key
        self.parameter = parameter
        self.texts: list[str] = []
        self.children: list[tuple[str, Value]] = []

    def child(self, key: str) -> ParameterSchema:
        """Return the schema of an element in this one."""
        if self.parameter.allows("array") and (key == "item" or not self.parameter.allows("object")):
            item = self.parameter.item(len(self.children))
            # an array of objects whose only item has no tag of its own
            return item.member(key) if key != "item" and item.member(key).declared else item
        return self.parameter.member(key)

    def ends_with(self, tag: str) -> bool:
        """Return whether the text ends with a tag and white space. Reads only as much of the end as needed."""
        tail = ""
        for text in reversed(self.texts):
            tail = (text[-LIMIT:] + tail).rstrip(WHITE_SPACE)
            if len(tail) >= len(tag):
                break
        return tail.endswith(tag)

    def value(self) -> Value:
        """Return the value of the ended element."""
        text = "".join(self.texts)
        if not self.children:
            return self._leaf(text)
        if self._is_array():
            item = self.parameter.item(0)
            if any(key != "item" and item.member(key).declared for key, _ in self.children):
                return [_object(self.children, item, text)]
            items = [_text(value) for _, value in self.children]
            return [*items, quote_json(text)] if text.strip(WHITE_SPACE) else items
        return _object(self.children, self.parameter, text)

    def _is_array(self) -> bool:
        only_items = all(key == "item" for key, _ in self.children) and not self.parameter.member("item").declared
        if self.parameter.allows("array"):
            return only_items or not self.parameter.allows("object")
        return only_items and not self.parameter.allows("object")

    def _leaf(self, text: str) -> Value:
        if not text.strip(WHITE_SPACE) and not self.parameter.allows("string") and not self.parameter.allows("null"):
            if self.parameter.allows("array"):
                return []
            if self.parameter.allows("object"):
                return "{}"
        if text == "None" and self.parameter.allows("string"):
            return quote_json(text)  # in this format only null, Null and NULL are null
        written = self.parameter.as_json(text)
        if not self.parameter.allows("array") or self.parameter.allows("string") or written[0] == "[":
            return written
        return [self.parameter.item(0).as_json(text)]  # one of several repeated elements that make an array


class ElementsReader(TagReader):
    """Reads the arguments of one call. `junk`: text between the parameters was left out."""

    valid = True

    def __init__(self, marks: ElementsMarkers, find_parameter: FindParameter) -> None:
        super().__init__(find_parameter)
        self._marks = marks
        self._open: list[_Element] = []
        self._stream_ends: Markers | None = None  # the markers that may end the streaming string
        self._raw: list[str] = []  # raw text of the current parameter, in case it is too long to buffer
        self._waiting: tuple[str, ParameterSchema, list[Value]] | None = None  # a parameter that may be repeated

    @property
    def closed(self) -> bool:
        return self.is_over

    def finish(self, text: str, at: int, out: list[CallPiece]) -> int:
        return len(text)

    def read(self, text: str, at: int, out: list[CallPiece]) -> int:
        while not (self.is_over or self.failed) and at < len(text):
            stream_ends = self._stream_ends
            moved = self._token(text, at, out) if stream_ends is None else self._stream(text, at, out)
            if moved == at and self._stream_ends is stream_ends:
                break
            at = moved
        return at

    # --- tokens

    def _token(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Read the text up to the next tag, and the tag."""
        end, prefix = self._marks.prefixes.find(text, at, False)
        if end > at:
            self._text(text[at:end], out)
        if not prefix or self.failed or self._stream_ends is not None:
            return end
        tag, after = self._tag(text, end)
        if tag is None:
            if after > end:
                self._text(text[end:after], out)
            return after
        if (bool(tag["end"]), tag["tag"]) in self._marks.stops and not self._is_open(tag):
            return self._stop(tag, end, out)
        self._take(tag, text[end:after], out)
        return after

    def _tag(self, text: str, at: int) -> tuple[re.Match[str] | None, int]:
        """Return the tag after the prefix at a position, and its end; None if there is no complete tag."""
        start = at + len(self._marks.prefix)
        tag = _TAG.match(text, start, start + LIMIT)
        if tag is not None:
            return tag, tag.end()
        may_be = _MAY_BE_TAG.match(text, start, start + LIMIT)
        if may_be is not None and may_be.end() == len(text) and len(text) - start < LIMIT:
            return None, at
        return None, start

    def _is_open(self, tag: re.Match[str]) -> bool:
        return bool(tag["end"]) and any(element.tag == tag["tag"] for element in self._open)

    def _take(self, tag: re.Match[str], written: str, out: list[CallPiece]) -> None:
        if self._open and self._open[-1].tag != tag["tag"]:
            self._close_unprefixed(out)
        is_open = self._is_open(tag)
        if self._open and not (is_open and all(element.tag != tag["tag"] for element in self._open[1:])):
            self._buffer(written, out)
            if self._stream_ends is not None:
                return
        if is_open:
            self._close(tag["tag"], out)
        elif tag["end"]:
            self._text(written, out, counted=True)
        else:
            self._begin(tag, written, out)

    def _text(self, text: str, out: list[CallPiece], counted: bool = False) -> None:
        if self._open:
            self._open[-1].texts.append(text)
            if not counted:
                self._buffer(text, out)
        elif self._stray or text.strip(WHITE_SPACE):
            self._skip(
                text if self._stray else text.lstrip(WHITE_SPACE), self._has_parameters or self._waiting is not None
            )

    # --- elements

    def _begin(self, tag: re.Match[str], written: str, out: list[CallPiece]) -> None:
        key = tag["name"] or tag["tag"]
        while self._open and self._open[-1].parameter.is_scalar and self._sibling_parameter(key).declared:
            self._close(self._open[-1].tag, out)  # its end tag is missing
        if self._open:
            if len(self._open) == _DEEPEST:
                self._open[-1].texts.append(written)
                return
            parent = self._open[-1]
            within_wrapper = len(self._open) == 1 and parent.parameter.wrapper
            self._open.append(
                _Element(tag["tag"], key, self._find_parameter("", key) if within_wrapper else parent.child(key))
            )
            return
        if self._stray:
            self._stray, self.junk = [], True
        if self._waiting is not None and self._waiting[0] != key:
            self._write_waiting(out)
        parameter = self._find_parameter("", key)
        self._open.append(_Element(tag["tag"], key, parameter))
        self._size, self._raw = 0, []
        if parameter.streams():
            self._write_key(key, out)
            out.append('"')
            self._stream_ends = self._stream_markers(tag["tag"])

    def _sibling_parameter(self, key: str) -> ParameterSchema:
        """Return the schema of a sibling of the innermost element."""
        return self._find_parameter("", key) if len(self._open) == 1 else self._open[-2].child(key)

    def _close(self, tag: str, out: list[CallPiece]) -> None:
        """End an element, and the elements in it without end tags."""
        while self._open:
            element = self._open.pop()
            value = element.value()
            if self._open:
                self._open[-1].children.append((element.key, value))
            else:
                if self._waiting is None:
                    self._waiting = (element.key, element.parameter, [])
                self._waiting[2].append(value)
            if element.tag == tag:
                break

    def _close_unprefixed(self, out: list[CallPiece]) -> None:
        """End the innermost element if its text ends with its end tag without the prefix."""
        if not self._open:
            return
        element = self._open[-1]
        tag = f"</{element.tag}>"
        if element.ends_with(tag) and not element.children:
            element.texts = ["".join(element.texts).rstrip(WHITE_SPACE).removesuffix(tag)]
            self._close(element.tag, out)

    def _stop(self, tag: re.Match[str], at: int, out: list[CallPiece]) -> int:
        """End the call at its end tag, or before another marker that ends it."""
        if self._stray:
            if not self._write_stray("".join(self._stray), out):
                return at
        else:
            self._close_unprefixed(out)
            self._close("", out)
            self._write_end(out)
        self.is_over = True
        return tag.end() if tag["end"] and tag["tag"] in self._marks.closes else at

    # --- output

    def _write_waiting(self, out: list[CallPiece]) -> None:
        if self._waiting is not None:
            key, parameter, values = self._waiting
            self._waiting = None
            self._write_key(key, out)
            out.append(_text(_repeated(values, parameter)))

    def _write_end(self, out: list[CallPiece]) -> None:
        if (
            self._waiting is not None
            and self._waiting[1].wrapper
            and not self._has_parameters
            and len(self._waiting[2]) == 1
        ):
            whole = _text(self._waiting[2][0])
            arguments = whole if whole[0] == "{" else object_text(whole)
            if arguments is not None:
                out.append(arguments)
                return
        self._write_waiting(out)
        out.append("}" if self._has_parameters else "{}")

    # --- strings that stream

    def _buffer(self, text: str, out: list[CallPiece]) -> None:
        """Buffer the raw text of a parameter; one that is too long streams as a string from here on."""
        self._size += len(text)
        self._raw.append(text)
        if self._size > BUFFER_LIMIT and self._stream_ends is None:
            first = self._open[0]
            del self._open[1:]
            self._write_waiting(out)
            self._write_key(first.key, out)
            out.append(quote_json("".join(self._raw))[:-1])
            self._raw = []
            self._stream_ends = self._stream_markers(first.tag)

    def _stream_markers(self, tag: str) -> Markers:
        return Markers((self._marks.prefix, f"</{tag}>"))

    def _stream(self, text: str, at: int, out: list[CallPiece]) -> int:
        """Pass a string on up to its end tag, with or without the prefix, or up to the end of the call."""
        if self._stream_ends is None:
            return at
        end, mark = self._stream_ends.find(text, at, False)
        if end > at:
            out.append(escape_json(text[at:end]))
        if not mark:
            return end
        if mark != self._marks.prefix:
            return self._unprefixed_end(text, end, len(mark), out)
        tag, after = self._tag(text, end)
        if tag is None:
            if after > end:
                out.append(escape_json(text[end:after]))
            return after
        if tag["end"] and tag["tag"] == self._open[0].tag:
            self._end_string(out)
            return after
        is_parameter = not tag["end"] and self._find_parameter("", tag["name"] or tag["tag"]).declared
        if (bool(tag["end"]), tag["tag"]) in self._marks.stops or is_parameter:
            self._end_string(out)  # its end tag is missing
            return end
        out.append(escape_json(text[end:after]))
        return after

    def _unprefixed_end(self, text: str, at: int, size: int, out: list[CallPiece]) -> int:
        """Read `</tag>` without the prefix: it ends the string if another tag with the prefix follows."""
        after = skip_white_space(text, at + size)
        if after == len(text) and after - at <= LIMIT:
            return at
        prefix = self._marks.prefixes.match(text, after, False)
        if prefix == "":
            return at
        if prefix is not None and after - at <= LIMIT:
            tag, end = self._tag(text, after)
            if tag is None and end == after:
                return at
            if tag is not None and not (tag["end"] and tag["tag"] == self._open[0].tag):
                self._end_string(out)
                return at + size
        out.append(escape_json(text[at : at + size]))
        return at + size

    def _end_string(self, out: list[CallPiece]) -> None:
        out.append('"')
        self._stream_ends = None
        self._open.clear()


def _text(value: Value) -> str:
    return value if isinstance(value, str) else f"[{','.join(value)}]"


def _object(children: list[tuple[str, Value]], parameter: ParameterSchema, text: str) -> str:
    """Return the object of these elements; text between them becomes its member `$text`."""
    members: dict[str, list[Value]] = {}
    for key, value in children:
        members.setdefault(key, []).append(value)
    if text.strip(WHITE_SPACE):
        members.setdefault("$text", []).append(quote_json(text))
    written = [
        f"{quote_json(key)}:{_text(_repeated(values, parameter.member(key) if key != '$text' else UNKNOWN_PARAMETER))}"
        for key, values in members.items()
    ]
    return f"{{{','.join(written)}}}"


def _repeated(values: list[Value], parameter: ParameterSchema) -> Value:
    """Return the value of all elements with one name: that of a single element, an array for several."""
    if len(values) == 1:
        return values[0]
    items: list[str] = []
    for value in values:
        items += value if isinstance(value, list) and parameter.allows("array") else [_text(value)]
    return items
