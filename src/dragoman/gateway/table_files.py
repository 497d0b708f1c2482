"""Read the table files of raw tool calls that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from dragoman.filters.raw_tools.table import PREFIX, TableFileError, is_file_choice, load
from dragoman.gateway.layers import Leaves
from dragoman.gateway.problems import DEFAULT, ConfigError, Key, Problem, dotted
from dragoman.gateway.upstreams import Upstream


def with_table_files(upstreams: Mapping[str, Upstream], leaves: Leaves) -> dict[str, Upstream]:
    """Return the upstreams with each `raw_tools = "file:…"` bound to what the file holds now. Raises ConfigError."""
    found, problems = dict(upstreams), []
    for name, upstream in upstreams.items():
        choice = upstream.settings.raw_tools
        if choice is None or not is_file_choice(choice):
            continue
        try:
            choice = load(Path(choice.removeprefix(PREFIX)))
        except TableFileError as error:
            key: Key = ("upstreams", name, "translation", "raw_tools")
            leaf = leaves.get(key)
            problems.append(Problem(dotted(key), str(error), "", leaf.origin if leaf else DEFAULT))
        found[name] = structs.replace(upstream, settings=structs.replace(upstream.settings, raw_tools=choice))
    if problems:
        raise ConfigError(problems)
    return found
