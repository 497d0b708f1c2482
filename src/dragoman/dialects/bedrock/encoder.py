"""Encode response streams of Bedrock ConverseStream, as the service sends and the SDKs accept them. Pure.

Each response has its own encoder. Blocks are numbered from 0 in the order of their starts. Like the service, it writes
a contentBlockStart only for tools. It buffers two things: a signature until its block ends, and metadata until the
stream ends, because the service sends them there.
"""

from __future__ import annotations

from typing import ClassVar

from dragoman.dialects.base import Environment
from dragoman.dialects.bedrock.blocks import render_citation, render_redacted
from dragoman.dialects.bedrock.nodes import EXTRAS, FAMILY
from dragoman.dialects.bedrock.reply import exception_payload, render_stop, render_usage
from dragoman.dialects.kit.streams import BLOCK_EVENTS, ONE_CHOICE, EventWriters, NumberedEncoder
from dragoman.errors import LocalMisuse
from dragoman.model import events as ev
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Stop, StopReason, Usage
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload
from dragoman.wire.jsonio import Json

_DELTA = b"contentBlockDelta"
_TEXT = b'{"contentBlockIndex":%d,"delta":{"text":%b}}'
_INPUT = b'{"contentBlockIndex":%d,"delta":{"toolUse":{"input":%b}}}'
_THOUGHT = b'{"contentBlockIndex":%d,"delta":{"reasoningContent":{"text":%b}}}'
_SIGNATURE = b'{"contentBlockIndex":%d,"delta":{"reasoningContent":{"signature":%b}}}'
_REDACTED = b'{"contentBlockIndex":%d,"delta":{"reasoningContent":{"redactedContent":%b}}}'
_CITATION = b'{"contentBlockIndex":%d,"delta":{"citation":%b}}'
_START = b'{"contentBlockIndex":%d,"start":%b}'
_END = b'{"contentBlockIndex":%d}'
_BY_KIND: dict[type[ev.Delta], bytes] = {
    ev.TextDelta: _TEXT,
    ev.ReasoningDelta: _THOUGHT,
    ev.ArgumentsDelta: _INPUT,
}
_DELTA_FIELDS = {"toolUse": "input", "toolResult": "content", "image": "source"}


class BedrockEncoder(NumberedEncoder):
    """Writes events as payloads. Every block gets at least one delta, if only an empty one."""

    family, delta, number = FAMILY, "contentBlockDelta", "contentBlockIndex"
    passing = NumberedEncoder.passing | {
        (ev.BlockStarted, ev.CitationAdded),
        (ev.Stopped,),
        (ev.UsageReported, ev.Finished),
    }

    def __init__(
        self, request: Conversation, environment: Environment, budget: ev.ResponseBudget | None = None
    ) -> None:
        super().__init__()
        self._budget = budget or ev.ResponseBudget()
        self._blocks: dict[int, Text | Reasoning | ToolCall] = {}  # open blocks
        self._without_delta: set[int] = set()  # open blocks that have no delta yet
        self._signatures: dict[int, Signature] = {}  # of open blocks; written at the block's end
        self._stopped = False

    def passes(self, events: ev.Events) -> bool:
        first = events[0] if events else None
        block = first.block if isinstance(first, ev.BlockStarted) else None
        if not isinstance(block, Text | Reasoning | ToolCall | None):
            return False
        if isinstance(block, Reasoning) and len(events) == 1:
            return False  # Its frame holds a signature, which is written at the block's end.
        if isinstance(first, ev.BlockEnded) and first.key in self._without_delta:
            return False
        if not super().passes(events):
            return False
        if isinstance(first, ev.BlockStarted) and block is not None:
            self._blocks[first.key] = block
        elif isinstance(first, BLOCK_EVENTS):
            self._without_delta.discard(first.key)
            if isinstance(first, ev.BlockEnded):
                self._blocks.pop(first.key, None)
        elif isinstance(first, ev.Stopped):
            self._stopped = True
        elif isinstance(first, ev.UsageReported):
            return self._stopped
        return True

    def ping(self) -> None:
        return None

    def _write_delta(self, key: int, template: bytes, data: bytes, out: list[Payload]) -> None:
        self._without_delta.discard(key)
        out.append(Payload(_DELTA, template % (self._index[key], data)))

    def _delta(self, event: ev.TextDelta | ev.ReasoningDelta | ev.ArgumentsDelta, out: list[Payload]) -> None:
        if event.text or not isinstance(event, ev.ArgumentsDelta):
            self._write_delta(event.key, _BY_KIND[type(event)], jsonio.quote(event.text), out)

    def _started(self, event: ev.Started, out: list[Payload]) -> None:
        self._usage = event.usage
        out.append(Payload(b"messageStart", jsonio.encode(EXTRAS.with_extra({"role": "assistant"}, event.extra))))

    def _block_started(self, event: ev.BlockStarted, out: list[Payload]) -> None:
        self.assign_number(event)
        key, block = event.key, event.block
        if isinstance(block, Opaque):
            self._whole(key, EXTRAS.own_data(block, LocalMisuse), out)
            return
        if isinstance(block, Media):
            raise LocalMisuse(f"replies of Bedrock have no {block.kind}")
        self._blocks[key] = block
        self._without_delta.add(key)
        if isinstance(block, ToolCall):
            body = EXTRAS.with_extra({"toolUseId": block.id, "name": block.name}, block.extra)
            self._start(key, {"toolUse": body}, out)
            self._delta(ev.ArgumentsDelta(key, block.arguments), out)
        elif block.text:
            kind = ev.TextDelta if isinstance(block, Text) else ev.ReasoningDelta
            self._delta(kind(key, block.text), out)

    def _block_ended(self, event: ev.BlockEnded, out: list[Payload]) -> None:
        """Write the end of a block, after an empty delta if it had none: clients learn its type from a delta."""
        key = event.key
        signature, block = self._signatures.pop(key, None), self._blocks.pop(key, None)
        if signature is not None:
            self._budget.release(ev.text_size(signature.data))
            self._write_signature(key, block, signature, out)
        if key in self._without_delta:
            self._without_delta.discard(key)
            if isinstance(block, Text):
                self._write_delta(key, _TEXT, b'""', out)
            elif isinstance(block, Reasoning):
                self._write_delta(key, _THOUGHT, b'""', out)
            elif block is not None and event.is_complete:  # An incomplete call was cut before its arguments.
                self._write_delta(key, _INPUT, b'"{}"', out)
        out.append(Payload(b"contentBlockStop", _END % self._index[key]))

    def _signed(self, event: ev.SignatureAdded, out: list[Payload]) -> None:
        self._budget.reserve(ev.text_size(event.signature.data))
        self._signatures[event.key] = event.signature

    def _write_signature(
        self, key: int, block: Text | Reasoning | ToolCall | None, signature: Signature, out: list[Payload]
    ) -> None:
        if isinstance(block, Reasoning) and signature.kind == "signature":
            self._write_delta(key, _SIGNATURE, jsonio.quote(signature.data), out)
        elif isinstance(block, Reasoning) and signature.kind == "redacted" and key in self._without_delta:
            self._write_delta(key, _REDACTED, jsonio.quote(render_redacted(signature, LocalMisuse)), out)
        else:
            raise LocalMisuse(f"this block cannot have {signature.kind} data of {signature.family}")

    def _cited(self, event: ev.CitationAdded, out: list[Payload]) -> None:
        self._write_delta(event.key, _CITATION, jsonio.encode(render_citation(event.citation, LocalMisuse)), out)

    def _whole(self, key: int, body: dict[str, Json], out: list[Payload]) -> None:
        """Write an opaque block: the field that clients read from deltas as a delta, all others in the start."""
        (member, value), *_ = [*body.items(), ("", None)]
        delta = _DELTA_FIELDS.get(member)
        if not isinstance(value, dict) or delta is None or value.get(delta) is None:
            self._start(key, body, out)
            return
        start = {name: each for name, each in value.items() if name != delta}
        content: Json = value[delta]
        if member == "toolUse":
            content = {"input": jsonio.encode(content).decode()}
        elif member == "image":
            content = {"source": content}
        self._start(key, {member: start}, out)
        data = jsonio.encode({"contentBlockIndex": self._index[key], "delta": {member: content}})
        out.append(Payload(_DELTA, data))

    def _start(self, key: int, start: dict[str, Json], out: list[Payload]) -> None:
        out.append(Payload(b"contentBlockStart", _START % (self._index[key], jsonio.encode(start))))

    def _ending(self, event: ev.UsageReported | ev.Stopped | ev.Finished, out: list[Payload]) -> None:
        if isinstance(event, ev.UsageReported):
            self._usage = event.usage
            return
        if isinstance(event, ev.Stopped) or not self._stopped:
            stop = Stop(StopReason.END)
            if isinstance(event, ev.Stopped):
                if event.choice:
                    raise LocalMisuse(ONE_CHOICE)
                stop = event.stop
            self._stopped = True
            out.append(Payload(b"messageStop", jsonio.encode(render_stop(stop))))
        if isinstance(event, ev.Finished):
            out.append(Payload(b"metadata", jsonio.encode(render_usage(self._usage or Usage()))))

    def _failed(self, event: ev.Failed, out: list[Payload]) -> None:
        out.append(exception_payload(event.fault))

    writers: ClassVar[EventWriters] = {
        ev.TextDelta: _delta,
        ev.ArgumentsDelta: _delta,
        ev.ReasoningDelta: _delta,
        ev.Started: _started,
        ev.BlockStarted: _block_started,
        ev.SignatureAdded: _signed,
        ev.CitationAdded: _cited,
        ev.BlockEnded: _block_ended,
        ev.UsageReported: _ending,
        ev.Stopped: _ending,
        ev.Finished: _ending,
        ev.Failed: _failed,
        ev.OpaqueEvent: NumberedEncoder.render_opaque_event,
    }
