"""`dragoman config`: is it right (`check`), what is in force and who said so (`show`), where is it (`path`)."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from msgspec import structs

from dragoman.cli.detection import secret_variables
from dragoman.cli.terminal import plain, print_error, print_notice
from dragoman.gateway.config import LoadedConfig, find_file, load_with_origins
from dragoman.gateway.layers import ConfigError, Problem
from dragoman.wire import jsonio


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "what", choices=("check", "show", "path"), help="check it, show what is in force, name the file"
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="instead of DRAGOMAN_CONFIG and the usual place")
    parser.add_argument("--origin", action="store_true", help="show: name the layer that said each value")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: Namespace) -> int:
    return _COMMANDS[arguments.what](arguments)


def _path(arguments: Namespace) -> int:
    path, _ = find_file(arguments.config, os.environ)
    if arguments.json:
        print(jsonio.encode_pretty({"path": str(path), "exists": path.is_file()}).decode())
    else:
        print(path)
        if not path.is_file():
            print_notice("it does not exist; without it the simulator answers")
    return 0


def _check(arguments: Namespace) -> int:
    try:
        loaded = load_with_origins(arguments.config, os.environ)
    except ConfigError as error:
        if arguments.json:
            _print_json(False, error.problems, ())
        else:
            print(plain(error), file=sys.stderr)
        return 3
    warnings = (*loaded.config.warnings, *_unset(loaded))
    if arguments.json:
        _print_json(True, (), warnings)
        return 0
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(_summary(loaded), file=sys.stderr)
    return 0


def _print_json(good: bool, problems: tuple[Problem, ...], warnings: tuple[str, ...]) -> None:
    told = [{"at": p.at, "message": p.message, "hint": p.hint, **structs.asdict(p.origin)} for p in problems]
    print(jsonio.encode_pretty({"ok": good, "problems": told, "warnings": list(warnings)}).decode())


def _unset(loaded: LoadedConfig) -> list[str]:
    """References to the environment that lead nowhere now. Commands and keyrings, which may ask back, are not tried."""
    return [
        f"upstreams.{name}.key: the variable {variable} is not set"
        for name, upstream in loaded.config.upstreams.items()
        for variable in secret_variables(upstream.keys)
        if not os.environ.get(variable)
    ]


def _summary(loaded: LoadedConfig) -> str:
    config = loaded.config
    names = ", ".join(config.upstreams)
    return f"{loaded.config.file or 'no file: built-in settings'}: good (upstreams: {names})"


def _show(arguments: Namespace) -> int:
    from dragoman.gateway import show

    try:
        loaded = load_with_origins(arguments.config, os.environ)
    except ConfigError as error:
        return print_error(error, 1)
    lines = show.setting_lines(loaded.leaves)
    if arguments.json:
        rows = [{"key": line.key, "value": line.value, "origin": str(line.origin)} for line in lines]
        print(jsonio.encode_pretty(rows).decode())
        return 0
    texts = [f"{line.key} = {show.toml_value(line.value)}" for line in lines]
    width = min(max(map(len, texts)), 60)
    for line, text in zip(lines, texts, strict=True):
        print(f"{text:<{width}}  # {line.origin}" if arguments.origin else text)
    return 0


_COMMANDS = {"path": _path, "check": _check, "show": _show}
