"""The language: the parts of this package as one codec, and what it can say."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.dialects.anthropic import faults, reply, request, rules, stream_rules
from dragoman.dialects.anthropic.encoder import AnthropicEncoder
from dragoman.dialects.anthropic.meanings import COMPACTION
from dragoman.dialects.anthropic.nodes import FAMILY
from dragoman.dialects.anthropic.quirks import AskSomething, ObjectSchemas, OwnReasoning
from dragoman.dialects.anthropic.rule_table import RULES
from dragoman.dialects.anthropic.stream import AnthropicDecoder
from dragoman.dialects.base import World
from dragoman.errors import Fault
from dragoman.model.capabilities import Alphabet, Capabilities, reads_results_by_order, traits
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, Budget
from dragoman.model.filter import Filter
from dragoman.wire.http import HttpResponse

_MEDIA_TYPES = {
    "image": frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"}),
    "document": frozenset({"application/pdf"}),
}


class AnthropicCodec(Struct, frozen=True):
    """Anthropic Messages.

    The settings: `default_max_tokens` is what a request gets that sets no limit, since this dialect demands one;
    `signed_thinking = false` is for compatible services that sign no thinking and still want it back;
    `threads = false` for those that keep no message threads.
    """

    default_max_tokens: int = 8192
    signed_thinking: bool = True
    threads: bool = True

    @property
    def family(self) -> str:
        return FAMILY

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            traits=traits(
                "no_blank_text",
                "parallel_flag",
                "strict_tools",
                "result_errors",
                "reasoning",
                "seal_slot",
                "one_block",
                "citations",
                "pauses",
                "closed_schemas",
                "budgets",
                "thinking_show",
                "user",
                "zero_tokens",
                when={"results_in_call_order": reads_results_by_order(model), "sealed_reasoning": self.signed_thinking},
            ),
            names=Alphabet("a-zA-Z0-9_-", 128),
            arguments="object",
            result_media=frozenset({"image", "document"}),
            media=frozenset(
                {("image", how) for how in ("base64", "url", "file")}
                | {("document", how) for how in ("base64", "url", "text", "file")}
            ),
            media_types=_MEDIA_TYPES,
            seals=frozenset({FAMILY, "bedrock"}),
            cache_marks=4,
            knobs=frozenset(request.KNOBS),
            knob_ranges=(("temperature", 0.0, 1.0), ("top_p", 0.0, 1.0)),
            output=frozenset({"text", "schema"}),
            efforts=("low", "medium", "high", "xhigh", "max"),
            thinking=frozenset({"default", "off", "on", "adaptive", "between_tools"}),
            least_budget=rules.LEAST_BUDGET,
            user_limit=256,
            holds=frozenset({"thread", COMPACTION}) if self.threads else frozenset({COMPACTION}),
            files=FAMILY,
            max_tokens=self.default_max_tokens,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        return (AskSomething(), OwnReasoning(), ObjectSchemas())

    parse_request = staticmethod(request.parse_request)
    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> AnthropicDecoder:
        return AnthropicDecoder(asked, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> AnthropicEncoder:
        return AnthropicEncoder(asked, world)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return faults.parse_fault(response)

    render_fault = staticmethod(faults.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(stream_rules.stream_breaches)
    rules = staticmethod(RULES.declared)
