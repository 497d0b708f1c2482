"""The codec of Ollama: it combines the parts of this package, and has the capabilities and the settings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kit.filters import DropForbiddenTools, FlattenMessages, PreferEffort, SendFields, SimplifySchemas
from dragoman.dialects.kit.values import check_representable
from dragoman.dialects.ollama import binding, messages, rules
from dragoman.model.capabilities import Capabilities, IdentifierFormat, traits
from dragoman.model.conversation import Conversation
from dragoman.model.filter import Filter
from dragoman.wire.jsonio import Json

# JSON Schema keywords that the service reads in a tool's parameters and in a property. It silently drops all others.
_ROOT = ("type", "items", "required", "properties")
_PROPERTY = ("type", "description", "enum", "items", "required", "properties", "anyOf")


class OllamaCodec(Struct, frozen=True):
    """Ollama's `/api/chat`. Its fields are its settings; docs/dialects/ollama.md explains each."""

    family: ClassVar[str] = messages.FAMILY
    num_ctx: Annotated[int, Meta(ge=1)] | None = None  # the same for all requests: a change reloads the model
    keep_alive: str | int | None = None
    truncate: bool = False

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            traits=traits("results_in_call_order", "reasoning", "no_reply_media", "one_block", "whole_calls"),
            ids=IdentifierFormat(r"\x21-\x7e", 256),
            arguments="object",
            choice_modes=frozenset({"auto"}),
            result_media=frozenset({"image"}),
            media=frozenset({("image", "base64")}),
            own_family_media=frozenset({("audio", "base64")}),
            media_roles=frozenset({"user"}),
            named_media=frozenset(),
            sampling=frozenset(messages.SAMPLING_FIELDS),
            output=frozenset({"text", "json", "schema"}),
            efforts=messages.EFFORTS,
            thinking=frozenset({"default", "on", "off"}),
            server_state=frozenset({messages.LOAD_MODEL.name}),
            window=self.num_ctx,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        family = self.family
        always: dict[str, Json] = {} if self.num_ctx is None else {"options.num_ctx": self.num_ctx}
        absent: dict[str, Json] = {} if self.keep_alive is None else {"keep_alive": self.keep_alive}
        return (
            DropForbiddenTools(family),
            PreferEffort(family),
            FlattenMessages(family),
            SimplifySchemas(family, _ROOT, _PROPERTY),
            SendFields(family, always, absent),
        )

    parse_request = staticmethod(messages.parse_request)
    parse_reply = staticmethod(messages.parse_reply)
    render_reply = staticmethod(messages.render_reply)
    decoder = staticmethod(messages.OllamaDecoder)
    encoder = staticmethod(messages.OllamaEncoder)
    parse_fault = staticmethod(binding.parse_fault)
    render_fault = staticmethod(binding.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(rules.OllamaStreamLint.breaches)
    rules = staticmethod(rules.RULES.all_rules)

    def render_request(self, conversation: Conversation) -> ApiRequest:
        check_representable(conversation, self.capabilities(conversation.model))
        return messages.render_request(conversation, truncate=self.truncate)
