"""Format the results as tables: the measured figures, the limits with their verdicts, and the machine."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from bench.gateways import ROOT, VERSIONS
from bench.measure import Cell, Results, median, percentile, spread
from bench.scenarios import FLOOR, LIMITS, OURS, RATIO_LIMITS, SCENARIOS, RatioLimit

BEGIN, END = "<!-- figures: written by `make bench-docs` -->", "<!-- end of figures -->"
PAGE = ROOT / "docs" / "performance.md"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an aligned Markdown table."""
    rows = [head, *rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def number(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits; empty for NaN."""
    if math.isnan(value):
        return ""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def _pooled(cells: Sequence[Cell], name: str) -> list[float]:
    return [value for one in cells for value in getattr(one, name)]


def scenario_rows(results: Results) -> list[list[str]]:
    """Return the rows of all scenarios and gateways."""
    rows = []
    for scenario in SCENARIOS:
        gateways = results.cells.get(scenario.name, {})
        direct = gateways.get("direct", [])
        own = median(results.series(scenario.name, OURS))
        for at, (name, cells) in enumerate(sorted(gateways.items(), key=_place)):
            if name == "direct":
                continue
            values = results.series(scenario.name, name)
            times, base = _pooled(cells, "times"), _pooled(direct, "times")
            added = [percentile(times, share) - percentile(base, 0.5) for share in (0.5, 0.99)]
            rows.append(
                [
                    f"{scenario.name}: {scenario.title}" if at == 0 else "",
                    name,
                    number(median([cell.ms_a_request for cell in cells])),
                    number(median([cell.us_an_event for cell in cells])),
                    f"±{spread(values):.0%}",
                    "" if name == OURS else number(own / median(values), 2),
                    number(median([cell.rate for cell in cells])),
                    number(percentile(_pooled(cells, "firsts"), 0.5), 2),
                    "" if scenario.paced else " / ".join(number(value, 2) for value in added),
                ]
            )
    return rows


def _place(row: tuple[str, object]) -> tuple[bool, bool, bool, str]:
    """Return the sort key of a row: Dragoman's default first, its other configurations next, the floor last."""
    name = row[0]
    return name == FLOOR, not name.startswith(OURS), name != OURS, name


SCENARIO_HEAD = (
    "scenario",
    "gateway",
    "CPU ms/request",
    "CPU µs/event",
    "spread",
    "ours to it",
    "a second",
    "first byte ms",
    "added ms p50 / p99",
)


def ratio(results: Results, ratio_limit: RatioLimit, gateway: str = OURS) -> tuple[float, list[float]]:
    """Return the median of the ratios of all rounds, and the ratios."""
    ours, theirs = results.series(ratio_limit.figure, gateway), results.series(ratio_limit.figure, ratio_limit.peer)
    ratios = [one / other for one, other in zip(ours, theirs, strict=False) if other]
    return median(ratios), ratios


def judged(results: Results, gateways: Sequence[str], requested: Iterable[str]) -> list[list[str]]:
    """Return the rows of all limits, for each gateway of Dragoman."""
    rows, requested = [], set(requested)
    for ratio_limit in RATIO_LIMITS:
        for gateway in gateways if ratio_limit.figure in requested else ():
            value, ratios = ratio(results, ratio_limit, gateway)
            verdict = "not judged" if not ratios else "holds" if value <= ratio_limit.most else "MISSED"
            if verdict == "holds" and ratio_limit.goal is not None and value > ratio_limit.goal:
                verdict = f"holds; above the goal of {ratio_limit.goal:g}"
            reach = f"{number(min(ratios), 2)}-{number(max(ratios), 2)}" if ratios else ""
            rows.append(
                [
                    ratio_limit.figure,
                    gateway,
                    ratio_limit.peer,
                    f"≤ {ratio_limit.limit}",
                    number(value, 2),
                    reach,
                    verdict,
                ]
            )
    for limit in LIMITS:
        for gateway, values in results.figures.get(limit.figure, {}).items():
            verdict = "holds" if median(values) <= limit.most else "MISSED"
            rows.append([limit.title, gateway, "", f"≤ {limit.most:g}", number(median(values), 2), "", verdict])
    return rows


def missed(results: Results, requested: Iterable[str], absent: Collection[str]) -> list[str]:
    """Return what fails the run: limits that Dragoman's default exceeds, or that should have been judged."""
    requested = set(requested)
    lines = [f"{name}: {why}" for name, why in results.problems.items() if name.startswith(f"{OURS}, ")]
    for ratio_limit in RATIO_LIMITS:
        value, ratios = ratio(results, ratio_limit)
        if ratio_limit.figure not in requested or (not ratios and _gateway_of(ratio_limit.peer) in absent):
            continue
        if not ratios:
            lines.append(f"{ratio_limit.figure} against {ratio_limit.peer}: not measured")
        elif value > ratio_limit.most:
            lines.append(
                f"{ratio_limit.figure} against {ratio_limit.peer}: {number(value, 2)}, limit {ratio_limit.limit}"
            )
    for limit in LIMITS if "growth" in requested else ():
        value = median(results.series(limit.figure, OURS))
        if not value <= limit.most:  # also true for NaN, if nothing was measured
            lines.append(f"{limit.title}: {number(value, 2) or 'not measured'}, limit {limit.most:g}")
    return lines


def unjudged(results: Results, requested: Iterable[str], absent: Collection[str]) -> list[str]:
    """Return the figures whose limit has no peer to compare with."""
    requested = set(requested)
    without = [each for each in RATIO_LIMITS if each.figure in requested and _gateway_of(each.peer) in absent]
    return [each.figure for each in without if not ratio(results, each)[1]]


def _gateway_of(peer: str) -> str:
    return peer.partition(":")[0]


LIMIT_HEAD = ("limit", "gateway", "against", "at most", "measured", "rounds", "verdict")


def start_rows(results: Results) -> list[list[str]]:
    """Return the rows of cold start and idle memory."""
    rows = []
    for name, cold in results.figures.get("cold start", {}).items():
        cpu, idle = (median(results.series(figure, name)) for figure in ("cold start CPU", "idle memory"))
        rows.append([name, number(median(cold), 2), f"±{spread(cold):.0%}", number(cpu, 2), number(idle)])
    return rows


START_HEAD = ("gateway", "cold start to first response, s", "spread", "its CPU, s", "idle memory, MB (PSS)")


def other_rows(results: Results) -> list[list[str]]:
    """Return the rows of figures without a limit."""
    titles = {"held CPU": "% of a core, 1,000 streams held with one event a second each"}
    return [
        [title, gateway, number(median(values), 2)]
        for figure, title in titles.items()
        for gateway, values in results.figures.get(figure, {}).items()
    ]


def worker_rows(results: Results) -> list[list[str]]:
    """Return the rows that compare one worker with two."""
    rows = []
    for name, counts in results.shared.items():
        single = median([cell.rate for cell in counts.get(1, [])])
        for at, (count, cells) in enumerate(counts.items()):
            rate = median([cell.rate for cell in cells])
            rows.append(
                [
                    name if at == 0 else "",
                    str(count),
                    number(median([cell.ours for cell in cells])),
                    number(median([cell.load for cell in cells])),
                    number(rate),
                    "" if count == 1 else number(rate / single, 2),
                    f"{median([cell.busiest for cell in cells]):.0%}",
                ]
            )
    return rows


WORKER_HEAD = (
    "on one port",
    "workers",
    "CPU ms/request",
    "the load's CPU ms/request",
    "requests/s",
    "to one worker",
    "the busier one's part",
)


def machine() -> str:
    """Return the processor, the system and the versions of the software."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    names = ("uvloop", "httptools", "msgspec")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names if _has(name))
    peers = ", ".join(f"{name} {version}" for name, version in VERSIONS.items())
    return (
        f"{model}, {os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, "
        f"CPython {platform.python_version()}, {versions}. Peers: {peers}."
    )


def _has(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def text(results: Results, gateways: Sequence[str], requested: Iterable[str]) -> str:
    """Return all tables that have rows."""
    sections = (
        (SCENARIO_HEAD, scenario_rows(results)),
        (START_HEAD, start_rows(results)),
        (("figure", "gateway", "value"), other_rows(results)),
        (WORKER_HEAD, worker_rows(results)),
        (LIMIT_HEAD, judged(results, gateways, requested)),
        (("not measured", "why"), [[name, why[:200]] for name, why in results.problems.items()]),
    )
    return "\n\n".join(table(head, rows) for head, rows in sections if rows)


def saved(results: Results, place: Path) -> None:
    """Write the results as JSON; missing numbers are null."""
    place.parent.mkdir(parents=True, exist_ok=True)
    cells = {
        scenario: {gateway: [_numbers(cell) for cell in values] for gateway, values in gateways.items()}
        for scenario, gateways in results.cells.items()
    }
    shared = {
        scenario: {count: [asdict(cell) for cell in values] for count, values in counts.items()}
        for scenario, counts in results.shared.items()
    }
    document = {"machine": machine(), "cells": cells, "figures": results.figures, "workers": shared}
    place.write_text(json.dumps({**document, "problems": results.problems}, indent=1))


def _numbers(cell: Cell) -> dict[str, float | None]:
    numbers = {name: getattr(cell, name) for name in ("ms_a_request", "us_an_event", "cpu", "rate")}
    return {name: None if math.isnan(value) else value for name, value in numbers.items()}


def write_page(block: str, when: str, rounds: int, page: Path = PAGE) -> None:
    """Write the figures into the page, between its two marks."""
    old = page.read_text()
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2]
    figures = f"{BEGIN}\n\n{machine()} {when}, median of {rounds} rounds.\n\n{block}\n\n{END}"
    page.write_text(before + figures + after)
