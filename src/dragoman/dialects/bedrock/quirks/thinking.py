"""Reasoning as the models behind the service take it back."""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.bedrock.nodes import Vendor
from dragoman.model.blocks import Block, Reasoning
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes


class OwnReasoning(Filter):
    """Reasoning in the two forms that the service has, as far as the model takes it back."""

    name = "bedrock.own_reasoning"
    concerns: Features = frozenset({"reasoning"})
    before = "pair_tools"  # what is left of a turn is looked at afterwards

    def __init__(self, vendor: Vendor) -> None:
        self._takes = vendor.reasoning

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        messages = tuple(self._message(message, notes) for message in conversation.messages)
        return (conversation if len(notes) == before else structs.replace(conversation, messages=messages)), None

    def _message(self, message: Message, notes: Notes) -> Message:
        before = len(notes)
        blocks = tuple(kept for block in message.blocks if (kept := self._block(block, notes)) is not None)
        return message if len(notes) == before else structs.replace(message, blocks=blocks)

    def _block(self, block: Block, notes: Notes) -> Block | None:
        if not isinstance(block, Reasoning):
            return block
        reason = self._objection(block)
        if reason:
            notes.dropped("bedrock.reasoning.refused", block.at.path, reason)
            return None
        if block.seal is not None and block.seal.kind == "redacted" and block.text:
            notes.dropped("bedrock.reasoning.redacted", block.at.path, "redacted reasoning has no text here")
            return structs.replace(block, text="")
        return block

    def _objection(self, block: Reasoning) -> str:
        if self._takes == "none":
            return "the model takes no reasoning back"
        if self._takes == "unsigned" and block.seal is not None:
            return "the model takes no signed reasoning: it is another model's"
        if block.seal is not None and block.seal.kind == "encrypted":
            return "the service has no encrypted reasoning"
        return ""
