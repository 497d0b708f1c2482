"""Limits, times and durations as people write them: `tokens/day=2M`, `cost/month=20`, `30d`, `2026-12-31`. Pure.

Used by the command line and by the page of keys of the inspector. Cost is written in dollars and kept in nano-dollars.
"""

from __future__ import annotations

import re
import time
from datetime import datetime
from decimal import Decimal, InvalidOperation

from dragoman.errors import LocalMisuse
from dragoman.store.interface import Limit, Resource, Span

NANO = 1_000_000_000  # nano-dollars of a dollar
_SPANS: dict[Resource, tuple[Span, ...]] = {
    "requests": ("minute", "day", "month", "ever"),
    "tokens": ("minute", "day", "month", "ever"),
    "cost": ("day", "month", "ever"),
    "concurrency": ("now",),
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(\d{1,6})([smhdw])", re.ASCII)
_THOUSANDS = {"": 1, "K": 1000, "M": 1_000_000, "G": 1_000_000_000}
_AMOUNT = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)([KMG]?)", re.ASCII)
_MOST = 1 << 62
FORM = "RESOURCE/SPAN=AMOUNT, for example requests/minute=60, tokens/day=2M, cost/month=20 or concurrency=4"


def parse_limit(scope: str, text: str) -> Limit:
    """Return the limit that a text describes. Raises LocalMisuse."""
    name, equals, amount = text.partition("=")
    resource, _, span = name.strip().partition("/")
    if not equals or resource not in _SPANS:
        raise LocalMisuse(f"{text!r} is not a limit; write {FORM}")
    if resource == "concurrency" and not span:
        span = "now"
    if span not in _SPANS[resource]:
        allowed = " or ".join(_SPANS[resource])
        raise LocalMisuse(f"{text!r}: {resource} can be limited by {allowed}, not by {span or 'nothing'}")
    return Limit(scope, resource, span, _amount(text, resource, amount.strip()))


def _amount(text: str, resource: Resource, amount: str) -> int:
    found = _AMOUNT.fullmatch(amount.removeprefix("$").replace("_", "").replace(",", ""))
    if found is None:
        raise LocalMisuse(f"{text!r}: {amount!r} is not an amount; write a number such as 60, 2M or 12.50")
    try:
        value = Decimal(found[1]) * _THOUSANDS[found[2]] * (NANO if resource == "cost" else 1)
    except InvalidOperation:
        raise LocalMisuse(f"{text!r}: the amount is too large") from None
    if value != int(value):
        raise LocalMisuse(f"{text!r}: {amount} is not a whole number of {resource}")
    if value > _MOST:
        raise LocalMisuse(f"{text!r}: the amount is too large")
    return int(value)


def render_limit(limit: Limit) -> str:
    """Return a limit as `parse_limit` reads it."""
    name = limit.resource if limit.span == "now" else f"{limit.resource}/{limit.span}"
    return f"{name}={render_amount(limit.resource, limit.amount)}"


def render_amount(resource: Resource, amount: int) -> str:
    """Return an amount: dollars for cost, otherwise a number."""
    return render_dollars(amount) if resource == "cost" else str(amount)


def render_dollars(nano: int, places: int = 2) -> str:
    """Return nano-dollars as dollars: at least two places, and as many as are needed for a small amount."""
    whole, rest = divmod(abs(nano), NANO)
    digits = f"{rest:09}".rstrip("0").ljust(places, "0")
    return f"{'-' if nano < 0 else ''}{whole}.{digits}"


def parse_duration(text: str) -> float:
    """Return the seconds of `90s`, `30m`, `24h`, `7d` or `2w`. Raises LocalMisuse."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise LocalMisuse(f"{text!r} is not a duration; write a number and s, m, h, d or w, such as 24h")
    return float(int(found[1]) * _UNITS[found[2]])


def parse_time(text: str, *, ahead: bool, now: float | None = None) -> float:
    """Return the time of a date, a date with a time, or a duration from now: back, or `ahead`. Raises LocalMisuse.

    A date without a zone is in local time.
    """
    at = time.time() if now is None else now
    if _DURATION.fullmatch(text.strip()):
        return at + parse_duration(text) * (1 if ahead else -1)
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except ValueError:
        example = "30d or 2026-12-31"
        raise LocalMisuse(f"{text!r} is not a time; write a duration or a date, such as {example}") from None
