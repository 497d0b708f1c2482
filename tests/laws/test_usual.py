"""What is read in one go says the same as what is read with care, and what is written at once the same as what is not."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dragoman.dialects as registry
from bench.questions import question
from dragoman.dialects.base import Call
from dragoman.errors import DragomanError
from dragoman.gateway.limits import RequestLimits, check_tree
from dragoman.model.conversation import Conversation
from dragoman.translate import plan
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import ObjectText
from tests import strategies

ANTHROPIC, KIRO = registry.get("anthropic"), registry.get("kiro")
_MODEL = "claude-sonnet-4.5"
_TEXT = st.one_of(
    st.sampled_from(["", " ", "Hi", "a/b", 'say "é"\n', "\x1b[1m", "\u4e2d\u6587", "\U0001f600", "\\u00e9", "<&>", "\x7f"]),
    st.text(max_size=12),
    st.just("half \ud800"),
)  # fmt: skip
_VALUE = st.recursive(
    st.one_of(_TEXT, st.none(), st.booleans(), st.integers(), st.just(2**70), st.just(1.5e3), st.just(-0.0)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
_ID = st.sampled_from(["toolu_1", "toolu_2", "", "é"])
_MARK = {"type": "ephemeral"}


def _block(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


def _more(
    block: st.SearchStrategy[dict[str, Any]], **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    """Mostly the block as it is, sometimes with more fields."""
    extra = st.fixed_dictionaries({}, optional=fields)
    return st.one_of(block, block, st.builds(lambda a, b: {**a, **b}, block, extra))


_MARKS = st.sampled_from([_MARK, {**_MARK, "ttl": "1h"}, None, "x"])
_BLOCKS = st.one_of(
    _more(_block("text", text=_TEXT), cache_control=_MARKS, citations=st.just([]), x=_VALUE),
    _more(
        _block("tool_use", id=_ID, name=_ID, input=st.dictionaries(_TEXT, _VALUE, max_size=3)),
        cache_control=_MARKS,
        input=_VALUE,
    ),
    _more(
        _block("tool_result", tool_use_id=_ID, content=_TEXT),
        cache_control=_MARKS,
        is_error=st.sampled_from([True, False, None, 1]),
        content=_VALUE | st.lists(_block("text", text=_TEXT), max_size=2),
        status=_TEXT,
    ),
    _block("thinking", thinking=_TEXT, signature=_TEXT),
    _block("image", source=st.just({"type": "base64", "media_type": "image/png", "data": "QQ=="}) | _VALUE),
    _block("server_tool_use", input=_VALUE),
    st.just({"text": "no type"}),
    _TEXT,
)
_MESSAGES = st.lists(
    _more(
        st.fixed_dictionaries(
            {
                "role": st.sampled_from(["user", "assistant", "user", "assistant", "system", "tool"]),
                "content": _TEXT | st.lists(_BLOCKS, max_size=3),
            }
        ),
        x=_VALUE,
    ),
    max_size=4,
)
_USE = {"type": "tool_use", "id": "t", "name": "n", "input": {}}  # without a call nobody reads in one go
_BODIES = st.fixed_dictionaries(
    {
        "model": st.just(_MODEL),
        "messages": st.builds(lambda messages: [*messages, {"role": "assistant", "content": [_USE]}], _MESSAGES),
    },
    optional={
        "stream": st.sampled_from([True, False, None]),
        "system": _TEXT | st.lists(_block("text", text=_TEXT, cache_control=_MARKS), max_size=2),
        "max_tokens": st.sampled_from([1, 4096, 2.0, "x"]),
        "tools": st.lists(st.fixed_dictionaries({"name": _ID, "input_schema": _VALUE}), max_size=2),
        "thinking": st.sampled_from([{"type": "enabled", "budget_tokens": 2000}, {"type": "x"}, 3]),
        "metadata": st.sampled_from([{"user_id": "u", "more": [1]}, {}]),
        "context_management": _VALUE,
        "x_unknown": _VALUE,
    },
)


def _spelt(value: Any, chance: Random) -> str:
    """JSON as anybody may write it: with white space, with needless escapes, with names that stand twice."""
    space = " " * (chance.random() < 0.1)
    if isinstance(value, str):
        return space + '"' + "".join(_character(each, chance) for each in value) + '"'
    if isinstance(value, list):
        return "[" + ",".join(_spelt(each, chance) for each in value) + space + "]"
    if isinstance(value, dict):
        items = [*value.items()]
        if items and chance.random() > 0.98:
            items.insert(0, (items[-1][0], chance.choice([None, "twice", [1]])))
        return "{" + ",".join(f"{_spelt(name, chance)}{space}:{_spelt(each, chance)}" for name, each in items) + "}"
    return space + json.dumps(value)


def _character(character: str, chance: Random) -> str:
    if not character.isalnum() and character != "_" and chance.random() < 0.2:
        return json.dumps(character)[1:-1] if ord(character) > 0xFFFF else f"\\u{ord(character):04x}"
    if character == "/" and chance.random() < 0.3:
        return "\\/"
    return json.dumps(character, ensure_ascii="\ud800" <= character <= "\udfff")[1:-1]


def _asked(data: bytes) -> HttpRequest:
    return HttpRequest("POST", "/v1/messages", "", (("anthropic-beta", "b"),), data)


def _glance(request: HttpRequest) -> Call | None:
    return ANTHROPIC.binding.glance(request)  # type: ignore[attr-defined, no-any-return]


def _places(asked: Conversation) -> list[str]:
    nodes: list[Any] = [*asked.system, *asked.tools]
    for message in asked.messages:
        nodes.append(message)
        for block in message.blocks:
            nodes += [block, *getattr(block, "content", ())]
    return [f"{node.at.path} {node.at.bare}" for node in nodes]


def _hold_the_same(data: bytes) -> bool:
    """Whether it was read in one go."""
    short = _glance(_asked(data))
    if short is None:
        return False
    long = ANTHROPIC.binding.match(_asked(data))
    assert long is not None
    assert short.asked is not None
    assert (short.operation, short.model, short.stream, short.hints) == (
        long.operation,
        long.model,
        long.stream,
        long.hints,
    )
    asked = ANTHROPIC.codec.parse_request(long)
    assert ANTHROPIC.codec.parse_request(short) is short.asked
    assert short.asked == asked
    assert short.asked.plain == asked.plain
    assert _places(short.asked) == _places(asked)
    for one, other in zip(short.asked.inventory.calls, asked.inventory.calls, strict=True):
        assert type(one.arguments) is type(other.arguments)
        if isinstance(one.arguments, ObjectText) and isinstance(other.arguments, ObjectText):
            assert (one.arguments.data, one.arguments.value) == (other.arguments.data, other.arguments.value)
    _hold_the_same_size(short, long, len(data))
    return True


def _hold_the_same_size(short: Call, long: Call, size: int) -> None:
    most = RequestLimits(depth=500)
    one, other = check_tree(short.body, size, most), check_tree(long.body, size, most)
    assert one.nodes == other.nodes
    assert max(one.depth, 8) == max(other.depth, 8)  # less deep than that no limit can be
    for limits in (RequestLimits(depth=8), RequestLimits(depth=other.depth), RequestLimits(nodes=other.nodes - 1)):
        assert _refusal(short, size, limits) == _refusal(long, size, limits)


def _refusal(call: Call, size: int, limits: RequestLimits) -> str:
    try:
        check_tree(call.body, size, limits)
    except DragomanError as error:
        return str(error)
    return ""


@given(_BODIES, st.randoms(use_true_random=False))
def test_a_request_that_is_read_in_one_go_says_what_it_says_when_read_with_care(body: Any, chance: Random) -> None:
    _hold_the_same(_spelt(body, chance).encode("utf-8", "surrogatepass"))


_WHOLE = _TEXT.filter(lambda text: "\ud800" not in text)
_CALL = _block(
    "tool_use", id=st.just("t"), name=st.just("n"), input=st.dictionaries(_WHOLE, _WHOLE | _VALUE, max_size=3)
)
_RESULT = _block("tool_result", tool_use_id=st.just("t"), content=_WHOLE)
_PAIRS = st.tuples(
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.lists(_CALL, min_size=1, max_size=2)}),
    st.fixed_dictionaries({"role": st.just("user"), "content": st.lists(_RESULT, min_size=1, max_size=2)}),
)


@given(st.lists(_PAIRS, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_so_do_calls_and_results(pairs: Any, chance: Random) -> None:
    body = {"model": _MODEL, "messages": [message for pair in pairs for message in pair]}
    _hold_the_same(_spelt(body, chance).encode("utf-8", "surrogatepass"))


@given(_BODIES, st.data())
def test_so_do_broken_bytes_that_can_be_read(body: Any, data: st.DataObject) -> None:
    text = bytearray(json.dumps(body, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "surrogatepass"))
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.sampled_from([b"", b"\xff", b"\\", b'"', b"1e400", b"{"])
    )
    _hold_the_same(bytes(text))


def test_the_usual_ones_are_read_in_one_go() -> None:
    """Lest the law hold of nothing."""
    call = {"type": "tool_use", "id": "t", "name": "n", "input": {"path": "é/\n", "deep": [[{"a": 1}]], "n": 2**70}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "done é", "is_error": False}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [{"type": "text", "text": "So."}, call]},
        {"role": "user", "content": [result, {"type": "text", "text": "x", "cache_control": _MARK}]},
    ]
    body = {"model": _MODEL, "messages": messages, "stream": True, "system": "s", "tools": [], "max_tokens": 9}
    assert _hold_the_same(json.dumps(body, ensure_ascii=False).encode())


_SAID = {"type": "text", "text": "x"}
_SILENT = {"type": "text", "text": ""}
_USED = {"type": "tool_use", "id": "t", "name": "n", "input": {}}
_GAVE = {"type": "tool_result", "tool_use_id": "t", "content": "done"}
_SHOWN = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
_THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "s"}


@pytest.mark.parametrize(
    ("role", "content"),
    [
        ("user", ""),
        ("user", [_SILENT, _SAID]),
        ("user", [_SAID, _SILENT]),
        ("user", [_SAID, _GAVE]),
        ("user", [_GAVE, _SAID, _GAVE]),
        ("user", [_SHOWN, _GAVE]),
        ("user", [_USED]),
        ("assistant", [_SILENT, _USED]),
        ("assistant", [_THOUGHT, _USED]),
        ("assistant", [_GAVE]),
        ("system", [_GAVE]),
        ("system", [_USED]),
    ],
)
def test_what_is_not_in_its_usual_order_is_put_so(role: str, content: Any) -> None:
    messages = [{"role": "assistant", "content": [_USED]}, {"role": "user", "content": [_GAVE]}]
    odd = {"role": role, "content": content}
    for placed in ([*messages, odd], [odd, *messages], [messages[0], odd, messages[1]]):
        _hold_the_same(json.dumps({"model": _MODEL, "messages": placed}).encode())


def test_the_bench_asks_in_the_usual_way() -> None:
    assert _hold_the_same(question("anthropic", "pairs", _MODEL, stream=True))


def test_without_a_call_nothing_is_read_in_one_go() -> None:
    assert not _hold_the_same(question("anthropic", "long", _MODEL, stream=True))


@given(strategies.conversations())
@example(
    ANTHROPIC.codec.parse_request(
        ANTHROPIC.binding.unwrap(json.loads(question("anthropic", "pairs", _MODEL, stream=True)))
    )
)
def test_what_is_written_at_once_is_what_would_be_rendered(asked: Conversation) -> None:
    for upstream in (KIRO, registry.get("openai")):
        try:
            made = plan(ANTHROPIC, upstream, asked, model=_MODEL)
        except DragomanError:
            continue
        assert made.request() == upstream.binding.wrap(made.call())
