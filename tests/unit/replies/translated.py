"""Test helpers: translate replies of an upstream, whole or streamed, to a client dialect."""

from __future__ import annotations

import json
from typing import Any

from dragoman.dialects import get as dialect
from dragoman.dialects.base import Environment, StreamReader
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, Reply
from dragoman.response_stream import ResponseTranslator, translate_whole_reply
from dragoman.translate import plan

ENVIRONMENT = Environment(new_id=lambda prefix: f"{prefix}1", now=lambda: 1_780_000_000)
CLIENTS = ("anthropic", "openai", "responses", "bedrock", "gemini", "kiro")


def make_request(stream: bool = False) -> Conversation:
    return Conversation("m", (Message("user", (Text("hi"),)),), stream=stream)


def translate_reply(upstream: str, client: str, body: Any) -> tuple[Any, list[str]]:
    """Translate a whole reply; return the client's JSON and the rules of the notes."""
    raw, notes = translate_whole_reply(
        plan(dialect(client), dialect(upstream), make_request()), json.dumps(body).encode(), ENVIRONMENT
    )
    body = json.loads(raw) if client != "kiro" else raw  # replies of Kiro are frames
    return body, [note.rule for note in notes]


def translate_stream(upstream: str, client: str, data: bytes) -> bytes:
    """Translate a stream; return the client's bytes."""
    translator = ResponseTranslator(plan(dialect(client), dialect(upstream), make_request(stream=True)), ENVIRONMENT)
    return translator.feed(data) + translator.close()


def sse(*frames: Any, done: bool = True) -> bytes:
    lines = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
    return b"".join(f"data: {line}\n\n".encode() for line in [*lines, *(["[DONE]"] if done else [])])


def decode_stream(upstream: str, data: bytes) -> Reply:
    """Return the reply that the decoder of a dialect reads from a stream. Raises the fault of a failed one."""
    source = dialect(upstream)
    reader = StreamReader(source.binding.frame_decoder(), source.codec.decoder(make_request(stream=True), ENVIRONMENT))
    steps = [*reader.feed(data), *reader.close()]
    return assemble_reply([event for decoded in steps for event in decoded.events])
