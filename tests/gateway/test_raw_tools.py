"""Raw tool calls through a gateway: an OpenAI upstream that writes them as text, clients of every dialect, table files."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.config import load_config
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.serve import running_gateway
from dragoman.simulator import parse_script, running_simulator
from tests.gateway.harness import (
    FAST_RETRIES,
    KEY,
    GatewayHarness,
    anthropic_body,
    gateway_with_simulator,
    openai_body,
    start_gateway,
    upstream_config,
)
from tests.unit.raw_tools.client_view import client_request, read_stream, tool
from tests.unit.raw_tools.test_leaks import RECOVERED

KIMI = RECOVERED["text before and after"][0][0]["content"]
PATHS = {
    "anthropic": ("/v1/messages", "/v1/messages"),
    "openai": ("/v1/chat/completions", "/v1/chat/completions"),
    "responses": ("/v1/responses", "/v1/responses"),
    "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", "/v1beta/models/m:generateContent"),
    "bedrock": ("/model/m/converse-stream", "/model/m/converse"),
}
FLAGS = {"server.port": 0, "server.drain": 2}
TABLE = """
[[tables]]
name = "mine"
special = false
body = "wrapped"
call_begin = ["<{tag}>"]
call_end = ["</{tag}>"]
header_stop = ["{{"]
header = '\\s*(?P<name>)'
"""


@contextmanager
def gateway_from_file(config: Path, state: Path) -> Iterator[GatewayHarness]:
    """Run a gateway with a configuration file, as the command line does."""
    log = io.StringIO()
    access_log = AccessLog(Redactor(), stream=log, form="json", level="debug")
    loaded_config = load_config(config, {"HOME": "/nowhere"}, flags=FLAGS)
    with running_gateway(
        loaded_config, state=state, access_log=access_log, retry_settings=FAST_RETRIES, key=KEY
    ) as running:
        yield GatewayHarness(running, log, state)


def turns(*texts: str) -> str:
    return "".join(f"[[turn]]\ntext = {json.dumps(text, ensure_ascii=False)}\nchunk = 5\n" for text in texts)


def body_of(client: str, stream: bool) -> dict[str, Any]:
    body = client_request("openai").body if client == "openai" else _dialect_fields(client)
    return {**body, "stream": stream} if client in ("anthropic", "openai", "responses") else body


def _dialect_fields(client: str) -> dict[str, Any]:
    question = openai_body(tools=[tool("bash", "command")])
    return dragoman.translate_request(question, source="openai", target=client).body


@pytest.mark.parametrize("client", PATHS)
def test_every_client_gets_the_call(client: str, tmp_path: Path) -> None:
    script = parse_script(turns(KIMI, KIMI))
    with (
        running_simulator("openai", script=script) as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness,
    ):
        status, _, out = harness.request(PATHS[client][0], body_of(client, True))
        stream = read_stream(client, out, set())
        assert (status, stream.calls, stream.finish) == (200, [("bash", {"command": "ls"})], "tool_use")
        assert stream.content() == "I look.\n\nDone."
        status, _, out = harness.request(PATHS[client][1], body_of(client, False))
        assert (status, b"<|tool_call" in out, b'"ls' in out or b'\\"ls' in out) == (200, False, True)
        assert any(line["notes"] for line in harness.log_lines(2)[1:]), "the log says what was changed"


def test_a_whole_response_without_a_call_is_forwarded_unchanged(tmp_path: Path) -> None:
    """With the same dialect on both sides, only a response with a call is re-encoded."""
    with gateway_with_simulator(turns("Plain <|tool_call_begin|> text."), tmp_path, "openai") as (harness, _):
        _, _, out = harness.request("/v1/chat/completions", body_of("openai", False))
        assert json.loads(out)["choices"][0]["message"]["content"] == "Plain <|tool_call_begin|> text."
        assert harness.log_lines()[0]["verbatim"] is True
        assert harness.log_lines()[0]["notes"] == 0


def test_a_request_without_tools_is_not_parsed(tmp_path: Path) -> None:
    with gateway_with_simulator(turns(KIMI), tmp_path, "openai") as (harness, _):
        _, _, out = harness.request("/v1/chat/completions", openai_body())
        assert json.loads(out)["choices"][0]["message"]["content"] == KIMI


def test_a_reload_reads_the_table_file_again(tmp_path: Path) -> None:
    """The gateway uses a changed table after a reload, and the old one until then."""
    file = tmp_path / "mine.toml"
    file.write_text(TABLE.format(tag="act"))
    call = '{"name": "bash", "arguments": {"command": "ls"}}'
    script = parse_script(turns(*[f"<act>{call}</act>", f"<do>{call}</do>", f"<do>{call}</do>"]))
    tools = [{"name": "bash", "input_schema": {"type": "object"}}]

    def kinds(out: bytes) -> list[str]:
        return [block["type"] for block in json.loads(out)["content"]]

    config = tmp_path / "dragoman.toml"
    with running_simulator("openai", script=script) as simulator:
        text = upstream_config(
            "one", "openai", simulator.url, '[upstreams.one.translation]\nraw_tools = "file:mine.toml"'
        )
        config.write_text(f"allow_literal_secrets = true\n{text}")
        with gateway_from_file(config, tmp_path) as harness:
            assert kinds(harness.request("/v1/messages", anthropic_body(tools=tools))[2]) == ["tool_use"]
            file.write_text(TABLE.format(tag="do"))
            assert kinds(harness.request("/v1/messages", anthropic_body(tools=tools))[2]) == ["text"]
            assert harness.running.loop is not None
            reload = harness.running.gateway.reload(load_config(config, {"HOME": "/nowhere"}, flags=FLAGS))
            asyncio.run_coroutine_threadsafe(reload, harness.running.loop).result(5)
            assert kinds(harness.request("/v1/messages", anthropic_body(tools=tools))[2]) == ["tool_use"]
