"""Filters that only this dialect needs."""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.openai.blocks import FAMILY, KEPT, is_older
from dragoman.dialects.openai.messages import rank
from dragoman.model.blocks import Extra
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import EachMessage, Facts, Features, Filter, MakeBack, Notes
from dragoman.wire.jsonio import Json


class AskUsage(Filter):
    """Chat streams tell their usage only when asked, so a stream that did not ask is made to. The client's encoder
    gives the chunk on only if the client itself asked."""

    name = "openai.ask_usage"
    only_asks = True

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if not conversation.stream or KEPT.own_fields(conversation.extra).get("stream_options") is not None:
            return conversation, None
        notes.added("openai.ask_usage", "stream_options", "the stream is asked to report its usage")
        return _with_field(conversation, "stream_options", {"include_usage": True}), None


class OfferTools(Filter):
    """`functions` are offered as tools, which every server knows; the answer is told in the client's older form."""

    name = "openai.offer_tools"
    concerns: Features = frozenset({"extras"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if is_older(conversation.extra):
            notes.changed("openai.offer_tools", "functions", "the functions are offered as tools")
        return conversation, None


class KeepSpecialTokens(Filter):
    """Servers like vLLM strip the tokens that tool calls are written with; with tools offered they are asked not to."""

    name = "openai.special_tokens"
    concerns: Features = frozenset({"tools"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if not conversation.tools or "skip_special_tokens" in KEPT.own_fields(conversation.extra):
            return conversation, None
        notes.added("openai.special_tokens", "skip_special_tokens", "the server is asked to keep its special tokens")
        return _with_field(conversation, "skip_special_tokens", False), None


def _with_field(conversation: Conversation, name: str, value: Json) -> Conversation:
    spelling = conversation.extra.spelling if conversation.extra is not None else _NO_SPELLING
    fields = {**KEPT.own_fields(conversation.extra), name: value}
    return structs.replace(conversation, extra=Extra(FAMILY, fields, spelling))


class OrderBlocks(EachMessage):
    """An assistant's message has one order: reasoning, content, calls."""

    name = "openai.order_blocks"
    concerns: Features = frozenset({"calls", "reasoning", "media", "opaque"})

    def message(self, message: Message, notes: Notes) -> Message:
        if message.role != "assistant" or len(message.blocks) < 2:
            return message
        blocks = tuple(sorted(message.blocks, key=rank))
        if blocks == message.blocks:
            return message
        notes.changed("openai.order_blocks", message.at.path, "reasoning comes first, then content, then calls")
        return structs.replace(message, blocks=blocks)


_NO_SPELLING = frozenset[str]()
