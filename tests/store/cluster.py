"""What the tests of a store share: a clock that stands still, processes that use one store, and rows."""

from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from dragoman.store.interface import ClientKey, Grant, GrantRequest, LedgerRow, LimitId, Store
from dragoman.store.sqlite.engine import SqliteStore

_numbers = itertools.count()


def moment(text: str, zone: str = "UTC") -> float:
    """Return the time of a text such as `2026-11-16 12:00`."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


NOON = moment("2026-11-16 12:00")


class ManualClock:
    """A clock that only the test moves."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Cluster(Protocol):
    """Processes that use one store. Each `open` is a process of its own, whatever it really is."""

    clock: ManualClock

    async def open(self, zone: str = "") -> Store:
        """Start a process."""

    async def kill(self, store: Store) -> None:
        """End a process without giving it the time to do anything."""

    async def close(self) -> None:
        """End all processes."""


class SqliteCluster:
    """Several engines on one folder. Each has its own connections and its own lock, as a process has."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, ManualClock()
        self._stores: list[SqliteStore] = []

    async def open(self, zone: str = "") -> SqliteStore:
        store = SqliteStore(self.folder, zone=zone, clock=self.clock)
        await store.open()
        self._stores.append(store)
        return store

    async def kill(self, store: Store) -> None:
        assert isinstance(store, SqliteStore)
        store.core._disconnect()

    async def close(self) -> None:
        for store in self._stores:
            if store.core.folder.is_open:
                await store.close()
            store._writer.shutdown()


def a_key(number: int = 1, **more: Any) -> ClientKey:
    """Return a key."""
    values: dict[str, Any] = {"id": f"k{number}", "digest": bytes([number]) * 32, "name": f"key {number}"}
    values["created_at"] = NOON + number
    return ClientKey(**values | more)


def a_row(request_id: str = "", **more: Any) -> LedgerRow:
    """Return the row of a request that used 10 tokens and 100 nano-dollars."""
    values: dict[str, Any] = {
        "request_id": request_id or f"r{next(_numbers):08}", "opened_at": NOON, "key": "k1", "owner": "team",
        "model": "small", "used_model": "small-1", "upstream": "cloud", "outcome": "ok", "status": 200, "attempts": 1,
        "input_tokens": 6, "output_tokens": 4, "cost": 100,
    }  # fmt: skip
    return LedgerRow(**values | more)


async def ask(store: Store, limit: LimitId, need: int, want: int = 0) -> Grant:
    """Ask for a larger share of one limit."""
    [grant] = await store.grant([GrantRequest(limit, need, want or need)])
    return grant
