"""The tables: what was measured, which bars hold, and on what machine."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from bench.gateways import ROOT, VERSIONS
from bench.measure import Cell, Results, middle, part, spread
from bench.scenarios import BARS, LIMITS, OURS, SCENARIOS, Bar

BEGIN, END = "<!-- figures: written by `make bench-docs` -->", "<!-- end of figures -->"
PAGE = ROOT / "docs" / "performance.md"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table for people that is Markdown, too."""
    rows = [head, *rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def number(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return ""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def _pooled(cells: Sequence[Cell], name: str) -> list[float]:
    return [value for one in cells for value in getattr(one, name)]


def scenario_rows(results: Results) -> list[list[str]]:
    rows = []
    for scenario in SCENARIOS:
        lanes = results.cells.get(scenario.name, {})
        direct = lanes.get("direct", [])
        own = middle(results.series(scenario.name, OURS))
        for at, (name, cells) in enumerate(sorted(lanes.items(), key=lambda item: not item[0].startswith(OURS))):
            if name == "direct":
                continue
            values = results.series(scenario.name, name)
            times, base = _pooled(cells, "times"), _pooled(direct, "times")
            added = [part(times, share) - part(base, 0.5) for share in (0.5, 0.99)]
            rows.append(
                [
                    f"{scenario.name}: {scenario.title}" if at == 0 else "",
                    name,
                    number(middle([cell.ms_a_request for cell in cells])),
                    number(middle([cell.us_an_event for cell in cells])),
                    f"±{spread(values):.0%}",
                    "" if name == OURS else number(own / middle(values), 2),
                    number(middle([cell.rate for cell in cells])),
                    number(part(_pooled(cells, "firsts"), 0.5), 2),
                    "" if scenario.paced else " / ".join(number(value, 2) for value in added),
                ]
            )
    return rows


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


def ratio(results: Results, bar: Bar, lane: str = OURS) -> tuple[float, list[float]]:
    """The median of the rounds' ratios, and all of them."""
    ours, theirs = results.series(bar.figure, lane), results.series(bar.figure, bar.rival)
    ratios = [one / other for one, other in zip(ours, theirs, strict=False) if other]
    return middle(ratios), ratios


def judged(results: Results, lanes: Sequence[str], asked: Iterable[str]) -> tuple[list[list[str]], list[str]]:
    """Rows of all bars for Dragoman's lanes, and those that were missed by the first of them: the default."""
    rows, missed = [], []
    asked = set(asked)
    for bar in BARS:
        if bar.figure not in asked:
            continue
        for lane in lanes:
            value, ratios = ratio(results, bar, lane)
            verdict = "not judged" if not ratios else "holds" if value <= bar.most else "MISSED"
            if verdict == "holds" and bar.aim is not None and value > bar.aim:
                verdict = f"holds; above the aim of {bar.aim:g}"
            reach = f"{number(min(ratios), 2)}-{number(max(ratios), 2)}" if ratios else ""
            rows.append([bar.figure, lane, bar.rival, f"≤ {bar.limit}", number(value, 2), reach, verdict])
            if lane == OURS and verdict == "MISSED":
                missed.append(f"{bar.figure} against {bar.rival}: {number(value, 2)}, bar {bar.limit}")
    for limit in LIMITS:
        for lane, values in results.figures.get(limit.figure, {}).items():
            value = middle(values)
            verdict = "holds" if value <= limit.most else "MISSED"
            rows.append([limit.title, lane, "", f"≤ {limit.most:g}", number(value, 2), "", verdict])
            if lane == OURS and verdict == "MISSED":
                missed.append(f"{limit.title}: {number(value, 2)}, bar {limit.most:g}")
    return rows, missed


BAR_HEAD = ("bar", "gateway", "against", "bar is", "measured", "rounds", "verdict")


def start_rows(results: Results) -> list[list[str]]:
    cold, idle = results.figures.get("cold start", {}), results.figures.get("idle memory", {})
    return [
        [name, number(middle(cold[name]), 2), f"±{spread(cold[name]):.0%}", number(middle(idle[name]), 3)]
        for name in cold
    ]


START_HEAD = ("gateway", "cold start to first answer, s", "spread", "idle memory, MB (PSS)")


def other_rows(results: Results) -> list[list[str]]:
    titles = {"held CPU": "% of a core, 1,000 streams held with one event a second each"}
    return [
        [title, lane, number(middle(values), 2)]
        for figure, title in titles.items()
        for lane, values in results.figures.get(figure, {}).items()
    ]


def worker_rows(results: Results) -> list[list[str]]:
    """Figures named `workers SCENARIO: WHAT`."""
    names = [name for name in results.figures if name.startswith("workers ")]
    return [
        [name.removeprefix("workers "), lane, " / ".join(number(value, 2) for value in values)]
        for name in names
        for lane, values in results.figures[name].items()
    ]


def machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    names = ("uvloop", "httptools", "msgspec", "uvicorn")
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


def text(results: Results, lanes: Sequence[str], asked: Iterable[str]) -> str:
    parts = [table(SCENARIO_HEAD, scenario_rows(results))]
    sections = (
        (START_HEAD, start_rows(results)),
        (("figure", "gateway", "value"), other_rows(results)),
        (("workers", "gateway", "value"), worker_rows(results)),
        (BAR_HEAD, judged(results, lanes, asked)[0]),
        (("not measured", "why"), [[name, why[:200]] for name, why in results.troubles.items()]),
    )
    return "\n\n".join([*parts, *(table(head, rows) for head, rows in sections if rows)])


def saved(results: Results, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    cells = {
        scenario: {
            lane: [
                {"ms_a_request": one.ms_a_request, "us_an_event": one.us_an_event, "cpu": one.cpu, "rate": one.rate}
                for one in made
            ]
            for lane, made in lanes.items()
        }
        for scenario, lanes in results.cells.items()
    }
    whole = {"machine": machine(), "cells": cells, "figures": results.figures, "troubles": results.troubles}
    place.write_text(json.dumps(whole, indent=1))


def write_page(block: str, when: str, rounds: int, page: Path = PAGE) -> None:
    """Put the figures into the page, between its two marks."""
    old = page.read_text()
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2]
    told = f"{BEGIN}\n\n{machine()} {when}, median of {rounds} rounds.\n\n{block}\n\n{END}"
    page.write_text(before + told + after)
