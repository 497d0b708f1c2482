"""Limits of requests: a refusal names the limit and its setting, and checks are cheap. Also admission and retries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.instructions import count_instructions
from dragoman.accounts.account import Account
from dragoman.errors import (
    BadFrame,
    ClientFault,
    ConnectFailed,
    DragomanError,
    ErrorKind,
    Fault,
    LocalMisuse,
    MalformedRequest,
    NotAuthorised,
    Reset,
    TimedOut,
    TooLarge,
    Unrepresentable,
    UpstreamFault,
)
from dragoman.gateway.admission import Admission, KeyCheck
from dragoman.gateway.breaker import CooldownActive
from dragoman.gateway.config import Server
from dragoman.gateway.limits import (
    MemoryAccount,
    MemoryBudget,
    Overloaded,
    RequestLimits,
    check_conversation,
    check_text,
    check_tree,
)
from dragoman.gateway.retry_policy import REQUEST, RetryBudget, RetrySettings, pick_error, retry_action, with_reset
from dragoman.http.exchange import DEFAULT_BODY_TIMEOUT, BodyTimeout, Exchange
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.store.interface import GATEWAY_KEY
from dragoman.wire import jsonio
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json
from tests.growth import check_linear_growth

LIMITS = RequestLimits()


def test_the_numbers_are_those_of_the_specification() -> None:
    assert (
        RequestLimits(
            depth=128,
            nodes=1_000_000,
            messages=2048,
            tools=512,
            schema=256 * 1024,
            name=256,
            streams=2048,
            in_flight=256 * 1024 * 1024,
        )
        == LIMITS
    )


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value] if kind == "list" else {"a": value, "b": 1}
    return value


def counted(tree: Any) -> tuple[int, int]:
    """The same by the simplest means: levels of containers, and values."""
    inside = list(tree.values()) if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    below = [counted(value) for value in inside]
    own = isinstance(tree, dict | list)
    return own + max((depth for depth, _ in below), default=0), 1 + sum(nodes for _, nodes in below)


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a,[]{}"\\\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='a,[{"\\$'), inner),
)


@given(trees, st.integers(0, 5), st.integers(1, 40))
def test_a_tree_is_refused_exactly_when_it_is_too_deep_or_too_large(tree: Any, depth: int, nodes: int) -> None:
    limits = RequestLimits(depth=depth, nodes=nodes)
    deep, many = counted(tree)
    try:
        check_tree(tree, 1, limits)
    except DragomanError:
        assert deep > depth or many > nodes
    else:
        assert deep <= depth and many <= nodes


@given(trees, st.integers(1, 30), st.booleans())
def test_text_is_refused_only_if_it_has_too_many_values(tree: Any, nodes: int, ascii_only: bool) -> None:
    text = json.dumps(tree, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    _, many = counted(tree)
    try:
        check_text(text, RequestLimits(nodes=nodes))
    except TooLarge:
        assert many > nodes
    else:
        assert many <= nodes


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_128_levels_are_accepted_and_129_are_not(kind: str) -> None:
    check_tree(nested(128, kind), 1, LIMITS)
    with pytest.raises(MalformedRequest, match=r"128 levels deep.*server\.limits\.depth"):
        check_tree(nested(129, kind), 1, LIMITS)


@pytest.mark.parametrize("text", [b"[" + b"[]," * 1_100_000 + b"1]", b"[" + b'{"a":""},' * 600_000 + b"1]"])
def test_a_million_values_are_refused_before_they_become_objects(text: bytes) -> None:
    with pytest.raises(TooLarge, match=r"1000000 JSON values.*server\.limits\.nodes"):
        check_text(text, LIMITS)


def test_a_long_text_with_json_in_it_is_one_value() -> None:
    check_text(jsonio.encode({"content": '[{"a":1,"b":[]}],\\' * 300_000}), LIMITS)


def conversation(**more: Any) -> Conversation:
    return Conversation("m", (Message("user", (Text("hi"),)),), **more)


def check(request: Conversation, tools: Any = ()) -> None:
    raw = jsonio.encode({"tools": [{"name": tool.name, "schema": tool.schema} for tool in tools]})
    shape = check_tree(jsonio.decode(raw), len(raw), LIMITS)
    check_conversation(request, shape, LIMITS)


def tool(schema: Any = None, name: str = "t") -> ToolSpec:
    return ToolSpec(name, "", schema or {"type": "object"})


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((tool(name="n" * 257),), r"tools\[0\].*256 \(setting server\.limits\.name\)"),
        ((tool({"description": "x" * 270_000}),), r"tools\[0\].*262144 \(setting server\.limits\.schema\)"),
        ((tool(), tool({"enum": nested(70)})), r"tools\[1\].*64 levels"),
        ((tool({"enum": list(range(20_001))}),), r"tools\[0\].*20000 values"),
        ((tool({"items": {"$ref": "https://example.org/a.json"}}),), r"tools\[0\].*point into the schema itself"),
        ((tool({"items": {"$ref": "//example.org/a.json"}}),), r"point into the schema itself"),
        ((tool({"items": [{"$ref": "file:///etc/passwd"}]}),), r"point into the schema itself"),
        (
            (tool(),) * 513,
            r"tools: the request has 513 tools, more than the limit of 512 \(setting server\.limits\.tools\)",
        ),
    ],
)
def test_a_tool_over_a_limit_is_refused_with_its_location(found: Any, words: str) -> None:
    with pytest.raises(DragomanError, match=words) as refused:
        check(conversation(tools=found), found)
    assert refused.value.fault.status in (400, 413)


@pytest.mark.parametrize(
    "found",
    [
        tool(name="n" * 256),
        tool({"enum": nested(62)}),
        tool({"enum": list(range(19_000))}),
        tool({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}),
        tool({"properties": {"$ref": {"type": "string"}, "url": {"const": "https://example.org"}}}),
        tool({"description": "x" * 200_000}),
    ],
)
def test_a_tool_within_the_limits_passes(found: ToolSpec) -> None:
    check(conversation(tools=(found,) * 3), (found,) * 3)


def test_too_many_messages_are_refused() -> None:
    one = Message("user", (Text("x"),))
    check(Conversation("m", (one,) * 2048))
    with pytest.raises(
        MalformedRequest, match=r"2049 messages, more than the limit of 2048 \(setting server\.limits\.messages\)"
    ):
        check(Conversation("m", (one,) * 2049))


# --- all together


def test_reserved_memory_is_limited_and_always_released() -> None:
    load = MemoryBudget(RequestLimits(in_flight=1024 * 1024, streams=2))
    one, two = load.enter(), load.enter()
    one.reserve(1_000_000)
    with pytest.raises(Overloaded, match=r"1048576 bytes.*server\.limits\.in_flight") as full:
        two.reserve(100_000)
    assert (full.value.fault.kind, full.value.fault.status, full.value.fault.retry_after) == ("overloaded", 503, 1.0)
    two.reserve(40_000)
    one.leave()
    two.reserve(900_000)
    two.hold("body", 40_000)
    three = load.enter()
    with pytest.raises(Overloaded, match=r"2 requests are running.*server\.limits\.streams"):
        load.enter()
    for each in (two, three):
        each.leave()
    assert (load.bytes, load.requests) == (0, 0)


# --- what it costs


def test_the_check_costs_a_small_part_of_parsing() -> None:
    """200 messages, 507 KB: a few instructions for a value, however long it is."""
    body = jsonio.encode({"messages": [{"role": "user", "content": "word " * 500}] * 200})
    tree = jsonio.decode(body)
    assert count_instructions(lambda: check_text(body, LIMITS)) < 200  # looks at its length alone
    nodes = check_tree(tree, len(body), LIMITS).nodes
    assert nodes == 602 and count_instructions(lambda: check_tree(tree, len(body), LIMITS)) < 25 * nodes


def test_the_check_of_twenty_megabytes_is_linear() -> None:
    def text(size: int) -> bytes:
        return jsonio.encode({"messages": [{"role": "user", "content": '{"a":[1,2,{}]},' * 200}] * (size // 4000)})

    limits = RequestLimits(nodes=100_000)  # so that the text is looked at twice

    def work(size: int) -> Any:
        body = text(size)
        return lambda: check_text(body, limits)

    check_linear_growth(work, 2_500_000)


def test_large_requests_leave_room_for_small_ones() -> None:
    """Regression: a few uploads from one address kept every other client out."""
    most = 64 * 1024 * 1024
    load = MemoryBudget(RequestLimits(in_flight=most))
    large, other = load.enter("a"), load.enter("a")
    large.reserve(most - 100)
    with pytest.raises(Overloaded):
        other.reserve(2 * 1024 * 1024)
    small = load.enter("b")
    small.reserve(500_000)
    small.hold("decoded", 900_000)
    many = [load.enter("b") for _ in range(16)]
    with pytest.raises(Overloaded):
        for account in many:
            account.reserve(1024 * 1024)
    assert load.small_bytes <= most // 8
    for account in (large, other, small, *many):
        account.leave()
    assert (load.request_bytes, load.small_bytes, load.requests) == (0, 0, 0)


# --- A head is judged each time, whatever was let in before it

KEY = "dgm_a-key-for-the-gate-0123456789"
OURS: Headers = (("host", "localhost"), ("x-api-key", KEY), ("content-length", "2"))


class FakeExchange(Exchange[MemoryAccount]):
    """An exchange without a connection."""

    async def body(self, limit: int, pace: BodyTimeout = DEFAULT_BODY_TIMEOUT) -> bytes:
        return b""

    def whole(self, status: int, headers: Headers, body: bytes) -> None: ...
    def head(self, status: int, headers: Headers) -> None: ...
    def flush(self) -> None: ...
    def chunk(self, data: bytes, *, last: bool = False) -> None: ...


def asking(
    headers: Headers, *, path: str = "/v1/messages", method: str = "POST", version: str = "1.1"
) -> Exchange[MemoryAccount]:
    return FakeExchange(HttpRequest(method, path, headers=headers), target=path, version=version, began=0.0)


def admission() -> Admission:
    return Admission(Server(admin_socket=Path("admin.sock")), KeyCheck(KEY))


def judge(admitting: Admission, exchange: Exchange[MemoryAccount]) -> str:
    """Return the id of the account of a head. Raises ClientFault."""
    found = asyncio.run(admitting.judge_head(exchange))
    assert isinstance(found, Account)
    return found.id


@pytest.mark.parametrize(
    ("headers", "line"),
    [
        ((("host", "localhost"), ("x-api-key", "another"), ("content-length", "2")), {}),
        (OURS[:1], {}),
        ((*OURS, ("content-length", "2")), {}),
        ((*OURS, ("transfer-encoding", "chunked")), {}),
        ((("host", "elsewhere.example"), *OURS[1:]), {}),
        (OURS, {"version": "2.0"}),
        (OURS, {"method": "TRACE"}),
        (OURS, {"path": "http://localhost/v1/messages"}),
    ],
    ids=["key", "no key", "two lengths", "an encoding", "host", "version", "method", "target"],
)
def test_a_different_request_head_is_checked_although_an_earlier_one_was_admitted(
    headers: Headers, line: dict[str, str]
) -> None:
    gate = admission()
    assert judge(gate, asking(OURS)) == GATEWAY_KEY
    for _ in range(2):  # and a refusal teaches nothing
        with pytest.raises(ClientFault):
            judge(gate, asking(headers, **line))


def test_transfer_encoding_with_content_length_is_refused_though_each_alone_was_admitted() -> None:
    gate = admission()
    chunked = (*OURS[:2], ("transfer-encoding", "chunked"))
    assert judge(gate, asking(chunked)) == GATEWAY_KEY
    assert judge(gate, asking(OURS)) == GATEWAY_KEY
    with pytest.raises(ClientFault, match="must not have both"):
        judge(gate, asking((*chunked, OURS[2])))


def test_a_signature_is_checked_each_time() -> None:
    gate = admission()
    signed = asking((("host", "localhost"), ("authorization", "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request")))
    for _ in range(2):
        with pytest.raises(NotAuthorised):
            judge(gate, signed)


# --- What a failed attempt is answered with: by whom, how often, after how long


def refused(kind: ErrorKind, retry_after: float | None = None) -> UpstreamFault:
    return UpstreamFault("no", fault=Fault(kind, "no", 429, retry_after))


def test_the_numbers_of_the_policy_are_those_of_the_specification() -> None:
    assert RetrySettings() == RetrySettings(retries=2, min_wait=0.2, max_wait=2.0, max_retry_after=30.0)
    budget = RetryBudget()
    assert (budget.share, budget.always, budget.window) == (0.2, 3, 10.0)


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ConnectFailed("refused"), "again"),
        (Reset("cut"), "again"),
        (refused("overloaded"), "again"),
        (refused("server"), "again"),
        (BadFrame("x"), "again"),
        (ConnectFailed("x", fault=Fault("overloaded", "queue")), "target"),
        (Unrepresentable("x"), "target"),
        (LocalMisuse("x"), "fail"),
        (refused("rate_limit"), "key"),
        (refused("quota"), "key"),
        (refused("auth"), "key"),
        (TimedOut("it may have run, and would be paid twice"), "target"),
        (refused("timeout"), "target"),
        (refused("not_found"), "target"),
        (refused("invalid"), "fail"),
        (refused("context_full"), "fail"),
        (MalformedRequest("another target may take it"), "target"),
        (Overloaded("we are full"), "fail"),
        (CooldownActive("later", 5.0, hinted=False), "key"),
    ],
)
def test_each_error_has_one_retry_decision(error: DragomanError, step: str) -> None:
    assert retry_action(error) == step


def test_retry_delays_are_random_between_200_ms_and_two_seconds() -> None:
    for tries in range(6):
        waits = [RetrySettings().wait(Reset("x"), tries) or 0 for _ in range(300)]
        assert min(waits) >= 0.2 and max(waits) <= 2.0
        assert max(waits) - min(waits) > 0.1  # not all at once
    assert max(RetrySettings().wait(Reset("x"), 5) or 0 for _ in range(300)) > 1.5
    waits = [RetrySettings().wait(refused("rate_limit", 3.0), 2) or 0 for _ in range(100)]
    assert max(waits) - min(waits) > 0.1


@pytest.mark.parametrize(
    ("retry_after", "is_obeyed"), [(0.0, True), (7.0, True), (30.0, True), (30.1, False), (1.6e6, False)]
)
def test_a_retry_after_up_to_thirty_seconds_is_obeyed_and_a_longer_one_fails_at_once(
    retry_after: float, is_obeyed: bool
) -> None:
    wait = RetrySettings().wait(refused("rate_limit", retry_after), 0)
    assert wait is None if not is_obeyed else wait is not None and max(retry_after, 0.2) <= wait <= retry_after + 0.4


def test_retries_are_a_fifth_of_the_traffic_and_three_in_any_case() -> None:
    budget = RetryBudget()
    assert [budget.allows(0.0) for _ in range(4)] == [True, True, True, False]
    for _ in range(100):
        budget.recent.add(1.0, REQUEST)
    assert sum(budget.allows(1.0) for _ in range(100)) == 17  # with the three: twenty
    assert not budget.allows(9.9)
    assert budget.allows(11.1)


def test_a_client_gets_the_first_error_or_the_shortest_cooldown() -> None:
    first, second = Reset("first"), Reset("second")
    late, soon = CooldownActive("late", 60.0, hinted=True), CooldownActive("soon", 5.0, hinted=False)
    assert pick_error(None, first) is first
    assert pick_error(first, second) is first
    assert pick_error(first, soon) is first
    assert pick_error(late, first) is first  # An error of an upstream takes precedence over a cooldown.
    assert pick_error(late, soon) is soon
    assert pick_error(soon, late) is soon


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"anthropic-ratelimit-unified-reset": "1090"}, {}, 90),
        ({}, {"error": {"type": "usage_limit_reached", "resets_in_seconds": 120}}, 120),
        ({}, {"error": {"resets_at": 1060}}, 60),
        ({}, {"resets_at": 900}, 0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, {}, 360),
        ({"x-ratelimit-reset-requests": "soon"}, {"error": {"resets_at": "Monday"}}, None),
        ({}, {"error": {"resets_at": 10**30, "resets_in_seconds": -1}}, None),
        ({}, ["no object"], None),
    ],
)
def test_the_reset_time_is_read_from_headers_or_body(
    headers: dict[str, str], body: Json, seconds: float | None
) -> None:
    response = HttpResponse(429, tuple(headers.items()), jsonio.encode(body))
    assert with_reset(Fault("rate_limit", "no", 429), response, 1000.0).retry_after == seconds
    assert with_reset(Fault("rate_limit", "no", 429, 3.0), response, 1000.0).retry_after == 3.0
    assert with_reset(Fault("server", "no", 500), response, 1000.0).retry_after is None
