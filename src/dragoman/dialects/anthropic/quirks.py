"""Filters that only Anthropic's API needs: for reasoning, tool schemas and requests without messages. Pure."""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.kit.values import with_object_schema
from dragoman.model.blocks import Block, Opaque, Reasoning, Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, MessageFilter, Notes, ToolFilter

_QUESTION = "Continue"
_PLACEHOLDER = "."  # The service refuses an empty message.


class AddFirstMessage(Filter):
    """Adds a user message to a conversation without messages: the service requires at least one."""

    name = "anthropic.ask_something"
    applies_to: Features = frozenset({"uneven_turns"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if (
            conversation.messages or conversation.has_stored_turns
        ):  # A stored turn that paused continues without a message.
            return conversation, None
        detail = f"the request has no message; the user message {_QUESTION!r} is added"
        notes.added("anthropic.messages.question", "messages", detail)
        return structs.replace(conversation, messages=(Message("user", (Text(_QUESTION),)),)), None


class FitAnthropicReasoning(MessageFilter):
    """Fits reasoning into the two forms that the service has: signed text, or redacted data without text."""

    name = "anthropic.own_reasoning"
    applies_to: Features = frozenset({"reasoning"})

    def message(self, message: Message, notes: Notes) -> Message:
        before = len(notes)
        blocks = tuple(fitted for block in message.blocks if (fitted := _fit(block, notes)) is not None)
        if len(notes) == before:
            return message
        return structs.replace(message, blocks=blocks or (Text(_PLACEHOLDER, at=message.at),))


def _fit(block: Block, notes: Notes) -> Block | None:
    if not isinstance(block, Reasoning):
        return block
    at, signature = block.at.path, block.signature
    if signature is not None and signature.kind == "encrypted":
        notes.dropped("anthropic.reasoning.encrypted", at, "the service does not accept encrypted reasoning")
        return None
    if signature is not None and signature.kind == "redacted" and block.text:
        notes.dropped("anthropic.reasoning.redacted", at, "the service accepts redacted reasoning only without text")
        block = structs.replace(block, text="")
    return block


class RequireObjectSchemas(ToolFilter):
    """Declares the parameters of each tool as an object: the service refuses other schemas."""

    name = "anthropic.object_schemas"
    applies_to: Features = frozenset({"tools"})

    def tool(self, tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
        return with_object_schema(tool, "anthropic.tools.schema", notes)
