"""Reading a raw Converse response without trusting it: every field is looked at before it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dragoman.agent.errors import BedrockResponseError
from dragoman.agent.types import ToolUseBlock
from dragoman.filters.calls import as_object
from dragoman.wire import jsonio
from dragoman.wire.fields import describe, is_blank

_NO_CALL = object()  # not None: a block may hold a call that is null


def content_of(response: Mapping[str, Any] | None) -> list[Any]:
    """The blocks of a response. Raises BedrockResponseError."""
    place: Any = response
    for name in ("output", "message", "content"):
        if not isinstance(place, Mapping) or name not in place:
            raise BedrockResponseError(f"Bedrock response missing expected path: {name!r}", response)
        place = place[name]
    if not isinstance(place, list):
        raise BedrockResponseError("Bedrock response 'content' is not a list", response)
    return place


def tool_uses_in(blocks: list[Any]) -> Iterator[ToolUseBlock]:
    """The calls in blocks, each validated, of the true form and of the flat one (D30). Raises BedrockResponseError."""
    return (validated(use) for block in blocks if (use := _use_in(block)) is not _NO_CALL)


def with_calls(blocks: list[Any], calls: Iterable[ToolUseBlock]) -> list[Any]:
    """Return the blocks with these calls, in their order, in place of the calls they hold; all in the true form."""
    given = iter(calls)
    return [block if _use_in(block) is _NO_CALL else _block(next(given)) for block in blocks]


def _block(call: ToolUseBlock) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": call["id"], "name": call["name"], "input": call["input"]}}


def has_tool_use(blocks: list[Any]) -> bool:
    return any(_use_in(block) is not _NO_CALL for block in blocks)


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
        raise BedrockResponseError("Bedrock response 'toolUse' is not an object", {"toolUse": use}, "toolUse")
    for name in ("toolUseId", "name"):
        value = use.get(name)
        if value is not None and not isinstance(value, str):
            problem = f"Bedrock response '{name}' is not a string, but {describe(value)}"
            raise BedrockResponseError(problem, use, name)
        if value is None or is_blank(value):
            raise BedrockResponseError(f"Bedrock response missing required '{name}' field", use, name)
    return ToolUseBlock(id=use["toolUseId"], name=use["name"], input=_object(use))


def _use_in(block: Any) -> Any:
    """The call in a block, or _NO_CALL. Those that the service runs by itself are not ours."""
    if not isinstance(block, Mapping):
        return _NO_CALL
    if block.get("type") == "tool_use":
        return block
    use = block.get("toolUse")
    if "toolUse" not in block or (isinstance(use, Mapping) and use.get("type") == "server_tool_use"):
        return _NO_CALL
    return use


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
