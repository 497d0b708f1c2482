"""Points 25 to 31 of SECURITY.md: parsing has linear cost and limits, and text never becomes structure."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dragoman
import dragoman.dialects as registry
from dragoman.conformance.laws import encode_events
from dragoman.errors import Fault
from dragoman.model.blocks import Reasoning, Text, ToolCall
from dragoman.model.conversation import Stop, StopReason, Usage
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Events,
    Failed,
    ReasoningDelta,
    Started,
    Stopped,
    TextDelta,
)
from dragoman.model.patterns import matches_pattern
from dragoman.wire import jsonio
from tests.anthropic_client import parse_message_stream, parse_sse
from tests.gateway.harness import GatewayHarness, anthropic_body, openai_body, start_gateway, upstream_config
from tests.growth import check_linear_growth
from tests.security.echo_upstream import EchoUpstream

SIZE = 100_000
SSE = ("anthropic", "openai", "responses", "gemini")


# --- 25 to 28, 30: requests


def tool(schema: dict[str, Any], name: str = "t") -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object", **schema}}


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value}
    return value


TOO_MUCH = {
    "messages": anthropic_body() | {"messages": [{"role": "user", "content": "x"}] * 2049},
    "tools": anthropic_body(tools=[tool({}, f"t{number}") for number in range(513)]),
    "depth": anthropic_body(metadata=deep(140)),
    "name": anthropic_body(tools=[tool({}, "n" * 257)]),
    "schema": anthropic_body(tools=[tool({"description": "d" * 263_000})]),
    "levels of a schema": anthropic_body(tools=[tool({"properties": deep(70)})]),
    "values of a schema": anthropic_body(tools=[tool({"enum": list(range(20_001))})]),
    "remote reference": anthropic_body(tools=[tool({"properties": {"a": {"$ref": "https://evil.test/schema.json"}}})]),
    "reference to a file": anthropic_body(tools=[tool({"properties": {"a": {"$ref": "file:///etc/passwd"}}})]),
    "reference without a scheme": anthropic_body(tools=[tool({"properties": {"a": {"$ref": "//evil.test/a"}}})]),
}


@pytest.mark.parametrize("name", [name for name in TOO_MUCH if "schema" not in name and "reference" not in name])
def test_point_25_more_than_the_limits_is_refused(
    harness: GatewayHarness, echo_upstream: EchoUpstream, name: str
) -> None:
    before = len(echo_upstream.requests)
    status, _, body = harness.request("/v1/messages", TOO_MUCH[name])
    assert status in (400, 413) and b"limit" in body
    assert len(echo_upstream.requests) == before


@pytest.mark.parametrize("name", [name for name in TOO_MUCH if "schema" in name or "reference" in name])
def test_point_30_a_schema_is_small_shallow_and_refers_to_itself(
    harness: GatewayHarness, echo_upstream: EchoUpstream, name: str
) -> None:
    before = len(echo_upstream.requests)
    assert harness.request("/v1/messages", TOO_MUCH[name])[0] in (400, 413)
    assert len(echo_upstream.requests) == before
    own = tool({"$defs": {"a": {"type": "string"}}, "properties": {"b": {"$ref": "#/$defs/a"}}})
    assert harness.request("/v1/messages", anthropic_body(tools=[own]))[0] == 200


@pytest.mark.parametrize(
    "text", ["[" * SIZE, '{"a":' * SIZE, "[" * SIZE + "]" * SIZE, '{"a":' * SIZE + "1" + "}" * SIZE]
)
def test_point_26_a_hundred_thousand_levels_are_a_400(harness: GatewayHarness, text: str) -> None:
    for path, body in (
        ("/v1/messages", f'{{"model": "m", "max_tokens": 1, "messages": {text}}}'),
        ("/v1/chat/completions", text),
        ("/v1/responses", f'{{"model": "m", "input": {text}}}'),
        ("/v1beta/models/m:generateContent", f'{{"contents": {text}}}'),
        ("/model/m/converse", f'{{"messages": {text}}}'),
    ):
        status, _, response = harness.request(path, body.encode())
        assert status == 400 and json.loads(response)
    assert not [line for line in harness.log_lines() if line["outcome"] == "bug"]


def test_point_27_nothing_is_decompressed(harness: GatewayHarness, echo_upstream: EchoUpstream) -> None:
    """Compressed bodies are refused from clients and from upstreams; the gateway requests plain bytes."""
    before = len(echo_upstream.requests)
    for encoding in ("gzip", "deflate", "br", "zstd", "identity, gzip"):
        assert harness.request("/v1/messages", b"\x1f\x8b", content_encoding=encoding)[0] == 415
    assert len(echo_upstream.requests) == before
    echo_upstream.mode = "gzip"
    try:
        status, headers, _ = harness.request("/v1/messages", anthropic_body())
    finally:
        echo_upstream.mode = "good"
    assert status == 502 and "content-encoding" not in headers
    assert echo_upstream.requests[-1][2]["accept-encoding"] == "identity"


DOUBLED = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"first","content":"last"}]%b}'


@pytest.mark.parametrize("more", [b"", b',"stream" : true', b',"metadata":{"user_id":"\\u003a"}', b',"model":"m"'])
def test_point_28_of_duplicate_keys_only_the_last_is_used_and_sent(
    harness: GatewayHarness, echo_upstream: EchoUpstream, more: bytes
) -> None:
    """Bytes that pass through unchanged must not contain a value that was never checked."""
    before = len(echo_upstream.requests)
    status, headers, _ = harness.request("/v1/messages", DOUBLED % more)
    assert (status, headers["dragoman-notes"]) == (200, "1")
    sent = echo_upstream.requests[before][3]
    assert b"last" in sent and b"first" not in sent
    assert harness.log_lines(len(echo_upstream.requests))[-1]["rules"] == ["json.duplicate_keys"]


def test_point_28_a_body_without_duplicate_keys_passes_unchanged(
    harness: GatewayHarness, echo_upstream: EchoUpstream
) -> None:
    for body in (
        b'{ "model" : "m", "max_tokens":9,\n"messages":[{"role":"user","content":"a: \\":\\" b"}]}',
        b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"\\u003a"}],"stream":false}',
    ):
        before = len(echo_upstream.requests)
        assert harness.request("/v1/messages", body)[1]["dragoman-notes"] == "0"
        assert echo_upstream.requests[before][3] == body


def test_point_28_duplicate_keys_are_refused_if_losses_are_refused(echo_upstream: EchoUpstream, tmp_path: Path) -> None:
    strict = upstream_config("one", "anthropic", echo_upstream.url, 'translation.losses = "refuse"')
    with start_gateway(strict, tmp_path) as harness:
        before = len(echo_upstream.requests)
        status, _, body = harness.request("/v1/messages", DOUBLED % b"")
        assert status == 400 and b"content" in body and b"twice" in body
        status, _, body = harness.request("/v1/chat/completions", DOUBLED % b"")
        assert status == 400 and b"twice" in body
        assert len(echo_upstream.requests) == before
        assert harness.request("/v1/messages", anthropic_body())[0] == 200


@given(
    st.recursive(
        st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    )
)
def test_point_28_only_duplicate_keys_are_found(tree: Any) -> None:
    text = json.dumps(tree).encode()
    assert jsonio.find_duplicate_name(text) is None
    assert jsonio.find_duplicate_name(b'{"a":%b,"b":[{"x":1,"y":%b,"x":2}]}' % (text, text)) == "x"


# --- 29: regular expressions


class Expression:
    """A compiled expression, and whether the code searches with it or only matches."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.pattern = pattern
        self.methods: set[str] = set()


def expressions() -> dict[str, Expression]:
    """Return every compiled expression that is a module attribute of the package."""
    found: dict[str, Expression] = {}
    for module in pkgutil.walk_packages(dragoman.__path__, "dragoman."):
        if module.name.endswith("__main__"):
            continue
        loaded = importlib.import_module(module.name)
        source = Path(str(loaded.__file__)).read_text()
        for name, value in vars(loaded).items():
            for pattern in value if isinstance(value, tuple) else (value,):
                if isinstance(pattern, re.Pattern):
                    used = re.findall(rf"\b{name}\.(match|fullmatch|search|sub|finditer|findall|split)\b", source)
                    expression = found.setdefault(repr(pattern.pattern), Expression(pattern))
                    expression.methods |= {
                        each if "match" in each else "search" for each in used or ("match", "search")
                    }
    return found


def letters(pattern: str) -> list[str]:
    """Return characters that the expression may match: its own, and one of each common kind."""
    own = dict.fromkeys(char for char in pattern if char.isprintable() and char not in "()?+*|\\")
    return [*list(own)[:10], "a", "0", " ", "\n", '"', "\\", "-", "/", "<"]


def attacks(pattern: re.Pattern[Any]) -> Iterator[Any]:
    is_bytes = isinstance(pattern.pattern, bytes)
    source = pattern.pattern.decode("latin-1") if is_bytes else pattern.pattern
    words = [*dict.fromkeys(letters(source)), *re.findall(r"[A-Za-z0-9<_:/-]{2,}", source)[:4]]
    for word in [*words, *(one + other for one, other in pairwise(words[:8])), words[0] + words[-1]]:
        text = words[0] + word * (SIZE // len(word)) + "\x00"
        yield text.encode() if is_bytes else text


EXPRESSIONS = expressions()


def test_point_29_there_are_expressions_to_test() -> None:
    assert len(EXPRESSIONS) > 60
    in_functions = re.compile(r"^\s+(?:return )?re\.compile|= re\.compile\(f", re.MULTILINE)
    modules = [path.name for path in Path(dragoman.__path__[0]).rglob("*.py") if in_functions.search(path.read_text())]
    assert set(modules) <= MADE_LATER, "an expression that is made when it is needed is not tried here"


# Routes are tested below; raw tools and markers use alternatives of fixed words, whose linear time has its own tests;
# the simulator is not a service; a table file is trusted configuration.
MADE_LATER = {
    "patterns.py",
    "jsonio.py",
    "markers.py",
    "literals.py",
    "grammar.py",
    "calls.py",
    "model.py",
    "table.py",
    "find_table.py",
}


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of this thread; if it is long, the least of four runs."""
    least = inf
    for _ in range(4):
        began = time.thread_time()
        work()
        least = min(least, time.thread_time() - began)
        if least < 0.5:
            break
    return least


@pytest.mark.skipif(sys.platform == "win32", reason="needs an alarm")
def test_point_29_no_expression_takes_long_for_a_hundred_kilobytes() -> None:
    running = ""

    def alarm(*_: object) -> None:
        raise AssertionError(f"it still runs: {running}")

    old = signal.signal(signal.SIGALRM, alarm)
    slow: dict[str, float] = {}
    try:
        for name, expression in EXPRESSIONS.items():
            running = name
            signal.alarm(300)
            for method in expression.methods:
                work = getattr(expression.pattern, method)
                for text in attacks(expression.pattern):
                    slow[name] = max(slow.get(name, 0.0), seconds(partial(work, text)))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
    assert {name: seconds for name, seconds in slow.items() if seconds > 0.5} == {}


@pytest.mark.parametrize("pattern", ["*a*a*a*a*a*a*a*b", "*-*-*-*-*", "?*?*?*?", "claude-*-*-*[1m]", "*" * 50 + "x"])
def test_point_29_no_pattern_of_the_configuration_takes_long(pattern: str) -> None:
    for text in ("a", "-", "claude-", "x"):

        def work(size: int, text: str = text) -> Callable[[], object]:
            name = text * (size // len(text)) + "!"
            return lambda: matches_pattern(pattern, name)

        check_linear_growth(work, SIZE // 64)


# --- 31: server-sent events


def reply_events(text: str) -> Events:
    """Return a stream with this text in every place where a model or an upstream can put text."""
    return (
        Started(text, text, Usage()),
        BlockStarted(1, Reasoning("")),
        ReasoningDelta(1, text),
        BlockEnded(1),
        BlockStarted(2, Text("")),
        TextDelta(2, text),
        TextDelta(2, text),
        BlockEnded(2),
        BlockStarted(3, ToolCall(text, text, "")),
        ArgumentsDelta(3, jsonio.encode({"a": text}).decode()),
        BlockEnded(3),
        Stopped(Stop(StopReason.TOOL)),
        FINISHED,
    )


def frames(stream: bytes) -> list[list[str]]:
    """Return the fields of each event, parsed as the SSE specification says, without our decoder."""
    blocks = re.split(r"(?:\r\n|\n|\r){2,}", stream.decode("utf-8").rstrip("\r\n"))
    return [[line.partition(":")[0] for line in re.split(r"\r\n|\n|\r", block)] for block in blocks]


HOSTILE = [
    "\n\ndata: {}\n\n",
    "\r\rdata: [DONE]\r\r",
    "\r\n\r\nevent: error\r\ndata: {}\r\n\r\n",
    "data: [DONE]",
    "\n",
    "\r",
    "\u2028data: x\u2029",
    "\x85",
    "\x00",
    ": comment\n",
    "id: 1\n",
    "retry: 1\n\n",
    "\x0b\x0c\x1c\x1d\x1e",
    "\ufeff",
    "\ud800",
]


@pytest.mark.parametrize("name", SSE)
@settings(max_examples=60)
@given(
    text=st.text(max_size=40)
    | st.sampled_from(HOSTILE)
    | st.lists(st.sampled_from(HOSTILE), min_size=1, max_size=4).map("".join)
)
@example(text="\n\ndata: [DONE]\n\n")
@example(text="\u2028")
def test_point_31_no_text_begins_an_event(name: str, text: str) -> None:
    dialect = registry.get(name)
    expected = frames(encode_events(dialect, reply_events("plain")))
    got = frames(encode_events(dialect, reply_events(f"a{text}b")))
    assert got == expected
    for line in encode_events(dialect, reply_events(f"a{text}b")).split(b"\n"):
        assert line.partition(b":")[0] in (b"event", b"data", b"")


@pytest.mark.parametrize("name", SSE)
@given(text=st.text(max_size=40) | st.sampled_from(HOSTILE))
def test_point_31_no_upstream_error_message_begins_an_event(name: str, text: str) -> None:
    dialect = registry.get(name)

    def error_frames(words: str) -> list[list[str]]:
        fault = Fault("server", words, 500, code=words)
        return frames(encode_events(dialect, (*reply_events("plain")[:6], Failed(fault))))

    shapes = [[field.partition("{")[0] for field in block] for block in error_frames(f"a{text}b")]
    assert shapes == [[field.partition("{")[0] for field in block] for block in error_frames("a plain complaint")]


def test_point_31_no_text_begins_an_event_through_the_gateway(echo_upstream: EchoUpstream, tmp_path: Path) -> None:
    """The same through a gateway, with a text that would end the stream in another dialect."""
    from dragoman.simulator import parse_script, running_simulator

    words = "one\n\ndata: [DONE]\n\nevent: message_stop\ndata: {}\n\ntwo"
    script = parse_script(f'then = "repeat"\n[[turn]]\ntext = {json.dumps(words)}\nchunk = 7\n')
    with (
        running_simulator("kiro", script=script) as simulator,
        start_gateway(upstream_config("one", "kiro", simulator.url), tmp_path) as harness,
    ):
        _, _, openai = harness.request("/v1/chat/completions", openai_body("claude-sonnet-4.5", stream=True))
        _, _, claude = harness.request("/v1/messages", anthropic_body("claude-sonnet-4.5", stream=True))
    choices = [choice for each in parse_sse(openai) for choice in each["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == words
    assert "".join(block["text"] for block in parse_message_stream(claude)["content"]) == words
    assert claude.count(b"\nevent: message_stop\n") == 1 and openai.count(b"\ndata: [DONE]\n") == 1
