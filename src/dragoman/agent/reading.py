"""Reading a raw Converse response without trusting it: every field is looked at before it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dragoman.agent.errors import BedrockResponseError
from dragoman.agent.types import ToolUseBlock
from dragoman.filters.object_arguments import as_object
from dragoman.wire import jsonio


def content_of(response: Mapping[str, Any] | None) -> list[Any]:
    """The blocks of a response. Raises BedrockResponseError."""
    place: Any = response
    for name in ("output", "message", "content"):
        if not isinstance(place, Mapping) or name not in place:
            raise BedrockResponseError(f"Bedrock response missing expected path: {name!r}", _shown(response))
        place = place[name]
    if not isinstance(place, list):
        raise BedrockResponseError("Bedrock response 'content' is not a list", _shown(response))
    return place


def tool_uses_in(blocks: list[Any]) -> Iterator[ToolUseBlock]:
    """The calls in blocks, each validated, of the true form and of the flat one (D30). Raises BedrockResponseError."""
    return (validated(use) for block in blocks if (use := _use_in(block)) is not None)


def has_tool_use(blocks: list[Any]) -> bool:
    return any(_use_in(block) is not None for block in blocks)


def text_in(blocks: list[Any]) -> str:
    """The text of blocks. Raises BedrockResponseError for a text that is none."""
    texts = []
    for block in blocks:
        if isinstance(block, Mapping) and "text" in block:
            if not isinstance(block["text"], str):
                raise BedrockResponseError("Bedrock response 'text' is not a string", block, "text")
            texts.append(block["text"])
    return "".join(texts)


def validated(use: Any) -> ToolUseBlock:
    """A call with an id, a name and an object of arguments (D3). Raises BedrockResponseError, naming the field."""
    if not isinstance(use, Mapping):
        raise BedrockResponseError("Bedrock response 'toolUse' is not an object", field="toolUse")
    for name in ("toolUseId", "name"):
        value = use.get(name)
        if not isinstance(value, str) or not value.strip():
            raise BedrockResponseError(f"Bedrock response missing required '{name}' field", use, name)
    return ToolUseBlock(id=use["toolUseId"], name=use["name"], input=_object(use))


def _use_in(block: Any) -> Any:
    """The call in a block; None if it holds none. Those that the service runs by itself are not ours."""
    if not isinstance(block, Mapping):
        return None
    if block.get("type") == "tool_use":
        return block
    use = block.get("toolUse")
    if "toolUse" not in block or (isinstance(use, Mapping) and use.get("type") == "server_tool_use"):
        return None
    return {} if use is None else use


def _object(use: Mapping[str, Any]) -> dict[str, Any]:
    value = use.get("input")
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    try:
        text = value if isinstance(value, str) else jsonio.encode(value).decode()
        told = jsonio.decode(as_object(text) or "{}")
    except jsonio.JsonError:
        raise BedrockResponseError("Bedrock response 'input' is no JSON", use, "input") from None
    assert isinstance(told, dict)
    return told


def _shown(response: Any) -> Mapping[str, Any] | None:
    return response if isinstance(response, Mapping) else None
