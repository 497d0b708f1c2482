"""The language: the parts of this package as one codec, and what it can say."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.dialects.base import World
from dragoman.dialects.gemini import faults, quirks, reply, request, rules, stream_rules
from dragoman.dialects.gemini.encoder import GeminiEncoder
from dragoman.dialects.gemini.models import is_older
from dragoman.dialects.gemini.nodes import FAMILY
from dragoman.dialects.gemini.rule_table import RULES
from dragoman.dialects.gemini.settings import KNOBS
from dragoman.dialects.gemini.stream import GeminiDecoder
from dragoman.errors import Fault
from dragoman.model.capabilities import Alphabet, Capabilities, traits
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, Budget
from dragoman.model.filter import Filter
from dragoman.wire.http import HttpResponse


class GeminiCodec(Struct, frozen=True):
    """Gemini's generateContent."""

    @property
    def family(self) -> str:
        return FAMILY

    def capabilities(self, model: str) -> Capabilities:
        older = is_older(model)
        return Capabilities(
            system="leading",
            turns="merge",
            traits=traits(
                "user_last",
                "no_blank_text",
                "whole_calls",
                "bare_tools",
                "choice_names",
                "home_names",
                "result_errors",
                "reasoning",
                "sealed_words",
                "seal_slot",
                "seal_bytes",
                "one_block",
                "choices",
                "cites",
                "budgets",
                "thinking_show",
            ),
            names=Alphabet("a-zA-Z0-9_.:-", 128),
            ids=Alphabet(r"\x21-\x7e", 256),
            arguments="object",
            named_media=frozenset(),
            result_media=frozenset() if older else frozenset({"image", "document"}),
            media=frozenset(
                (kind, how) for kind in ("image", "document", "audio", "video") for how in ("base64", "url")
            ),
            seals=frozenset({FAMILY}),
            knobs=frozenset(KNOBS),
            knob_ranges=(
                ("temperature", 0, 2),
                ("top_p", 0, 1),
                ("presence_penalty", -2, 2),
                ("frequency_penalty", -2, 2),
            ),
            output=frozenset({"text", "json", "schema"}),
            efforts=() if older else ("minimal", "low", "medium", "high"),
            thinking=frozenset({"default", "off", "on", "adaptive"}),
            holds=frozenset({"cachedContent"}),
            files=FAMILY,
            addresses=("gs://", "https://generativelanguage.googleapis.com/"),
            stop_limit=rules.MOST_STOPS,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        older = is_older(model)
        return (
            *((quirks.EffortAsBudget(),) if older else ()),
            quirks.AskForEvents(),
            quirks.OneChoice(),
            quirks.SettleThinking(),
            quirks.SettleResults(),
            quirks.FitMedia(),
            *(() if older else (quirks.SignCalls(),)),
        )

    parse_request = staticmethod(request.parse_request)
    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> GeminiDecoder:
        return GeminiDecoder(asked, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> GeminiEncoder:
        return GeminiEncoder(asked, world, budget)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return faults.parse_fault(response)

    render_fault = staticmethod(faults.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(stream_rules.stream_breaches)
    rules = staticmethod(RULES.declared)
