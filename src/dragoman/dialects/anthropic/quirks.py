"""Filters that only this service needs: how it takes reasoning back, and what its requests must hold."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from dragoman.model.blocks import Block, Opaque, Reasoning, Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.facts import Facts
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Notes
from dragoman.wire.jsonio import Json

_QUESTION = "Continue"
_NOTHING = "."  # no message may be empty


class AskSomething:
    """A conversation of nothing but a system prompt gets a question: the service wants one message at least."""

    name = "anthropic.ask_something"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if conversation.messages or conversation.continues:  # a held turn that paused goes on without a message
            return conversation, None
        notes.added("anthropic.messages.question", "messages", f"there is no message; {_QUESTION!r} is asked")
        return structs.replace(conversation, messages=(Message("user", (Text(_QUESTION),)),)), None


class OwnReasoning:
    """Reasoning in the two forms that the service has: signed, or redacted and without text."""

    name = "anthropic.own_reasoning"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if not facts.inventory(conversation).thoughts:
            return conversation, None
        messages = tuple(_with_own_reasoning(message, notes) for message in conversation.messages)
        if all(one is other for one, other in zip(messages, conversation.messages, strict=True)):
            return conversation, None
        return structs.replace(conversation, messages=messages), None


def _with_own_reasoning(message: Message, notes: Notes) -> Message:
    before = len(notes)
    blocks = tuple(kept for block in message.blocks if (kept := _own(block, notes)) is not None)
    if len(notes) == before:
        return message
    return structs.replace(message, blocks=blocks or (Text(_NOTHING, at=message.at),))


def _own(block: Block, notes: Notes) -> Block | None:
    if not isinstance(block, Reasoning):
        return block
    at, seal = block.at.path, block.seal
    if seal is not None and seal.kind == "encrypted":
        notes.dropped("anthropic.reasoning.encrypted", at, "the service has no encrypted reasoning")
        return None
    if seal is not None and seal.kind == "redacted" and block.text:
        notes.dropped("anthropic.reasoning.redacted", at, "redacted reasoning has no text here")
        block = structs.replace(block, text="")
    return block


class ObjectSchemas:
    """Tools whose parameters are an object: the service refuses any other."""

    name = "anthropic.object_schemas"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        tools = tuple(_settled(tool, notes) for tool in conversation.tools)
        return conversation if len(notes) == before else structs.replace(conversation, tools=tools), None


def _settled(tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
    if isinstance(tool, Opaque) or tool.schema is None or tool.schema.get("type") == "object":
        return tool
    schema = _object_schema(tool.schema)
    lost = tool.schema.keys() - schema.keys()
    detail = f"the parameters of {tool.name} are said to be an object"
    notes.add("anthropic.tools.schema", "dropped" if lost else "changed", tool.at.path, detail)
    return structs.replace(tool, schema=schema)


def _object_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    said = schema.get("type")
    if said is None or (isinstance(said, list) and "object" in said):
        return {**schema, "type": "object"}
    return {"type": "object", "properties": {}}
