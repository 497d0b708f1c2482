"""The scenarios of the benchmark, the gateways measured in each, and the limits, as data."""

from __future__ import annotations

from dataclasses import dataclass

from bench import canned_responses
from bench.request_bodies import SIZE

OURS = "dragoman"
TENSORZERO, ROUTER, LITELLM = "tensorzero", "claude-code-router", "litellm"
FLOOR = "relay"  # a TCP relay: the cost of the kernel alone


@dataclass(frozen=True)
class Scenario:
    """One kind of exchange, and the gateways to compare with."""

    name: str
    title: str
    client: str  # the dialect of the client
    question: str
    stream: bool
    upstream: str  # the kind of response, which is also the requested model
    peers: tuple[str, ...] = ()
    callers: int = 16
    paced: bool = False
    per: str = "request"  # the unit of the limit; events are reported for every stream
    reads: bool = False  # translated through the canonical model even where bytes could pass unchanged
    size: int = SIZE  # characters of each message of a long question

    @property
    def model(self) -> str:
        """The requested model, as Dragoman names it."""
        return f"{self.upstream}-read" if self.reads else self.upstream

    @property
    def events(self) -> int:
        """The number of events in a response of the upstream; 0 if it is not a stream."""
        return len(canned_responses.canned_response(self.upstream).events) if self.stream else 0


SCENARIOS = (
    Scenario("A", "OpenAI→OpenAI, whole", "openai", "small", False, "whole", (TENSORZERO, LITELLM, FLOOR)),
    Scenario("B", "OpenAI→OpenAI, 300 chunks", "openai", "small", True, "stream", (TENSORZERO, LITELLM, FLOOR)),
    Scenario("BM", "B through the model", "openai", "small", True, "stream", (TENSORZERO,), reads=True),
    Scenario("C", "Anthropic→OpenAI, 300 chunks, a call", "anthropic", "tools", True, "call", (ROUTER, LITELLM)),
    Scenario("D", "Anthropic→Kiro, the same", "anthropic", "tools", True, "kiro", (f"{LITELLM}:C",)),
    Scenario("E", "OpenAI→OpenAI, 507 KB", "openai", "long", False, "whole", (TENSORZERO, LITELLM, FLOOR)),
    Scenario("E2", "E with tool pairs, Anthropic→Kiro", "anthropic", "pairs", True, "kiro", (f"{OURS}:E",)),
    Scenario("F", "OpenAI→raw Kimi, 20,000 deltas", "openai", "tools", True, "kimi", callers=4),
    Scenario("G", "OpenAI→Anthropic, 300 events, a call", "openai", "tools", True, "anthropic"),
    Scenario("H", "Anthropic→Bedrock, the same", "anthropic", "tools", True, "bedrock"),
    Scenario(
        "P",
        "64 streams, 100 events/s each",
        "openai",
        "small",
        True,
        "paced",
        (TENSORZERO, FLOOR),
        callers=64,
        paced=True,
        per="event",
    ),
    Scenario(
        "PC",
        "P, Anthropic→OpenAI",
        "anthropic",
        "small",
        True,
        "paced",
        (ROUTER, FLOOR),
        callers=64,
        paced=True,
        per="event",
    ),
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass(frozen=True)
class RatioLimit:
    """Our figure relative to a peer's in the same run: the median of the rounds' ratios must not exceed `most`.

    `goal` is a lower ratio to reach.
    """

    figure: str  # a scenario, or "cold start", "idle memory"
    peer: str
    most: float
    goal: float | None = None
    shown: str = ""

    @property
    def limit(self) -> str:
        """The limit as the report shows it."""
        return self.shown or f"{self.most:g}"


RATIO_LIMITS = (
    RatioLimit("A", TENSORZERO, 0.6),
    RatioLimit("B", TENSORZERO, 0.1),
    RatioLimit("BM", TENSORZERO, 0.25, goal=0.24),
    RatioLimit("C", ROUTER, 0.15, goal=0.14),
    RatioLimit("D", f"{LITELLM}:C", 1 / 60, shown="1/60"),
    RatioLimit("E", TENSORZERO, 0.6),
    RatioLimit("E2", f"{OURS}:E", 3.0),
    RatioLimit("P", TENSORZERO, 0.65),
    RatioLimit("PC", ROUTER, 0.4),
    RatioLimit("cold start", LITELLM, 1 / 30, shown="1/30"),
    RatioLimit("idle memory", LITELLM, 1 / 8, shown="1/8"),
)


@dataclass(frozen=True)
class Limit:
    """A figure of the growth tests that must not exceed `most`."""

    figure: str
    title: str
    most: float


LIMITS = (
    Limit("flat", "µs an event, 80,000 events to 5,000, Anthropic→OpenAI", 1.25),
    Limit("flat, passed", "the same, passed through", 1.25),
    Limit("flat, raw Kimi", "the same, raw Kimi", 1.25),
    Limit("linear", "ms a MB, 20 MB body to 0.5 MB", 1.25),
    Limit("stream memory", "KB an open stream, 1,000 held", 20.0),
    Limit("kept memory", "KB a stream that has ended", 0.5),
)
