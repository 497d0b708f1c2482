"""Read OpenAI chunks as far as raw tool calls need it: which text stands where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from dragoman.filters.raw_tools.outputs import Carrier
from dragoman.model.conversation import ToolSpec

JsonObject: TypeAlias = dict[str, Any]

REASONING = ("reasoning_content", "reasoning")
DETAILS = "reasoning_details"
CARRIERS = frozenset({"content", DETAILS, *REASONING})


def choices_of(chunk: JsonObject) -> list[JsonObject]:
    """The chunk's choices; a delta without any (as in document 001's examples) is one."""
    choices = chunk.get("choices")
    if isinstance(choices, list):
        return [choice for choice in choices if isinstance(choice, dict)]
    return [{"index": 0, "delta": chunk["delta"]}] if isinstance(chunk.get("delta"), dict) else []


def texts_of(delta: JsonObject) -> list[tuple[Carrier, tuple[str, ...], str]]:
    """The texts of a delta with the fields they stand in. Providers tell reasoning in up to three fields: it is one."""
    told: dict[str, tuple[str, ...]] = {}
    for name in REASONING:
        text = delta.get(name)
        if isinstance(text, str) and text:
            told[text] = (*told.get(text, ()), name)
    detailed = "".join(entry["text"] for entry in _entries(delta) if _tells(entry))
    if detailed and (detailed in told or not told):
        told[detailed] = (*told.get(detailed, ()), DETAILS)
    texts = [(Carrier.REASONING, fields, text) for text, fields in told.items()]
    content = delta.get("content")
    return [*texts, (Carrier.TEXT, ("content",), content)] if isinstance(content, str) and content else texts


def rest_of(delta: JsonObject) -> JsonObject:
    """What a delta says beside its texts."""
    rest = {name: value for name, value in delta.items() if name not in CARRIERS and value is not None}
    sealed = [entry for entry in _entries(delta) if not _tells(entry)]
    content = delta.get("content")
    if content and not isinstance(content, str):
        rest["content"] = content
    return {**rest, DETAILS: sealed} if sealed else rest


def spoken(text: str, fields: tuple[str, ...]) -> JsonObject:
    """A delta that says the text in these fields."""
    detail = [{"type": "reasoning.text", "text": text}]
    return {name: detail if name == DETAILS else text for name in fields} if text else {}


def _entries(delta: JsonObject) -> list[JsonObject]:
    details = delta.get(DETAILS)
    return [entry for entry in details if isinstance(entry, dict)] if isinstance(details, list) else []


def _tells(entry: JsonObject) -> bool:
    return isinstance(entry.get("text"), str)


def spec_of(tool: ToolSpec | Mapping[str, Any] | str) -> ToolSpec:
    """A tool as OpenAI or Anthropic declares it, or only its name."""
    if isinstance(tool, ToolSpec):
        return tool
    if isinstance(tool, str):
        return ToolSpec(tool)
    function = tool.get("function")
    fields: Mapping[str, Any] = function if isinstance(function, Mapping) else tool
    schema = fields.get("parameters", fields.get("input_schema"))
    return ToolSpec(str(fields.get("name", "")), schema=schema if isinstance(schema, Mapping) else None)
