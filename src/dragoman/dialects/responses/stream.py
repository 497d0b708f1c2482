"""Decode response streams of the Responses API: frames to events. Pure.

Theory of operation. A stream repeats its content: an item is added, gets deltas, and is sent whole when it is done. So
are its parts, and the last event repeats the whole response. Servers leave out any of these frames. Each frame
therefore yields only the content that no earlier frame had: a `done` yields the rest after its deltas, and starts a
block that was never added. Frames about an item that is done are ignored. The index of a block is its item's
output_index.

    response.created                  the start
    response.output_item.added        a call starts; a message and reasoning start with their first part
    ….delta, ….done, content_part.*   the block gets text; a part of a message ends with its content_part.done
    response.output_item.done         the open blocks of the item end; items of other types come whole
    response.completed | incomplete   the end; without one the stream was cut off (docs/decisions/responses.md#d7)
    response.failed | error           the end, by a failure of the service
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.base import Decoder, Environment
from dragoman.dialects.kit.openai_errors import fault_of
from dragoman.dialects.kit.openai_requests import as_upstream_error
from dragoman.dialects.responses.blocks import EXTRAS, FAMILY, NEEDS_REENCODING, object_of, text_of
from dragoman.dialects.responses.output_item import CALL_TYPES, OutputItem
from dragoman.dialects.responses.reply import envelope_extra, failure_of, parse_stop, parse_usage
from dragoman.dialects.responses.tools import ToolNameResolver
from dragoman.errors import BadFrame, Fault, MalformedRequest, MissingField, OutOfOrder, Truncated
from dragoman.model import events as ev
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json, JsonObject

_EMPTY_FRAMES = (
    b"",
    b"null",
    b"[DONE]",
)  # frames that no client can read as an event (docs/decisions/responses.md#d51)
_TEXT = "response.output_text.delta"
_PROGRESS = "response.web_search_call."  # events whose content is in the item, too
_MAX_PARTS = 1 << 10
_MAX_ITEMS = 1 << 20

_Handler: TypeAlias = Callable[["ResponsesDecoder", Fields], ev.Events]
_ItemHandler: TypeAlias = Callable[[OutputItem, Fields], ev.Events]


class _Delta(Struct, gc=False):
    """A text delta. Most frames of a stream are text deltas."""

    type: str
    output_index: int
    delta: str
    content_index: int = 0
    logprobs: list[object] | None = None


_read_delta = jsonio.typed_decoder(_Delta)


class ResponsesDecoder(Decoder):
    """Decodes the frames of one response. Raises UpstreamViolation for frames that the dialect does not allow."""

    def __init__(self, request: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> None:
        self._keys = keys or ev.BlockKeys()
        self._tools = ToolNameResolver(request.tools)
        self._items: dict[int, OutputItem] = {}
        self._ids: dict[str, int] = {}  # item id to output_index
        self._shared: set[str] = set()  # ids that several items have
        self._started = False
        self._is_over = False
        self._frame_count = 0  # frames so far, without those that are dropped

    @property
    def is_open(self) -> bool:
        return any(not item.done for item in self._items.values())

    def feed(self, frame: Frame) -> ev.Events | None:
        self._frame_count += 1
        if frame.kind == _TEXT or not frame.kind:
            events = self._text_delta_fast(frame.data)
            if events is not None:
                return events
        if frame.data.strip() in _EMPTY_FRAMES:
            self._frame_count -= 1
            return None
        try:
            fields = Fields.parse(frame.data, frame.kind, BadFrame)
        except (BadFrame, RecursionError) as error:
            self._frame_count -= 1
            raise (
                error if isinstance(error, BadFrame) else BadFrame("the event is nested too deeply", at=frame.kind)
            ) from None
        fields.blame = MissingField
        try:
            return self._decode(frame.kind, fields)
        except MalformedRequest as error:  # from parsers that are shared with requests
            raise as_upstream_error(error) from None
        except RecursionError:
            raise BadFrame("the event is nested too deeply", at=frame.kind) from None

    def _decode(self, name: str, fields: Fields) -> ev.Events:
        if fields.peek("type") is None and fields.peek("error"):  # an error in the form of Chat
            return self._error(fields)
        kind = fields.text("type", name) or fields.text("type")
        if self._is_over:
            raise OutOfOrder("the event follows the end of the stream", at=kind)
        if kind in _HANDLERS:
            return _HANDLERS[kind](self, fields)
        started: ev.Events = ()
        if not self._started and (kind in _ITEM_HANDLERS or kind in _DELTA_HANDLERS):
            self._started = True  # some servers leave response.created out
            started = (ev.Started("", ""),)
        if kind in _ITEM_HANDLERS:
            return (*started, *_ITEM_HANDLERS[kind](self, fields))
        if kind in _DELTA_HANDLERS:
            kinds, handler = _DELTA_HANDLERS[kind]
            item = self._open(fields, kinds)
            return started if item is None else (*started, *handler(item, fields))
        if not self._started or kind.startswith(_PROGRESS):
            return ()
        return (ev.OpaqueEvent(FAMILY, kind, {"type": kind, **fields.rest()}),)

    def close(self, broken: Fault | None) -> ev.Events:
        if self._is_over:
            return ()
        self._is_over = True
        return (ev.Failed(broken or Truncated("the upstream's stream ended before its last event").fault),)

    def _text_delta_fast(self, data: bytes) -> ev.Events | None:
        """Read an ordinary text delta; None for any other frame, which `feed` then reads in full."""
        try:
            frame = _read_delta(data)
        except jsonio.JsonError:
            return None
        item = self._items.get(frame.output_index)
        if item is None or frame.type != _TEXT or frame.logprobs or self._is_over:
            return None
        key = item.append_text(frame.content_index, frame.delta)
        return None if key is None else (ev.TextDelta(key, frame.delta),)

    # --- the response

    def _created(self, fields: Fields) -> ev.Events:
        if self._started:
            return ()
        response = fields.child("response")
        self._started = True
        rest = response.rest()
        return (ev.Started(text_of(rest.get("id")), text_of(rest.get("model")), extra=envelope_extra(rest)),)

    def _ended(self, fields: Fields) -> ev.Events:
        response = fields.child("response")
        failure = failure_of(response.rest())
        if failure is not None:
            self._is_over = True
            return (ev.Failed(failure),)
        events: list[ev.Event] = []
        if not self._started:
            events += self._created(Fields({"response": response.rest()}, fields.at, fields.blame))
        output = response.children("output", [])
        for index, item_fields in enumerate(output):
            known = self._ids.get(text_of(item_fields.peek("id")), index)  # by its id, else by its position
            if known not in self._items or not self._items[known].done:
                events += self._item(known, item_fields).finish(item_fields)
        cut = response.peek("status") == "incomplete" or response.peek("incomplete_details") is not None
        for item in self._items.values():
            events += item.close(cut=cut, listed=bool(output))
        usage = parse_usage(response.any("usage"))
        if usage is not None:
            events.append(ev.UsageReported(usage))
        lists_all = len(output) >= sum(item.done for item in self._items.values())
        stop = parse_stop(response, [block for item in self._items.values() for block in item.blocks])
        if not lists_all:
            stop = structs.replace(
                stop, extra=EXTRAS.extra_of({**EXTRAS.own_fields(stop.extra), NEEDS_REENCODING: True})
            )
        self._is_over = True
        return (*events, ev.Stopped(stop), ev.FINISHED)

    def _failed(self, fields: Fields) -> ev.Events:
        self._is_over = True
        response = object_of(fields.any("response"))
        fault = failure_of(response) or fault_of({"error": {"message": "the upstream's response failed"}}, None)
        return (ev.Failed(fault),)

    def _error(self, fields: Fields) -> ev.Events:
        self._is_over = True
        if fields.peek("type") == "error":
            fields.any("type")  # the type of the event, not of the error
        return (ev.Failed(fault_of(fields.rest(), None)),)

    # --- items

    def _index(self, fields: Fields) -> int:
        """Return the index of a frame's item: its output_index, else that of its item_id, else the last one."""
        index, known = fields.integer("output_index", None), self._ids.get(text_of(fields.peek("item_id")))
        if index is None:
            index = known if known is not None else max(self._items, default=0)
        elif known is not None and known != index:
            raise OutOfOrder(f"item_id belongs to item {known}, but output_index is {index}", at=fields.at)
        if not 0 <= index < _MAX_ITEMS:
            fields.fail("output_index", "expected the index of an item")
        return index

    def _item(self, index: int, item_fields: Fields, *, added: int | None = None) -> OutputItem:
        kind = item_fields.text("type")
        item = self._items.get(index)
        if item is None or item.done:
            if item is not None:
                raise OutOfOrder(f"item {index} is already done", at=item_fields.at)
            item = self._items[index] = OutputItem(
                self._keys, index, kind, item_fields, self._tools, added=added, dense=index == len(self._items)
            )
            self._remember_id(index, text_of(item_fields.peek("id")))
        elif item.kind != kind:
            raise OutOfOrder(
                f"item {index} has the type {item.kind}, which does not match this event", at=item_fields.at
            )
        return item

    def _remember_id(self, index: int, item_id: str) -> None:
        """Remember an item's id. An id that several items have identifies none of them."""
        if item_id in self._ids:
            self._shared.add(item_id)
            del self._ids[item_id]
        elif item_id and item_id not in self._shared:
            self._ids[item_id] = index

    def _open(self, fields: Fields, kinds: tuple[str, ...]) -> OutputItem | None:
        """Return the open item of a frame, created if it was never added; None if it is done."""
        index = self._index(fields)
        item = self._items.get(index)
        if item is None:
            if kinds[0] in CALL_TYPES:
                raise OutOfOrder(f"item {index} was never added", at=fields.at)
            item_fields: JsonObject = {"type": kinds[0]}
            if isinstance(item_id := fields.peek("item_id"), str):
                item_fields["id"] = item_id
            item = self._item(index, Fields(item_fields, fields.at, fields.blame))
        if item.kind not in kinds:
            raise OutOfOrder(f"item {index} has the type {item.kind}, which does not match this event", at=fields.at)
        return None if item.done else item

    def _item_added(self, fields: Fields) -> ev.Events:
        item_fields = fields.child("item")
        index = self._index(fields) if fields.peek("output_index") is not None else len(self._items)
        if index in self._items:
            self._check_same(index, item_fields)
            return ()
        return self._item(index, item_fields, added=self._frame_count).begin(item_fields)

    def _check_same(self, index: int, item_fields: Fields) -> None:
        """Raise OutOfOrder if an index is used again for another item, which would be lost or merged."""
        if not self._items[index].is_same(item_fields):
            raise OutOfOrder(f"output_index {index} belongs to another item", at=item_fields.at)

    def _item_done(self, fields: Fields) -> ev.Events:
        item_fields = fields.child("item")
        index = self._ids.get(text_of(item_fields.peek("id")), -1)
        if fields.peek("output_index") is not None or index < 0:
            index = self._index(fields)
        known = self._items.get(index)
        if known is not None:
            self._check_same(index, item_fields)
            if known.done:
                return ()
        return self._item(index, item_fields).finish(item_fields)

    # --- their parts

    def _part_added(self, fields: Fields) -> ev.Events:
        item = self._open(fields, ("message", "reasoning"))
        part, item_fields = _part(fields), fields.child("part")
        if item is None:
            return ()
        return item.reasoning("content", part, "") if item.kind == "reasoning" else item.part(part, item_fields)

    def _part_done(self, fields: Fields) -> ev.Events:
        item = self._open(fields, ("message", "reasoning"))
        part, item_fields = _part(fields), fields.child("part")
        if item is None:
            return ()
        if item.kind == "reasoning":
            return item.take_whole_reasoning("content", part, item_fields.text("text", ""))
        return item.part_done(part, item_fields)

    def _text_delta(self, fields: Fields) -> ev.Events:
        item, part, delta = self._open(fields, ("message",)), _part(fields), fields.text("delta")
        events = () if item is None else item.text(part, delta)
        if logprobs := fields.any("logprobs"):
            data: Json = {"type": _TEXT, "output_index": self._index(fields), "logprobs": logprobs}
            return (*events, ev.OpaqueEvent(FAMILY, "logprobs", data))
        return events


def _part(fields: Fields, name: str = "content_index") -> int:
    part = fields.integer(name, 0)
    if not 0 <= part < _MAX_PARTS:
        fields.fail(name, "expected the index of a part")
    return part


def _reasoning_delta(slot: str, name: str = "") -> _ItemHandler:
    """Return a reader of reasoning deltas; `name` is the field of the text, or "" for an event without text."""
    return lambda item, item_fields: item.reasoning(
        slot, _part(item_fields, f"{slot}_index"), item_fields.text(name) if name else ""
    )


def _whole_reasoning(slot: str) -> _ItemHandler:
    return lambda item, item_fields: item.take_whole_reasoning(
        slot, _part(item_fields, f"{slot}_index"), (item_fields.maybe_child("part") or item_fields).text("text", "")
    )


def _delta(item: OutputItem, item_fields: Fields) -> ev.Events:
    return item.arguments(item_fields.text("delta"))


# Events about the response.
_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(("response.created", "response.in_progress", "response.queued"), ResponsesDecoder._created),
    **dict.fromkeys(("response.completed", "response.incomplete"), ResponsesDecoder._ended),
    **dict.fromkeys(("response.failed", "response.cancelled"), ResponsesDecoder._failed),
    "error": ResponsesDecoder._error,
}
# Events about a whole item, or about a part of a message or of reasoning.
_ITEM_HANDLERS: dict[str, _Handler] = {
    "response.output_item.added": ResponsesDecoder._item_added,
    "response.output_item.done": ResponsesDecoder._item_done,
    "response.content_part.added": ResponsesDecoder._part_added,
    "response.content_part.done": ResponsesDecoder._part_done,
    _TEXT: ResponsesDecoder._text_delta,
}
# Events about an open item of one of these types.
_MESSAGE, _REASONING = ("message",), ("reasoning",)
_DELTA_HANDLERS: dict[str, tuple[tuple[str, ...], _ItemHandler]] = {
    "response.output_text.done": (
        _MESSAGE,
        lambda item, item_fields: item.take_whole_text(_part(item_fields), item_fields.text("text", "")),
    ),
    "response.output_text.annotation.added": (
        _MESSAGE,
        lambda item, item_fields: item.annotate(_part(item_fields), item_fields.any("annotation")),
    ),
    "response.refusal.delta": (
        _MESSAGE,
        lambda item, item_fields: item.text(_part(item_fields), item_fields.text("delta"), refused=True),
    ),
    "response.refusal.done": (
        _MESSAGE,
        lambda item, item_fields: item.take_whole_text(
            _part(item_fields), item_fields.text("refusal", ""), refused=True
        ),
    ),
    "response.function_call_arguments.delta": (CALL_TYPES, _delta),
    "response.function_call_arguments.done": (
        CALL_TYPES,
        lambda item, item_fields: item.keep_whole_arguments(item_fields.text("arguments", "")),
    ),
    "response.custom_tool_call_input.delta": (CALL_TYPES, _delta),
    "response.custom_tool_call_input.done": (
        CALL_TYPES,
        lambda item, item_fields: item.keep_whole_arguments(item_fields.text("input", "")),
    ),
    "response.reasoning_summary_part.added": (_REASONING, _reasoning_delta("summary")),
    "response.reasoning_summary_text.delta": (_REASONING, _reasoning_delta("summary", "delta")),
    "response.reasoning_summary_text.done": (_REASONING, _whole_reasoning("summary")),
    "response.reasoning_summary_part.done": (_REASONING, _whole_reasoning("summary")),
    "response.reasoning_text.delta": (_REASONING, _reasoning_delta("content", "delta")),
    "response.reasoning_text.done": (_REASONING, _whole_reasoning("content")),
}
