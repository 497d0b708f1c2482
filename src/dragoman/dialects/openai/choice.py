"""Turn the fragments of one choice of a Chat stream into blocks. stream.py has the theory of operation. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.dialects.kit.openai_requests import arguments_text
from dragoman.dialects.openai.blocks import EXTRAS, FAMILY, flat_text, parse_annotations
from dragoman.dialects.openai.chunk import TEXT_LANE, CallPart, ChunkDelta, FunctionPart, call_lane, reasoning_lane
from dragoman.dialects.openai.messages import (
    REASONING_ENCRYPTED,
    REASONING_TEXT,
    THINKING_PART_EXTRA,
    parse_reasoning_detail,
    thinking_text,
)
from dragoman.dialects.openai.reply import parse_images, parse_stop
from dragoman.errors import MissingField, OutOfOrder
from dragoman.model import events as ev
from dragoman.model.blocks import Extra, Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import to_extra_names
from dragoman.model.filter import LaneSource
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields, is_blank
from dragoman.wire.jsonio import Json, JsonObject

_SHORT_FIELD = EXTRAS.extra_of({"~field": "reasoning"})  # the encoder then uses the upstream's field too
_REFUSAL = EXTRAS.extra_of({"refusal": True})


class _OpenReasoning:
    """The open reasoning block."""

    __slots__ = ("buffer", "detail", "key", "signature")

    def __init__(self, key: int, detail: int | None, budget: ev.ResponseBudget) -> None:
        self.key = key
        self.detail = detail  # the index of its entry; None while all of it came from the plain field
        self.buffer = ev.TextBuffer(budget)
        self.signature: Signature | None = None


class ChoiceReader:
    """Reads the deltas of one choice and appends the events they mean to a list."""

    __slots__ = (
        "_calls",
        "_details",
        "_index",
        "_keys",
        "_reasoning",
        "_refused",
        "_refusing",
        "_role_sent",
        "_sequences",
        "_sources",
        "_text",
        "stopped",
        "unnamed",
    )

    def __init__(self, index: int, keys: ev.BlockKeys, sequences: tuple[str, ...]) -> None:
        self._index = index
        self._keys = keys
        self._sequences = sequences
        self._sources: list[Opaque] = []  # from outside the choices, for the end of the text
        self._text = -1  # the key of the open text block
        self._refusing = False  # the open text is a refusal
        self._refused = False  # the choice has a refusal
        self._reasoning: _OpenReasoning | None = None
        self._details = 0
        self._calls: CallReader | None = None  # None until the first call
        self._role_sent = index == 0  # the start of the stream implies the first choice's role
        self.stopped = False
        self.unnamed = False  # the finish_reason of the last chunk is "", not null

    @property
    def is_open(self) -> bool:
        """Whether a text, reasoning or a call has started and not ended."""
        calls = self._calls
        return self._text >= 0 or self._reasoning is not None or (calls is not None and calls.is_open)

    def feed(self, delta: ChunkDelta, events: list[ev.Event]) -> None:
        """Read one delta: reasoning, content and calls, in this order. Raises OutOfOrder for content after the stop."""
        if self.stopped:
            self._check_after_stop(delta)
            return
        if delta.role and not self._role_sent:
            self._role_sent = True
            events.append(ev.OpaqueEvent(FAMILY, "role", {"index": self._index}))
        if delta.reasoning_details or delta.thinking_blocks:
            self._add_details(delta, events)
        elif reasoning := delta.reasoning_content:
            self._add_reasoning(reasoning, events)
        elif reasoning := delta.reasoning:
            self._add_reasoning(reasoning, events, _SHORT_FIELD)
        if content := delta.content:
            if isinstance(content, str):
                self._add_text(content, events)
            else:
                self._add_parts(content, events)
        if delta.refusal:
            self._add_text(delta.refusal, events, refusing=True)
        self._add_annotations(delta.annotations, events)
        if delta.images:
            self._add_images(delta.images, events)
        if delta.tool_calls:
            for position, entry in enumerate(delta.tool_calls):
                if entry is not None:
                    self._call_reader().feed(entry, position, events)
        if delta.function_call is not None:
            self._call_reader().feed_legacy(delta.function_call, events)
        if delta.rest:
            self._add_unknown(delta.rest, events)

    def _add_annotations(self, annotations: list[Any] | None, events: list[ev.Event]) -> None:
        """Emit citations at once, and start a text for them if none is open.

        A frame without events passes through unchanged to a client of the same dialect. Annotations that are only
        kept for later would then reach the client twice.
        """
        sources = parse_annotations(annotations)
        if sources and self._calls is None and not self.is_open:
            self._start_text(events)
        if self._text < 0 or self._refusing:
            self._keep_sources(sources)  # there is no text to cite
        else:
            events += [ev.CitationAdded(self._text, source) for source in sources]

    def cite(self, sources: list[Opaque]) -> None:
        """Keep sources from outside the choices until the text ends; each is reported once."""
        self._keep_sources([source for source in sources if source not in self._sources])

    def _keep_sources(self, sources: list[Opaque]) -> None:
        if sources:
            self._keys.budget.reserve(ev.json_size(*sources))
            self._sources += sources

    def lane(self, key: int) -> LaneSource | None:
        """Return the fast path (lane) for the deltas of block `key`, or None. Only the first choice has lanes."""
        reasoning = self._reasoning
        if self.stopped:
            return None
        if key == self._text:
            return None if self._refusing else TEXT_LANE
        if reasoning is not None and reasoning.key == key:
            return None if reasoning.detail is not None else reasoning_lane(reasoning.buffer.add)
        return None if self._calls is None else self._calls.lane(key)

    def _call_reader(self) -> CallReader:
        if self._calls is None:
            self._calls = CallReader(self._index, self._keys, self._end_prose)
        return self._calls

    def _check_after_stop(self, delta: ChunkDelta) -> None:
        """Raise OutOfOrder if a delta after the stop has content."""
        text = delta.content or delta.reasoning_content or delta.reasoning or delta.refusal
        has_call = any(entry is not None and _is_call(entry) for entry in delta.tool_calls or ())
        legacy = delta.function_call
        if text or has_call or (legacy is not None and (legacy.name or legacy.arguments not in (None, "", "{}"))):
            raise OutOfOrder("the choice has content after its finish_reason", at=f"choices[{self._index}].delta")

    def _add_text(self, text: str, events: list[ev.Event], *, refusing: bool = False) -> None:
        if self._text < 0 or self._refusing != refusing:
            self._start_text(events, refusing=refusing)
        events.append(ev.TextDelta(self._text, text))

    def _start_text(self, events: list[ev.Event], *, refusing: bool = False) -> None:
        self._end_prose(events)
        self._text, self._refusing = self._keys.fresh(), refusing
        self._refused |= refusing
        events.append(ev.BlockStarted(self._text, Text("", extra=_REFUSAL if refusing else None), self._index))

    def _add_parts(self, parts: list[Any], events: list[ev.Event]) -> None:
        """Read content that is a list of parts, as Mistral sends it."""
        for part in parts:
            match part:
                case {"type": "thinking", "thinking": reasoning}:
                    if text := thinking_text(reasoning):
                        self._add_reasoning(text, events, THINKING_PART_EXTRA)
                case str() | {"type": "text"} | {"text": str()}:
                    if text := flat_text(part):
                        self._add_text(text, events)
                case _:
                    self._add_unknown({"content": [part]}, events)

    def _add_images(self, images: list[Any], events: list[ev.Event]) -> None:
        for block in parse_images(images, f"choices[{self._index}].delta.images"):
            if isinstance(block, Media | Opaque):
                self._end_prose(events)
                key = self._keys.fresh(block)
                events += (ev.BlockStarted(key, block, self._index), ev.BlockEnded(key))

    def _add_unknown(self, fields: JsonObject, events: list[ev.Event]) -> None:
        events.append(ev.OpaqueEvent(FAMILY, "delta", {"index": self._index, "delta": fields}))

    # --- reasoning

    def _add_reasoning(self, text: str, events: list[ev.Event], extra: Extra | None = None) -> None:
        reasoning = self._reasoning
        if reasoning is None or reasoning.detail is not None:
            reasoning = self._start_reasoning(None, extra, events)
        reasoning.buffer.add(text)
        events.append(ev.ReasoningDelta(reasoning.key, text))

    def _start_reasoning(self, detail: int | None, extra: Extra | None, events: list[ev.Event]) -> _OpenReasoning:
        self._end_prose(events)
        block = Reasoning("", FAMILY, extra=extra)
        self._reasoning = reasoning = _OpenReasoning(self._keys.fresh(block), detail, self._keys.budget)
        events.append(ev.BlockStarted(reasoning.key, block, self._index))
        return reasoning

    def _add_details(self, delta: ChunkDelta, events: list[ev.Event]) -> None:
        """Read reasoning details. The plain field counts only if the details have no text."""
        has_text = any(entry.get("text") or entry.get("summary") for entry in delta.reasoning_details or ())
        plain = delta.reasoning_content or delta.reasoning
        if not has_text and not plain and delta.thinking_blocks:
            plain = "".join(flat_text(entry.get("thinking")) for entry in delta.thinking_blocks)
        if not has_text and plain:
            self._add_reasoning(plain, events)
        for entry in delta.reasoning_details or ():
            self._add_detail(entry, events)
        for entry in delta.thinking_blocks or () if not delta.reasoning_details else ():
            self._add_thinking_block(entry, events)

    def _add_detail(self, entry: dict[str, Any], events: list[ev.Event]) -> None:
        present = {name: value for name, value in entry.items() if value is not None}
        fields = Fields(present, f"choices[{self._index}].delta.reasoning_details", MissingField)
        index, kind = entry.get("index", self._details), entry.get("type")
        block = parse_reasoning_detail(fields, self._details)
        if isinstance(block, Opaque):
            self._add_unknown({"reasoning_details": [entry]}, events)
            return
        if type(index) is not int:
            fields.fail("index", "expected an integer")
        text = block.text
        reasoning = self._continued_by(index, kind, text)
        if reasoning is None:
            reasoning = self._start_reasoning(index, block.extra, events)
            self._details += 1
        elif reasoning.detail is None:  # the plain field held this text already
            reasoning.detail, text = index, ""
            self._details += 1
        if text:
            reasoning.buffer.add(text)
            events.append(ev.ReasoningDelta(reasoning.key, text))
        if block.signature:
            self._add_signature(reasoning, block.signature, events)

    def _add_signature(self, reasoning: _OpenReasoning, signature: Signature, events: list[ev.Event]) -> None:
        """Emit a signature at once, so that the frame's events match its bytes. A second signature starts a block."""
        if reasoning.signature == signature:
            return
        if reasoning.signature is not None:
            reasoning = self._start_reasoning(reasoning.detail, None, events)
        reasoning.signature = signature
        events.append(ev.SignatureAdded(reasoning.key, signature))

    def _continued_by(self, index: int, kind: object, text: str) -> _OpenReasoning | None:
        """Return the open block that an entry continues; None if the entry starts a block."""
        reasoning = self._reasoning
        if reasoning is None:
            return None
        if reasoning.detail is None:
            return reasoning if reasoning.buffer.text() == text or (not text and kind == REASONING_TEXT) else None
        is_other_kind = reasoning.signature is not None and (reasoning.signature.kind == "encrypted") != (
            kind == REASONING_ENCRYPTED
        )
        return reasoning if reasoning.detail == index and not is_other_kind else None

    def _add_thinking_block(self, entry: dict[str, Any], events: list[ev.Event]) -> None:
        signature_data, data = entry.get("signature"), entry.get("data")
        if entry.get("type") == "redacted_thinking" and isinstance(data, str):
            hidden = self._start_reasoning(-1, EXTRAS.extra_of({"~field": "thinking_blocks"}), events)
            self._add_signature(hidden, Signature(FAMILY, data, "redacted"), events)
        elif isinstance(signature_data, str) and signature_data:
            reasoning = self._reasoning or self._start_reasoning(None, None, events)
            self._add_signature(reasoning, Signature(FAMILY, signature_data), events)

    # --- ends

    def _end_prose(self, events: list[ev.Event]) -> None:
        """End the open text or reasoning."""
        if self._text >= 0:
            if self._sources and not self._refusing:
                events += [ev.CitationAdded(self._text, source) for source in self._sources]
                self._keys.budget.release(ev.json_size(*self._sources))
                self._sources = []
            events.append(ev.BlockEnded(self._text))
            self._text = -1
        if (reasoning := self._reasoning) is not None:
            events.append(ev.BlockEnded(reasoning.key))
            reasoning.buffer.take()
            self._reasoning = None

    def close(self, events: list[ev.Event]) -> None:
        """End all open blocks. Raises MissingField for a call without a name."""
        self._end_prose(events)
        if self._calls is not None:
            self._calls.close(events)

    def stop(self, word: str, rest: JsonObject, events: list[ev.Event]) -> None:
        """End all blocks and the choice. `word` is its finish_reason, `rest` the choice's other fields."""
        if self.stopped:
            return
        self.close(events)
        unused: list[Json] = [source.data for source in self._sources if source.data is not None]
        if unused:  # no text could cite them
            self._add_unknown({"annotations": unused}, events)
        self.stopped = True
        stop = parse_stop(word, rest, self._sequences, refused=self._refused)
        events.append(ev.Stopped(stop, self._index))


def _is_call(entry: CallPart) -> bool:
    function, custom = entry.function, entry.custom
    named = function is not None and (function.name or function.arguments)
    return bool(entry.id or named or (custom is not None and (custom.name or custom.input)))


# --- the calls of one choice
#
# Upstreams disagree about indices, ids and names. An entry belongs to the call at its index, or to the last call if it
# has no index. It starts another call if it has another id together with a name, or another name, or the same name
# with more arguments while those of the call are complete: at some upstreams several calls share index 0. An entry
# that repeats a whole call is ignored.

_UNNAMED_CALL = 512  # bytes counted for a call that waits for its name
_MAX_UNNAMED_ARGUMENTS = 1024 * 1024  # characters that may wait for a name (docs/decisions/raw_tools.md#d22)


class _OpenCall:
    """A call that has not ended. Arguments that come before its name wait in `waiting`."""

    __slots__ = ("emitted", "id", "key", "name", "place", "rest", "waiting")

    def __init__(self, call_id: str, place: str, budget: ev.ResponseBudget) -> None:
        budget.reserve(_UNNAMED_CALL + ev.text_size(call_id))
        self.id = call_id
        self.name = ""
        self.key = -1  # until its block starts
        self.waiting = ev.TextBuffer(budget)
        self.emitted = ev.TextBuffer(budget)  # the arguments in events so far
        self.rest: JsonObject = {}
        self.place = place

    def repeats(self, call_id: str, arguments: str) -> bool:
        """Return whether an entry with this id and these arguments repeats the whole call."""
        return (
            bool(call_id and arguments)
            and call_id == self.id
            and self.emitted.text() == arguments
            and jsonio.decode_object(arguments) is not None
        )


class CallReader:
    """Reads the entries of one choice's calls. `before` is called with the events when a call starts."""

    def __init__(self, choice: int, keys: ev.BlockKeys, before: Callable[[list[ev.Event]], None]) -> None:
        self._choice = choice
        self._keys = keys
        self._before = before
        self._by_index: dict[int, _OpenCall] = {}
        self._all: list[_OpenCall] = []
        self._legacy: _OpenCall | None = None

    @property
    def is_open(self) -> bool:
        """Whether a call has not ended."""
        return bool(self._all)

    def feed(self, entry: CallPart, position: int, events: list[ev.Event]) -> None:
        """Read an entry of `tool_calls`; `position` is its place in the list."""
        if entry.custom is not None or entry.type == "custom":
            custom = entry.custom
            name, arguments, form = (_visible(custom.name), custom.input or "", "text") if custom else ("", "", "text")
        elif entry.function is not None:
            name, arguments, form = _visible(entry.function.name), arguments_text(entry.function.arguments), "json"
        else:
            name, arguments, form = "", "", "json"
        call = self._call_of(entry, name, arguments, position)
        if call is not None and not (name and call.repeats(_visible(entry.id), arguments)):
            self._add_entry(call, name, arguments, form, entry.rest, events)

    def feed_legacy(self, part: FunctionPart, events: list[ev.Event]) -> None:
        """Read a legacy `function_call`: a choice has at most one, and it has no id."""
        name, arguments = _visible(part.name), arguments_text(part.arguments)
        call = self._legacy
        if call is None:
            if not name and arguments in ("", "{}"):  # some servers send the legacy field empty
                return
            place = f"choices[{self._choice}].delta.function_call.name"
            self._legacy = call = _OpenCall("", place, self._keys.budget)
            self._all.append(call)
        self._add_entry(call, name, arguments, "json", None, events)

    def lane(self, key: int) -> LaneSource | None:
        """Return the lane for the arguments of a call that has an index or is the last (see Decoder.lane)."""
        call = next((call for call in self._all if call.key == key), None)
        index = next((index for index, each in self._by_index.items() if each is call), None)
        if call is None or call is self._legacy or (index is None and call is not self._all[-1]):
            return None
        return call_lane(index, call.emitted.add)

    def _call_of(self, entry: CallPart, name: str, arguments: str, position: int) -> _OpenCall | None:
        index, call_id = entry.index, _visible(entry.id)
        call = self._all[-1] if index is None and self._all else None if index is None else self._by_index.get(index)
        if call is not None and not _starts_another(call, call_id, name, arguments, has_index=index is not None):
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

    def _add_entry(
        self, call: _OpenCall, name: str, arguments: str, form: str, rest: JsonObject | None, events: list[ev.Event]
    ) -> None:
        if call.key >= 0:
            if arguments:
                call.emitted.add(arguments)
                events.append(ev.ArgumentsDelta(call.key, arguments))
            if rest:
                events.append(ev.OpaqueEvent(FAMILY, "call", {"key": call.key, "fields": rest}))
            return
        if rest:
            self._keys.budget.reserve(ev.json_size(rest))
            call.rest |= rest
        if arguments:
            call.waiting.add(arguments)
        if not name:
            if len(call.waiting) > _MAX_UNNAMED_ARGUMENTS:
                raise MissingField("a tool call has arguments but no name", at=call.place)
            return
        self._before(events)
        block = ToolCall(
            call.id, name, form="text" if form == "text" else "json", extra=EXTRAS.extra_of(to_extra_names(call.rest))
        )
        call.name, call.key = name, self._keys.fresh(block)
        events.append(ev.BlockStarted(call.key, block, self._choice))
        if waiting := call.waiting.take():
            call.emitted.add(waiting)
            events.append(ev.ArgumentsDelta(call.key, waiting))

    def close(self, events: list[ev.Event]) -> None:
        """End all calls. Raises MissingField for one without a name."""
        for call in self._all:
            if call.key >= 0:
                events.append(ev.BlockEnded(call.key))
                call.emitted.take()
            elif call.id or call.waiting:
                raise MissingField("a tool call has no name", at=call.place)
        self._all.clear()
        self._by_index.clear()


def _visible(text: str | None) -> str:
    """Return an id or a name; a blank one counts as missing (docs/decisions/content.md#d5)."""
    return "" if text is None or is_blank(text) else text


def _starts_another(call: _OpenCall, call_id: str, name: str, arguments: str, *, has_index: bool) -> bool:
    if call_id and call.id and call_id != call.id:
        return bool(name) or not has_index
    if not name or not call.name:
        return False
    is_complete = bool(arguments) and jsonio.decode_object(call.emitted.text()) is not None
    return name != call.name or (is_complete and not call.repeats(call_id, arguments))
