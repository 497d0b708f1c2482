"""Filters that only this service needs: how it takes reasoning back, and what its requests must hold."""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.kit.values import with_object_schema
from dragoman.model.blocks import Block, Opaque, Reasoning, Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, MessageFilter, Notes, ToolFilter

_QUESTION = "Continue"
_NOTHING = "."  # no message may be empty


class AddFirstMessage(Filter):
    """A conversation of nothing but a system prompt gets a question: the service wants one message at least."""

    name = "anthropic.ask_something"
    applies_to: Features = frozenset({"uneven_turns"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if conversation.messages or conversation.has_stored_turns:  # a held turn that paused goes on without a message
            return conversation, None
        notes.added("anthropic.messages.question", "messages", f"there is no message; {_QUESTION!r} is asked")
        return structs.replace(conversation, messages=(Message("user", (Text(_QUESTION),)),)), None


class FitAnthropicReasoning(MessageFilter):
    """Reasoning in the two forms that the service has: signed, or redacted and without text."""

    name = "anthropic.own_reasoning"
    applies_to: Features = frozenset({"reasoning"})

    def message(self, message: Message, notes: Notes) -> Message:
        before = len(notes)
        blocks = tuple(kept for block in message.blocks if (kept := _own(block, notes)) is not None)
        if len(notes) == before:
            return message
        return structs.replace(message, blocks=blocks or (Text(_NOTHING, at=message.at),))


def _own(block: Block, notes: Notes) -> Block | None:
    if not isinstance(block, Reasoning):
        return block
    at, signature = block.at.path, block.signature
    if signature is not None and signature.kind == "encrypted":
        notes.dropped("anthropic.reasoning.encrypted", at, "the service has no encrypted reasoning")
        return None
    if signature is not None and signature.kind == "redacted" and block.text:
        notes.dropped("anthropic.reasoning.redacted", at, "redacted reasoning has no text here")
        block = structs.replace(block, text="")
    return block


class RequireObjectSchemas(ToolFilter):
    """Tools whose parameters are an object: the service refuses any other."""

    name = "anthropic.object_schemas"
    applies_to: Features = frozenset({"tools"})

    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        return with_object_schema(tool, "anthropic.tools.schema", notes)
