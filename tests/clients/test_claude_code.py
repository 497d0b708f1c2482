"""Claude Code sends fields that other services refuse: each is translated or left out, and never becomes an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.client_table import PROGRAMS, Client
from tests.clients.runner import SimulatedGateway, ToolLoop, run_tool_loop

NEW = [client for client in PROGRAMS if client.name in ("claude opus", "claude gpt-5")]


@pytest.fixture(params=NEW, ids=lambda client: client.name)
def claude(request: pytest.FixtureRequest) -> Iterator[Client]:
    yield request.param


def run_claude(client: Client, here: SimulatedGateway, folder: Path) -> tuple[ToolLoop, Any]:
    """A loop, and the first thing that the upstream was asked."""
    done = run_tool_loop(client, here, folder)
    assert not done.wrong(client), done.keep(client, "any")
    return done, done.requests[0].json


@pytest.fixture
def words(claude: Client, gateways: Callable[[str], SimulatedGateway], tmp_path: Path) -> str:
    """What a system message in the middle says, as Claude Code sends it; the other fields are there too."""
    _, sent = run_claude(claude, gateways("anthropic"), tmp_path)
    [message] = [message for message in sent["messages"] if message["role"] == "system"]
    assert sent["thinking"]["type"] == "adaptive" and sent["output_config"]["effort"]
    content = message["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


@pytest.mark.parametrize("service", ["openai", "kiro", "gemini"])
def test_a_system_message_in_the_middle_is_told_and_adaptive_thinking_absorbed(
    claude: Client,
    words: str,
    service: str,
    gateways: Callable[[str], SimulatedGateway],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    done, sent = run_claude(claude, gateways(service), tmp_path_factory.mktemp("other"))
    body = done.requests[0].body.decode()
    assert words.splitlines()[0][:60] in body
    assert "output_config" not in sent and "thinking" not in sent and "context_management" not in body
    if service == "openai":
        assert "system" in [message["role"] for message in sent["messages"][1:]]
