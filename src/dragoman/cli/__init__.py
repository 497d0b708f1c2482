"""The command line: `main` picks a command and runs it.

`dragoman NAME` is the module `dragoman.cli.NAME`, imported only when it is called. A command has two functions:
`add_arguments(parser)` declares its options, `run(arguments)` does the work and returns the exit status. Modules that
are not commands (`terminal`, `detection`, `client_setup`, …) are shared by several commands.

Only `python -m dragoman` and the script `dragoman` import this package. Commands read and write files, start
processes and use the network.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

from dragoman._version import __version__

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from types import ModuleType

# The commands in the groups of the help.
_GROUPS = {
    "First steps": {
        "demo": "show two conversations with tools through the gateway",
        "init": "find keys and logins on this machine, and write a configuration",
        "run": "start a client, such as claude or codex, with its own gateway",
        "serve": "run the gateway",
        "doctor": "find what is wrong with the set-up, and suggest what to do",
    },
    "The running gateway": {
        "status": "show the state of the running gateway and of its upstreams",
        "log": "print the last requests and events of the running gateway, and follow them",
        "top": "show running requests, rates and upstreams live in the terminal",
        "explain": "show what happened to a request: attempts, changes, and both sides of a refusal",
        "reload": "let the running gateway read its configuration again",
        "cooldown": "list the upstreams in cooldown, or end their cooldowns",
    },
    "Models, accounts and settings": {
        "models": "list the available models, with context windows and limits",
        "prices": "list what tokens cost, import a price list, or find models without a price",
        "keys": "create, list, revoke and rotate the keys of clients, and set their limits",
        "usage": "show requests, tokens and cost by day, key, model, upstream or owner",
        "auth": "log in to Kiro and out; list, import and refresh logins",
        "config": "check, show and find the configuration",
        "completion": "print a script that completes commands and options in bash, zsh or fish",
    },
    "Without a gateway": {
        "translate": "translate a request, a reply or a stream from one dialect into another",
        "check": "lint a request or a captured stream against its dialect's own rules",
        "dialects": "list the supported dialects",
        "raw-tools": "list the formats of raw tool calls, try one on a text, learn one from a chat template",
        "sim": "run a simulated upstream that refuses what the real service refuses",
        "agent": "ask a model that may call your Python functions",
    },
}
_STATUSES = (
    "Exit status: 0 done, 1 failed, 2 wrong usage, 3 content was lost, or a rule or the configuration is broken, 4 no "
    "gateway is running, 5 a key or a login is missing."
)
COMMANDS = {name: about for group in _GROUPS.values() for name, about in group.items()}


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Return the exit status (see `_STATUSES`). `dragoman run` returns the status of the program it started, or 127 if
    that program was not found.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if arguments[:1] in (["--version"], ["-V"]):
        print(f"dragoman {__version__}")
        return 0
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        print(_help())
        return 0 if arguments else 2
    name = arguments[0]
    if name not in COMMANDS:
        return _unknown(name)
    return _run(name, arguments[1:])


def make_parser(name: str) -> tuple[ArgumentParser, ModuleType]:
    """Return the parser of a command's arguments, and its module."""
    from argparse import ArgumentParser

    command = import_module(f"dragoman.cli.{name.replace('-', '_')}")
    about = f"{COMMANDS[name][:1].upper()}{COMMANDS[name][1:]}."
    parser = ArgumentParser(prog=f"dragoman {name}", description=about, allow_abbrev=False)
    command.add_arguments(parser)
    return parser, command


def _run(name: str, arguments: list[str]) -> int:
    from dragoman.cli.terminal import CommandError, print_error
    from dragoman.errors import DragomanError

    _disable_core_dumps()
    parser, command = make_parser(name)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    try:
        return int(command.run(parsed))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has closed it
        sys.stderr.close()
        return 0
    except CommandError as stop:
        return print_error(stop, stop.status)
    except (DragomanError, OSError) as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    """Print why a command failed; return 2 for wrong usage, 3 for a bad configuration, otherwise 1."""
    from dragoman.cli.terminal import EXIT_BAD_CONFIG, print_error
    from dragoman.errors import LocalMisuse
    from dragoman.gateway.layers import ConfigError

    if isinstance(error, ConfigError):
        return print_error("the configuration is not valid.", EXIT_BAD_CONFIG, error)
    return print_error(error, 2 if isinstance(error, LocalMisuse) else 1)


def _disable_core_dumps() -> None:
    """Disable core dumps, which would contain keys and prompts.

    Only the soft limit changes, so a program that we start can allow them again.
    """
    with suppress(ImportError, OSError, ValueError):  # Windows has no core dumps and no module `resource`
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _help() -> str:
    from dragoman.cli.layout import fold
    from dragoman.cli.terminal import Paint, columns_of

    columns, paint = columns_of(sys.stdout), Paint(sys.stdout)
    width = max(map(len, COMMANDS))
    lines = ["usage: dragoman COMMAND [options]"]
    for title, commands in _GROUPS.items():
        lines += ["", paint(title, "bold")]
        for name, about in commands.items():
            lines += fold(about, columns, first=f"  {name:<{width}}  ", rest=" " * (width + 4))
    ends = ("Run `dragoman COMMAND --help` for details, `dragoman --version` for the version.", _STATUSES)
    return "\n".join([*lines, "", *(line for end in ends for line in fold(end, columns, rest="  "))])


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    from dragoman.cli.terminal import print_error

    near = get_close_matches(name, COMMANDS, 1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return print_error(f"there is no command {name!r}. {hint}`dragoman --help` lists the commands.", 2)
