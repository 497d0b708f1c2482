"""Cooldowns that several processes share: events in any order, lost or repeated, lead to the same state."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import DragomanError, ErrorKind, Fault, Reset, UpstreamFault
from dragoman.gateway.breaker import MAX_SCOPES, BreakerSettings, CircuitBreaker, Cooldown, CooldownActive, Permit
from dragoman.gateway.shared_cooldowns import CooldownEvent, SharedCooldowns
from dragoman.wire import jsonio

read_events = jsonio.typed_decoder(list[CooldownEvent])
PROBE = BreakerSettings().first_probe


class Process:
    """The breaker of one process; its events wait in `unsent`. All processes read one clock, `now`."""

    now = 1000.0

    def __init__(self) -> None:
        self.breaker = CircuitBreaker(clock=lambda: Process.now, wall=lambda: Process.now + 1_700_000_000)
        self.unsent: list[CooldownEvent] = []
        self.log: list[str] = []
        self.saves = 0
        self.breaker.on_begin = lambda cooldown: self.log.append(f"began {cooldown.scope.credential}")
        self.breaker.on_end = self._ended
        self.breaker.changed = self._changed
        self.shared = SharedCooldowns(self.breaker, self.unsent.append)

    def _ended(self, cooldown: Cooldown, why: str) -> None:
        self.log.append(f"ended {cooldown.scope.credential}: {why}")

    def _changed(self) -> None:
        self.saves += 1

    def enter(self, credential: str = "key", upstream: str = "up") -> Permit:
        Process.now += 1
        return self.breaker.enter(upstream, credential, "m")

    def fail(self, error: DragomanError, times: int = 1, credential: str = "key", upstream: str = "up") -> None:
        for _ in range(times):
            permit = self.enter(credential, upstream)
            Process.now += 1
            permit.report_failed(error)
            permit.close()

    def succeed(self, permit: Permit) -> None:
        permit.report_accepted()
        permit.report_succeeded()
        permit.close()

    @property
    def in_cooldown(self) -> set[str]:
        """The credentials that get no requests."""
        return {scope.credential for scope in self.breaker.cooldowns}

    def is_open(self, credential: str = "key") -> bool:
        return self.breaker.seconds_until_ready("up", credential, "m") == 0

    def take(self) -> list[CooldownEvent]:
        """Return the events since the last call, as another process reads them."""
        taken = read_events(jsonio.encode(self.unsent))
        self.unsent.clear()
        return taken


def refused(kind: ErrorKind = "quota", seconds: float | None = 60.0) -> UpstreamFault:
    return UpstreamFault("no", fault=Fault(kind, "spent", 429, retry_after=seconds))


@pytest.fixture
def pair() -> tuple[Process, Process]:
    Process.now = 1000.0
    return Process(), Process()


@pytest.mark.parametrize(
    ("kind", "seconds"), [("quota", 60.0), ("rate_limit", 9.0), ("auth", None), ("permission", None)]
)
def test_a_cooldown_of_one_process_applies_in_the_other(
    pair: tuple[Process, Process], kind: ErrorKind, seconds: float | None
) -> None:
    one, other = pair
    one.fail(refused(kind, seconds))
    other.shared.apply(one.take())
    with pytest.raises(CooldownActive, match="spent") as active:
        other.enter()
    with pytest.raises(CooldownActive) as own:
        one.enter()
    assert (active.value.fault.kind, active.value.is_hinted) == (own.value.fault.kind, own.value.is_hinted)
    assert other.breaker.describe() == one.breaker.describe()
    assert other.unsent == []  # what another process reports is not reported again


def test_an_open_breaker_applies_in_the_other_and_a_success_of_either_closes_both(
    pair: tuple[Process, Process],
) -> None:
    one, other = pair
    one.fail(Reset("broken"), 5)
    other.shared.apply(one.take())
    assert not other.is_open()
    Process.now += PROBE
    probe = other.enter()
    one.shared.apply(other.take())
    assert not one.is_open()  # one probe for both
    other.succeed(probe)
    one.shared.apply(other.take())
    assert one.is_open() and other.is_open()
    one.fail(Reset("broken"))  # the failures before it are forgotten
    assert one.is_open()


def test_a_probe_that_fails_makes_all_wait_longer(pair: tuple[Process, Process]) -> None:
    one, other = pair
    one.fail(Reset("broken"), 5)
    other.shared.apply(one.take())
    Process.now += PROBE
    one.fail(Reset("broken"))
    other.shared.apply(one.take())
    assert other.breaker.seconds_until_ready("up", "key", "m") == 2 * PROBE


def test_a_probe_whose_process_ends_delays_the_others_for_a_few_seconds_only(pair: tuple[Process, Process]) -> None:
    one, other = pair
    one.fail(Reset("broken"), 5)
    other.shared.apply(one.take())
    Process.now += PROBE
    one.enter()
    other.shared.apply(one.take())
    assert not other.is_open()
    Process.now += PROBE
    assert other.is_open()


def test_an_older_event_changes_nothing(pair: tuple[Process, Process]) -> None:
    one, other = pair
    one.fail(refused())
    began = one.take()
    Process.now += 1
    one.breaker.clear("up")
    one.fail(refused("rate_limit", 30.0))
    later = one.take()
    other.shared.apply(later)
    before = other.breaker.describe()
    other.shared.apply(began)
    other.shared.apply(later)
    assert other.breaker.describe() == before and len(before) == 1


@pytest.mark.parametrize("upstream", ["", "up"])
def test_a_clear_ends_cooldowns_that_began_before_it_also_if_they_are_reported_later(
    pair: tuple[Process, Process], upstream: str
) -> None:
    one, other = pair
    one.fail(refused(), credential="early")
    late = one.take()
    other.fail(refused(), credential="mine")
    other.fail(refused(), credential="elsewhere", upstream="two")
    Process.now += 1
    one.breaker.clear(upstream)
    Process.now += 1
    other.fail(refused(), credential="after")
    other.shared.apply(one.take())
    other.shared.apply(late)
    assert other.in_cooldown == {"after"} | ({"elsewhere"} if upstream else set())


def test_a_success_does_not_end_a_cooldown_that_began_after_its_request(pair: tuple[Process, Process]) -> None:
    """The request was sent before the upstream asked the other process for a pause."""
    one, other = pair
    one.fail(Reset("broken"), 5)
    one.take()
    Process.now += PROBE
    running = one.enter()
    Process.now += 1
    other.fail(refused("rate_limit", 20.0))
    one.succeed(running)
    other.shared.apply(one.take())
    assert not other.is_open()
    one.shared.apply(other.take())
    assert not one.is_open()


def test_only_the_process_where_it_happens_logs_it(pair: tuple[Process, Process]) -> None:
    one, other = pair
    one.fail(refused("rate_limit", 30.0))
    other.shared.apply(one.take())
    Process.now += 31
    one.breaker.end_expired()
    other.breaker.end_expired()
    assert one.log == ["began key", "ended key: its time is over"] and other.log == []
    one.fail(Reset("broken"), 5)
    other.shared.apply(one.take())
    Process.now += PROBE
    other.succeed(other.enter())
    one.shared.apply(other.take())
    assert one.log[2:] == ["began key"] and other.log == ["ended key: a request succeeded"]


def test_what_another_process_reports_is_saved_on_disk_too(pair: tuple[Process, Process]) -> None:
    """The process where it began may be gone when the cooldown ends, and its file must not stay."""
    one, other = pair
    one.fail(refused())
    other.shared.apply(one.take())
    assert other.saves == 1
    one.breaker.clear()
    other.shared.apply(one.take())
    assert other.saves == 2 and not other.breaker.saved_cooldowns()


def test_a_process_that_starts_learns_all_from_another(pair: tuple[Process, Process]) -> None:
    one, other = pair
    one.fail(refused(seconds=1000.0), credential="spent")
    one.fail(refused(seconds=1000.0), credential="ended")
    saved = one.breaker.saved_cooldowns()
    Process.now += BreakerSettings().cooling_probe
    one.succeed(one.enter("ended"))
    one.fail(Reset("broken"), 5, credential="broken")
    one.fail(refused("rate_limit", 5.0), credential="short")
    Process.now += 6
    other.breaker.restore(saved)  # the file was not written again yet
    assert other.in_cooldown == {"spent", "ended"}
    other.shared.apply(read_events(jsonio.encode(one.shared.events())))
    assert other.in_cooldown == {"spent", "broken"}
    third = Process()
    third.breaker.restore(saved)
    assert {event.credential for event in third.shared.events()} == {"spent", "ended"}  # from disk, without an event


def test_the_number_of_events_is_bounded(pair: tuple[Process, Process]) -> None:
    one, _ = pair
    for number in range(3 * MAX_SCOPES):
        one.fail(refused(), credential=f"key {number}")
    assert len(one.shared.events()) <= 2 * MAX_SCOPES
    assert len(jsonio.encode(one.shared.events())) < 1024 * 1024


STEPS = ["refused", "broken", "probe", "success", "clear", "wait", "hear"]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(STEPS), st.sampled_from("ab")), max_size=30), st.randoms())
def test_processes_agree_when_all_events_have_arrived_in_any_order(
    steps: Sequence[tuple[int, str, str]], random: object
) -> None:
    Process.now = 1000.0
    processes = [Process() for _ in range(3)]
    events: list[CooldownEvent] = []
    for number, step, credential in steps:
        process = processes[number]
        Process.now += 1
        if step == "clear":
            process.breaker.clear("up")
        elif step == "wait":
            Process.now += PROBE
        elif step == "hear":
            process.shared.apply(events)
        else:
            try:
                permit = process.enter(credential)
            except CooldownActive:
                continue
            if step == "success":
                process.succeed(permit)
            elif step != "probe":
                permit.report_failed(refused() if step == "refused" else Reset("broken"))
            permit.close()
        events += process.take()
    for process in processes:
        mixed = events * 2
        random.shuffle(mixed)  # type: ignore[attr-defined]
        process.shared.apply(mixed)
    states = [json.loads(jsonio.encode(_shown(process))) for process in processes]
    for one, other in itertools.pairwise(states):
        assert one == other


def _shown(process: Process) -> list[jsonio.Json]:
    """Return the cooldowns without the time of the next try: a process that probes does not wait for itself."""
    process.breaker.end_expired()
    rows = [{**row, "next_try": None} for row in process.breaker.describe() if isinstance(row, dict)]
    return [*sorted(rows, key=lambda row: f"{row['credential']} {row['models']}")]
