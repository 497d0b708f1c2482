"""The protocol `Store` as tests, which every engine must pass: a test class inherits `StoreSuite` and makes clusters."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from msgspec import structs

from dragoman.errors import LocalMisuse
from dragoman.store.interface import (
    ALL,
    GrantRequest,
    LedgerRow,
    Limit,
    LimitId,
    Settlement,
    Store,
    StoreUnusable,
    UsageQuery,
)
from tests.store.cluster import NOON, Cluster, a_key, a_row, ask, moment

TOKENS: LimitId = ("key:k1", "tokens", "day")
FOREVER: LimitId = ("key:k1", "tokens", "ever")
MINUTE: LimitId = ("key:k1", "requests", "minute")
AT_ONCE: LimitId = ("key:k1", "concurrency", "now")
DAY = 86400.0


async def limit(store: Store, limit_id: LimitId, amount: int) -> None:
    await store.put_limits(limit_id[0], [Limit(*limit_id, amount)])


async def settle(store: Store, *rows: LedgerRow, **shares: Any) -> int:
    return (await store.settle(Settlement(rows, shares.get("shares", {}), shares.get("minute_usage", {})))).new_rows


class StoreSuite:
    """The tests. `cluster` is a fixture of the class that inherits it."""

    # --- keys

    async def test_a_key_is_found_by_its_digest_and_its_id(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        key = a_key(
            1,
            owner="team",
            models=("a*", "b"),
            upstreams=("x",),
            expires_at=NOON + 1,
            former_digest=b"f" * 32,
            former_until=5.0,
            revision=3,
        )
        await store.put_key(key)
        assert await other.find_key(key.digest) == await other.key("k1") == key
        assert await other.find_key(b"?" * 32) is None and await other.key("k2") is None

    async def test_keys_are_listed_in_the_order_of_their_creation(self, cluster: Cluster) -> None:
        store = await cluster.open()
        for number in (3, 1, 2):
            await store.put_key(a_key(number))
        assert [key.id for key in await store.keys()] == ["k1", "k2", "k3"]

    async def test_a_key_is_replaced_and_a_revoked_key_stays_revoked(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await store.put_key(a_key(1))
        await store.put_key(a_key(1, name="new", revoked_at=NOON))
        await store.put_key(a_key(1, name="newer", expires_at=NOON + 5))  # by a process that read it before
        found = await store.key("k1")
        assert found is not None and (found.name, found.revoked_at, found.expires_at) == ("newer", NOON, NOON + 5)

    async def test_two_keys_cannot_have_one_digest(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await store.put_key(a_key(1))
        with pytest.raises(LocalMisuse):
            await store.put_key(a_key(2, digest=a_key(1).digest))
        assert [key.id for key in await store.keys()] == ["k1"]

    async def test_every_change_has_a_larger_number_in_all_processes(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        before = await other.changes()
        await store.put_key(a_key(1))
        middle = await other.changes()
        await store.put_limits(ALL, [])
        await store.put_key(a_key(1, name="new"))
        after = await other.changes()
        assert before < middle < after
        assert await other.changed_since(before) == [ALL, "key:k1"]
        assert await other.changed_since(middle) == [ALL, "key:k1"]
        assert await other.changed_since(after) == []
        assert (await other.settle(Settlement([], {}))).changes == after

    # --- limits

    async def test_limits_are_replaced_by_scope(self, cluster: Cluster) -> None:
        store = await cluster.open()
        first, second = Limit("key:k1", "cost", "month", 5), Limit("key:k1", "tokens", "day", 6)
        everything = Limit(ALL, "concurrency", "now", 7)
        await store.put_limits("key:k1", [first])
        await store.put_limits(ALL, [everything])
        await store.put_limits("key:k1", [second])
        assert await store.limits(["key:k1"]) == [second]
        assert sorted(limit.id for limit in await store.limits([])) == sorted([second.id, everything.id])
        assert await store.limits(["owner:x", "key:none"]) == []
        assert len(await store.limits([f"key:{number}" for number in range(2000)] + [ALL])) == 1

    @pytest.mark.parametrize(
        ("scope", "limits"),
        [
            ("somewhere", []),
            (ALL, [Limit("key:k1", "cost", "day", 1)]),
            (ALL, [Limit(ALL, "concurrency", "day", 1)]),
            (ALL, [Limit(ALL, "tokens", "now", 1)]),
            (ALL, [Limit(ALL, "tokens", "day", -1)]),
            (ALL, [Limit(ALL, "tokens", "day", 1), Limit(ALL, "tokens", "day", 2)]),
        ],
    )
    async def test_limits_without_a_meaning_are_refused(
        self, cluster: Cluster, scope: str, limits: list[Limit]
    ) -> None:
        store = await cluster.open()
        await limit(store, (ALL, "tokens", "day"), 9)
        with pytest.raises(LocalMisuse):
            await store.put_limits(scope, limits)
        assert await store.limits([]) == [Limit(ALL, "tokens", "day", 9)]

    # --- exactly once

    async def test_a_row_is_read_as_it_was_written(self, cluster: Cluster) -> None:
        store = await cluster.open()
        row = a_row(
            client="::1", dialect="openai", operation="count", upstream_dialect="kiro", session="s", attempts=3,
            cache_read_tokens=7, cache_write_tokens=8, reasoning_tokens=2, estimated=True, cost=None, price_version="p",
            reserved_tokens=9, reserved_cost=10, first_byte_ms=1.5, total_ms=2.5, notes=4,
        )  # fmt: skip
        assert await settle(store, row) == 1
        assert await store.requests() == [row]

    async def test_a_row_that_is_settled_again_changes_nothing(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, TOKENS, 1000)
        row = a_row("one")
        assert [await settle(store, row), await settle(store, row), await settle(other, row)] == [1, 0, 0]
        assert await settle(other, row, a_row("two"), row) == 1
        assert await settle(store, a_row("three"), a_row("three")) == 1
        assert await store.used(TOKENS) == (30, 0)
        [usage] = await store.usage(UsageQuery())
        assert (usage.requests, usage.input_tokens, usage.cost) == (3, 18, 300)
        assert await store.check() == []

    async def test_an_open_row_ends_once_and_an_ended_row_never_opens(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await limit(store, TOKENS, 1000)
        opened = a_row("one", state="open", input_tokens=0, output_tokens=0, cost=None, reserved_tokens=99)
        ended = a_row("one", reserved_tokens=99)
        assert [await settle(store, opened), await settle(store, opened)] == [0, 0]
        assert await store.used(TOKENS) == (0, 0) and await store.usage(UsageQuery()) == []
        assert [await settle(store, ended), await settle(store, ended), await settle(store, opened)] == [1, 0, 0]
        assert await store.used(TOKENS) == (10, 0)
        assert await store.requests() == [ended]
        assert await settle(store, structs.replace(opened, request_id="two"), a_row("two")) == 1
        assert await store.used(TOKENS) == (20, 0)

    async def test_a_request_that_the_gateway_refused_counts_as_no_request(self, cluster: Cluster) -> None:
        store = await cluster.open()
        requests: LimitId = ("key:k1", "requests", "day")
        await limit(store, requests, 5)
        await settle(store, a_row(attempts=0, outcome="refused", input_tokens=0, output_tokens=0, cost=0), a_row())
        assert await store.used(requests) == (1, 0)
        [usage] = await store.usage(UsageQuery())
        assert (usage.requests, usage.failed) == (2, 1)

    async def test_values_that_cannot_be_stored_do_not_stop_the_rows_beside_them(self, cluster: Cluster) -> None:
        store = await cluster.open()
        odd = a_row("odd", model="\ud800x", input_tokens=10**30, output_tokens=-5, cost=1 << 70, total_ms=float("nan"))
        assert await settle(store, a_row("before"), odd, a_row("after")) == 3
        assert [row.request_id for row in await store.requests()] == ["odd", "before", "after"]
        found = (await store.requests())[0]
        assert (found.model, found.output_tokens, found.total_ms) == ("?x", 0, 0.0)
        assert found.input_tokens < 1 << 60 and found.cost is not None and found.cost < 1 << 60
        assert await settle(store, odd) == 0
        assert await store.check() == []

    # --- grants

    async def test_a_share_is_at_most_half_of_what_is_left_divided_by_the_processes(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, TOKENS, 1000)
        first = await ask(store, TOKENS, 10, 900)
        assert (first.amount, first.allowed, first.unreserved) == (500, 1000, 500)
        second = await ask(other, TOKENS, 10, 900)
        assert (second.amount, second.unreserved) == (125, 375)
        assert (await ask(other, TOKENS, 10, 20)).amount == 20
        assert (await ask(store, TOKENS, 355)).amount == 355
        assert (await ask(store, TOKENS, 1)).amount == 0
        assert await store.used(TOKENS) == (0, 1000)

    async def test_a_grant_is_all_that_is_needed_or_nothing(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await limit(store, TOKENS, 100)
        grant = await ask(store, TOKENS, 101)
        assert (grant.amount, grant.unreserved) == (0, 100)
        assert (grant.begins, grant.renews_at) == (moment("2026-11-16 00:00"), moment("2026-11-17 00:00"))
        assert (await ask(store, TOKENS, 100)).amount == 100

    async def test_several_limits_are_granted_at_once(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await store.put_limits("key:k1", [Limit(*TOKENS, 100), Limit(*MINUTE, 0)])
        wanted = [GrantRequest(TOKENS, 1, 1), GrantRequest(MINUTE, 1, 1), GrantRequest(("key:k1", "cost", "day"), 1, 1)]
        grants = await store.grant(wanted)
        assert [grant.amount for grant in grants] == [1, 0, 0]
        assert [grant.allowed for grant in grants] == [100, 0, -1]

    async def test_what_ended_requests_used_and_what_processes_hold_is_never_granted(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, TOKENS, 100)
        await ask(store, TOKENS, 40)
        await settle(store, a_row(), shares={TOKENS: 30})
        assert await store.used(TOKENS) == (10, 30)
        assert (await ask(other, TOKENS, 61)).amount == 0
        assert (await ask(other, TOKENS, 60)).amount == 60
        await settle(store, shares={TOKENS: 0})  # gives back what it has not used
        assert (await ask(other, TOKENS, 30)).amount == 30

    async def test_a_request_that_uses_more_than_its_share_leaves_less_to_others(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, TOKENS, 100)
        await ask(store, TOKENS, 5)
        await settle(store, a_row(), shares={TOKENS: -5})  # used 10
        assert await store.used(TOKENS) == (10, 0)
        assert (await ask(other, TOKENS, 91)).amount == 0
        assert (await ask(store, TOKENS, 95)).amount == 95  # 5 of them were used already
        assert await store.used(TOKENS) == (10, 90)

    async def test_a_limit_that_is_removed_or_made_smaller(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await limit(store, TOKENS, 100)
        await ask(store, TOKENS, 50)
        await limit(store, TOKENS, 40)
        smaller = await ask(store, TOKENS, 1)
        assert (smaller.amount, smaller.allowed, smaller.unreserved) == (0, 40, 0)
        await store.put_limits("key:k1", [])
        assert (await ask(store, TOKENS, 1)).allowed == -1
        await settle(store, a_row(), shares={TOKENS: 40})
        await limit(store, TOKENS, 100)
        assert await store.used(TOKENS) == (10, 0)

    async def test_limits_of_keys_owners_and_all_count_what_applies_to_them(self, cluster: Cluster) -> None:
        store = await cluster.open()
        key, owner, everything = (("key:k1", "cost", "day"), ("owner:team", "cost", "day"), (ALL, "cost", "day"))
        for each in (key, owner, everything):
            await store.put_limits(each[0], [Limit(each[0], "cost", "day", 10**6)])
        await settle(store, a_row(), a_row(key="k2"), a_row(key="k3", owner=""), a_row(key="k1", owner="", cost=None))
        used = [(await store.used((scope, "cost", "day")))[0] for scope in ("key:k1", "owner:team", ALL)]
        assert used == [100, 200, 300]

    # --- windows

    async def test_a_day_ends_with_its_shares_and_what_was_used(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, TOKENS, 100)
        await ask(store, TOKENS, 90)
        await settle(store, a_row(), shares={TOKENS: 80})
        cluster.clock.now += DAY
        assert await store.used(TOKENS) == (0, 0)
        late = a_row(opened_at=NOON)  # it began yesterday
        await settle(store, late, shares={TOKENS: 70})  # by a process that has not noticed the end of the day
        assert await store.used(TOKENS) == (0, 0)
        grant = await ask(other, TOKENS, 100)
        assert (grant.amount, grant.begins) == (100, moment("2026-11-17 00:00"))
        days = {row.group[0]: row.requests for row in await store.usage(UsageQuery())}
        assert days == {"2026-11-16": 2}
        assert await store.check() == []

    async def test_a_month_ends_on_its_last_day(self, cluster: Cluster) -> None:
        store = await cluster.open()
        month: LimitId = ("key:k1", "tokens", "month")
        await limit(store, month, 100)
        for begin, last, end in (
            ("2028-02-01", "2028-02-29 23:59", "2028-03-01"),
            ("2028-12-01", "2028-12-31", "2029-01-01"),
        ):
            cluster.clock.now = moment(last)
            await settle(store, a_row(opened_at=moment(begin)), a_row(opened_at=moment(last)))
            assert (await store.used(month))[0] == 20
            grant = await ask(store, month, 1)
            assert (grant.begins, grant.renews_at) == (moment(begin), moment(end))
            cluster.clock.now = moment(end)
            assert (await store.used(month))[0] == 0

    @pytest.mark.parametrize(
        ("day", "hours"),
        [("2026-03-29", 23), ("2026-10-25", 25), ("2026-06-01", 24)],
        ids=["spring", "autumn", "summer"],
    )
    async def test_days_of_a_time_zone_where_the_clock_changes(self, cluster: Cluster, day: str, hours: int) -> None:
        begin = moment(day, "Europe/Berlin")
        cluster.clock.now = begin - 1
        store = await cluster.open("Europe/Berlin")
        await limit(store, TOKENS, 100)
        await settle(store, a_row(opened_at=begin - 1))
        cluster.clock.now = begin
        await settle(store, a_row(opened_at=begin))
        assert await store.used(TOKENS) == (10, 0)
        grant = await ask(store, TOKENS, 1)
        assert (grant.begins, grant.renews_at) == (begin, begin + hours * 3600)
        cluster.clock.now = grant.renews_at - 1
        await settle(store, a_row(opened_at=cluster.clock.now))
        assert (await store.used(TOKENS))[0] == 20
        assert [row.requests for row in await store.usage(UsageQuery())] == [1, 2]
        assert await store.check() == []

    async def test_ever_has_no_end(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await limit(store, FOREVER, 25)
        await settle(store, a_row())
        cluster.clock.now += 400 * DAY
        await settle(store, a_row(opened_at=cluster.clock.now))
        assert await store.used(FOREVER) == (20, 0)
        grant = await ask(store, FOREVER, 6)
        assert (grant.amount, grant.renews_at) == (0, inf)

    async def test_a_clock_that_is_set_back_loses_nothing(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await limit(store, TOKENS, 100)
        cluster.clock.now += DAY
        await settle(store, a_row(opened_at=cluster.clock.now))
        cluster.clock.now -= DAY
        await settle(store, a_row(), a_row())
        assert (await store.used(TOKENS))[0] == 20
        cluster.clock.now += DAY
        await settle(store, a_row(opened_at=cluster.clock.now))
        assert (await store.used(TOKENS))[0] == 20
        assert await store.check() == []

    # --- minutes

    async def test_a_minute_refills_steadily(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await limit(store, MINUTE, 60)
        assert (await ask(store, MINUTE, 60)).amount == 60
        await settle(store, shares={MINUTE: 0}, minute_usage={MINUTE: 60})
        full = await ask(store, MINUTE, 1)
        assert (full.amount, full.renews_at) == (0, NOON + 1)
        granted = 0
        for _ in range(120):  # twice a second
            cluster.clock.now += 0.5
            if (await ask(store, MINUTE, 1)).amount:
                granted += 1
                await settle(store, shares={MINUTE: 0}, minute_usage={MINUTE: 1})
        assert granted == 60

    async def test_no_more_than_the_amount_of_a_minute_is_free_after_a_pause(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, MINUTE, 60)
        await ask(store, MINUTE, 20)
        cluster.clock.now += 3600
        await settle(store)
        assert (await ask(other, MINUTE, 41)).amount == 0
        assert (await ask(other, MINUTE, 40)).amount == 40

    async def test_a_share_of_a_minute_that_is_given_back_is_not_used(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, MINUTE, 60)
        await ask(store, MINUTE, 50)
        await settle(store, shares={MINUTE: 0}, minute_usage={MINUTE: 5})
        assert await store.used(MINUTE) == (5, 0)
        assert (await ask(other, MINUTE, 55)).amount == 55

    async def test_what_a_share_of_a_minute_lost_counts_as_taken_unless_named(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await limit(store, MINUTE, 60)
        await ask(store, MINUTE, 50)
        await settle(store, shares={MINUTE: 20})
        assert await store.used(MINUTE) == (30, 20)
        await settle(store, shares={MINUTE: -10})
        assert await store.used(MINUTE) == (60, 0)
        await settle(store, minute_usage={MINUTE: 15})
        assert await store.used(MINUTE) == (75, 0)
        assert (await ask(store, MINUTE, 11)).renews_at == NOON + 16
        await settle(store, minute_usage={MINUTE: -75})
        assert await store.used(MINUTE) == (0, 0)

    async def test_tokens_that_were_used_beyond_a_minute_delay_the_next(self, cluster: Cluster) -> None:
        store = await cluster.open()
        tokens: LimitId = ("key:k1", "tokens", "minute")
        await limit(store, tokens, 600)
        await ask(store, tokens, 100)
        await settle(store, shares={tokens: 0}, minute_usage={tokens: 1200})
        grant = await ask(store, tokens, 100)
        assert (grant.amount, grant.unreserved, grant.renews_at) == (0, 0, NOON + 70)
        cluster.clock.now += 69.9
        assert (await ask(store, tokens, 100)).amount == 0
        cluster.clock.now += 0.2
        assert (await ask(store, tokens, 100)).amount == 100

    async def test_the_share_of_a_minute_of_a_killed_process_becomes_used_and_refills(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, MINUTE, 60)
        await ask(store, MINUTE, 60)
        await cluster.kill(store)
        cluster.clock.now += 9
        assert (await ask(other, MINUTE, 1)).amount == 0
        cluster.clock.now += 2
        assert (await ask(other, MINUTE, 1)).amount == 0  # it counts as used from now on
        cluster.clock.now += 30
        assert (await ask(other, MINUTE, 31)).amount == 0
        assert (await ask(other, MINUTE, 30)).amount == 30

    # --- concurrency and killed processes

    async def test_concurrency_is_shared_by_processes_that_live(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, AT_ONCE, 4)
        assert (await ask(store, AT_ONCE, 3)).amount == 3
        assert (await ask(other, AT_ONCE, 2)).amount == 0
        assert (await ask(other, AT_ONCE, 1)).amount == 1
        await settle(store, shares={AT_ONCE: 1})
        assert (await ask(other, AT_ONCE, 2)).amount == 2
        await cluster.kill(other)
        cluster.clock.now += 9.9
        assert (await ask(store, AT_ONCE, 1)).amount == 0
        cluster.clock.now += 0.2
        assert (await ask(store, AT_ONCE, 3)).amount == 3
        assert await store.used(AT_ONCE) == (0, 4)

    async def test_a_process_lives_while_it_settles(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, AT_ONCE, 1)
        await ask(store, AT_ONCE, 1)
        for _ in range(5):
            cluster.clock.now += 6
            await settle(store)
        assert (await ask(other, AT_ONCE, 1)).amount == 0

    async def test_the_share_of_a_killed_process_counts_until_its_window_ends(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await store.put_limits("key:k1", [Limit(*TOKENS, 100), Limit(*FOREVER, 100)])
        await ask(store, TOKENS, 60)
        await ask(store, FOREVER, 60)
        await cluster.kill(store)
        cluster.clock.now += 3600
        assert (await ask(other, TOKENS, 41)).amount == 0
        assert (await ask(other, TOKENS, 40)).amount == 40
        cluster.clock.now += DAY
        assert (await ask(other, TOKENS, 100)).amount == 100
        assert (await ask(other, FOREVER, 41)).amount == 0
        assert (await other.repair()).released == 1
        assert (await ask(other, FOREVER, 100)).amount == 100

    async def test_a_process_that_closes_gives_its_shares_back(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await store.put_limits("key:k1", [Limit(*TOKENS, 100), Limit(*MINUTE, 100)])
        await store.grant([GrantRequest(TOKENS, 100, 100), GrantRequest(MINUTE, 100, 100)])
        await store.close()
        grants = await other.grant([GrantRequest(TOKENS, 100, 100), GrantRequest(MINUTE, 100, 100)])
        assert [grant.amount for grant in grants] == [100, 100]

    async def test_rows_of_a_killed_process_end_as_lost_with_what_they_reserved(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await store.put_limits("key:k1", [Limit(*TOKENS, 100), Limit("key:k1", "cost", "ever", 1000)])
        await ask(store, TOKENS, 50)
        blank = {"state": "open", "attempts": 0, "output_tokens": 0, "outcome": ""}
        known = a_row("known", **blank, cost=None, reserved_tokens=30, reserved_cost=70)
        unknown = a_row("unknown", **blank, cost=None, reserved_tokens=4)
        await settle(store, known, unknown, a_row("ended"), shares={TOKENS: 40})
        await cluster.kill(store)
        assert (await other.repair()).lost == 0
        cluster.clock.now += 11
        repair = await other.repair()
        assert (repair.lost, repair.released, repair.days) == (2, 1, ())
        rows = {row.request_id: row for row in await other.requests()}
        assert (rows["known"].outcome, rows["known"].tokens, rows["known"].cost, rows["known"].estimated) == (
            "lost",
            30,
            70,
            True,
        )
        assert (rows["unknown"].outcome, rows["unknown"].tokens, rows["unknown"].cost) == ("lost", 6, None)
        assert await other.used(TOKENS) == (46, 0)
        assert await other.used(("key:k1", "cost", "ever")) == (170, 0)
        assert await settle(other, a_row("known")) == 0
        assert await other.check() == []

    async def test_other_processes_end_rows_of_a_killed_one_without_a_repair(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await limit(store, TOKENS, 100)
        await ask(store, TOKENS, 50)
        await settle(store, a_row("lost", state="open", reserved_tokens=30, outcome=""), shares={TOKENS: 50})
        await settle(other)
        await cluster.kill(store)
        for _ in range(20):
            cluster.clock.now += 8
            await settle(other)
        assert [row.outcome for row in await other.requests()] == ["lost"]
        assert await other.used(TOKENS) == (30, 20)  # what it had reserved moved from its share to what was used

    # --- limits that are made later

    async def test_a_new_limit_counts_what_was_used_before(self, cluster: Cluster) -> None:
        store, other = await cluster.open(), await cluster.open()
        await settle(store, a_row(), a_row(key="k2"), a_row(opened_at=NOON - DAY), a_row(opened_at=NOON - 40 * DAY))
        spans: list[Any] = ["day", "month", "ever"]
        await other.put_limits("key:k1", [Limit("key:k1", "tokens", span, 100) for span in spans])
        assert [(await store.used(("key:k1", "tokens", span)))[0] for span in spans] == [10, 20, 30]
        await settle(store, a_row())  # before the first grant
        assert [(await other.used(("key:k1", "tokens", span)))[0] for span in spans] == [20, 30, 40]
        assert (await ask(store, TOKENS, 81)).amount == 0
        assert await store.check() == []

    async def test_a_limit_that_comes_back_counts_what_was_used_without_it(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await limit(store, TOKENS, 100)
        await settle(store, a_row())
        await store.put_limits("key:k1", [])
        await settle(store, a_row())
        await limit(store, TOKENS, 100)
        assert await store.used(TOKENS) == (20, 0)
        await store.put_limits("key:k1", [Limit(*TOKENS, 50), Limit("key:k1", "requests", "day", 5)])
        assert await store.used(("key:k1", "requests", "day")) == (2, 0)
        assert await store.check() == []

    async def test_a_new_limit_a_minute_counts_the_last_minute(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await settle(store, a_row(), a_row(opened_at=NOON - 59), a_row(opened_at=NOON - 61))
        await limit(store, MINUTE, 60)
        assert await store.used(MINUTE) == (2, 0)
        await limit(store, ("key:k1", "tokens", "minute"), 5)
        assert await store.used(("key:k1", "tokens", "minute")) == (5, 0)

    # --- usage

    async def test_usage_by_any_columns(self, cluster: Cluster) -> None:
        store = await cluster.open()
        rows = [
            a_row(estimated=True, reasoning_tokens=1, cache_read_tokens=2, cache_write_tokens=3),
            a_row(key="k2", used_model="", cost=None, outcome="failed"),
            a_row(upstream="other", opened_at=NOON - DAY),
        ]
        await settle(store, *rows)
        by_day = await store.usage(UsageQuery(by=("day", "model")))
        assert [row.group for row in by_day] == [
            ("2026-11-15", "small-1"),
            ("2026-11-16", "small"),
            ("2026-11-16", "small-1"),
        ]
        [total] = await store.usage(UsageQuery(by=()))
        expected = {
            "group": (), "requests": 3, "failed": 1, "input_tokens": 18, "output_tokens": 12, "cache_read_tokens": 2,
            "cache_write_tokens": 3, "reasoning_tokens": 1, "estimated": 1, "cost": 200, "unpriced": 1,
        }  # fmt: skip
        assert structs.asdict(total) == expected
        assert [row.group for row in await store.usage(UsageQuery(by=("key", "upstream"), key="k1"))] == [
            ("k1", "cloud"),
            ("k1", "other"),
        ]
        assert await store.usage(UsageQuery(owner="nobody")) == []
        with pytest.raises(LocalMisuse):
            await store.usage(UsageQuery(by=("day; DROP TABLE ledger",)))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("since", "until", "expected"),
        [
            (0.0, None, [2, 3, 1]),
            (NOON - DAY, None, [1, 3, 1]),  # cuts the first day
            (moment("2026-11-16"), None, [3, 1]),
            (moment("2026-11-16"), moment("2026-11-17"), [3]),
            (NOON - 1, NOON, [1]),  # within one day
            (NOON, NOON + 1, [1]),
            (NOON - DAY, NOON, [1, 2]),  # cuts two days
            (0.0, NOON + 1, [2, 3]),
            (NOON + 2, NOON + 1, []),
        ],
    )
    async def test_usage_between_moments(
        self, cluster: Cluster, since: float, until: float | None, expected: list[int]
    ) -> None:
        store = await cluster.open()
        moments = [NOON - DAY - 1, NOON - DAY, NOON - 10, NOON - 1, NOON, NOON + DAY]
        await settle(store, *[a_row(opened_at=at) for at in moments])
        assert [row.requests for row in await store.usage(UsageQuery(since=since, until=until))] == expected

    async def test_rows_are_listed_newest_first_and_only_those_of_a_key(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await settle(
            store, *[a_row(f"r{number}", opened_at=NOON + number, key=f"k{number % 2}") for number in range(6)]
        )
        assert [row.request_id for row in await store.requests(most=2)] == ["r5", "r4"]
        assert [row.request_id for row in await store.requests(key="k1", since=NOON + 2)] == ["r5", "r3"]
        assert await store.requests(key="other") == []

    async def test_old_rows_are_deleted_in_steps_and_their_sums_stay(self, cluster: Cluster) -> None:
        store = await cluster.open()
        await store.put_limits("key:k1", [Limit(*FOREVER, 1000), Limit("key:k1", "tokens", "month", 1000)])
        await settle(store, *[a_row(opened_at=NOON - DAY + number) for number in range(5)], a_row("new"))
        await settle(store, a_row("open", state="open", opened_at=NOON - 2 * DAY, outcome=""))
        assert [await store.delete_before(NOON - DAY / 2, 3) for _ in range(3)] == [3, 2, 0]
        assert [row.request_id for row in await store.requests()] == ["new", "open"]
        assert [row.requests for row in await store.usage(UsageQuery())] == [5, 1]
        assert await store.used(FOREVER) == (60, 0)
        await limit(store, ("key:k1", "cost", "month"), 1000)
        assert await store.used(("key:k1", "cost", "month")) == (600, 0)
        assert await store.check() == []
        assert (await store.repair()).days == ()
        assert [row.requests for row in await store.usage(UsageQuery())] == [5, 1]

    # --- time zones

    async def test_a_changed_time_zone_moves_the_rows_to_other_days(self, cluster: Cluster) -> None:
        store = await cluster.open("UTC")
        await limit(store, TOKENS, 1000)
        late = moment("2026-11-16 23:30")
        cluster.clock.now = late
        await settle(store, a_row(opened_at=late), a_row(opened_at=NOON))
        assert (await store.used(TOKENS))[0] == 20
        with pytest.raises(StoreUnusable, match=r"UTC.*other processes.*Europe/Berlin"):
            await cluster.open("Europe/Berlin")
        await store.close()
        moved = await cluster.open("Europe/Berlin")
        assert (await moved.used(TOKENS))[0] == 10
        assert [row.group for row in await moved.usage(UsageQuery())] == [("2026-11-16",), ("2026-11-17",)]
        assert await moved.check() == []
        other = await cluster.open()  # without a zone: that of the store
        assert [row.group for row in await other.usage(UsageQuery())] == [("2026-11-16",), ("2026-11-17",)]

    async def test_an_unknown_time_zone_is_refused(self, cluster: Cluster) -> None:
        with pytest.raises(StoreUnusable, match=r"'Mars/Olympus' is not known.*Europe/Berlin"):
            await cluster.open("Mars/Olympus")
