"""Every client, the real program or library, runs a tool loop through the gateway over every upstream dialect.

A right response does not prove a right stream: clients hide bad ones by asking again (docs/dialects/clients.md#faults),
so the upstream's calls are counted. The tool must really have run: only it can take the token from one file to the
other and to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients import install
from tests.clients.client_table import CLIENTS, LIBRARIES, Client, select_clients
from tests.clients.conftest import NAMES
from tests.clients.install import NotInstalled, installed_version
from tests.clients.page import PINS, page_blocks, run_block
from tests.clients.runner import SimulatedGateway, run_tool_loop
from tests.gateway.harness import wait_until


def test_a_tool_loop(
    client: Client,
    target: str,
    gateways: Callable[[str], SimulatedGateway],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    version = installed_version(client.pin, client.version)
    row = {"client": client.name, "version": version, "dialect": client.dialect, "upstream": target}
    for name, value in (*row.items(), ("streams", client.streams)):
        record_property(name, value)
    before = _websockets(gateways(target))
    try:
        done = run_tool_loop(client, gateways(target), tmp_path)
    except NotInstalled as error:
        pytest.fail(str(error), pytrace=False)
    record_property("calls", len(done.requests))
    record_property("seconds", f"{done.seconds:.1f}")
    if wrong := done.wrong(client):
        where = done.keep(client, target)
        pytest.fail(f"{wrong} ({where})", pytrace=False)
    if not client.warns:  # but for one about the home of this test, which is a temporary folder
        words = [line for line in done.err.splitlines() if "warning" in line.lower() or " ERROR " in line]
        assert [line for line in words if "could not create PATH aliases" not in line] == []
    if client.streams == "WebSocket":  # a client could also have used HTTP after a refusal
        wait_until(lambda: _websockets(gateways(target)) == before + 1)


def _websockets(gateway: SimulatedGateway) -> int:
    """How many WebSockets have ended."""
    return sum(line["operation"] == "websocket" for line in gateway.harness.log_lines(0) if "operation" in line)


@pytest.mark.parametrize("path", ["/", "/api/hello"])
def test_the_probes_of_claude_code_are_answered_at_once_and_by_us(
    path: str, gateways: Callable[[str], SimulatedGateway]
) -> None:
    here = gateways("openai")
    before = here.simulator.total
    status, _, body = here.harness.request(path, method="HEAD", key=None)
    assert status < 500 and not body
    assert here.simulator.total == before


# --- the examples for SDKs and frameworks in docs/clients.md, run as they are written there

_SELECTED_PINS = {client.pin for client in select_clients(NAMES)}


def test_the_page_has_a_block_for_every_library_that_is_tried() -> None:
    assert set(page_blocks()) == set(PINS)
    names = {client.name.split()[0] for client in LIBRARIES}
    title_names = {"anthropic-py": "anthropic", "openai-py": "openai", "ai-sdk-7": "ai-sdk"}
    title_names |= {"anthropic-node": "@anthropic-ai/sdk", "openai-node": "openai for Node"}
    assert {title_names.get(name, name) for name in names} == set(PINS)


@pytest.mark.parametrize("name", [name for name, pin in PINS.items() if not pin or pin in _SELECTED_PINS])
def test_a_block_of_the_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    done = run_block(name, tmp_path)
    assert (done.returncode, done.stdout) == (0, "You said: Hello there.\n"), done.stderr


# --- The pins and the rows say the same, and a client that could not be installed says why

LOCKS = {"py": "requirements/dev.lock", "boto3": "requirements/dev.lock", "node": "tests/sdk/node/package.json"}


def pinned(client: Client) -> str:
    """The text that pins a client's version."""
    if not client.pin:
        return (install.ROOT / LOCKS[client.name.split()[0].rpartition("-")[2]]).read_text()
    folder = install.PINS / client.pin
    names = ("package.json", "requirements.lock")
    return "".join((folder / name).read_text() for name in names if (folder / name).exists())


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_row_shows_the_version_that_is_pinned(client: Client) -> None:
    text = pinned(client)
    assert f'"{client.version}"' in text or f"=={client.version} " in text


def test_every_pin_has_a_row() -> None:
    assert {path.name for path in install.PINS.iterdir()} == {client.pin for client in CLIENTS if client.pin}


def test_every_client_that_must_be_proven_is_proven_where_it_is_quick_or_in_the_continuous_proof() -> None:
    proven = {client.name.split()[0] for client in select_clients(["quick", "ci"])}
    needed = {"claude", "codex", "opencode", "gemini", "ai-sdk", "langchain", "pydantic-ai", "boto3"}
    assert needed | {"anthropic-py", "anthropic-node", "openai-py", "openai-node"} <= proven


def test_a_client_that_could_not_be_installed_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(install, "CACHE", tmp_path)
    monkeypatch.setattr(install, "RUNS_NEWEST", False)
    with pytest.raises(install.NotInstalled, match="gemini is not installed"):
        install.installed_path("gemini")
    monkeypatch.setattr(install, "NPM", str(tmp_path / "no-npm"))
    assert "no-npm" in install.install("gemini")
    with pytest.raises(install.NotInstalled, match=r"could not be installed.*no-npm"):
        install.installed_path("gemini")


def test_an_unknown_client_name_is_refused() -> None:
    with pytest.raises(KeyError, match="no client is called 'unknown'"):
        select_clients(["unknown"])
