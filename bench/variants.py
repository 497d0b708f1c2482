"""Variants of Dragoman with an optional feature turned on, measured beside the plain one: `--variants accounts,full`.

A variant has its settings, what must exist before it starts, and how much more CPU it may take than the plain gateway
in the same run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.gateways import KEY
from bench.measure import Results
from bench.scenarios import OURS


@dataclass(frozen=True)
class Variant:
    """A feature of Dragoman that costs something."""

    settings: str  # TOML; {folder} is the folder of the gateway
    max_ratios: Mapping[str, float]  # by scenario: the most that it may cost, relative to the plain gateway
    prepare: Callable[[Path], str] = field(default=lambda _: KEY)  # returns the key that clients use


def _create_key(folder: Path) -> str:
    """Create a store with a client key that has one limit of each kind, too large to be reached."""
    from dragoman.accounts import management  # noqa: PLC0415  a tree to compare with may not have it
    from dragoman.accounts.limit_text import parse_limit  # noqa: PLC0415
    from dragoman.store.sqlite.engine import SqliteStore  # noqa: PLC0415

    limits = ("requests/minute=1G", "tokens/minute=100G", "tokens/day=1000G", "cost/month=1M", "concurrency=10000")

    async def work() -> str:
        store = SqliteStore(folder / "store")
        await store.open()
        try:
            text, _ = await management.add_key(
                store, "bench", owner="bench", limits=[parse_limit("", limit) for limit in limits]
            )
            return text
        finally:
            await store.close()

    # The caller may be on a thread whose event loop runs: the benchmark starts gateways from its own loop.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work()).result()


VARIANTS = {
    "accounts": Variant(
        '[store]\nurl = "sqlite:{folder}/store"\n[accounts]\nunpriced = "allow"\n', {"A": 1.15, "C": 1.06}, _create_key
    ),
    "meta": Variant('[inspector]\nrecord = "meta"\n', {"A": 1.08}),
    "full": Variant('[inspector]\nrecord = "full"\n', {"A": 1.15}),
}


def judge(results: Results, names: list[str]) -> list[tuple[str, str, float, float]]:
    """Return each variant with a scenario, the ratio of CPU to the plain gateway, and the limit."""
    found = []
    for name in names:
        for figure, most in VARIANTS[name].max_ratios.items():
            plain, with_it = results.series(figure, OURS), results.series(figure, f"{OURS} {name}")
            ratios = [ours / theirs for ours, theirs in zip(with_it, plain, strict=False) if theirs]
            if ratios:
                found.append((name, figure, median(ratios), most))
    return found
