"""What a failed attempt is answered with: by whom, how often, after how long."""

from __future__ import annotations

import pytest

from dragoman.errors import (
    BadFrame,
    ConnectFailed,
    DragomanError,
    Fault,
    Kind,
    LocalMisuse,
    MalformedRequest,
    Reset,
    TimedOut,
    Unrepresentable,
    UpstreamFault,
)
from dragoman.gateway.breaker import Resting
from dragoman.gateway.limits import Overloaded
from dragoman.gateway.policy import Budget, Patience, next_step, to_tell, with_reset
from dragoman.wire import jsonio
from dragoman.wire.http import HttpResponse
from dragoman.wire.jsonio import Json


def refused(kind: Kind, retry_after: float | None = None) -> UpstreamFault:
    return UpstreamFault("no", fault=Fault(kind, "no", 429, retry_after))


def test_the_numbers_of_the_policy_are_those_of_the_specification() -> None:
    assert Patience() == Patience(retries=2, least=0.2, most=2.0, longest=30.0)
    budget = Budget()
    assert (budget._share, budget._always, budget._window) == (0.2, 3, 10.0)


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ConnectFailed("refused"), "again"),
        (Reset("cut"), "again"),
        (refused("overloaded"), "again"),
        (refused("server"), "again"),
        (BadFrame("x"), "again"),
        (ConnectFailed("x", fault=Fault("overloaded", "queue")), "target"),
        (Unrepresentable("x"), "target"),
        (LocalMisuse("x"), "tell"),
        (refused("rate_limit"), "key"),
        (refused("quota"), "key"),
        (refused("auth"), "key"),
        (TimedOut("it may have run, and would be paid twice"), "target"),
        (refused("timeout"), "target"),
        (refused("not_found"), "target"),
        (refused("invalid"), "tell"),
        (refused("context_full"), "tell"),
        (MalformedRequest("another target may take it"), "target"),
        (Overloaded("we are full"), "tell"),
        (Resting("later", 5.0, hinted=False), "key"),
    ],
)
def test_each_failure_has_one_answer(error: DragomanError, step: str) -> None:
    assert next_step(error) == step


def test_waits_are_spread_between_a_fifth_of_a_second_and_two() -> None:
    for tries in range(6):
        waits = [Patience().wait(Reset("x"), tries) or 0 for _ in range(300)]
        assert min(waits) >= 0.2 and max(waits) <= 2.0
        assert max(waits) - min(waits) > 0.1  # not all at once
    assert max(Patience().wait(Reset("x"), 5) or 0 for _ in range(300)) > 1.5
    said = [Patience().wait(refused("rate_limit", 3.0), 2) or 0 for _ in range(100)]
    assert max(said) - min(said) > 0.1


@pytest.mark.parametrize(("said", "kept"), [(0.0, True), (7.0, True), (30.0, True), (30.1, False), (1.6e6, False)])
def test_a_retry_after_within_half_a_minute_is_kept_to_and_a_longer_one_fails_at_once(said: float, kept: bool) -> None:
    wait = Patience().wait(refused("rate_limit", said), 0)
    assert wait is None if not kept else wait is not None and max(said, 0.2) <= wait <= said + 0.4


def test_retries_are_a_fifth_of_the_traffic_and_three_in_any_case() -> None:
    budget = Budget()
    assert [budget.allows(0.0) for _ in range(4)] == [True, True, True, False]
    for _ in range(100):
        budget.request(1.0)
    assert sum(budget.allows(1.0) for _ in range(100)) == 17  # with the three: twenty
    assert not budget.allows(9.9)
    assert budget.allows(11.1)


def test_a_client_hears_the_first_failure_or_who_is_ready_first() -> None:
    first, second = Reset("first"), Reset("second")
    late, soon = Resting("late", 60.0, hinted=True), Resting("soon", 5.0, hinted=False)
    assert to_tell(None, first) is first
    assert to_tell(first, second) is first
    assert to_tell(first, soon) is first
    assert to_tell(late, first) is first  # somebody was asked, and said something
    assert to_tell(late, soon) is soon
    assert to_tell(soon, late) is soon


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"anthropic-ratelimit-unified-reset": "1090"}, {}, 90),
        ({}, {"error": {"type": "usage_limit_reached", "resets_in_seconds": 120}}, 120),
        ({}, {"error": {"resets_at": 1060}}, 60),
        ({}, {"resets_at": 900}, 0),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, {}, 360),
        ({"x-ratelimit-reset-requests": "soon"}, {"error": {"resets_at": "Monday"}}, None),
        ({}, {"error": {"resets_at": 10**30, "resets_in_seconds": -1}}, None),
        ({}, ["no object"], None),
    ],
)
def test_the_time_of_a_reset_is_found_where_services_say_it(
    headers: dict[str, str], body: Json, seconds: float | None
) -> None:
    response = HttpResponse(429, tuple(headers.items()), jsonio.encode(body))
    assert with_reset(Fault("rate_limit", "no", 429), response, 1000.0).retry_after == seconds
    assert with_reset(Fault("rate_limit", "no", 429, 3.0), response, 1000.0).retry_after == 3.0
    assert with_reset(Fault("server", "no", 500), response, 1000.0).retry_after is None
