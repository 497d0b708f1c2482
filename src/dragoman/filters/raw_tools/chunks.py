"""Read OpenAI chunks as far as raw tool calls need it: which text stands where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from dragoman.filters.raw_tools.outputs import Channel
from dragoman.model.conversation import ToolSpec
from dragoman.wire.frame import Frame
from dragoman.wire.sse import SseDecoder, encode_sse

JsonObject: TypeAlias = dict[str, Any]

REASONING_FIELDS = ("reasoning_content", "reasoning")
DETAILS = "reasoning_details"
CARRIERS = frozenset({"content", DETAILS, *REASONING_FIELDS})


def choices_of(chunk: JsonObject) -> list[JsonObject]:
    """The chunk's choices; a delta without any (as in document 001's examples) is one."""
    choices = chunk.get("choices")
    if isinstance(choices, list):
        return [choice for choice in choices if isinstance(choice, dict)]
    return [{"index": 0, "delta": chunk["delta"]}] if isinstance(chunk.get("delta"), dict) else []


def delta_texts(delta: JsonObject) -> list[tuple[Channel, tuple[str, ...], str]]:
    """The texts of a delta with the fields they stand in. Providers tell reasoning in up to three fields: it is one."""
    told: dict[str, tuple[str, ...]] = {}
    for name in REASONING_FIELDS:
        text = delta.get(name)
        if isinstance(text, str) and text:
            told[text] = (*told.get(text, ()), name)
    detailed = "".join(entry["text"] for entry in _entries(delta) if _tells(entry))
    if detailed and (detailed in told or not told):
        told[detailed] = (*told.get(detailed, ()), DETAILS)
    texts = [(Channel.REASONING, fields, text) for text, fields in told.items()]
    content = delta.get("content")
    return [*texts, (Channel.TEXT, ("content",), content)] if isinstance(content, str) and content else texts


def other_fields(delta: JsonObject) -> JsonObject:
    """What a delta says beside its texts."""
    rest = {name: value for name, value in delta.items() if name not in CARRIERS and value is not None}
    sealed = [entry for entry in _entries(delta) if not _tells(entry)]
    content = delta.get("content")
    if content and not isinstance(content, str):
        rest["content"] = content
    return {**rest, DETAILS: sealed} if sealed else rest


def text_delta(text: str, fields: tuple[str, ...]) -> JsonObject:
    """A delta that says the text in these fields."""
    detail = [{"type": "reasoning.text", "text": text}]
    return {name: detail if name == DETAILS else text for name in fields} if text else {}


def _entries(delta: JsonObject) -> list[JsonObject]:
    details = delta.get(DETAILS)
    return [entry for entry in details if isinstance(entry, dict)] if isinstance(details, list) else []


def _tells(entry: JsonObject) -> bool:
    return isinstance(entry.get("text"), str)


def parse_tool(tool: ToolSpec | Mapping[str, Any] | str) -> ToolSpec:
    """A tool as OpenAI or Anthropic declares it, or only its name."""
    if isinstance(tool, ToolSpec):
        return tool
    if isinstance(tool, str):
        return ToolSpec(tool)
    function = tool.get("function")
    fields: Mapping[str, Any] = function if isinstance(function, Mapping) else tool
    schema = fields.get("parameters", fields.get("input_schema"))
    return ToolSpec(str(fields.get("name", "")), schema=schema if isinstance(schema, Mapping) else None)


# --- What the components take as an event: a frame, the text of one or more frames, or only a frame's data


FrameInput: TypeAlias = Frame | bytes | str  # an SSE frame, as such or as its text, or its data

_SSE = re.compile(rb"(?:\xef\xbb\xbf)?[\r\n]*(?:data|event|id|retry)?:")  # no JSON begins so
_BLANK_LINES = (b"\n\n", b"\n\r\n", b"\r\r")


def split_frames(event: FrameInput) -> Iterator[tuple[bytes, bytes | None]]:
    """The bytes of each frame and its data; None for what has none, such as comments. The bytes are all that came."""
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
