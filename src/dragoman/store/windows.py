"""The windows of limits: days and months by the calendar of a time zone, and the refill of a minute. Pure.

A day begins at midnight in the time zone, or when the clock passes midnight if it is set forward then. So a day has 23
to 25 hours where the clock changes, days follow one another without a gap, and every moment is in exactly one of them.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from math import floor, inf
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct

from dragoman.store.interface import Span, StoreUnusable

_MINUTE = 60.0


class Window(Struct, frozen=True):
    """A span of time. `first_day` and `end_day` are dates such as `2026-11-16`; the end is not part of it."""

    begins: float
    ends: float
    first_day: str
    end_day: str


EVER = Window(0.0, inf, "", "~")  # "" is before all dates, "~" after them


class Calendar:
    """The calendar of a time zone. Raises StoreUnusable if the zone is not known."""

    def __init__(self, zone: str) -> None:
        self.zone = zone
        self._zone = _find_zone(zone)
        self._day = self._month = Window(inf, inf, "", "")  # the last ones that were found

    def window(self, span: Span, moment: float) -> Window:
        """Return the window of a day, a month or `ever` in which a moment is."""
        if span == "day":
            return self.day(moment)
        return self.month(moment) if span == "month" else EVER

    def day(self, moment: float) -> Window:
        """Return the day in which a moment is."""
        if not self._day.begins <= moment < self._day.ends:
            first = self._date(moment)
            self._day = self._between(first, first + timedelta(days=1))
        return self._day

    def month(self, moment: float) -> Window:
        """Return the month in which a moment is."""
        if not self._month.begins <= moment < self._month.ends:
            first = self._date(moment).replace(day=1)
            self._month = self._between(first, (first + timedelta(days=31)).replace(day=1))
        return self._month

    def day_named(self, day: str) -> Window:
        """Return the window of a date such as `2026-11-16`."""
        first = date.fromisoformat(day)
        return self._between(first, first + timedelta(days=1))

    def _date(self, moment: float) -> date:
        return datetime.fromtimestamp(floor(moment), self._zone).date()  # It would round up to the next microsecond.

    def _between(self, first: date, end: date) -> Window:
        return Window(self._midnight(first), self._midnight(end), first.isoformat(), end.isoformat())

    def _midnight(self, day: date) -> float:
        # A midnight that the clock skips is read with the offset before the change, which is the moment of the change.
        return datetime(day.year, day.month, day.day, tzinfo=self._zone).timestamp()


def _find_zone(name: str) -> tzinfo:
    if name == "UTC":  # needs no database of time zones, which Windows has not
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise StoreUnusable(
            f"the time zone {name!r} is not known on this machine. Use a name such as Europe/Berlin or UTC; if the "
            "name is right, install the time zones of the system, or the Python package tzdata."
        ) from None


def refill(used: int, at: float, amount: int, now: float) -> tuple[int, float]:
    """Return what of `used` still counts against a limit a minute, and the moment for which that is exact.

    `used` becomes less by `amount` a minute, in whole units; the time of a part of a unit is not lost.
    """
    if used <= 0 or at > now:  # The second: the clock was set back.
        return max(used, 0), now
    units = int((now - at) * amount / _MINUTE)
    if units >= used:
        return 0, now
    return used - units, at + (units * _MINUTE / amount if amount else 0.0)


def refill_time(units: int, amount: int) -> float:
    """Return in how many seconds `units` units of a limit of `amount` a minute are free again."""
    return units * _MINUTE / amount if amount else inf
