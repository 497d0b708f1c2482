"""Streams, wire to canonical: one decoder per answer.

Theory of operation. An item's life is told many times over: it is added, grows by deltas, and is told whole when it is
done; so are its parts, and at the end the response tells all of it again. Servers leave out any of these, so each
frame gives what no frame before it gave: a `done` gives the tail that its deltas did not, and begins what never was
added. What comes after an item's end says nothing. A block's place is its item's output_index.

    response.created                  the start
    response.output_item.added        a call begins; a message and reasoning begin with their first part
    ….delta, ….done, content_part.*   the block grows; a message's part ends with its content_part.done
    response.output_item.done         what is still open of the item ends; all other items come here, whole
    response.completed | incomplete   the end; without one the stream was cut (docs/decisions/answers.md#d7)
    response.failed | error           the end, by the service's own failure
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.base import Decoder, Environment
from dragoman.dialects.kit.openai_errors import fault_of
from dragoman.dialects.kit.openai_requests import as_upstream_error
from dragoman.dialects.responses.blocks import EXTRAS, FAMILY, NEEDS_REENCODING, JsonObject, object_of, text_of
from dragoman.dialects.responses.output_item import CALL_TYPES, OutputItem
from dragoman.dialects.responses.reply import envelope_extra, failure_of, parse_stop, parse_usage
from dragoman.dialects.responses.tools import ToolNameResolver
from dragoman.errors import BadFrame, Fault, MalformedRequest, MissingField, OutOfOrder, Truncated
from dragoman.model import events as ev
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

_SILENT = (b"", b"null", b"[DONE]")  # frames that no client can read as an event (docs/decisions/answers.md#d51)
_TEXT = "response.output_text.delta"
_MOST_PARTS = 1 << 10
_MOST_ITEMS = 1 << 20

_Handler: TypeAlias = Callable[["ResponsesDecoder", Fields], ev.Events]
_Grow: TypeAlias = Callable[[OutputItem, Fields], ev.Events]


class _Delta(Struct, gc=False):
    """The delta that makes up nearly all of a stream."""

    type: str
    output_index: int
    delta: str
    content_index: int = 0
    logprobs: list[object] | None = None


_read_delta = jsonio.typed_decoder(_Delta)


class ResponsesDecoder(Decoder):
    """Frames to events. Raises UpstreamViolation for what the dialect does not allow."""

    def __init__(self, asked: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> None:
        self._keys = keys or ev.BlockKeys()
        self._tools = ToolNameResolver(asked.tools)
        self._items: dict[int, OutputItem] = {}
        self._ids: dict[str, int] = {}  # of items, to their output_index
        self._shared: set[str] = set()  # ids that several items have
        self._begun = False
        self._over = False
        self._steps = 0  # frames that had a meaning, or none: all but those that must not travel

    @property
    def is_open(self) -> bool:
        return any(not item.done for item in self._items.values())

    def feed(self, frame: Frame) -> ev.Events | None:
        self._steps += 1
        if frame.kind == _TEXT or not frame.kind:
            events = self._hot(frame.data)
            if events is not None:
                return events
        if frame.data.strip() in _SILENT:
            self._steps -= 1
            return None
        try:
            fields = Fields.parse(frame.data, frame.kind, BadFrame)
        except (BadFrame, RecursionError) as error:
            self._steps -= 1
            raise error if isinstance(error, BadFrame) else BadFrame("nested too deeply", at=frame.kind) from None
        fields.blame = MissingField
        try:
            return self._meaning(frame.kind, fields)
        except MalformedRequest as error:  # the readers shared with requests blame a client
            raise as_upstream_error(error) from None
        except RecursionError:
            raise BadFrame("nested too deeply", at=frame.kind) from None

    def _meaning(self, name: str, fields: Fields) -> ev.Events:
        if fields.peek("type") is None and fields.peek("error"):  # in the words of Chat
            return self._error(fields)
        kind = fields.text("type", name) or fields.text("type")
        if self._over:
            raise OutOfOrder("the stream is over", at=kind)
        if kind in _HANDLERS:
            return _HANDLERS[kind](self, fields)
        began: ev.Events = ()
        if not self._begun and (kind in _ITEM_HANDLERS or kind in _GROWING):
            self._begun = True  # a server that leaves response.created out: what it says counts all the same
            began = (ev.Started("", ""),)
        if kind in _ITEM_HANDLERS:
            return (*began, *_ITEM_HANDLERS[kind](self, fields))
        if kind in _GROWING:
            kinds, grow = _GROWING[kind]
            item = self._open(fields, kinds)
            return began if item is None else (*began, *grow(item, fields))
        return (ev.OpaqueEvent(FAMILY, kind, {"type": kind, **fields.rest()}),) if self._begun else ()

    def close(self, broken: Fault | None) -> ev.Events:
        if self._over:
            return ()
        self._over = True
        return (ev.Failed(broken or Truncated("the upstream's stream ended before its last event").fault),)

    def _hot(self, data: bytes) -> ev.Events | None:
        """The usual delta. None for all else: the slow way knows it, or knows what is wrong with it."""
        try:
            frame = _read_delta(data)
        except jsonio.JsonError:
            return None
        item = self._items.get(frame.output_index)
        if item is None or frame.type != _TEXT or frame.logprobs or self._over:
            return None
        key = item.append_text(frame.content_index, frame.delta)
        return None if key is None else (ev.TextDelta(key, frame.delta),)

    # --- the response

    def _created(self, fields: Fields) -> ev.Events:
        if self._begun:
            return ()
        response = fields.child("response")
        self._begun = True
        rest = response.rest()
        return (ev.Started(text_of(rest.get("id")), text_of(rest.get("model")), extra=envelope_extra(rest)),)

    def _ended(self, fields: Fields) -> ev.Events:
        response = fields.child("response")
        failure = failure_of(response.rest())
        if failure is not None:
            self._over = True
            return (ev.Failed(failure),)
        events: list[ev.Event] = []
        if not self._begun:
            events += self._created(Fields({"response": response.rest()}, fields.at, fields.blame))
        output = response.children("output", [])
        for index, told in enumerate(output):
            known = self._ids.get(text_of(told.peek("id")), index)  # its id says where it stood, else its place
            if known not in self._items or not self._items[known].done:
                events += self._item(known, told).finish(told)
        cut = response.peek("status") == "incomplete" or response.peek("incomplete_details") is not None
        for item in self._items.values():
            events += item.close(cut=cut, listed=bool(output))
        usage = parse_usage(response.any("usage"))
        if usage is not None:
            events.append(ev.UsageReported(usage))
        told_all = len(output) >= sum(item.done for item in self._items.values())
        stop = parse_stop(response, [block for item in self._items.values() for block in item.blocks])
        if not told_all:
            stop = structs.replace(
                stop, extra=EXTRAS.extra_of({**EXTRAS.own_fields(stop.extra), NEEDS_REENCODING: True})
            )
        self._over = True
        return (*events, ev.Stopped(stop), ev.FINISHED)

    def _failed(self, fields: Fields) -> ev.Events:
        self._over = True
        response = object_of(fields.any("response"))
        fault = failure_of(response) or fault_of({"error": {"message": "the response failed"}}, None)
        return (ev.Failed(fault),)

    def _error(self, fields: Fields) -> ev.Events:
        self._over = True
        if fields.peek("type") == "error":
            fields.any("type")  # the event's own type says nothing about the error
        return (ev.Failed(fault_of(fields.rest(), None)),)

    # --- items

    def _index(self, fields: Fields) -> int:
        """The item that a frame is about: by its output_index, else by its id, else the last one."""
        index, known = fields.integer("output_index", None), self._ids.get(text_of(fields.peek("item_id")))
        if index is None:
            index = known if known is not None else max(self._items, default=0)
        elif known is not None and known != index:
            raise OutOfOrder(f"item_id is that of item {known}, and output_index is {index}", at=fields.at)
        if not 0 <= index < _MOST_ITEMS:
            fields.fail("output_index", "expected the place of an item")
        return index

    def _item(self, index: int, told: Fields, *, added: int | None = None) -> OutputItem:
        kind = told.text("type")
        item = self._items.get(index)
        if item is None or item.done:
            if item is not None:
                raise OutOfOrder(f"item {index} is done already", at=told.at)
            item = self._items[index] = OutputItem(
                self._keys, index, kind, told, self._tools, added=added, dense=index == len(self._items)
            )
            self._name(index, text_of(told.peek("id")))
        elif item.kind != kind:
            raise OutOfOrder(f"item {index} is a {item.kind}", at=told.at)
        return item

    def _name(self, index: int, item_id: str) -> None:
        """Remember an item's id, unless another item has the same: then it names none of them."""
        if item_id in self._ids:
            self._shared.add(item_id)
            del self._ids[item_id]
        elif item_id and item_id not in self._shared:
            self._ids[item_id] = index

    def _open(self, fields: Fields, kinds: tuple[str, ...]) -> OutputItem | None:
        """The open item of a frame, which begins here if it was never added; None if it is done."""
        index = self._index(fields)
        item = self._items.get(index)
        if item is None:
            if kinds[0] in CALL_TYPES:
                raise OutOfOrder(f"item {index} was never added", at=fields.at)
            told: JsonObject = {"type": kinds[0]}
            if isinstance(item_id := fields.peek("item_id"), str):
                told["id"] = item_id
            item = self._item(index, Fields(told, fields.at, fields.blame))
        if item.kind not in kinds:
            raise OutOfOrder(f"item {index} is a {item.kind}", at=fields.at)
        return None if item.done else item

    def _item_added(self, fields: Fields) -> ev.Events:
        told = fields.child("item")
        index = self._index(fields) if fields.peek("output_index") is not None else len(self._items)
        if index in self._items:
            self._demand_same(index, told)
            return ()
        return self._item(index, told, added=self._steps).begin(told)

    def _demand_same(self, index: int, told: Fields) -> None:
        """An item told again says nothing. Another item in its place would be lost, or merged with it."""
        if not self._items[index].is_same(told):
            raise OutOfOrder(f"output_index {index} is that of another item", at=told.at)

    def _item_done(self, fields: Fields) -> ev.Events:
        told = fields.child("item")
        index = self._ids.get(text_of(told.peek("id")), -1)
        if fields.peek("output_index") is not None or index < 0:
            index = self._index(fields)
        known = self._items.get(index)
        if known is not None:
            self._demand_same(index, told)
            if known.done:
                return ()
        return self._item(index, told).finish(told)

    # --- their parts

    def _part_added(self, fields: Fields) -> ev.Events:
        item = self._open(fields, ("message", "reasoning"))
        part, told = _part(fields), fields.child("part")
        if item is None:
            return ()
        return item.reasoning("content", part, "") if item.kind == "reasoning" else item.part(part, told)

    def _part_done(self, fields: Fields) -> ev.Events:
        item = self._open(fields, ("message", "reasoning"))
        part, told = _part(fields), fields.child("part")
        if item is None:
            return ()
        if item.kind == "reasoning":
            return item.take_whole_reasoning("content", part, told.text("text", ""))
        return item.part_done(part, told)

    def _text_delta(self, fields: Fields) -> ev.Events:
        item, part, delta = self._open(fields, ("message",)), _part(fields), fields.text("delta")
        events = () if item is None else item.text(part, delta)
        if logprobs := fields.any("logprobs"):
            told: Json = {"type": _TEXT, "output_index": self._index(fields), "logprobs": logprobs}
            return (*events, ev.OpaqueEvent(FAMILY, "logprobs", told))
        return events


def _part(fields: Fields, name: str = "content_index") -> int:
    part = fields.integer(name, 0)
    if not 0 <= part < _MOST_PARTS:
        fields.fail(name, "expected the place of a part")
    return part


def _thought(slot: str, name: str = "") -> _Grow:
    """Make a reader of a piece of a reasoning's part; without a name the part has only been announced."""
    return lambda item, told: item.reasoning(slot, _part(told, f"{slot}_index"), told.text(name) if name else "")


def _whole_thought(slot: str) -> _Grow:
    return lambda item, told: item.take_whole_reasoning(
        slot, _part(told, f"{slot}_index"), (told.maybe_child("part") or told).text("text", "")
    )


def _delta(item: OutputItem, told: Fields) -> ev.Events:
    return item.arguments(told.text("delta"))


# About the response.
_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(("response.created", "response.in_progress", "response.queued"), ResponsesDecoder._created),
    **dict.fromkeys(("response.completed", "response.incomplete"), ResponsesDecoder._ended),
    **dict.fromkeys(("response.failed", "response.cancelled"), ResponsesDecoder._failed),
    "error": ResponsesDecoder._error,
}
# About an item as a whole, or a part of a message or of reasoning.
_ITEM_HANDLERS: dict[str, _Handler] = {
    "response.output_item.added": ResponsesDecoder._item_added,
    "response.output_item.done": ResponsesDecoder._item_done,
    "response.content_part.added": ResponsesDecoder._part_added,
    "response.content_part.done": ResponsesDecoder._part_done,
    _TEXT: ResponsesDecoder._text_delta,
}
# About an open item of one of these types.
_MESSAGE, _REASONING = ("message",), ("reasoning",)
_GROWING: dict[str, tuple[tuple[str, ...], _Grow]] = {
    "response.output_text.done": (
        _MESSAGE,
        lambda item, told: item.take_whole_text(_part(told), told.text("text", "")),
    ),
    "response.output_text.annotation.added": (
        _MESSAGE,
        lambda item, told: item.annotate(_part(told), told.any("annotation")),
    ),
    "response.refusal.delta": (
        _MESSAGE,
        lambda item, told: item.text(_part(told), told.text("delta"), refused=True),
    ),
    "response.refusal.done": (
        _MESSAGE,
        lambda item, told: item.take_whole_text(_part(told), told.text("refusal", ""), refused=True),
    ),
    "response.function_call_arguments.delta": (CALL_TYPES, _delta),
    "response.function_call_arguments.done": (CALL_TYPES, lambda item, told: item.told(told.text("arguments", ""))),
    "response.custom_tool_call_input.delta": (CALL_TYPES, _delta),
    "response.custom_tool_call_input.done": (CALL_TYPES, lambda item, told: item.told(told.text("input", ""))),
    "response.reasoning_summary_part.added": (_REASONING, _thought("summary")),
    "response.reasoning_summary_text.delta": (_REASONING, _thought("summary", "delta")),
    "response.reasoning_summary_text.done": (_REASONING, _whole_thought("summary")),
    "response.reasoning_summary_part.done": (_REASONING, _whole_thought("summary")),
    "response.reasoning_text.delta": (_REASONING, _thought("content", "delta")),
    "response.reasoning_text.done": (_REASONING, _whole_thought("content")),
}
