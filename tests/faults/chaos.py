"""Fault 61: many clients of every dialect, some killed at random; no client gets text of another."""

from __future__ import annotations

import random
import threading
import time

from dragoman.simulator import Simulator, parse_script
from tests.faults.checks import parse_success
from tests.faults.client_faults import disconnect
from tests.faults.http_client import NoResponse, ResponseTimeout, WrongResponse, connect, read_response, request_bytes
from tests.faults.row import FaultRow
from tests.faults.runner import (
    CLIENTS,
    UPSTREAMS,
    Case,
    Pair,
    check_no_leaks,
    check_settled,
    client_request,
    configuration,
    gateway_tasks,
    run_servers,
)
from tests.gateway.harness import GatewayHarness, start_gateway


class ChaosClients:
    """Clients of every dialect that send requests in a loop and are killed at random."""

    def __init__(self, case: Case, harness: GatewayHarness, models: int, kill: float) -> None:
        self.case, self.harness, self.models, self.kill = case, harness, models, kill
        self.requests = self.killed = self.answered = 0
        self.problems: list[AssertionError] = []
        self._lock = threading.Lock()

    def run(self, number: int, until: float) -> None:
        rng = random.Random(number)
        while time.monotonic() < until:
            with self._lock:
                self.requests += 1
                mark = f"mark{self.requests:06d}"
            client, model = rng.choice(CLIENTS), f"m{rng.randrange(self.models)}"
            leaves = rng.random() < self.kill
            try:
                self._one(client, model, mark, rng.random() * 0.3 if leaves else None, reset=rng.random() < 0.5)
            except AssertionError as error:
                self.problems.append(error)

    def _one(self, client: str, model: str, mark: str, leaves_after: float | None, *, reset: bool) -> None:
        with connect(self.harness.url, 20) as sock:
            began = time.monotonic()
            text = f"{mark} " * 12
            sock.sendall(
                request_bytes(
                    self.harness.url, client_request(client, model, text), self.harness.key, connection="close"
                )
            )
            if leaves_after is not None:
                sock.settimeout(leaves_after + 0.001)
                try:
                    while time.monotonic() - began < leaves_after and sock.recv(4096):
                        pass
                except (TimeoutError, OSError):
                    pass
                disconnect(sock, reset=reset)
                self.killed += 1
                return
            response = read_response(sock, began, 20)
            if response.status != 200:
                raise WrongResponse(f"{response.status}: {response.body[:200]!r}")
            parsed = parse_success(client, response, stream=True)
            if parsed.error or not parsed.ended:
                raise NoResponse(f"{client}: {parsed.error or 'no end'}")
            others = {word for word in parsed.text.split() if word.startswith("mark")} - {mark}
            if others or parsed.text.count(mark) != 12:
                raise WrongResponse(f"{client} sent {mark} and received {parsed.text!r}")
            self.answered += 1


def chaos(case: Case) -> None:
    """Run 60 clients for 15 s, each request killed with a chance of 0.1 (500 streams for five minutes, scaled down)."""
    clients, seconds = (60, 15.0) if case.whole else (16, 2.0)
    simulators = [Simulator(name, script=parse_script("[pace]\nchunk = 8\ndelay = 0.002\n")) for name in UPSTREAMS]
    with case.probe("nothing is left over"), check_no_leaks(), run_servers(simulators):
        text = configuration(
            [(name, each.url) for name, each in zip(UPSTREAMS, simulators, strict=True)], "limits.concurrency = 256"
        )
        with start_gateway(text, case.folder_for("chaos")) as harness:
            tasks = gateway_tasks(harness)
            crowd = ChaosClients(case, harness, len(UPSTREAMS), 0.1)
            until = time.monotonic() + seconds
            threads = [threading.Thread(target=crowd.run, args=(number, until)) for number in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
                if thread.is_alive():
                    raise ResponseTimeout("a client is still waiting")
            case.probes += crowd.requests
            for problem in crowd.problems:
                kind = {ResponseTimeout: "hung", NoResponse: "lost"}.get(type(problem), "wrong")
                case.problems.append((kind, str(problem)[:300]))
            if not crowd.answered or not crowd.killed:
                raise WrongResponse(f"{crowd.answered} answered, {crowd.killed} killed: nothing was tried")
            check_settled(harness, tasks, crowd.requests)


ROWS = [
    FaultRow(
        61,
        "chaos: streams killed at random (scaled)",
        "none lost, none mixed, nothing left",
        chaos,
        [Pair("anthropic", "openai")],
    ),
]
