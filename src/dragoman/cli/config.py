"""`dragoman config`: validate the configuration (`check`), print the settings in force (`show`), find it (`path`)."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from msgspec import structs

from dragoman.cli.terminal import EXIT_BAD_CONFIG, EXIT_LOGIN_NEEDED, plain, print_error, print_notice, say
from dragoman.gateway.config import Config, LoadedConfig, find_file, load_with_origins
from dragoman.gateway.layers import ConfigError, Problem
from dragoman.gateway.secrets import SecretUnavailable, app_folders, gateway_key
from dragoman.wire import jsonio


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman config`."""
    parser.add_argument(
        "what",
        choices=("check", "show", "path"),
        help="validate it, print the settings in force, or print the file's path",
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the configuration (default: DRAGOMAN_CONFIG, then the usual place)"
    )
    parser.add_argument("--origin", action="store_true", help="show: also name the layer that each value comes from")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Run `dragoman config`; return the exit status."""
    return _COMMANDS[arguments.what](arguments)


def _path(arguments: Namespace) -> int:
    path, _ = find_file(arguments.config, os.environ)
    if arguments.json:
        print(jsonio.encode_pretty({"path": str(path), "exists": path.is_file()}).decode())
    else:
        print(path)
        if not path.is_file():
            print_notice("the file does not exist; the simulator is used until it does. `dragoman init` writes it.")
    return 0


def _check(arguments: Namespace) -> int:
    try:
        loaded = load_with_origins(arguments.config, os.environ)
        _check_key(loaded.config)
    except ConfigError as error:
        if arguments.json:
            _print_json(False, error.problems, ())
        else:
            say(plain(error), sys.stderr)
        return EXIT_BAD_CONFIG
    missing, is_usable = _missing_credentials(loaded.config)
    warnings = (*loaded.config.warnings, *missing)
    if arguments.json:
        _print_json(True, (), warnings)
        return 0 if is_usable else EXIT_LOGIN_NEEDED
    for warning in warnings:
        say(f"warning: {plain(warning)}", sys.stderr)
    say(_summary(loaded), sys.stderr)
    if not is_usable:
        return print_error("no upstream can be used: each lacks its key or login.", EXIT_LOGIN_NEEDED)
    return 0


def _check_key(config: Config) -> None:
    """Check the key of the gateway as `serve` does, without creating one. Raises ConfigError."""
    configured, file = config.server.key, app_folders(os.environ).key_file
    if configured is None and not os.path.lexists(file):
        return
    try:
        gateway_key(configured, file)
    except SecretUnavailable as error:
        hint = "set it, or delete server.key so that a key is created"
        raise ConfigError(
            [Problem("server.key", f"the key of the gateway cannot be read: {error.reason}", hint)]
        ) from None


def _print_json(is_valid: bool, problems: tuple[Problem, ...], warnings: tuple[str, ...]) -> None:
    rows = [{"at": p.at, "message": p.message, "hint": p.hint, **structs.asdict(p.origin)} for p in problems]
    print(jsonio.encode_pretty({"ok": is_valid, "problems": rows, "warnings": list(warnings)}).decode())


def _missing_credentials(config: Config) -> tuple[list[str], bool]:
    """Return the secrets and logins that are missing, and whether an upstream can be used all the same.

    Commands that print a key are run. Keyrings are not read, because that may prompt the user.
    """
    from dragoman.gateway.upstream_credentials import credential_problems, missing_credential  # slow to load

    problems: list[str] = []
    is_usable = False
    for upstream in config.upstreams.values():
        problems += credential_problems(upstream, os.environ, slow=True)
        is_usable = is_usable or not missing_credential(upstream, os.environ)
    return problems, is_usable


def _summary(loaded: LoadedConfig) -> str:
    config = loaded.config
    names = ", ".join(config.upstreams)
    return f"{loaded.config.file or 'the built-in configuration (there is no file)'} is valid (upstreams: {names})"


def _show(arguments: Namespace) -> int:
    from dragoman.gateway import show

    try:
        loaded = load_with_origins(arguments.config, os.environ)
    except ConfigError as error:
        return print_error("the configuration is not valid.", EXIT_BAD_CONFIG, error)
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
