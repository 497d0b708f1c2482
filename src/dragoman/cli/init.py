"""`dragoman init`: find keys and logins on this machine and write a configuration.

The configuration refers to secrets (`env:NAME`); it does not contain them.
"""

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
from dragoman.cli.status import fetch_status
from dragoman.cli.terminal import print_error, print_notice
from dragoman.gateway.config import build_config, find_file
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.presets import PRESETS
from dragoman.gateway.secrets import app_folders, write_private

_HEAD = """# Dragoman's configuration, written by `dragoman init`. `dragoman config check` validates it,
# `dragoman config show --origin` prints the settings in force; `dragoman reload` lets a running
# gateway read it again.
# Refer to secrets, do not write them here: env:NAME, file:PATH, keyring:SERVICE/NAME, cmd:COMMAND.

"""
_TAIL = """
# More settings, each with its default or an example:
#
# [server]
# port = 8787
#
# [[routes]]                      # send a client's model name to an upstream under another name
# match = "gpt-*"
# upstream = "{upstream}"
# model = "{model}"
# fallbacks = []                  # UPSTREAM/MODEL, used when the first upstream fails
#
# [models."{model}"]    # limits that are reported to clients, for a model whose limits are not known
# window = 200000
# longest_answer = 32000
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman init`."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="the file to write (default: the usual place)")
    parser.add_argument("--yes", action="store_true", help="write without a question")
    parser.add_argument(
        "--print", dest="only_print", action="store_true", help="print the configuration and write no file"
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")


def run(arguments: Namespace) -> int:
    """Run `dragoman init`; return the exit status."""
    path, _ = find_file(arguments.config, os.environ)
    if not arguments.only_print and not arguments.force and (path.exists() or path.is_symlink()):  # or a broken link
        return print_error(
            f"{path} exists and was not changed. Add --force to replace it, or --print to see the new one.", 1
        )
    detected = detect_upstreams(os.environ)
    text = render_config(detected)
    try:
        build_config(text, path, os.environ, {})  # never write a configuration that cannot be read
    except ConfigError as error:
        return print_error(
            "the keys and logins that were found do not make a valid configuration; nothing was written.", 1, error
        )
    for find in detected:
        print_notice(f"found: {find.what}  → {find.preset}")
    if not detected:
        print_notice("\n  ".join([f"{NOTHING_FOUND}.", *setup_hints()[:2]]))
    if arguments.only_print:
        print(text, end="")
        return 0
    if not arguments.yes and not _confirm(path):
        return print_error("not confirmed, so nothing was written. Add --yes to write without a question.", 1)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text.encode(), replace=True)
    except OSError as error:
        return print_error(f"{path} cannot be written: {error.strerror or error}", 1)
    print_notice(f"wrote {path}")
    if arguments.config is None and fetch_status(app_folders(os.environ).admin_socket) is not None:
        print_notice("a gateway is running: `dragoman reload` makes it read the file.")
    _print_next_command(detected, arguments.config)
    return 0


def render_config(detected: Sequence[DetectedUpstream]) -> str:
    """Return the text of the configuration file for these upstreams."""
    if not detected:
        return _HEAD + _commented_presets()
    first = detected[0].preset
    return _HEAD + render_toml(detected) + _TAIL.format(upstream=first, model=DEFAULT_MODELS.get(first, "MODEL"))


def _commented_presets() -> str:
    """Return every preset, commented out: the simulator is used until the user chooses one."""
    lines = ["# No key or login was found, so the simulator is used. Remove the # from the services you use.", ""]
    for name in PRESETS:
        variable = key_variable(name)
        lines += [f"# [upstreams.{name}]", f'# preset = "{name}"']
        lines += [f'# key = "env:{variable}"'] if variable else []
        lines += ["#"]
    return "\n".join(lines[:-1]) + "\n"


def _confirm(path: Path) -> bool:
    if not sys.stdin.isatty():
        return True  # no user can answer, and only --force replaces a file
    print(f"Write {path}? [Y/n] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _print_next_command(detected: Sequence[DetectedUpstream], named: Path | None) -> None:
    """Print the next command to run, on standard output."""
    print_notice("next:")
    options = [] if detected else ["--upstream", "simulator"]  # until an upstream is configured
    options += ["--config", str(named)] if named else []
    print(shlex.join(["dragoman", "run", *options, "claude"]))
