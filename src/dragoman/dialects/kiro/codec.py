"""The language: the parts of this package as one codec, what it can say, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from dragoman.dialects.base import Call, World
from dragoman.dialects.kiro import faults, reply, request, rules, stream_rules
from dragoman.dialects.kiro.encoder import KiroEncoder
from dragoman.dialects.kiro.models import CLAUDE_EFFORTS, GPT_EFFORTS, known_window, model_of
from dragoman.dialects.kiro.nodes import FAMILY
from dragoman.dialects.kiro.quirks.leaks import RecoverCalls
from dragoman.dialects.kiro.quirks.request import (
    FitImages,
    FitSize,
    KeepOnce,
    NameRequest,
    NoLength,
    ToldEnd,
    WholeCharacters,
)
from dragoman.dialects.kiro.quirks.thinking import AskThinking, WrapThinking
from dragoman.dialects.kiro.quirks.tools import (
    CleanSchemas,
    DescribeTools,
    FewTools,
    GiveDescriptions,
    LeaveOut,
    StubTools,
)
from dragoman.dialects.kiro.quirks.turns import BuildHistory, ReadResults
from dragoman.dialects.kiro.rule_table import RULES
from dragoman.dialects.kiro.stream import KiroDecoder
from dragoman.dialects.rulebook import Breach
from dragoman.errors import Fault, LocalMisuse
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Reply
from dragoman.model.events import BlockKeys, Budget
from dragoman.model.filter import Filter
from dragoman.wire.http import HttpResponse

_EFFORTS = {"claude": CLAUDE_EFFORTS, "gpt": GPT_EFFORTS}

_WORDS = {"pairing": ("placeholders", "merge"), "oversize": ("refuse", "trim"), "long_descriptions": ("system", "cut")}


def _are_shares(split: Sequence[float] | bool) -> bool:
    if isinstance(split, bool):
        return not split
    return len(split) == len(_SHARED) and min(split) >= 0 and sum(split) > 0


_SHARED = ("input", "cache writes", "cache reads")
_RANGES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("fillers", "two texts that say something", lambda texts: len(texts) == 2 and all(map(str.strip, texts))),
    ("history_limit", "1 or more, or none", lambda most: most is None or most >= 1),
    ("max_tools", "1 or more", lambda most: most >= 1),
    ("usage_window", '1 or more, or "model"', lambda window: window == "model" or window >= 1),
    ("usage_split", f"a share each of {', '.join(_SHARED)}, or False", _are_shares),
)


class KiroCodec(Struct, frozen=True):
    """Kiro (AWS CodeWhisperer). Its fields are its settings; docs/dialects/kiro.md says what each does."""

    pairing: Literal["placeholders", "merge"] = "placeholders"
    fillers: tuple[str, str] = ("I understand.", "Continue")
    oversize: Literal["refuse", "trim"] = "refuse"
    history_limit: int | None = None
    long_descriptions: Literal["system", "cut"] = "system"
    max_tools: int = 110
    usage_window: int | Literal["model"] = 172_500
    usage_split: tuple[int, int, int] | bool = (1, 2, 25)  # False: no shares
    origin: str = "AI_EDITOR"
    profile_arn: str = ""
    conversation_id: str = ""
    recover_calls: bool = True
    drop_repeats: bool = False

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise LocalMisuse(f"expected {' or '.join(words)}, got {getattr(self, name)!r}", at=name)
        for name, expected, sound in _RANGES:
            if not sound(getattr(self, name)):
                raise LocalMisuse(f"expected {expected}, got {getattr(self, name)!r}", at=name)

    @property
    def family(self) -> str:
        return FAMILY

    def window(self, model: str) -> int:
        """The window that a percentage of context is of."""
        return model_of(model).window if self.usage_window == "model" else self.usage_window

    def capabilities(self, model: str) -> Capabilities:
        known = model_of(model)
        return Capabilities(
            system="none",
            turns="merge" if self.pairing == "merge" else "pair",
            fillers=self.fillers,
            turn_seam="\n\n",
            traits=traits(
                "user_last",
                "no_blank_text",
                "result_errors",
                "no_answer_media",
                "reasoning",
                "sealed_reasoning",
                "seal_slot",
                "streams_only",
            ),
            arguments="object",
            choice_modes=frozenset({"auto"}),
            media=frozenset({("image", "base64")}) if known.images else frozenset(),
            named_media=frozenset(),
            seals=frozenset({FAMILY}),
            efforts=_EFFORTS.get(known.asks, ()),
            thinking=frozenset({"default", "adaptive"} if known.asks == "claude" else {"default"}),
            stop_limit=0,
            window=known_window(model),
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        """In the order of their work; the first three run before drop_foreign, the fourth before rename_tools, those up
        to FitSize before fold_system, the rest after all shared filters."""
        return (
            LeaveOut(),
            WrapThinking(),
            ReadResults(),
            GiveDescriptions(),  # while tools have the client's names
            # with the names and ids that go out, and before the system text has its place
            NameRequest(self.conversation_id),
            DescribeTools(self.long_descriptions),
            FewTools(self.max_tools),
            *((RecoverCalls(),) if self.recover_calls else ()),
            AskThinking(),
            FitSize(self.oversize, self.history_limit, self.pairing == "merge"),
            # last
            NoLength(),
            FitImages(),
            CleanSchemas(),
            StubTools(),
            WholeCharacters(),
            BuildHistory(),
            ToldEnd(),
            *((KeepOnce(),) if self.drop_repeats else ()),
        )

    def parse_request(self, call: Call) -> Conversation:
        return request.parse_request(request.plain(call), self)

    def render_request(self, conversation: Conversation) -> Call:
        return request.render_request(conversation, self)

    def parse_reply(self, body: bytes, asked: Conversation) -> Reply:
        return reply.parse_reply(body, asked, self)

    def render_reply(self, reply_: Reply, asked: Conversation, world: World) -> bytes:
        return reply.render_reply(reply_, asked, world, self)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> KiroDecoder:
        return KiroDecoder(asked, world, self, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> KiroEncoder:
        return KiroEncoder(asked, world, self, budget)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        """What a refusal says; with the conversation that was sent, one that is too long says how long."""
        return faults.parse_fault(response, sent)

    render_fault = staticmethod(faults.render_fault)

    def breaches(self, call: Call) -> Sequence[Breach]:
        return rules.breaches(request.plain(call))

    stream_breaches = staticmethod(stream_rules.stream_breaches)
    rules = staticmethod(RULES.declared)
