"""Start, use and end the job process for large requests: it starts on demand, and ends when it is idle.

The gateway and the process communicate over a socket pair: a head, a pickled job or result, and a raw body. Jobs run
one at a time, in order. A process that dies or takes too long is replaced, and the job is run once more; if that fails
too, only this request gets an error. If a request is cancelled during its job, the process is killed, because a job
cannot be interrupted.
"""

from __future__ import annotations

import asyncio
import logging
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
UNKNOWN: Final = "unknown"  # The job process does not have this request in its cache.


class JobMessage(Struct, frozen=True):
    """A job, and the id of its request. The first job of a job process contains its dialects."""

    work: Any
    request_id: str = ""
    log_level: int = logging.WARNING  # of the records that the result contains


class JobResult(Struct, frozen=True):
    """The outcome of a job: a result, an error for the client, or a failure of the job process."""

    result: Any = None
    error: DragomanError | None = None
    failed: str = ""  # why the job process failed; the request is not to blame
    unpicklable: bool = False  # because a dialect or a plan cannot be pickled
    log: tuple[tuple[str, int, str], ...] = ()  # records of the job: logger, level, message


_LOGGER = logging.getLogger("dragoman")
MODULE = "dragoman.gateway.job_runner"
MEMORY = 3 * 1024 * 1024 * 1024  # bytes of address space that a job process may use, if the system can limit it
SECONDS = 60.0  # for one job
IDLE_SECONDS = 60.0  # after which a job process ends
WAITING = 32  # jobs that may wait
_TRIES = 2
_PICKLE_ERRORS = (pickle.PickleError, TypeError, AttributeError)


class JobProcessUnavailable(Exception):
    """The job cannot run in a job process: none can be started, or a dialect or a plan cannot be pickled."""


class JobProcessFailed(DragomanError):
    """The job process died or took too long twice for one request."""

    def __init__(self, why: str) -> None:
        message = f"the job process for large requests failed at this request ({why})"
        super().__init__(message, fault=Fault("server", message, 500, is_final=True))


class JobProcess:
    """The job process. `run_job` starts it if needed."""

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
        """The process id; None if no process runs."""
        return None if self._process is None else self._process.pid

    async def run_job(self, work: Any, request_id: str, body: bytes, *, known: bool = False) -> tuple[Any, bytes]:
        """Run a job. Return its result and raw body. `known`: the job process may have the request in its cache.

        Raises the error of the job, Overloaded, JobProcessUnavailable, JobProcessFailed, and RuntimeError for a bug.
        """
        if not sys.executable:
            raise JobProcessUnavailable("no job process can be started: sys.executable is empty")
        try:
            message = pickle.dumps(JobMessage(work, request_id, _LOGGER.getEffectiveLevel()))
        except _PICKLE_ERRORS as error:
            raise JobProcessUnavailable(str(error)) from None
        if self._waiting >= WAITING:
            raise Overloaded(
                f"{WAITING} large requests are waiting to be parsed, which is the limit; send the request again later"
            )
        self._waiting += 1
        try:
            async with self._turn:
                result, raw = await self._run_with_retries(message, body, known)
        finally:
            self._waiting -= 1
        for name, level, text in result.log:
            logging.getLogger(name).log(level, "%s", text)
        if result.error is not None:
            raise result.error
        if result.failed:
            raise JobProcessUnavailable(result.failed) if result.unpicklable else RuntimeError(result.failed)
        return result.result, raw

    async def _run_with_retries(self, message: bytes, body: bytes, known: bool) -> tuple[JobResult, bytes]:
        why = ""
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(SECONDS):
                    fresh = await self._ready()
                    if known and not fresh:
                        result, raw = await self._exchanged(message, None)
                        if result.result != UNKNOWN:
                            return result, raw
                    return await self._exchanged(message, body)
            except (OSError, EOFError, TimeoutError) as error:
                why = str(error) or f"it took more than {SECONDS:g} s"
                self._end()
            except BaseException:
                self._end()  # The job process is in the middle of a job.
                raise
            finally:
                self._schedule_idle_end()
        raise JobProcessFailed(why)

    async def _ready(self) -> bool:
        """Start a job process if none runs. Return whether it is new, so that its cache is empty."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._process is not None and self._process.poll() is None:
            return False
        self._end()
        if self._closed:
            raise EOFError("the gateway is shutting down")
        try:
            first = pickle.dumps(JobMessage(self._dialects))
        except _PICKLE_ERRORS as error:
            raise JobProcessUnavailable(str(error)) from None
        starting = _Starting()
        try:
            await asyncio.get_running_loop().run_in_executor(None, starting.run)
        except OSError as error:
            starting.give_up()
            raise JobProcessUnavailable(f"no job process can be started: {error}") from None
        except BaseException:
            starting.give_up()
            raise
        self._process, self._socket = starting.process, starting.socket
        self.started += 1
        await self._exchanged(first, None)
        return True

    async def _exchanged(self, message: bytes, body: bytes | None) -> tuple[JobResult, bytes]:
        connection, loop = self._socket, asyncio.get_running_loop()
        if connection is None:
            raise EOFError("the job process ended before it received the request")
        await loop.sock_sendall(connection, HEAD.pack(len(message), len(body or b""), body is not None) + message)
        if body:
            await loop.sock_sendall(connection, body)
        size, body_size, _ = HEAD.unpack(await _received(connection, HEAD.size))
        result = pickle.loads(await _received(connection, size))
        return result, bytes(await _received(connection, body_size)) if body_size else b""

    def _schedule_idle_end(self) -> None:
        if self._process is not None and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._end_idle)

    def _end_idle(self) -> None:
        self._timer = None
        if not self._turn.locked():
            self._end()

    def _end(self) -> None:
        """Kill the process, if there is one. It has no state that must be saved."""
        process, self._process = self._process, None
        connection, self._socket = self._socket, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            with suppress(RuntimeError):  # Without a running loop, the system reaps the process.
                asyncio.get_running_loop().run_in_executor(None, process.wait)

    def close(self) -> None:
        """Kill the process; no other one is started."""
        self._closed = True
        self._end()


class _Starting:
    """Starts a process in a thread, which may finish after its caller was cancelled."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: socket.socket | None = None
        self._is_cancelled = False
        self._lock = threading.Lock()

    def run(self) -> None:
        self.socket, child_socket = socket.socketpair()
        self.socket.setblocking(False)
        with child_socket, self._lock:
            if self._is_cancelled:
                self.socket.close()
                return
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            command = [sys.executable, "-P", "-m", MODULE, str(MEMORY)]
            self.process = subprocess.Popen(
                command, stdin=child_socket.fileno(), stdout=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def give_up(self) -> None:
        with self._lock:
            self._is_cancelled = True
            if self.process is not None:
                self.process.kill()
                self.process.wait()
        if self.socket is not None:
            self.socket.close()


async def _received(connection: socket.socket, size: int) -> bytearray:
    loop, data = asyncio.get_running_loop(), bytearray(size)
    view = memoryview(data)
    while view:
        count = await loop.sock_recv_into(connection, view)
        if not count:
            raise EOFError("the job process ended without a response")
        view = view[count:]
    return data
