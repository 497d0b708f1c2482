"""Faults 55, 62, 68, 69 and 71: the gateway as a process: its memory, files, signals and log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.simulator import Simulator, parse_script
from tests.faults.checks import Probe, check_response
from tests.faults.client_faults import disconnect, wait_until
from tests.faults.http_client import (
    NoResponse,
    RawResponse,
    ResponseTimeout,
    WrongResponse,
    connect,
    read_response,
    request_bytes,
    send_request,
)
from tests.faults.row import FaultRow
from tests.faults.runner import (
    Case,
    WakeupDelay,
    check_no_leaks,
    check_settled,
    client_request,
    configuration,
    covering_pairs,
    gateway_tasks,
    run_servers,
)
from tests.faults.size_faults import big_script
from tests.gateway.harness import KEY, parse_config, start_gateway
from tests.load.gateway import Gateway, start_gateway_process

SLOW = 'then = "last"\n[pace]\nchunk = 4\ndelay = 0.05\n[[turn]]\ntext = "{}"\n'
LONG = "word " * 24  # streams for 1.5 s


@contextmanager
def served(
    folder: Path, text: str, *, port: int = 0, most_files: int | None = None, log: bool = True
) -> Iterator[Gateway]:
    """Run a gateway process; its log is the file `log` in the folder."""
    lower = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({most_files}, {most_files}))"
    whole = f'allow_literal_secrets = true\n[server]\nkey = "{KEY}"\nport = {port}\n{text}'
    with start_gateway_process(folder, whole, lower if most_files is not None else "", log=log) as gateway:
        yield gateway


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def lines(folder: Path) -> list[dict[str, Any]]:
    """Return the request lines of a log. Raises WrongResponse for half a line."""
    found = []
    for line in (folder / "log").read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            raise WrongResponse(f"half a line in the log: {line[:200]!r}") from None
        if record["event"] == "request":
            found.append(record)
    return found


def exchange(url: str, client: str, within: float = 60.0, model: str = "m0", text: str = "hello") -> RawResponse:
    return send_request(url, client_request(client, model, text), KEY, within)


# --- 55


def slow_readers(case: Case) -> None:
    """Sixteen clients read 4 MB each at 1 KiB every 20 ms for 2 s (1 KiB/s for 60 s, scaled)."""
    count = 16
    simulator = Simulator(case.pair.upstream, script=big_script("x" * 4_000_000, chunk=8000))
    with case.probe(f"{count} at once"), check_no_leaks(), run_servers([simulator]):
        text = configuration([(case.pair.upstream, simulator.url)])
        with served(case.folder, text) as process, ExitStack() as stack:
            raw = request_bytes(process.url, client_request(case.pair.client), KEY)

            def begin() -> socket.socket:
                sock = stack.enter_context(connect(process.url, 60, 4096))
                sock.sendall(raw)
                return sock

            disconnect(begin(), reset=False)
            exchange(process.url, case.pair.client)  # warm up
            files, before = process.files(), process.memory()
            socks = [begin() for _ in range(count)]
            most, until = 0, time.monotonic() + 2.0
            while time.monotonic() < until:
                for sock in socks:
                    if not sock.recv(1024):
                        raise NoResponse("a slow reader was cut off")
                most = max(most, process.memory() - before)
                time.sleep(0.02)
            for sock in socks:
                disconnect(sock, reset=True)
            if most / count > 1 << 20:
                raise WrongResponse(f"{most / count / 1024:.0f} KiB more memory for each stream")
            wait_until(lambda: process.files() <= files + 1, 3, "files stay open in the gateway")


# --- 62


def terminated(case: Case) -> None:
    count = 100 if case.whole else 20
    simulator = Simulator(case.pair.upstream, script=parse_script(SLOW.format(LONG)))
    with run_servers([simulator]):
        text = configuration([(case.pair.upstream, simulator.url)], "limits.concurrency = 256")
        port = free_port()
        with case.probe(f"SIGTERM with {count} streams"), served(case.folder, text, port=port) as process:
            socks = [connect(process.url, 60) for _ in range(count)]
            try:
                raw = request_bytes(process.url, client_request(case.pair.client), KEY, connection="close")
                for sock in socks:
                    sock.sendall(raw)
                wait_until(lambda: simulator.total == count, 10, "not all have begun")
                process.process.send_signal(signal.SIGTERM)
                for sock in socks:
                    response = read_response(sock, time.monotonic(), 60)
                    check_response(case.pair.client, Probe("it"), response, LONG, ())
            finally:
                for sock in socks:
                    sock.close()
            if (status := process.process.wait(60)) != 0:
                raise WrongResponse(f"exit status {status}")
            case.probes += count
        with case.probe("one line for each"):
            outcomes = [line["outcome"] for line in lines(case.folder)]
            if outcomes != ["ok"] * count:
                raise WrongResponse(f"{len(outcomes)} lines: {set(outcomes)}")
        with case.probe("SIGKILL, and again"):
            with served(case.folder, text, port=port) as process, connect(process.url, 60) as sock:
                sock.sendall(request_bytes(process.url, client_request(case.pair.client), KEY))
                sock.recv(100)
                process.process.kill()
                process.process.wait(60)
            with served(case.folder, text, port=port) as process:
                check_response(case.pair.client, Probe("it"), exchange(process.url, case.pair.client), LONG, ())
            lines(case.folder)
            wait_until(lambda: all(each.wait(0.1) for each in simulator.requests), 5, "an upstream was never let go")


# --- 68


def out_of_files(case: Case) -> None:
    """The gateway has 64 files for 150 clients: it waits without using CPU, and continues when files are free."""
    simulator = Simulator(case.pair.upstream, script=parse_script('then = "last"\n[[turn]]\ntext = "fine"\n'))
    with case.probe("EMFILE"), check_no_leaks(), run_servers([simulator]):
        text = configuration([(case.pair.upstream, simulator.url)])
        with served(case.folder, text, most_files=64) as process, ExitStack() as stack:
            check_response(case.pair.client, Probe("it"), exchange(process.url, case.pair.client), "fine", ())
            idle = [stack.enter_context(connect(process.url, 60)) for _ in range(150)]
            time.sleep(0.3)
            before = process.cpu()
            time.sleep(1.5)
            spent = process.cpu() - before
            if spent > 0.3:
                raise WrongResponse(f"{spent:.2f} s of CPU in 1.5 s of waiting: it spins")
            if process.process.poll() is not None:
                raise NoResponse("it died")
            for sock in idle:
                sock.close()
            check_response(case.pair.client, Probe("it"), exchange(process.url, case.pair.client), "fine", ())


# --- 69


def _count_events(folder: Path, event: str, before: int = 0) -> int:
    """Return how many log lines of this event there are after the first `before`."""
    return (folder / "log").read_text().count(f'"event":"{event}"') - before


def reloaded(case: Case) -> None:
    simulator = Simulator(case.pair.upstream, script=parse_script(SLOW.format("one two three")))
    with case.probe("under load"), check_no_leaks(), run_servers([simulator]):
        text = configuration([(case.pair.upstream, simulator.url)])
        with start_gateway(text, case.folder_for("load")) as harness, ThreadPoolExecutor(8) as pool:
            tasks, count = gateway_tasks(harness), 40 if case.whole else 10
            responses = [pool.submit(exchange, harness.url, case.pair.client) for _ in range(count)]
            loop, gateway = harness.running.loop, harness.running.gateway
            assert loop is not None
            while not all(reply.done() for reply in responses):
                asyncio.run_coroutine_threadsafe(gateway.reload(parse_config(text)), loop).result(5)
                time.sleep(0.03)
            for reply in responses:
                check_response(case.pair.client, Probe("it"), reply.result(), "one two three", ())
            case.probes += count
            check_settled(harness, tasks, count)
    with case.probe("a bad file"), check_no_leaks(), run_servers([simulator]):
        text = configuration([(case.pair.upstream, simulator.url)])
        with served(case.folder, text) as process:
            good = (process.folder / "config.toml").read_text()
            for content, event in (
                ("no = TOML [", "reload_refused"),
                (good, "reloaded"),
                ("[server]\nprot = 1", "reload_refused"),
            ):
                before = _count_events(case.folder, event)
                (process.folder / "config.toml").write_text(content)
                process.process.send_signal(signal.SIGHUP)
                wait_until(partial(_count_events, case.folder, event, before), 5, f"no line {event}")
                check_response(
                    case.pair.client, Probe("it"), exchange(process.url, case.pair.client), "one two three", ()
                )


# --- 71

_PIPE = 64 * 1024  # the kernel's buffer of a pipe


def blocked_log(case: Case) -> None:
    """Standard error is a pipe that is not read: requests continue."""
    simulator = Simulator(case.pair.upstream, script=parse_script('then = "last"\n[[turn]]\ntext = "fine"\n'))
    with case.probe("a pipe without a reader"), check_no_leaks(), run_servers([simulator]):
        text = configuration([(case.pair.upstream, simulator.url)])
        with served(case.folder, text, log=False) as process, WakeupDelay() as lag:
            count = 300  # lines of about 500 bytes
            for _ in range(count):
                response = exchange(process.url, case.pair.client, 5)
                check_response(case.pair.client, Probe("it"), response, "fine", ())
                if response.seconds > 1 + lag.worst:
                    raise ResponseTimeout(f"a request took {response.seconds:.1f} s")
            case.probes += count
            stderr = process.process.stderr
            assert stderr is not None
            os.set_blocking(stderr.fileno(), False)
            if len(stderr.read() or "") < _PIPE // 2:
                raise WrongResponse("the pipe was never full: nothing was tried")


ROWS = [
    FaultRow(
        55,
        "the client reads 1 KiB/s (scaled)",
        "less than 1 MiB for each stream",
        slow_readers,
        covering_pairs()[::2],
        quick=0,
    ),
    FaultRow(
        62,
        "SIGTERM with 100 streams; SIGKILL",
        "none cut, exit 0; no half line, starts again",
        terminated,
        covering_pairs()[:2],
    ),
    FaultRow(
        68,
        "no file descriptors left",
        "it waits without spinning, then goes on",
        out_of_files,
        covering_pairs()[:1],
        quick=0,
    ),
    FaultRow(
        69, "reload under load; a bad file", "no request notices; the old one stays", reloaded, covering_pairs()[:2]
    ),
    FaultRow(71, "the log is blocked", "requests go on", blocked_log, covering_pairs()[:2], quick=0),
]
