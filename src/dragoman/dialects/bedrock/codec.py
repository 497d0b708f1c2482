"""The language: the parts of this package as one codec, and what it can say."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.dialects.base import Call, World
from dragoman.dialects.bedrock import faults, reply, request, rules, stream_rules
from dragoman.dialects.bedrock.encoder import BedrockEncoder
from dragoman.dialects.bedrock.media import S3
from dragoman.dialects.bedrock.models import vendor_of
from dragoman.dialects.bedrock.nodes import FAMILY
from dragoman.dialects.bedrock.quirks import (
    AccompanyDocuments,
    FitMedia,
    FitWords,
    NameDocuments,
    NoChoice,
    OwnReasoning,
    SettleCache,
    SettleResults,
    SettleTools,
)
from dragoman.dialects.bedrock.rule_table import RULES
from dragoman.dialects.bedrock.stream import BedrockDecoder
from dragoman.dialects.rulebook import Breach
from dragoman.errors import Fault
from dragoman.model.capabilities import Alphabet, Capabilities, reads_results_by_order, traits
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, Budget
from dragoman.model.filter import Filter
from dragoman.wire.http import HttpResponse

_HOW = {"image": ("base64", "url"), "document": ("base64", "url", "text"), "audio": ("base64", "url")}
_HOW["video"] = _HOW["audio"]
_MOST_STOPS = 2500


class BedrockCodec(Struct, frozen=True):
    """Bedrock Converse.

    The setting: `vendor` is whose model an id means that does not tell it, such as an inference profile's ARN."""

    vendor: str = ""

    @property
    def family(self) -> str:
        return FAMILY

    def capabilities(self, model: str) -> Capabilities:
        vendor = vendor_of(model, self.vendor)
        claude = vendor.claude_fields
        return Capabilities(
            system="leading",
            turns="merge",
            traits=traits(
                "no_blank_text",
                "result_errors",
                "no_answer_media",
                "reasoning",
                "seal_slot",
                "one_block",
                "citations",
                "output_names",
                "closed_schemas",
                "user",
                when={
                    "user_last": not vendor.prefill,
                    "results_in_call_order": reads_results_by_order(model),
                    "parallel_flag": claude,
                    "strict_tools": vendor.strict_tools,
                    "sealed_reasoning": vendor.reasoning == "signed",
                    "budgets": claude,
                    "thinking_show": claude,
                },
            ),
            ids=Alphabet("a-zA-Z0-9_.:-", 64),
            arguments="object",
            choice_modes=frozenset({"auto", "any", "one", "none"} if claude else {"auto", "any", "one"}),
            result_media=frozenset({"image", "document", "video"}),
            media=frozenset((kind, how) for kind in vendor.media for how in _HOW[kind]),
            seals=frozenset({FAMILY, "anthropic"} if vendor.name == "anthropic" else ()),
            cache_marks=4 if vendor.cache else 0,
            knobs=frozenset({"temperature", "top_p"} | ({"top_k"} if vendor.top_k else set())),
            knob_ranges=(("temperature", 0.0, 1.0), ("top_p", 0.0, 1.0)),
            output=frozenset({"text", "schema"}),
            efforts=vendor.efforts,
            thinking=frozenset({"default", "off", "on", "adaptive"} if claude else {"default"}),
            least_budget=1024 if claude else 0,
            user_limit=256,
            holds=frozenset({"promptVariables"}),
            addresses=(S3,),
            stop_limit=_MOST_STOPS,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        vendor = vendor_of(model, self.vendor)
        return (
            OwnReasoning(vendor),
            FitMedia(),
            NoChoice(),
            # after all shared filters
            SettleTools(),
            SettleResults(vendor.results_apart, vendor.json_results),
            NameDocuments(),
            AccompanyDocuments(),
            SettleCache(vendor.cached_tools),
            FitWords(),
        )

    def parse_request(self, call: Call) -> Conversation:
        return request.parse_request(call, vendor_of(call.model, self.vendor))

    def render_request(self, conversation: Conversation) -> Call:
        return request.render_request(conversation, vendor_of(conversation.model, self.vendor))

    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> BedrockDecoder:
        return BedrockDecoder(asked, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> BedrockEncoder:
        return BedrockEncoder(budget)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return faults.parse_fault(response)

    def breaches(self, call: Call) -> Sequence[Breach]:
        return rules.breaches(call, vendor_of(call.model, self.vendor))

    render_fault = staticmethod(faults.render_fault)
    stream_breaches = staticmethod(stream_rules.stream_breaches)
    rules = staticmethod(RULES.declared)
