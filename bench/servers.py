"""Running servers to measure: gateways, the relay, and the upstream without a gateway. Starts processes.

The report has rows for each of them.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from bench import gateways, load, processes, response_check
from bench.canned_responses import canned_response
from bench.gateways import Launch
from bench.request_bodies import request_body
from bench.scenarios import FLOOR, Scenario

STARTING = 60.0  # seconds
_PLAIN = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
_PORT = re.compile(r"http://127\.0\.0\.1:(\d+)")


class NotStarted(Exception):
    """A gateway that did not start, with the last lines of its log."""


class Upstream:
    """The fake upstream in its own process; `ports` by kind of response."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "bench.upstream"]
        self._process = subprocess.Popen(command, cwd=gateways.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self.ports: dict[str, int] = json.loads(self._process.stdout.readline())
        self._sizes_port = self.ports.pop("sizes")
        self.pid = self._process.pid

    def sizes(self) -> dict[str, int]:
        """Return the size of the last request of each kind, as the upstream received it."""
        with (
            socket.create_connection(("127.0.0.1", self._sizes_port), 5) as connection,
            connection.makefile("rb") as file,
        ):
            sizes: dict[str, int] = json.loads(file.read())
            return sizes

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class MeasuredServer(Protocol):
    """A server that can be measured; `name` is its name in the report."""

    name: str

    def target(self, scenario: Scenario) -> tuple[int, str, dict[str, str], str]:
        """Return the port, path, headers and model of a scenario's requests."""

    def cpu(self) -> float:
        """Return the CPU seconds used so far."""


def body_of(server: MeasuredServer, scenario: Scenario) -> bytes:
    """Return the request body of a scenario for a server."""
    model = server.target(scenario)[3]
    return request_body(scenario.client, scenario.question, model, stream=scenario.stream, size=scenario.size)


def request_bytes(server: MeasuredServer, scenario: Scenario) -> bytes:
    """Return the whole HTTP request of a scenario for a server."""
    port, path, headers, _ = server.target(scenario)
    return load.request(f"127.0.0.1:{port}", path, headers, body_of(server, scenario))


def check_response(server: MeasuredServer, scenario: Scenario) -> int:
    """Send one request, check the response and return its size. Raises WrongResponse, OSError, HTTPException."""
    port, path, headers, _ = server.target(scenario)
    raw, content = response_check.ask(port, path, headers, body_of(server, scenario))
    response_check.compare(content, canned_response(scenario.upstream).content)
    return len(raw)


class Gateway:
    """A gateway that was started and responds."""

    def __init__(self, name: str, launch: Launch, folder: Path, first: Scenario, source: Path | None = None) -> None:
        """Start it and wait for the right response to the scenario `first`. Raises NotStarted."""
        self.name = name
        self._launch = launch
        self._port = launch.port
        env = {**launch.env, "PYTHONPATH": str(source)} if source else launch.env
        on = processes.core(processes.GATEWAY) if launch.cores == 1 else processes.cores(launch.cores)
        began = time.perf_counter()
        self.process = processes.Process(launch.command, folder, env, on)
        try:
            self._wait(first)
        except BaseException:
            self.process.stop()
            raise
        self.started_in = time.perf_counter() - began
        self.cpu = self.process.cpu

    def _wait(self, first: Scenario) -> None:
        until = time.perf_counter() + STARTING
        problem = ""
        while time.perf_counter() < until:
            if not self.process.alive:
                raise NotStarted(f"it exited at once: {self.process.log_tail()}")
            try:
                self._listening()
                check_response(self, first)
                return
            except (OSError, http.client.HTTPException, response_check.WrongResponse) as error:
                problem = str(error)
            time.sleep(0.005)
        raise NotStarted(f"no correct response within {STARTING:g} s: {problem} | {self.process.log_tail()}")

    def _listening(self) -> None:
        """Find the port, and check that a process listens on it. Raises OSError."""
        if not self._port:
            found = _PORT.search(self.process.log.read_text(errors="replace"))
            if found is None:
                raise OSError("the gateway has not printed its port")
            self._port = int(found[1])
        socket.create_connection(("127.0.0.1", self._port), 1).close()

    def target(self, scenario: Scenario) -> tuple[int, str, dict[str, str], str]:
        launch, client = self._launch, scenario.client
        return self._port, launch.paths[client], dict(launch.headers[client]), launch.model(_model(self.name, scenario))

    def stop(self) -> None:
        self.process.stop()


def _model(name: str, scenario: Scenario) -> str:
    return scenario.model if name.startswith("dragoman") else scenario.upstream


class DirectServer:
    """The upstream without a gateway, to measure what a gateway adds."""

    name = "direct"

    def __init__(self, ports: Mapping[str, int]) -> None:
        self._ports = ports

    def target(self, scenario: Scenario) -> tuple[int, str, dict[str, str], str]:
        return self._ports[scenario.upstream], _PLAIN[scenario.client], {}, scenario.model

    def cpu(self) -> float:
        return 0.0

    def stop(self) -> None:
        pass


class RelayServer(DirectServer):
    """The floor: a TCP relay, in C if there is a compiler."""

    name = FLOOR

    def __init__(self, ports: Mapping[str, int], folder: Path) -> None:
        command, self.language = _relay(folder)
        command += [str(port) for port in ports.values()]
        self.process = processes.Process(command, folder, {}, processes.core(processes.GATEWAY))
        until = time.perf_counter() + 10
        while len(relay_ports := self.process.log.read_text().split()) < len(ports):
            if time.perf_counter() > until or not self.process.alive:
                raise NotStarted(self.process.log_tail())
            time.sleep(0.01)
        super().__init__(dict(zip(ports, map(int, relay_ports), strict=True)))

    def cpu(self) -> float:
        return self.process.cpu()

    def stop(self) -> None:
        self.process.stop()


def _relay(folder: Path) -> tuple[list[str], str]:
    here, compiler = Path(__file__).parent, shutil.which("gcc") or shutil.which("cc")
    if compiler:
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "relay"
        done = subprocess.run([compiler, "-O2", "-o", str(program), str(here / "relay.c")], check=False)
        if done.returncode == 0:
            return [str(program)], "C"
    return [sys.executable, str(here / "relay.py")], "Python"
