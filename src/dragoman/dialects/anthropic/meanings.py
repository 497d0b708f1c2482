"""What blocks that only this dialect has do to a conversation: they show and change tools, they compact the past."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from dragoman.model.blocks import Block, DefinedTool, Meaning, Opaque, ShownTool, Summary, ToolChange, Untranslatable
from dragoman.model.conversation import Held
from dragoman.wire.jsonio import Json

ADDITION, COMPACTION = "tool_addition", "compaction"
_NO_COMPACTION = "the target cannot compact a conversation; leave this out, or send a summary as text"
_SEALED_PAST = "the past is compacted into encrypted_content, which only its own service can read"


def meaning_of(kind: str, data: Mapping[str, Json]) -> tuple[Meaning, ...]:
    """What the block does, for other families; nothing for all that do not concern tools or the past."""
    read = _READERS.get(kind)
    return tuple(read(data)) if read else ()


def is_no_op(kind: str, data: Mapping[str, Json]) -> bool:
    """Whether it is a compaction that failed: the service ignores it."""
    return kind == COMPACTION and not data.get("content") and not data.get("encrypted_content")


def definitions_in(blocks: Iterable[Block]) -> Iterator[tuple[dict[str, Json], str]]:
    """The tools that blocks of messages define, each with its place in the request."""
    for block in blocks:
        if isinstance(block, Opaque) and block.means and isinstance(block.data, dict):
            for change, at in _changes(block.kind, block.data, block.at.path):
                tool = change.get("tool")
                definition = tool.get("definition") if isinstance(tool, dict) else None
                if isinstance(definition, dict):
                    yield definition, f"{at}.tool.definition"


def _changes(kind: str, data: Mapping[str, Json], at: str) -> Iterator[tuple[Mapping[str, Json], str]]:
    if kind == ADDITION:
        yield data, at
    changes = data.get("tool_changes") if kind == COMPACTION else None
    for index, change in enumerate(changes if isinstance(changes, list) else ()):
        if isinstance(change, dict):
            yield change, f"{at}.tool_changes[{index}]"


def compacting(body: Mapping[str, Json]) -> Iterator[Held]:
    """The fields that ask the service to compact the conversation."""
    if body.get(COMPACTION) is not None:
        yield Held(COMPACTION, COMPACTION, _NO_COMPACTION)
    management = body.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) else None
    for index, edit in enumerate(edits if isinstance(edits, list) else ()):
        kind = edit.get("type") if isinstance(edit, dict) else None
        if isinstance(kind, str) and kind.startswith("compact"):
            yield Held(COMPACTION, f"context_management.edits[{index}]", _NO_COMPACTION)


def _reference(data: Mapping[str, Json]) -> Iterator[Meaning]:
    name = data.get("tool_name")
    if isinstance(name, str) and name:
        yield ShownTool(name)


def _found(data: Mapping[str, Json]) -> Iterator[Meaning]:
    content = data.get("content")
    references = content.get("tool_references") if isinstance(content, dict) else None
    for each in references if isinstance(references, list) else ():
        if isinstance(each, dict):
            yield from _reference(each)


def _change(data: Mapping[str, Json]) -> Iterator[Meaning]:
    tool = data.get("tool")
    named = tool if isinstance(tool, dict) else {}
    definition = named.get("definition")
    named = definition if isinstance(definition, dict) else named
    name = named.get("name") or named.get("server_name") or named.get("mcp_server_name")
    if isinstance(name, str) and isinstance(definition, dict):
        yield DefinedTool(name)
    if isinstance(name, str):
        yield ToolChange(name, data.get("type") != "tool_removal")


def _compaction(data: Mapping[str, Json]) -> Iterator[Meaning]:
    content = data.get("content")
    if isinstance(content, str) and content:
        yield Summary(content)
    elif data.get("encrypted_content"):
        yield Untranslatable(_SEALED_PAST)
    for change, _ in _changes(COMPACTION, data, ""):
        yield from _change(change)


_READERS: dict[str, Callable[[Mapping[str, Json]], Iterator[Meaning]]] = {
    "tool_reference": _reference,
    "tool_search_tool_result": _found,
    ADDITION: _change,
    "tool_removal": _change,
    COMPACTION: _compaction,
}
