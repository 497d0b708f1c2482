"""The calls of one choice of a stream, whatever upstreams do with indices, ids and names.

An entry belongs to the call at its index, or to the last call if it has none. It begins another one if it names another
id together with a name, or another name, or the same name again with more arguments when those of the call are whole:
several calls share index 0 at some upstreams. Repetition says nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from dragoman.dialects.openai.chunk import CallPart, FunctionPart, more_arguments
from dragoman.dialects.openai.parts import JsonObject, arguments_text, extra_of
from dragoman.dialects.openai.settings import FAMILY
from dragoman.errors import MissingField
from dragoman.model.blocks import ToolCall, to_keep
from dragoman.model.events import (
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Budget,
    Event,
    KeptText,
    OpaqueEvent,
    json_size,
    text_size,
)
from dragoman.model.filter import LaneSource
from dragoman.wire import jsonio
from dragoman.wire.fields import is_blank

_CALL = 512  # bytes of a call whose name has not come
_MOST_HELD = 1024 * 1024  # characters of arguments that may wait for their call's name (D22)


class _OpenCall:
    __slots__ = ("given", "held", "id", "key", "name", "place", "rest")

    def __init__(self, call_id: str, place: str, budget: Budget) -> None:
        budget.keep(_CALL + text_size(call_id))
        self.id = call_id
        self.name = ""
        self.key = -1  # until it has begun
        self.held = KeptText(budget)
        self.given = KeptText(budget)  # the arguments that were told
        self.rest: JsonObject = {}
        self.place = place

    def repeats(self, call_id: str, words: str) -> bool:
        """Whether a piece with this id tells the whole call once more."""
        return bool(call_id and words) and call_id == self.id and self.given.text() == words and _is_object(words)


class CallReader:
    def __init__(self, choice: int, keys: BlockKeys, before: Callable[[list[Event]], None]) -> None:
        self._choice = choice
        self._keys = keys
        self._before = before  # called when a call begins
        self._by_index: dict[int, _OpenCall] = {}
        self._all: list[_OpenCall] = []
        self._older: _OpenCall | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._all)

    def feed(self, entry: CallPart, position: int, events: list[Event]) -> None:
        if entry.custom is not None or entry.type == "custom":
            custom = entry.custom
            name, words, form = (_visible(custom.name), custom.input or "", "text") if custom else ("", "", "text")
        elif entry.function is not None:
            name, words, form = _visible(entry.function.name), arguments_text(entry.function.arguments), "json"
        else:
            name, words, form = "", "", "json"
        call = self._call_of(entry, name, words, position)
        if call is not None and not (name and call.repeats(_visible(entry.id), words)):
            self._take(call, name, words, form, entry.rest, events)

    def older(self, part: FunctionPart, events: list[Event]) -> None:
        """Take a `function_call`: one call, and it has no id."""
        name, words = _visible(part.name), arguments_text(part.arguments)
        call = self._older
        if call is None:
            if not name and words in ("", "{}"):  # a legacy field that says nothing
                return
            place = f"choices[{self._choice}].delta.function_call.name"
            self._older = call = _OpenCall("", place, self._keys.budget)
            self._all.append(call)
        self._take(call, name, words, "json", None, events)

    def lane(self, key: int) -> LaneSource | None:
        """See Decoder: for the argument deltas of the call that is numbered, or the last."""
        call = next((call for call in self._all if call.key == key), None)
        index = next((index for index, each in self._by_index.items() if each is call), None)
        if call is None or call is self._older or (index is None and call is not self._all[-1]):
            return None
        return LaneSource("", more_arguments(index), call.given.add)

    def _call_of(self, entry: CallPart, name: str, words: str, position: int) -> _OpenCall | None:
        index, call_id = entry.index, _visible(entry.id)
        call = self._all[-1] if index is None and self._all else None if index is None else self._by_index.get(index)
        if call is not None and not _begins_another(call, call_id, name, words, indexed=index is not None):
            call.id = call.id or call_id if call.key < 0 else call.id
            return call
        if call is None and not (call_id or name or entry.function or entry.custom):
            return None
        place = f"choices[{self._choice}].delta.tool_calls[{position}].function.name"
        call = _OpenCall(call_id, place, self._keys.budget)
        self._all.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _take(
        self, call: _OpenCall, name: str, words: str, form: str, rest: JsonObject | None, events: list[Event]
    ) -> None:
        if call.key >= 0:
            if words:
                call.given.add(words)
                events.append(ArgumentsDelta(call.key, words))
            if rest:
                events.append(OpaqueEvent(FAMILY, "call", {"key": call.key, "fields": rest}))
            return
        if rest:
            self._keys.budget.keep(json_size(rest))
            call.rest |= rest
        if words:
            call.held.add(words)
        if not name:
            if len(call.held) > _MOST_HELD:
                raise MissingField("arguments came, and no name", at=call.place)
            return
        self._before(events)
        block = ToolCall(call.id, name, form="text" if form == "text" else "json", extra=extra_of(to_keep(call.rest)))
        call.name, call.key = name, self._keys.fresh(block)
        events.append(BlockStarted(call.key, block, self._choice))
        if held := call.held.take():
            call.given.add(held)
            events.append(ArgumentsDelta(call.key, held))

    def close(self, events: list[Event]) -> None:
        for call in self._all:
            if call.key >= 0:
                events.append(BlockEnded(call.key))
                call.given.take()
            elif call.id or call.held:
                raise MissingField("a call has no name", at=call.place)
        self._all.clear()
        self._by_index.clear()


def _visible(text: str | None) -> str:
    """Return an id or a name; a blank one counts as missing (D5)."""
    return "" if text is None or is_blank(text) else text


def _begins_another(call: _OpenCall, call_id: str, name: str, words: str, *, indexed: bool) -> bool:
    if call_id and call.id and call_id != call.id:
        return bool(name) or not indexed
    if not name or not call.name:
        return False
    whole = bool(words) and _is_object(call.given.text())
    return name != call.name or (whole and not call.repeats(call_id, words))


def _is_object(text: str) -> bool:
    try:
        return isinstance(jsonio.decode(text), dict)
    except jsonio.JsonError:
        return False
