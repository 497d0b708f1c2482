"""The language: settings, and the functions that speak it."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.dialects.base import Call, Decoder, Encoder, World
from dragoman.dialects.kit import openai_errors
from dragoman.dialects.kit.tools import NameOutput
from dragoman.dialects.openai import reply, request, rules, stream_rules
from dragoman.dialects.openai.encoder import OpenaiEncoder
from dragoman.dialects.openai.parts import DETAIL, FORMAT
from dragoman.dialects.openai.quirks import AskUsage, KeepSpecialTokens, OfferTools, OrderBlocks
from dragoman.dialects.openai.rule_table import RULES
from dragoman.dialects.openai.settings import FAMILY, OpenaiSettings
from dragoman.dialects.openai.stream import OpenaiDecoder
from dragoman.errors import Fault, MalformedRequest
from dragoman.model.capabilities import Alphabet, Capabilities, traits
from dragoman.model.conversation import Conversation, Reply
from dragoman.model.events import BlockKeys, Budget
from dragoman.model.filter import Filter
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import JsonError

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
_ANSWER_FIELDS = {"service_tier": "service_tier"}
_MEDIA = frozenset(
    {("image", "base64"), ("image", "url"), ("audio", "base64"), ("document", "base64"), ("document", "file")}
)
_BY_ADDRESS = frozenset({("document", "url")})


class OpenaiCodec(OpenaiSettings, frozen=True):
    """OpenAI Chat Completions, and the many servers that speak it."""

    @property
    def family(self) -> str:
        return FAMILY

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            ids=Alphabet(r"\x21-\x7e", 64),
            traits=traits(
                "results_in_call_order",
                "bare_tools",
                "choice_names",
                "parallel_flag",
                "strict_tools",
                "reasoning",
                "seal_slot",
                "raw_tools",
                "open_calls",
                "loose_calls",
                "choices",
                "cites",
                "output_names",
                "user",
                when={"text_tools": self.custom_tools},
            ),
            shared_fields={
                "tool": {"format": FORMAT} if self.custom_tools else {},
                "media": {"detail": DETAIL},
                "answer": _ANSWER_FIELDS,
                "request": {name: name for name in self.options},
            },
            result_media=frozenset({"image"}) if self.result_media else frozenset(),
            media=_MEDIA | _BY_ADDRESS if self.file_urls else _MEDIA,
            home_media=_BY_ADDRESS,
            media_roles=frozenset({"user"}),
            seals=frozenset({FAMILY}),
            knobs=frozenset({*request.KNOBS, *self.more_knobs}),
            knob_ranges=(
                ("temperature", 0, 2),
                ("top_p", 0, 1),
                ("frequency_penalty", -2, 2),
                ("presence_penalty", -2, 2),
            ),
            output=frozenset({"text", "json", "schema"}),
            efforts=EFFORTS,
            thinking=frozenset({"default", "off"}),
            user_limit=self.user_limit,
            files="openai",
            option_needs={"metadata": "store"},
            stop_limit=4,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        asked: list[Filter] = [AskUsage()] if self.ask_usage else []
        kept: list[Filter] = [KeepSpecialTokens()] if self.special_tokens else []
        return (OrderBlocks(), NameOutput("openai.name_output", "response_format"), OfferTools(), *asked, *kept)

    def parse_request(self, call: Call) -> Conversation:
        try:
            return request.parse_request(call, self)
        except (RecursionError, JsonError):
            raise MalformedRequest("nested too deeply") from None

    def render_request(self, conversation: Conversation) -> Call:
        return request.render_request(conversation, self)

    def parse_reply(self, body: bytes, asked: Conversation) -> Reply:
        return reply.parse_reply(body, asked, self)

    def render_reply(self, reply_: Reply, asked: Conversation, world: World) -> bytes:
        return reply.render_reply(reply_, asked, world, self)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> Decoder:
        return OpenaiDecoder(asked, world, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> Encoder:
        return OpenaiEncoder(asked, world, self, budget)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return openai_errors.parse_fault(response)

    render_fault = staticmethod(openai_errors.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(stream_rules.stream_breaches)
    rules = staticmethod(RULES.declared)
