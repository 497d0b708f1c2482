"""What docs/clients.md tells users of SDKs and frameworks to write, run as it tells them to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import NAMES
from tests.clients.page import PINS, blocks, run
from tests.clients.roster import LIBRARIES, chosen

_ASKED = {client.pin for client in chosen(NAMES)}


def test_the_page_has_a_block_for_every_library_that_is_tried() -> None:
    assert set(blocks()) == set(PINS)
    names = {client.name.split()[0] for client in LIBRARIES}
    spelt = {"anthropic-py": "anthropic", "openai-py": "openai", "ai-sdk-7": "ai-sdk"}
    spelt |= {"anthropic-node": "@anthropic-ai/sdk", "openai-node": "openai for Node"}
    assert {spelt.get(name, name) for name in names} == set(PINS)


@pytest.mark.parametrize("name", [name for name, pin in PINS.items() if not pin or pin in _ASKED])
def test_a_block_of_the_page_does_what_it_says(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path)
    assert (done.returncode, done.stdout) == (0, "You said: Hello there.\n"), done.stderr
