"""Writes refusals down for `dragoman explain`, after their clients have been answered, one after the other.

A refusal of a large request is described in the worker process, any other in a thread. What waits is bounded; more than
that is not written down.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from msgspec import Struct, structs

from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError
from dragoman.gateway.continuing import references
from dragoman.gateway.explain import Ring, written
from dragoman.gateway.memory import Memory
from dragoman.gateway.offload.jobs import ExplainJob, Read, explained
from dragoman.gateway.offload.process import Unavailable, WorkerProcess
from dragoman.http.exchange import Owner
from dragoman.wire.jsonio import JsonError

MOST = 8  # refusals that may wait
MOST_BYTES = 32 * 1024 * 1024  # of their requests
_CLOSE_SECONDS = 2.0


class Case(Struct, frozen=True):
    """A refusal that is to be described."""

    job: ExplainJob
    client: Dialect
    body: bytes  # of the client's request
    memory: Memory  # that knows what the request continues
    owner: Owner  # of what it continues
    worker: WorkerProcess | None  # that describes it; None: a thread does


class Explaining:
    def __init__(self, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self.dropped = 0
        self._most, self._most_bytes = most, most_bytes
        self._cases: deque[tuple[Case, Ring]] = deque()
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        return len(self._cases)

    def later(self, case: Case, ring: Ring) -> None:
        """Describe it soon. Returns at once."""
        size = len(case.body) + len(case.job.response.body)
        if len(self._cases) >= self._most or self._bytes + size > self._most_bytes:
            self.dropped += 1
            return
        self._bytes += size
        self._cases.append((case, ring))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Describe what waits, if that is soon done; the rest is dropped."""
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=_CLOSE_SECONDS)
            task.cancel()
        self._cases.clear()
        self._bytes = 0

    async def _run(self) -> None:
        while self._cases:
            case, ring = self._cases[0]
            try:
                # What the client continued may be unknown by now, and a worker may fail: then there is no description.
                with suppress(DragomanError, Unavailable, JsonError):
                    await _keep(case, ring)
            except Exception as error:  # noqa: BLE001  a bug of ours, which must not keep the others from being described
                context = {"message": f"the refusal {case.job.way[0]} cannot be described", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
            finally:
                self._done(case)

    def _done(self, case: Case) -> None:
        if self._cases:  # not if all were dropped meanwhile
            self._cases.popleft()
            self._bytes -= len(case.body) + len(case.job.response.body)


async def _keep(case: Case, ring: Ring) -> None:
    loop = asyncio.get_running_loop()
    request_id = case.job.way[0]
    if case.worker is not None:
        _, data = await case.worker.ask(case.job, request_id, case.body)
        await loop.run_in_executor(None, ring.write, request_id, data)
        return
    known, items = await loop.run_in_executor(None, _read, case)
    owner, memory = case.owner, case.memory
    found = {item_id: blocks for item_id in items if (blocks := memory.item(owner, item_id)) is not None}
    plan = structs.replace(case.job.plan, earlier=memory.earlier(owner, known.asked), items=found)
    job = structs.replace(case.job, plan=plan)
    await loop.run_in_executor(None, lambda: ring.write(request_id, written(explained(job, known))))


def _read(case: Case) -> tuple[Read, tuple[str, ...]]:
    request = structs.replace(case.job.plan.request, body=case.body)
    call = case.client.binding.match(request)
    assert call is not None  # it was matched before
    asked = case.client.codec.parse_request(call)
    return Read(case.client, request, asked), references(case.client, asked)
