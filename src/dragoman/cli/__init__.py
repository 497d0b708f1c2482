"""The command line: one command per file, imported only when it is called; `terminal` is for all of them.

Only `python -m dragoman` and the script `dragoman` call it. It may do what a user may: files, processes, the network.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module

from dragoman._version import __version__

COMMANDS = {
    "demo": "show two conversations with tools through the gateway",
    "run": "start a client, such as claude or codex, on a gateway of its own",
    "init": "find keys and logins on this machine, and write a configuration",
    "serve": "run the gateway",
    "models": "list what can be asked for, with windows and limits",
    "status": "show how the running gateway and its upstreams are",
    "cooldown": "list the upstreams in cooldown, or end their cooldowns",
    "doctor": "find what is wrong with the set-up, and say what to do",
    "explain": "show what an upstream refused, both sides and the likely rule",
    "translate": "translate a request, a reply or a stream from one dialect into another",
    "raw-tools": "list the formats of raw tool calls, try one on a text, learn one from a chat template",
    "check": "lint a request or a captured stream against its dialect's own rules",
    "agent": "ask a model that may call your Python functions",
    "auth": "log in to Kiro, list, import and refresh logins",
    "config": "check, show and find the configuration",
    "sim": "run an upstream that refuses what the real one refuses",
    "dialects": "list the dialects that are known",
}

_USAGE = """usage: dragoman COMMAND [options]

{commands}

dragoman COMMAND --help says more; dragoman --version gives the version."""


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Exit status: 0 done, 1 failed, 2 wrong usage, 3 something was lost or breaks a rule, 4 nothing is running,
    5 a key or a login is missing. `run` gives the status of the program it started; 127 if there is none.
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

    _leave_no_core()
    command = import_module(f"dragoman.cli.{name.replace('-', '_')}")
    parser = ArgumentParser(prog=f"dragoman {name}", description=COMMANDS[name].capitalize() + ".", allow_abbrev=False)
    command.add_arguments(parser)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has said why
        return int(stop.code or 0)
    try:
        return int(command.run(parsed))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has had enough
        sys.stderr.close()
        return 0
    except CommandError as stop:
        return print_error(stop, stop.status)
    except (DragomanError, OSError) as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    """Say why a command failed; the exit status tells whose mistake it is."""
    from dragoman.cli.terminal import EXIT_BAD_CONFIG, print_error
    from dragoman.errors import LocalMisuse
    from dragoman.gateway.layers import ConfigError

    if isinstance(error, ConfigError):
        return print_error("the configuration cannot be used.", EXIT_BAD_CONFIG, error)
    return print_error(error, 2 if isinstance(error, LocalMisuse) else 1)


def _leave_no_core() -> None:
    """A crash must not write what we know, keys and prompts, into a file. A program we start may allow it again."""
    with suppress(ImportError, OSError, ValueError):  # Windows has neither the file nor the module
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
