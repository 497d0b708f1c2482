"""Encode Kiro's response streams, for clients of this dialect. Pure.

Theory of operation. Frames have no numbers. If the upstream's dialect is Kiro, too, its frames are therefore sent
unchanged, except those of a call that a filter has renamed: the encoder writes all frames of such a call itself. At the
end the encoder sends the stop reason and the token counts, unless upstream frames that contain them were sent already.
Texts and thoughts have no ids, and some clients read the frames of a call until its `stop`. So blocks that are open at
the same time are sent one after the other: the first is sent as it arrives, the others are buffered until it ends.
There is one encoder per response.
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
_STOP_REASON_NAMES = {why: name for name, why in reversed(STOP_REASONS.items())} | {StopReason.PAUSE: "END_TURN"}

_PAYLOAD_OVERHEAD = 128  # bytes that a queued payload takes in addition to its data

_Growth: TypeAlias = ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta | ev.SignatureAdded | ev.CitationAdded


class KiroEncoder(Encoder):
    """Encode events as payloads.

    The events must be in a valid order. Raises LocalMisuse for content that filters should have removed.
    """

    def __init__(
        self,
        request: Conversation,
        environment: Environment,
        settings: KiroSettings,
        budget: ev.ResponseBudget | None = None,
    ) -> None:
        self._budget = budget or ev.ResponseBudget()
        self._model, self._extra = request.model, request.extra
        self._environment = environment
        self._settings = settings
        self._content = b'{"content":%b}'
        self._calls: dict[int, bytes] = {}  # open calls: the bytes that each of their frames starts with
        self._encoded_calls: set[int] = set()  # calls whose first frame the encoder wrote
        self._passes_frames = False  # frames of the upstream have passed unchanged
        self._queue: dict[int, list[Payload]] = {}  # payloads that wait, by block, in the order of the blocks
        self._ended: set[int] = set()  # blocks that ended while their payloads wait
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
        encoded = self._encoded_calls
        if encoded and any(getattr(event, "key", None) in encoded for event in events):
            return False
        for event in events:
            if isinstance(event, ev.BlockStarted) and isinstance(event.block, ToolCall):
                self._calls[event.key] = _head(event.block)
        self._passes_frames = True
        return True

    def ping(self) -> Payload | None:
        return None

    # --- blocks

    def _is_live(self, key: int) -> bool:
        return self._passes_frames or next(iter(self._queue), key) == key

    def _in_turn(self, key: int, payloads: Iterable[Payload], ended: bool) -> Iterable[Payload]:
        """Yield the payloads of the first open block, and at its end the queued ones; queue those of other blocks."""
        live = self._is_live(key)
        waiting = self._queue.setdefault(key, [])
        if not live:
            for payload in payloads:
                self._budget.reserve(_PAYLOAD_OVERHEAD + len(payload.data))
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
            self._budget.release(sum([_PAYLOAD_OVERHEAD + len(payload.data) for payload in waiting]))
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
                if head is not None and complete:  # A call that was cut gets no `stop`.
                    yield Payload(_USE, b'%b,"stop":true}' % head)
            case ev.SignatureAdded(_, signature):
                if not self._passes_frames:  # otherwise the frames of the signature have passed
                    if signature.kind == "encrypted":
                        raise LocalMisuse(f"a Kiro stream cannot contain encrypted reasoning of {signature.family}")
                    name = "redactedContent" if signature.kind == "redacted" else "signature"
                    yield Payload(_THOUGHT, jsonio.encode({name: signature.data}))
            case ev.CitationAdded():
                raise LocalMisuse("a Kiro stream cannot contain citations")

    def _text(self, text: str) -> Payload:
        return Payload(_CONTENT, self._content % jsonio.quote(text))

    def _block_started(self, event: ev.BlockStarted) -> Iterable[Payload]:
        _check_choice(event.choice)
        match event.block:
            case Text(text):
                yield from self._block_payloads(ev.TextDelta(event.key, text)) if text else ()
            case Reasoning(text):
                yield from self._block_payloads(ev.ReasoningDelta(event.key, text)) if text else ()
            case ToolCall(arguments=arguments) as call:
                self._calls[event.key] = _head(call)
                self._encoded_calls.add(event.key)
                yield Payload(_USE, self._calls[event.key] + b"}")
                yield from self._block_payloads(ev.ArgumentsDelta(event.key, arguments)) if arguments else ()
            case Media() | Opaque() as block:
                raise LocalMisuse(f"a Kiro reply cannot contain {block.kind or 'a block of this type'}")

    # --- the response

    def _payloads(self, event: ev.Event) -> Iterable[Payload]:
        match event:
            case ev.Started():
                yield self._started(event)
            case ev.UsageReported(usage):
                self._usage = usage
            case ev.Stopped(stop, choice):
                _check_choice(choice)
                self._stop = stop
            case ev.Finished():
                yield from self._finished()
            case ev.Failed(fault):
                yield from (payload for waiting in self._queue.values() for payload in waiting)
                yield Payload(type_of(fault).encode(), render_fault(fault), error=True)
            case ev.OpaqueEvent():
                yield self._opaque(event)
            case _:
                raise LocalMisuse(f"a Kiro stream cannot contain the event {type(event).__name__}")

    def _started(self, event: ev.Started) -> Payload:
        model = event.model or self._model
        if model:
            escaped = jsonio.quote(model).replace(b"%", b"%%")
            self._content = b'{"content":%%b,"modelId":%b}' % escaped
        conversation = own_fields(self._extra).get("conversationId") or self._environment.new_id("")
        utterance = event.id or self._environment.new_id("msg_")
        body = jsonio.encode({"conversationId": conversation, "utteranceId": utterance})
        return Payload(b"messageMetadataEvent", body)

    def _finished(self) -> Iterable[Payload]:
        if self._passes_frames:
            return  # the upstream's frames with stop reason and counts have passed
        stop = self._stop or Stop(StopReason.END)
        body: dict[str, Json] = {"stopReason": _STOP_REASON_NAMES[stop.reason], **own_fields(stop.extra)}
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
        percentage = round(100 * total / self._settings.window(self._model), 4)
        yield Payload(b"contextUsageEvent", jsonio.encode({"contextUsagePercentage": percentage}))

    def _opaque(self, event: ev.OpaqueEvent) -> Payload:
        if event.family != FAMILY:
            raise LocalMisuse(f"a Kiro stream cannot contain an event of {event.family}")
        return Payload(event.kind.encode("utf-8", "replace"), jsonio.encode(event.data))


def _head(call: ToolCall) -> bytes:
    return b'{"toolUseId":%b,"name":%b' % (jsonio.quote(call.id), jsonio.quote(call.name))


def _check_choice(choice: int) -> None:
    if choice:
        raise LocalMisuse("a Kiro reply can have only one choice")


# --- whole replies: this dialect has only streams, so a whole reply is a whole stream


def parse_reply(body: bytes, request: Conversation, settings: KiroSettings) -> Reply:
    """Parse a whole stream as a reply; a call that was cut is left out.

    Raises UpstreamViolation, or UpstreamFault if the stream contains an error.
    """
    frames, decoder = EventStreamDecoder(), KiroDecoder(request, SYSTEM_ENVIRONMENT, settings)
    events: list[ev.Event] = []
    for frame in frames.feed(body):
        events.extend(decoder.feed(frame) or ())
        if events and (events[-1] is ev.FINISHED or isinstance(events[-1], ev.Failed)):
            return assemble_reply(events)
    frames.close()
    return assemble_reply((*events, *decoder.close(None)))


def render_reply(reply: Reply, request: Conversation, environment: Environment, settings: KiroSettings) -> bytes:
    """Return a reply as the bytes of a whole stream."""
    encoder = KiroEncoder(request, environment, settings)
    return b"".join(
        [encode_event(payload.kind, payload.data, error=payload.error) for payload in encoder.feed(reply_events(reply))]
    )
