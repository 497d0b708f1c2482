"""Filters that only this dialect needs."""

from __future__ import annotations

from msgspec import structs

from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Features, Filter, MakeBack, Notes

LEAST_TOKENS = 16


class JoinAnswers(Filter):
    """Items have no turns: what the assistant said in a row is one."""

    name = "responses.join_answers"
    concerns: Features = frozenset({"uneven_turns"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        joined: list[Message] = []
        for message in conversation.messages:
            if message.role != "assistant":
                joined.append(message)
            elif joined and joined[-1].role == "assistant":
                notes.changed("responses.join_answers", message.at.path, "joined with the assistant turn before it")
                joined[-1] = structs.replace(joined[-1], blocks=(*joined[-1].blocks, *message.blocks))
            else:
                joined.append(message)
        if len(joined) == len(conversation.messages):
            return conversation, None
        return structs.replace(conversation, messages=tuple(joined)), None


class LeastTokens(Filter):
    """The service refuses a smaller limit than 16, which clients send to probe it."""

    name = "responses.least_tokens"
    concerns: Features = frozenset({"length"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        asked = conversation.max_tokens
        if asked is None or asked >= LEAST_TOKENS:
            return conversation, None
        notes.changed(
            "responses.least_tokens", "max_tokens", f"the service takes no limit below {LEAST_TOKENS}, as {asked} is"
        )
        return structs.replace(conversation, max_tokens=LEAST_TOKENS), None
