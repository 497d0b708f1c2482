"""Ollama's Python library runs tool loops through the gateway, streamed and whole, with upstreams of every dialect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator.server import running_simulator
from tests.gateway.harness import KEY, GatewayHarness, start_gateway, upstream_config

ollama = pytest.importorskip("ollama", reason="ollama is not installed")
UPSTREAMS = ("ollama", "anthropic", "openai", "kiro")


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHarness]:
    with ExitStack() as stack:
        simulators = {dialect: stack.enter_context(running_simulator(dialect)) for dialect in UPSTREAMS}
        text = "".join(upstream_config(dialect, dialect, simulator.url) for dialect, simulator in simulators.items())
        text += "".join(
            f'[[routes]]\nmatch = "{dialect}-m"\nupstream = "{dialect}"\nmodel = "claude-sonnet-4.5"\n'
            for dialect in UPSTREAMS
        )
        yield stack.enter_context(start_gateway(text, Path(tmp_path_factory.mktemp("state"))))


def client(harness: GatewayHarness, key: str = KEY) -> Any:
    """Return a client for use in a `with` statement."""
    return ollama.Client(host=harness.url, headers={"authorization": f"Bearer {key}"})


def get_weather(city: str) -> str:
    """Return the weather.

    Args:
      city: Where.
    """
    return f"sunny in {city}"


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("dialect", UPSTREAMS)
def test_a_tool_loop_runs(harness: GatewayHarness, dialect: str, streamed: bool) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Please use get_weather."}]
    ran, text = [], ""
    for _ in range(4):
        with client(harness) as asking:
            response = asking.chat(model=f"{dialect}-m", messages=messages, tools=[get_weather], stream=streamed)
            pieces = list(response) if streamed else [response]
        assert pieces[-1].done and pieces[-1].done_reason == "stop"
        text = "".join(piece.message.content or "" for piece in pieces)
        calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
        messages.append({"role": "assistant", "content": text, "tool_calls": calls})
        if not calls:
            break
        for call in calls:
            ran.append(call.function.name)
            result = get_weather(**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
    assert ran == ["get_weather"] and "sunny in" in text


def test_the_library_reads_model_lists_and_errors(harness: GatewayHarness) -> None:
    with client(harness) as asking:
        assert "ollama-m" in [model.model for model in asking.list().models]
    with client(harness) as asking, pytest.raises(ollama.ResponseError) as refused:
        asking.chat(model="ollama-m", messages=[{"role": "user", "content": "x"}], options={"temperature": "hot"})
    assert refused.value.status_code == 400 and "temperature" in refused.value.error
    with client(harness, "wrong") as refused_client, pytest.raises(ollama.ResponseError) as refused:
        list(refused_client.chat(model="ollama-m", messages=[{"role": "user", "content": "x"}], stream=True))
    assert refused.value.status_code == 401
