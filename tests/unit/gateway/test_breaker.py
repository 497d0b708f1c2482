"""The circuit breaker and its cooldowns, with a fake clock."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ErrorKind, Fault, MalformedRequest, Reset, TimedOut, UpstreamFault
from dragoman.gateway.breaker import (
    MAX_SCOPES,
    BreakerSettings,
    CircuitBreaker,
    CooldownActive,
    Permit,
)
from dragoman.gateway.cooldown_file import COOLDOWN_FILE, CooldownFile
from dragoman.gateway.model_names import model_family


class Clock:
    """A fake clock that only the tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class BreakerHarness:
    """A circuit breaker with a fake clock, and short methods to use it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.breaker = CircuitBreaker(clock=self.clock, wall=lambda: self.clock.now + 1_700_000_000)

    def enter(self, model: str = "m", credential: str = "key", upstream: str = "up") -> Permit:
        return self.breaker.enter(upstream, credential, model)

    def fail(self, times: int = 1, error: Exception | None = None, **scope: str) -> None:
        for _ in range(times):
            permit = self.enter(**scope)
            permit.report_failed(error or Reset("broken"))  # type: ignore[arg-type]
            permit.close()

    def succeed(self, times: int = 1, **scope: str) -> None:
        for _ in range(times):
            permit = self.enter(**scope)
            permit.report_succeeded()
            permit.close()

    def refuses(self, **scope: str) -> CooldownActive | None:
        try:
            self.enter(**scope).close()
        except CooldownActive as error:
            return error
        return None


@pytest.fixture
def harness() -> BreakerHarness:
    return BreakerHarness()


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


def test_five_consecutive_failures_open_the_breaker_and_four_do_not(harness: BreakerHarness) -> None:
    harness.fail(4)
    harness.succeed()
    harness.fail(4)
    assert harness.refuses() is None
    harness.fail()
    refusal = harness.refuses()
    assert refusal is not None and not refusal.is_hinted
    assert (refusal.fault.kind, refusal.fault.status, refusal.fault.retry_after) == ("overloaded", 503, 5)


@pytest.mark.parametrize(("failures", "opens"), [(11, True), (10, False)])
def test_more_than_half_of_twenty_requests_open_the_breaker(
    failures: int, opens: bool, harness: BreakerHarness
) -> None:
    """Never five in a row."""
    harness.succeed(20 - failures)
    for done in range(failures):
        assert harness.refuses() is None
        harness.breaker.counts[next(iter(harness.breaker.counts))].row = done % 4
        harness.fail()
    assert (harness.refuses() is not None) is opens


def test_failures_older_than_thirty_seconds_do_not_count(harness: BreakerHarness) -> None:
    for _ in range(9):
        harness.fail()
        harness.succeed()
    harness.clock.now += 31
    harness.fail(2)
    assert harness.refuses() is None


def test_errors_of_the_client_do_not_count_as_failures(harness: BreakerHarness) -> None:
    for kind in ("invalid", "context_full", "too_large", "not_found"):
        harness.fail(10, refused(kind))
    harness.fail(10, MalformedRequest("ours to say"))
    assert harness.refuses() is None and not harness.breaker.describe()


def test_exactly_one_probe_is_sent_after_five_seconds(harness: BreakerHarness) -> None:
    harness.fail(5)
    harness.clock.now += 4.9
    assert harness.refuses() is not None
    harness.clock.now += 0.2
    probe = harness.enter()
    assert harness.refuses() is not None
    [row] = harness.breaker.describe()
    assert isinstance(row, dict) and row["state"] == "probing"
    probe.report_succeeded()
    probe.close()
    assert harness.refuses() is None and not harness.breaker.describe()


def test_cooldowns_double_up_to_two_minutes(harness: BreakerHarness) -> None:
    harness.fail(5)
    waits = []
    for _ in range(8):
        refusal = harness.refuses()
        assert refusal is not None
        waits.append(refusal.seconds_left)
        harness.clock.now += refusal.seconds_left
        harness.fail()
    assert waits == [5, 10, 20, 40, 80, 120, 120, 120]


def test_a_probe_without_a_result_allows_another_probe(harness: BreakerHarness) -> None:
    """Its client left."""
    harness.fail(5)
    harness.clock.now += 5
    harness.enter().close()
    harness.enter().close()


def test_a_probe_succeeds_when_its_response_begins(harness: BreakerHarness) -> None:
    """A stream may take an hour, so the breaker does not wait for its end."""
    harness.fail(5)
    harness.clock.now += 5
    probe = harness.enter()
    probe.report_accepted()
    assert harness.refuses() is None
    probe.close()


def test_streams_that_break_after_their_start_open_the_breaker(harness: BreakerHarness) -> None:
    for _ in range(5):
        permit = harness.enter()
        permit.report_accepted()
        permit.report_failed(Reset("in the middle"))
        permit.close()
    assert harness.refuses() is not None


def test_requests_that_began_before_the_breaker_opened_do_not_count(harness: BreakerHarness) -> None:
    late = [harness.enter() for _ in range(3)]
    harness.fail(5)
    harness.clock.now += 1
    late[0].report_failed(TimedOut("late"))
    late[1].report_succeeded()
    late[2].report_accepted()
    refusal = harness.refuses()
    assert refusal is not None and refusal.seconds_left == 4


@given(st.lists(st.sampled_from(["ask", "ok", "fail", "leave", "later"]), max_size=60))
def test_there_is_never_more_than_one_probe_and_success_always_closes_the_breaker(steps: list[str]) -> None:
    harness = BreakerHarness()
    out: list[tuple[Permit, bool]] = []
    for step in steps:
        if step == "later":
            harness.clock.now += 7
        elif step == "ask":
            rests = bool(harness.breaker.describe())
            try:
                permit = harness.enter()
            except CooldownActive:
                assert rests
                continue
            out.append((permit, rests))
            assert sum(1 for _, probe in out if probe) <= 1 or not harness.breaker.describe()
        elif out:
            permit, probe = out.pop()
            if step == "ok":
                permit.report_succeeded()
            elif step == "fail":
                permit.report_failed(Reset("x"))
            permit.close()
            if step == "ok" and probe:
                assert not harness.breaker.describe()
    harness.clock.now += 121
    while out:
        out.pop()[0].close()
    assert harness.refuses() is None


# --- pauses that an upstream asks for


@pytest.mark.parametrize(
    ("kind", "other_model", "other_key"),
    [("rate_limit", True, True), ("quota", False, True), ("auth", False, True), ("permission", True, True)],
)
def test_the_kind_of_error_determines_the_scope_of_a_cooldown(
    kind: ErrorKind, other_model: bool, other_key: bool, harness: BreakerHarness
) -> None:
    """A rate limit is a model's, a quota the account's, a refused credential is refused for all models."""
    harness.fail(1, refused(kind, 60.0))
    assert harness.refuses() is not None
    assert (harness.refuses(model="other") is None) is other_model
    assert (harness.refuses(credential="other") is None) is other_key
    assert harness.refuses(upstream="other") is None


def test_a_cooldown_ends_at_its_time(harness: BreakerHarness) -> None:
    harness.fail(1, refused("rate_limit", 60.0, "too fast"))
    refusal = harness.refuses()
    assert refusal is not None and refusal.is_hinted and refusal.fault.retry_after == 60
    assert "too fast" in str(refusal) and "rate_limit" in str(refusal)
    harness.clock.now += 60
    assert harness.refuses() is None and not harness.breaker.describe()


def test_a_long_retry_after_is_probed_every_five_minutes_for_a_day(harness: BreakerHarness) -> None:
    harness.fail(1, refused("quota", 18 * 86_400.0))
    probes = 0
    for _ in range(24 * 60 + 1):  # minutes
        harness.clock.now += 60
        if harness.refuses() is None:
            [row] = harness.breaker.describe() or [None]
            if row is None:
                break
            harness.fail(1)  # The probe fails for another reason.
            probes += 1
    assert harness.clock.now - 1000 == 86_400  # A day is the longest cooldown, whatever the upstream requested.
    assert probes == 24 * 60 / 5 - 1


def test_a_success_in_the_scope_ends_a_cooldown(harness: BreakerHarness) -> None:
    harness.fail(1, refused("quota", 3600.0), model="a")
    assert harness.refuses(model="b") is not None
    harness.clock.now += 300
    harness.succeed(model="b")
    assert harness.refuses(model="a") is None


def test_a_successful_probe_ends_the_cooldown_of_a_credential(harness: BreakerHarness) -> None:
    harness.fail(error=refused("quota", 3600.0), model="a")
    assert harness.refuses(model="b") is not None
    harness.clock.now += 301
    harness.succeed(model="b")
    assert harness.refuses(model="a") is None
    assert harness.breaker.describe() == []


def test_changed_is_called_when_a_cooldown_begins_and_when_it_ends_early(harness: BreakerHarness) -> None:
    counts: list[int] = []
    harness.breaker.changed = lambda: counts.append(len(harness.breaker.saved_cooldowns()))
    harness.fail(error=refused("rate_limit", 600.0))
    assert counts == [1]
    harness.clock.now += 301
    harness.succeed()
    assert counts == [1, 0]


def test_a_rate_limit_without_retry_after_counts_as_one_failure(harness: BreakerHarness) -> None:
    """One 429 must not stop all requests."""
    harness.fail(4, refused("rate_limit"))
    assert harness.refuses() is None
    harness.fail(1, refused("rate_limit"))
    assert harness.refuses() is not None


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
    assert (model_family(one) == model_family(other)) is same


# --- people, and other processes


def test_cooldowns_of_one_upstream_or_of_all_can_be_cleared(harness: BreakerHarness) -> None:
    harness.fail(1, refused("quota", 600.0), upstream="a")
    harness.fail(5, upstream="b")
    assert harness.breaker.clear("a") == 1
    assert harness.refuses(upstream="a") is None and harness.refuses(upstream="b") is not None
    harness.fail(4, upstream="c")
    assert harness.breaker.clear() == 1
    assert harness.refuses(upstream="b") is None
    harness.fail(4, upstream="c")  # its failures were forgotten too
    assert harness.refuses(upstream="c") is None


def test_the_number_of_scopes_is_bounded(harness: BreakerHarness) -> None:
    for number in range(MAX_SCOPES * 2):
        harness.fail(1, refused("rate_limit", 60.0), model=f"m{number}")
        harness.succeed(model=f"n{number}")
    assert len(harness.breaker.describe()) <= MAX_SCOPES
    assert len(harness.breaker.counts) <= MAX_SCOPES


def test_an_upstream_without_a_breaker_always_gets_requests(harness: BreakerHarness) -> None:
    for _ in range(9):
        permit = harness.breaker.enter("up", "key", "m", guarded=False)
        permit.report_failed(refused("quota", 60.0))
        permit.close()
    assert harness.refuses() is None


def test_cooldowns_survive_a_restart_and_a_clock_change(tmp_path: Path) -> None:
    before, after = BreakerHarness(), BreakerHarness()
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
    refusal = after.refuses()
    assert refusal is not None and "spent" in str(refusal) and refusal.seconds_left == 300
    assert [row["models"] for row in after.breaker.describe() if isinstance(row, dict)] == [None]
    moved = BreakerHarness()
    moved.breaker._wall = lambda: 0.0  # half a century back
    moved.breaker.restore(before.breaker.saved_cooldowns())
    moved.clock.now += 86_400
    assert moved.refuses() is None


@pytest.mark.parametrize("torn", [b"", b"[", b'[{"upstream": 1}]', b"\xff", b"{}"])
def test_an_unreadable_cooldown_file_is_ignored(torn: bytes, tmp_path: Path, harness: BreakerHarness) -> None:
    (tmp_path / COOLDOWN_FILE).write_bytes(torn)
    (tmp_path / COOLDOWN_FILE).chmod(0o600)
    CooldownFile(tmp_path, harness.breaker).load()
    assert harness.breaker.describe() == []
