"""`dragoman dialects`: list the dialects of the registry, each with its settings."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import dragoman.dialects as registry
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
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}} {row['about']}")
        if row["settings"]:
            print(f"{'':<{width}} settings: {', '.join(row['settings'])}")
    return 0


def _row(name: str) -> dict[str, str | list[str]]:
    codec = registry.get(name).codec
    about = (type(codec).__doc__ or "").strip().partition("\n")[0]
    return {
        "name": name,
        "family": codec.family,
        "about": about,
        "settings": list(getattr(codec, "__struct_fields__", ())),
    }
