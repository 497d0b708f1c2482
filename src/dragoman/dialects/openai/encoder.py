"""Encode response streams of Chat Completions: events to chunks that both official SDKs accept. Pure.

Theory of operation. The client libraries need the role once per choice, dense call indices, the id, type and name of a
call once, one finish chunk, the usage chunk last and only on request, then `[DONE]`; after an error, nothing.

A chunk is a head that is written when its block starts, the fragment, and a tail. Chat has no blocks, so most starts
and ends produce no chunk. A client cannot separate two open texts of one choice, and a signature must follow its
reasoning directly. A block that starts while text or reasoning is open therefore waits until that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from dragoman.dialects.base import Encoder, Environment
from dragoman.dialects.kit.openai_errors import render_fault
from dragoman.dialects.openai.blocks import (
    EXTRAS,
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
from dragoman.wire.jsonio import JsonObject, encode, quote

_DONE = Payload(b"", b"[DONE]")
_PING = Payload(b"", b"")  # the binding writes it as a comment, because an empty data line breaks clients


class _OpenReasoning(Struct):
    """An open reasoning block. Its whole text is sent again together with its signature."""

    choice: int
    block: Reasoning
    buffer: ev.TextBuffer
    signature: Signature | None = None
    sent: bool = False  # in the upstream's own frame


class _Waiting(Struct):
    """A block that waits for the end of another one, with its events so far."""

    started: ev.BlockStarted
    later: list[ev.Event]


class OpenaiEncoder(Encoder):
    """Encodes the events of one response. `request` is the client's conversation: it decides about usage and form."""

    def __init__(
        self,
        request: Conversation,
        environment: Environment,
        settings: OpenaiSettings,
        budget: ev.ResponseBudget | None = None,
    ) -> None:
        self._budget = budget or ev.ResponseBudget()
        self._model = request.model
        self._environment = environment
        self._settings = settings
        options = EXTRAS.own_fields(request.extra).get("stream_options")
        includes_usage = isinstance(options, dict) and options.get("include_usage") is True
        self._wants_usage = includes_usage or not request.model  # without a model the request is unknown
        self._usage: Usage | None = None
        self._usage_sent = False  # in the last frame that was sent
        self._head = b""
        self._tail = b',"usage":null}' if self._wants_usage else b"}"
        self._unfinished_tail = b',"logprobs":null,"finish_reason":null}]' + self._tail
        self._roles_sent: set[int] = set()  # choices whose role was sent
        self._affixes: dict[int, tuple[bytes, bytes]] = {}  # head and tail of a block's chunks
        self._open_prose: dict[int, ev.BlockStarted] = {}  # the open text or reasoning of each choice
        self._waiting: dict[int, _Waiting] = {}
        self._reasoning: dict[int, _OpenReasoning] = {}
        self._detail_counts: dict[int, int] = {}
        # Open calls without arguments. They end with "{}", because clients parse the arguments as JSON.
        self._without_arguments: set[int] = set()
        self._image_counts: dict[int, int] = {}
        self._call_counts: dict[int, int] = {}
        self._is_legacy = is_legacy_form(request.extra)
        self._legacy_calls: dict[int, int] = {}  # by choice: the key of the call that is its function_call
        self._call_indices: dict[int, tuple[int, int]] = {}  # choice and index of each call

    def ping(self) -> Payload | None:
        return _PING

    def is_unrequested(self, events: ev.Events) -> bool:
        return not self._wants_usage and bool(events) and all(type(event) is ev.UsageReported for event in events)

    def passes(self, events: ev.Events) -> bool:
        """See Encoder. Frames of calls never pass: upstreams number and repeat calls in ways that break clients."""
        if len(events) == 1 and type(events[0]) is ev.TextDelta and not self._waiting:
            self._usage_sent = False
            return True
        if not self._may_pass(events):
            return False
        list(self.feed(events))
        for event in events:
            if isinstance(event, ev.SignatureAdded | ev.BlockStarted) and event.key in self._reasoning:
                self._reasoning[event.key].sent = True  # this frame holds its details
        if events:
            self._usage_sent = any(type(event) is ev.UsageReported for event in events)
        return True

    def _may_pass(self, events: ev.Events) -> bool:
        kinds = {type(event) for event in events}
        if (
            ev.ArgumentsDelta in kinds
            or (ev.Failed in kinds and len(events) > 1)
            or not all(map(self._is_consistent, events))
        ):
            return False
        if ev.Finished in kinds:
            return len(events) == 1 and not self._usage_is_due
        if ev.UsageReported in kinds and not self._wants_usage:
            return not kinds <= {ev.UsageReported, ev.Started}
        return True

    def _is_consistent(self, event: ev.Event) -> bool:
        """Return whether the upstream's frame of an event is consistent with the frames sent before it."""
        match event:
            case ev.BlockStarted(block=ToolCall()):
                return False
            case ev.BlockEnded(key):
                return key not in self._without_arguments
            case ev.Stopped(stop, choice) if stop.reason is StopReason.TOOL:
                return is_legacy_form(stop.extra) == (choice in self._legacy_calls)
            case ev.OpaqueEvent(kind="role", data={"index": int(choice)}):
                return choice not in self._roles_sent
            case _:
                return True

    @property
    def _usage_is_due(self) -> bool:
        return self._wants_usage and self._usage is not None and not self._usage_sent

    def lane(self, kind: type[ev.Delta], key: int) -> LaneTarget | None:
        if key in self._waiting or key in self._without_arguments:
            return None
        listener = self._reasoning[key].buffer.add if kind is ev.ReasoningDelta else None
        return LaneTarget(b"", *self._affixes[key], listener)

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        payloads: list[Payload] = []
        for event in events:
            if self._waiting and getattr(event, "key", None) in self._waiting:
                self._budget.reserve(ev.event_size(event))
                self._waiting[event.key].later.append(event)  # type: ignore[union-attr]
            elif type(event) is ev.TextDelta or type(event) is ev.ArgumentsDelta or type(event) is ev.ReasoningDelta:
                head, tail = self._affixes[event.key]
                if type(event) is ev.ReasoningDelta:
                    self._reasoning[event.key].buffer.add(event.text)
                elif type(event) is ev.ArgumentsDelta and event.text:
                    self._without_arguments.discard(event.key)
                payloads.append(Payload(b"", head + quote(event.text) + tail))
            else:
                payloads.extend(self._encode_other(event))
        if payloads:
            self._usage_sent = False
        return payloads

    def _encode_other(self, event: ev.Event) -> Iterable[Payload]:
        match event:
            case ev.Started():
                self._usage = event.usage
                self._head = self._envelope(event)
                yield from self._role(0)
            case ev.BlockStarted(key) if not self._can_start(event):
                self._waiting[key] = _Waiting(event, [])
            case ev.BlockStarted():
                yield from self._role(event.choice)
                yield from self._block(event)
            case ev.SignatureAdded(key, signature):
                if key in self._reasoning:
                    self._reasoning[key].signature, self._reasoning[key].sent = signature, False
            case ev.BlockEnded(key):
                yield from self._ended(key)
                yield from self._start_waiting(key)
            case ev.CitationAdded(key, citation):
                if annotations := render_annotations([citation]):
                    yield self._chunk(self._choice_of_prose(key) or 0, {"annotations": annotations})
            case ev.UsageReported(usage):
                self._usage = usage
            case ev.Stopped(stop, choice):
                yield from self._role(choice)
                yield self._stop(stop, choice)
            case ev.OpaqueEvent():
                yield from self._opaque(event)
            case ev.Finished():
                if self._usage_is_due and self._usage is not None:
                    usage_json = encode(render_usage(self._usage))
                    yield Payload(b"", b'%b"choices":[],"usage":%b}' % (self._head, usage_json))
                yield _DONE
            case ev.Failed(fault):
                yield Payload(b"", render_fault(fault), True)
            case _:
                pass  # `feed` handles deltas

    def _choice_of_prose(self, key: int) -> int | None:
        """Return the choice whose open text or reasoning has this key."""
        return next((choice for choice, started in self._open_prose.items() if started.key == key), None)

    def _can_start(self, started: ev.BlockStarted) -> bool:
        """Return whether a block can start now. Calls wait only for reasoning, other blocks for text and reasoning."""
        open_block = self._open_prose.get(started.choice)
        return open_block is None or (
            isinstance(started.block, ToolCall) and not isinstance(open_block.block, Reasoning)
        )

    def _start_waiting(self, ended: int) -> Iterable[Payload]:
        """Start the blocks that waited for the end of this one, in order, until one of them stays open."""
        choice = self._choice_of_prose(ended)
        if choice is None:
            return
        del self._open_prose[choice]
        while ready := [w for w in self._waiting.values() if w.started.choice == choice and self._can_start(w.started)]:
            del self._waiting[ready[0].started.key]
            self._budget.release(sum(map(ev.event_size, ready[0].later)))
            yield from self.feed((ready[0].started, *ready[0].later))

    def _envelope(self, started: ev.Started) -> bytes:
        """Return the beginning of every chunk: id, time, model, and the other fields of the upstream's first chunk."""
        extra = EXTRAS.wire_fields(started.extra)
        created = extra.pop("created", None)
        fields: JsonObject = {
            "id": started.id or self._environment.new_id("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": self._environment.now() if created is None else created,
            "model": started.model or self._model,
            **extra,
        }
        return encode(fields)[:-1] + b","

    def _chunk_head(self, choice: int) -> bytes:
        return b'%b"choices":[{"index":%d,"delta":' % (self._head, choice)

    def _chunk(self, choice: int, delta: object) -> Payload:
        return Payload(b"", self._chunk_head(choice) + encode(delta) + self._unfinished_tail)

    def _role(self, choice: int) -> Iterable[Payload]:
        if choice not in self._roles_sent:
            self._roles_sent.add(choice)
            yield self._chunk(choice, {"role": "assistant", "content": ""})

    def _block(self, event: ev.BlockStarted) -> Iterable[Payload]:
        key, block, choice = event.key, event.block, event.choice
        begin = self._chunk_head(choice)
        if isinstance(block, Text | Reasoning):
            self._open_prose[choice] = event
        match block:
            case Text():
                name = b"refusal" if is_refusal(block) else b"content"
                self._set_affixes(key, b'%b{"%b":' % (begin, name), b"}" + self._unfinished_tail)
                if block.text:
                    yield from self.feed((ev.TextDelta(key, block.text),))
            case Reasoning():
                field = choose_reasoning_field(block, self._settings)
                self._set_affixes(key, b'%b{"%b":' % (begin, field.encode()), b"}" + self._unfinished_tail)
                self._reasoning[key] = _OpenReasoning(choice, block, ev.TextBuffer(self._budget))
                if block.text:
                    yield from self.feed((ev.ReasoningDelta(key, block.text),))
            case ToolCall():
                yield from self._call(key, block, choice)
            case Media():
                number = self._number(self._image_counts, choice)
                part = render_part(structs.replace(block, cache=None))
                yield self._chunk(choice, {"images": [{**part, "index": number}]} if isinstance(part, dict) else {})
            case Opaque():
                is_message_field = EXTRAS.own_fields(block.extra).get("~slot") == "message"
                yield self._chunk(choice, block.data if is_message_field else {"content": [block.data]})

    def _set_affixes(self, key: int, head: bytes, tail: bytes) -> None:
        """Set the head and tail of the block's further chunks. The head contains the whole envelope."""
        self._budget.reserve(len(head) + len(tail))
        self._affixes[key] = head, tail

    def _number(self, counts: dict[int, int], choice: int) -> int:
        number = counts.get(choice, 0)
        counts[choice] = number + 1
        return number

    def _call(self, key: int, call: ToolCall, choice: int) -> Iterable[Payload]:
        if self._is_legacy and choice not in self._legacy_calls and is_function_call(call):
            yield self._legacy_call(key, call, choice)
            return
        number = self._number(self._call_counts, choice)
        self._call_indices[key] = (choice, number)
        kind, arguments_field = ("custom", "input") if call.form == "text" else ("function", "arguments")
        extra = EXTRAS.wire_fields(call.extra)
        inside = extra.pop(kind, None)
        inner: JsonObject = {
            "name": call.name,
            arguments_field: call.arguments,
            **(inside if isinstance(inside, dict) else {}),
        }
        extra.pop("index", None)
        yield self._chunk(
            choice, {"tool_calls": [{"index": number, "id": call.id, "type": kind, kind: inner, **extra}]}
        )
        head = b'%b{"tool_calls":[{"index":%d,"%b":{"%b":' % (
            self._chunk_head(choice),
            number,
            kind.encode(),
            arguments_field.encode(),
        )
        self._set_affixes(key, head, b"}}]}" + self._unfinished_tail)
        if call.form == "json" and not call.arguments:
            self._without_arguments.add(key)

    def _legacy_call(self, key: int, call: ToolCall, choice: int) -> Payload:
        """Write the first call as a legacy `function_call`. A second call of the choice cannot have this form."""
        self._legacy_calls[choice] = key
        self._set_affixes(
            key, b'%b{"function_call":{"arguments":' % self._chunk_head(choice), b"}}" + self._unfinished_tail
        )
        if not call.arguments:
            self._without_arguments.add(key)
        return self._chunk(choice, {"function_call": render_legacy_call(call)})

    def _ended(self, key: int) -> Iterable[Payload]:
        affixes = self._affixes.pop(key, None)
        if affixes is not None:
            self._budget.release(len(affixes[0]) + len(affixes[1]))
        if key in self._without_arguments and affixes is not None:
            self._without_arguments.discard(key)
            yield Payload(b"", affixes[0] + b'"{}"' + affixes[1])
        reasoning = self._reasoning.pop(key, None)
        text = "" if reasoning is None else reasoning.buffer.take()
        if reasoning is None or (reasoning.signature is None and not EXTRAS.wire_fields(reasoning.block.extra)):
            return
        number = self._number(self._detail_counts, reasoning.choice)
        if reasoning.sent:
            return
        whole = structs.replace(reasoning.block, text=reasoning.block.text + text, signature=reasoning.signature)
        yield self._chunk(reasoning.choice, {"reasoning_details": [render_reasoning_detail(whole, number)]})

    def _stop(self, stop: Stop, choice: int) -> Payload:
        fields = encode({"logprobs": None, **render_stop(stop, is_legacy=choice in self._legacy_calls)})[1:-1]
        return Payload(b"", b"%b{},%b}]%b" % (self._chunk_head(choice), fields, self._tail))

    def _opaque(self, event: ev.OpaqueEvent) -> Iterable[Payload]:
        """Write an event that only Chat has in its original chunk."""
        match event.kind, event.data:
            case "role", {"index": int(choice)}:
                yield from self._role(choice)
            case "logprobs", {"index": int(choice), "logprobs": logprobs}:
                fields = encode({"logprobs": logprobs, "finish_reason": None})[1:-1]
                yield Payload(b"", b"%b{},%b}]%b" % (self._chunk_head(choice), fields, self._tail))
            case "delta", {"index": int(choice), "delta": dict(delta)}:
                yield from self._role(choice)
                yield self._chunk(choice, delta)
            case "call", {"key": int(key), "fields": dict(fields)} if key in self._call_indices:
                choice, number = self._call_indices[key]
                yield self._chunk(choice, {"tool_calls": [{"index": number, **fields}]})
            case "call", {"key": int(key), "fields": dict(fields)}:
                for choice in (choice for choice, call_key in self._legacy_calls.items() if call_key == key):
                    yield self._chunk(choice, {"function_call": fields})
            case _:
                pass  # the decoder emits no other kinds
