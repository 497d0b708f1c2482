"""Fairness: the latency of a small client while another sends 30 MB bodies and an upstream sends 100,000 deltas a second.

It is measured alone, with that load in a second gateway process, and with it in the same gateway. The 99th percentile
of the last may be at most `MAX_RATIO` times that of the second.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.attack.good_client import exchange
from tests.load.clients import _problem_of, _request
from tests.load.gateway import (
    Gateway,
    configuration,
    start_and_read,
    start_gateway_process,
    start_process,
    start_upstreams,
)
from tests.load.payload import UNPACED_PREFIX

MAX_RATIO = 3.0
MIN_SAMPLES = 500
_LONGEST = 40.0  # seconds for one part
_GAP = 0.005  # seconds between two requests
_WARM = 20  # requests that are not counted
_CLIENT, _TARGET = "anthropic", "openai"


@dataclass
class FairnessPart:
    """The result of one part; `load` is the work that the load did meanwhile."""

    name: str
    waits: list[float] = field(default_factory=list)  # seconds for each whole short response
    load: dict[str, Any] = field(default_factory=dict)

    def at(self, share: float) -> float:
        ordered = sorted(self.waits)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


@dataclass
class Fairness:
    parts: list[FairnessPart]

    @property
    def ratio(self) -> float:
        return self.parts[2].at(0.99) / self.parts[1].at(0.99)

    def problems(self) -> list[str]:
        found = [f"{part.name}: {len(part.waits)} responses" for part in self.parts if len(part.waits) < MIN_SAMPLES]
        found += [f"{part.name}: {each}" for part in self.parts for each in part.load.get("problem", [])]
        idle = [part.name for part in self.parts[1:] if not part.load.get("bodies") or not part.load.get("deltas")]
        found += [f"{name}: there was no load" for name in idle]
        if self.ratio > MAX_RATIO:
            found.append(
                f"the 99th percentile is {self.ratio:.1f} times that beside a second gateway, more than {MAX_RATIO:g}"
            )
        return found

    def table(self) -> str:
        rows = [
            f"{'fair turns':28}{'responses':>10}{'p50, ms':>9}{'p99, ms':>9}{'most, ms':>9}{'30 MB bodies':>14}{'deltas/s':>10}"
        ]
        for part in self.parts:
            seconds, load = part.load.get("seconds", 0.0), part.load
            bodies = f"{load['bodies']:.0f}" if load else "-"
            deltas = f"{load['deltas'] / seconds:.0f}" if load else "-"
            waits = "".join(f"{part.at(share) * 1000:9.1f}" for share in (0.5, 0.99, 1.0))
            rows.append(f"{part.name:28}{len(part.waits):10}{waits}{bodies:>14}{deltas:>10}")
        return "\n".join([*rows, f"p99 with the load in the same gateway: {self.ratio:.2f} times that beside it"])


def run(folder: Path, samples: int = 600) -> Fairness:
    with ExitStack() as stack:
        ports = stack.enter_context(start_upstreams(0.0))
        flood = stack.enter_context(start_and_read("tests.load.flood", "upstream"))
        text = configuration({**ports, "flood": flood}).replace('dialect = "flood"', 'dialect = "openai"')
        text += '\n[upstreams.flood.translation]\nthink_tags = true\nraw_tools = "auto"\n'
        gateways = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            gateways.append(stack.enter_context(start_gateway_process(folder / name, text)))
        ours, other = gateways
        parts = [
            FairnessPart("alone"),
            FairnessPart("load in a second gateway"),
            FairnessPart("load in the same gateway"),
        ]
        for part, loaded in zip(parts, (None, other, ours), strict=True):
            with _loading(loaded, part):
                part.waits = asyncio.run(_ask(ours, samples))
        return Fairness(parts)


async def _ask(gateway: Gateway, samples: int) -> list[float]:
    """Return the times of short streams, one after another on one connection; each response is checked."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    waits: list[float] = []
    until = time.monotonic() + _LONGEST
    for number in range(samples + _WARM):
        if time.monotonic() > until:
            break
        name = f"{UNPACED_PREFIX}{number:014x}"
        request = _request(gateway.url, _CLIENT, _TARGET, name)
        began = time.monotonic()
        status, body, _ = await exchange(reader, writer, request)
        waits.append(time.monotonic() - began)
        assert not (problem := _problem_of(_CLIENT, name, status, body)), problem
        await asyncio.sleep(_GAP)
    writer.close()
    return waits[_WARM:]


@contextmanager
def _loading(gateway: Gateway | None, part: FairnessPart) -> Iterator[None]:
    """Run the load on this gateway, from separate processes, while the part lasts."""
    if gateway is None:
        yield
        return
    with start_process("tests.load.flood", "clients", gateway.url) as process:
        time.sleep(2.0)  # for the load to begin
        yield
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        part.load = json.loads(process.stdout.readline())
