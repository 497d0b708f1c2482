"""A short run is part of `make test`; `make faults` (or DRAGOMAN_FAULTS=all) runs every probe of every pair."""

from __future__ import annotations

import os

import pytest

from dragoman.simulator import Simulator
from dragoman.upstream.kiro import credential
from tests.faults.listening import ask
from tests.faults.stage import CLIENTS, configuration, question, running
from tests.gateway.house import house

WHOLE = os.environ.get("DRAGOMAN_FAULTS") == "all"


@pytest.fixture(scope="session", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is opened once and kept (random numbers, the loops' own, the thread that writes logins) is no leak."""
    simulator = Simulator("openai")
    with (
        running([simulator]),
        house(configuration([("openai", simulator.url)]), tmp_path_factory.mktemp("warm")) as home,
    ):
        for client in CLIENTS:
            ask(home.url, question(client), home.key, 10)
    credential._writer.submit(int).result()
