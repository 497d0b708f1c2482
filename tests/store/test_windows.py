"""Days, months and the refill of a minute."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.store.windows import EVER, Calendar, refill
from tests.store.cluster import moment

# Zones whose clocks change at midnight, by half an hour, by a whole day, or not at all.
ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "America/Havana", "America/Sao_Paulo", "Asia/Beirut", "Asia/Kathmandu",
    "Australia/Lord_Howe", "Pacific/Apia", "Africa/Cairo",
]  # fmt: skip
MOMENTS = st.floats(moment("1990-01-01"), moment("2037-12-31"))


@pytest.mark.parametrize("zone", ZONES)
@given(at=MOMENTS)
@example(at=moment("2011-12-30 10:00"))  # Samoa had no such day.
@example(at=moment("2018-11-04 03:00"))  # In São Paulo the clock passed midnight by an hour.
@example(at=moment("2018-02-18 02:30"))  # There it went back at midnight.
@example(at=1072915199.9999998)  # half a microsecond before midnight
def test_every_moment_is_in_one_day_and_one_month_which_follow_one_another(zone: str, at: float) -> None:
    calendar = Calendar(zone)
    for span in (calendar.day, calendar.month):
        window = span(at)
        assert window.begins <= at < window.ends
        assert span(window.begins) == window and span(window.ends - 0.001) == window
        following = span(window.ends)
        assert following.begins == window.ends and following.first_day >= window.end_day
    assert calendar.month(at).begins <= calendar.day(at).begins < calendar.day(at).ends <= calendar.month(at).ends
    assert calendar.day_named(calendar.day(at).first_day) == calendar.day(at)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/Havana", "2026-03-08", 23),  # from 0 to 1 o'clock
        ("America/Havana", "2026-11-01", 25),  # from 1 to 0 o'clock
        ("America/Sao_Paulo", "2018-11-04", 23),
        ("America/Sao_Paulo", "2018-02-17", 25),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Asia/Kathmandu", "2026-10-04", 24),
    ],
)
def test_the_length_of_days_where_the_clock_changes(zone: str, day: str, hours: float) -> None:
    window = Calendar(zone).day_named(day)
    assert (window.ends - window.begins) / 3600 == hours


def test_months_end_on_their_last_day() -> None:
    calendar = Calendar("Europe/Berlin")
    for first, last, end in [
        ("2027-02-01", "2027-02-28 23:59", "2027-03-01"),
        ("2028-02-01", "2028-02-29 23:59", "2028-03-01"),
        ("2026-12-01", "2026-12-31 23:59", "2027-01-01"),
        ("2026-03-01", "2026-03-31 23:59", "2026-04-01"),  # with a change of the clock
    ]:
        window = calendar.month(moment(last, "Europe/Berlin"))
        assert (window.first_day, window.end_day) == (first, end)
        assert window.ends == moment(end, "Europe/Berlin")


def test_ever_contains_all_days() -> None:
    assert EVER.first_day < "0001-01-01" and EVER.end_day > "9999-12-31"
    assert (EVER.begins, EVER.ends) == (0.0, inf)


# --- the refill of a minute


@given(
    amount=st.integers(1, 10**9),
    steps=st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 10**9)), max_size=40),
)
def test_what_was_used_becomes_less_by_the_amount_a_minute(amount: int, steps: list[tuple[float, int]]) -> None:
    """However often it is computed, at most one unit and the error of floating point are lost or gained."""
    used, at, now, exact = 0, 1000.0, 1000.0, 0.0
    for seconds, used_tokens in steps:
        now += seconds
        used, at = refill(used, at, amount, now)
        exact = max(0.0, exact - seconds * amount / 60)
        assert abs(used - exact) <= 1 + 1e-6 * (amount + exact), (used, exact)
        used, exact = used + used_tokens, exact + used_tokens


def test_a_clock_that_is_set_back_does_not_stop_the_refill() -> None:
    used, at = refill(60, 5000.0, 60, 1000.0)
    assert (used, at) == (60, 1000.0)
    assert refill(used, at, 60, 1030.0) == (30, 1030.0)


def test_a_limit_of_zero_never_refills() -> None:
    assert refill(5, 1000.0, 0, 10**9) == (5, 1000.0)
