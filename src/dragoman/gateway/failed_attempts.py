"""Record a failed attempt: in the record of the request, in its recording, and in the headers of the response."""

from __future__ import annotations

from dragoman.errors import DragomanError
from dragoman.gateway.backend import Backend
from dragoman.gateway.context import RequestContext
from dragoman.gateway.retry_policy import Refused, failure_reason


def mark_failed(context: RequestContext, backend: Backend, credential: str, error: DragomanError) -> None:
    """Add a failed attempt to the record."""
    reason, status = failure_reason(error)
    record = context.record
    if (capture := record.capture) is not None:
        if isinstance(error, Refused):
            capture.note_response(error.response.status, error.response.headers)
            capture.add(error.response.body, b"")
        capture.note_failure(record)
    message = context.services.log.redactor.message(error.fault.message)
    record.mark_failed(backend.name, credential, reason, error.fault.kind, status, message)


def name_upstream(context: RequestContext, upstream: str, error: DragomanError) -> None:
    """Name the upstream whose error the client gets, in the log and in the response: it was not the last one tried."""
    exchange = context.exchange
    context.record.error = f"{upstream}: {error.fault.message}"
    exchange.headers = tuple(
        (name, upstream if name == "dragoman-upstream" else value) for name, value in exchange.headers
    )
