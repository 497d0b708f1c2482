"""What to do about a failed attempt, as long as the client has not seen a byte of it. Pure.

One table by the kind of fault. `again` is the same way once more after a while, `key` another credential of the same
upstream, `target` the next target of the route, `tell` the end: the client steers by what the upstream said.
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
    TimedOut,
    UpstreamFault,
)
from dragoman.gateway.breaker import CooldownActive, WindowCounter
from dragoman.gateway.limits import Overloaded
from dragoman.upstream.credentials import CredentialFault
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json

RetryAction: TypeAlias = Literal["again", "key", "target", "tell"]

_BY_KIND: dict[ErrorKind, RetryAction] = {
    "invalid": "tell",
    "context_full": "tell",
    "too_large": "tell",
    "auth": "key",
    "permission": "key",
    "quota": "key",
    "rate_limit": "key",
    "not_found": "target",
    "overloaded": "again",
    "server": "again",
    "timeout": "target",  # it may have run, and would be paid twice; another service may be quicker
}


_MOST_VIOLATIONS = 2  # answers to one request that may break their own dialect: a violation is retried once
_NOT_STARTED = frozenset({503, 529})  # statuses of a service that took no work
_NOT_HELD = "previous_response_not_found"  # another credential or another target may have the response


class RetrySettings(Struct, frozen=True):
    """How often and how long. Waits double, with full jitter; a `retry-after` within `longest` is kept to."""

    retries: int = 2  # of one request, whatever its targets
    min_wait: float = 0.2
    max_wait: float = 2.0
    max_retry_after: float = 30.0

    def wait(self, error: DragomanError, tries: int) -> float | None:
        """Seconds before the next try; None if the upstream wants more than we have."""
        said = error.fault.retry_after
        if said is not None:  # a little later than the others who were told the same
            return max(said, self.min_wait) + random.uniform(0, self.min_wait) if said <= self.max_retry_after else None
        return random.uniform(self.min_wait, max(self.min_wait, min(self.max_wait, self.min_wait * 2 ** (tries + 1))))


class Refused(UpstreamFault):
    """A refusal, with the response that is it."""

    def __init__(self, response: HttpResponse, fault: Fault) -> None:
        super().__init__(fault.message, fault=fault)
        self.response = response


class Redirected(UpstreamFault):
    """The upstream answered with a redirect. It is not followed: the credential is for the configured address only."""

    def __init__(self, upstream: str, status: int) -> None:
        message = (
            f"the upstream {upstream} answered with a redirect (status {status}), which is not followed; "
            f"check base_url of [upstreams.{upstream}]"
        )
        super().__init__(message, fault=Fault("server", message, 502, is_violation=True))


def retry_action(error: DragomanError) -> RetryAction:
    """What may mend this failure."""
    if isinstance(error, LocalMisuse | Overloaded) or error.fault.is_final:
        return "tell"
    if isinstance(error, CooldownActive):
        return "key"
    if isinstance(error, TimedOut | ClientFault | Redirected):  # what one target cannot be told, another may
        return "target"
    if isinstance(error, UpstreamFault):
        return "key" if error.fault.code == _NOT_HELD else _BY_KIND[error.fault.kind]
    # The network, or an upstream that broke its own dialect before it said anything.
    return "target" if error.fault.kind in ("overloaded", "timeout") else "again"


def is_not_held(error: DragomanError) -> bool:
    """Whether an upstream says that it does not have what the request names; another one may have it."""
    return error.fault.kind == "not_found" or error.fault.code == _NOT_HELD


def pick_error(before: DragomanError | None, error: DragomanError) -> DragomanError:
    """Which of two failures the client gets: the first; of targets that were not asked, the one that is ready first."""
    if before is None or not isinstance(before, CooldownActive):
        return before or error
    return error if not isinstance(error, CooldownActive) or error.seconds_left < before.seconds_left else before


class Retries(Struct):
    """What one request has tried, and whether it may be sent again. A job may have started although it failed."""

    retry_settings: RetrySettings
    is_job: bool
    tries: int = 0  # beyond the first
    violations: int = 0  # answers that broke their own dialect

    def may_have_started(self, error: DragomanError) -> bool:
        """Whether a job that was asked for may have started all the same: another request would start another job."""
        if not self.is_job or isinstance(error, ConnectFailed | CredentialFault | ClientFault):
            return False
        return not (isinstance(error, Refused) and (error.fault.status < 500 or error.fault.status in _NOT_STARTED))

    def may_ask_another(self, error: DragomanError) -> bool:
        """Whether another target may be asked after this failure."""
        return not self.may_have_started(error) and self.violations < _MOST_VIOLATIONS

    def wait(self, error: DragomanError, budget: RetryBudget, *, last: bool) -> float | None:
        """Seconds before the same target is asked again; None if it is not. `last`: there is no other target."""
        if error.fault.is_violation and (not last or self.violations >= _MOST_VIOLATIONS):
            return None  # an upstream that broke its dialect may do so every time
        step = retry_action(error)
        # There is no other credential. A pause that an upstream asked for is waited for, if there is no other target.
        if (error.is_hinted and last) if isinstance(error, CooldownActive) else error.fault.kind == "rate_limit":
            step = "again"
        if step != "again" or self.tries >= self.retry_settings.retries:
            return None
        wait = self.retry_settings.wait(error, self.tries)
        if wait is None or not (isinstance(error, CooldownActive) or budget.allows(time.monotonic())):
            return None
        self.tries += 1
        return wait


REQUEST, RETRY = 0, 1  # what a Budget counts


class RetryBudget:
    """Limits retries of one upstream to a share of its requests, so that they do not add to its load."""

    share: float = 0.2
    always: int = 3  # retries that are allowed in any case
    window: float = 10.0  # seconds in which both are counted

    def __init__(self) -> None:
        self.recent = WindowCounter(self.window, 0.1)

    def allows(self, now: float) -> bool:
        """Whether one more retry fits; it is counted if so."""
        self.recent.forget(now)
        requests, retries = self.recent.counts
        if retries >= max(self.always, self.share * requests):
            return False
        self.recent.add(now, RETRY)
        return True


# --- when a refusal says it will be over, other than by `retry-after`

_SPAN = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?\Z", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,9})?\Z", re.ASCII)
_MOMENTS = ("anthropic-ratelimit-unified-reset",)  # seconds of the epoch
_SPANS = ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")  # as in 6m0s: the longer one counts
_WAITING: frozenset[ErrorKind] = frozenset({"rate_limit", "quota"})


def with_reset(fault: Fault, response: HttpResponse, now: float) -> Fault:
    """The fault with the time that the rest of the answer names, if `retry-after` did not."""
    if fault.retry_after is not None or fault.kind not in _WAITING:
        return fault
    seconds = _reset(response, now)
    return fault if seconds is None else structs.replace(fault, retry_after=max(seconds, 0.0))


def _reset(response: HttpResponse, now: float) -> float | None:
    for name in _MOMENTS:
        if _NUMBER.match(said := response.header(name)):
            return float(said) - now
    body = jsonio.try_decode(response.body)
    error = body.get("error", body) if isinstance(body, dict) else None
    if isinstance(error, dict):
        span, moment = _number(error.get("resets_in_seconds")), _number(error.get("resets_at"))
        if span is not None or moment is not None:
            return span if span is not None else (moment or 0.0) - now
    return max((_span(response.header(name)) for name in _SPANS), default=0.0) or None


def _number(value: Json) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e12 else None  # type: ignore[arg-type,operator]


def _span(said: str) -> float:
    found = _SPAN.match(said)
    hours, minutes, seconds = found.groups() if found else (None, None, None)
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds or 0)
