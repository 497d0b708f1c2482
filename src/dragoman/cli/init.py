"""`dragoman init`: finds keys and logins on this machine and writes a configuration. Secrets stay where they are."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from dragoman.cli.detection import (
    DEFAULT_MODELS,
    NOTHING_FOUND,
    DetectedUpstream,
    detect_upstreams,
    key_variable,
    render_toml,
    setup_hints,
)
from dragoman.cli.terminal import print_error, print_notice
from dragoman.gateway.config import build_config, find_file
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.presets import PRESETS
from dragoman.gateway.secrets import write_private

_HEAD = """# Dragoman's configuration, written by `dragoman init`. `dragoman config check` tells what is wrong with it,
# `dragoman config show --origin` what is in force; a running gateway reads it anew on SIGHUP.
# Secrets are named, not written: env:NAME, file:PATH, keyring:SERVICE/NAME, cmd:COMMAND.

"""
_TAIL = """
# More settings, each with its default or an example:
#
# [server]
# port = 8787
#
# [[routes]]                      # one name for a client, another for an upstream
# match = "gpt-*"
# upstream = "{upstream}"
# model = "{model}"
# fallbacks = []                  # UPSTREAM/MODEL, asked when the first cannot answer
#
# [models."{model}"]    # figures that clients are told, where nobody knows them
# window = 200000
# longest_answer = 32000
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="what to write, instead of the usual place")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--print", dest="only_print", action="store_true", help="print it, and write nothing")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")


def run(arguments: Namespace) -> int:
    detected = detect_upstreams(os.environ)
    text = render_config(detected)
    path, _ = find_file(arguments.config, os.environ)
    try:
        build_config(text, path, os.environ, {})  # what we write must be right
    except ConfigError as error:
        return print_error("what was found makes no configuration; nothing was written.", 1, error)
    for find in detected:
        print_notice(f"found: {find.what}  → {find.preset}")
    if not detected:
        print_notice("\n  ".join([f"{NOTHING_FOUND}.", *setup_hints()[:2]]))
    if arguments.only_print:
        print(text, end="")
        return 0
    if (path.exists() or path.is_symlink()) and not arguments.force:  # a link to nowhere is somebody's too
        return print_error(f"{path} is there already and stays as it is. --force replaces it, --print only shows.", 1)
    if not arguments.yes and not _agreed(path):
        return print_error("nothing was written.", 1)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text.encode(), replace=True)
    except OSError as error:
        return print_error(f"{path} cannot be written: {error.strerror or error}", 1)
    print_notice(f"wrote {path}")
    _next(detected, arguments.config)
    return 0


def render_config(detected: Sequence[DetectedUpstream]) -> str:
    """The whole file."""
    if not detected:
        return _HEAD + _example()
    first = detected[0].preset
    return _HEAD + render_toml(detected) + _TAIL.format(upstream=first, model=DEFAULT_MODELS.get(first, "MODEL"))


def _example() -> str:
    """Every preset, commented out: the simulator answers until one is chosen."""
    lines = ["# Nothing was found on this machine, so the simulator answers. Take the # away from what you have.", ""]
    for name in PRESETS:
        variable = key_variable(name)
        lines += [f"# [upstreams.{name}]", f'# preset = "{name}"']
        lines += [f'# key = "env:{variable}"'] if variable else []
        lines += ["#"]
    return "\n".join(lines[:-1]) + "\n"


def _agreed(path: Path) -> bool:
    if not sys.stdin.isatty():
        return True  # nobody is there to ask, and nothing is replaced unless they said so
    print(f"Write {path}? [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _next(detected: Sequence[DetectedUpstream], named: Path | None) -> None:
    """The next line to type, on standard output."""
    print_notice("next:")
    options = [] if detected else ["--upstream", "simulator"]  # until there is something else
    options += ["--config", str(named)] if named else []
    print(shlex.join(["dragoman", "run", *options, "claude"]))
