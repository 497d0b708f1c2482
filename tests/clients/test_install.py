"""The pins and the rows say the same, and a client that could not be installed says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import install
from tests.clients.roster import CLIENTS, Client, chosen

LOCKS = {"py": "requirements/dev.lock", "boto3": "requirements/dev.lock", "node": "tests/sdk/node/package.json"}


def pinned(client: Client) -> str:
    """The text that pins a client's version."""
    if not client.pin:
        return (install.ROOT / LOCKS[client.name.split()[0].rpartition("-")[2]]).read_text()
    folder = install.PINS / client.pin
    names = ("package.json", "requirements.lock")
    return "".join((folder / name).read_text() for name in names if (folder / name).exists())


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_a_row_tells_the_version_that_is_pinned(client: Client) -> None:
    text = pinned(client)
    assert f'"{client.version}"' in text or f"=={client.version} " in text


def test_every_pin_has_a_row() -> None:
    assert {path.name for path in install.PINS.iterdir()} == {client.pin for client in CLIENTS if client.pin}


def test_every_client_that_must_be_proven_is_proven_where_it_is_quick_or_in_the_continuous_proof() -> None:
    proven = {client.name.split()[0] for client in chosen(["quick", "ci"])}
    needed = {"claude", "codex", "opencode", "gemini", "ai-sdk", "langchain", "pydantic-ai", "boto3"}
    assert needed | {"anthropic-py", "anthropic-node", "openai-py", "openai-node"} <= proven


def test_a_client_that_could_not_be_installed_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(install, "CACHE", tmp_path)
    with pytest.raises(install.NotInstalled, match="gemini is not installed"):
        install.place("gemini")
    monkeypatch.setattr(install, "NPM", str(tmp_path / "no-npm"))
    assert "no-npm" in install.install("gemini")
    with pytest.raises(install.NotInstalled, match=r"could not be installed.*no-npm"):
        install.place("gemini")


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(KeyError, match="no client is called 'nobody'"):
        chosen(["nobody"])
