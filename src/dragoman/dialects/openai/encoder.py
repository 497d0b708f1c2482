"""Events to a stream of chunks that both official helpers read.

They want: the role once, dense call indices, id, type and name once, one finish chunk, the usage chunk last and only
where it was asked for, then `[DONE]`; after an error nothing. A chunk is a head made when its block began, the
fragment, and a tail; Chat has no blocks, so most beginnings and ends say nothing. Nor can two open texts of one choice
be told apart, or reasoning be sealed once something else was said: what begins meanwhile waits.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from dragoman.dialects.base import Encoder, Environment
from dragoman.dialects.kit.openai_errors import render_fault
from dragoman.dialects.openai.blocks import (
    EXTRAS,
    JsonObject,
    OpenaiSettings,
    is_legacy_form,
    is_refusal,
    render_annotations,
    render_part,
)
from dragoman.dialects.openai.messages import choose_reasoning_field, render_reasoning_detail
from dragoman.dialects.openai.reply import is_function_call, render_stop, render_usage
from dragoman.dialects.openai.tools import render_legacy_call
from dragoman.model import events as ev
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
from dragoman.model.filter import LaneTarget
from dragoman.wire.frame import Payload
from dragoman.wire.jsonio import encode, quote

_DONE = Payload(b"", b"[DONE]")
_PING = Payload(b"", b"")  # the binding writes it as a comment: an empty data line breaks clients


class _Thought(Struct):
    """Reasoning under way: its text is told again, whole, beside its seal."""

    choice: int
    block: Reasoning
    pieces: ev.TextBuffer
    signature: Signature | None = None
    told: bool = False  # by the upstream's own frame


class _Waiting(Struct):
    """A block whose turn has not come."""

    started: ev.BlockStarted
    later: list[ev.Event]


class OpenaiEncoder(Encoder):
    def __init__(
        self,
        asked: Conversation,
        environment: Environment,
        settings: OpenaiSettings,
        budget: ev.ResponseBudget | None = None,
    ) -> None:
        self._budget = budget or ev.ResponseBudget()
        self._model = asked.model
        self._world = environment
        self._settings = settings
        options = EXTRAS.own_fields(asked.extra).get("stream_options")
        asks = isinstance(options, dict) and options.get("include_usage") is True
        self._wants_usage = asks or not asked.model  # nobody told us the question: better tell it than lose it
        self._usage: Usage | None = None
        self._usage_told = False  # by the last frame that went out
        self._head = b""
        self._tail = b',"usage":null}' if self._wants_usage else b"}"
        self._goes_on = b',"logprobs":null,"finish_reason":null}]' + self._tail
        self._spoken: set[int] = set()  # choices whose role was told
        self._grows: dict[int, tuple[bytes, bytes]] = {}  # head and tail of a block's chunks
        self._speaking: dict[int, ev.BlockStarted] = {}  # the open text or reasoning of a choice
        self._waiting: dict[int, _Waiting] = {}
        self._thoughts: dict[int, _Thought] = {}
        self._details: dict[int, int] = {}
        self._bare: set[int] = set()  # open calls without arguments yet: clients parse them as JSON
        self._images: dict[int, int] = {}
        self._calls: dict[int, int] = {}
        self._older = is_legacy_form(asked.extra)
        self._older_calls: dict[int, int] = {}  # the call of a choice that was told as its function_call
        self._numbered: dict[int, tuple[int, int]] = {}  # choice and number of a call

    def ping(self) -> Payload | None:
        return _PING

    def is_unrequested(self, events: ev.Events) -> bool:
        return not self._wants_usage and bool(events) and all(type(event) is ev.UsageReported for event in events)

    def passes(self, events: ev.Events) -> bool:
        """Frames about calls are always written anew: upstreams number and repeat in ways that break clients."""
        if len(events) == 1 and type(events[0]) is ev.TextDelta and not self._waiting:
            self._usage_told = False
            return True
        if not self._may_pass(events):
            return False
        list(self.feed(events))
        for event in events:
            if isinstance(event, ev.SignatureAdded | ev.BlockStarted) and event.key in self._thoughts:
                self._thoughts[event.key].told = True  # its details went out with this frame
        if events:
            self._usage_told = any(type(event) is ev.UsageReported for event in events)
        return True

    def _may_pass(self, events: ev.Events) -> bool:
        kinds = {type(event) for event in events}
        if ev.ArgumentsDelta in kinds or (ev.Failed in kinds and len(events) > 1) or not all(map(self._agrees, events)):
            return False
        if ev.Finished in kinds:
            return len(events) == 1 and not self._owes_usage
        if ev.UsageReported in kinds and not self._wants_usage:
            return not kinds <= {ev.UsageReported, ev.Started}
        return True

    def _agrees(self, event: ev.Event) -> bool:
        """Whether the frame of an event fits what was sent before it."""
        match event:
            case ev.BlockStarted(block=ToolCall()):
                return False
            case ev.BlockEnded(key):
                return key not in self._bare
            case ev.Stopped(stop, choice) if stop.reason is StopReason.TOOL:
                return is_legacy_form(stop.extra) == (choice in self._older_calls)
            case ev.OpaqueEvent(kind="role", data={"index": int(choice)}):
                return choice not in self._spoken
            case _:
                return True

    @property
    def _owes_usage(self) -> bool:
        return self._wants_usage and self._usage is not None and not self._usage_told

    def lane(self, kind: type[ev.Delta], key: int) -> LaneTarget | None:
        if key in self._waiting or key in self._bare:
            return None
        listener = self._thoughts[key].pieces.add if kind is ev.ReasoningDelta else None
        return LaneTarget(b"", *self._grows[key], listener)

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        payloads: list[Payload] = []
        for event in events:
            if self._waiting and getattr(event, "key", None) in self._waiting:
                self._budget.reserve(ev.event_size(event))
                self._waiting[event.key].later.append(event)  # type: ignore[union-attr]
            elif type(event) is ev.TextDelta or type(event) is ev.ArgumentsDelta or type(event) is ev.ReasoningDelta:
                head, tail = self._grows[event.key]
                if type(event) is ev.ReasoningDelta:
                    self._thoughts[event.key].pieces.add(event.text)
                elif type(event) is ev.ArgumentsDelta and event.text:
                    self._bare.discard(event.key)
                payloads.append(Payload(b"", head + quote(event.text) + tail))
            else:
                payloads.extend(self._rare(event))
        if payloads:
            self._usage_told = False
        return payloads

    def _rare(self, event: ev.Event) -> Iterable[Payload]:
        match event:
            case ev.Started():
                self._usage = event.usage
                self._head = self._envelope(event)
                yield from self._role(0)
            case ev.BlockStarted(key) if not self._may_speak(event):
                self._waiting[key] = _Waiting(event, [])
            case ev.BlockStarted():
                yield from self._role(event.choice)
                yield from self._block(event)
            case ev.SignatureAdded(key, signature):
                if key in self._thoughts:
                    self._thoughts[key].signature, self._thoughts[key].told = signature, False
            case ev.BlockEnded(key):
                yield from self._ended(key)
                yield from self._next(key)
            case ev.CitationAdded(key, citation):
                if annotations := render_annotations([citation]):
                    yield self._chunk(self._speaking_choice(key) or 0, {"annotations": annotations})
            case ev.UsageReported(usage):
                self._usage = usage
            case ev.Stopped(stop, choice):
                yield from self._role(choice)
                yield self._stop(stop, choice)
            case ev.OpaqueEvent():
                yield from self._opaque(event)
            case ev.Finished():
                if self._owes_usage and self._usage is not None:
                    told = encode(render_usage(self._usage))
                    yield Payload(b"", b'%b"choices":[],"usage":%b}' % (self._head, told))
                yield _DONE
            case ev.Failed(fault):
                yield Payload(b"", render_fault(fault), True)
            case _:
                pass  # deltas do not come here

    def _speaking_choice(self, key: int) -> int | None:
        """The choice whose open text or reasoning this is."""
        return next((choice for choice, started in self._speaking.items() if started.key == key), None)

    def _may_speak(self, started: ev.BlockStarted) -> bool:
        """Whether its turn has come: calls wait for reasoning only, the others for any text or reasoning."""
        speaking = self._speaking.get(started.choice)
        return speaking is None or (isinstance(started.block, ToolCall) and not isinstance(speaking.block, Reasoning))

    def _next(self, ended: int) -> Iterable[Payload]:
        """Let those speak that waited for this end, in their order, as long as none of them stays open."""
        choice = self._speaking_choice(ended)
        if choice is None:
            return
        del self._speaking[choice]
        while ready := [w for w in self._waiting.values() if w.started.choice == choice and self._may_speak(w.started)]:
            del self._waiting[ready[0].started.key]
            self._budget.release(sum(map(ev.event_size, ready[0].later)))
            yield from self.feed((ready[0].started, *ready[0].later))

    def _envelope(self, started: ev.Started) -> bytes:
        """What every chunk begins with: the same id, time and model, and what else the first one said."""
        extra = EXTRAS.wire_fields(started.extra)
        created = extra.pop("created", None)
        fields: JsonObject = {
            "id": started.id or self._world.new_id("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": self._world.now() if created is None else created,
            "model": started.model or self._model,
            **extra,
        }
        return encode(fields)[:-1] + b","

    def _begin(self, choice: int) -> bytes:
        return b'%b"choices":[{"index":%d,"delta":' % (self._head, choice)

    def _chunk(self, choice: int, delta: object) -> Payload:
        return Payload(b"", self._begin(choice) + encode(delta) + self._goes_on)

    def _role(self, choice: int) -> Iterable[Payload]:
        if choice not in self._spoken:
            self._spoken.add(choice)
            yield self._chunk(choice, {"role": "assistant", "content": ""})

    def _block(self, event: ev.BlockStarted) -> Iterable[Payload]:
        key, block, choice = event.key, event.block, event.choice
        begin = self._begin(choice)
        if isinstance(block, Text | Reasoning):
            self._speaking[choice] = event
        match block:
            case Text():
                name = b"refusal" if is_refusal(block) else b"content"
                self._grow(key, b'%b{"%b":' % (begin, name), b"}" + self._goes_on)
                if block.text:
                    yield from self.feed((ev.TextDelta(key, block.text),))
            case Reasoning():
                field = choose_reasoning_field(block, self._settings)
                self._grow(key, b'%b{"%b":' % (begin, field.encode()), b"}" + self._goes_on)
                self._thoughts[key] = _Thought(choice, block, ev.TextBuffer(self._budget))
                if block.text:
                    yield from self.feed((ev.ReasoningDelta(key, block.text),))
            case ToolCall():
                yield from self._call(key, block, choice)
            case Media():
                number = self._number(self._images, choice)
                part = render_part(structs.replace(block, cache=None))
                yield self._chunk(choice, {"images": [{**part, "index": number}]} if isinstance(part, dict) else {})
            case Opaque():
                slotted = EXTRAS.own_fields(block.extra).get("~slot") == "message"
                yield self._chunk(choice, block.data if slotted else {"content": [block.data]})

    def _grow(self, key: int, head: bytes, tail: bytes) -> None:
        """From now on the block grows by chunks that begin and end so. The head repeats all that the first one said."""
        self._budget.reserve(len(head) + len(tail))
        self._grows[key] = head, tail

    def _number(self, counts: dict[int, int], choice: int) -> int:
        number = counts.get(choice, 0)
        counts[choice] = number + 1
        return number

    def _call(self, key: int, call: ToolCall, choice: int) -> Iterable[Payload]:
        if self._older and choice not in self._older_calls and is_function_call(call):
            yield self._older_call(key, call, choice)
            return
        number = self._number(self._calls, choice)
        self._numbered[key] = (choice, number)
        kind, words = ("custom", "input") if call.form == "text" else ("function", "arguments")
        extra = EXTRAS.wire_fields(call.extra)
        inside = extra.pop(kind, None)
        inner: JsonObject = {"name": call.name, words: call.arguments, **(inside if isinstance(inside, dict) else {})}
        extra.pop("index", None)
        yield self._chunk(
            choice, {"tool_calls": [{"index": number, "id": call.id, "type": kind, kind: inner, **extra}]}
        )
        head = b'%b{"tool_calls":[{"index":%d,"%b":{"%b":' % (
            self._begin(choice),
            number,
            kind.encode(),
            words.encode(),
        )
        self._grow(key, head, b"}}]}" + self._goes_on)
        if call.form == "json" and not call.arguments:
            self._bare.add(key)

    def _older_call(self, key: int, call: ToolCall, choice: int) -> Payload:
        """The first call as a client that offered `functions` reads it; it has no place for a second."""
        self._older_calls[choice] = key
        self._grow(key, b'%b{"function_call":{"arguments":' % self._begin(choice), b"}}" + self._goes_on)
        if not call.arguments:
            self._bare.add(key)
        return self._chunk(choice, {"function_call": render_legacy_call(call)})

    def _ended(self, key: int) -> Iterable[Payload]:
        grows = self._grows.pop(key, None)
        if grows is not None:
            self._budget.release(len(grows[0]) + len(grows[1]))
        if key in self._bare and grows is not None:
            self._bare.discard(key)
            yield Payload(b"", grows[0] + b'"{}"' + grows[1])
        thought = self._thoughts.pop(key, None)
        text = "" if thought is None else thought.pieces.take()
        if thought is None or (thought.signature is None and not EXTRAS.wire_fields(thought.block.extra)):
            return
        number = self._number(self._details, thought.choice)
        if thought.told:
            return
        whole = structs.replace(thought.block, text=thought.block.text + text, signature=thought.signature)
        yield self._chunk(thought.choice, {"reasoning_details": [render_reasoning_detail(whole, number)]})

    def _stop(self, stop: Stop, choice: int) -> Payload:
        fields = encode({"logprobs": None, **render_stop(stop, is_legacy=choice in self._older_calls)})[1:-1]
        return Payload(b"", b"%b{},%b}]%b" % (self._begin(choice), fields, self._tail))

    def _opaque(self, event: ev.OpaqueEvent) -> Iterable[Payload]:
        """What only Chat knows, back in its chunk."""
        match event.kind, event.data:
            case "role", {"index": int(choice)}:
                yield from self._role(choice)
            case "logprobs", {"index": int(choice), "logprobs": logprobs}:
                fields = encode({"logprobs": logprobs, "finish_reason": None})[1:-1]
                yield Payload(b"", b"%b{},%b}]%b" % (self._begin(choice), fields, self._tail))
            case "delta", {"index": int(choice), "delta": dict(delta)}:
                yield from self._role(choice)
                yield self._chunk(choice, delta)
            case "call", {"key": int(key), "fields": dict(fields)} if key in self._numbered:
                choice, number = self._numbered[key]
                yield self._chunk(choice, {"tool_calls": [{"index": number, **fields}]})
            case "call", {"key": int(key), "fields": dict(fields)}:
                for choice in (choice for choice, told in self._older_calls.items() if told == key):
                    yield self._chunk(choice, {"function_call": fields})
            case _:
                pass  # our decoder makes no others
