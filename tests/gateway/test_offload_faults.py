"""S7: whatever happens to the worker process, requests are answered, and no process or open file is left."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway import memory
from dragoman.gateway.worker_process import Unavailable, WorkerFailed, WorkerProcess
from tests.gateway.house import behind, chat, messages, wait_until
from tests.gateway.test_offload import asking, body_of, dialect_of, new_worker

FILES = Path("/proc/self/fd")
KILLS = int(os.environ.get("DRAGOMAN_KILLS", "4"))
LARGE = "word " * 10_000
on_linux = pytest.mark.skipif(not FILES.exists(), reason="open files are counted in /proc")


def open_files() -> int:
    return len(list(FILES.iterdir()))


def children() -> list[str]:
    """The processes that this one has started and that are there, dead or alive."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


async def settled(worker: WorkerProcess, files: int, before: list[str]) -> None:
    worker.close()
    for _ in range(6000):
        if open_files() <= files and set(children()) <= set(before):
            return
        await asyncio.sleep(0.005)
    assert (open_files(), children()) == (files, before)


@on_linux
async def test_s7_no_process_and_no_file_is_left_after_many_kills() -> None:
    worker = new_worker()
    assert await dialect_of(worker, body_of()) == "anthropic"  # the loop has its own files by now
    worker.close()
    files, before = open_files(), children()
    worker = new_worker()
    for _ in range(KILLS):
        assert await dialect_of(worker, body_of()) == "anthropic"
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
    assert worker.started == KILLS
    await settled(worker, files + 1, before)


@on_linux
async def test_s7_jobs_that_are_cancelled_or_killed_at_any_moment_leave_nothing() -> None:
    """While they wait, while a worker starts, while the body is sent, and while the reply comes."""
    chance, turns = random.Random(17), [0, 1, 2, 3, 5, 8, 20, 100, 400]

    async def job(worker: WorkerProcess, number: int) -> None:
        asked = asyncio.ensure_future(asking(worker, body_of("x" * chance.choice([10, 2_000_000]))))
        for _ in range(chance.choice(turns)):
            await asyncio.sleep(0)
        if number % 3 == 0:
            asked.cancel()
        elif number % 3 == 1 and worker.pid is not None:
            os.kill(worker.pid, signal.SIGKILL)
        with suppress(asyncio.CancelledError, WorkerFailed):
            await asked

    worker = new_worker()
    assert await dialect_of(worker, body_of()) == "anthropic"
    worker.close()
    files, before = open_files(), children()
    worker = new_worker()
    await asyncio.gather(*[job(worker, number) for number in range(24)])
    assert worker._waiting == 0
    assert await dialect_of(worker, body_of()) == "anthropic"
    await settled(worker, files + 1, before)


def no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("dragoman.gateway.worker_process.subprocess.Popen", fails)


def no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> tuple[socket.socket, socket.socket]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("dragoman.gateway.worker_process.socket.socketpair", fails)


@pytest.mark.parametrize("trouble", [no_interpreter, no_memory, no_files])
async def test_s7_a_worker_that_cannot_be_started_is_no_fault_of_the_request(
    trouble: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, every large request got a 500."""

    worker = new_worker()
    trouble(monkeypatch)
    with pytest.raises(Unavailable):
        await asking(worker, body_of())
    monkeypatch.undo()
    assert await dialect_of(worker, body_of()) == "anthropic"
    worker.close()


@pytest.mark.parametrize("stream", [False, True])
def test_s7_without_a_worker_the_gateway_reads_large_requests_itself(
    stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_interpreter(monkeypatch)
    with behind("", tmp_path, "openai", server__offload=1000) as (home, _):
        for path, body in (("/v1/messages", messages("m", LARGE)), ("/v1/chat/completions", chat("m", LARGE))):
            assert home.ask(path, {**body, "stream": stream})[0] == 200
        assert home.running.gateway.worker.started == 0
        wait_until(lambda: home.running.gateway.load.bytes == 0)


def test_s3_a_request_with_very_many_objects_is_read_by_the_worker(tmp_path: Path) -> None:
    """They take far longer to translate than a text of the same length."""
    parts = [{"type": "text", "text": "a"}] * 300
    with behind("", tmp_path, "openai", server__offload=20_000) as (home, _):
        asked = messages("m")
        assert home.ask("/v1/messages", asked | {"messages": [{"role": "user", "content": "a" * 15_000}]})[0] == 200
        assert home.running.gateway.worker.started == 0
        assert home.ask("/v1/messages", asked | {"messages": [{"role": "user", "content": parts}]})[0] == 200
        assert home.running.gateway.worker.started == 1


def test_s3_a_conversation_that_grew_by_small_requests_is_planned_by_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LARGE", 5000)
    with behind("", tmp_path, "openai") as (home, simulator):
        told, started = None, []
        for number in range(4):
            asked = {"model": "m", "input": f"{number}" * 2000} | ({"previous_response_id": told} if told else {})
            status, _, answer = home.ask("/v1/responses", asked)
            assert status == 200
            told = json.loads(answer)["id"]
            started.append(home.running.gateway.worker.started)
        sent = json.loads(simulator.requests[-1].body)["messages"]
        assert [each["content"][0] for each in sent if each["role"] == "user"] == ["0", "1", "2", "3"]
        assert (started[0], started[-1]) == (0, 1)
        wait_until(lambda: home.running.gateway.load.bytes == 0)
