"""Claude Code sends fields that other services refuse: each is translated or left out, and never becomes an error."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clients.client_table import PROGRAMS, UPSTREAMS, Client
from tests.clients.runner import SimulatedGateway, ToolLoop, run_tool_loop, simulated_gateway

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
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
def test_a_system_message_in_the_middle_is_noted_and_adaptive_thinking_absorbed(
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


@pytest.mark.parametrize("service", UPSTREAMS)
def test_tools_that_claude_code_has_found_are_shown_and_offered(
    service: str, gateways: Callable[[str], SimulatedGateway], tmp_path: Path
) -> None:
    """Its own search gives references: Anthropic expands them, and others get the definitions that it would show."""
    [opus] = [client for client in NEW if client.name == "claude opus"]
    names = {"query": "select:WebFetch,NotebookEdit", "max_results": 5}
    done = run_tool_loop(replace(opus, tool="ToolSearch", arguments=names), gateways(service), tmp_path)
    assert (done.code, [each.status for each in done.requests]) == (0, [200, 200]), done.err
    before, after = (each.body.decode() for each in done.requests)
    assert "notebook_path" in after and "notebook_path" not in before  # the schema of NotebookEdit
    if service == "anthropic":
        assert '"tool_reference"' in after and '"defer_loading":true' in after.replace(": ", ":")
    else:
        assert '"tool_reference"' not in after and "defer_loading" not in after
        assert "<function>" in after


def test_its_picker_gets_the_models_of_the_gateway(gateways: Callable[[str], SimulatedGateway], tmp_path: Path) -> None:
    """The picker reads this file, and shows names with `claude` only."""
    [by_run] = [client for client in PROGRAMS if client.name == "claude by run"]
    environ = {name: value for name, value in by_run.environ.items() if "NONESSENTIAL" not in name}
    done = run_tool_loop(replace(by_run, environ=environ, model="sim-model"), gateways("openai"), tmp_path)
    assert not done.wrong(by_run), done.keep(by_run, "openai")
    cache = json.loads((tmp_path / "home/.claude/cache/gateway-models.json").read_text())
    assert cache["models"] == [{"id": "sim-model-as-claude", "display_name": "sim-model"}]


# --- features that an upstream refuses: one more request, without the feature

REFUSED = {
    "output_config": "output_config: Extra inputs are not permitted",
    "thinking": "adaptive thinking is not supported on this model",
}


def opus() -> Client:
    [found] = [client for client in NEW if client.name == "claude opus"]
    return found


@pytest.mark.parametrize("field", REFUSED)
def test_a_refused_feature_is_left_out_by_the_next_request(field: str, tmp_path: Path) -> None:
    script = f"[[turn]]\nstatus = 400\nmessage = {json.dumps(REFUSED[field])}\n"
    with simulated_gateway("anthropic", tmp_path / "state", script) as here:
        done = run_tool_loop(opus(), here, tmp_path)
    assert done.proof == f"{done.token}\n", done.err
    assert [each.status for each in done.requests] == [400, 200, 200]
    first, *others = (json.loads(each.body).get(field) for each in done.requests)
    assert first and all(each != first for each in others)


@pytest.mark.parametrize("target", ["openai", "anthropic"])
def test_an_image_that_the_model_cannot_see_does_not_end_the_conversation(target: str, tmp_path: Path) -> None:
    (tmp_path / "dot.png").write_bytes(base64.b64decode(DOT))
    path = json.dumps(str(tmp_path / "dot.png"))
    script = f"""
[[turn]]
parts = [{{ tool = "Read", arguments = {{ file_path = {path} }} }}]
[[turn]]
status = 400
message = "image input is not supported by this model"
"""
    reader = replace(opus(), words="Look at it", command=(*opus().command[:-1], "Read"))
    with simulated_gateway(target, tmp_path / "state", script) as here:
        done = run_tool_loop(reader, here, tmp_path)
    assert (done.code, [each.status for each in done.requests]) == (0, [200, 400, 200]), done.err
    assert [DOT in each.body.decode() for each in done.requests] == [False, True, False]
    assert "Image removed" in done.out


def test_a_wrong_key_of_the_upstream_is_shown_at_once(tmp_path: Path) -> None:
    script = '[[turn]]\nstatus = 401\nmessage = "invalid x-api-key"\ntimes = 99\n'
    with simulated_gateway("anthropic", tmp_path / "state", script) as here:
        done = run_tool_loop(opus(), here, tmp_path)
    assert (done.code, len(done.requests)) == (1, 1)
    assert "refused this gateway's credential" in done.out
