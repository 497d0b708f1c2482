"""The worker process: takes jobs from the socket that is its standard input, one after the other, until that ends.

It ends with the gateway, since the socket does. It remembers the last requests it has read, so that a request which is
planned right after it was read need not be sent and read twice.
"""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import traceback
from collections import OrderedDict
from collections.abc import Sequence

from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError, TooLarge
from dragoman.gateway.explain import ExplainJob, build_report, encode_report
from dragoman.gateway.jobs import ParsedRequest, PlanJob, ReadJob, ResponseJob, plan, read, translate_response
from dragoman.gateway.routing import Router
from dragoman.gateway.worker_process import HEAD, UNKNOWN, JobResult, WorkerJob

_MOST_READ = 2  # requests that are remembered
_MOST_BYTES = 64 * 1024 * 1024  # of their bodies
_NICE = 5
_NO_MEMORY = "the request needs more memory to read than one request may have here"


class JobRunner:
    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._router = Router(dialects)
        self._read: OrderedDict[str, ParsedRequest] = OrderedDict()

    def answer(self, job: WorkerJob, body: bytes | None) -> tuple[JobResult, bytes]:
        """Do a job. Without its body it must be about a request that is remembered."""
        try:
            return self._answer(job, body)
        except DragomanError as error:
            return JobResult(error=error), b""
        except MemoryError:
            self._read.clear()
            return JobResult(error=TooLarge(_NO_MEMORY)), b""
        except Exception:  # noqa: BLE001  a bug of ours: the gateway writes it down
            return JobResult(failed=traceback.format_exc()), b""

    def _answer(self, job: WorkerJob, body: bytes | None) -> tuple[JobResult, bytes]:
        work = job.work
        if isinstance(work, ResponseJob):
            answer, raw = translate_response(work, body or b"")
            return JobResult(answer), raw
        if isinstance(work, ReadJob):
            assert body is not None  # a request is read from its body
            result, known = read(work, body, self._router)
            if known is not None:
                self._remember(job.request_id, known)
            return JobResult(result), b""
        if body is not None:
            asked = work.plan if isinstance(work, ExplainJob) else work
            result, again = read(ReadJob(asked.request, asked.bounds), body, self._router)
            if again is None:
                raise result.unreadable or result.refusal or DragomanError("the request cannot be read")
        else:
            again = self._read.pop(job.request_id, None)
            if again is None:
                return JobResult(UNKNOWN), b""
        if isinstance(work, PlanJob):
            made, sent = plan(work, again)
            return JobResult(made), sent
        return JobResult(), encode_report(build_report(work, again))

    def _remember(self, request_id: str, known: ParsedRequest) -> None:
        self._read[request_id] = known
        while len(self._read) > 1 and (
            len(self._read) > _MOST_READ or sum(len(each.request.body) for each in self._read.values()) > _MOST_BYTES
        ):
            self._read.popitem(last=False)


def _limit_memory(most: int) -> None:
    try:
        import resource  # noqa: PLC0415  not on every system

        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, ValueError, OSError):
        pass  # then only the limits of a request bound it


def _received(gateway: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = gateway.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return data


def main() -> None:
    _limit_memory(int(sys.argv[1]))
    if hasattr(os, "nice"):
        os.nice(_NICE)  # let the gateway, which many wait for, have the processor first
    gateway = socket.socket(fileno=0)
    worker: JobRunner | None = None
    while True:
        try:
            size, body_size, has_body = HEAD.unpack(_received(gateway, HEAD.size))
            job = pickle.loads(_received(gateway, size))
            body = bytes(_received(gateway, body_size)) if has_body else None
        except (EOFError, OSError):
            return
        if worker is None:
            worker = JobRunner(job.work)
            reply, beside = JobResult(), b""
        else:
            reply, beside = worker.answer(job, body)
        told = _pickled(reply)
        del job, body, reply
        try:
            gateway.sendall(HEAD.pack(len(told), len(beside), True) + told)
            gateway.sendall(beside)
        except OSError:
            return
        del beside
        gc.collect(0)


def _pickled(reply: JobResult) -> bytes:
    try:
        return pickle.dumps(reply)
    except MemoryError:
        return pickle.dumps(JobResult(error=TooLarge(_NO_MEMORY)))
    except Exception as error:  # noqa: BLE001  a third-party dialect may have filters that cannot be pickled
        message = f"the plan cannot be handed over: {type(error).__name__}: {error}"
        return pickle.dumps(JobResult(failed=message, unpicklable=True))


if __name__ == "__main__":
    main()
