"""Error responses: report an error to the client in its own dialect, and the outcome in the record of the request."""

from __future__ import annotations

import asyncio

from dragoman.dialects.base import Dialect
from dragoman.errors import ClientFault, DragomanError, Fault
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.claude_code import fault_for_claude_code, is_claude_code
from dragoman.gateway.limits import MemoryAccount
from dragoman.gateway.records import Record
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.routing import BUG, ENDING, Router, UnreadableRequest
from dragoman.http.exchange import ClientDisconnected, Exchange
from dragoman.response_stream import error_response
from dragoman.upstream.credentials import MissingCredential
from dragoman.wire.http import Headers

_NO_RETRY: Headers = (("x-should-retry", "false"),)  # SDKs and Claude Code read it: no retry helps
_UNREAD = frozenset({408, 413})  # The body was not read to its end, so the connection must close.


class ErrorResponses:
    """Sends the error responses of one gateway."""

    def __init__(self, router: Router, redactor: Redactor, log: AccessLog) -> None:
        self._router, self._redactor, self._log = router, redactor, log

    def send_unmatched(self, exchange: Exchange[MemoryAccount], record: Record) -> None:
        """Send the error of a request that no route matches: 404, or 405 with `allow`."""
        fault, allowed = self._router.fault_for_unmatched(exchange.request)
        record.outcome = "refused"
        self._respond(exchange, record, None, fault, (("allow", allowed),) if allowed else ())

    def send(self, exchange: Exchange[MemoryAccount], record: Record, error: BaseException) -> bool:
        """Send an error response, if the client is connected. Return False if the error must be raised."""
        match error:
            case ClientDisconnected():
                record.outcome = "gone"
            case asyncio.CancelledError():
                if not exchange.was_interrupted():
                    return False
                record.outcome = "gone" if exchange.is_disconnected else "cut"
                if not exchange.is_disconnected:
                    self._respond(exchange, record, None, record.end_reason or ENDING)
            case UnreadableRequest():
                record.outcome = "refused"
                self._respond(exchange, record, error.dialect, error.error.fault)
            case DragomanError():
                record.outcome = "refused" if isinstance(error, ClientFault) else "failed"
                fault = error.fault
                if not isinstance(error, ClientFault):
                    record.error = record.error or fault.message  # The log keeps the addresses of upstreams.
                    fault = self._redactor.upstream_fault(fault)
                headers = _NO_RETRY if isinstance(error, MissingCredential) else ()
                self._respond(exchange, record, self._router.find_dialect(record.dialect), fault, headers)
            case Exception():  # A bug: the client still gets an error response.
                record.outcome, record.error = "bug", f"{type(error).__name__}: {error}"
                self._log.bug(exchange.id, error)
                self._respond(exchange, record, None, BUG)
            case _:
                return False
        return True

    def _respond(
        self,
        exchange: Exchange[MemoryAccount],
        record: Record,
        dialect: Dialect | None,
        fault: Fault,
        headers: Headers = (),
    ) -> None:
        """Send an error response in the client's dialect. If the response has begun, its writer reports the error."""
        record.error = record.error or fault.message
        if exchange.is_started:
            return
        fault = self._redactor.fault(fault)  # The message of an upstream may quote a key.
        dialect = dialect or self._router.error_dialect(exchange.request)
        if fault.kind == "auth":  # of the client or of the gateway: another key is needed first
            headers = _NO_RETRY
        if is_claude_code(exchange.request):
            fault = fault_for_claude_code(fault)
        response = error_response(dialect, fault)
        record.dialect, record.status = record.dialect or dialect.name, response.status
        exchange.last = exchange.last or fault.status in _UNREAD
        if record.capture is not None:
            record.capture.note_whole_response(response.status, response.headers, response.body)
        exchange.whole(response.status, (*response.headers, *headers), response.body)
