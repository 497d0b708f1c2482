"""`dragoman models`: list the models that can be asked for, the upstream of each, its limits, and who names it.

The running gateway is asked; without one, or with --config, this command asks the upstreams itself.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path

from dragoman.cli.detection import NOTHING_FOUND, load_or_detect
from dragoman.cli.status import admin_socket, objects_in, query_admin, render_duration
from dragoman.cli.terminal import (
    Paint,
    notice_if_slow,
    one_line,
    print_error,
    print_notice,
    replace_unencodable,
    say,
    table_lines,
)
from dragoman.gateway.config import Config
from dragoman.gateway.secrets import app_folders
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_LONGEST_WAIT = 5.0  # seconds for the lists of upstreams
# Why a model is listed, as the column FROM says it.
_SOURCES = {
    "route": "a route",
    "models": "its models",
    "target": "a target",
    "default_model": "default_model",
    "small_model": "small_model",
    "list": "its own list",
    "dialect": "known",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman models`."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the configuration (default: DRAGOMAN_CONFIG, then the usual place)"
    )
    parser.add_argument("--upstream", metavar="UPSTREAM", help="only the models of this upstream")
    parser.add_argument("--offline", action="store_true", help="do not ask the upstreams for their lists")
    parser.add_argument("--json", action="store_true", help="print JSON; unknown figures are left out")


def run(arguments: Namespace) -> int:
    """Run `dragoman models`; return the exit status."""
    replace_unencodable(sys.stdout)
    document = None if arguments.config or arguments.offline else query_admin(admin_socket(None), "/models")
    if not isinstance(document, dict) or "models" not in document:
        config, detected = load_or_detect(arguments.config, os.environ)
        if detected is not None and not arguments.json:
            sources = ", ".join(find.what for find in detected) or f"{NOTHING_FOUND}, so the simulator is used"
            print_notice(f"no upstream is configured; {sources}")
        document = asyncio.run(_ask(config, 0.0 if arguments.offline else _LONGEST_WAIT))
    names = [str(row.get("name")) for row in objects_in(document.get("upstreams"))]
    if arguments.upstream is not None:
        if arguments.upstream not in names:
            hint = f"The configuration has: {', '.join(names)}."
            return print_error(f"there is no upstream {arguments.upstream!r}. {hint}", 2)
        document = _only(document, arguments.upstream)
    if arguments.json:
        print(jsonio.encode_pretty(document).decode())
        return 0
    for line in table_lines(_rows(document), Paint(sys.stdout), right=(1, 2)):
        print(line)
    for line in _remarks(document, names):
        say(line)
    for line in _lists(document, offline=arguments.offline):
        print_notice(line)
    return 0


async def _ask(config: Config, seconds: float) -> dict[str, Json]:
    """Return the document of models, with the lists that the upstreams return within the time."""
    from dragoman.gateway.upstreams import Upstreams  # slow to load
    from dragoman.http.client.client import HttpClient

    client = HttpClient()
    upstreams = Upstreams(config, client, state=app_folders(os.environ).state)
    try:
        await upstreams.start()
        if not seconds:
            return await upstreams.catalogue.describe(None)
        with notice_if_slow(f"fetching the models of {', '.join(config.upstreams)}"):
            return await upstreams.catalogue.describe(seconds)
    finally:
        await upstreams.close_credentials()
        await client.aclose()
        await upstreams.aclose()


def _only(document: dict[str, Json], upstream: str) -> dict[str, Json]:
    """Return the document with the models, patterns and lists of one upstream."""
    rows: dict[str, Json] = {
        name: [row for row in objects_in(document.get(name)) if row.get(field) == upstream]
        for name, field in (("models", "upstream"), ("patterns", "upstream"), ("upstreams", "name"))
    }
    return {**document, **rows}


def _rows(document: dict[str, Json]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("MODEL", "WINDOW", "OUTPUT", "UPSTREAM", "FROM")]
    for row in objects_in(document.get("models")):
        name, model, upstream = (str(row.get(key)) for key in ("id", "model", "upstream"))
        target = upstream if name in (model, f"{upstream}/{model}") else f"{upstream} as {model}"
        figures = (_tokens(row.get("window")), _tokens(row.get("longest_answer")))
        rows.append((one_line(name), *figures, one_line(target), _SOURCES.get(str(row.get("source")), "")))
    for pattern in objects_in(document.get("patterns")):
        rows.append((one_line(pattern.get("pattern")), "", "", one_line(pattern.get("upstream")), "a pattern"))
    return rows


def _remarks(document: dict[str, Json], upstreams: list[str]) -> Iterator[str]:
    default = document.get("default")
    if isinstance(default, dict):
        as_model = f" as {one_line(default['model'])}" if default.get("model") else ""
        yield f"any other name  → {one_line(default.get('upstream'))}{as_model}"
    yield f"UPSTREAM/MODEL selects an upstream by name: {', '.join(upstreams)}"


def _lists(document: dict[str, Json], *, offline: bool) -> Iterator[str]:
    """Yield a line for each upstream whose own list is old or not known."""
    for row in objects_in(document.get("upstreams")):
        own = row.get("list")
        if not isinstance(own, dict) or offline:
            continue
        at, problem = own.get("fetched_at"), own.get("problem")
        if problem and isinstance(at, (int, float)):
            age = render_duration(time.time() - at)
            yield f"{row.get('name')}: its list is {age} old and could not be renewed: {one_line(problem)}"
        elif problem:
            yield f"{row.get('name')}: its own list is not known: {one_line(problem)}"


def _tokens(count: Json) -> str:
    """Return a number of tokens as `200k` or `1M`; a number that is not round is written out."""
    if not isinstance(count, int):
        return ""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if count % size == 0:
            return f"{count // size}{letter}"
    return str(count)
