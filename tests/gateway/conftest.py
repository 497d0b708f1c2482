"""Fixtures: one gateway in front of an Anthropic simulator for the tests of a module, and the event loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dragoman.simulator import Simulator, running_simulator
from tests.gateway.harness import GatewayHarness, start_gateway, upstream_config
from tests.gateway.socket_client import EVENT_LOOPS, use_event_loop


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with running_simulator("anthropic") as running:
        yield running


@pytest.fixture(scope="module")
def harness(simulator: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHarness]:
    with start_gateway(upstream_config("one", "anthropic", simulator.url), tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(params=EVENT_LOOPS)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with use_event_loop(request.param, monkeypatch):
        yield request.param
