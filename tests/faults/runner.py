"""Run faults: a simulator, a fault proxy for each probe, a gateway, and a client that checks the response."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import dragoman.dialects as registry
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.simulator import Script, Simulator, parse_script
from dragoman.simulator.faults import FaultProxy
from dragoman.translate import plan
from dragoman.wire.http import HttpRequest
from tests.faults.checks import EXPECTED_ARGUMENTS, EXPECTED_TEXT, Probe, check_response
from tests.faults.http_client import NoResponse, RawResponse, ResponseTimeout, WrongResponse, send_request
from tests.faults.response_parsers import RESPONSE_PARSERS, ParsedResponse
from tests.faults.websocket_exchange import send_over_websocket
from tests.gateway.harness import GatewayHarness, start_gateway

KEY_OF_UPSTREAM = "the-upstream-secret"
# `make test` checks results and order, because a busy machine may be late. `make faults` also checks the times.
EXTRA_SECONDS = 0.0 if os.environ.get("DRAGOMAN_FAULTS") == "all" else 30.0
SLACK = 0.5 + EXTRA_SECONDS  # seconds after a deadline
PROBE_TIMEOUT = 15.0 + EXTRA_SECONDS  # seconds for a probe without a timeout of its own

_PARTS = f"""parts = [
  {{ text = {json.dumps(EXPECTED_TEXT, ensure_ascii=False)} }},
  {{ tool = "get_weather", arguments = {json.dumps(json.dumps(EXPECTED_ARGUMENTS, ensure_ascii=False), ensure_ascii=False)}, id = "call_1" }},
]"""
SMALL_CHUNKS = f'then = "last"\n[pace]\nchunk = 9\n[[turn]]\n{_PARTS}\n'
LARGE_CHUNKS = f'then = "last"\n[pace]\nchunk = 4000\n[[turn]]\n{_PARTS}\n'  # each text in one frame
_TOOL = ToolSpec(
    "get_weather",
    "Tell the weather.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
        "required": ["city"],
    },
)
MODEL = "claude-sonnet-4.5"


class Pair(NamedTuple):
    client: str
    upstream: str


CLIENTS = tuple(name for name in registry.names() if name in RESPONSE_PARSERS)
UPSTREAMS = tuple(name for name in registry.names() if name in (*RESPONSE_PARSERS, "kiro"))
EVENT_STREAMS = tuple(name for name in UPSTREAMS if name in ("kiro", "bedrock"))
SSE = tuple(name for name in UPSTREAMS if name not in EVENT_STREAMS)


def all_pairs(upstreams: Sequence[str] = UPSTREAMS, clients: Sequence[str] = CLIENTS) -> list[Pair]:
    return [Pair(client, upstream) for client in clients for upstream in upstreams]


def covering_pairs(upstreams: Sequence[str] = UPSTREAMS, clients: Sequence[str] = CLIENTS) -> list[Pair]:
    """Return pairs with each client and each upstream at least once, with different dialects if possible."""
    count = max(len(clients), len(upstreams))
    found = [Pair(clients[at % len(clients)], upstreams[(at + 1) % len(upstreams)]) for at in range(count)]
    return list(dict.fromkeys(found))


@dataclass
class ProbeResult:
    """The result of a probe, for its own checks."""

    case: Case
    model: str
    raw: RawResponse
    parsed: ParsedResponse | None
    harness: GatewayHarness
    proxy: FaultProxy
    simulator: Simulator

    def ask(self, *, stream: bool = True) -> RawResponse:
        """Send the same request once more."""
        return self.case.send(self.harness, client_request(self.case.pair.client, self.model, stream=stream))


@dataclass
class Case:
    """One fault with one pair. Failures are collected, so that one probe does not hide the others."""

    pair: Pair
    folder: Path
    whole: bool  # all probes, or a few
    over_websocket: bool = False
    probes: int = 0
    requests: int = 0  # sent to the running gateway; a session is one, and its message another
    problems: list[tuple[str, str]] = field(default_factory=list)

    @contextmanager
    def probe(self, label: str) -> Iterator[None]:
        self.probes += 1
        try:
            yield
        except (AssertionError, TimeoutError, OSError, ValueError, KeyError) as error:
            kind = (
                "hung" if isinstance(error, ResponseTimeout) else "lost" if isinstance(error, NoResponse) else "wrong"
            )
            self.problems.append((kind, f"{label}: {type(error).__name__}: {error}"))

    def send(self, harness: GatewayHarness, request: HttpRequest, within: float = PROBE_TIMEOUT) -> RawResponse:
        """Send a request and read the whole response. Raises ResponseTimeout, NoResponse."""
        self.requests += 1 + self.over_websocket
        exchange = send_over_websocket if self.over_websocket else send_request
        return exchange(harness.url, request, harness.key, within)

    def some(self, probes: Iterable[Probe], few: int = 3) -> list[Probe]:
        """Return all probes, or in a short run a few, spread from the first to the last."""
        found = list(probes)
        if self.whole or len(found) <= few:
            return found
        return [found[round(at * (len(found) - 1) / (few - 1))] for at in range(few)]

    def folder_for(self, name: str) -> Path:
        made_folder = self.folder / name
        made_folder.mkdir(exist_ok=True)
        return made_folder


# --- running things


@contextmanager
def run_servers(servers: Iterable[AbstractAsyncContextManager[Any]]) -> Iterator[None]:
    """Run simulators and proxies in one event loop in one thread."""
    ready, stop, failed = threading.Event(), threading.Event(), []

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
            ready.set()
            while not stop.is_set():
                await asyncio.sleep(0.01)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001  raised below
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    if failed:
        raise failed[0]
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


class WakeupDelay:
    """Measures how late this machine wakes up threads, so that its delay does not count as ours."""

    def __enter__(self) -> WakeupDelay:
        self.worst = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(0.01):
            now = time.monotonic()
            self.worst = max(self.worst, now - last - 0.01)
            last = now

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def client_request(client: str, model: str = "m0", text: str = "hello", *, stream: bool = True) -> HttpRequest:
    """Return a request in the client's dialect."""
    conversation = Conversation(
        model, (Message("user", (Text(text),)),), max_tokens=1000, tools=(_TOOL,), stream=stream
    )
    dialect = registry.get(client)
    return dialect.binding.wrap(plan(dialect, dialect, conversation).call())


def configuration(urls: Sequence[tuple[str, str]], more: str = "", head: str = "") -> str:
    """Return an upstream and a route for each (dialect, url); the models are m0, m1, …"""
    text = head
    for at, (dialect, url) in enumerate(urls):
        text += f"""
[upstreams.u{at}]
dialect = "{dialect}"
base_url = "{url}"
key = "{KEY_OF_UPSTREAM}"
{more}
[[routes]]
match = "m{at}"
upstream = "u{at}"
model = "{MODEL}"
"""
    return text


def count_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@contextmanager
def check_no_leaks() -> Iterator[None]:
    """Raise WrongResponse if a file descriptor or a thread remains."""
    before, threads = count_fds(), threading.active_count()
    yield
    until = time.monotonic() + 3 + EXTRA_SECONDS
    while (count_fds() > before or threading.active_count() > threads) and time.monotonic() < until:
        time.sleep(0.02)
    if count_fds() > before or threading.active_count() > threads:
        names = [thread.name for thread in threading.enumerate()][threads:]
        raise WrongResponse(f"{count_fds() - before} file descriptors and the threads {names} were left behind")


def gateway_tasks(harness: GatewayHarness) -> int:
    """Return the number of tasks in the gateway's event loop."""
    loop = harness.running.loop
    assert loop is not None
    done, found = threading.Event(), [0]

    def count() -> None:
        found[0] = len(asyncio.all_tasks(loop))
        done.set()

    loop.call_soon_threadsafe(count)
    assert done.wait(5 + EXTRA_SECONDS), "the gateway's loop is stuck"
    return found[0]


def check_settled(harness: GatewayHarness, tasks: int, lines: int) -> None:
    """Raise WrongResponse unless the gateway becomes idle, with one log line per request and no secret in it."""
    until = time.monotonic() + 3 + EXTRA_SECONDS
    while time.monotonic() < until and (gateway_tasks(harness) > tasks or harness.running.gateway.in_flight):
        time.sleep(0.01)
    if harness.running.gateway.in_flight or gateway_tasks(harness) > tasks:
        raise WrongResponse(
            f"{harness.running.gateway.in_flight} requests and {gateway_tasks(harness) - tasks} tasks are left over"
        )
    found = harness.log_lines(lines)
    if len(found) != lines or len({line["request_id"] for line in found}) != lines:
        raise WrongResponse(f"{len(found)} lines for {lines} requests")
    bugs = [line["error"] for line in found if line["outcome"] == "bug"]
    if bugs:
        raise WrongResponse(f"a bug: {bugs[0]}")
    for secret in (KEY_OF_UPSTREAM, harness.key):
        if secret in harness.text:
            raise WrongResponse("a secret is in the log")


# --- probes through proxies


def same_probes(*probes: Probe) -> Callable[[Pair], Iterable[Probe]]:
    """Return a function that gives the same probes for every pair."""
    return lambda _: probes


def run_probes(
    make: Callable[[Pair], Iterable[Probe]],
    *,
    script: str | Script = SMALL_CHUNKS,
    more: str = "",
    runs_by_itself: bool = False,
    says: str | None = EXPECTED_TEXT,
    calls: Sequence[Any] | None = (EXPECTED_ARGUMENTS,),
    few: int = 3,
    **flags: Any,
) -> Callable[[Case], None]:
    """Return a function that runs probes, each with its own proxy; `runs_by_itself`: each with its own gateway, too."""

    def run(case: Case) -> None:
        probes = case.some([probe for probe in make(case.pair) if probe.stream or not case.over_websocket], few)
        groups = [[probe] for probe in probes] if runs_by_itself else [probes]
        for number, group in enumerate(groups):
            with case.probe("nothing is left over"), check_no_leaks():
                case.probes -= 1
                _run_group(case, group, str(number), script, more, says, calls, flags)

    return run


def _run_group(
    case: Case,
    probes: Sequence[Probe],
    name: str,
    script: str | Script,
    more: str,
    says: str | None,
    calls: Sequence[Any] | None,
    flags: dict[str, Any],
) -> None:
    dialect = registry.get(case.pair.upstream)
    played = parse_script(script) if isinstance(script, str) else script
    simulator = Simulator(case.pair.upstream, script=played, profile="observed")
    with run_servers([simulator]):
        proxies = [
            FaultProxy(simulator.url, probe.faults, dialect=dialect if probe.framed else None, tls=probe.tls)
            for probe in probes
        ]
        with run_servers(proxies):
            urls = [probe.url or proxy.url for probe, proxy in zip(probes, proxies, strict=True)]
            text = configuration([(case.pair.upstream, url) for url in urls], more)
            with start_gateway(text, case.folder_for(name), **flags) as harness, WakeupDelay() as lag:
                tasks, case.requests = gateway_tasks(harness), 0
                for at, (probe, proxy) in enumerate(zip(probes, proxies, strict=True)):
                    with case.probe(probe.label):
                        shown = ProbeResult(case, f"m{at}", RawResponse(), None, harness, proxy, simulator)
                        _run_probe(shown, probe, lag, says, calls)
                with case.probe("the gateway settles"):
                    case.probes -= 1
                    check_settled(harness, tasks, case.requests)


def _run_probe(
    shown: ProbeResult,
    probe: Probe,
    lag: WakeupDelay,
    says: str | None = EXPECTED_TEXT,
    calls: Sequence[Any] | None = (EXPECTED_ARGUMENTS,),
) -> None:
    lag.worst = 0.0
    client, harness, proxy = shown.case.pair.client, shown.harness, shown.proxy
    request = client_request(client, shown.model, stream=probe.stream)
    within = PROBE_TIMEOUT if probe.within is None else probe.within + 5.0 + EXTRA_SECONDS
    raw = shown.raw = shown.case.send(harness, request, within)
    if probe.within is not None and raw.seconds > probe.within + SLACK + lag.worst:
        raise ResponseTimeout(f"it took {raw.seconds:.2f} s, with a deadline of {probe.within:g} s")
    shown.parsed = check_response(client, probe, raw, says, calls)
    if probe.max_requests is not None and proxy.forwarded > probe.max_requests:
        raise WrongResponse(f"the upstream was asked {proxy.forwarded} times, and paid as often")
    if probe.check is not None:
        probe.check(shown)
