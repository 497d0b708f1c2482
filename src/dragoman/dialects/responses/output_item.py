"""An output item while it grows: which of its blocks are open, and how much of each was given."""

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
    JsonObject,
    object_of,
    parse_annotation,
    parse_text,
    refusal_block,
    text_of,
)
from dragoman.dialects.responses.items import parse_call, take_message_fields
from dragoman.dialects.responses.tools import ToolNameResolver
from dragoman.errors import OutOfOrder
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Location, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

CALL_TYPES = ("function_call", "custom_tool_call")
_ITEM = 1024  # bytes of an item, beside what it says


class _Grown:
    """A block that has begun: what was given of it, and whether it has ended."""

    __slots__ = ("_budget", "block", "cited", "ended", "given", "key", "told")

    def __init__(self, key: int, block: Text | Reasoning | ToolCall, budget: ev.ResponseBudget) -> None:
        self._budget = budget
        self.key = key
        self.block = block
        self.given = ev.TextBuffer(budget)
        self.told = ""  # the whole, where it was told before its end
        self.cited = 0
        self.ended = False

    def tail(self, whole: str) -> str:
        """What of the whole text was not given yet; nothing where the two disagree."""
        given = self.given.text()
        return whole[len(given) :] if whole.startswith(given) else ""

    def tell(self, whole: str) -> None:
        """Keep the whole, as it was told before its end."""
        self._budget.reserve(ev.text_size(whole) - ev.text_size(self.told))
        self.told = whole

    def end(self) -> None:
        """Nothing more comes of it, so its text is needed no more. Whether it was told whole is."""
        self.ended = True
        self.given.take()


class OutputItem:
    """One item. Everything it is told gives the events that say what was not said before."""

    def __init__(
        self,
        keys: ev.BlockKeys,
        index: int,
        kind: str,
        told: Fields,
        tools: ToolNameResolver,
        *,
        added: int | None,
        dense: bool = True,
    ) -> None:
        keys.budget.reserve(_ITEM + ev.json_size(told.peek("id"), told.peek("call_id"), kind))
        self.kind = kind
        self._tools = tools
        self.done = False
        self._added = added is not None and dense  # in a way that clients can read
        self._announced: JsonObject = {} if added is None else {ANNOUNCED: added}
        self._keys = keys
        self._index = index  # its output_index
        self._at = told.at
        self._id = text_of(told.peek("id"))
        self._call_id = text_of(told.peek("call_id"))
        self._placing: JsonObject = take_message_fields(_envelope(told)) if kind == "message" else {}
        keys.budget.reserve(ev.json_size(self._placing))
        self._grown: dict[int, _Grown] = {}  # by part
        self._whole: dict[int, Block] = {}  # by part, what came whole: nothing more is said of it
        self._seen: set[tuple[str, int]] = set()  # parts of reasoning

    @property
    def blocks(self) -> list[Block]:
        return [*(grown.block for grown in self._grown.values()), *self._whole.values()]

    def is_same(self, told: Fields) -> bool:
        """Whether this may be the same item, told again. Calls are known by their call_id: some change an item's id."""
        if told.peek("type") != self.kind:
            return False
        if self.kind in CALL_TYPES:
            call_id = text_of(told.peek("call_id"))
            return not (call_id and self._call_id) or call_id == self._call_id
        item_id = text_of(told.peek("id"))
        return not self.done or not (item_id and self._id) or item_id == self._id

    def begin(self, told: Fields) -> ev.Events:
        """The item was added. Only a call has something to begin with, and only with its name."""
        if self.kind in CALL_TYPES and told.peek("name") and told.peek("call_id"):
            self._announced = {}
            return self._call(told)
        return ()

    def finish(self, told: Fields) -> ev.Events:
        """The item is done, and told whole: what nobody gave of it is given now, and all of it ends."""
        self.done = True
        match self.kind:
            case "message":
                return self._finish_message(told)
            case "reasoning":
                return self._finish_reasoning(told)
            case "function_call" | "custom_tool_call":
                return self._finish_call(told)
            case kind:
                extra = EXTRAS.extra_of(self._announced if self._added else {**self._announced, NEEDS_REENCODING: True})
                block = Opaque(FAMILY, {"type": kind, **told.rest()}, kind, extra=extra)
                return self._came_whole(0, block)

    def close(self, *, cut: bool, listed: bool) -> ev.Events:
        """The response is over: a call that is still open was cut if the response was, and no item gave it whole.

        `listed`: the end lists what the response holds. A call that is open and not in that list was dropped. Without a
        list the call is whole if its arguments are.
        """
        if self.done:
            return ()
        self.done = True
        events: list[ev.Event] = []
        for part, grown in self._grown.items():
            if not grown.ended:
                whole = grown.told or (not listed and is_json(grown.given.text()))
                if self.kind in CALL_TYPES and not cut and not whole:
                    raise OutOfOrder("the call was never done", at=self._at)
                events += self._late(part, grown)
                events.append(self._end(part, complete=not cut or self.kind not in CALL_TYPES or bool(grown.told)))
        return tuple(events)

    def _late(self, part: int, grown: _Grown) -> ev.Events:
        """What was told whole and nobody gave."""
        if isinstance(grown.block, ToolCall):
            return self.take_whole_arguments(grown.told)
        return self.text(part, grown.tail(grown.told)) if isinstance(grown.block, Text) else ()

    # --- messages

    def append_text(self, part: int, text: str) -> int | None:
        """The key, if this is a text that has begun: then the delta is all there is to say."""
        grown = self._grown.get(part)
        if grown is None or grown.ended or self.done or type(grown.block) is not Text:
            return None
        grown.given.add(text)
        return grown.key

    def part(self, part: int, told: Fields) -> ev.Events:
        if part in self._grown or part in self._whole:
            return ()
        kind = told.peek("type")
        if kind not in ("output_text", "refusal", "text"):
            return ()  # it comes whole when it is done
        if kind == "refusal":
            words = told.text("refusal", "")
            started = self._start(part, refusal_block("", "", self._placing), regular=self._added)
            return (started, *self.text(part, words))
        text = parse_text(Fields(told.rest(), told.at, told.blame), self._placing)
        started = self._start(part, structs.replace(text, text="", citations=()), regular=self._added)
        cited = [event for each in text.citations for event in self.annotate(part, each.data)]
        return (started, *self.text(part, text.text), *cited)

    def text(self, part: int, delta: str, *, refused: bool = False) -> ev.Events:
        events: list[ev.Event] = []
        if part in self._whole:
            return ()
        if part not in self._grown:
            fresh = (
                refusal_block("", self._at, self._placing)
                if refused
                else Text("", extra=EXTRAS.extra_of(self._placing))
            )
            events.append(self._start(part, structs.replace(fresh, at=Location())))
        grown = self._grown[part]
        if delta and not grown.ended:
            grown.given.add(delta)
            events.append(ev.TextDelta(grown.key, delta))
        return tuple(events)

    def take_whole_text(self, part: int, whole: str, *, refused: bool = False) -> ev.Events:
        """A text as told at its end: it is given with the end, as far as nobody gave it before."""
        events = self.text(part, "", refused=refused) if whole else ()
        if part in self._grown:
            self._grown[part].tell(whole)
        return events

    def annotate(self, part: int, annotation: Json) -> ev.Events:
        events = self.text(part, "")
        grown = self._grown.get(part)
        if grown is None or grown.ended:
            return ()
        grown.cited += 1
        return (*events, ev.CitationAdded(grown.key, parse_annotation(annotation)))

    def part_done(self, part: int, told: Fields) -> ev.Events:
        """A part told whole ends. One that this family alone knows comes here."""
        grown = self._grown.get(part)
        if part in self._whole or (grown is not None and grown.ended):
            return ()
        kind = told.peek("type")
        if kind not in ("output_text", "refusal", "text"):
            if grown is not None:
                return ()
            data = told.rest()
            extra = EXTRAS.extra_of(
                {**self._placing, MESSAGE_PART: True, NEEDS_REENCODING: True}
            )  # we write no messages of several parts
            return self._came_whole(part, Opaque(FAMILY, data, text_of(data.get("type")), extra=extra))
        refused = kind == "refusal"
        words = told.text("refusal" if refused else "text", "")
        events: ev.Events = self.text(part, "", refused=refused) if words or told.peek("annotations") else ()
        if part not in self._grown:
            return events
        grown = self._grown[part]
        if words:
            grown.tell(words)
        events = (*events, *self._late(part, grown))
        notes = told.array("annotations", [])
        cited = [event for each in notes[grown.cited :] for event in self.annotate(part, each)]
        return (*events, *cited, self._end(part))

    def _finish_message(self, told: Fields) -> ev.Events:
        events: list[ev.Event] = []
        if not self._grown:
            self._placing = take_message_fields(_envelope(told))
        content = told.any("content")
        if isinstance(content, str):
            content = [{"type": "output_text", "text": content}]
        for part, each in enumerate(content if isinstance(content, list) else ()):
            events += self.part_done(part, Fields(each, f"{told.at}.content[{part}]", told.blame))
        return (*events, *(self._end(part) for part, grown in self._grown.items() if not grown.ended))

    # --- calls

    def _call(self, told: Fields) -> ev.Events:
        call = self._tools.resolve_call(parse_call(Fields({"type": self.kind, **told.rest()}, told.at, told.blame)))
        extra = call.extra
        if extra is not None:  # how far it had come when it was told is no part of it
            extra = EXTRAS.extra_of({name: value for name, value in extra.fields.items() if name != "~status"})
        bare = structs.replace(call, arguments="", extra=extra, at=Location())
        started = self._start(0, bare, regular=self._added and not self.done)
        return (started, *self.arguments(call.arguments))

    def arguments(self, delta: str) -> ev.Events:
        grown = self._grown.get(0)
        if grown is None:
            raise OutOfOrder("the call was added without its name", at=self._at)
        grown.given.add(delta)
        return (ev.ArgumentsDelta(grown.key, delta),) if delta else ()

    def told(self, whole: str) -> ev.Events:
        """The arguments told whole, before the item is: what of them was not given is given with the item's end."""
        if 0 in self._grown:
            self._grown[0].tell(whole)
        return ()

    def take_whole_arguments(self, whole: str) -> ev.Events:
        """The end of the arguments as told whole; where they are others than those given, nobody knows which to run."""
        grown = self._grown.get(0)
        if grown is None:
            return ()  # the item itself tells them again when it is done
        given = grown.given.text()
        grown.tell(whole)
        if whole.startswith(given):
            return self.arguments(whole[len(given) :])
        if whole and not (is_json(given) and is_json(whole) and jsonio.decode(given) == jsonio.decode(whole)):
            raise OutOfOrder("the arguments told at the end are not those told before", at=self._at)
        return ()

    def _finish_call(self, told: Fields) -> ev.Events:
        if 0 not in self._grown:
            events = self._call(told)
        else:
            words = told.any("input" if self.kind == "custom_tool_call" else "arguments")
            events = self.take_whole_arguments(arguments_text(words))
        return (*events, self._end(0, complete=told.peek("status") != "incomplete"))

    # --- reasoning

    def reasoning(self, slot: str, part: int, delta: str) -> ev.Events:
        """A piece of a part; a blank line stands between parts."""
        regular = self._added and (not delta or self.done)
        events: list[ev.Event] = [] if 0 in self._grown else [self._start(0, self._thinking(slot), regular=regular)]
        grown = self._grown[0]
        if not delta:
            return tuple(events)
        if (slot, part) not in self._seen:
            self._seen.add((slot, part))
            if grown.given:
                grown.given.add(PART_SEPARATOR)
                events.append(ev.ReasoningDelta(grown.key, PART_SEPARATOR))
        grown.given.add(delta)
        return (*events, ev.ReasoningDelta(grown.key, delta))

    def _thinking(self, slot: str) -> Reasoning:
        extra: JsonObject = {"~id": self._id} if self._id else {}
        extra |= {IN_CONTENT: True} if slot == "content" else {}
        return Reasoning("", FAMILY, extra=EXTRAS.extra_of(extra))

    def take_whole_reasoning(self, slot: str, part: int, whole: str) -> ev.Events:
        """A part told at its end says something only if none of it came before."""
        return () if (slot, part) in self._seen else self.reasoning(slot, part, whole)

    def _finish_reasoning(self, told: Fields) -> ev.Events:
        events: list[ev.Event] = []
        for slot in ("summary", "content"):
            given = told.any(slot)
            parts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
            for part, each in enumerate(parts):
                text = each if isinstance(each, str) else text_of(object_of(each).get("text"))
                events += self.take_whole_reasoning(slot, part, text)
        data = told.text("encrypted_content", "")
        if 0 not in self._grown:
            events.append(self._start(0, self._thinking("summary"), regular=self._added))
        if data:
            events.append(ev.SignatureAdded(self._grown[0].key, Signature(FAMILY, data, "encrypted")))
        return (*events, self._end(0))

    # --- both ends

    def _start(self, part: int, block: Text | Reasoning | ToolCall, *, regular: bool = False) -> ev.BlockStarted:
        marks: JsonObject = self._announced if regular else {**self._announced, NEEDS_REENCODING: True}
        if marks:
            block = structs.replace(block, extra=EXTRAS.extra_of({**EXTRAS.own_fields(block.extra), **marks}))
        self._announced = {}
        self._grown[part] = grown = _Grown(self._keys.fresh(block), block, self._keys.budget)
        return ev.BlockStarted(grown.key, block, wire_index=self._index)

    def _came_whole(self, part: int, block: Opaque) -> ev.Events:
        self._keys.budget.reserve(ev.json_size(block.data))
        self._whole[part], key = block, self._keys.fresh(block)
        return (ev.BlockStarted(key, block, wire_index=self._index), ev.BlockEnded(key))

    def _end(self, part: int, *, complete: bool = True) -> ev.BlockEnded:
        grown = self._grown[part]
        grown.end()
        return ev.BlockEnded(grown.key, complete)


def _envelope(told: Fields) -> Fields:
    """What a message says beside its content, and beside how far it has come."""
    beside = ("type", "role", "content", "status")
    return Fields({name: value for name, value in told.rest().items() if name not in beside}, told.at, told.blame)
