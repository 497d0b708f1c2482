"""The state of one output item of a Responses stream: which of its blocks are open, and how much was emitted. Pure.

The decoder (stream.py) calls one method of `OutputItem` per frame; each returns the events that the frame adds.
"""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.kit.openai_requests import arguments_text
from dragoman.dialects.kit.values import is_json
from dragoman.dialects.responses.blocks import (
    ANNOUNCED,
    EXTRAS,
    FAMILY,
    IN_CONTENT,
    MESSAGE_PART,
    NEEDS_REENCODING,
    PART_SEPARATOR,
    object_of,
    parse_annotation,
    parse_text,
    refusal_block,
    text_of,
)
from dragoman.dialects.responses.items import parse_call, take_message_fields
from dragoman.dialects.responses.tools import ToolNameResolver, with_search_effects
from dragoman.errors import OutOfOrder
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Location, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json, JsonObject

CALL_TYPES = ("function_call", "custom_tool_call")
_ITEM = 1024  # bytes counted for an item, apart from its content


class _OpenBlock:
    """A block that has started: the text emitted so far, and whether it has ended."""

    __slots__ = ("_budget", "block", "citation_count", "emitted", "ended", "key", "whole_text")

    def __init__(self, key: int, block: Text | Reasoning | ToolCall, budget: ev.ResponseBudget) -> None:
        self._budget = budget
        self.key = key
        self.block = block
        self.emitted = ev.TextBuffer(budget)
        self.whole_text = ""  # the whole text, if a frame had it before the end of the block
        self.citation_count = 0
        self.ended = False

    def tail(self, whole: str) -> str:
        """Return the part of the whole text that was not emitted yet; "" if the two disagree."""
        emitted = self.emitted.text()
        return whole[len(emitted) :] if whole.startswith(emitted) else ""

    def keep_whole(self, whole: str) -> None:
        """Keep the whole text, which a frame had before the end of the block."""
        self._budget.reserve(ev.text_size(whole) - ev.text_size(self.whole_text))
        self.whole_text = whole

    def end(self) -> None:
        """Mark the block as ended and free its text. `whole_text` stays: later frames check whether it was set."""
        self.ended = True
        self.emitted.take()


class OutputItem:
    """One output item. Each method takes the content of a frame and returns the events that are new in it.

    `added` is the number of the frame that added the item, or None. `dense` means that its index follows the last one.
    """

    def __init__(
        self,
        keys: ev.BlockKeys,
        index: int,
        kind: str,
        fields: Fields,
        tools: ToolNameResolver,
        *,
        added: int | None,
        dense: bool = True,
    ) -> None:
        keys.budget.reserve(_ITEM + ev.json_size(fields.peek("id"), fields.peek("call_id"), kind))
        self.kind = kind
        self._tools = tools
        self.done = False
        self._added = added is not None and dense  # clients can read the frame that added it
        self._announced: JsonObject = {} if added is None else {ANNOUNCED: added}
        self._keys = keys
        self._index = index  # its output_index
        self._at = fields.at
        self._id = text_of(fields.peek("id"))
        self._call_id = text_of(fields.peek("call_id"))
        self._message_fields: JsonObject = take_message_fields(_envelope(fields)) if kind == "message" else {}
        keys.budget.reserve(ev.json_size(self._message_fields))
        self._open: dict[int, _OpenBlock] = {}  # by part
        self._whole: dict[int, Block] = {}  # by part: blocks that came whole
        self._seen: set[tuple[str, int]] = set()  # parts of reasoning

    @property
    def blocks(self) -> list[Block]:
        """The blocks so far, each as it started."""
        return [*(open_block.block for open_block in self._open.values()), *self._whole.values()]

    def is_same(self, fields: Fields) -> bool:
        """Return whether `fields` may be this item again. Calls are compared by call_id, as some servers change ids."""
        if fields.peek("type") != self.kind:
            return False
        if self.kind in CALL_TYPES:
            call_id = text_of(fields.peek("call_id"))
            return not (call_id and self._call_id) or call_id == self._call_id
        item_id = text_of(fields.peek("id"))
        return not self.done or not (item_id and self._id) or item_id == self._id

    def begin(self, fields: Fields) -> ev.Events:
        """Handle output_item.added. Only a call starts its block here, and only if it has its name."""
        if self.kind in CALL_TYPES and fields.peek("name") and fields.peek("call_id"):
            self._announced = {}
            return self._call(fields)
        return ()

    def finish(self, fields: Fields) -> ev.Events:
        """Handle the finished item: emit the content that is still missing, and end all its blocks."""
        self.done = True
        match self.kind:
            case "message":
                return self._finish_message(fields)
            case "reasoning":
                return self._finish_reasoning(fields)
            case "function_call" | "custom_tool_call":
                return self._finish_call(fields)
            case kind:
                extra = EXTRAS.extra_of(self._announced if self._added else {**self._announced, NEEDS_REENCODING: True})
                block = Opaque(FAMILY, {"type": kind, **fields.rest()}, kind, extra=extra)
                return self._whole_block(0, with_search_effects(block, self._tools))

    def close(self, *, cut: bool, listed: bool) -> ev.Events:
        """End the item at the end of the response.

        `cut` means that the response is incomplete: an open call is then cut too, unless its whole arguments came.
        `listed` means that the last event lists the output. An open call that is not in the list was dropped, and
        OutOfOrder is raised. Without a list the call is complete if its arguments are valid JSON.
        """
        if self.done:
            return ()
        self.done = True
        events: list[ev.Event] = []
        for part, open_block in self._open.items():
            if not open_block.ended:
                whole = open_block.whole_text or (not listed and is_json(open_block.emitted.text()))
                if self.kind in CALL_TYPES and not cut and not whole:
                    raise OutOfOrder("the response ended before the tool call was done", at=self._at)
                events += self._rest_of(part, open_block)
                events.append(
                    self._end(part, complete=not cut or self.kind not in CALL_TYPES or bool(open_block.whole_text))
                )
        return tuple(events)

    def _rest_of(self, part: int, open_block: _OpenBlock) -> ev.Events:
        """Return events for the rest of a whole text or whole arguments."""
        if isinstance(open_block.block, ToolCall):
            return self.take_whole_arguments(open_block.whole_text)
        return self.text(part, open_block.tail(open_block.whole_text)) if isinstance(open_block.block, Text) else ()

    # --- messages

    def append_text(self, part: int, text: str) -> int | None:
        """Add a delta to an open text and return its key; None if no such text is open."""
        open_block = self._open.get(part)
        if open_block is None or open_block.ended or self.done or type(open_block.block) is not Text:
            return None
        open_block.emitted.add(text)
        return open_block.key

    def part(self, part: int, fields: Fields) -> ev.Events:
        """Handle content_part.added."""
        if part in self._open or part in self._whole:
            return ()
        kind = fields.peek("type")
        if kind not in ("output_text", "refusal", "text"):
            return ()  # `part_done` handles other types
        if kind == "refusal":
            content = fields.text("refusal", "")
            started = self._start(part, refusal_block("", "", self._message_fields), is_regular=self._added)
            return (started, *self.text(part, content))
        text = parse_text(Fields(fields.rest(), fields.at, fields.blame), self._message_fields)
        started = self._start(part, structs.replace(text, text="", citations=()), is_regular=self._added)
        citation_count = [event for each in text.citations for event in self.annotate(part, each.data)]
        return (started, *self.text(part, text.text), *citation_count)

    def text(self, part: int, delta: str, *, refused: bool = False) -> ev.Events:
        """Handle a delta of a text or a refusal; start its block if necessary."""
        events: list[ev.Event] = []
        if part in self._whole:
            return ()
        if part not in self._open:
            empty = (
                refusal_block("", self._at, self._message_fields)
                if refused
                else Text("", extra=EXTRAS.extra_of(self._message_fields))
            )
            events.append(self._start(part, structs.replace(empty, at=Location())))
        open_block = self._open[part]
        if delta and not open_block.ended:
            open_block.emitted.add(delta)
            events.append(ev.TextDelta(open_block.key, delta))
        return tuple(events)

    def take_whole_text(self, part: int, whole: str, *, refused: bool = False) -> ev.Events:
        """Keep the whole text of a part; its rest is emitted when the part ends."""
        events = self.text(part, "", refused=refused) if whole else ()
        if part in self._open:
            self._open[part].keep_whole(whole)
        return events

    def annotate(self, part: int, annotation: Json) -> ev.Events:
        """Handle an annotation of a text."""
        events = self.text(part, "")
        open_block = self._open.get(part)
        if open_block is None or open_block.ended:
            return ()
        open_block.citation_count += 1
        return (*events, ev.CitationAdded(open_block.key, parse_annotation(annotation)))

    def part_done(self, part: int, fields: Fields) -> ev.Events:
        """Handle a finished part. Parts of unknown types become opaque blocks."""
        open_block = self._open.get(part)
        if part in self._whole or (open_block is not None and open_block.ended):
            return ()
        kind = fields.peek("type")
        if kind not in ("output_text", "refusal", "text"):
            if open_block is not None:
                return ()
            data = fields.rest()
            # The encoder writes no messages of several parts, so it must write all frames of this one.
            extra = EXTRAS.extra_of({**self._message_fields, MESSAGE_PART: True, NEEDS_REENCODING: True})
            return self._whole_block(part, Opaque(FAMILY, data, text_of(data.get("type")), extra=extra))
        refused = kind == "refusal"
        content = fields.text("refusal" if refused else "text", "")
        events: ev.Events = self.text(part, "", refused=refused) if content or fields.peek("annotations") else ()
        if part not in self._open:
            return events
        open_block = self._open[part]
        if content:
            open_block.keep_whole(content)
        events = (*events, *self._rest_of(part, open_block))
        notes = fields.array("annotations", [])
        citation_count = [event for each in notes[open_block.citation_count :] for event in self.annotate(part, each)]
        return (*events, *citation_count, self._end(part))

    def _finish_message(self, fields: Fields) -> ev.Events:
        events: list[ev.Event] = []
        if not self._open:
            self._message_fields = take_message_fields(_envelope(fields))
        content = fields.any("content")
        if isinstance(content, str):
            content = [{"type": "output_text", "text": content}]
        for part, each in enumerate(content if isinstance(content, list) else ()):
            events += self.part_done(part, Fields(each, f"{fields.at}.content[{part}]", fields.blame))
        return (*events, *(self._end(part) for part, open_block in self._open.items() if not open_block.ended))

    # --- calls

    def _call(self, fields: Fields) -> ev.Events:
        call = self._tools.resolve_call(
            parse_call(Fields({"type": self.kind, **fields.rest()}, fields.at, fields.blame))
        )
        extra = call.extra
        if extra is not None:  # the status of an unfinished item is not content
            extra = EXTRAS.extra_of({name: value for name, value in extra.fields.items() if name != "~status"})
        empty = structs.replace(call, arguments="", extra=extra, at=Location())
        started = self._start(0, empty, is_regular=self._added and not self.done)
        return (started, *self.arguments(call.arguments))

    def arguments(self, delta: str) -> ev.Events:
        """Handle a delta of a call's arguments. Raises OutOfOrder if the call has no name yet."""
        open_block = self._open.get(0)
        if open_block is None:
            raise OutOfOrder("the tool call was added without a name", at=self._at)
        open_block.emitted.add(delta)
        return (ev.ArgumentsDelta(open_block.key, delta),) if delta else ()

    def keep_whole_arguments(self, whole: str) -> ev.Events:
        """Keep the whole arguments; their rest is emitted when the item ends."""
        if 0 in self._open:
            self._open[0].keep_whole(whole)
        return ()

    def take_whole_arguments(self, whole: str) -> ev.Events:
        """Emit the rest of the arguments. Raises OutOfOrder if the whole ones differ from the streamed ones."""
        open_block = self._open.get(0)
        if open_block is None:
            return ()  # the finished item holds them again
        emitted = open_block.emitted.text()
        open_block.keep_whole(whole)
        if whole.startswith(emitted):
            return self.arguments(whole[len(emitted) :])
        if whole and not (is_json(emitted) and is_json(whole) and jsonio.decode(emitted) == jsonio.decode(whole)):
            raise OutOfOrder("the arguments at the end of the call differ from the streamed ones", at=self._at)
        return ()

    def _finish_call(self, fields: Fields) -> ev.Events:
        if 0 not in self._open:
            events = self._call(fields)
        else:
            content = fields.any("input" if self.kind == "custom_tool_call" else "arguments")
            events = self.take_whole_arguments(arguments_text(content))
        return (*events, self._end(0, complete=fields.peek("status") != "incomplete"))

    # --- reasoning

    def reasoning(self, slot: str, part: int, delta: str) -> ev.Events:
        """Handle a delta of a reasoning part. A blank line separates parts."""
        is_regular = self._added and (not delta or self.done)
        events: list[ev.Event] = (
            [] if 0 in self._open else [self._start(0, self._empty_reasoning(slot), is_regular=is_regular)]
        )
        open_block = self._open[0]
        if not delta:
            return tuple(events)
        if (slot, part) not in self._seen:
            self._seen.add((slot, part))
            if open_block.emitted:
                open_block.emitted.add(PART_SEPARATOR)
                events.append(ev.ReasoningDelta(open_block.key, PART_SEPARATOR))
        open_block.emitted.add(delta)
        return (*events, ev.ReasoningDelta(open_block.key, delta))

    def _empty_reasoning(self, slot: str) -> Reasoning:
        extra: JsonObject = {"~id": self._id} if self._id else {}
        extra |= {IN_CONTENT: True} if slot == "content" else {}
        return Reasoning("", FAMILY, extra=EXTRAS.extra_of(extra))

    def take_whole_reasoning(self, slot: str, part: int, whole: str) -> ev.Events:
        """Handle a whole reasoning part; it counts only if no delta of it came."""
        return () if (slot, part) in self._seen else self.reasoning(slot, part, whole)

    def _finish_reasoning(self, fields: Fields) -> ev.Events:
        events: list[ev.Event] = []
        for slot in ("summary", "content"):
            value = fields.any(slot)
            parts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
            for part, each in enumerate(parts):
                text = each if isinstance(each, str) else text_of(object_of(each).get("text"))
                events += self.take_whole_reasoning(slot, part, text)
        data = fields.text("encrypted_content", "")
        if 0 not in self._open:
            events.append(self._start(0, self._empty_reasoning("summary"), is_regular=self._added))
        if data:
            events.append(ev.SignatureAdded(self._open[0].key, Signature(FAMILY, data, "encrypted")))
        return (*events, self._end(0))

    # --- both ends

    def _start(self, part: int, block: Text | Reasoning | ToolCall, *, is_regular: bool = False) -> ev.BlockStarted:
        marks: JsonObject = self._announced if is_regular else {**self._announced, NEEDS_REENCODING: True}
        if marks:
            block = structs.replace(block, extra=EXTRAS.extra_of({**EXTRAS.own_fields(block.extra), **marks}))
        self._announced = {}
        self._open[part] = open_block = _OpenBlock(self._keys.fresh(block), block, self._keys.budget)
        return ev.BlockStarted(open_block.key, block, wire_index=self._index)

    def _whole_block(self, part: int, block: Opaque) -> ev.Events:
        self._keys.budget.reserve(ev.json_size(block.data))
        self._whole[part], key = block, self._keys.fresh(block)
        return (ev.BlockStarted(key, block, wire_index=self._index), ev.BlockEnded(key))

    def _end(self, part: int, *, complete: bool = True) -> ev.BlockEnded:
        open_block = self._open[part]
        open_block.end()
        return ev.BlockEnded(open_block.key, complete)


def _envelope(fields: Fields) -> Fields:
    """Return the other fields of a message: all but type, role, content and status."""
    known = ("type", "role", "content", "status")
    return Fields({name: value for name, value in fields.rest().items() if name not in known}, fields.at, fields.blame)
