"""One choice of a stream: fragments to blocks. See stream.py for the theory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.dialects.kit.openai_requests import arguments_text
from dragoman.dialects.openai.blocks import EXTRAS, FAMILY, JsonObject, flat_text, parse_annotations
from dragoman.dialects.openai.chunk import TEXT_LANE, CallPart, Delta, FunctionPart, call_lane, reasoning_lane
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
from dragoman.wire.jsonio import Json

_SHORT_FIELD = EXTRAS.extra_of(
    {"~field": "reasoning"}
)  # so that one stream keeps to one field, whoever writes its frames
_REFUSAL = EXTRAS.extra_of({"refusal": True})


class _Thought:
    """The open reasoning block."""

    __slots__ = ("detail", "key", "pieces", "signature")

    def __init__(self, key: int, detail: int | None, budget: ev.ResponseBudget) -> None:
        self.key = key
        self.detail = detail  # the index of its entry; None while only the plain field told it
        self.pieces = ev.TextBuffer(budget)
        self.signature: Signature | None = None


class ChoiceReader:
    __slots__ = (
        "_calls",
        "_details",
        "_index",
        "_keys",
        "_refused",
        "_refusing",
        "_sequences",
        "_sources",
        "_text",
        "_thought",
        "_told_role",
        "stopped",
        "unnamed",
    )

    def __init__(self, index: int, keys: ev.BlockKeys, sequences: tuple[str, ...]) -> None:
        self._index = index
        self._keys = keys
        self._sequences = sequences
        self._sources: list[Opaque] = []  # beside the choices, chunk after chunk: the text cites them at its end
        self._text = -1  # the key of the open text block
        self._refusing = False  # it is a refusal
        self._refused = False
        self._thought: _Thought | None = None
        self._details = 0
        self._calls: CallReader | None = None  # most answers have none
        self._told_role = index == 0  # that of the first choice comes with the start
        self.stopped = False
        self.unnamed = False  # the finish_reason of the last chunk is empty, not null

    @property
    def is_open(self) -> bool:
        """Whether a text, a thought or a call has begun and not ended."""
        calls = self._calls
        return self._text >= 0 or self._thought is not None or (calls is not None and calls.is_open)

    # --- a chunk's delta: reasoning, content, calls, in this order

    def feed(self, delta: Delta, events: list[ev.Event]) -> None:
        if self.stopped:
            self._late(delta)
            return
        if delta.role and not self._told_role:
            self._told_role = True
            events.append(ev.OpaqueEvent(FAMILY, "role", {"index": self._index}))
        if delta.reasoning_details or delta.thinking_blocks:
            self._detailed(delta, events)
        elif thought := delta.reasoning_content:
            self._think(thought, events)
        elif thought := delta.reasoning:
            self._think(thought, events, _SHORT_FIELD)
        if content := delta.content:
            if isinstance(content, str):
                self._say(content, events)
            else:
                self._parts(content, events)
        if delta.refusal:
            self._say(delta.refusal, events, refusing=True)
        self._annotated(delta.annotations, events)
        if delta.images:
            self._show(delta.images, events)
        if delta.tool_calls:
            for position, entry in enumerate(delta.tool_calls):
                if entry is not None:
                    self._called().feed(entry, position, events)
        if delta.function_call is not None:
            self._called().older(delta.function_call, events)
        if delta.rest:
            self._odd(delta.rest, events)

    def _annotated(self, annotations: list[Any] | None, events: list[ev.Event]) -> None:
        """Cite at once, in a text that begins here if need be.

        A frame without events passes as it came in the same dialect: what it only kept for later would be sent twice.
        """
        sources = parse_annotations(annotations)
        if sources and self._calls is None and not self.is_open:
            self._begin_text(events)
        if self._text < 0 or self._refusing:
            self._cite(sources)  # there is no text to cite
        else:
            events += [ev.CitationAdded(self._text, source) for source in sources]

    def cite(self, sources: list[Opaque]) -> None:
        """Take sources that stand beside the choices; each is reported once."""
        self._cite([source for source in sources if source not in self._sources])

    def _cite(self, sources: list[Opaque]) -> None:
        if sources:
            self._keys.budget.reserve(ev.json_size(*sources))
            self._sources += sources

    def lane(self, key: int) -> LaneSource | None:
        """See Decoder. Only for the first choice, whose chunks need not be told from those of others."""
        thought = self._thought
        if self.stopped:
            return None
        if key == self._text:
            return None if self._refusing else TEXT_LANE
        if thought is not None and thought.key == key:
            return None if thought.detail is not None else reasoning_lane(thought.pieces.add)
        return None if self._calls is None else self._calls.lane(key)

    def _called(self) -> CallReader:
        if self._calls is None:
            self._calls = CallReader(self._index, self._keys, self._close_prose)
        return self._calls

    def _late(self, delta: Delta) -> None:
        """After the stop only silence may follow."""
        said = delta.content or delta.reasoning_content or delta.reasoning or delta.refusal
        called = any(entry is not None and _calls_something(entry) for entry in delta.tool_calls or ())
        older = delta.function_call
        if said or called or (older is not None and (older.name or older.arguments not in (None, "", "{}"))):
            raise OutOfOrder("content after its finish_reason", at=f"choices[{self._index}].delta")

    def _say(self, text: str, events: list[ev.Event], *, refusing: bool = False) -> None:
        if self._text < 0 or self._refusing != refusing:
            self._begin_text(events, refusing=refusing)
        events.append(ev.TextDelta(self._text, text))

    def _begin_text(self, events: list[ev.Event], *, refusing: bool = False) -> None:
        self._close_prose(events)
        self._text, self._refusing = self._keys.fresh(), refusing
        self._refused |= refusing
        events.append(ev.BlockStarted(self._text, Text("", extra=_REFUSAL if refusing else None), self._index))

    def _parts(self, parts: list[Any], events: list[ev.Event]) -> None:
        """Content as parts, as Mistral sends it."""
        for part in parts:
            match part:
                case {"type": "thinking", "thinking": thought}:
                    if text := thinking_text(thought):
                        self._think(text, events, THINKING_PART_EXTRA)
                case str() | {"type": "text"} | {"text": str()}:
                    if text := flat_text(part):
                        self._say(text, events)
                case _:
                    self._odd({"content": [part]}, events)

    def _show(self, images: list[Any], events: list[ev.Event]) -> None:
        for block in parse_images(images, f"choices[{self._index}].delta.images"):
            if isinstance(block, Media | Opaque):
                self._close_prose(events)
                key = self._keys.fresh(block)
                events += (ev.BlockStarted(key, block, self._index), ev.BlockEnded(key))

    def _odd(self, fields: JsonObject, events: list[ev.Event]) -> None:
        events.append(ev.OpaqueEvent(FAMILY, "delta", {"index": self._index, "delta": fields}))

    # --- reasoning

    def _think(self, text: str, events: list[ev.Event], spelt: Extra | None = None) -> None:
        thought = self._thought
        if thought is None or thought.detail is not None:
            thought = self._begin(None, spelt, events)
        thought.pieces.add(text)
        events.append(ev.ReasoningDelta(thought.key, text))

    def _begin(self, detail: int | None, extra: Extra | None, events: list[ev.Event]) -> _Thought:
        self._close_prose(events)
        block = Reasoning("", FAMILY, extra=extra)
        self._thought = thought = _Thought(self._keys.fresh(block), detail, self._keys.budget)
        events.append(ev.BlockStarted(thought.key, block, self._index))
        return thought

    def _detailed(self, delta: Delta, events: list[ev.Event]) -> None:
        """Details, and the plain field only where they do not tell the text themselves."""
        told = any(entry.get("text") or entry.get("summary") for entry in delta.reasoning_details or ())
        plain = delta.reasoning_content or delta.reasoning
        if not told and not plain and delta.thinking_blocks:
            plain = "".join(flat_text(entry.get("thinking")) for entry in delta.thinking_blocks)
        if not told and plain:
            self._think(plain, events)
        for entry in delta.reasoning_details or ():
            self._detail(entry, events)
        for entry in delta.thinking_blocks or () if not delta.reasoning_details else ():
            self._litellm_block(entry, events)

    def _detail(self, entry: dict[str, Any], events: list[ev.Event]) -> None:
        given = {name: value for name, value in entry.items() if value is not None}
        fields = Fields(given, f"choices[{self._index}].delta.reasoning_details", MissingField)
        index, kind = entry.get("index", self._details), entry.get("type")
        block = parse_reasoning_detail(fields, self._details)
        if isinstance(block, Opaque):
            self._odd({"reasoning_details": [entry]}, events)
            return
        if type(index) is not int:
            fields.fail("index", "expected an integer")
        text = block.text
        thought = self._thought_of(index, kind, text)
        if thought is None:
            thought = self._begin(index, block.extra, events)
            self._details += 1
        elif thought.detail is None:  # the plain field has told this text already
            thought.detail, text = index, ""
            self._details += 1
        if text:
            thought.pieces.add(text)
            events.append(ev.ReasoningDelta(thought.key, text))
        if block.signature:
            self._seal(thought, block.signature, events)

    def _seal(self, thought: _Thought, signature: Signature, events: list[ev.Event]) -> None:
        """Seal a block at once, so that the frame means what it says; a second seal gets a block of its own."""
        if thought.signature == signature:
            return
        if thought.signature is not None:
            thought = self._begin(thought.detail, None, events)
        thought.signature = signature
        events.append(ev.SignatureAdded(thought.key, signature))

    def _thought_of(self, index: int, kind: object, text: str) -> _Thought | None:
        """The open block that an entry belongs to, if it is not the first of a new one."""
        thought = self._thought
        if thought is None:
            return None
        if thought.detail is None:
            return thought if thought.pieces.text() == text or (not text and kind == REASONING_TEXT) else None
        sealed_otherwise = thought.signature is not None and (thought.signature.kind == "encrypted") != (
            kind == REASONING_ENCRYPTED
        )
        return thought if thought.detail == index and not sealed_otherwise else None

    def _litellm_block(self, entry: dict[str, Any], events: list[ev.Event]) -> None:
        signature_data, data = entry.get("signature"), entry.get("data")
        if entry.get("type") == "redacted_thinking" and isinstance(data, str):
            hidden = self._begin(-1, EXTRAS.extra_of({"~field": "thinking_blocks"}), events)
            self._seal(hidden, Signature(FAMILY, data, "redacted"), events)
        elif isinstance(signature_data, str) and signature_data:
            thought = self._thought or self._begin(None, None, events)
            self._seal(thought, Signature(FAMILY, signature_data), events)

    # --- ends

    def _close_prose(self, events: list[ev.Event]) -> None:
        """End the open text or reasoning."""
        if self._text >= 0:
            if self._sources and not self._refusing:
                events += [ev.CitationAdded(self._text, source) for source in self._sources]
                self._keys.budget.release(ev.json_size(*self._sources))
                self._sources = []
            events.append(ev.BlockEnded(self._text))
            self._text = -1
        if (thought := self._thought) is not None:
            events.append(ev.BlockEnded(thought.key))
            thought.pieces.take()
            self._thought = None

    def close(self, events: list[ev.Event]) -> None:
        """End whatever is open. Raises MissingField for a call that never got its name."""
        self._close_prose(events)
        if self._calls is not None:
            self._calls.close(events)

    def stop(self, word: str, rest: JsonObject, events: list[ev.Event]) -> None:
        if self.stopped:
            return
        self.close(events)
        left: list[Json] = [source.data for source in self._sources if source.data is not None]
        if left:  # there is no text to cite
            self._odd({"annotations": left}, events)
        self.stopped = True
        stop = parse_stop(word, rest, self._sequences, refused=self._refused)
        events.append(ev.Stopped(stop, self._index))


def _calls_something(entry: CallPart) -> bool:
    function, custom = entry.function, entry.custom
    named = function is not None and (function.name or function.arguments)
    return bool(entry.id or named or (custom is not None and (custom.name or custom.input)))


# --- the calls of one choice, whatever upstreams do with indices, ids and names
#
# An entry belongs to the call at its index, or to the last call if it has none. It begins another one if it names
# another id together with a name, or another name, or the same name again with more arguments when those of the call
# are whole: several calls share index 0 at some upstreams. Repetition says nothing.

_UNNAMED_CALL = 512  # bytes of a call whose name has not come
# characters of arguments that may wait for their call's name (docs/decisions/raw_tools.md#d22)
_MOST_HELD = 1024 * 1024


class _OpenCall:
    __slots__ = ("given", "held", "id", "key", "name", "place", "rest")

    def __init__(self, call_id: str, place: str, budget: ev.ResponseBudget) -> None:
        budget.reserve(_UNNAMED_CALL + ev.text_size(call_id))
        self.id = call_id
        self.name = ""
        self.key = -1  # until it has begun
        self.held = ev.TextBuffer(budget)
        self.given = ev.TextBuffer(budget)  # the arguments that were told
        self.rest: JsonObject = {}
        self.place = place

    def repeats(self, call_id: str, words: str) -> bool:
        """Whether a piece with this id tells the whole call once more."""
        return (
            bool(call_id and words)
            and call_id == self.id
            and self.given.text() == words
            and jsonio.decode_object(words) is not None
        )


class CallReader:
    def __init__(self, choice: int, keys: ev.BlockKeys, before: Callable[[list[ev.Event]], None]) -> None:
        self._choice = choice
        self._keys = keys
        self._before = before  # called when a call begins
        self._by_index: dict[int, _OpenCall] = {}
        self._all: list[_OpenCall] = []
        self._older: _OpenCall | None = None

    @property
    def is_open(self) -> bool:
        return bool(self._all)

    def feed(self, entry: CallPart, position: int, events: list[ev.Event]) -> None:
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

    def older(self, part: FunctionPart, events: list[ev.Event]) -> None:
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
        return call_lane(index, call.given.add)

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
        self, call: _OpenCall, name: str, words: str, form: str, rest: JsonObject | None, events: list[ev.Event]
    ) -> None:
        if call.key >= 0:
            if words:
                call.given.add(words)
                events.append(ev.ArgumentsDelta(call.key, words))
            if rest:
                events.append(ev.OpaqueEvent(FAMILY, "call", {"key": call.key, "fields": rest}))
            return
        if rest:
            self._keys.budget.reserve(ev.json_size(rest))
            call.rest |= rest
        if words:
            call.held.add(words)
        if not name:
            if len(call.held) > _MOST_HELD:
                raise MissingField("arguments came, and no name", at=call.place)
            return
        self._before(events)
        block = ToolCall(
            call.id, name, form="text" if form == "text" else "json", extra=EXTRAS.extra_of(to_extra_names(call.rest))
        )
        call.name, call.key = name, self._keys.fresh(block)
        events.append(ev.BlockStarted(call.key, block, self._choice))
        if held := call.held.take():
            call.given.add(held)
            events.append(ev.ArgumentsDelta(call.key, held))

    def close(self, events: list[ev.Event]) -> None:
        for call in self._all:
            if call.key >= 0:
                events.append(ev.BlockEnded(call.key))
                call.given.take()
            elif call.id or call.held:
                raise MissingField("a call has no name", at=call.place)
        self._all.clear()
        self._by_index.clear()


def _visible(text: str | None) -> str:
    """Return an id or a name; a blank one counts as missing (docs/decisions/content.md#d5)."""
    return "" if text is None or is_blank(text) else text


def _begins_another(call: _OpenCall, call_id: str, name: str, words: str, *, indexed: bool) -> bool:
    if call_id and call.id and call_id != call.id:
        return bool(name) or not indexed
    if not name or not call.name:
        return False
    whole = bool(words) and jsonio.decode_object(call.given.text()) is not None
    return name != call.name or (whole and not call.repeats(call_id, words))
