"""The settings of accounts: `[store]`, `[accounts]` and `[prices]`. Pure.

Without `[store]` there are no accounts: one key serves everybody, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

SQLITE = "sqlite"


class StoreSettings(Struct, frozen=True, kw_only=True):
    """`[store]`: where keys, limits and the ledger are."""

    url: str = SQLITE  # `sqlite`: two files in the state folder; `sqlite:FOLDER`: in this folder
    retention_days: Annotated[int, Meta(ge=1)] = 90  # of rows of the ledger; sums by day stay
    time_zone: str = "UTC"  # in which days and months begin

    def folder(self, state: Path) -> Path:
        """Return the folder of the SQLite files."""
        _, _, named = self.url.partition(":")
        return Path(named).expanduser() if named else state / "store"


class AccountSettings(Struct, frozen=True, kw_only=True):
    """`[accounts]`: how requests are counted against limits."""

    revoked_streams: Literal["finish", "end"] = "finish"  # what happens to running requests of a revoked key
    output_estimate: Annotated[int, Meta(ge=1)] = 4096  # tokens to reserve for a reply, before there were others
    strict: bool = False  # reserve the longest possible reply, so that no limit is ever exceeded
    unpriced: Literal["refuse", "allow"] = "refuse"  # models without a price, for keys with a limit of cost


class PriceSettings(Struct, frozen=True, kw_only=True):
    """`[prices]`: the files with the user's own prices, the strongest first."""

    file: tuple[Path, ...] = ()


def check_store(settings: StoreSettings, problem: Callable[[str, str, str], None]) -> None:
    """Call `problem` with the key, the message and a hint for each value that is not valid."""
    scheme = settings.url.partition(":")[0]
    if scheme != SQLITE:
        problem("url", f"{scheme!r} is not a store that this version knows", "use sqlite, or sqlite:FOLDER")
    if not is_time_zone(settings.time_zone):
        hint = "use a name such as UTC or Europe/Berlin"
        problem("time_zone", f"{settings.time_zone!r} is not a known time zone", hint)


def is_time_zone(name: str) -> bool:
    """Return whether this is the name of a time zone."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # noqa: PLC0415  only with a store

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
