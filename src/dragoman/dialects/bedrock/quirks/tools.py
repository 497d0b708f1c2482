"""Tools as the service takes them: declared once history has any, with an object's schema."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from dragoman.dialects.bedrock.blocks import as_json
from dragoman.dialects.bedrock.nodes import AS_JSON, extra_of, own_fields
from dragoman.dialects.kit.tools import with_object_schema
from dragoman.model.blocks import Block, Media, Opaque, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes

_STUB = "Used earlier in this conversation; not available now."
_NO_OUTPUT = "(no output)"
_FILLER = "."


def _blocks(conversation: Conversation) -> Iterator[Block]:
    return (block for message in conversation.messages for block in message.blocks)


class NoChoice(Filter):
    """`none`, for which the service has no word: tools that may not be called are not offered, unless history needs
    them to be."""

    name = "bedrock.no_choice"
    concerns: Features = frozenset({"chosen"})
    before = "fit_limits"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if conversation.tool_choice.mode != "none" or not conversation.tools:
            return conversation, None
        if any(isinstance(block, ToolCall | ToolResult) for block in _blocks(conversation)):
            return conversation, None
        notes.changed("bedrock.tools.none", "tool_choice", "no tool may be called; none is offered")
        return structs.replace(conversation, tools=(), tool_choice=ToolChoice()), None


class SettleTools(Filter):
    """Tools whose schema is an object's; stubs where history has tools and the request declares none."""

    name = "bedrock.settle_tools"
    concerns: Features = frozenset({"tools", "calls"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        tools = tuple(with_object_schema(tool, "bedrock.tools.schema", notes) for tool in conversation.tools) or tuple(
            _stubs(conversation, notes)
        )
        return conversation if len(notes) == before else structs.replace(conversation, tools=tools), None


def _stubs(conversation: Conversation, notes: Notes) -> Iterator[ToolSpec]:
    """The tools that only history names, in the order of their first call."""
    calls = [block for block in _blocks(conversation) if isinstance(block, ToolCall)]
    for name in dict.fromkeys(call.name for call in calls):
        notes.added("bedrock.tools.stub", "tools", f"{name} was called before, so the service wants it declared")
        yield ToolSpec(name, _STUB, {"type": "object", "properties": {}})


class SettleResults(Filter):
    """Every result says something; where the model cannot take both in one turn, results stand in a turn of their own.

    JSON is spelt as text for models that misread it, and where the text is no JSON any more.
    """

    name = "bedrock.settle_results"
    concerns: Features = frozenset({"results"})

    def __init__(self, apart: bool, json: bool) -> None:
        self._apart = apart
        self._json = json

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        messages: list[Message] = []
        for message in conversation.messages:
            blocks = tuple(self._block(block, notes) for block in message.blocks)
            settled = message if blocks == message.blocks else structs.replace(message, blocks=blocks)
            messages.extend(_split(settled, notes) if self._apart else (settled,))
        if tuple(messages) == conversation.messages:
            return conversation, None
        return structs.replace(conversation, messages=tuple(messages)), None

    def _block(self, block: Block, notes: Notes) -> Block:
        if not isinstance(block, ToolResult):
            return block
        if not block.content:
            notes.changed("bedrock.result.empty", block.at.path, f"a result without content says {_NO_OUTPUT!r}")
            return structs.replace(block, content=(Text(_NO_OUTPUT, at=block.at),))
        content = tuple(self._part(part) for part in block.content)
        return block if content == block.content else structs.replace(block, content=content)

    def _part(self, part: Text | Media | Opaque) -> Text | Media | Opaque:
        spelt = isinstance(part, Text) and AS_JSON in own_fields(part.extra)
        if not spelt or (self._json and as_json(part) is not None):
            return part
        kept = {name: value for name, value in own_fields(part.extra).items() if name != AS_JSON}
        return structs.replace(part, extra=extra_of(kept))


def _split(message: Message, notes: Notes) -> Iterator[Message]:
    results = tuple(block for block in message.blocks if isinstance(block, ToolResult))
    rest = tuple(block for block in message.blocks if not isinstance(block, ToolResult))
    if not results or not rest:
        yield message
        return
    detail = f"the model takes nothing beside tool results; {_FILLER!r} stands between them and the rest of the turn"
    notes.added("bedrock.result.apart", message.at.path, detail)
    yield structs.replace(message, blocks=results)
    yield Message("assistant", (Text(_FILLER, at=message.at),), at=message.at)
    yield structs.replace(message, blocks=rest)
