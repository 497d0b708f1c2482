"""The language: the parts of this package as one codec, and what it can say."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.dialects.base import Call, Decoder, Encoder, World
from dragoman.dialects.kit import openai_errors
from dragoman.dialects.kit.tools import NameOutput
from dragoman.dialects.responses import reply, request, rules, stream_rules
from dragoman.dialects.responses.encoder import ResponsesEncoder
from dragoman.dialects.responses.held import NAMES as HELD_NAMES
from dragoman.dialects.responses.nodes import FAMILY
from dragoman.dialects.responses.quirks import JoinAnswers, LeastTokens
from dragoman.dialects.responses.rule_table import RULES
from dragoman.dialects.responses.stream import ResponsesDecoder
from dragoman.errors import Fault, MalformedRequest
from dragoman.model.capabilities import Alphabet, Capabilities, reads_results_by_order, traits
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, Budget
from dragoman.model.filter import Filter
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import JsonError

_SHARED = ("metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
OPTIONS = {
    **{name: name for name in (*_SHARED, "safety_identifier", "service_tier")},
    "verbosity": "text.verbosity",
}
EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


class ResponsesCodec(Struct, frozen=True):
    """OpenAI Responses."""

    @property
    def family(self) -> str:
        return FAMILY

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            ids=Alphabet(r"\x21-\x7e", 64),
            traits=traits(
                "announces",
                "text_tools",
                "choice_names",
                "parallel_flag",
                "strict_tools",
                "shared_names",
                "no_answer_media",
                "reasoning",
                "seal_slot",
                "citations",
                "output_names",
                "user",
                when={"results_in_call_order": reads_results_by_order(model)},
            ),
            shared_fields={
                "tool": {"format": "format"},
                "media": {"detail": "detail"},
                "answer": {"service_tier": "service_tier"},
                "request": OPTIONS,
            },
            result_media=frozenset({"image", "document"}),
            media=frozenset(
                {("image", how) for how in ("base64", "url", "file")}
                | {("document", how) for how in ("base64", "url", "file")}
            ),
            media_roles=frozenset({"user", "system"}),
            seals=frozenset({FAMILY}),
            knobs=frozenset(request.KNOBS),
            knob_ranges=(("temperature", 0, 2), ("top_p", 0, 1)),
            output=frozenset({"text", "json", "schema"}),
            efforts=EFFORTS,
            thinking=frozenset({"default", "off"}),
            user_limit=64,
            holds=HELD_NAMES,
            files="openai",
            stop_limit=0,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        return (JoinAnswers(), LeastTokens(), NameOutput("responses.name_output", "text.format"))

    def parse_request(self, call: Call) -> Conversation:
        try:
            return request.parse_request(call)
        except (RecursionError, JsonError):
            raise MalformedRequest("nested too deeply") from None

    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(reply.parse_reply)
    render_reply = staticmethod(reply.render_reply)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> Decoder:
        return ResponsesDecoder(asked, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> Encoder:
        return ResponsesEncoder(asked, world, budget)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return openai_errors.parse_fault(response)

    render_fault = staticmethod(openai_errors.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(stream_rules.stream_breaches)
    rules = staticmethod(RULES.declared)
