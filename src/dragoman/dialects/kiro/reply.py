"""Whole replies: this dialect has none, so they are whole streams, read and written as such."""

from __future__ import annotations

from dragoman.dialects.base import REAL_WORLD, World
from dragoman.dialects.kiro.encoder import KiroEncoder
from dragoman.dialects.kiro.stream import KiroDecoder
from dragoman.dialects.kiro.tokens import Counting
from dragoman.model.assemble import fold, unfold
from dragoman.model.conversation import Conversation, Reply
from dragoman.model.events import FINISHED, Event, Failed
from dragoman.wire.eventstream import EventStreamDecoder, encode_event


def parse_reply(body: bytes, asked: Conversation, counting: Counting) -> Reply:
    """Read a whole stream. Raises UpstreamViolation, or UpstreamFault if it failed. A call that was cut is left out."""
    frames, decoder = EventStreamDecoder(), KiroDecoder(asked, REAL_WORLD, counting)
    events: list[Event] = []
    for frame in frames.feed(body):
        events.extend(decoder.feed(frame) or ())
        if events and (events[-1] is FINISHED or isinstance(events[-1], Failed)):
            return fold(events)
    frames.close()
    return fold((*events, *decoder.close(None)))


def render_reply(reply: Reply, asked: Conversation, world: World, counting: Counting) -> bytes:
    """Write a reply as the stream of it."""
    encoder = KiroEncoder(asked, world, counting)
    return b"".join(
        [encode_event(payload.kind, payload.data, error=payload.error) for payload in encoder.feed(unfold(reply))]
    )
