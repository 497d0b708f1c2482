"""Fixtures: one gateway in front of an echo upstream, shared by tests that only send requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.harness import GatewayHarness, start_gateway, upstream_config
from tests.security.echo_upstream import EchoUpstream, run_echo_upstream


@pytest.fixture(scope="module")
def echo_upstream() -> Iterator[EchoUpstream]:
    with run_echo_upstream() as running:
        yield running


@pytest.fixture(scope="module")
def harness(echo_upstream: EchoUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHarness]:
    text = upstream_config("one", "anthropic", echo_upstream.url, 'limits.breaker = false\nmodels = ["m"]')
    with start_gateway(text, tmp_path_factory.mktemp("state")) as running:
        yield running
