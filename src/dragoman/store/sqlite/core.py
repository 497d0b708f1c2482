"""The operations of the SQLite engine as plain functions: each write is one transaction under the lock of the store.

Two threads use it: one writes, and one reads keys without waiting (in WAL mode readers and writers do not wait for each
other), with a connection of its own. Sums of the ledger, which may take a second, have a third connection.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from dragoman.errors import LocalMisuse
from dragoman.store.interface import (
    LIVE_SECONDS,
    ClientKey,
    Grant,
    GrantRequest,
    LedgerRow,
    Limit,
    LimitId,
    Repair,
    Settlement,
    SettlementResult,
    StoreUnavailable,
    UsageQuery,
    UsageRow,
)
from dragoman.store.sqlite import keys as key_table
from dragoman.store.sqlite import ledger as rows_table
from dragoman.store.sqlite import maintenance
from dragoman.store.sqlite.counters import LimitCache, WriteContext, add_used, read_minute, read_used
from dragoman.store.sqlite.files import KEYS, LEDGER, LOCK_SECONDS, Connection, StoreFolder
from dragoman.store.sqlite.schema import Migration, migrate
from dragoman.store.sqlite.shares import grant, set_shares, shares_of_limit
from dragoman.store.windows import Calendar

_BEAT_SECONDS = 1.0  # A heartbeat is written at most so often.
_SWEEP_SECONDS = 60.0  # between two looks for rows of killed processes
_LONG_DEAD_SECONDS = 60.0  # A process must be dead for this time before another one ends its rows.


def _opened(connection: Connection | None) -> Connection:
    if connection is None:
        raise LocalMisuse("the store is not open.")
    return connection


class SqliteCore:
    """A store in a folder. `clock` returns the time in seconds since the epoch.

    Days begin at midnight in `zone`; without one, in the zone of the store, which is UTC for a new store.
    """

    def __init__(
        self,
        folder: Path,
        *,
        zone: str = "",
        clock: Callable[[], float] = time.time,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        self.folder = StoreFolder(folder, lock_seconds)
        self.calendar = Calendar(zone or "UTC")
        self._has_configured_zone = bool(zone)
        self._clock = clock
        self._keys: Connection | None = None
        self._ledger: Connection | None = None
        self._key_reader: Connection | None = None
        self._ledger_reader: Connection | None = None
        self._reading = threading.Lock()  # of sums of the ledger
        self._process = 0
        self._began_at = self._beat_at = self._swept_at = 0.0

    # --- opening and closing

    def open(self) -> list[Migration]:
        """Open the store, create or migrate it; return the migrations that were applied.

        Raises StoreUnusable, StoreUnavailable.
        """
        try:
            self.folder.prepare()
            with self.folder.lock():
                self._keys = self.folder.connect(KEYS, durable=True, cache_kib=256)
                self._ledger = self.folder.connect(LEDGER, cache_kib=1024)
            now = self._clock()
            applied = migrate(self.folder, KEYS, self._keys, now) + migrate(self.folder, LEDGER, self._ledger, now)
            self._limits = LimitCache(self._keys)
            if not self._has_configured_zone:
                with self.folder.read(LEDGER):
                    self.calendar = Calendar(maintenance.stored_zone(self._ledger))
            self._key_reader = self.folder.connect(KEYS, writes=False, cache_kib=256)
            with self._write(now) as context:
                maintenance.set_time_zone(context)
            self._sweep(now)
        except BaseException:
            self._disconnect()
            raise
        return applied

    def close(self) -> None:
        """Give back the shares of this process and close the store; close it also if that fails.

        Raises StoreUnavailable.
        """
        try:
            if self._process and self._ledger is not None:
                with self._write(self._clock()) as context:
                    context.connection.execute("DELETE FROM share WHERE process = ?", (self._process,))
                    context.connection.execute("DELETE FROM process WHERE id = ?", (self._process,))
        finally:
            self._disconnect()

    def _disconnect(self) -> None:
        """Close all connections. The last one that is closed runs a checkpoint, so it must hold the lock."""
        connections = self._ledger_reader, self._key_reader, self._ledger, self._keys
        self._ledger_reader = self._key_reader = self._ledger = self._keys = None
        self._process = 0
        opened = [connection for connection in connections if connection is not None]
        with ExitStack() as stack:
            if opened:
                with suppress(StoreUnavailable):  # Then another process has the files open: there is no checkpoint.
                    stack.enter_context(self.folder.lock())
            for connection in opened:
                connection.close()
        self.folder.close()

    @contextmanager
    def _write(self, now: float) -> Iterator[WriteContext]:
        """Run a transaction on `ledger.db`, with the limits as they are now."""
        connection = _opened(self._ledger)
        with self.folder.write(connection, LEDGER):
            with self.folder.read(KEYS):
                self._limits.refresh()
            yield WriteContext(connection, self._limits, self.calendar, now, self._process)

    def _register(self, now: float) -> None:
        """Add this process to the store, once."""
        if not self._process:
            with self._write(now) as context:
                sql = "INSERT INTO process (pid, began_at, heartbeat) VALUES (?, ?, ?)"
                number = context.connection.execute(sql, (os.getpid(), now, now)).lastrowid or 0
            self._process = number
            self._began_at = self._beat_at = now

    @contextmanager
    def _live(self, now: float) -> Iterator[WriteContext]:
        """Run a transaction that also shows that this process lives.

        Another process may have deleted this one, if it was suspended.
        """
        is_due = abs(now - self._beat_at) >= _BEAT_SECONDS
        with self._write(now) as context:
            yield context
            if is_due:
                sql = """INSERT INTO process (id, pid, began_at, heartbeat) VALUES (?, ?, ?, ?)
                    ON CONFLICT (id) DO UPDATE SET heartbeat = excluded.heartbeat"""
                context.connection.execute(sql, (self._process, os.getpid(), self._began_at, now))
        if is_due:
            self._beat_at = now

    # --- keys and limits

    def find_key(self, column: str, value: str | bytes) -> ClientKey | None:
        """Return the key whose `id` or `digest` has this value."""
        with self.folder.read(KEYS):
            return key_table.find_key(_opened(self._key_reader), column, value)

    def keys(self) -> list[ClientKey]:
        """Return all keys."""
        with self.folder.read(KEYS):
            return key_table.all_keys(_opened(self._key_reader))

    def limits(self, scopes: Sequence[str]) -> list[Limit]:
        """Return the limits of these scopes."""
        with self.folder.read(KEYS):
            return [each.limit for each in key_table.limits_of(_opened(self._key_reader), scopes)]

    def changes(self) -> int:
        """Return the number of the last change."""
        with self.folder.read(KEYS):
            return key_table.last_change(_opened(self._key_reader))

    def changed_since(self, number: int) -> list[str]:
        """Return what changed after this number."""
        with self.folder.read(KEYS):
            return key_table.changed_since(_opened(self._key_reader), number)

    def put_key(self, key: ClientKey) -> None:
        """Add or replace a key."""
        connection = _opened(self._keys)
        with self.folder.write(connection, KEYS):
            key_table.put_key(connection, key, self._clock())

    def put_limits(self, scope: str, limits: Sequence[Limit]) -> None:
        """Replace the limits of a scope. Their counters are computed when they are needed."""
        connection, now = _opened(self._keys), self._clock()
        with self.folder.write(connection, KEYS):
            removed_limits = key_table.put_limits(connection, scope, limits, now)
        if removed_limits:
            # The limits are changed already. What stays behind if this fails does not count for another limit.
            with suppress(StoreUnavailable), self._write(now) as context:
                maintenance.forget_counters(context.connection, removed_limits)

    # --- shares and the ledger

    def grant(self, requests: Sequence[GrantRequest]) -> list[Grant]:
        """Enlarge shares of this process."""
        now = self._clock()
        self._register(now)
        with self._live(now) as context:
            return [grant(context, request) for request in requests]

    def settle(self, settlement: Settlement) -> SettlementResult:
        """Write rows, add what ended requests used, and set the shares of this process."""
        now = self._clock()
        self._register(now)
        self._sweep_sometimes(now)
        with self._live(now) as context:
            ended = rows_table.write_rows(context.connection, self._process, settlement.rows)
            if ended:
                sums = rows_table.sum_rows(ended, self.calendar)
                rows_table.add_to_days(context.connection, sums)
                add_used(context, sums)
            set_shares(context, settlement.shares, settlement.minute_usage)
        return SettlementResult(len(ended), self._limits.last_change)

    def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Return sums of the ledger."""
        with self._ledger_read() as connection:
            return rows_table.read_usage(connection, query, Calendar(self.calendar.zone))

    def requests(self, key: str, since: float, most: int) -> list[LedgerRow]:
        """Return rows of the ledger, newest first."""
        with self._ledger_read() as connection:
            return rows_table.read_rows(connection, key, since, most)

    @contextmanager
    def _ledger_read(self) -> Iterator[Connection]:
        with self._reading, self.folder.read(LEDGER):
            _opened(self._ledger)
            if self._ledger_reader is None:
                self._ledger_reader = self.folder.connect(LEDGER, writes=False)
            yield self._ledger_reader

    def delete_before(self, moment: float, most: int) -> int:
        """Delete at most `most` rows of requests that began before `moment`; return how many."""
        with self._write(self._clock()) as context:
            return rows_table.delete_before(context.connection, moment, most)

    def used(self, limit: LimitId) -> tuple[int, int]:
        """Return what was used of a limit, and the shares of all processes."""
        connection = _opened(self._ledger)
        with self.folder.read(LEDGER):
            self._limits.refresh()
            stored = self._limits.find(limit)
            if stored is None:
                return 0, 0
            context = WriteContext(connection, self._limits, self.calendar, self._clock(), self._process)
            shares = shares_of_limit(context, stored)
            if limit[2] == "now":
                return 0, shares
            if limit[2] == "minute":
                return read_minute(context, stored, keep=False)[0], shares
            return read_used(context, stored, keep=False), shares

    # --- maintenance

    def _sweep_sometimes(self, now: float) -> None:
        if abs(now - self._beat_at) > LIVE_SECONDS:
            # This process was suspended, and so perhaps were others, which have not shown yet that they live.
            self._swept_at = now
        elif abs(now - self._swept_at) >= _SWEEP_SECONDS:
            self._sweep(now)

    def _sweep(self, now: float, dead_seconds: float = _LONG_DEAD_SECONDS) -> int:
        """End the open rows of processes that were killed; return how many."""
        total, count = 0, maintenance.STEP
        while count == maintenance.STEP:
            with self._write(now) as context:
                count = maintenance.sweep(context, dead_seconds)
            total += count
        self._swept_at = now
        return total

    def check(self) -> list[str]:
        """Return what is wrong."""
        return maintenance.check_store(self.folder, self._clock())

    def repair(self) -> Repair:
        """End rows and release shares of killed processes, and compute wrong sums anew, a day in each transaction."""
        now = self._clock()
        lost = self._sweep(now, LIVE_SECONDS)
        with self._write(now) as context:
            released = maintenance.release_dead(context)
            days = list(maintenance.summed_days(context.connection, self.calendar))
        fixed = []
        for day in days:
            with self._write(now) as context:
                if maintenance.is_wrong(context.connection, day):
                    maintenance.sum_day(context.connection, day)
                    fixed.append(day.first_day)
        with self._write(now) as context:
            wrong = list(maintenance.wrong_counters(_opened(self._keys), context.connection, self.calendar, now))
            context.connection.executemany("DELETE FROM used WHERE scope = ? AND span = ?", wrong)
        return Repair(lost, released, tuple(fixed), len(wrong))
