"""Tests of `dragoman.accounts.limit_text`: that limits, amounts, durations and times are read as they are written."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.accounts.limit_text import NANO, parse_duration, parse_limit, parse_time, render_dollars, render_limit
from dragoman.errors import LocalMisuse
from dragoman.store.interface import Limit, Resource, Span

PAIRS: list[tuple[Resource, Span]] = [
    *(("requests", span) for span in ("minute", "day", "month", "ever")),
    *(("tokens", span) for span in ("minute", "day", "month", "ever")),
    *(("cost", span) for span in ("day", "month", "ever")),
    ("concurrency", "now"),
]


@given(st.sampled_from(PAIRS), st.integers(0, 10**15))
def test_a_limit_is_read_back_as_it_was_written(pair: tuple[Resource, Span], amount: int) -> None:
    limit = Limit("key:a", *pair, amount)
    assert parse_limit("key:a", render_limit(limit)) == limit


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("tokens/day=2M", 2_000_000),
        ("tokens/day=1.5K", 1500),
        ("requests/minute=60", 60),
        ("cost/month=20", 20 * NANO),
        ("cost/month=$0.000000001", 1),
        ("cost/ever=1,000.50", 1000 * NANO + NANO // 2),
        ("concurrency=4", 4),
        ("concurrency/now=4", 4),
        ("tokens/day=0", 0),
    ],
)
def test_amounts(text: str, amount: int) -> None:
    assert parse_limit("all", text).amount == amount


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tokens", "is not a limit"),
        ("words/day=3", "is not a limit"),
        ("tokens=3", "can be limited by minute or day or month or ever, not by nothing"),
        ("cost/minute=3", "can be limited by day or month or ever, not by minute"),
        ("concurrency/day=3", "can be limited by now"),
        ("tokens/day=-3", "is not an amount"),
        ("tokens/day=1e9", "is not an amount"),
        ("tokens/day=", "is not an amount"),
        ("tokens/day=1.5", "is not a whole number of tokens"),
        ("cost/day=0.0000000001", "is not an amount"),
        ("cost/day=999999999999G", "too large"),
        ("tokens/day=٣", "is not an amount"),
    ],
)
def test_a_text_that_is_no_limit_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(LocalMisuse, match=message):
        parse_limit("all", text)


def test_every_resource_and_span_can_be_written() -> None:
    assert {resource for resource, _ in PAIRS} == set(get_args(Resource))
    assert {span for _, span in PAIRS} == set(get_args(Span))


@given(st.integers(-(10**18), 10**18))
def test_dollars_are_exact(nano: int) -> None:
    text = render_dollars(nano)
    whole, _, rest = text.removeprefix("-").partition(".")
    assert len(rest) >= 2
    assert (int(whole) * NANO + int(rest.ljust(9, "0"))) * (-1 if nano < 0 else 1) == nano


def test_durations_and_times() -> None:
    assert [parse_duration(text) for text in ("90s", "30m", "24h", "7d", "2w")] == [90, 1800, 86400, 604800, 1209600]
    assert parse_time("1h", ahead=True, now=1000.0) == 4600.0
    assert parse_time("1h", ahead=False, now=10000.0) == 6400.0
    assert parse_time("2026-11-18T00:00:00+00:00", ahead=True) == 1794960000.0
    for text in ("", "soon", "1y", "-1d", "2026-13-01"):
        with pytest.raises(LocalMisuse):
            parse_time(text, ahead=True)
