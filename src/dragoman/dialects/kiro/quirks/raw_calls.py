"""Recover tool calls that the model wrote as text. The filter is pure; the codec adds it if `recover_calls` is set.

Theory of operation. Text becomes calls only if all of these hold: each tool is declared, the response has no native
call, the markup is complete, it is at the end of its text, and it is outside code fences. Text that may be such markup
is buffered from its first character until it can no longer be a call (`RawCallScanner`), or until the response ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from dragoman.model import events as ev
from dragoman.model.blocks import Text, ToolCall
from dragoman.model.conversation import Conversation, ToolSpec
from dragoman.model.filter import (
    BLOCK_STARTS,
    NO_WATCH,
    EventKinds,
    Facts,
    Features,
    Filter,
    LaneWatch,
    MakeResponseFilter,
    Notes,
    ResponseFilter,
)
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json, ObjectScanner

# --- the scanner: decides as early as possible whether a text can be calls written as text
#
# There are two forms: `[Called NAME with args: {…}]`, and `<invoke name="NAME">` with `<parameter name="…">` in it,
# which may be inside `<function_calls>`. Several calls may follow one another, with only white space between them.


_NAMESPACES = ("", "antml:")
_CALLED = "[Called "
_ARGS_PHRASE = " with args: {"
_INVOKE_FORMS = tuple(f'<{space}invoke name="' for space in _NAMESPACES)
_WRAPPER_FORMS = tuple(f"<{slash}{space}function_calls>" for slash in ("", "/") for space in _NAMESPACES)
_PARAMETER_FORMS = tuple(f'<{space}parameter name="' for space in _NAMESPACES)
_INVOKE_ENDS = tuple(f"</{space}invoke>" for space in _NAMESPACES)
_VALUE_END = re.compile("|".join(f"</{space}parameter>" for space in _NAMESPACES))
_LONGEST_END = max(len(f"</{space}parameter>") for space in _NAMESPACES)
_NAME = re.compile(r"[\w.:-]*")
_LONGEST_NAME = 200  # characters of a parameter's name
_LONGEST_FORM = max(map(len, (_CALLED, *_INVOKE_FORMS, *_WRAPPER_FORMS, *_PARAMETER_FORMS, *_INVOKE_ENDS)))
_SPACE = re.compile(r"\s*")
_PIECE = 1024  # characters of arguments that are scanned at a time, so that the rest of the text is not copied


class RawCallScanner:
    """Scan a text that may consist of calls of the given tools, and nothing else.

    `feed` returns whether this is still possible. After it has returned False, `left` is the number of characters at
    the end of the text that it has not read, and `named` is True if the scanner found the whole head of a call. If a
    text was fed at once, `calls` has the calls in it, and `is_whole` is True if the text has nothing else.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._scanner = ObjectScanner()
        self._step: Callable[[], bool | None] = self._between
        self._text = ""
        self._at = 0  # the position up to which the text is read
        self._values: dict[str, str] = {}  # the values of the open call, by parameter
        self._parameter = ""
        self.named = False
        self.calls: list[tuple[str, str | dict[str, str]]] = []  # names, and JSON text or values by parameter

    @property
    def is_whole(self) -> bool:
        """Whether the text consists of complete calls only."""
        return self._step == self._between and not self.left

    @property
    def left(self) -> int:
        """The number of characters that are not read."""
        return len(self._text) - self._at

    def feed(self, text: str, start: int = 0) -> bool:
        """Continue with a text, from `start` on; return whether the text may still be calls."""
        if self.left:
            text, start = self._text[self._at :] + text[start:], 0
        self._text, self._at = text, start
        while (moved := self._step()) is True:
            pass
        return moved is None

    # A step returns True if it has read something, None if it needs more text, False if this is no call.

    def _between(self) -> bool | None:
        if wrapper := self._begins(_WRAPPER_FORMS):
            return self._take(wrapper, self._between)
        if self._begins((_CALLED,)):
            return self._head(_CALLED, _ARGS_PHRASE, self._object)
        if invoke := self._begins(_INVOKE_FORMS):
            return self._head(invoke, '">', self._inside)
        return self._may_begin((_CALLED, *_INVOKE_FORMS, *_WRAPPER_FORMS))

    def _begins(self, forms: tuple[str, ...]) -> str:
        """Return the form at this position, after white space; empty if there is none."""
        space = _SPACE.match(self._text, self._at)
        self._at = self._at if space is None else space.end()
        return next((form for form in forms if self._text.startswith(form, self._at)), "")

    def _may_begin(self, forms: tuple[str, ...]) -> bool | None:
        """Return None if the text at this position may become one of the forms, else False."""
        rest = self._text[self._at : self._at + _LONGEST_FORM]
        return None if any(form.startswith(rest) for form in forms) else False

    def _take(self, form: str, step: Callable[[], bool | None]) -> bool:
        self._at, self._step = self._at + len(form), step
        return True

    def _head(self, form: str, after: str, step: Callable[[], bool | None]) -> bool | None:
        """Read the name of a tool and the text that must follow it."""
        found = _NAME.match(self._text, self._at + len(form))
        assert found is not None
        name, tail = found[0], self._text[found.end() : found.end() + len(after)]
        if not tail:
            return None if any(known.startswith(name) for known in self._names) else False
        if name not in self._names or not after.startswith(tail):
            return False
        if tail != after:
            return None
        self._scanner, self._values, self.named = ObjectScanner(), {}, True
        self.calls.append((name, self._values))
        is_object = after is _ARGS_PHRASE
        return self._take(form + name + (after[:-1] if is_object else after), step)  # The brace belongs to the object.

    def _object(self) -> bool | None:
        begin = self._at
        while self.left and not self._scanner.is_complete:
            piece = self._text[self._at : self._at + _PIECE]
            self._at += len(piece) - len(self._scanner.feed(piece))
        if not self._scanner.is_complete:
            return None
        self.calls[-1] = (self.calls[-1][0], self._text[begin : self._at])
        return self._take("", self._object_end)

    def _object_end(self) -> bool | None:
        if not self.left:
            return None
        return self._take("]", self._between) if self._text.startswith("]", self._at) else False

    def _inside(self) -> bool | None:
        if end := self._begins(_INVOKE_ENDS):
            return self._take(end, self._between)
        form = self._begins(_PARAMETER_FORMS)
        if not form:
            return self._may_begin((*_INVOKE_ENDS, *_PARAMETER_FORMS))
        start = self._at + len(form)
        quote = self._text.find('"', start, start + _LONGEST_NAME)
        if quote < 0:
            return None if len(self._text) - start <= _LONGEST_NAME else False
        after = self._text[quote + 1 : quote + 2]
        if after != ">":
            return None if not after else False
        self._parameter = self._text[start:quote]
        return self._take(self._text[self._at : quote + 2], self._value)

    def _value(self) -> bool | None:
        found = _VALUE_END.search(self._text, self._at)
        if found is None:
            self._at = max(self._at, len(self._text) - _LONGEST_END + 1)
            return None
        self._values[self._parameter] = self._text[self._at : found.start()]
        self._at, self._step = found.end(), self._inside
        return True


BUFFER_LIMIT = 1024 * 1024  # characters (docs/decisions/raw_tools.md#d22); a longer one is sent as text

_EMPTY_TEXT = Text("")

_Schemas: TypeAlias = Mapping[str, Mapping[str, Json]]

_NAMESPACE = "(?:antml:)?"
_BEGIN = re.compile(rf"\[Called |<{_NAMESPACE}(?:function_calls|invoke)\b|```")
_MARKERS = ("[Called ", "<function_calls", "<invoke", "<antml:function_calls", "<antml:invoke", "```")
_BEGINNINGS = frozenset(marker[:size] for marker in _MARKERS for size in range(1, len(marker)))
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))


def _first_character(text: str) -> str | None:
    """Return a character in the text with which a call may begin; None if there is none.

    Three searches for one character each are thirty times as fast as one search for any of them.
    """
    return "[" if "[" in text else "<" if "<" in text else "`" if "`" in text else None


class RecoverCalls(Filter):
    """Turn calls of declared tools that the model wrote as text into tool calls of the response."""

    name = "kiro.recover_calls"
    applies_to: Features = frozenset({"tools"})
    before = "fold_system"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        tools = [tool for tool in conversation.tools if isinstance(tool, ToolSpec)]
        schemas: _Schemas = {tool.name: tool.schema or {} for tool in tools}
        return conversation, partial(_Recover, schemas) if schemas else None


class _Recover(ResponseFilter):
    def __init__(self, schemas: _Schemas, notes: Notes, keys: ev.BlockKeys) -> None:
        self.reads: EventKinds | None = BLOCK_STARTS
        self._keys = keys
        self._schemas = schemas
        self._notes = notes
        self._has_native_call = False
        self._in_fence = False
        self._key: int | None = None  # the open text block
        self._opening: ev.Events = ()  # its start, until it has text: a block that is only a call is not sent as text
        self._scan: RawCallScanner | None = None  # scans the buffer, if it begins like a call
        self._buffer = ""
        self._later: list[str] = []  # deltas after the buffer, not joined yet
        self._later_size = 0  # their characters
        self._waiting: ev.Events = ()  # the last events of a text block whose end is buffered

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        if kind is not ev.TextDelta:
            return NO_WATCH
        return None if self._buffer or self._opening else LaneWatch(_first_character)

    def take(self, event: ev.Event) -> ev.Events:
        if self._has_native_call:
            return (event,)
        opening, is_idle = self._opening, not self._buffer and not self._waiting
        match event:
            case ev.TextDelta(key, text) if is_idle and key == self._key and _first_character(text) is None:
                self._opening = ()
                return (*opening, event)  # most events of a stream
            case ev.BlockEnded(key) if is_idle and key == self._key:
                self._key, self._opening, out = None, (), (*opening, event)
            case ev.BlockStarted(key, block):
                out = () if is_idle and not opening else tuple(self._release())
                self._has_native_call = isinstance(block, ToolCall)
                if isinstance(block, Text):
                    self._key, self._in_fence = key, False
                if block == _EMPTY_TEXT:
                    self._opening = (event,)
                else:
                    out = (*out, event)
            case _:
                out = tuple(self._filter(event))
        self.reads = None if self._key is not None or self._waiting else BLOCK_STARTS
        return out

    def _filter(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.TextDelta(key, text) if key == self._key:
                yield from self._text(key, text)
            case ev.BlockEnded(key) if key == self._key:
                yield from self._end_text(key, event)
            case ev.Stopped() if self._waiting:
                yield from self._end(event)
            case ev.Failed():
                yield from self._release()
                yield event
            case ev.SignatureAdded(key) | ev.CitationAdded(key) if key == self._key:
                yield from self._open()
                yield event
            case _:
                yield event

    def _open(self) -> ev.Events:
        opening, self._opening = self._opening, ()
        return opening

    def _end_text(self, key: int, event: ev.BlockEnded) -> Iterable[ev.Event]:
        self._key, self._buffer = None, self._take_buffer()
        buffered = (ev.TextDelta(key, self._buffer),) if self._buffer else ()
        ending = (*self._open(), *buffered, event)
        if _could_be_calls(self._buffer):
            self._waiting = ending
        else:
            self._buffer = ""
            yield from ending

    def _text(self, key: int, text: str) -> Iterable[ev.Event]:
        plain = ""
        if self._scan is None:
            plain, self._buffer = self._split(self._buffer + text)
        elif self._scan.feed(text):
            self._later.append(text)
            self._later_size += len(text)
        else:
            scan, buffered = self._scan, self._take_buffer() + text
            plain, self._buffer = self._split(buffered, self._next_position(scan, buffered, 0))
        if len(self._buffer) + self._later_size > BUFFER_LIMIT:
            plain += self._take_buffer()
        if plain:
            yield from self._open()
            yield ev.TextDelta(key, plain)

    def _take_buffer(self) -> str:
        """Return all buffered text, and empty the buffer."""
        text = "".join((self._buffer, *self._later))
        self._buffer, self._later, self._later_size, self._scan = "", [], 0, None
        return text

    def _split(self, text: str, position: int = 0) -> tuple[str, str]:
        """Split into plain text, and text that may be the beginning of a call."""
        while (found := _BEGIN.search(text, position)) is not None:
            position = found.end()
            if found[0] == "```":
                self._in_fence = not self._in_fence
            elif not self._in_fence:
                scan, begin = RawCallScanner(self._schemas), found.start()
                if scan.feed(text, begin):
                    self._scan = scan
                    return text[:begin], text[begin:]
                position = self._next_position(scan, text, begin)
        tail = text[position:]
        for size in range(min(_LONGEST_BEGINNING, len(tail)), 0, -1):
            if tail[-size:] in _BEGINNINGS:
                return text[: len(text) - size], text[len(text) - size :]
        return text, ""

    def _next_position(self, scan: RawCallScanner, text: str, begin: int) -> int:
        """Return the position from which to search for the next call, after the text at `begin` is found to be none.

        If the scan found a head with the name of a tool, all that it read is text, so that nothing is read twice.
        """
        if not scan.named:
            return begin + 1
        end = len(text) - scan.left
        if text.count("```", begin, end) % 2:
            self._in_fence = not self._in_fence
        return end

    def _release(self) -> Iterable[ev.Event]:
        """Yield the buffer as text."""
        buffered, waiting, self._waiting = self._take_buffer(), self._waiting, ()
        yield from waiting
        if self._key is not None:
            yield from self._open()
            yield from [ev.TextDelta(self._key, buffered)] if buffered else []

    def _end(self, stopped: ev.Stopped) -> Iterable[ev.Event]:
        calls = self._calls(self._buffer)
        if not calls:
            yield from self._release()
            yield stopped
            return
        if not isinstance(self._waiting[0], ev.BlockStarted):
            yield self._waiting[-1]
        self._waiting, self._buffer = (), ""
        for name, arguments in calls:
            key = self._keys.fresh()
            self._notes.changed(
                "kiro.stream.recovered", "", f"a call of {name} that the model wrote as text became a tool call"
            )
            yield ev.BlockStarted(key, ToolCall("", name), stopped.choice)
            yield ev.ArgumentsDelta(key, arguments)
            yield ev.BlockEnded(key)
        yield stopped

    def _calls(self, text: str) -> list[tuple[str, str]]:
        """Return the calls, if the text consists of complete calls of declared tools; else an empty list."""
        scan = RawCallScanner(self._schemas)
        if not scan.feed(text.rstrip()) or not scan.is_whole:
            return []
        calls: list[tuple[str, str]] = []
        for tool, arguments in scan.calls:
            if "" in arguments if isinstance(arguments, dict) else jsonio.decode_object(arguments) is None:
                return []  # a parameter without a name, or arguments that are not an object
            if isinstance(arguments, dict):
                values = {name: self._value(tool, name, value) for name, value in arguments.items()}
                calls.append((tool, jsonio.encode(values).decode()))
            else:
                calls.append((tool, arguments))
        return calls

    def _value(self, tool: str, name: str, text: str) -> Json:
        """Return the value of a parameter, in the type of its schema."""
        properties = self._schemas.get(tool, {}).get("properties")
        schema = properties.get(name) if isinstance(properties, dict) else None
        kind = schema.get("type") if isinstance(schema, dict) else "string"
        if kind == "string":
            return text
        try:
            return jsonio.decode(text)
        except jsonio.JsonError:
            return text


def _could_be_calls(text: str) -> bool:
    return _BEGIN.match(text) is not None and text.rstrip().endswith(("]", ">"))
