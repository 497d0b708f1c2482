"""The retry policy: what to do about a failed attempt before the client has received a part of the response. Pure.

A table by the kind of error gives one of four actions. `again`: the same target and credential after a wait. `key`:
another credential of the same upstream. `target`: the next target of the route. `fail`: report the error to the client.
"""

from __future__ import annotations

import random
import re
import time
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.errors import (
    ClientFault,
    ConnectFailed,
    DragomanError,
    ErrorKind,
    Fault,
    LocalMisuse,
    Reset,
    TimedOut,
    Truncated,
    UpstreamFault,
    UpstreamViolation,
)
from dragoman.gateway.breaker import CooldownActive, WindowCounter
from dragoman.gateway.limits import Overloaded
from dragoman.http.client.client import PoolExhausted
from dragoman.upstream.credentials import CredentialFault, MissingCredential
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

RetryAction: TypeAlias = Literal["again", "key", "target", "fail"]

_BY_KIND: dict[ErrorKind, RetryAction] = {
    "invalid": "fail",
    "context_full": "fail",
    "too_large": "fail",
    "auth": "key",
    "permission": "key",
    "quota": "key",
    "rate_limit": "key",
    "not_found": "target",
    "overloaded": "again",
    "server": "again",
    "timeout": "target",  # The request may have been processed and billed; another service may be faster.
}


_MAX_VIOLATIONS = 2  # invalid responses to one request: a violation of the dialect is retried once
_NOT_STARTED = frozenset({503, 529})  # statuses of a service that did not start the job
_UNKNOWN_RESPONSE = "previous_response_not_found"  # Another credential or target may have the response.


class RetrySettings(Struct, frozen=True):
    """How often and how long to retry. Waits double, with full jitter; a `retry-after` up to a limit is respected."""

    retries: int = 2  # of one request, over all its targets
    min_wait: float = 0.2
    max_wait: float = 2.0
    max_retry_after: float = 30.0

    def wait(self, error: DragomanError, tries: int) -> float | None:
        """Return the seconds before the next attempt; None if the upstream's `retry-after` is too long."""
        delay = error.fault.retry_after
        if delay is not None:  # Jitter spreads the requests that got the same `retry-after`.
            if delay > self.max_retry_after:
                return None
            return max(delay, self.min_wait) + random.uniform(0, self.min_wait)
        return random.uniform(self.min_wait, max(self.min_wait, min(self.max_wait, self.min_wait * 2 ** (tries + 1))))


class Refused(UpstreamFault):
    """An error response of the upstream, with the response itself."""

    def __init__(self, response: HttpResponse, fault: Fault) -> None:
        super().__init__(fault.message, fault=fault)
        self.response = response


class Redirected(UpstreamFault):
    """The upstream sent a redirect. It is not followed: the credential is only for the configured address."""

    def __init__(self, upstream: str, status: int) -> None:
        message = (
            f"the upstream {upstream} sent a redirect (status {status}), which is not followed; "
            f"check base_url of [upstreams.{upstream}]"
        )
        super().__init__(message, fault=Fault("server", message, 502, is_violation=True))
        self.redirect_status = status


def retry_action(error: DragomanError) -> RetryAction:
    """Return the action for this error."""
    if isinstance(error, LocalMisuse | Overloaded) or error.fault.is_final:
        return "fail"
    if isinstance(error, CooldownActive | MissingCredential):
        return "key"
    if isinstance(error, TimedOut | ClientFault | Redirected):  # Another target may accept the request.
        return "target"
    if isinstance(error, UpstreamFault):
        return "key" if error.fault.code == _UNKNOWN_RESPONSE else _BY_KIND[error.fault.kind]
    # A network error, or an invalid response without content.
    return "target" if error.fault.kind in ("overloaded", "timeout") else "again"


# The first class that fits says in a word why an attempt failed.
_REASONS: tuple[tuple[type[DragomanError], str], ...] = (
    (CooldownActive, "cooldown"),
    (PoolExhausted, "busy"),
    (ClientFault, "not sent"),
    (CredentialFault, "credential"),
    (TimedOut, "timeout"),
    (Reset, "connection lost"),
    (Truncated, "cut off"),
    (UpstreamViolation, "invalid response"),
)


def failure_reason(error: DragomanError) -> tuple[str, int]:
    """Return in a word why an attempt failed, and the status that the upstream sent, 0 if it sent none."""
    if isinstance(error, Refused):
        return str(error.response.status), error.response.status
    if isinstance(error, Redirected):
        return str(error.redirect_status), error.redirect_status
    found = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "")
    if not found and isinstance(error, ConnectFailed):
        found = "timeout" if error.fault.kind == "timeout" else "no connection"
    return found or error.fault.kind, 0


def is_unknown_there(error: DragomanError) -> bool:
    """Return whether the upstream does not have what the request refers to; another one may have it."""
    return error.fault.kind == "not_found" or error.fault.code == _UNKNOWN_RESPONSE


def pick_error(before: DragomanError | None, error: DragomanError) -> DragomanError:
    """Return which of two errors the client gets: the first; of two cooldowns, the one that ends first."""
    if before is None or not isinstance(before, CooldownActive):
        return before or error
    return error if not isinstance(error, CooldownActive) or error.seconds_left < before.seconds_left else before


class Retries(Struct):
    """The retries of one request. One for a background job (`is_job`) is not sent again if the job may have started."""

    retry_settings: RetrySettings
    is_job: bool
    tries: int = 0  # beyond the first
    violations: int = 0  # invalid responses

    def may_have_started(self, error: DragomanError) -> bool:
        """Return whether the background job may have started despite the error: a retry would start a second one."""
        if not self.is_job or isinstance(error, ConnectFailed | CredentialFault | ClientFault):
            return False
        return not (isinstance(error, Refused) and (error.fault.status < 500 or error.fault.status in _NOT_STARTED))

    def may_try_another(self, error: DragomanError) -> bool:
        """Return whether the request may go to another target after this error."""
        return not self.may_have_started(error) and self.violations < _MAX_VIOLATIONS

    def wait(self, error: DragomanError, budget: RetryBudget, *, last: bool) -> float | None:
        """Return the seconds before a retry at the same target; None for no retry. `last`: no other target is left."""
        if error.fault.is_violation and (not last or self.violations >= _MAX_VIOLATIONS):
            return None  # An upstream that violates its dialect may do so every time.
        step = retry_action(error)
        # No other credential is left. With no other target either, wait for the pause that the upstream requested.
        if (error.is_hinted and last) if isinstance(error, CooldownActive) else error.fault.kind == "rate_limit":
            step = "again"
        if step != "again" or self.tries >= self.retry_settings.retries:
            return None
        wait = self.retry_settings.wait(error, self.tries)
        if wait is None or not (isinstance(error, CooldownActive) or budget.allows(time.monotonic())):
            return None
        self.tries += 1
        return wait


REQUEST, RETRY = 0, 1  # kinds of `WindowCounter`


class RetryBudget:
    """Limits retries of one upstream to a share of its requests, so that they do not add to its load."""

    share: float = 0.2
    always: int = 3  # retries that are allowed in any case
    window: float = 10.0  # seconds in which both are counted

    def __init__(self) -> None:
        self.recent = WindowCounter(self.window, 0.1)

    def allows(self, now: float) -> bool:
        """Return whether one more retry is allowed, and count it if so."""
        self.recent.forget(now)
        requests, retries = self.recent.counts
        if retries >= max(self.always, self.share * requests):
            return False
        self.recent.add(now, RETRY)
        return True


# --- reset times of rate limits in other fields than `retry-after`

_SPAN = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?\Z", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,9})?\Z", re.ASCII)
_MOMENTS = ("anthropic-ratelimit-unified-reset",)  # seconds of the epoch
_SPANS = ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")  # as in 6m0s: the longer one counts
_WAITING: frozenset[ErrorKind] = frozenset({"rate_limit", "quota"})


def with_reset(fault: Fault, response: HttpResponse, now: float) -> Fault:
    """Return the fault with the reset time from other headers or the body, if there is no `retry-after`."""
    if fault.retry_after is not None or fault.kind not in _WAITING:
        return fault
    seconds = _reset(response, now)
    return fault if seconds is None else structs.replace(fault, retry_after=max(seconds, 0.0))


def _reset(response: HttpResponse, now: float) -> float | None:
    for name in _MOMENTS:
        if _NUMBER.match(value := response.header(name)):
            return float(value) - now
    body = jsonio.try_decode(response.body)
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, dict):
        span, moment = _number(error.get("resets_in_seconds")), _number(error.get("resets_at"))
        if span is not None or moment is not None:
            return span if span is not None else (moment or 0.0) - now
    return max((_span(response.header(name)) for name in _SPANS), default=0.0) or None


def _number(value: Json) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e12 else None  # type: ignore[arg-type,operator]


def _span(text: str) -> float:
    found = _SPAN.match(text)
    hours, minutes, seconds = found.groups() if found else (None, None, None)
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds or 0)
