"""Who is left alone and until when, by a clock that nobody waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ErrorKind, Fault, MalformedRequest, Reset, TimedOut, UpstreamFault
from dragoman.gateway.breaker import (
    COOLDOWN_FILE,
    MAX_SCOPES,
    BreakerSettings,
    CircuitBreaker,
    CooldownActive,
    CooldownFile,
    Permit,
    family,
)


class Clock:
    """Both clocks, and both stand still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Ward:
    """A breaker with a clock, and the short way to ask it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.breaker = CircuitBreaker(clock=self.clock, wall=lambda: self.clock.now + 1_700_000_000)

    def enter(self, model: str = "m", credential: str = "key", upstream: str = "up") -> Permit:
        return self.breaker.enter(upstream, credential, model)

    def fail(self, times: int = 1, error: Exception | None = None, **scope: str) -> None:
        for _ in range(times):
            ticket = self.enter(**scope)
            ticket.failed(error or Reset("broken"))  # type: ignore[arg-type]
            ticket.close()

    def succeed(self, times: int = 1, **scope: str) -> None:
        for _ in range(times):
            ticket = self.enter(**scope)
            ticket.succeeded()
            ticket.close()

    def refuses(self, **scope: str) -> CooldownActive | None:
        try:
            self.enter(**scope).close()
        except CooldownActive as resting:
            return resting
        return None


@pytest.fixture
def ward() -> Ward:
    return Ward()


def refused(kind: ErrorKind, retry_after: float | None = None, message: str = "no") -> UpstreamFault:
    return UpstreamFault(message, fault=Fault(kind, message, 429, retry_after))


def test_the_numbers_are_those_of_the_specification() -> None:
    assert BreakerSettings() == BreakerSettings(
        failures=5,
        share=0.5,
        least=20,
        window=30.0,
        first_probe=5.0,
        last_probe=120.0,
        cooling_probe=300.0,
        longest=86_400.0,
    )


# --- failures


def test_five_failures_in_a_row_open_it_and_four_do_not(ward: Ward) -> None:
    ward.fail(4)
    ward.succeed()
    ward.fail(4)
    assert ward.refuses() is None
    ward.fail()
    resting = ward.refuses()
    assert resting is not None and not resting.is_hinted
    assert (resting.fault.kind, resting.fault.status, resting.fault.retry_after) == ("overloaded", 503, 5)


@pytest.mark.parametrize(("failures", "opens"), [(11, True), (10, False)])
def test_more_than_half_of_twenty_open_it(failures: int, opens: bool, ward: Ward) -> None:
    """Never five in a row."""
    ward.succeed(20 - failures)
    for done in range(failures):
        assert ward.refuses() is None
        ward.breaker.counts[next(iter(ward.breaker.counts))].row = done % 4
        ward.fail()
    assert (ward.refuses() is not None) is opens


def test_what_is_half_a_minute_old_does_not_count(ward: Ward) -> None:
    for _ in range(9):
        ward.fail()
        ward.succeed()
    ward.clock.now += 31
    ward.fail(2)
    assert ward.refuses() is None


def test_what_the_client_did_wrong_is_not_held_against_the_upstream(ward: Ward) -> None:
    for kind in ("invalid", "context_full", "too_large", "not_found"):
        ward.fail(10, refused(kind))
    ward.fail(10, MalformedRequest("ours to say"))
    assert ward.refuses() is None and not ward.breaker.describe()


def test_a_probe_goes_out_after_five_seconds_and_only_one(ward: Ward) -> None:
    ward.fail(5)
    ward.clock.now += 4.9
    assert ward.refuses() is not None
    ward.clock.now += 0.2
    probe = ward.enter()
    assert ward.refuses() is not None
    [row] = ward.breaker.describe()
    assert isinstance(row, dict) and row["state"] == "probing"
    probe.succeeded()
    probe.close()
    assert ward.refuses() is None and not ward.breaker.describe()


def test_waits_double_up_to_two_minutes(ward: Ward) -> None:
    ward.fail(5)
    waits = []
    for _ in range(8):
        resting = ward.refuses()
        assert resting is not None
        waits.append(resting.seconds_left)
        ward.clock.now += resting.seconds_left
        ward.fail()
    assert waits == [5, 10, 20, 40, 80, 120, 120, 120]


def test_a_probe_without_a_verdict_makes_room_for_another(ward: Ward) -> None:
    """Its client left."""
    ward.fail(5)
    ward.clock.now += 5
    ward.enter().close()
    ward.enter().close()


def test_a_probe_that_has_begun_to_answer_is_enough(ward: Ward) -> None:
    """A stream may take an hour: nobody waits for its end."""
    ward.fail(5)
    ward.clock.now += 5
    probe = ward.enter()
    probe.accepted()
    assert ward.refuses() is None
    probe.close()


def test_streams_that_begin_well_and_break_open_it_too(ward: Ward) -> None:
    for _ in range(5):
        ticket = ward.enter()
        ticket.accepted()
        ticket.failed(Reset("in the middle"))
        ticket.close()
    assert ward.refuses() is not None


def test_those_who_were_under_way_when_it_opened_tell_nothing_new(ward: Ward) -> None:
    late = [ward.enter() for _ in range(3)]
    ward.fail(5)
    ward.clock.now += 1
    late[0].failed(TimedOut("late"))
    late[1].succeeded()
    late[2].accepted()
    resting = ward.refuses()
    assert resting is not None and resting.seconds_left == 4


@given(st.lists(st.sampled_from(["ask", "ok", "fail", "leave", "later"]), max_size=60))
def test_there_is_never_more_than_one_probe_and_success_always_opens_the_way(steps: list[str]) -> None:
    ward = Ward()
    out: list[tuple[Permit, bool]] = []
    for step in steps:
        if step == "later":
            ward.clock.now += 7
        elif step == "ask":
            rests = bool(ward.breaker.describe())
            try:
                ticket = ward.enter()
            except CooldownActive:
                assert rests
                continue
            out.append((ticket, rests))
            assert sum(1 for _, probe in out if probe) <= 1 or not ward.breaker.describe()
        elif out:
            ticket, probe = out.pop()
            if step == "ok":
                ticket.succeeded()
            elif step == "fail":
                ticket.failed(Reset("x"))
            ticket.close()
            if step == "ok" and probe:
                assert not ward.breaker.describe()
    ward.clock.now += 121
    while out:
        out.pop()[0].close()
    assert ward.refuses() is None


# --- pauses that an upstream asks for


@pytest.mark.parametrize(
    ("kind", "other_model", "other_key"),
    [("rate_limit", True, True), ("quota", False, True), ("auth", False, True), ("permission", True, True)],
)
def test_a_pause_covers_what_the_kind_of_refusal_is_about(
    kind: ErrorKind, other_model: bool, other_key: bool, ward: Ward
) -> None:
    """A rate limit is a model's, a quota the account's, a refused credential is refused for all models."""
    ward.fail(1, refused(kind, 60.0))
    assert ward.refuses() is not None
    assert (ward.refuses(model="other") is None) is other_model
    assert (ward.refuses(credential="other") is None) is other_key
    assert ward.refuses(upstream="other") is None


def test_a_pause_is_over_when_it_is_over(ward: Ward) -> None:
    ward.fail(1, refused("rate_limit", 60.0, "too fast"))
    resting = ward.refuses()
    assert resting is not None and resting.is_hinted and resting.fault.retry_after == 60
    assert "too fast" in str(resting) and "rate_limit" in str(resting)
    ward.clock.now += 60
    assert ward.refuses() is None and not ward.breaker.describe()


def test_a_named_time_is_a_hint_probed_every_five_minutes_for_a_day(ward: Ward) -> None:
    ward.fail(1, refused("quota", 18 * 86_400.0))
    probes = 0
    for _ in range(24 * 60 + 1):  # minutes
        ward.clock.now += 60
        if ward.refuses() is None:
            [row] = ward.breaker.describe() or [None]
            if row is None:
                break
            ward.fail(1)  # the probe meets other trouble
            probes += 1
    assert ward.clock.now - 1000 == 86_400  # whatever it said, the day is the longest
    assert probes == 24 * 60 / 5 - 1


def test_success_anywhere_in_the_scope_ends_a_pause(ward: Ward) -> None:
    ward.fail(1, refused("quota", 3600.0), model="a")
    assert ward.refuses(model="b") is not None
    ward.clock.now += 300
    ward.succeed(model="b")
    assert ward.refuses(model="a") is None


def test_a_probe_that_goes_well_ends_the_pause_of_a_whole_credential(ward: Ward) -> None:
    ward.fail(error=refused("quota", 3600.0), model="a")
    assert ward.refuses(model="b") is not None
    ward.clock.now += 301
    ward.succeed(model="b")
    assert ward.refuses(model="a") is None
    assert ward.breaker.describe() == []


def test_whoever_keeps_pauses_is_told_when_one_begins_and_when_it_ends_early(ward: Ward) -> None:
    told: list[int] = []
    ward.breaker.changed = lambda: told.append(len(ward.breaker.saved_cooldowns()))
    ward.fail(error=refused("rate_limit", 600.0))
    assert told == [1]
    ward.clock.now += 301
    ward.succeed()
    assert told == [1, 0]


def test_a_rate_limit_without_a_time_is_a_failure_like_others(ward: Ward) -> None:
    """One 429 of a busy moment shall not stop everybody."""
    ward.fail(4, refused("rate_limit"))
    assert ward.refuses() is None
    ward.fail(1, refused("rate_limit"))
    assert ward.refuses() is not None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5", True),
        ("claude-sonnet-4-5[1m]", "Claude-Sonnet-4-5", True),
        ("gpt-4o-2024-08-06", "gpt-4o", True),
        ("anthropic.claude-3-haiku-20240307-v1:0", "anthropic.claude-3-haiku", True),
        ("claude-haiku-latest", "claude-haiku", True),
        ("gpt-5", "gpt-5-mini", False),
        ("kimi-k2", "kimi-k2.5", False),
    ],
)
def test_dated_versions_of_a_model_are_one_family(one: str, other: str, same: bool) -> None:
    assert (family(one) == family(other)) is same


# --- people, and other processes


def test_clearing_lets_everybody_be_asked_or_one(ward: Ward) -> None:
    ward.fail(1, refused("quota", 600.0), upstream="a")
    ward.fail(5, upstream="b")
    assert ward.breaker.clear("a") == 1
    assert ward.refuses(upstream="a") is None and ward.refuses(upstream="b") is not None
    ward.fail(4, upstream="c")
    assert ward.breaker.clear() == 1
    assert ward.refuses(upstream="b") is None
    ward.fail(4, upstream="c")  # its failures were forgotten too
    assert ward.refuses(upstream="c") is None


def test_a_client_that_names_many_models_fills_nothing(ward: Ward) -> None:
    for number in range(MAX_SCOPES * 2):
        ward.fail(1, refused("rate_limit", 60.0), model=f"m{number}")
        ward.succeed(model=f"n{number}")
    assert len(ward.breaker.describe()) <= MAX_SCOPES
    assert len(ward.breaker.counts) <= MAX_SCOPES


def test_an_upstream_without_a_breaker_is_always_asked(ward: Ward) -> None:
    for _ in range(9):
        ticket = ward.breaker.enter("up", "key", "m", guarded=False)
        ticket.failed(refused("quota", 60.0))
        ticket.close()
    assert ward.refuses() is None


def test_pauses_outlive_the_process_and_a_moved_clock(tmp_path: Path) -> None:
    before, after = Ward(), Ward()
    after.clock.now = 5.0  # a clock that counts from the start of the machine
    after.breaker._wall = lambda: 1_700_000_000 + 1100.0

    async def restart() -> None:
        first = CooldownFile(tmp_path, before.breaker)
        first.load()
        before.fail(1, refused("quota", 400.0, "spent"))
        before.fail(5, credential="broken")
        await first.aclose()
        CooldownFile(tmp_path, after.breaker).load()
        after.breaker.changed = lambda: None

    asyncio.run(restart())
    assert (tmp_path / COOLDOWN_FILE).stat().st_mode & 0o077 == 0
    resting = after.refuses()
    assert resting is not None and "spent" in str(resting) and resting.seconds_left == 300
    assert [row["models"] for row in after.breaker.describe() if isinstance(row, dict)] == [None]
    moved = Ward()
    moved.breaker._wall = lambda: 0.0  # half a century back
    moved.breaker.restore(before.breaker.saved_cooldowns())
    moved.clock.now += 86_400
    assert moved.refuses() is None


@pytest.mark.parametrize("torn", [b"", b"[", b'[{"upstream": 1}]', b"\xff", b"{}"])
def test_a_file_that_says_nothing_is_as_good_as_none(torn: bytes, tmp_path: Path, ward: Ward) -> None:
    (tmp_path / COOLDOWN_FILE).write_bytes(torn)
    (tmp_path / COOLDOWN_FILE).chmod(0o600)
    CooldownFile(tmp_path, ward.breaker).load()
    assert ward.breaker.describe() == []
