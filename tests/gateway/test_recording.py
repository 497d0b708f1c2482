"""Recording of requests: what is written at each level, that nothing secret is, and that no request is affected."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway.recording import recorder
from dragoman.gateway.serve import running_gateway
from dragoman.simulator import parse_script, running_simulator
from tests.gateway.harness import (
    FAST_RETRIES,
    KEY,
    MODEL,
    TIMEOUT,
    GatewayHarness,
    StreamClient,
    anthropic_body,
    gated_server,
    gateway_with_simulator,
    openai_body,
    parse_config,
    sse_response,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.recordings import recorded_bytes, recordings_in, wait_for_recordings
from tests.gateway.relay_service import running_relay_service
from tests.gateway.websocket_client import WebSocketClient
from tests.gateway.worker_harness import start_workers

FULL: dict[str, Any] = {"inspector__record": "full"}
META: dict[str, Any] = {"inspector__record": "meta"}
SCRIPT = """
then = "repeat"
[[turn]]
parts = [{ text = "model-words" }, { tool = "read", arguments = { path = "a-tool-argument" } }]
"""
TOOLS = [{"name": "read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}}]
UPSTREAM_KEY = "the-upstream-secret"
PASTED_KEY = "sk-" + "Ab1" * 12  # in a prompt


def ask(harness: GatewayHarness, *, stream: bool = True, text: str = "the words of the user", **more: Any) -> bytes:
    status, _, body = harness.request("/v1/messages", anthropic_body(MODEL, text, stream=stream, tools=TOOLS), **more)
    assert status == 200
    return body


# --- levels


def test_nothing_is_written_or_imported_by_default(tmp_path: Path) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path) as (harness, _):
        ask(harness)
        harness.log_lines()
        assert harness.running.gateway.recording.recorder is None
    assert not (tmp_path / "recordings").exists()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("upstream", ["anthropic", "openai", "kiro", "bedrock", "gemini", "responses", "ollama"])
def test_full_has_both_sides_as_they_were_on_the_wire(upstream: str, stream: bool, tmp_path: Path) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path, upstream, **FULL) as (harness, simulator):
        body = ask(harness, stream=stream)
        [found] = wait_for_recordings(tmp_path, 1)
        line = harness.log_lines()[0]
    sent = simulator.requests[0].request
    assert found.client_body == anthropic_body(MODEL, "the words of the user", stream=stream, tools=TOOLS)
    assert found.upstream_body() == json.loads(sent.body)
    assert found.written == body and b"model-words" in found.received
    request, [attempt] = found.request, found.request.attempts
    assert (request.line.request_id, request.line.tools, request.level) == (line["request_id"], ("read",), "full")
    assert request.request.method == "POST" and request.request.url == "/v1/messages"
    target = attempt.target
    assert (target.upstream, target.dialect, target.credential) == ("one", upstream, "key")
    assert target.request is not None and target.request.url.startswith(simulator.url)
    assert target.request.body_bytes == len(sent.body)
    assert {name for name, _ in target.request.headers} == {name for name, _ in sent.headers if name != "connection"}
    assert attempt.response is not None and attempt.response.status == 200
    assert 0 < attempt.at < attempt.answered
    assert [note.rule for note in request.changes][: len(line.get("rules", ()))] or not line.get("notes")
    assert (request.response is None) == stream and (request.released > 0) == stream


@pytest.mark.parametrize("stream", [True, False])
def test_meta_has_no_content(stream: bool, tmp_path: Path) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path, "kiro", **META) as (harness, _):
        body = ask(harness, stream=stream)
        [found] = wait_for_recordings(tmp_path, 1)
    assert set(found.parts) == {"pieces"} and len(found.parts["pieces"]) % 16 == 0
    assert found.request.line.tools == ("read",) and found.request.attempts[0].response is not None
    everything = recorded_bytes(tmp_path)
    for words in (b"the words of the user", b"model-words", b"a-tool-argument", body):
        assert words not in everything


def test_responses_are_the_same_with_and_without_recording(tmp_path: Path) -> None:
    responses = []
    for level in ("off", "meta", "full"):
        with gateway_with_simulator(SCRIPT, tmp_path / level, "openai", inspector__record=level) as (harness, _):
            responses.append([ask(harness, stream=stream) for stream in (True, False)])
            path, body = "/v1/chat/completions", openai_body("m", stream=True)
            responses[-1] += [harness.request(path, body)[2], harness.request(path, openai_body("m"))[2]]
    for response in zip(*responses, strict=True):
        assert len({len(each) for each in response}) == 1 and response[0][:20] == response[1][:20] == response[2][:20]


def test_a_response_that_passes_unchanged_is_kept_once(tmp_path: Path) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path, "anthropic", **FULL) as (harness, _):
        ask(harness)
        [found] = wait_for_recordings(tmp_path, 1)
    assert set(found.parts) == {"pieces", "client_body", "received"} and found.written == found.received


# --- attempts


def test_every_attempt_is_there_with_what_the_upstream_answered(tmp_path: Path) -> None:
    script = '[[turn]]\nstatus = [429, 503]\nmessage = "not now"\n[[turn]]\nstatus = 503\nmessage = "no"'
    with (
        running_simulator("openai", script=parse_script(script)) as one,
        running_simulator("kiro") as two,
    ):
        text = upstream_config("one", "openai", one.url) + upstream_config("two", "kiro", two.url)
        text += '[[routes]]\nmatch = "claude-*"\nupstream = "one"\nfallbacks = ["two"]\n'
        with start_gateway(text, tmp_path, **FULL) as harness:
            ask(harness)
            [first] = wait_for_recordings(tmp_path, 1)
    statuses = [(each.target.upstream, each.response and each.response.status) for each in first.request.attempts]
    assert statuses == [("one", 429), ("one", 503), ("one", 503), ("two", 200)]
    assert [first.request.failures[each.failure].status for each in first.request.attempts[:3]] == [429, 503, 503]
    assert first.request.attempts[3].failure == -1
    assert first.received.count(b"not now") == 2
    assert first.upstream_body(1)["model"] == MODEL and "conversationState" in first.upstream_body(4)


def test_a_target_that_is_passed_over_is_an_attempt_without_a_request(tmp_path: Path) -> None:
    script = 'then = "last"\n[[turn]]\nstatus = 429\nmessage = "slow down"\nretry_after = 60'
    with running_simulator("openai", script=parse_script(script)) as one, running_simulator("kiro") as two:
        text = upstream_config("one", "openai", one.url) + upstream_config("two", "kiro", two.url)
        text += '[[routes]]\nmatch = "claude-*"\nupstream = "one"\nfallbacks = ["two"]\n'
        with start_gateway(text, tmp_path, **FULL) as harness:
            ask(harness)
            ask(harness)
            _, second = wait_for_recordings(tmp_path, 2)
    skipped, answered = second.request.attempts
    assert skipped.target.request is None and second.request.failures[skipped.failure].reason == "cooldown"
    assert answered.target.upstream == "two" and b"slow down" not in second.received


def test_what_a_failed_attempt_wrote_is_not_what_the_client_got(tmp_path: Path) -> None:
    head, events = sse_response(
        b'{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant"}}]}'
    )
    with gated_server(b"", head + events) as (broken, gate), running_simulator("openai") as good:
        gate.set()
        text = upstream_config("one", "openai", broken) + upstream_config("two", "openai", good.url)
        text += '[[routes]]\nmatch = "claude-*"\nupstream = "one"\nfallbacks = ["two"]\n'
        with start_gateway(text, tmp_path, **FULL) as harness:
            body = ask(harness)
            [found] = wait_for_recordings(tmp_path, 1)
    assert len(found.request.attempts) > 1 and b'"id":"c1"' in found.received
    assert found.written == body


def test_a_refusal_by_the_gateway_is_recorded_and_a_wrong_key_is_not(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path, **FULL) as (harness, _):
        assert harness.request("/v1/messages", anthropic_body(), key="wrong")[0] == 401
        status, _, body = harness.request("/v1/messages", {"model": "m"})
        [found] = wait_for_recordings(tmp_path, 1)
    assert status == 400 and found.written == body and found.client_body == {"model": "m"}
    assert found.request.response is not None and found.request.response.status == 400
    assert found.request.attempts == ()


def test_a_stream_that_breaks_has_its_last_bytes(tmp_path: Path) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    texts = [{**chunk, "choices": [{"index": 0, "delta": {"content": f"word {n}"}}]} for n in range(3)]
    head, events = sse_response(*[json.dumps(each).encode() for each in texts])
    with (
        gated_server(b"", head + events) as (url, gate),
        start_gateway(upstream_config("one", "openai", url), tmp_path, server__ping=0.2, **FULL) as harness,
    ):
        with StreamClient(harness, "/v1/messages", anthropic_body("m", stream=True)) as client:
            client.read_until(b"event: ping")
            gate.set()
            client.read_all()
        [found] = wait_for_recordings(tmp_path, 1)
    assert found.received.endswith(b'"word 2"}}]}\n\n')
    assert b"event: ping" in found.written and b"event: error" in found.written
    assert found.request.line.outcome == "broken"


# --- ways of a request


def test_a_large_request_is_recorded_whole(tmp_path: Path) -> None:
    text = "long words " * 50_000
    with gateway_with_simulator("", tmp_path, "kiro", server__offload=10_000, **FULL) as (harness, simulator):
        ask(harness, text=text)
        [found] = wait_for_recordings(tmp_path, 1)
    assert found.client_body["messages"][0]["content"] == text
    assert found.parts["upstream_body.1"] == simulator.requests[0].request.body


def test_messages_of_a_websocket_are_recorded(tmp_path: Path) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path, "anthropic", **FULL) as (harness, _):
        with WebSocketClient(harness.url) as client:
            for number in range(2):
                client.send(model="m", input=f"message {number}", store=False)
                client.events()
        found = wait_for_recordings(tmp_path, 3)
    messages = [each for each in found if each.request.line.operation == "generate"]
    assert [each.client_body["input"][0]["content"] for each in messages] == ["message 0", "message 1"]
    assert all(b"response.completed" in each.written for each in messages)


def test_relayed_requests_are_recorded(tmp_path: Path) -> None:
    with (
        running_relay_service() as service,
        start_gateway(upstream_config("one", "openai", service.url), tmp_path, **FULL) as harness,
    ):
        _, _, body = harness.request("/v1/embeddings", {"model": "one/m", "input": "hello"})
        [found] = wait_for_recordings(tmp_path, 1)
    assert found.client_body["input"] == "hello" and found.written == body == found.received


def test_a_session_is_recorded(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path, "openai", **META) as (harness, _):
        ask(harness, x_claude_code_session_id="a-session")
        [found] = wait_for_recordings(tmp_path, 1)
    assert found.request.session == "a-session"


# --- secrets


def test_no_secret_is_written(tmp_path: Path) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": f"KEY={PASTED_KEY}\nAWS AKIAABCDEFGHIJKLMNOP"}
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
    turns = [("user", "hi"), ("assistant", [call]), ("user", [result])]
    body = anthropic_body(MODEL, tools=TOOLS) | {"messages": [{"role": role, "content": each} for role, each in turns]}
    script = f'then = "repeat"\n[[turn]]\ntext = "your key is {PASTED_KEY}, mine {UPSTREAM_KEY}"'
    for upstream in ("openai", "kiro"):
        state = tmp_path / upstream
        with gateway_with_simulator(script, state, upstream, **FULL) as (harness, _):
            for stream in (True, False):
                path = f"/v1/messages?api_key={KEY}"
                headers = {"x_session_id": f"session {PASTED_KEY}", "cookie": "a=b-cookie", "x_note": PASTED_KEY}
                assert harness.request(path, body | {"stream": stream}, **headers)[0] == 200
            harness.request(f"/v1/{PASTED_KEY}", body)
            found = wait_for_recordings(state, 3)
        everything = recorded_bytes(state)
        for secret in (KEY, UPSTREAM_KEY, PASTED_KEY, "AKIAABCDEFGHIJKLMNOP", "b-cookie"):
            assert secret.encode() not in everything, secret
        assert "*" * len(PASTED_KEY) in found[1].client_body["messages"][2]["content"][0]["content"]


# --- switching


def test_the_level_is_switched_while_requests_run(tmp_path: Path) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path) as (harness, _):
        recording = harness.running.gateway.recording
        loop = harness.running.loop
        assert loop is not None

        def switch(level: Any) -> None:
            loop.call_soon_threadsafe(recording.set_level, level)
            wait_until(lambda: recording.describe()["level"] == level)

        ask(harness)
        switch("full")
        ask(harness)
        switch("meta")
        ask(harness)
        switch("off")
        ask(harness)
        switch("meta")
        ask(harness)
        found = wait_for_recordings(tmp_path, 3)
        assert [each.request.level for each in found] == ["full", "meta", "meta"]
        loop.call_soon_threadsafe(recording.purge)
        wait_until(lambda: not recordings_in(tmp_path))
        status = harness.running.gateway.status()["recording"]
        messages = [line for line in harness.text.splitlines() if '"event":"recording"' in line]
    assert isinstance(status, dict) and (status["level"], status["configured"]) == ("meta", "off")
    assert len(messages) == 4 and '"warning"' in messages[0] and "bodies" in messages[0]


def test_a_reload_switches_the_level(tmp_path: Path) -> None:
    with running_simulator("anthropic") as simulator:
        text = upstream_config("one", "anthropic", simulator.url)
        with start_gateway(text, tmp_path) as harness:
            gateway, loop = harness.running.gateway, harness.running.loop
            assert loop is not None
            for level in ("full", "off", "meta"):
                config = parse_config(text, inspector__record=level)
                asyncio.run_coroutine_threadsafe(gateway.reload(config), loop).result(TIMEOUT)
                assert gateway.recording.describe()["level"] == level
                ask(harness)
            found = wait_for_recordings(tmp_path, 2)
    assert [each.request.level for each in found] == ["full", "meta"]


def test_what_is_left_when_the_gateway_ends_is_written(tmp_path: Path) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path, **FULL) as (harness, _):
        for _ in range(5):
            ask(harness)
        harness.log_lines(5)
    assert len(recordings_in(tmp_path)) == 5


def test_old_recordings_are_deleted_though_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_IDLE", 0.05)
    with gateway_with_simulator(SCRIPT, tmp_path, inspector__record="meta") as (harness, _):
        ask(harness)
        wait_for_recordings(tmp_path, 1)
    with gateway_with_simulator(SCRIPT, tmp_path, inspector__hours=0.0001):
        wait_until(lambda: not recordings_in(tmp_path))


# --- bounds and trouble


def test_what_does_not_fit_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_CAPTURE_BYTES", 200_000)
    text = "x" * 300_000
    with gateway_with_simulator(SCRIPT, tmp_path, "openai", **FULL) as (harness, _):
        ask(harness, text=text)
        ask(harness)
        long, short = wait_for_recordings(tmp_path, 2)
    assert long.request.truncated == ("client_body", "upstream_body") and short.request.truncated == ()
    assert "client_body" not in long.parts and "client_body" in short.parts
    assert b"model-words" in long.received
    with gateway_with_simulator(SCRIPT, tmp_path / "small", "openai", inspector__bytes=1024 * 1024, **FULL) as (
        harness,
        _,
    ):
        monkeypatch.setattr(recorder, "MAX_CAPTURE_BYTES", 64 * 1024 * 1024)
        ask(harness, text=text)
        [long] = wait_for_recordings(tmp_path / "small", 1)
    assert long.request.truncated == ("upstream_body", "client_body")


def test_requests_succeed_although_recordings_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "recordings").write_text("not a folder")
    with gateway_with_simulator(SCRIPT, tmp_path, **FULL) as (harness, _):
        ask(harness)
        wait_until(lambda: harness.running.gateway.recording.describe()["dropped"] == 1)
        wait_until(lambda: "recordings cannot be written" in harness.text)
        ask(harness)


def test_the_memory_of_captures_is_released(tmp_path: Path) -> None:
    with gateway_with_simulator(SCRIPT, tmp_path, "openai", **FULL) as (harness, _):
        current = harness.running.gateway.recording.recorder
        assert current is not None
        for number in range(20):
            ask(harness, stream=number % 2 == 0, text="long " * 20_000)
        with StreamClient(harness, "/v1/messages", anthropic_body("m", "long " * 9000, stream=True)) as client:
            client.leave(reset=True)
        harness.request("/v1/messages", {"model": "x" * 100_000})
        wait_for_recordings(tmp_path, 22)
        wait_until(lambda: current._reserved_bytes == current._released_bytes)


# --- processes


@pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")
def test_workers_record_side_by_side() -> None:
    with running_simulator("anthropic") as simulator:
        text = upstream_config("chat", "anthropic", simulator.url) + '[inspector]\nrecord = "meta"\n'
        with start_workers(text, 2) as gateway:
            responses = [gateway.ask(f"question {number}") for number in range(12)]
            found = wait_for_recordings(gateway.state, 12)
            assert {each.id for each in found} == {response.headers["x-request-id"] for response in responses}
            assert len({each.entry.path for each in found}) == len({response.worker for response in responses})


def test_recordings_of_an_embedded_gateway_stay_in_its_state(tmp_path: Path) -> None:
    config = parse_config("", inspector__record="meta")
    with running_gateway(config, state=tmp_path, key=KEY, retry_settings=FAST_RETRIES):
        pass
    assert recordings_in(tmp_path) == []
