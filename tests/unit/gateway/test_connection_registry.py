"""Which connection is closed when there are too many, and that finding it takes constant time."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import tracemalloc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

import dragoman.dialects as registry
from bench.instructions import count_instructions
from dragoman.dialects.base import ApiRequest
from dragoman.errors import ClientFault, Fault
from dragoman.gateway.app import Gateway
from dragoman.gateway.context import RequestContext
from dragoman.gateway.limits import MemoryBudget, RequestLimits, Trimmer
from dragoman.gateway.records import Record
from dragoman.gateway.response_store import ResponseHolder, ResponseHolders, ResponseStore
from dragoman.gateway.stored_responses import StoredResponseRequest
from dragoman.gateway.unproven import UnprovenPool
from dragoman.http.exchange import Owner
from dragoman.http.server import serving as roster_module
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.serving import Acceptor, ConnectionRegistry, HttpServer, ShedResult
from dragoman.model.conversation import Conversation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import KEY, parse_config, upstream_config


class FakeConnection:
    def __init__(self, peer: str, *, busy: bool = False) -> None:
        self.peer, self.is_busy = peer, busy
        self.since, self.idle_since = 0.0, 1.0
        self.closed = self.is_slow = self.has_unread = False

    def abort(self) -> None:
        self.closed = True


def filled(*peers: str) -> tuple[Any, list[FakeConnection]]:
    connections: Any = ConnectionRegistry()
    members = [FakeConnection(peer) for peer in peers]
    for member in members:
        connections.add(member)
        connections.mark_received(member)
    return connections, members


@pytest.mark.parametrize("peer", ["", "late"])
def test_closing_one_of_many_connections_takes_as_many_steps_as_one_of_few(peer: str) -> None:
    """Regression: for a peer with too many connections, those of all others were looked at, for each new one."""

    def work(others: int) -> int:
        connections, _ = filled(*(["early"] * others), *(["late"] * 100))
        return count_instructions(lambda: connections.shed(peer))

    assert work(5000) <= work(10) + 5


def test_a_connection_with_a_new_client_address_is_counted_there_and_keeps_its_state() -> None:
    connections, (first, second) = filled("proxy", "proxy")
    silent = FakeConnection("proxy")
    connections.add(silent)
    for member in (first, second, silent):
        connections.move_to_peer(member, "client")
    assert (connections.count_of_peer("proxy"), connections.count_of_peer("client"), connections.unadmitted) == (
        0,
        3,
        2,
    )
    assert connections.shed("client") is ShedResult.CLOSED and first.closed
    connections.mark_received(second, is_admitted=True)
    assert connections.shed("client") is ShedResult.CLOSED and silent.closed and not second.closed
    connections.remove(second)
    connections.remove(second)
    connections.move_to_peer(second, "other")
    assert len(connections) == 0 and connections._by_peer == {} and connections.unadmitted == 0


def test_a_connection_whose_request_was_just_read_is_not_closed() -> None:
    """Regression: a flood of 64 connections in one turn closed all that had sent something, a client with a key among them."""

    async def run() -> None:
        async def respond(_: object) -> None: ...

        carrier = HttpServer(respond)
        with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as stack:
            listening.setblocking(False)
            acceptor = Acceptor(listening, carrier, most=8, max_of_peer=lambda _: 8, on_exhausted=lambda _: None)
            members = [ServerConnection(carrier, peer=f"192.0.2.{number}") for number in range(8)]
            for member in members:
                carrier.connections.add(member)
                carrier.connections.mark_received(member)
            for _ in range(32):
                stack.enter_context(socket.create_connection(listening.getsockname()))
            acceptor._accept()
            shed = [member for member in members if member._aborted]
            assert shed == members[: len(shed)] and 0 < len(shed) <= 4
            carrier.abort()
            acceptor.close()

    asyncio.run(run())


def test_many_small_requests_do_not_displace_a_large_body() -> None:
    """Regression: with too many requests, the one with most bytes was refused, regardless of who had sent the others."""
    refused: list[str] = []

    def on_refused(name: str) -> Callable[[Fault], None]:
        return lambda _: refused.append(name)

    pool = UnprovenPool(4, 1000)
    pool.enter("first", on_refused("first")).reserve(1)
    pool.enter("boto3", on_refused("boto3")).reserve(900)
    for number in range(4):
        pool.enter(f"bot {number}", on_refused(f"bot {number}")).reserve(1)
    assert refused == ["first", "boto3"]  # the oldest, since all have one
    pool.enter("bot 3", on_refused("again"))
    assert refused[2:] == ["bot 3"]  # now it has two


def test_the_oldest_of_equal_connections_is_closed_not_the_new_one() -> None:
    refused: list[int] = []
    pool = UnprovenPool(3, 1000)
    for number in range(6):
        pool.enter(f"peer {number}", lambda _, number=number: refused.append(number))  # type: ignore[misc]
    assert refused == [0, 1, 2]


def test_grace_counts_from_when_a_connection_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "_SHORT_GRACE", 0.0)
    connections: Any = ConnectionRegistry()
    fresh = FakeConnection("peer")
    fresh.since = monotonic()
    connections.add(fresh)
    assert connections.shed() is ShedResult.LATER and connections.shed("peer") is ShedResult.LATER
    connections.shorten_grace(fresh)
    assert connections.shed("peer") is ShedResult.CLOSED and fresh.closed
    assert connections.shed("peer") is ShedResult.NOTHING


def test_only_slow_bodies_are_closed_when_all_connections_have_requests() -> None:
    connections, members = filled("a", "a", "b")
    for member in members:
        member.is_busy = True
        connections.mark_received(member, is_admitted=True)
    assert connections.shed() is ShedResult.NOTHING
    members[1].is_slow = True
    assert connections.shed("b") is ShedResult.NOTHING
    assert connections.shed() is ShedResult.CLOSED
    assert [member.closed for member in members] == [False, True, False]
    assert connections.shed() is ShedResult.NOTHING


def test_a_connection_whose_bytes_wait_to_be_read_is_not_closed_as_silent() -> None:
    """A flood of connections makes the system hand over new ones before their bytes have come, or have been read."""
    connections: Any = ConnectionRegistry()
    first, second = FakeConnection("a"), FakeConnection("a")
    for member in (first, second):
        connections.add(member)
    connections.shorten_grace(second)
    assert connections.shed() is ShedResult.CLOSED and first.closed  # its grace was over
    assert connections.shed() is ShedResult.LATER and not second.closed
    second.since, second.has_unread = 0.0, True
    assert connections.shed() is ShedResult.LATER and not second.closed
    second.has_unread = False
    assert connections.shed() is ShedResult.CLOSED and second.closed


# --- Who made a response is remembered within bounds, and only its own client may ask about it

RESPONSES = registry.get("responses")


def test_the_number_of_holders_is_bounded_and_the_oldest_is_removed_first() -> None:
    holders, holder = ResponseHolders(most=2), ResponseHolder("me", "one", "http://one", "key")
    for name in ("a", "b", "a", "c", ""):
        holders.remember(name, holder)
    assert [holders.find(name) for name in ("a", "b", "c", "")] == [holder, None, holder, None]
    assert len(holders) == 2


@pytest.mark.parametrize("key", ["mine", "theirs"])
def test_a_response_of_another_key_is_not_found(key: str) -> None:
    """Also where a single upstream would be asked for an id that is not known."""
    request = HttpRequest("GET", "/v1/responses/resp_1")
    holders = ResponseHolders()
    holders.remember("resp_1", ResponseHolder(Owner("mine"), "one", "http://one", "c"))
    backend: Any = SimpleNamespace(name="one", dialect=RESPONSES, credential=lambda name: name)
    services: Any = SimpleNamespace(memory=ResponseStore(), holders=holders)
    fleet: Any = SimpleNamespace(backends=(backend,))
    exchange: Any = SimpleNamespace(request=request, owner=Owner(key))
    account: Any = None
    call = ApiRequest("stored", "", False, None, {"id": "resp_1", "action": "read", "query": ""})
    context = RequestContext(services, fleet, exchange, account, RESPONSES, call, Record("r", "GET", "/"))
    stored = StoredResponseRequest(context)
    if key == "mine":
        found: Any = stored._target(holders.find("resp_1"))
        assert found == (backend, ["c"])
    else:
        with pytest.raises(ClientFault) as refused:
            stored._target(holders.find("resp_1"))
        assert refused.value.fault.status == 404


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/responses", 426), ("/openai/v1/responses", 426), ("/v1/models", 400)]
)
@pytest.mark.parametrize("extension", [True, False])
def test_under_asgi_a_websocket_is_refused_as_well_as_the_server_can(
    extension: bool, path: str, status: int, tmp_path: Path
) -> None:
    gateway = Gateway(parse_config(upstream_config("one", "responses", "http://127.0.0.1:1")), key=KEY, state=tmp_path)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    extensions: dict[str, Any] = {"websocket.http.response": {}} if extension else {}
    scope = {"type": "websocket", "path": path, "headers": [], "extensions": extensions}
    asyncio.run(gateway(scope, receive, send))
    if not extension:
        assert sent == [{"type": "websocket.close", "code": 1000}]
        return
    assert sent[0]["status"] == status
    assert json.loads(sent[1]["body"])["error"]["type"] == "invalid_request_error"


# --- Memory goes back to the system after a burst of large requests, and only then

MIB = 1024 * 1024


@pytest.fixture
def load() -> MemoryBudget:
    return MemoryBudget(RequestLimits())


def test_a_burst_that_is_over_is_trimmed_once(load: MemoryBudget) -> None:
    done: list[int] = []
    trimmer = Trimmer(load, lambda: done.append(1))
    shares = [load.enter() for _ in range(10)]
    for account in shares:
        account.reserve(MIB)
    trimmer.trim_if_idle(100.0)
    assert not done  # it is not over
    for account in shares:
        account.leave()
    trimmer.trim_if_idle(100.25)
    trimmer.trim_if_idle(100.5)
    assert len(done) == 1


def test_small_requests_do_not_trigger_a_trim(load: MemoryBudget) -> None:
    done: list[int] = []
    trimmer = Trimmer(load, lambda: done.append(1))
    for second in range(100):
        account = load.enter()
        account.hold("body", MIB)
        account.leave()
        trimmer.trim_if_idle(float(second))
    assert not done


def test_very_many_small_requests_at_once_are_a_burst(load: MemoryBudget) -> None:
    done: list[int] = []
    trimmer = Trimmer(load, lambda: done.append(1))
    shares = [load.enter() for _ in range(1000)]
    trimmer.trim_if_idle(100.0)
    assert not done
    for account in shares:
        account.leave()
    trimmer.trim_if_idle(100.25)
    trimmer.trim_if_idle(110.0)
    assert len(done) == 1


def test_bursts_one_after_the_other_are_trimmed_seconds_apart(load: MemoryBudget) -> None:
    done: list[int] = []
    trimmer = Trimmer(load, lambda: done.append(1))
    for quarter in range(80):  # 20 s
        account = load.enter()
        account.reserve(8 * MIB)
        account.leave()
        trimmer.trim_if_idle(100 + quarter / 4)
    assert len(done) == 4


def test_the_real_trim_does_not_fail(load: MemoryBudget) -> None:
    account = load.enter()
    account.reserve(8 * MIB)
    account.leave()
    Trimmer(load).trim_if_idle(100.0)
    assert load.peak_bytes == 0


# --- The response store counts no less than what a stored conversation takes

SHAPES: dict[str, list[Any]] = {
    "long texts": [{"role": "user", "content": "hello there " * 200}] * 50,
    "many messages": [{"role": "user" if at % 2 else "assistant", "content": "a word"} for at in range(1000)],
    "calls": [
        each
        for at in range(300)
        for each in (
            {"type": "function_call", "call_id": f"c{at}", "name": "read", "arguments": '{"path": "/a"}'},
            {"type": "function_call_output", "call_id": f"c{at}", "output": "some text"},
        )
    ],
    "parts": [{"role": "user", "content": [{"type": "input_text", "text": "a"}] * 1000}],
    "wide text": [{"role": "user", "content": "字" * 20_000}],
    "nested": [{"role": "user", "content": [{"type": "odd", "x": [[[]]] * 100}] * 50}],
}


def read(data: bytes) -> Conversation:
    dialect = registry.get("responses")
    return dialect.codec.parse_request(dialect.binding.unwrap(jsonio.decode(data)))


@pytest.mark.parametrize("name", SHAPES)
def test_the_size_of_a_stored_conversation_is_its_memory(name: str) -> None:
    data = jsonio.encode({"model": "m", "input": SHAPES[name]})
    read(data)  # what is made once is made
    memory = ResponseStore()
    gc.collect()
    tracemalloc.start()
    try:
        memory.keep("me", "a", read(data))
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < memory.size < 8 * taken + 4096
