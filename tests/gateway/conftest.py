"""A gateway before a simulator of Anthropic's service, which the tests of a module share; and the event loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dragoman.simulator import Simulator, running_simulator
from tests.gateway.front import LOOPS, on_loop
from tests.gateway.house import House, house, upstream


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with running_simulator("anthropic") as running:
        yield running


@pytest.fixture(scope="module")
def home(simulator: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(upstream("one", "anthropic", simulator.url), tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(params=LOOPS)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with on_loop(request.param, monkeypatch):
        yield request.param
