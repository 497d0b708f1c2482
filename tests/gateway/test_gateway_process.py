"""The life of a gateway: start without configuration, Kiro login, admin socket, reload, drain, plugins, access log."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import pytest

from dragoman.errors import LocalMisuse
from dragoman.gateway import access_log, admin
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.records import Record
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.serve import running_gateway
from dragoman.model.conversation import Stop, StopReason, Usage
from dragoman.simulator import parse_script, running_simulator
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    StreamClient,
    anthropic_body,
    openai_body,
    parse_config,
    start_gateway,
    upstream_config,
    wait_until,
)


def test_with_no_configuration_every_dialect_is_simulated(tmp_path: Path) -> None:
    with start_gateway("", tmp_path) as harness:
        with anthropic.Anthropic(api_key=KEY, base_url=harness.url, max_retries=0) as client:
            for model in ("claude-sonnet-4.5", "sim-anthropic", "sim-openai", "sim-bedrock", "gpt-unheard-of"):
                response: Any = client.messages.create(**anthropic_body(model))
                assert response.content[0].text == "You said: hello"
        assert [line["upstream_dialect"] for line in harness.log_lines(5)] == [
            "kiro",
            "anthropic",
            "openai",
            "bedrock",
            "kiro",
        ]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_ten_requests_with_an_expired_login_make_one_refresh(path: str, tmp_path: Path) -> None:
    """With tools and results, against the strict simulator: no request is refused."""
    script = parse_script('[tokens]\nrefresh = ["r1"]\nrotate = true')
    with running_simulator("kiro", profile="paranoid", script=script) as simulator:
        login = tmp_path / "kiro-auth-token.json"
        token = {
            "accessToken": "old",
            "refreshToken": "r1",
            "expiresAt": "2020-01-01T00:00:00.000Z",
            "region": "us-east-1",
        }
        token |= {"authMethod": "social", "endpoint": simulator.url}
        login.write_text(json.dumps(token | {"profileArn": "arn:aws:codewhisperer:us-east-1:123456789012:profile/ABC"}))
        login.chmod(0o600)
        text = f'[upstreams.kiro]\npreset = "kiro"\nbase_url = "{simulator.url}"\ncredentials = "ide:{login}"\n'
        with start_gateway(text, tmp_path) as harness, ThreadPoolExecutor(10) as pool:
            body = anthropic_body("claude-sonnet-4.5")
            statuses = [each[0] for each in pool.map(lambda _: harness.request(path, body), range(10))]
        assert statuses == [200] * 10
        paths = [received.path for received in simulator.requests]
        assert (paths.count("/refreshToken"), paths.count("/generateAssistantResponse")) == (1, 10)
        assert {received.status for received in simulator.requests} == {200}
        assert json.loads(login.read_text())["accessToken"] != "old"


@pytest.mark.parametrize("stream", [False, True])
def test_a_login_refused_before_its_expiry_is_refreshed_without_an_error_for_the_client(
    stream: bool, tmp_path: Path
) -> None:
    script = parse_script('[tokens]\naccess = []\nrefresh = ["r1"]\nrotate = true')
    with running_simulator("kiro", script=script) as simulator:
        login = tmp_path / "kiro-auth-token.json"
        token = {"accessToken": "old", "refreshToken": "r1", "expiresAt": "2099-01-01T00:00:00.000Z"}
        token |= {"region": "us-east-1", "authMethod": "social", "endpoint": simulator.url}
        login.write_text(json.dumps(token | {"profileArn": "arn:aws:codewhisperer:us-east-1:123456789012:profile/ABC"}))
        login.chmod(0o600)
        text = f'[upstreams.kiro]\npreset = "kiro"\nbase_url = "{simulator.url}"\ncredentials = "ide:{login}"\n'
        with start_gateway(text, tmp_path) as harness:
            for _ in range(2):
                assert harness.request("/v1/messages", anthropic_body("claude-sonnet-4.5", stream=stream))[0] == 200
        calls = [(each.path, each.status) for each in simulator.requests]
        chat_path = "/generateAssistantResponse"
        assert calls == [(chat_path, 403), ("/refreshToken", 200), (chat_path, 200), (chat_path, 200)]


@pytest.mark.parametrize("folder", ["run", "longer-than-the-address-of-a-socket-" * 4])
def test_status_and_metrics_are_only_for_this_user(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "admin.sock"
    with running_simulator("openai") as simulator:
        config = parse_config(upstream_config("one", "openai", simulator.url), server__admin_socket=str(path))
        log = AccessLog(Redactor(), stream=io.StringIO())
        with running_gateway(config, state=tmp_path, access_log=log, key=KEY, admin_socket=True) as running:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
            connection = http.client.HTTPConnection(running.url.removeprefix("http://"))
            connection.request("POST", "/v1/messages", json.dumps(anthropic_body("gpt")), {"x-api-key": KEY})
            assert connection.getresponse().read()
            connection.close()
            logged: Any = json.loads(admin.send_admin_request(path))
            assert (logged["state"], logged["in_flight"]) == ("ready", 0)
            [one] = logged["upstreams"]
            assert (one["name"], one["health"], one["dialect"]) == ("one", "ok", "openai")
            assert one["credentials"] == [{"name": "key", "type": "key", "source": "***", "expires_at": None}]
            metrics = admin.send_admin_request(path, "/metrics").decode()
            assert 'dragoman_requests_total{dialect="anthropic",model="gpt",outcome="ok",upstream="one"} 1.0' in metrics
            assert "dragoman_time_to_first_byte_seconds_bucket" in metrics
            assert admin.send_admin_request(path, "/nothing") == (
                b"/status, /models, /metrics, /cooldowns, /log, /requests, /activity, /healthz\n"
            )
            second = running_gateway(config, state=tmp_path, access_log=log, key=KEY, admin_socket=True)
            with pytest.raises(LocalMisuse, match="another gateway"), second:
                pass
            assert path.exists()
        assert not path.exists()
    with pytest.raises(OSError):
        admin.send_admin_request(path)


def test_a_reload_replaces_everything_except_for_running_requests(tmp_path: Path) -> None:
    slow = parse_script('[[turn]]\nparts = [{ text = "Begin " }, { wait = 0.6 }, { text = "end." }]')
    with (
        running_simulator("openai", script=slow) as first,
        running_simulator("anthropic") as second,
        start_gateway(upstream_config("one", "openai", first.url), tmp_path) as harness,
        StreamClient(harness, "/v1/messages", anthropic_body(stream=True)) as client,
    ):
        client.read_until(b"Begin")
        loop = harness.running.loop
        assert loop is not None
        reload = harness.running.gateway.reload(parse_config(upstream_config("two", "anthropic", second.url)))
        asyncio.run_coroutine_threadsafe(reload, loop).result(5)
        _, headers, _ = harness.request("/v1/messages", anthropic_body())
        assert headers["dragoman-upstream"] == "two"
        assert b"message_stop" in client.read_all()
        assert (first.total, second.total) == (1, 1)


def test_a_reload_with_another_key_revokes_the_old_one(tmp_path: Path) -> None:
    old, new = "dgm_the-old-key-0123456789abcdef", "dgm_the-new-key-0123456789abcdef"
    with running_simulator("openai") as simulator:
        configs = [parse_config(upstream_config("one", "openai", simulator.url), server__key=key) for key in (old, new)]
        log = AccessLog(Redactor(), stream=io.StringIO())
        with running_gateway(configs[0], state=tmp_path, access_log=log) as running:
            harness = GatewayHarness(running, io.StringIO(), tmp_path)
            for _ in range(2):
                assert [harness.request("/v1/chat/completions", openai_body(), key=key)[0] for key in (old, new)] == [
                    200,
                    401,
                ]
            assert running.loop is not None
            asyncio.run_coroutine_threadsafe(running.gateway.reload(configs[1]), running.loop).result(5)
            assert [harness.request("/v1/chat/completions", openai_body(), key=key)[0] for key in (old, new)] == [
                401,
                200,
            ]
        assert simulator.total == 3


def test_a_stop_waits_for_running_streams(tmp_path: Path) -> None:
    script = parse_script('[[turn]]\nparts = [{ text = "Begin " }, { wait = 0.4 }, { text = "end." }]')
    with (
        running_simulator("openai", script=script) as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness,
        StreamClient(harness, "/v1/messages", anthropic_body(stream=True)) as client,
    ):
        client.read_until(b"Begin")
        harness.running.stop()
        wait_until(lambda: harness.running.gateway.draining)
        assert b"message_stop" in client.read_all()


@pytest.mark.parametrize("abort", [True, False])
def test_an_endless_stream_is_cut_with_an_error_at_a_stop(abort: bool, tmp_path: Path) -> None:
    script = parse_script('[[turn]]\nparts = [{ text = "Begin " }, { wait = 30.0 }, { text = "end." }]')
    with (
        running_simulator("openai", script=script) as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url), tmp_path, server__drain=0.2) as harness,
        StreamClient(harness, "/v1/messages", anthropic_body(stream=True)) as client,
    ):
        client.read_until(b"Begin")
        harness.running.stop(abort=abort)
        rest = client.read_all()
        assert b"event: error" in rest and b"shutting down" in rest
        assert harness.log_lines()[0]["outcome"] == "cut"
        assert simulator.requests[0].wait() == "gone"


def test_the_example_dialect_works_without_a_change_of_the_package(tmp_path: Path) -> None:
    """A dialect from an entry point works for clients and for upstreams."""
    example = Path(__file__).parent.parent / "example"
    script = f"""
import json
from pathlib import Path
from tests.gateway.harness import anthropic_body, start_gateway, upstream_config
from dragoman.simulator import running_simulator
letter = {{"model": "m", "turns": [{{"who": "user", "says": [{{"text": "fly"}}]}}]}}
with running_simulator("pigeon") as loft, running_simulator("openai") as other:
    text = upstream_config("loft", "pigeon", loft.url, 'models = ["bird"]') + upstream_config("other", "openai", other.url, 'models = ["m"]')
    with start_gateway(text, Path({str(tmp_path)!r})) as harness:
        for stream in (True, False):
            status, _, body = harness.request("/fly", {{**letter, "stream": stream}})
            lines = [json.loads(line) for line in body.splitlines()]
            assert status == 200 and lines[-1] == {{"bye": True}}, body
            assert "".join(line.get("say", "") for line in lines) == "You said: fly"
            status, _, body = harness.request("/v1/messages", anthropic_body("bird", "hi", stream=stream))
            assert status == 200 and b"hi" in body, body
        status, _, body = harness.request("/fly", letter, key="wrong")
        assert (status, "oops" in json.loads(body)) == (401, True)
        assert harness.request("/fly", method="GET")[0] == 405
    assert (loft.total, other.total) == (2, 2)
print("flown")
"""
    root = Path(__file__).parent.parent.parent
    path = os.pathsep.join([str(example), str(root), str(root / "src")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "flown\n", done.stderr


# --- access log


def record() -> Record:
    entry = Record("req_1", "POST", "/v1/messages")
    entry.dialect, entry.upstream, entry.model, entry.used_model = "anthropic", "kiro", "claude", "claude-sonnet-4.5"
    entry.status, entry.usage, entry.stop, entry.first_byte = 200, Usage(10, 5, 3, 0), Stop(StopReason.TOOL), 0.0421
    return entry


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_line_is_text_on_a_terminal_and_json_elsewhere() -> None:
    screen, pipe = Terminal(), io.StringIO()
    for stream in (screen, pipe):
        AccessLog(Redactor(), stream=stream).request(record())
    assert (
        "200 POST /v1/messages  anthropic → kiro  claude as claude-sonnet-4.5  first byte 42 ms, 0 ms  13 in (23% cached), 5 out  tool  req_1"
        in screen.getvalue()
    )
    logged = json.loads(pipe.getvalue())
    assert (logged["request_id"], logged["input_tokens"], logged["stop"], logged["first_byte_ms"]) == (
        "req_1",
        10,
        "tool",
        42.1,
    )


def test_log_text_cannot_control_the_terminal_or_forge_a_line() -> None:
    screen = Terminal()
    entry = record()
    entry.outcome, entry.error = "failed", "bad\n12:00:00 200 POST /forged\x1b[2J"
    AccessLog(Redactor(), stream=screen).request(entry)
    assert screen.getvalue().count("\n") == 1 and "\x1b" not in screen.getvalue()


def test_secrets_are_masked_by_value_by_pattern_and_by_name() -> None:
    redactor = Redactor(lambda: ["my-own-secret-value", "ab"])
    assert redactor.text("x my-own-secret-value y ab") == "x *** y ab"
    assert redactor.text("sk-ant-api03-abcdefghijklmnopqrst AKIAABCDEFGHIJKLMNOP") == "*** ***"
    assert redactor.headers((("authorization", "Basic x"), ("x-amz-security-token", "y"), ("accept", "z"))) == (
        ("authorization", "***"),
        ("x-amz-security-token", "***"),
        ("accept", "z"),
    )


def test_a_stop_writes_all_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are batched for a moment; the file contains all of them when the gateway has stopped."""
    monkeypatch.setattr(access_log, "_GATHER", 60.0)
    count, script = 10, parse_script('then = "last"\n[[turn]]\nparts = [{ text = "Begin." }, { wait = 30.0 }]')
    with running_simulator("openai", script=script) as simulator, (tmp_path / "log").open("w") as stream:
        config = parse_config(upstream_config("one", "openai", simulator.url), server__drain=0)
        log = AccessLog(Redactor(), stream=stream, form="json")
        with running_gateway(config, state=tmp_path, access_log=log, key=KEY) as running:
            harness = GatewayHarness(running, io.StringIO(), tmp_path)
            clients = [StreamClient(harness, "/v1/chat/completions", openai_body(stream=True)) for _ in range(count)]
            for client in clients:
                client.read_until(b"Begin.")
        for client in clients:
            client.leave()
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["outcome"] for line in lines if line["event"] == "request"] == ["cut"] * count


def test_a_log_write_error_does_not_fail_a_request() -> None:
    closed = io.StringIO()
    closed.close()
    log = AccessLog(Redactor(), stream=closed)
    log.request(record())
    assert log.dropped == 1


def test_no_thread_or_task_survives_a_stop(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with start_gateway("", tmp_path) as harness:
        assert harness.request("/v1/messages", anthropic_body())[0] == 200
    until = time.monotonic() + 3
    while "gateway" in {thread.name for thread in threading.enumerate()} - before and time.monotonic() < until:
        time.sleep(0.01)
    assert "gateway" not in {thread.name for thread in threading.enumerate()} - before
