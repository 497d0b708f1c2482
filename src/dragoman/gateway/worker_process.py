"""The worker process for large requests, from the gateway's side: started when it is needed, ended when it is idle.

The two talk over a socket pair: a head, a pickled job or reply, and a body beside it. One job at a time, in the order
in which they came. A worker that dies, or takes too long, is replaced, and the job is done once more; if the second
worker fails too, that request gets an error, and no other does. A job whose request was given up ends its worker, since
the worker cannot be interrupted otherwise.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError, Fault
from dragoman.gateway.limits import Overloaded

HEAD = struct.Struct("!QQ?")  # bytes of the pickle, bytes of the body, whether there is a body
UNKNOWN: Final = "unknown"  # the worker does not remember this request


class WorkerJob(Struct, frozen=True):
    """A job, and the id of the request that it is about. The first job of a worker are its dialects."""

    work: Any
    request_id: str = ""


class JobResult(Struct, frozen=True):
    """What came of a job: a result, an error for the client, or a failure of the worker."""

    result: Any = None
    error: DragomanError | None = None
    failed: str = ""  # why the worker could not do it, by no fault of the request
    unpicklable: bool = False  # because a dialect or a plan cannot be pickled


MODULE = "dragoman.gateway.job_worker"
MEMORY = 3 * 1024 * 1024 * 1024  # bytes of address space that a worker may have, where the system limits it
SECONDS = 60.0  # for one job
IDLE_SECONDS = 60.0  # after which a worker ends
WAITING = 32  # jobs that may wait
_TRIES = 2
_PICKLE_TROUBLE = (pickle.PickleError, TypeError, AttributeError)


class WorkerUnavailable(Exception):
    """This cannot be done in another process: none can be started, or a dialect or a plan cannot be pickled."""


class WorkerFailed(DragomanError):
    """The worker process ended, or took too long, at a request twice."""

    def __init__(self, why: str) -> None:
        message = f"the process that reads large requests failed at this one ({why})"
        super().__init__(message, fault=Fault("server", message, 500, is_final=True))


class WorkerProcess:
    """May be used before it runs: `ask` starts it."""

    def __init__(self, dialects: Sequence[Dialect], *, idle_seconds: float = IDLE_SECONDS) -> None:
        self.started = 0  # processes so far
        self._dialects = tuple(dialects)
        self._idle_seconds = idle_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def run_job(self, work: Any, request_id: str, body: bytes, *, known: bool = False) -> tuple[Any, bytes]:
        """Have a job done; gives its result and the body beside it. `known`: the worker may remember the request.

        Raises what the job raises, Overloaded, Unavailable, WorkerFailed, and RuntimeError for a bug of ours.
        """
        if not sys.executable:
            raise WorkerUnavailable("the interpreter's path is unknown")
        try:
            said = pickle.dumps(WorkerJob(work, request_id))
        except _PICKLE_TROUBLE as error:
            raise WorkerUnavailable(str(error)) from None
        if self._waiting >= WAITING:
            raise Overloaded(f"{WAITING} large requests wait to be read, the limit here")
        self._waiting += 1
        try:
            async with self._turn:
                reply, beside = await self._answered(said, body, known)
        finally:
            self._waiting -= 1
        if reply.error is not None:
            raise reply.error
        if reply.failed:
            raise WorkerUnavailable(reply.failed) if reply.unpicklable else RuntimeError(reply.failed)
        return reply.result, beside

    async def _answered(self, said: bytes, body: bytes, known: bool) -> tuple[JobResult, bytes]:
        why = ""
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(SECONDS):
                    fresh = await self._ready()
                    if known and not fresh:
                        reply, beside = await self._exchanged(said, None)
                        if reply.result != UNKNOWN:
                            return reply, beside
                    return await self._exchanged(said, body)
            except (OSError, EOFError, TimeoutError) as error:
                why = str(error) or f"it took more than {SECONDS:g} s"
                self._end()
            except BaseException:
                self._end()  # it is in the middle of something
                raise
            finally:
                self._rest()
        raise WorkerFailed(why)

    async def _ready(self) -> bool:
        """See that a worker runs; whether it is a fresh one, which remembers nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._process is not None and self._process.poll() is None:
            return False
        self._end()
        if self._closed:
            raise EOFError("the gateway ends")
        try:
            first = pickle.dumps(WorkerJob(self._dialects))
        except _PICKLE_TROUBLE as error:
            raise WorkerUnavailable(str(error)) from None
        starting = _Starting()
        try:
            await asyncio.get_running_loop().run_in_executor(None, starting.run)
        except OSError as error:
            starting.give_up()
            raise WorkerUnavailable(f"no worker process can be started: {error}") from None
        except BaseException:
            starting.give_up()
            raise
        self._process, self._socket = starting.process, starting.socket
        self.started += 1
        await self._exchanged(first, None)
        return True

    async def _exchanged(self, said: bytes, body: bytes | None) -> tuple[JobResult, bytes]:
        worker, loop = self._socket, asyncio.get_running_loop()
        if worker is None:
            raise EOFError("no worker runs")
        await loop.sock_sendall(worker, HEAD.pack(len(said), len(body or b""), body is not None) + said)
        if body:
            await loop.sock_sendall(worker, body)
        size, body_size, _ = HEAD.unpack(await _received(worker, HEAD.size))
        reply = pickle.loads(await _received(worker, size))
        return reply, bytes(await _received(worker, body_size)) if body_size else b""

    def _rest(self) -> None:
        if self._process is not None and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)

    def _end_idle(self) -> None:
        self._timer = None
        if not self._turn.locked():
            self._end()

    def _end(self) -> None:
        """End the process, if there is one. It has nothing that must be saved."""
        process, self._process = self._process, None
        spoken, self._socket = self._socket, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if spoken is not None:
            spoken.close()
        if process is not None:
            process.kill()
            with suppress(RuntimeError):  # the loop ends: then the system takes care of it
                asyncio.get_running_loop().run_in_executor(None, process.wait)

    def close(self) -> None:
        self._closed = True
        self._end()


class _Starting:
    """Starts a process in a thread, which may end after the one who waits for it has given up."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: socket.socket | None = None
        self._given_up = False
        self._lock = threading.Lock()

    def run(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.setblocking(False)
        with theirs, self._lock:
            if self._given_up:
                self.socket.close()
                return
            surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            command = [sys.executable, "-P", "-m", MODULE, str(MEMORY)]
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=surroundings, start_new_session=True
            )

    def give_up(self) -> None:
        with self._lock:
            self._given_up = True
            if self.process is not None:
                self.process.kill()
                self.process.wait()
        if self.socket is not None:
            self.socket.close()


async def _received(worker: socket.socket, size: int) -> bytearray:
    loop, data = asyncio.get_running_loop(), bytearray(size)
    view = memoryview(data)
    while view:
        count = await loop.sock_recv_into(worker, view)
        if not count:
            raise EOFError("the worker ended")
        view = view[count:]
    return data
