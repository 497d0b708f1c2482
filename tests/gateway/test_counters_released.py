"""All counters and memory accounts are released when requests end, whatever fault occurs."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.gateway import delivery
from dragoman.simulator.faults import FaultProxy, parse_fault
from dragoman.simulator.server import Simulator
from tests.gateway.harness import (
    GatewayHarness,
    StreamClient,
    anthropic_body,
    client_request,
    gated_server,
    gateway_with_simulator,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.load.upstream import DIALECTS

FAULTS = (
    *("slicer:size=7", "cut:event=2,how=reset", "cut:event=1,how=close", "drop", "limit_data:after=400,reset=true"),
    *("script:codes=429+503+200", "status:code=500", "status:code=400", "length:by=-9", "no_last_chunk", "until_close"),
    *("garbage:event=1", "omit:event=1", "duplicate:event=1", "swap:event=1", "compress", "stale", "hang"),
)
TIMEOUTS = "[upstreams.{}.timeouts]\nfirst_byte = 0.3\nidle = 0.3\n"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


@contextmanager
def faulty_upstreams() -> Iterator[dict[str, str]]:
    """Run one upstream for each pair of dialect and fault, and for each dialect without a fault; give the addresses."""
    ready, ended, urls = threading.Event(), asyncio.Event(), dict[str, str]()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            for number, dialect in enumerate(DIALECTS):
                simulator = await stack.enter_async_context(Simulator(dialect))
                urls[dialect] = simulator.url
                for fault in FAULTS[number :: len(DIALECTS) // 2]:
                    fault_proxy = FaultProxy(simulator.url, [parse_fault(fault)], dialect=registry.get(dialect))
                    urls[f"{dialect}-{fault.partition(':')[0]}{len(urls)}"] = (
                        await stack.enter_async_context(fault_proxy)
                    ).url
            loops.append(asyncio.get_running_loop())
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield urls
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join()


def counters(harness: GatewayHarness) -> dict[str, Any]:
    """Return every counter, memory account and queue length."""
    gateway = harness.running.gateway
    load, services, fleet = gateway.memory_budget, gateway._services, gateway.upstreams
    assert fleet is not None
    return {
        "request bytes": load.request_bytes,
        "response bytes": load.response_bytes,
        "requests": load.requests,
        "peers": load.by_peer,
        "live": len(gateway._live),
        "buffers": len(services.keep_alive.buffers),
        "explaining": (services.report_queue.waiting, services.report_queue._bytes),
        "job process": gateway.job_process._waiting,
        "gates": [(each.slots.active, each.slots.waiting) for each in fleet.backends if each.slots.active],
        "users": fleet.users,
        "probes": [rest for rest in gateway.breaker.cooldowns.values() if rest.probing],
    }


NOTHING = {
    "request bytes": 0,
    "response bytes": 0,
    "requests": 0,
    "peers": {},
    "live": 0,
    "buffers": 0,
    "explaining": (0, 0),
    "job process": 0,
    "gates": [],
    "users": 0,
    "probes": [],
}


def wait_until_idle(harness: GatewayHarness) -> None:
    with suppress(AssertionError):
        wait_until(lambda: counters(harness) == NOTHING)
    assert counters(harness) == NOTHING


def a_request(chance: random.Random, model: str) -> tuple[str, dict[str, Any]]:
    stream, size = chance.random() < 0.7, chance.choice([1, 1, 1, 3000])
    text = "call get_weather, please " * size
    match chance.randrange(5):
        case 0:
            tools = [{"name": "get_weather", "input_schema": SCHEMA}]
            return "/v1/messages", anthropic_body(model, text, stream=stream, tools=tools)
        case 1 | 2 | 3 as number:
            return client_request(("openai", "responses", "gemini")[number - 1], stream=stream, model=model, text=text)
        case _:
            return "/v1/messages/count_tokens", {"model": model, "messages": [{"role": "user", "content": text}]}


def ask(harness: GatewayHarness, seed: int, models: list[str]) -> None:
    """Send one request from a client that may disconnect at any moment."""
    chance = random.Random(seed)
    path, body = a_request(chance, chance.choice(models))
    leaves = chance.random()
    if leaves > 0.5:
        with suppress(HTTPException, OSError):
            harness.request(path, body)
        return
    with suppress(OSError, AssertionError), StreamClient(harness, path, body) as client:
        if leaves > 0.1:
            client.socket.recv(chance.choice([1, 20, 200, 2000]))
        client.leave(reset=chance.random() < 0.5)


@pytest.mark.parametrize("seed", [1, 2])
def test_all_counters_are_released_after_any_fault(seed: int, tmp_path: Path) -> None:
    """The faults: retries, fallbacks, refusals, resets, silence, disconnecting clients, the job process, explanations."""
    with faulty_upstreams() as urls:
        names = [f"u{number}" for number in range(len(urls))]
        text, fallbacks = "", random.Random(seed)
        for name, (place, url) in zip(names, urls.items(), strict=True):
            dialect = place.partition("-")[0]
            next_one = fallbacks.choice(names)
            text += upstream_config(name, dialect, url, "limits.breaker = false") + TIMEOUTS.format(name)
            text += f'[[routes]]\nmatch = "m-{name}"\nupstream = "{name}"\nmodel = "claude-sonnet-4.5"\n'
            text += f'fallbacks = ["{next_one}/claude-sonnet-4.5"]\n' if next_one != name else ""
        with start_gateway(text, tmp_path, server__offload=20_000) as harness, ThreadPoolExecutor(8) as pool:
            models = [f"m-{name}" for name in names]
            list(pool.map(lambda number: ask(harness, 1000 * seed + number, models), range(80)))
            wait_until_idle(harness)
            assert "bug" not in {line["outcome"] for line in harness.log_lines()}


# --- frames that never end

BEGUN: dict[str, bytes] = {
    "openai": b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"',
    "anthropic": b'event: message_start\ndata: {"type":"message_start","message":{"id":"',
    "gemini": b'[{"candidates":[{"content":{"parts":[{"text":"',
}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
FRAME = 2 * 1024 * 1024


@pytest.mark.parametrize("dialect", BEGUN)
@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_an_unfinished_frame_is_counted(dialect: str, client: str, tmp_path: Path) -> None:
    """Passed through or translated: of 4 responses with unfinished frames of 2 MiB, 3 fit into 6 MiB and one does not."""
    path, body = client_request(client, stream=True)
    with ExitStack() as stack:
        gates = [stack.enter_context(gated_server(b"", HEAD + BEGUN[dialect] + b"x" * FRAME)) for _ in range(4)]
        text = "".join(
            upstream_config(f"u{number}", dialect, url) + f'[[routes]]\nmatch = "m{number}"\nupstream = "u{number}"\n'
            for number, (url, _) in enumerate(gates)
        )
        harness = stack.enter_context(
            start_gateway(text, tmp_path, server__hold=60, server__limits__in_flight=3 * FRAME + FRAME // 2)
        )
        load = harness.running.gateway.memory_budget
        clients = []
        for number in range(3):
            clients.append(stack.enter_context(StreamClient(harness, path, {**body, "model": f"m{number}"})))
            wait_until(lambda least=number + 1: load.response_bytes >= least * FRAME)
        status, _, answered = harness.request(path, {**body, "model": "m3"})
        assert (status, b"running responses need" in answered) == (529 if client == "anthropic" else 503, True), (
            answered
        )
        assert load.response_bytes < 3 * FRAME + FRAME // 2
        for each in clients:
            each.leave()
        wait_until_idle(harness)


def test_one_frame_is_limited_by_the_memory_of_one_response(tmp_path: Path) -> None:
    with (
        gated_server(b"", HEAD + BEGUN["openai"] + b"x" * FRAME) as (url, _),
        start_gateway(upstream_config("one", "openai", url), tmp_path, server__limits__answer=FRAME // 2) as harness,
    ):
        status, _, answered = harness.request("/v1/messages", anthropic_body(stream=True))
        assert (status, b"have to be buffered" in answered) == (502, True), answered
        wait_until_idle(harness)


def test_reading_a_stored_response_is_counted(tmp_path: Path) -> None:
    """A stored response may have 64 MiB, and several may be read at the same time."""
    data = json.dumps({"id": "resp_1", "object": "response", "output": [], "filler": "x" * FRAME}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data)
    with gated_server(data[-1:], head + data[:-1]) as (url, gate):
        with start_gateway(
            upstream_config("one", "responses", url), tmp_path, server__limits__in_flight=2 * FRAME
        ) as harness:
            load = harness.running.gateway.memory_budget
            with ThreadPoolExecutor(1) as pool:
                pending = pool.submit(harness.request, "/v1/responses/resp_1", method="GET")
                wait_until(lambda: load.response_bytes >= FRAME)
                gate.set()
                assert pending.result()[0] == 200
            wait_until_idle(harness)
        with start_gateway(
            upstream_config("one", "responses", url), tmp_path, server__limits__in_flight=FRAME
        ) as harness:
            assert harness.request("/v1/responses/resp_1", method="GET")[0] == 503
            wait_until_idle(harness)


# --- whole responses with very many values


def calls(count: int) -> bytes:
    function = {"name": "f", "arguments": "{}"}
    called = [{"id": f"c{number}", "type": "function", "function": function} for number in range(count)]
    message = {"role": "assistant", "content": None, "tool_calls": called}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()


def test_a_whole_response_instead_of_a_stream_is_counted_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: megabytes of calls were parsed on the event loop before they were counted."""
    read: list[int] = []
    codec = type(registry.get("openai").codec)
    parse = codec.parse_reply

    def parse_reply(self: Any, body: bytes, *rest: Any) -> Any:
        read.append(len(body))
        return parse(self, body, *rest)

    monkeypatch.setattr(codec, "parse_reply", parse_reply)
    data = calls(60_000)
    with (
        gated_server(data, HEAD.replace(b"text/event-stream", b"application/json")) as (url, gate),
        start_gateway(upstream_config("one", "openai", url), tmp_path) as harness,
    ):
        gate.set()
        status, _, answered = harness.request("/v1/messages", anthropic_body(stream=True))
        assert (status, b"have to be buffered" in answered, read) == (502, True, []), answered
        wait_until_idle(harness)


def test_a_large_stored_response_is_parsed_by_the_job_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: responses for clients of the Responses API were parsed on the event loop."""
    monkeypatch.setattr(delivery, "translate_whole", None)
    with gateway_with_simulator("", tmp_path, "openai", server__offload=10) as (harness, simulator):
        status, _, first = harness.request("/v1/responses", {"model": "m", "input": "one"})
        assert status == 200
        answered = json.loads(first)["id"]
        assert harness.request(f"/v1/responses/{answered}", method="GET")[2] == first
        status, _, _ = harness.request(
            "/v1/responses", {"model": "m", "input": "two", "previous_response_id": answered}
        )
        sent = json.loads(simulator.requests[-1].body)["messages"]
        assert (status, [each["role"] for each in sent]) == (200, ["user", "assistant", "user"])
        wait_until_idle(harness)
