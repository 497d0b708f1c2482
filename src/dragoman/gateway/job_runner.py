"""Run the jobs of the gateway one by one, as the program of the job process: they arrive on its standard input.

It ends when the gateway closes the socket. It caches the last requests that it has parsed, so that a request which is
planned right after it was parsed need not be sent and parsed twice.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
import socket
import sys
import traceback
from collections import OrderedDict
from collections.abc import Sequence

from msgspec import structs

from dragoman.dialects.base import Dialect
from dragoman.errors import DragomanError, TooLarge
from dragoman.gateway.explain import ExplainJob, build_report, encode_report
from dragoman.gateway.job_process import HEAD, UNKNOWN, JobMessage, JobResult
from dragoman.gateway.jobs import ParsedRequest, PlanJob, ReadJob, ResponseJob, plan, read, translate_response
from dragoman.gateway.routing import Router

_MAX_CACHED = 2  # requests
_MAX_CACHED_BYTES = 64 * 1024 * 1024  # of their bodies
_MAX_RECORDS = 1000  # log records of one job
_NICE = 5
_NO_MEMORY = "the request needs more memory than the job process may use; send a shorter conversation or smaller files"


class _RecordCollector(logging.Handler):
    """Collects the log records of a job; the gateway writes them to its log."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if len(self.records) < _MAX_RECORDS:
            self.records.append((record.name, record.levelno, record.getMessage()))

    def take(self) -> tuple[tuple[str, int, str], ...]:
        """Return the records so far, and forget them."""
        drained, self.records = tuple(self.records), []
        return drained


class JobRunner:
    """Runs jobs, and caches the parsed requests."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._router = Router(dialects)
        self._read: OrderedDict[str, ParsedRequest] = OrderedDict()

    def run_job(self, job: JobMessage, body: bytes | None) -> tuple[JobResult, bytes]:
        """Run a job and return its result. Without a body, the job must be about a cached request."""
        try:
            return self._run(job, body)
        except DragomanError as error:
            return JobResult(error=error), b""
        except MemoryError:
            self._read.clear()
            return JobResult(error=TooLarge(_NO_MEMORY)), b""
        except Exception:  # noqa: BLE001  a bug, which the gateway logs
            return JobResult(failed=traceback.format_exc()), b""

    def _run(self, job: JobMessage, body: bytes | None) -> tuple[JobResult, bytes]:
        work = job.work
        if isinstance(work, ResponseJob):
            written, raw = translate_response(work, body or b"")
            return JobResult(written), raw
        if isinstance(work, ReadJob):
            assert body is not None  # A ReadJob always has a body.
            result, known = read(work, body, self._router)
            if known is not None:
                self._remember(job.request_id, known)
            return JobResult(result), b""
        if body is not None:
            plan_job = work.plan if isinstance(work, ExplainJob) else work
            result, known = read(ReadJob(plan_job.request, plan_job.bounds), body, self._router)
            if known is None:
                raise result.unreadable or result.refusal or DragomanError("the request cannot be read")
        else:
            known = self._read.pop(job.request_id, None)
            if known is None:
                return JobResult(UNKNOWN), b""
        if isinstance(work, PlanJob):
            planned, rendered = plan(work, known)
            return JobResult(planned), rendered
        return JobResult(), encode_report(build_report(work, known))

    def _remember(self, request_id: str, known: ParsedRequest) -> None:
        self._read[request_id] = known
        while len(self._read) > 1 and (
            len(self._read) > _MAX_CACHED
            or sum(len(each.request.body) for each in self._read.values()) > _MAX_CACHED_BYTES
        ):
            self._read.popitem(last=False)


def _limit_memory(most: int) -> None:
    try:
        import resource  # noqa: PLC0415  does not exist on Windows

        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    except (ImportError, ValueError, OSError):
        pass  # Only the limits of requests bound the memory then.


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
    """Run jobs until the socket closes. The first message contains the dialects."""
    _limit_memory(int(sys.argv[1]))
    if hasattr(os, "nice"):
        os.nice(_NICE)  # The gateway has priority: it serves all other requests.
    gateway = socket.socket(fileno=0)
    runner: JobRunner | None = None
    logger, collector = logging.getLogger("dragoman"), _RecordCollector()
    logger.handlers, logger.propagate = [collector], False
    while True:
        try:
            size, body_size, has_body = HEAD.unpack(_received(gateway, HEAD.size))
            job = pickle.loads(_received(gateway, size))
            body = bytes(_received(gateway, body_size)) if has_body else None
        except (EOFError, OSError):
            return
        if runner is None:
            runner = JobRunner(job.work)
            result, raw = JobResult(), b""
        else:
            logger.setLevel(job.log_level)
            result, raw = runner.run_job(job, body)
            if records := collector.take():
                result = structs.replace(result, log=records)
        pickled = _pickled(result)
        del job, body, result
        try:
            gateway.sendall(HEAD.pack(len(pickled), len(raw), True) + pickled)
            gateway.sendall(raw)
        except OSError:
            return
        del raw
        gc.collect(0)


def _pickled(result: JobResult) -> bytes:
    try:
        return pickle.dumps(result)
    except MemoryError:
        return pickle.dumps(JobResult(error=TooLarge(_NO_MEMORY)))
    except Exception as error:  # noqa: BLE001  a third-party dialect may have filters that cannot be pickled
        message = f"the plan cannot be pickled: {type(error).__name__}: {error}"
        return pickle.dumps(JobResult(failed=message, unpicklable=True))


if __name__ == "__main__":
    main()
