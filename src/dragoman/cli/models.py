"""`dragoman models`: list the models that can be requested, the upstream of each, and its limits where known."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from dragoman.cli.detection import NOTHING_FOUND, load_or_detect
from dragoman.cli.terminal import Paint, print_error, print_notice, replace_unencodable
from dragoman.gateway.config import Config
from dragoman.gateway.listing import ModelEntry, known_models
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman models`."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the configuration (default: DRAGOMAN_CONFIG, then the usual place)"
    )
    parser.add_argument("--upstream", metavar="NAME", help="only the models of this upstream")
    parser.add_argument("--json", action="store_true", help="print JSON; unknown figures are left out")


def run(arguments: Namespace) -> int:
    """Run `dragoman models`; return the exit status."""
    replace_unencodable(sys.stdout)
    config, detected = load_or_detect(arguments.config, os.environ)
    upstream_name = arguments.upstream
    if upstream_name is not None and upstream_name not in config.upstreams:
        return print_error(
            f"there is no upstream {upstream_name!r}. The configuration has: {', '.join(config.upstreams)}.", 2
        )
    listed = [model for model in known_models(config) if upstream_name in (None, model.upstream)]
    patterns = [
        (pattern, upstream) for pattern, upstream in config.routes.patterns() if upstream_name in (None, upstream)
    ]
    if arguments.json:
        print(jsonio.encode_pretty(_document(config, listed, patterns)).decode())
        return 0
    if detected is not None:
        sources = ", ".join(find.what for find in detected) or f"{NOTHING_FOUND}, so the simulator is used"
        print_notice(f"no upstream is configured; {sources}")
    print("\n".join(_page(config, listed, patterns, Paint(sys.stdout))))
    return 0


def _document(config: Config, listed: Sequence[ModelEntry], patterns: Iterable[tuple[str, str]]) -> Json:
    default = config.routes.default
    return {
        "models": [_row(model) for model in listed],
        "patterns": [{"pattern": pattern, "upstream": upstream} for pattern, upstream in patterns],
        "default": {"upstream": default.upstream, "model": default.model or None} if default else None,
    }


def _row(model: ModelEntry) -> dict[str, Json]:
    row: dict[str, Json] = {"id": model.name, "upstream": model.upstream, "dialect": model.dialect}
    figures = {"model": model.model, "window": model.window, "longest_answer": model.longest_answer}
    return {**row, **{name: value for name, value in figures.items() if value is not None}}


def _page(
    config: Config, listed: Sequence[ModelEntry], patterns: Sequence[tuple[str, str]], paint: Paint
) -> Iterator[str]:
    rows = [("MODEL", "WINDOW", "ANSWER", "UPSTREAM")]
    for model in listed:
        target = model.upstream if model.model == model.name else f"{model.upstream} as {model.model}"
        rows.append((model.name, _tokens(model.window), _tokens(model.longest_answer), target))
    rows += [(pattern, "", "", upstream) for pattern, upstream in patterns]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for number, (name, window, answer, target) in enumerate(rows):
        line = f"{name:<{widths[0]}}  {window:>{widths[1]}}  {answer:>{widths[2]}}  {target}"
        yield line if number else paint(line, "dim")
    default = config.routes.default
    if default is not None:
        yield f"any other name  → {default.upstream}" + (f" as {default.model}" if default.model else "")
    yield f"UPSTREAM/MODEL selects an upstream by name: {', '.join(config.upstreams)}"


def _tokens(count: int | None) -> str:
    """Return a number of tokens as `200k` or `1M`; a number that is not round is written out."""
    if count is None:
        return ""
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if count % size == 0:
            return f"{count // size}{letter}"
    return str(count)
