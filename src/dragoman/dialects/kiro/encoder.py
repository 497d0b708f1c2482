"""Streams, canonical to wire: one encoder per answer, for clients that speak this dialect.

Nothing is numbered, so at home every frame may go as it came, except those of a call that was begun anew under another
name. What the dialect says at the end (why it stopped, the counts) goes out at the end, unless its frames went by.
Texts and thoughts have no names, and some clients read a call's frames until its `stop`: so blocks that are open side
by side go out one after the other. The first is live, the others wait for its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from dragoman.dialects.base import SYSTEM_ENVIRONMENT, Encoder, Environment
from dragoman.dialects.kiro.faults import render_fault, type_of
from dragoman.dialects.kiro.request import FAMILY, KiroSettings, own_fields
from dragoman.dialects.kiro.stream import STOP_REASONS, KiroDecoder
from dragoman.errors import LocalMisuse
from dragoman.model import events as ev
from dragoman.model.assemble import assemble_reply, reply_events
from dragoman.model.blocks import Media, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import Conversation, Reply, Stop, StopReason, Usage
from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder, encode_event
from dragoman.wire.frame import Payload
from dragoman.wire.jsonio import Json

_CONTENT, _THOUGHT, _USE = b"assistantResponseEvent", b"reasoningContentEvent", b"toolUseEvent"
_SAID = {why: reason for reason, why in reversed(STOP_REASONS.items())} | {StopReason.PAUSE: "END_TURN"}

_PAYLOAD = 128  # bytes of a payload that waits, beside its data

_Growth: TypeAlias = ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta | ev.SignatureAdded | ev.CitationAdded


class KiroEncoder(Encoder):
    """Events to payloads. Relies on the grammar; raises LocalMisuse for content that filters should have removed."""

    def __init__(
        self,
        asked: Conversation,
        environment: Environment,
        counting: KiroSettings,
        budget: ev.ResponseBudget | None = None,
    ) -> None:
        self._budget = budget or ev.ResponseBudget()
        self._model, self._extra = asked.model, asked.extra
        self._world = environment
        self._counting = counting
        self._content = b'{"content":%b}'
        self._calls: dict[int, bytes] = {}  # open calls: the head that each of their frames has
        self._renamed: set[int] = set()  # those of them that did not begin with the frame that came
        self._forwards = False  # frames go by as they came
        self._queue: dict[int, list[Payload]] = {}  # what waits, by block, in the order they began
        self._ended: set[int] = set()  # blocks that ended while they waited
        self._usage: Usage | None = None
        self._stop: Stop | None = None

    def feed(self, events: ev.Events) -> Iterable[Payload]:
        out: list[Payload] = []
        for event in events:
            if isinstance(event, ev.TextDelta) and self._is_live(event.key):
                out.append(self._text(event.text))
            elif isinstance(event, ev.BlockStarted | ev.BlockEnded | _Growth):
                out.extend(self._in_turn(event.key, self._block_payloads(event), isinstance(event, ev.BlockEnded)))
            else:
                out.extend(self._payloads(event))
        return out

    def passes(self, events: ev.Events) -> bool:
        if self._renamed and any(getattr(event, "key", None) in self._renamed for event in events):
            return False
        for event in events:
            if isinstance(event, ev.BlockStarted) and isinstance(event.block, ToolCall):
                self._calls[event.key] = _head(event.block)
        self._forwards = True
        return True

    def ping(self) -> Payload | None:
        return None

    # --- blocks

    def _is_live(self, key: int) -> bool:
        return self._forwards or next(iter(self._queue), key) == key

    def _in_turn(self, key: int, payloads: Iterable[Payload], ended: bool) -> Iterable[Payload]:
        """The payloads of the first open block, and what its end lets go; those of others wait."""
        live = self._is_live(key)
        waiting = self._queue.setdefault(key, [])
        if not live:
            for payload in payloads:
                self._budget.reserve(_PAYLOAD + len(payload.data))
                waiting.append(payload)
            self._ended.update((key,) if ended else ())
            return
        yield from payloads
        if ended:
            del self._queue[key]
            yield from self._next()

    def _next(self) -> Iterable[Payload]:
        for key in list(self._queue):
            waiting, self._queue[key] = self._queue[key], []
            self._budget.release(sum([_PAYLOAD + len(payload.data) for payload in waiting]))
            yield from waiting
            if key not in self._ended:
                return
            del self._queue[key]

    def _block_payloads(self, event: ev.BlockStarted | ev.BlockEnded | _Growth) -> Iterable[Payload]:
        match event:
            case ev.TextDelta(_, text):
                yield self._text(text)
            case ev.ReasoningDelta(_, text):
                yield Payload(_THOUGHT, b'{"text":%b}' % jsonio.quote(text))
            case ev.ArgumentsDelta(key, text):
                yield Payload(_USE, b'%b,"input":%b}' % (self._calls[key], jsonio.quote(text)))
            case ev.BlockStarted():
                yield from self._block_started(event)
            case ev.BlockEnded(key, complete):
                head = self._calls.pop(key, None)
                if head is not None and complete:  # a call that was cut has no end here either
                    yield Payload(_USE, b'%b,"stop":true}' % head)
            case ev.SignatureAdded(_, signature):
                if not self._forwards:  # else its parts have gone by
                    if signature.kind == "encrypted":
                        raise LocalMisuse(f"encrypted reasoning of {signature.family} has no place here")
                    name = "redactedContent" if signature.kind == "redacted" else "signature"
                    yield Payload(_THOUGHT, jsonio.encode({name: signature.data}))
            case ev.CitationAdded():
                raise LocalMisuse("there are no citations here")

    def _text(self, text: str) -> Payload:
        return Payload(_CONTENT, self._content % jsonio.quote(text))

    def _block_started(self, event: ev.BlockStarted) -> Iterable[Payload]:
        _only_choice(event.choice)
        match event.block:
            case Text(text):
                yield from self._block_payloads(ev.TextDelta(event.key, text)) if text else ()
            case Reasoning(text):
                yield from self._block_payloads(ev.ReasoningDelta(event.key, text)) if text else ()
            case ToolCall(arguments=arguments) as call:
                self._calls[event.key] = _head(call)
                self._renamed.add(event.key)
                yield Payload(_USE, self._calls[event.key] + b"}")
                yield from self._block_payloads(ev.ArgumentsDelta(event.key, arguments)) if arguments else ()
            case Media() | Opaque() as block:
                raise LocalMisuse(f"an answer cannot hold {block.kind or 'such a block'} here")

    # --- the answer

    def _payloads(self, event: ev.Event) -> Iterable[Payload]:
        match event:
            case ev.Started():
                yield self._started(event)
            case ev.UsageReported(usage):
                self._usage = usage
            case ev.Stopped(stop, choice):
                _only_choice(choice)
                self._stop = stop
            case ev.Finished():
                yield from self._finished()
            case ev.Failed(fault):
                yield from (payload for waiting in self._queue.values() for payload in waiting)
                yield Payload(type_of(fault).encode(), render_fault(fault), error=True)
            case ev.OpaqueEvent():
                yield self._opaque(event)
            case _:
                raise LocalMisuse(f"{type(event).__name__} has no place here")

    def _started(self, event: ev.Started) -> Payload:
        model = event.model or self._model
        if model:
            escaped = jsonio.quote(model).replace(b"%", b"%%")
            self._content = b'{"content":%%b,"modelId":%b}' % escaped
        named = own_fields(self._extra).get("conversationId") or self._world.new_id("")
        utterance = event.id or self._world.new_id("msg_")
        body = jsonio.encode({"conversationId": named, "utteranceId": utterance})
        return Payload(b"messageMetadataEvent", body)

    def _finished(self) -> Iterable[Payload]:
        if self._forwards:
            return  # what the upstream said of its end has gone by
        stop = self._stop or Stop(StopReason.END)
        body: dict[str, Json] = {"stopReason": _SAID[stop.reason], **own_fields(stop.extra)}
        usage = self._usage
        if usage is None:
            yield Payload(b"metadataEvent", jsonio.encode(body))
            return
        total = usage.input + usage.cache_read + usage.cache_write + usage.output
        body["tokenUsage"] = {
            "uncachedInputTokens": usage.input,
            "outputTokens": usage.output,
            "totalTokens": total,
            "cacheReadInputTokens": usage.cache_read,
            "cacheWriteInputTokens": usage.cache_write,
        }
        yield Payload(b"metadataEvent", jsonio.encode(body))
        percentage = round(100 * total / self._counting.window(self._model), 4)
        yield Payload(b"contextUsageEvent", jsonio.encode({"contextUsagePercentage": percentage}))

    def _opaque(self, event: ev.OpaqueEvent) -> Payload:
        if event.family != FAMILY:
            raise LocalMisuse(f"an event of {event.family} has no place here")
        return Payload(event.kind.encode("utf-8", "replace"), jsonio.encode(event.data))


def _head(call: ToolCall) -> bytes:
    return b'{"toolUseId":%b,"name":%b' % (jsonio.quote(call.id), jsonio.quote(call.name))


def _only_choice(choice: int) -> None:
    if choice:
        raise LocalMisuse("there is only one choice here")


# --- Whole replies: this dialect has none, so they are whole streams, read and written as such


def parse_reply(body: bytes, asked: Conversation, counting: KiroSettings) -> Reply:
    """Read a whole stream. Raises UpstreamViolation, or UpstreamFault if it failed. A call that was cut is left out."""
    frames, decoder = EventStreamDecoder(), KiroDecoder(asked, SYSTEM_ENVIRONMENT, counting)
    events: list[ev.Event] = []
    for frame in frames.feed(body):
        events.extend(decoder.feed(frame) or ())
        if events and (events[-1] is ev.FINISHED or isinstance(events[-1], ev.Failed)):
            return assemble_reply(events)
    frames.close()
    return assemble_reply((*events, *decoder.close(None)))


def render_reply(reply: Reply, asked: Conversation, environment: Environment, counting: KiroSettings) -> bytes:
    """Write a reply as the stream of it."""
    encoder = KiroEncoder(asked, environment, counting)
    return b"".join(
        [encode_event(payload.kind, payload.data, error=payload.error) for payload in encoder.feed(reply_events(reply))]
    )
