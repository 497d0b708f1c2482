"""The SQLite store as the gateway uses it: asynchronous, over one thread that writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from dragoman.store.interface import (
    ClientKey,
    Grant,
    GrantRequest,
    LedgerRow,
    Limit,
    LimitId,
    Repair,
    Settlement,
    SettlementResult,
    UsageQuery,
    UsageRow,
)
from dragoman.store.sqlite.core import SqliteCore
from dragoman.store.sqlite.files import LOCK_SECONDS

T = TypeVar("T")


class SqliteStore:
    """A `Store` in a folder of this machine; any number of processes may share it.

    Writes run in one thread, in the order of the calls. Keys and limits are read at once, on the calling thread: this
    takes some microseconds and waits for no writer. Sums and rows are read in another thread.
    """

    def __init__(
        self,
        folder: Path,
        *,
        zone: str = "",
        clock: Callable[[], float] = time.time,
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        self.core = SqliteCore(folder, zone=zone, clock=clock, lock_seconds=lock_seconds)
        self._writer = ThreadPoolExecutor(1, "dragoman-store")

    async def _write(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def open(self) -> None:
        """Open the store, create or migrate it."""
        await self._write(self.core.open)

    async def close(self) -> None:
        """Give back the shares of this process and close the store."""
        try:
            await self._write(self.core.close)
        finally:
            self._writer.shutdown(wait=False)

    # --- keys and limits

    async def find_key(self, digest: bytes) -> ClientKey | None:
        """Return the key with this digest or former digest, valid or not."""
        return self.core.find_key("digest", digest) or self.core.find_key("former_digest", digest)

    async def key(self, key_id: str) -> ClientKey | None:
        """Return the key with this id."""
        return self.core.find_key("id", key_id)

    async def keys(self) -> list[ClientKey]:
        """Return all keys, in the order of their creation."""
        return self.core.keys()

    async def put_key(self, key: ClientKey) -> None:
        """Add a key, or replace the one with this id."""
        await self._write(partial(self.core.put_key, key))

    async def limits(self, scopes: Sequence[str]) -> list[Limit]:
        """Return the limits of these scopes; of all scopes for an empty sequence."""
        return self.core.limits(scopes)

    async def put_limits(self, scope: str, limits: Sequence[Limit]) -> None:
        """Replace all limits of a scope."""
        await self._write(partial(self.core.put_limits, scope, limits))

    async def changes(self) -> int:
        """Return the number of the last change of keys and limits."""
        return self.core.changes()

    async def changed_since(self, number: int) -> list[str]:
        """Return what changed after this number."""
        return self.core.changed_since(number)

    # --- shares and the ledger

    async def grant(self, requests: Sequence[GrantRequest]) -> list[Grant]:
        """Enlarge shares of this process."""
        return await self._write(partial(self.core.grant, requests))

    async def settle(self, settlement: Settlement) -> SettlementResult:
        """Write rows, add what ended requests used, and set the shares of this process."""
        return await self._write(partial(self.core.settle, settlement))

    async def usage(self, query: UsageQuery) -> list[UsageRow]:
        """Return sums of the ledger, in the order of the groups."""
        return await asyncio.to_thread(self.core.usage, query)

    async def requests(self, *, key: str = "", since: float = 0.0, most: int = 1000) -> list[LedgerRow]:
        """Return rows of the ledger, newest first."""
        return await asyncio.to_thread(self.core.requests, key, since, most)

    async def delete_before(self, moment: float, most: int = 1000) -> int:
        """Delete at most `most` rows of requests that began before `moment`; return how many."""
        return await self._write(partial(self.core.delete_before, moment, most))

    async def used(self, limit: LimitId) -> tuple[int, int]:
        """Return what ended requests used in the present window of a limit, and the shares of all processes."""
        return await self._write(partial(self.core.used, limit))

    # --- maintenance

    async def check(self) -> list[str]:
        """Return what is wrong, a sentence each."""
        return await asyncio.to_thread(self.core.check)

    async def repair(self) -> Repair:
        """End the rows of killed processes, release their shares, and compute wrong sums anew."""
        return await self._write(self.core.repair)
