"""The language: the parts of this package as one codec, what it can say, and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from dragoman.dialects.base import Call, World
from dragoman.dialects.kit.flat import FlatMessages, NoChoice, OneLevel, PlainSchemas, SendFields
from dragoman.dialects.kit.kept import refuse_unfit
from dragoman.dialects.kit.media import media_type
from dragoman.dialects.ollama import binding, messages, rules
from dragoman.errors import Fault, LocalMisuse
from dragoman.model.budget import Budget
from dragoman.model.capabilities import Alphabet, Capabilities, traits
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys
from dragoman.model.filter import Filter
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

# What the service reads of a tool's parameters, and of a property; it drops all else without a word.
_ROOT = ("type", "items", "required", "properties")
_PROPERTY = ("type", "description", "enum", "items", "required", "properties", "anyOf")


class OllamaCodec(Struct, frozen=True):
    """Ollama's `/api/chat`. Its fields are its settings; docs/dialects/ollama.md says what each does."""

    family: ClassVar[str] = messages.FAMILY
    num_ctx: int | None = None  # the same in every request: another one makes the server load the model again
    keep_alive: str | int | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        if self.num_ctx is not None and self.num_ctx < 1:
            raise LocalMisuse(f"expected 1 or more, or none, got {self.num_ctx!r}", at="num_ctx")

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            traits=traits("results_in_call_order", "reasoning", "no_answer_media", "one_block", "whole_calls"),
            ids=Alphabet(r"\x21-\x7e", 256),
            arguments="object",
            choice_modes=frozenset({"auto"}),
            result_media=frozenset({"image"}),
            media=frozenset({("image", "base64")}),
            home_media=frozenset({("audio", "base64")}),
            media_roles=frozenset({"user"}),
            named_media=frozenset(),
            knobs=frozenset(messages.KNOBS),
            output=frozenset({"text", "json", "schema"}),
            efforts=messages.LEVELS,
            thinking=frozenset({"default", "on", "off"}),
            window=self.num_ctx,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        family = self.family
        always: dict[str, Json] = {} if self.num_ctx is None else {"options.num_ctx": self.num_ctx}
        absent: dict[str, Json] = {} if self.keep_alive is None else {"keep_alive": self.keep_alive}
        if not self.truncate:
            absent["truncate"] = False
        return (
            NoChoice(family),
            OneLevel(family),
            FlatMessages(family, media_type),
            PlainSchemas(family, _ROOT, _PROPERTY),
            SendFields(family, always, absent, {"truncate": messages.TRUNCATES}),
        )

    parse_request = staticmethod(messages.parse_request)
    parse_reply = staticmethod(messages.parse_reply)
    render_reply = staticmethod(messages.render_reply)

    def render_request(self, conversation: Conversation) -> Call:
        refuse_unfit(conversation, self.capabilities(conversation.model))
        return messages.render_request(conversation)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> messages.OllamaDecoder:
        return messages.OllamaDecoder(asked, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> messages.OllamaEncoder:
        return messages.OllamaEncoder(asked, world, budget)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return binding.parse_fault(response)

    render_fault = staticmethod(binding.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(rules.stream_breaches)
    rules = staticmethod(rules.RULES.declared)
