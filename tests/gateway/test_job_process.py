"""The job process for large requests: the same results, start on demand, and a clean end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import socket
import sys
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import dragoman.dialects as registry
from dragoman.errors import TooLarge
from dragoman.gateway import response_store
from dragoman.gateway.job_process import JobProcess, JobProcessFailed, JobProcessUnavailable
from dragoman.gateway.jobs import ReadJob, ReadResult
from dragoman.gateway.limits import Overloaded, RequestLimits
from dragoman.gateway.planning import Bounds
from dragoman.gateway.routing import Router
from dragoman.simulator import parse_script
from dragoman.simulator.server import Simulator, running_simulator
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    anthropic_body,
    gateway_with_simulator,
    openai_body,
    start_gateway,
    upstream_config,
    wait_for_refusal,
    wait_until,
)
from tests.laws.bodies import BODIES
from tests.load.upstream import DIALECTS

BOUNDS = Bounds(RequestLimits(), 32 * 1024 * 1024, "web")
CLIENTS = tuple(BODIES)
VARYING = re.compile(  # values that differ between runs: ids, times and ports
    rb"[0-9a-f]{24}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|\b1[0-9]{9}(?:\.[0-9]+)?\b|127\.0\.0\.1:\d+"
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
)
OURS = {"x-request-id", "request-id", "x-amzn-requestid", "date", "content-length"}


@pytest.fixture(scope="module")
def simulators() -> Iterator[dict[str, Simulator]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_simulator(name)) for name in DIALECTS}


@pytest.fixture(scope="module")
def both(
    simulators: dict[str, Simulator], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[GatewayHarness, GatewayHarness]]:
    """A gateway without a job process, and one with a job process that parses every request."""
    text = "".join(
        upstream_config(name, name, simulator.url)
        + f'[[routes]]\nmatch = "to-{name}"\nupstream = "{name}"\nmodel = "claude-sonnet-4.5"\n'
        for name, simulator in simulators.items()
    )
    text += upstream_config("strict", "openai", simulators["openai"].url, 'translation.losses = "refuse"')
    text += '[[routes]]\nmatch = "strict"\nupstream = "strict"\n'
    with (
        start_gateway(text, tmp_path_factory.mktemp("here"), server__offload=0) as here,
        start_gateway(text, tmp_path_factory.mktemp("there"), server__offload=1) as there,
    ):
        yield here, there


def observed(harness: GatewayHarness, simulator: Simulator, request: HttpRequest) -> list[Any]:
    """Return what the client and the upstream get for a request."""
    before = len(harness.log_lines(0))
    requests_before = len(simulator.requests)
    path = f"{request.path}?{request.query}" if request.query else request.path
    headers = {name.replace("-", "_"): value for name, value in request.headers}
    status, response_headers, body = harness.request(path, request.body, method=request.method, **headers)
    line = harness.log_lines(before + 1)[before]
    sent = [
        (each.method, each.path, {name: value for name, value in each.headers.items() if name != "host"}, each.body)
        for each in simulator.requests[requests_before:]
    ]
    shown = {name: value for name, value in response_headers.items() if name not in OURS}
    noted = {
        name: line.get(name) for name in ("outcome", "notes", "rules", "verbatim", "error", "status", "used_model")
    }
    return [status, shown, VARYING.sub(b"#", body), noted, VARYING.sub(b"#", repr(sent).encode())]


def request_to(client: str, target: str, *, stream: bool) -> HttpRequest:
    dialect = registry.get(client)
    call = dialect.binding.unwrap(BODIES[client])
    return dialect.binding.wrap(structs.replace(call, stream=stream, model=f"to-{target}"))


@pytest.mark.parametrize("target", DIALECTS)
@pytest.mark.parametrize("client", [name for name in CLIENTS if name != "kiro"])
def test_results_are_the_same_with_and_without_the_job_process(
    client: str, target: str, both: tuple[GatewayHarness, GatewayHarness], simulators: dict[str, Simulator]
) -> None:
    for stream in (False, True):
        request = request_to(client, target, stream=stream)
        here, there = (observed(harness, simulators[target], request) for harness in both)
        if client == "bedrock" and stream:  # the checksums of frames depend on ids
            here[2], there[2] = len(here[2]), len(there[2])
        assert there == here


WRONG = {
    "no JSON": ("/v1/messages", b'{"model": "to-openai"'),
    "no model": ("/v1/messages", json.dumps({"messages": []}).encode()),
    "half a character": ("/v1/messages", json.dumps(anthropic_body("to-openai", "\ud800")).encode()),
    "broken UTF-8": ("/v1/messages", b'{"model": "to-openai\xff"}'),
    "too deep": ("/v1/messages", b'{"model": "to-openai", "messages": ' + b"[" * 600 + b"]" * 600 + b"}"),
    "too deep for any": ("/v1/messages", b'{"model": "to-openai", "messages": ' + b"[" * 99999),
    "too many messages": ("/v1/messages", json.dumps(anthropic_body("to-openai") | {"messages": anthropic_body()["messages"] * 3000}).encode()),
    "too many values": ("/v1/chat/completions", json.dumps(openai_body("to-openai", x=[0] * 1_100_000)).encode()),
    "a wrong type": ("/v1/messages", json.dumps(anthropic_body("to-openai") | {"messages": 3}).encode()),
    "an unknown model": ("/v1/messages", json.dumps(anthropic_body("nothing-like-it")).encode()),
    "no such path": ("/v1/nothing", json.dumps(anthropic_body("to-openai")).encode()),
    "a name twice": ("/v1/chat/completions", b'{"model": "to-openai", "model": "to-openai", "messages": [{"role": "user", "content": "x"}]}'),
    "a name twice, refused": ("/v1/chat/completions", b'{"model": "strict", "model": "strict", "messages": [{"role": "user", "content": "x"}]}'),
    "a loss, refused": ("/v1/messages", json.dumps(anthropic_body("strict", top_k=3)).encode()),
    "nothing known to continue": ("/v1/responses", json.dumps({"model": "to-openai", "input": "x", "previous_response_id": "resp_1"}).encode()),
    "tokens counted": ("/v1/messages/count_tokens", json.dumps(anthropic_body("to-anthropic")).encode()),
    "tokens estimated": ("/v1/messages/count_tokens", json.dumps(anthropic_body("to-kiro")).encode()),
    "a list of models": ("/v1/models", b"{}"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_the_same_with_and_without_the_job_process(
    what: str, both: tuple[GatewayHarness, GatewayHarness], simulators: dict[str, Simulator]
) -> None:
    path, body = WRONG[what]
    request = HttpRequest("POST", path, body=body)
    here, there = (observed(harness, simulators["openai"], request) for harness in both)
    assert there == here


def test_a_conversation_is_continued_by_its_id(
    both: tuple[GatewayHarness, GatewayHarness], simulators: dict[str, Simulator]
) -> None:
    """The job process gets the earlier conversation and stores the new one."""
    sent = []
    for harness in both:
        previous = None
        for words in ("first", "second", "third"):
            body = {"model": "to-openai", "input": words} | ({"previous_response_id": previous} if previous else {})
            status, _, response = harness.request("/v1/responses", body)
            assert status == 200
            previous = json.loads(response)["id"]
        sent.append(json.loads(simulators["openai"].requests[-1].body)["messages"])
    assert sent[0] == sent[1]
    assert [each["content"] for each in sent[1] if each["role"] == "user"] == ["first", "second", "third"]


def test_the_gateway_itself_does_not_parse_a_large_request(
    both: tuple[GatewayHarness, GatewayHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_not(*_: object) -> None:
        raise AssertionError("read in the gateway")

    for name in (
        "app.check_text",
        "attempts.parse_within_limits",
        "attempts.render_planned",
        "attempts.refuse_duplicate_keys",
        "response_store.continued_plan",
    ):
        monkeypatch.setattr(f"dragoman.gateway.{name}", must_not)
    monkeypatch.setattr(Router, "match", must_not)
    for model in ("to-openai", "to-anthropic"):
        status, _, body = both[1].request("/v1/messages", anthropic_body(model), anthropic_version="2023-06-01")
        assert status == 200, body


def test_a_refusal_of_a_large_request_is_explained_by_the_job_process(tmp_path: Path) -> None:
    with running_simulator(
        "kiro", script=parse_script('then = "last"\n[[turn]]\nstatus = 400\nmessage = "Improperly formed"')
    ) as simulator:
        found = []
        for offload in (0, 1):
            state = tmp_path / str(offload)
            with start_gateway(
                upstream_config("one", "kiro", simulator.url), state, server__offload=offload
            ) as harness:
                sent = anthropic_body("claude-sonnet-4.5", f"my key is {KEY}", top_k=3)
                status, headers, _ = harness.request("/v1/messages", sent)
                assert status == 400
                report = wait_for_refusal(state, headers["x-request-id"])
                assert report is not None
                found.append(structs.replace(report, id="", at=0.0))
    assert VARYING.sub(b"#", repr(found[0]).encode()) == VARYING.sub(b"#", repr(found[1]).encode())
    assert KEY not in repr(found)


# --- the process


def body_of(text: str = "hello") -> bytes:
    return json.dumps(anthropic_body("m", text)).encode()


def parse_request(job_process: JobProcess, body: bytes) -> Coroutine[Any, Any, tuple[Any, bytes]]:
    return job_process.run_job(ReadJob(HttpRequest("POST", "/v1/messages"), BOUNDS), "req", body)


async def dialect_of(job_process: JobProcess, body: bytes) -> str | None:
    found: ReadResult = (await parse_request(job_process, body))[0]
    return found.dialect


def new_job_process(**more: Any) -> JobProcess:
    return JobProcess([registry.get("anthropic")], **more)


async def test_the_job_process_starts_on_demand_and_ends_when_idle() -> None:
    job_process = new_job_process(idle_seconds=0.01)
    assert (job_process.started, job_process.pid) == (0, None)
    assert await dialect_of(job_process, body_of()) == "anthropic"
    while job_process.pid is not None:
        await asyncio.sleep(0.005)
    assert await dialect_of(job_process, body_of()) == "anthropic"
    assert job_process.started == 2
    job_process.close()


async def test_a_job_process_that_was_killed_is_replaced() -> None:
    job_process = new_job_process()
    for times in (1, 2):
        assert await dialect_of(job_process, body_of()) == "anthropic"
        assert job_process.started == times
        assert job_process.pid is not None
        os.kill(job_process.pid, signal.SIGKILL)
    job_process.close()


async def test_a_request_that_fails_in_two_workers_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    job_process = new_job_process()
    monkeypatch.setattr("dragoman.gateway.job_process.MODULE", "this")  # this module ends at once
    with pytest.raises(JobProcessFailed) as caught:
        await parse_request(job_process, body_of())
    assert (caught.value.fault.status, job_process.started) == (500, 2)
    monkeypatch.undo()
    assert await dialect_of(job_process, body_of()) == "anthropic"  # only that request fails
    job_process.close()


async def test_a_job_that_times_out_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.gateway.job_process.SECONDS", 0.0)

    job_process = new_job_process()
    with pytest.raises(JobProcessFailed):
        await parse_request(job_process, body_of())
    assert job_process.pid is None


async def test_a_cancelled_request_ends_its_worker_but_not_waiting_requests() -> None:
    job_process = new_job_process()
    assert await dialect_of(job_process, body_of()) == "anthropic"
    first = asyncio.ensure_future(parse_request(job_process, body_of("x" * 5_000_000)))
    second = asyncio.ensure_future(dialect_of(job_process, body_of()))
    third = asyncio.ensure_future(dialect_of(job_process, body_of()))
    await asyncio.sleep(0)
    third.cancel()
    first.cancel()
    assert await second == "anthropic"
    assert job_process.started == 2
    job_process.close()


async def test_the_queue_of_jobs_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.gateway.job_process.WAITING", 2)

    job_process = new_job_process()
    jobs = [asyncio.ensure_future(dialect_of(job_process, body_of())) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await parse_request(job_process, body_of())
    assert await asyncio.gather(*jobs) == ["anthropic", "anthropic"]
    job_process.close()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no limits there")
async def test_a_request_that_needs_too_much_memory_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.gateway.job_process.MEMORY", 300 * 1024 * 1024)

    job_process = new_job_process()
    body = json.dumps(anthropic_body("m") | {"x": [[]] * 6_000_000}).encode()
    bounds = structs.replace(BOUNDS, limits=RequestLimits(nodes=100_000_000))
    with pytest.raises(TooLarge):
        await job_process.run_job(ReadJob(HttpRequest("POST", "/v1/messages"), bounds), "req", body)
    job_process.close()


async def test_the_job_process_ends_with_the_gateway() -> None:
    """Its standard input is a socket, which closes when the gateway process ends."""

    job_process = new_job_process()
    await dialect_of(job_process, body_of())
    ended, socket_ = job_process._process, job_process._socket
    assert ended is not None and socket_ is not None
    socket_.close()
    assert (await asyncio.get_running_loop().run_in_executor(None, ended.wait, 10)) == 0


# --- after any failure of the job process, requests are answered and no process or open file remains

FILES = Path("/proc/self/fd")
KILLS = int(os.environ.get("DRAGOMAN_KILLS", "4"))
LARGE = "word " * 10_000
on_linux = pytest.mark.skipif(not FILES.exists(), reason="open files are counted in /proc")


def open_files() -> int:
    return len(list(FILES.iterdir()))


def children() -> list[str]:
    """Return the child processes of this process, including zombies."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


async def wait_for_cleanup(job_process: JobProcess, files: int, before: list[str]) -> None:
    job_process.close()
    for _ in range(6000):
        if open_files() <= files and set(children()) <= set(before):
            return
        await asyncio.sleep(0.005)
    assert (open_files(), children()) == (files, before)


@on_linux
async def test_no_process_and_no_open_file_remains_after_many_kills() -> None:
    job_process = new_job_process()
    assert await dialect_of(job_process, body_of()) == "anthropic"  # the event loop has opened its own files by now
    job_process.close()
    files, before = open_files(), children()
    job_process = new_job_process()
    for _ in range(KILLS):
        assert await dialect_of(job_process, body_of()) == "anthropic"
        assert job_process.pid is not None
        os.kill(job_process.pid, signal.SIGKILL)
    assert job_process.started == KILLS
    await wait_for_cleanup(job_process, files + 1, before)


@on_linux
async def test_jobs_cancelled_or_killed_at_any_moment_leave_nothing_behind() -> None:
    """At any moment: in the queue, while a job process starts, while the body is sent, while the result is read."""
    chance, turns = random.Random(17), [0, 1, 2, 3, 5, 8, 20, 100, 400]

    async def job(job_process: JobProcess, number: int) -> None:
        sent = asyncio.ensure_future(parse_request(job_process, body_of("x" * chance.choice([10, 2_000_000]))))
        for _ in range(chance.choice(turns)):
            await asyncio.sleep(0)
        if number % 3 == 0:
            sent.cancel()
        elif number % 3 == 1 and job_process.pid is not None:
            os.kill(job_process.pid, signal.SIGKILL)
        with suppress(asyncio.CancelledError, JobProcessFailed):
            await sent

    job_process = new_job_process()
    assert await dialect_of(job_process, body_of()) == "anthropic"
    job_process.close()
    files, before = open_files(), children()
    job_process = new_job_process()
    await asyncio.gather(*[job(job_process, number) for number in range(24)])
    assert job_process._waiting == 0
    assert await dialect_of(job_process, body_of()) == "anthropic"
    await wait_for_cleanup(job_process, files + 1, before)


def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("dragoman.gateway.job_process.subprocess.Popen", fails)


def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> tuple[socket.socket, socket.socket]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("dragoman.gateway.job_process.socket.socketpair", fails)


@pytest.mark.parametrize("problem", [no_interpreter, no_memory, no_files])
async def test_a_job_process_that_cannot_start_does_not_fail_the_request(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: every large request got a 500."""

    job_process = new_job_process()
    problem(monkeypatch)
    with pytest.raises(JobProcessUnavailable):
        await parse_request(job_process, body_of())
    monkeypatch.undo()
    assert await dialect_of(job_process, body_of()) == "anthropic"
    job_process.close()


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_job_process_the_gateway_parses_large_requests_itself(
    stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_interpreter(monkeypatch)
    with gateway_with_simulator("", tmp_path, "openai", server__offload=1000) as (harness, _):
        for path, body in (
            ("/v1/messages", anthropic_body("m", LARGE)),
            ("/v1/chat/completions", openai_body("m", LARGE)),
        ):
            assert harness.request(path, {**body, "stream": stream})[0] == 200
        assert harness.running.gateway.job_process.started == 0
        wait_until(lambda: harness.running.gateway.memory_budget.bytes == 0)


def test_a_request_with_very_many_objects_is_parsed_by_the_job_process(tmp_path: Path) -> None:
    """Objects take far longer to translate than text of the same length."""
    parts = [{"type": "text", "text": "a"}] * 300
    with gateway_with_simulator("", tmp_path, "openai", server__offload=20_000) as (harness, _):
        sent = anthropic_body("m")
        assert (
            harness.request("/v1/messages", sent | {"messages": [{"role": "user", "content": "a" * 15_000}]})[0] == 200
        )
        assert harness.running.gateway.job_process.started == 0
        assert harness.request("/v1/messages", sent | {"messages": [{"role": "user", "content": parts}]})[0] == 200
        assert harness.running.gateway.job_process.started == 1


def test_a_conversation_that_grew_by_small_requests_is_planned_by_the_job_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "LARGE_CONVERSATION", 5000)
    with gateway_with_simulator("", tmp_path, "openai") as (harness, simulator):
        previous, started = None, []
        for number in range(4):
            sent = {"model": "m", "input": f"{number}" * 2000} | (
                {"previous_response_id": previous} if previous else {}
            )
            status, _, response = harness.request("/v1/responses", sent)
            assert status == 200
            previous = json.loads(response)["id"]
            started.append(harness.running.gateway.job_process.started)
        sent = json.loads(simulator.requests[-1].body)["messages"]
        assert [each["content"][0] for each in sent if each["role"] == "user"] == ["0", "1", "2", "3"]
        assert (started[0], started[-1]) == (0, 1)
        wait_until(lambda: harness.running.gateway.memory_budget.bytes == 0)
