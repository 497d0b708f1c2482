"""How much of anything a request may have: refused with the limit and its setting, and cheap to find out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.instructions import instructions
from dragoman.errors import DragomanError, MalformedRequest, TooLarge
from dragoman.gateway.limits import MemoryBudget, Overloaded, RequestLimits, check_conversation, check_text, check_tree
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.wire import jsonio
from tests.growth import grows_linearly

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
def test_text_is_refused_only_when_it_holds_more_values_than_may_be(tree: Any, nodes: int, ascii_only: bool) -> None:
    text = json.dumps(tree, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    _, many = counted(tree)
    try:
        check_text(text, RequestLimits(nodes=nodes))
    except TooLarge:
        assert many > nodes
    else:
        assert many <= nodes


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_128_levels_are_taken_and_129_are_not(kind: str) -> None:
    check_tree(nested(128, kind), 1, LIMITS)
    with pytest.raises(MalformedRequest, match=r"128 levels deep.*server\.limits\.depth"):
        check_tree(nested(129, kind), 1, LIMITS)


@pytest.mark.parametrize("text", [b"[" + b"[]," * 1_100_000 + b"1]", b"[" + b'{"a":""},' * 600_000 + b"1]"])
def test_a_million_values_are_refused_before_they_become_objects(text: bytes) -> None:
    with pytest.raises(TooLarge, match=r"1000000 values.*server\.limits\.nodes"):
        check_text(text, LIMITS)


def test_a_long_text_with_json_in_it_is_one_value() -> None:
    check_text(jsonio.encode({"content": '[{"a":1,"b":[]}],\\' * 300_000}), LIMITS)


def conversation(**more: Any) -> Conversation:
    return Conversation("m", (Message("user", (Text("hi"),)),), **more)


def check(asked: Conversation, tools: Any = ()) -> None:
    raw = jsonio.encode({"tools": [{"name": tool.name, "schema": tool.schema} for tool in tools]})
    shape = check_tree(jsonio.decode(raw), len(raw), LIMITS)
    check_conversation(asked, shape, LIMITS)


def tool(schema: Any = None, name: str = "t") -> ToolSpec:
    return ToolSpec(name, "", schema or {"type": "object"})


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ((tool(name="n" * 257),), r"tools\[0\].*256 \(server\.limits\.name\)"),
        ((tool({"description": "x" * 270_000}),), r"tools\[0\].*262144 \(server\.limits\.schema\)"),
        ((tool(), tool({"enum": nested(70)})), r"tools\[1\].*64 levels"),
        ((tool({"enum": list(range(20_001))}),), r"tools\[0\].*20000 values"),
        ((tool({"items": {"$ref": "https://example.org/a.json"}}),), r"tools\[0\].*its own parts"),
        ((tool({"items": {"$ref": "//example.org/a.json"}}),), r"its own parts"),
        ((tool({"items": [{"$ref": "file:///etc/passwd"}]}),), r"its own parts"),
        ((tool(),) * 513, r"tools: 513 tools; the limit here is 512 \(server\.limits\.tools\)"),
    ],
)
def test_what_is_too_much_of_a_tool_is_refused_at_its_place(found: Any, words: str) -> None:
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
def test_what_is_within_the_limits_passes(found: ToolSpec) -> None:
    check(conversation(tools=(found,) * 3), (found,) * 3)


def test_more_messages_than_may_be_are_refused() -> None:
    one = Message("user", (Text("x"),))
    check(Conversation("m", (one,) * 2048))
    with pytest.raises(MalformedRequest, match=r"2049 messages; the limit here is 2048 \(server\.limits\.messages\)"):
        check(Conversation("m", (one,) * 2049))


# --- all together


def test_what_is_held_is_limited_and_always_given_back() -> None:
    load = MemoryBudget(RequestLimits(in_flight=1024 * 1024, streams=2))
    one, two = load.enter(), load.enter()
    one.reserve(1_000_000)
    with pytest.raises(Overloaded, match=r"1048576 bytes.*server\.limits\.in_flight") as full:
        two.reserve(100_000)
    assert (full.value.fault.kind, full.value.fault.status, full.value.fault.retry_after) == ("overloaded", 503, 1.0)
    two.reserve(40_000)
    one.leave()
    two.reserve(900_000)
    two.add(-900_000)
    three = load.enter()
    with pytest.raises(Overloaded, match=r"2 requests are running.*server\.limits\.streams"):
        load.enter()
    for each in (two, three):
        each.leave()
    assert (load.bytes, load.requests) == (0, 0)


# --- what it costs


def test_looking_costs_a_small_part_of_reading() -> None:
    """200 messages, 507 KB: a few instructions for a value, however long it is."""
    body = jsonio.encode({"messages": [{"role": "user", "content": "word " * 500}] * 200})
    tree = jsonio.decode(body)
    assert instructions(lambda: check_text(body, LIMITS)) < 200  # looks at its length alone
    nodes = check_tree(tree, len(body), LIMITS).nodes
    assert nodes == 602 and instructions(lambda: check_tree(tree, len(body), LIMITS)) < 25 * nodes


def test_looking_at_twenty_megabytes_is_linear() -> None:
    def text(size: int) -> bytes:
        return jsonio.encode({"messages": [{"role": "user", "content": '{"a":[1,2,{}]},' * 200}] * (size // 4000)})

    limits = RequestLimits(nodes=100_000)  # so that the text is looked at twice

    def work(size: int) -> Any:
        body = text(size)
        return lambda: check_text(body, limits)

    grows_linearly(work, 2_500_000)


def test_large_requests_leave_room_for_small_ones() -> None:
    """S4: a few uploads from one address kept every other client out."""
    most = 64 * 1024 * 1024
    load = MemoryBudget(RequestLimits(in_flight=most))
    large, other = load.enter("a"), load.enter("a")
    large.reserve(most - 100)
    with pytest.raises(Overloaded):
        other.reserve(2 * 1024 * 1024)
    small = load.enter("b")
    small.reserve(500_000)
    small.decoded(900_000)
    many = [load.enter("b") for _ in range(16)]
    with pytest.raises(Overloaded):
        for account in many:
            account.reserve(1024 * 1024)
    assert load.small <= most // 8
    for account in (large, other, small, *many):
        account.leave()
    assert (load.asked, load.small, load.requests) == (0, 0, 0)
