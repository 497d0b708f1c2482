"""The tool runners of the Anthropic SDKs, in their default mode, complete a loop of 20 calls over every upstream.

By default they start a message thread and then send only the new tool result. For an upstream without threads the
gateway refuses such a request, and the SDK sends the whole history.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

import dragoman.dialects as registry
from dragoman.model.blocks import ToolResult
from dragoman.model.conversation import Conversation
from dragoman.simulator import Simulator, running_simulator
from dragoman.simulator.script import Script, ScriptTurn, TextPart, ToolCallPart
from tests.gateway.harness import KEY, GatewayHarness, start_gateway, upstream_config
from tests.sdk.sdk_runners import NODE

CALLS = 20
UPSTREAMS = {  # name of an upstream: its dialect, its model, further settings
    "anthropic": ("anthropic", "claude-sonnet-4-5", ""),
    "compatible": ("anthropic", "kimi-k2", "settings = { threads = false }"),
    "openai": ("openai", "gpt-5", ""),
    "responses": ("responses", "gpt-5", ""),
    "kiro": ("kiro", "claude-sonnet-4.5", ""),
    "bedrock": ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0", ""),
    "invoke": ("bedrock.invoke", "anthropic.claude-sonnet-4-5-20250929-v1:0", ""),
    "gemini": ("gemini", "gemini-2.5-pro", ""),
}
SCRIPT = Script(
    turns=(
        *(
            ScriptTurn(parts=(ToolCallPart("get_weather", json.dumps({"city": f"City {n}"}), f"call_{n}"),))
            for n in range(CALLS)
        ),
        ScriptTurn(parts=(TextPart("All done."),)),
    ),
    then="last",
)
RESULTS = [(f"call_{n}", f"sun in City {n}") for n in range(CALLS)]


@anthropic.beta_tool
def get_weather(city: str) -> str:
    """The weather.

    Args:
        city: where
    """
    return f"sun in {city}"


@contextmanager
def gateway(names: list[str], tmp_path: Path) -> Iterator[tuple[GatewayHarness, dict[str, Simulator]]]:
    with ExitStack() as stack:
        simulators = {}
        text = ""
        for name in names:
            dialect, model, more = UPSTREAMS[name]
            profile = "paranoid" if dialect == "kiro" else "strict"
            simulators[name] = stack.enter_context(running_simulator(dialect, profile=profile, script=SCRIPT))
            text += upstream_config(name, dialect, simulators[name].url, more)
            text += f'[[routes]]\nmatch = "to-{name}"\nupstream = "{name}"\nmodel = "{model}"\n'
        yield stack.enter_context(start_gateway(text, tmp_path)), simulators


def requests_of(name: str, simulator: Simulator) -> list[Conversation]:
    """Return the requests that the upstream got, parsed by its dialect."""
    dialect = registry.get(UPSTREAMS[name][0])
    calls = [dialect.binding.match(each.request) for each in simulator.requests]
    return [dialect.codec.parse_request(call) for call in calls if call is not None]


def results(conversation: Conversation) -> list[tuple[str, str]]:
    return [
        (block.call_id, "".join(getattr(part, "text", "") for part in block.content))
        for message in conversation.messages
        for block in message.blocks
        if isinstance(block, ToolResult)
    ]


def check(name: str, harness: GatewayHarness, simulator: Simulator) -> None:
    """Check that each turn is one upstream request, none is refused, and every result belongs to its call."""
    assert [each.status for each in simulator.requests] == [200] * (CALLS + 1)
    conversations = requests_of(name, simulator)
    if name == "anthropic":
        assert [results(each) for each in conversations] == [[], *([each] for each in RESULTS)]
        assert [each.has_stored_turns for each in conversations] == [False] + [True] * CALLS
    else:
        assert results(conversations[-1]) == RESULTS
        assert not any(each.server_state for each in conversations)
        assert all(len(each.tools) == 1 for each in conversations)
    unthreaded = [line for line in harness.log_lines() if line["status"] == 400 and line["model"] == f"to-{name}"]
    assert len(unthreaded) == (0 if name == "anthropic" else 1)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", UPSTREAMS)
def test_the_python_tool_runner_completes_its_loop(name: str, stream: bool, tmp_path: Path) -> None:
    with gateway([name], tmp_path) as (harness, simulators):
        question: Any = [{"role": "user", "content": "go"}]
        with anthropic.Anthropic(api_key=KEY, base_url=harness.url, max_retries=0) as client:
            runner = client.beta.messages.tool_runner(
                model=f"to-{name}", max_tokens=500, messages=question, tools=[get_weather], stream=stream
            )
            last: Any = runner.until_done()
        assert "".join(block.text for block in last.content) == "All done."
        check(name, harness, simulators[name])


@pytest.mark.node
@pytest.mark.parametrize("stream", ["0", "1"], ids=["whole", "stream"])
def test_the_typescript_tool_runner_completes_its_loop(stream: str, tmp_path: Path) -> None:
    with gateway(list(UPSTREAMS), tmp_path) as (harness, simulators):
        done = subprocess.run(
            ["node", "runner.mjs", *(f"to-{name}" for name in UPSTREAMS)],
            cwd=NODE,
            env={**os.environ, "RUNNER_URL": harness.url, "RUNNER_KEY": KEY, "RUNNER_STREAM": stream},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert lines == [{"model": f"to-{name}", "said": "All done."} for name in UPSTREAMS]
        harness.log_lines(len(UPSTREAMS) * (CALLS + 2) - 1)
        for name, simulator in simulators.items():
            check(name, harness, simulator)
