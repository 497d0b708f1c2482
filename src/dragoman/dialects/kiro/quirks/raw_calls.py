"""Calls that the model wrote as text instead of making them become calls (facts 3.3, no. 9).

Only under all of these: the tool is declared, no call was made natively, the markup is complete, it ends its text, and
it stands outside code fences. What could be such markup is held from where it begins until it cannot be a call any more
(`RawCallScanner`), or until the answer is over.
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

# --- Follow text that may be calls written as text, and tell as soon as it cannot be that any more.
#
# Two forms are known: `[Called NAME with args: {…}]`, and `<invoke name="NAME">` with `<parameter name="…">` in it,
# which may stand inside `<function_calls>`. Several may follow one another, with nothing but white space between
# them.


_NAMESPACES = ("", "antml:")
_CALLED, _WITH_ARGS = "[Called ", " with args: {"
_INVOKE_FORMS = tuple(f'<{space}invoke name="' for space in _NAMESPACES)
_AROUND_FORMS = tuple(f"<{slash}{space}function_calls>" for slash in ("", "/") for space in _NAMESPACES)
_PARAMETER_FORMS = tuple(f'<{space}parameter name="' for space in _NAMESPACES)
_INVOKE_ENDS = tuple(f"</{space}invoke>" for space in _NAMESPACES)
_VALUE_END = re.compile("|".join(f"</{space}parameter>" for space in _NAMESPACES))
_LONGEST_END = max(len(f"</{space}parameter>") for space in _NAMESPACES)
_NAME = re.compile(r"[\w.:-]*")
_LONGEST_NAME = 200  # characters of a parameter's name
_LONGEST_FORM = max(map(len, (_CALLED, *_INVOKE_FORMS, *_AROUND_FORMS, *_PARAMETER_FORMS, *_INVOKE_ENDS)))
_SPACE = re.compile(r"\s*")
_PIECE = 1024  # characters of arguments looked at together: what follows them is not copied


class RawCallScanner:
    """`feed` tells whether the text so far may still be calls of the named tools, and nothing else.

    After it has said no, `left` is the number of characters at the end of the text that it has not taken, and `named`
    tells whether it had found the whole head of a call before. Of a text that it was fed at once, `calls` are the calls
    in it, and `is_whole` tells whether it is nothing but them.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._scanner = ObjectScanner()
        self._step: Callable[[], bool | None] = self._between
        self._text = ""
        self._at = 0  # what stands before is taken
        self._values: dict[str, str] = {}  # of the call that is open, by their parameters
        self._parameter = ""
        self.named = False
        self.calls: list[tuple[str, str | dict[str, str]]] = []  # names, and JSON text or values by parameter

    @property
    def is_whole(self) -> bool:
        return self._step == self._between and not self.left

    @property
    def left(self) -> int:
        return len(self._text) - self._at

    def feed(self, text: str, start: int = 0) -> bool:
        """Go on with a text, from `start` on."""
        if self.left:
            text, start = self._text[self._at :] + text[start:], 0
        self._text, self._at = text, start
        while (moved := self._step()) is True:
            pass
        return moved is None

    # A step gives True if it took something, None if it needs more text, False if this is no call.

    def _between(self) -> bool | None:
        if around := self._begins(_AROUND_FORMS):
            return self._take(around, self._between)
        if self._begins((_CALLED,)):
            return self._head(_CALLED, _WITH_ARGS, self._object)
        if invoke := self._begins(_INVOKE_FORMS):
            return self._head(invoke, '">', self._inside)
        return self._may_begin((_CALLED, *_INVOKE_FORMS, *_AROUND_FORMS))

    def _begins(self, forms: tuple[str, ...]) -> str:
        """The form that stands here, behind white space."""
        space = _SPACE.match(self._text, self._at)
        self._at = self._at if space is None else space.end()
        return next((form for form in forms if self._text.startswith(form, self._at)), "")

    def _may_begin(self, forms: tuple[str, ...]) -> bool | None:
        """None if one of the forms may come to stand here, False if not."""
        rest = self._text[self._at : self._at + _LONGEST_FORM]
        return None if any(form.startswith(rest) for form in forms) else False

    def _take(self, form: str, step: Callable[[], bool | None]) -> bool:
        self._at, self._step = self._at + len(form), step
        return True

    def _head(self, form: str, after: str, step: Callable[[], bool | None]) -> bool | None:
        """A name of a tool, and what must stand after it."""
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
        is_object = after is _WITH_ARGS
        return self._take(form + name + (after[:-1] if is_object else after), step)  # the object begins with its brace

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


HELD_LIMIT = 1024 * 1024  # characters (docs/decisions/raw_tools.md#d22); beyond it, it is text

_NOTHING = Text("")

_Schemas: TypeAlias = Mapping[str, Mapping[str, Json]]

_NAMESPACE = "(?:antml:)?"
_BEGIN = re.compile(rf"\[Called |<{_NAMESPACE}(?:function_calls|invoke)\b|```")
_PARTLY = ("[Called ", "<function_calls", "<invoke", "<antml:function_calls", "<antml:invoke", "```")
_BEGINNINGS = frozenset(marker[:size] for marker in _PARTLY for size in range(1, len(marker)))
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))


def _interesting(text: str) -> str | None:
    """What a call may begin with, if there is such: one character at a time is found thirty times as fast as any."""
    return "[" if "[" in text else "<" if "<" in text else "`" if "`" in text else None


class RecoverCalls(Filter):
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
        self._native = False
        self._fenced = False
        self._key: int | None = None  # the text block that is open
        self._opening: ev.Events = ()  # its beginning, until there is text in it: what is all a call was no text
        self._scan: RawCallScanner | None = None  # of what is held, if that has begun as a call does
        self._held = ""
        self._more: list[str] = []  # that came since
        self._size = 0  # of it
        self._waiting: ev.Events = ()  # the end of the text block whose tail is held

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        if kind is not ev.TextDelta:
            return NO_WATCH
        return None if self._held or self._opening else LaneWatch(_interesting)

    def take(self, event: ev.Event) -> ev.Events:
        if self._native:
            return (event,)
        opening, calm = self._opening, not self._held and not self._waiting
        match event:
            case ev.TextDelta(key, text) if calm and key == self._key and _interesting(text) is None:
                self._opening = ()
                return (*opening, event)  # nearly all of a stream
            case ev.BlockEnded(key) if calm and key == self._key:
                self._key, self._opening, out = None, (), (*opening, event)
            case ev.BlockStarted(key, block):
                out = () if calm and not opening else tuple(self._let_go())
                self._native = isinstance(block, ToolCall)
                if isinstance(block, Text):
                    self._key, self._fenced = key, False
                if block == _NOTHING:
                    self._opening = (event,)
                else:
                    out = (*out, event)
            case _:
                out = tuple(self._looked_at(event))
        self.reads = None if self._key is not None or self._waiting else BLOCK_STARTS
        return out

    def _looked_at(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.TextDelta(key, text) if key == self._key:
                yield from self._text(key, text)
            case ev.BlockEnded(key) if key == self._key:
                yield from self._end_text(key, event)
            case ev.Stopped() if self._waiting:
                yield from self._end(event)
            case ev.Failed():
                yield from self._let_go()
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
        self._key, self._held = None, self._taken()
        held = (ev.TextDelta(key, self._held),) if self._held else ()
        ending = (*self._open(), *held, event)
        if _could_be_calls(self._held):
            self._waiting = ending
        else:
            self._held = ""
            yield from ending

    def _text(self, key: int, text: str) -> Iterable[ev.Event]:
        said = ""
        if self._scan is None:
            said, self._held = self._split(self._held + text)
        elif self._scan.feed(text):
            self._more.append(text)
            self._size += len(text)
        else:
            scan, held = self._scan, self._taken() + text
            said, self._held = self._split(held, self._behind(scan, held, 0))
        if len(self._held) + self._size > HELD_LIMIT:
            said += self._taken()
        if said:
            yield from self._open()
            yield ev.TextDelta(key, said)

    def _taken(self) -> str:
        """All that is held, which no longer is."""
        held = "".join((self._held, *self._more))
        self._held, self._more, self._size, self._scan = "", [], 0, None
        return held

    def _split(self, text: str, position: int = 0) -> tuple[str, str]:
        """What is surely text, and what may be the beginning of a call."""
        while (found := _BEGIN.search(text, position)) is not None:
            position = found.end()
            if found[0] == "```":
                self._fenced = not self._fenced
            elif not self._fenced:
                scan, begin = RawCallScanner(self._schemas), found.start()
                if scan.feed(text, begin):
                    self._scan = scan
                    return text[:begin], text[begin:]
                position = self._behind(scan, text, begin)
        tail = text[position:]
        for size in range(min(_LONGEST_BEGINNING, len(tail)), 0, -1):
            if tail[-size:] in _BEGINNINGS:
                return text[: len(text) - size], text[len(text) - size :]
        return text, ""

    def _behind(self, scan: RawCallScanner, text: str, begin: int) -> int:
        """Where to look for the next call, since the one that begins here is none.

        If it had named its tool, all that the scan took is text: nothing is looked at twice.
        """
        if not scan.named:
            return begin + 1
        end = len(text) - scan.left
        if text.count("```", begin, end) % 2:
            self._fenced = not self._fenced
        return end

    def _let_go(self) -> Iterable[ev.Event]:
        """What was held is text after all: more came after it."""
        held, waiting, self._waiting = self._taken(), self._waiting, ()
        yield from waiting
        if self._key is not None:
            yield from self._open()
            yield from [ev.TextDelta(self._key, held)] if held else []

    def _end(self, stopped: ev.Stopped) -> Iterable[ev.Event]:
        calls = self._calls(self._held)
        if not calls:
            yield from self._let_go()
            yield stopped
            return
        if not isinstance(self._waiting[0], ev.BlockStarted):
            yield self._waiting[-1]
        self._waiting, self._held = (), ""
        for name, arguments in calls:
            key = self._keys.fresh()
            self._notes.changed("kiro.stream.recovered", "", f"a call of {name} that was written as text became a call")
            yield ev.BlockStarted(key, ToolCall("", name), stopped.choice)
            yield ev.ArgumentsDelta(key, arguments)
            yield ev.BlockEnded(key)
        yield stopped

    def _calls(self, text: str) -> list[tuple[str, str]]:
        """The calls if the text is nothing but whole calls of declared tools, else none."""
        scan = RawCallScanner(self._schemas)
        if not scan.feed(text.rstrip()) or not scan.is_whole:
            return []
        calls: list[tuple[str, str]] = []
        for tool, given in scan.calls:
            if "" in given if isinstance(given, dict) else jsonio.decode_object(given) is None:
                return []  # a parameter without a name, or arguments that are no object
            if isinstance(given, dict):
                values = {name: self._value(tool, name, value) for name, value in given.items()}
                calls.append((tool, jsonio.encode(values).decode()))
            else:
                calls.append((tool, given))
        return calls

    def _value(self, tool: str, name: str, text: str) -> Json:
        """A parameter's value, in the type its schema gives it."""
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
