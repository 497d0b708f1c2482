"""Prompt caches in the gateway: the key of a session, the upstream and credential that hold a cache, the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.backend import CacheHolders, find_session
from dragoman.model.conversation import Conversation, Usage
from dragoman.simulator import parse_script, running_simulator
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import (
    GatewayHarness,
    anthropic_body,
    fixed_response_server,
    gateway_with_simulator,
    start_gateway,
    upstream_config,
)

CLAUDE_CODE = (("x-claude-code-session-id", "8d7b1f6e-1111-4222-8333-abcdefabcdef"),)
USER = '{"device_id":"%s","account_uuid":"","session_id":"8d7b1f6e-1111-4222-8333-abcdefabcdef"}' % ("a" * 64)


def session(headers: tuple[tuple[str, str], ...] = (), user: str = "", owner: str = "k1") -> Any:
    request = HttpRequest("POST", "/v1/messages", headers=headers)
    return find_session(request, Conversation("m", (), user=user), owner)


def test_a_key_belongs_to_a_client_key_a_session_and_an_agent() -> None:
    one = session(CLAUDE_CODE)
    assert len(one.key) == 32
    assert one == session(CLAUDE_CODE)
    others = [
        session(CLAUDE_CODE, owner="k2").key,
        session((*CLAUDE_CODE, ("x-claude-code-agent-id", "a1"))).key,
        session((("session-id", "another"),)).key,
    ]
    assert len({one.key, *others}) == 4
    assert session(user=USER).key == one.key
    assert session(user="user_1_account__session_8d7b1f6e-1111-4222-8333-abcdefabcdef").key == one.key
    assert (session().key, session(user="alice").key, session(user="alice").affinity) == ("", "", "alice")


def sent_keys(harness: GatewayHarness, simulator: Any, **more: Any) -> list[Any]:
    for headers in (dict(CLAUDE_CODE), dict(CLAUDE_CODE), {}):
        assert harness.request("/v1/messages", anthropic_body(**more), **headers)[0] == 200
    return [json.loads(seen.request.body).get("prompt_cache_key") for seen in simulator.requests]


@pytest.mark.parametrize("text", ["hello", "hello " * 250_000])  # the latter is planned by the job process
def test_the_session_of_a_client_is_the_key_of_the_cache(tmp_path: Path, text: str) -> None:
    with gateway_with_simulator("", tmp_path, "responses") as (harness, simulator):
        first, second, third = sent_keys(harness, simulator, text=text)
    assert first == second
    assert len(first) == 32
    assert third is None


def test_a_chat_upstream_gets_a_key_by_its_setting(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path, "openai") as (harness, simulator):
        assert sent_keys(harness, simulator) == [None, None, None]
    more = "settings = {cache_key = true}"
    with gateway_with_simulator("", tmp_path, "openai", more) as (harness, simulator):
        keys = sent_keys(harness, simulator)
    assert keys[0] == keys[1] is not None


# --- the upstream that holds the cache


CACHED = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "from two"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 30, "output_tokens": 2},
}


def whole(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\nconnection: close"
    return f"{head}\r\n\r\n".encode() + raw


def two_upstreams(one: str, two: str, limits: str) -> str:
    route = '[[routes]]\nmatch = "*"\nupstream = "one"\nmodel = "m"\nfallbacks = "two/m"\n'
    one_at = upstream_config("one", "anthropic", one, "limits.breaker = false")
    return one_at + upstream_config("two", "anthropic", two, limits) + route


@pytest.mark.parametrize(("limits", "expected"), [("", "two"), ("limits.cache_affinity = 0", "one")])
def test_a_session_stays_with_the_upstream_that_holds_its_cache(tmp_path: Path, limits: str, expected: str) -> None:
    script = parse_script(
        '[[turn]]\nstatus = 401\nmessage = "not now"\nreason = "x"\n[[turn]]\ntext = "from one"\ntimes = 9\n'
    )
    with (
        running_simulator("anthropic", script=script) as simulator,
        fixed_response_server(whole(CACHED)) as two,
        start_gateway(two_upstreams(simulator.url, two, limits), tmp_path) as harness,
    ):
        used = []
        for name in ("s1", "s1", "s2"):
            status, headers, _ = harness.request("/v1/messages", anthropic_body(), x_session_id=name)
            assert status == 200
            used.append(headers["dragoman-upstream"])
        line = harness.log_lines(3)[0]
    assert used == ["two", expected, "one"]
    assert (line["cache_read_tokens"], line["cache_share"]) == (30, 0.75)


def test_holders_are_bounded_and_end() -> None:
    now, backend = [0.0], _Backend()
    holders = CacheHolders(lambda: now[0], most=2)
    for name in ("a", "b", "c"):
        holders.remember(name, "m", backend, "key", Usage(1, 1, 5))  # type: ignore[arg-type]
    holders.remember("d", "m", backend, "key", Usage(1, 1))  # type: ignore[arg-type]
    assert [holders.find(name, "m") is not None for name in "abcd"] == [False, True, True, False]
    assert holders.find("b", "other") is None
    now[0] = 301.0
    assert holders.find("b", "m") is None


class _Limits:
    cache_affinity = 300.0


class _Upstream:
    limits = _Limits()


class _Backend:
    name = "one"
    upstream = _Upstream()
