"""Read the texts of OpenAI chunks, and split SSE input into frames, for `dragoman.raw_tools`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from dragoman.filters.raw_tools.outputs import Channel
from dragoman.model.conversation import ToolSpec
from dragoman.wire.frame import Frame
from dragoman.wire.sse import SseDecoder, encode_sse

ChunkFields: TypeAlias = dict[str, Any]

REASONING_FIELDS = ("reasoning_content", "reasoning")
DETAILS = "reasoning_details"
TEXT_FIELDS = frozenset({"content", DETAILS, *REASONING_FIELDS})


def choices_of(chunk: ChunkFields) -> list[ChunkFields]:
    """Return the chunk's choices; a bare `delta` counts as one choice."""
    choices = chunk.get("choices")
    if isinstance(choices, list):
        return [choice for choice in choices if isinstance(choice, dict)]
    return [{"index": 0, "delta": chunk["delta"]}] if isinstance(chunk.get("delta"), dict) else []


def delta_texts(delta: ChunkFields) -> list[tuple[Channel, tuple[str, ...], str]]:
    """Return the texts of a delta with their fields.

    Providers send the same reasoning in up to three fields; it is returned once, with all its fields.
    """
    fields_by_text: dict[str, tuple[str, ...]] = {}
    for name in REASONING_FIELDS:
        text = delta.get(name)
        if isinstance(text, str) and text:
            fields_by_text[text] = (*fields_by_text.get(text, ()), name)
    detail_text = "".join(entry["text"] for entry in _entries(delta) if _has_text(entry))
    if detail_text and (detail_text in fields_by_text or not fields_by_text):
        fields_by_text[detail_text] = (*fields_by_text.get(detail_text, ()), DETAILS)
    texts = [(Channel.REASONING, fields, text) for text, fields in fields_by_text.items()]
    content = delta.get("content")
    return [*texts, (Channel.TEXT, ("content",), content)] if isinstance(content, str) and content else texts


def other_fields(delta: ChunkFields) -> ChunkFields:
    """Return the fields of a delta other than its texts."""
    rest = {name: value for name, value in delta.items() if name not in TEXT_FIELDS and value is not None}
    other_details = [entry for entry in _entries(delta) if not _has_text(entry)]
    content = delta.get("content")
    if content and not isinstance(content, str):
        rest["content"] = content
    return {**rest, DETAILS: other_details} if other_details else rest


def text_delta(text: str, fields: tuple[str, ...]) -> ChunkFields:
    """Return a delta with the text in these fields."""
    detail = [{"type": "reasoning.text", "text": text}]
    return {name: detail if name == DETAILS else text for name in fields} if text else {}


def _entries(delta: ChunkFields) -> list[ChunkFields]:
    details = delta.get(DETAILS)
    return [entry for entry in details if isinstance(entry, dict)] if isinstance(details, list) else []


def _has_text(entry: ChunkFields) -> bool:
    return isinstance(entry.get("text"), str)


def parse_tool(tool: ToolSpec | Mapping[str, Any] | str) -> ToolSpec:
    """Return the tool of an OpenAI or Anthropic declaration, or of a name alone."""
    if isinstance(tool, ToolSpec):
        return tool
    if isinstance(tool, str):
        return ToolSpec(tool)
    function = tool.get("function")
    fields: Mapping[str, Any] = function if isinstance(function, Mapping) else tool
    schema = fields.get("parameters", fields.get("input_schema"))
    return ToolSpec(str(fields.get("name", "")), schema=schema if isinstance(schema, Mapping) else None)


# --- Frames of an input event


FrameInput: TypeAlias = Frame | bytes | str  # an SSE frame, the text of one or more frames, or only a frame's data

_SSE = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*(?:data|event|id|retry)?:")  # no JSON begins like this
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")


def split_frames(event: FrameInput) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield the bytes and the data of each frame; the data is None for comments. The bytes add up to the input."""
    if isinstance(event, Frame):
        yield event.raw, event.data
        return
    text = event.encode(errors="surrogatepass") if isinstance(event, str) else bytes(event)
    if _SSE.match(text) is None:
        yield encode_sse(b"", text), text
        return
    if not text.endswith(_BLANK_LINES):
        text += b"\n" if text.endswith((b"\n", b"\n\r")) else b"\n\n"
    decoder = SseDecoder(len(text))
    at = 0
    for frame in (*decoder.feed(text), *decoder.close()):
        begin = text.find(frame.raw, at)
        if begin > at:
            yield text[at:begin], None
        at = begin + len(frame.raw)
        yield frame.raw, frame.data
    if at < len(text):
        yield text[at:], None
