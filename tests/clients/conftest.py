"""Which clients run (DRAGOMAN_CLIENTS: names or sets, `quick` unless it says more), and the table at the end.

The suite and the set `ci` have each client over two upstreams, Kiro and another in turn; all others have all. The
continuous proof runs `quick` with all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.clients.client_table import Client, select_clients
from tests.clients.runner import SimulatedGateway, simulated_gateway

HEADS = ("client", "version", "dialect", "upstream", "streams", "calls", "seconds", "result")
NAMES = os.environ.get("DRAGOMAN_CLIENTS", "quick").replace(",", " ").split()
# Beside the loop that all run, some clients have tests of their own.
collect_ignore = [] if any(client.pin == "claude" for client in select_clients(NAMES)) else ["test_claude_code.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if {"client", "target"} <= set(metafunc.fixturenames):
        pairs = [
            pytest.param(client, target, id=f"{client.name.replace(' ', '-')}-over-{target}")
            for number, client in enumerate(select_clients(NAMES))
            for target in (_two(client.upstreams, number) if _few(client) else client.upstreams)
        ]
        metafunc.parametrize(("client", "target"), pairs)


def _few(client: Client) -> bool:
    return "DRAGOMAN_CLIENTS" not in os.environ or ("ci" in NAMES and "ci" in client.sets)


def _two(upstreams: tuple[str, ...], number: int) -> tuple[str, ...]:
    others = upstreams[1:]
    return upstreams[0], *(others[number % len(others)] for _ in others[:1])


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], SimulatedGateway]]:
    """A gateway for each upstream dialect, started when first asked for."""
    with ExitStack() as stack:
        running: dict[str, SimulatedGateway] = {}

        def get(target: str) -> SimulatedGateway:
            if target not in running:
                running[target] = stack.enter_context(simulated_gateway(target, tmp_path_factory.mktemp("state")))
            return running[target]

        yield get


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "DRAGOMAN_CLIENTS" not in os.environ:
        return
    rows: list[tuple[str, ...]] = [HEADS]
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            properties = dict(report.user_properties)
            if report.when == "call" and "client" in properties:
                why = "pass" if report.passed else f"FAIL: {_reason(report)}"
                rows.append((*(str(properties.get(head, "-")) for head in HEADS[:-1]), why))
    if len(rows) > 1:
        widths = [max(len(row[at]) for row in rows) for at in range(len(HEADS) - 1)]
        terminalreporter.section("clients")
        for row in rows[:1] + sorted(rows[1:]):
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            terminalreporter.line("  ".join((*cells, row[-1])))


def _reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join(str(crash.message if crash else report.longrepr).split())[:160]
