"""`dragoman dialects`: list the dialects of the registry, each with its settings."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

import dragoman.dialects as registry
from dragoman.cli.layout import fold
from dragoman.cli.terminal import columns_of
from dragoman.wire import jsonio


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman dialects`."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Run `dragoman dialects`; return the exit status."""
    rows = [_row(name) for name in registry.names()]
    if arguments.json:
        print(jsonio.encode_pretty(rows).decode())
        return 0
    width, columns = max(len(str(row["name"])) for row in rows), columns_of(sys.stdout)
    for row in rows:
        settings = ", ".join(map(str, row["settings"]))
        texts = (str(row["title"]), f"settings: {settings}" if settings else "")
        for text, name in zip(texts, (row["name"], ""), strict=True):
            if text or name:
                print("\n".join(fold(text, columns, first=f"{name:<{width}}  ", rest=" " * (width + 2))))
    return 0


def _row(name: str) -> dict[str, str | list[str]]:
    dialect = registry.get(name)
    codec = dialect.codec
    return {
        "name": name,
        "family": codec.family,
        "title": dialect.title,
        "settings": list(getattr(codec, "__struct_fields__", ())),
    }
