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

from dragoman._version import __version__

COMMANDS = {
    "demo": "show two conversations with tools through the gateway",
    "run": "start a client, such as claude or codex, with its own gateway",
    "init": "find keys and logins on this machine, and write a configuration",
    "serve": "run the gateway",
    "models": "list the available models, with context windows and limits",
    "prices": "list what tokens cost, import a price list, or find models without a price",
    "status": "show the state of the running gateway and of its upstreams",
    "log": "print the last requests and events of the running gateway, and follow them",
    "top": "show running requests, rates and upstreams live in the terminal",
    "reload": "let the running gateway read its configuration again",
    "keys": "create, list, revoke and rotate the keys of clients, and set their limits",
    "usage": "show requests, tokens and cost by day, key, model, upstream or owner",
    "cooldown": "list the upstreams in cooldown, or end their cooldowns",
    "doctor": "find what is wrong with the set-up, and suggest what to do",
    "explain": "show what happened to a request: attempts, changes, and both sides of a refusal",
    "translate": "translate a request, a reply or a stream from one dialect into another",
    "raw-tools": "list the formats of raw tool calls, try one on a text, learn one from a chat template",
    "check": "lint a request or a captured stream against its dialect's own rules",
    "agent": "ask a model that may call your Python functions",
    "auth": "log in to Kiro, list, import and refresh logins",
    "config": "check, show and find the configuration",
    "sim": "run a simulated upstream that refuses what the real service refuses",
    "dialects": "list the supported dialects",
}

_USAGE = """usage: dragoman COMMAND [options]

{commands}

Run `dragoman COMMAND --help` for details, `dragoman --version` for the version."""


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Return the exit status: 0 done, 1 failed, 2 wrong usage, 3 content was lost or a rule is broken, 4 no gateway is
    running, 5 a key or a login is missing. `dragoman run` returns the status of the program it started, or 127 if
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


def _run(name: str, arguments: list[str]) -> int:
    from argparse import ArgumentParser

    from dragoman.cli.terminal import CommandError, print_error
    from dragoman.errors import DragomanError

    _disable_core_dumps()
    command = import_module(f"dragoman.cli.{name.replace('-', '_')}")
    parser = ArgumentParser(prog=f"dragoman {name}", description=COMMANDS[name].capitalize() + ".", allow_abbrev=False)
    command.add_arguments(parser)
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
    width = max(map(len, COMMANDS))
    return _USAGE.format(commands="\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()))


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    print(f"dragoman: there is no command {name!r}.{hint}\n\n{_help()}", file=sys.stderr)
    return 2
