"""Fixtures of the fault suite. `make test` runs a part; `make faults` (or DRAGOMAN_FAULTS=all) runs every probe."""

from __future__ import annotations

import os

import pytest

from dragoman.simulator import Simulator
from dragoman.upstream.kiro import credential
from tests.faults.http_client import send_request
from tests.faults.runner import CLIENTS, client_request, configuration, run_servers
from tests.gateway.harness import start_gateway

ALL_PROBES = os.environ.get("DRAGOMAN_FAULTS") == "all"


@pytest.fixture(scope="session", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Open what stays open (random device, files of event loops, the login writer), so that it does not count as a leak."""
    simulator = Simulator("openai")
    with (
        run_servers([simulator]),
        start_gateway(configuration([("openai", simulator.url)]), tmp_path_factory.mktemp("warm")) as harness,
    ):
        for client in CLIENTS:
            send_request(harness.url, client_request(client), harness.key, 10)
    credential._writer.submit(int).result()
