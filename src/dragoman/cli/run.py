"""`dragoman run CLIENT`: a client on a gateway. Variables and arguments go to the child only; no file is touched."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from msgspec import Struct

import dragoman.dialects as registry
from dragoman.cli.client_setup import (
    KEY_PLACEHOLDER,
    ChildSetup,
    ClientSetup,
    assignments,
    fill_setup,
    find_setup,
    shell_key,
)
from dragoman.cli.detection import (
    NOTHING_FOUND,
    DetectedUpstream,
    load_or_detect,
    missing_credential,
    setup_hints,
    upstream_variables,
)
from dragoman.cli.doctor_checks import check_saved_settings
from dragoman.cli.status import fetch_status
from dragoman.cli.terminal import EXIT_LOGIN_NEEDED, EXIT_NOT_RUNNING, CommandError, port_number, print_notice
from dragoman.errors import UnknownModel
from dragoman.gateway.config import Config, load_config
from dragoman.gateway.listing import known_models
from dragoman.gateway.secrets import KEY_PREFIX, app_folders, gateway_key

_NO_PROGRAM, _CANNOT_RUN = 127, 126
_DRAIN = 1.0  # seconds that answers have when the client is gone: nobody reads them
_NEAR = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = "dragoman run [options] CLIENT [--] [arguments of the client]"
    parser.add_argument(
        "client", metavar="CLIENT", help="claude, codex, opencode, gemini, aider, goose, qwen, or any command"
    )
    parser.add_argument("arguments", nargs=REMAINDER, metavar="ARGUMENTS", help="for the client, as they are")
    parser.add_argument(
        "--model", help="the model to request (default: the client's own choice, if an upstream serves it)"
    )
    parser.add_argument(
        "--upstream", metavar="NAME", help="who answers everything: one of the configuration, or a preset"
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="instead of DRAGOMAN_CONFIG and the usual place")
    parser.add_argument("--port", type=port_number, help="of the private gateway (a free one)")
    parser.add_argument("--private", action="store_true", help="a gateway of its own, even if one is running")
    parser.add_argument("--log", metavar="FILE", type=Path, help="where the private gateway writes its log (nowhere)")
    parser.add_argument("--keep", metavar="NAME", action="append", default=[], help="a variable the child shall keep")
    parser.add_argument("--print-env", action="store_true", help="print what a shell needs for the running gateway")
    parser.add_argument("--quiet", action="store_true", help="say nothing that is no error")


class GatewayAccess(Struct, frozen=True):
    """A gateway that a client can use. `words` is what a shell makes its key of; empty if it cannot."""

    url: str
    key: str
    config: Config
    description: str
    shell_key_text: str = ""


def run(arguments: Namespace) -> int:
    setup = find_setup(arguments.client, os.environ)
    if setup.dialect and setup.dialect not in registry.names():
        raise CommandError(f"{setup.title} speaks {setup.dialect}, which this version does not serve.", 1)
    if arguments.print_env:
        return _print_env(arguments, setup)
    program = shutil.which(arguments.client)
    if program is None and os.sep in arguments.client and Path(arguments.client).exists():
        raise CommandError(f"{arguments.client} is no program that may be run.", _CANNOT_RUN)
    if program is None:
        hint = f" To install it: {setup.install}" if setup.install else ""
        raise CommandError(f"there is no program {arguments.client!r} here.{hint}", _NO_PROGRAM)
    with _reached(arguments) as access:
        made = _prepared(setup, access, arguments.model, access.key)
        if not arguments.quiet:
            _tell(setup, access)
        shell_key_text = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
        environ = child_environment(os.environ, made, upstream_variables(access.config) - set(arguments.keep))
        try:
            return run_child([program, *made.args, *shell_key_text], environ)
        except OSError as error:
            raise CommandError(f"{program}: {error.strerror or error}", _CANNOT_RUN) from None


def _tell(setup: ClientSetup, access: GatewayAccess) -> None:
    print_notice(access.description)
    for check in check_saved_settings(setup.name, app_folders(os.environ).home, access.config):
        print_notice(f"{check.what}; {check.remedy}")


# --- the gateway


@contextmanager
def _reached(arguments: Namespace) -> Iterator[GatewayAccess]:
    """The running gateway if there is one and nothing asks for another; else a private one, while this lasts."""
    wants_own = arguments.private or arguments.config or arguments.upstream or arguments.port or arguments.log
    running = None if wants_own else _running()
    if running is not None:
        yield running
        return
    config, detected = load_or_detect(
        arguments.config,
        os.environ,
        flags={"server.host": "127.0.0.1", "server.port": arguments.port or 0, "server.drain": _DRAIN},
        upstream=arguments.upstream,
    )
    _needs_somebody(config, detected)
    with _private(config, arguments.log) as (url, key):
        yield GatewayAccess(url, key, config, _story(config, detected))


def _needs_somebody(config: Config, detected: Sequence[DetectedUpstream] | None) -> None:
    """Raise Stop if nobody could answer: better told here than by a client that tries again and again."""
    if detected is not None and not detected:
        raise CommandError(
            "\n  ".join([f"{NOTHING_FOUND}, and none is configured.", *setup_hints()]), EXIT_LOGIN_NEEDED
        )
    lacking = [missing_credential(upstream, os.environ) for upstream in config.upstreams.values()]
    if all(lacking):
        raise CommandError("no upstream can be used: " + "; ".join(lacking), EXIT_LOGIN_NEEDED)


def _story(config: Config, detected: Sequence[DetectedUpstream] | None) -> str:
    names = ", ".join(config.upstreams)
    if detected is None:
        return f"a private gateway, configured by {config.file}: {names}"
    return f"a private gateway to {names} ({'; '.join(find.what for find in detected)})"


@contextmanager
def _private(config: Config, log: Path | None) -> Iterator[tuple[str, str]]:
    """A gateway in a thread of ours; its key was never written anywhere, and its log is not on the client's screen."""
    from dragoman.gateway.access_log import AccessLog
    from dragoman.gateway.redaction import Redactor
    from dragoman.gateway.serve import route_logs, running_gateway

    key = f"{KEY_PREFIX}{secrets.token_urlsafe(32)}"
    descriptor = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
        journal = AccessLog(Redactor(), stream=stream, form=config.log.format, level=config.log.level)
        with running_gateway(config, key=key, journal=journal) as running:
            route_logs(running.gateway)
            try:
                yield running.url, key
            finally:
                running.stop(hurried=True)


def _running() -> GatewayAccess | None:
    """The gateway that this user runs."""
    status = fetch_status(load_config(None, os.environ).server.admin_socket)
    if status is None or status.get("state") != "ready" or not isinstance(status.get("url"), str):
        return None
    file = status.get("config")
    config = load_config(Path(file), os.environ) if isinstance(file, str) else load_config(None, os.environ)
    key = gateway_key(config.server.key, app_folders(os.environ).key_file).reveal()
    description = (
        f"the gateway at {status['url']} (pid {status.get('pid')}; {file or 'no configuration: the simulator answers'})"
    )
    return GatewayAccess(str(status["url"]), key, config, description, shell_key(config, os.environ))


# --- the client


def _prepared(setup: ClientSetup, access: GatewayAccess, asked: str | None, key: str) -> ChildSetup:
    config = access.config
    listed = known_models(config)
    default = config.routes.default
    model = (default.model if default else "") or (listed[0].name if listed else "")
    if setup.needs_model and not (asked or model):
        raise CommandError(f"{setup.title} must be told a model, and none is known by name: --model NAME", 2)
    if asked and not is_served(config, asked):
        print_notice(f"no upstream is known to serve the model {asked!r}; `dragoman models` lists the models")
    return fill_setup(
        setup,
        url=access.url,
        key=key,
        model=model,
        asked=asked or "",
        is_served=lambda name: is_served(config, name),
        listed=listed,
    )


def is_served(config: Config, name: str) -> bool:
    """Whether somebody takes this model, as far as is known: it is on the list of a service that has one."""
    try:
        target = config.routes.resolve(name)[0]
    except UnknownModel:
        return False
    dialect = target.upstream.dialect
    return not dialect.models or target.model in dialect.models or bool(dialect.codec.capabilities(target.model).window)


def child_environment(environ: Mapping[str, str], made: ChildSetup, hidden: set[str]) -> dict[str, str]:
    """What the child sees: no keys of upstreams, which are none of its business, and loopback without a proxy."""
    child = {name: value for name, value in environ.items() if name not in hidden and name not in made.unset}
    if any(environ.get(name) for each in ("http_proxy", "https_proxy", "all_proxy") for name in (each, each.upper())):
        for name in ("NO_PROXY", "no_proxy"):
            said = [
                word.strip()
                for word in (environ.get(name) or environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
            ]
            child[name] = ",".join(dict.fromkeys([*filter(None, said), *_NEAR])) if "*" not in said else "*"
    return {**child, **made.env}


def _print_env(arguments: Namespace, setup: ClientSetup) -> int:
    access = _running()
    if access is None:
        raise CommandError(
            "no gateway is running whose address could be printed. `dragoman serve` starts one.", EXIT_NOT_RUNNING
        )
    made = _prepared(setup, access, arguments.model, KEY_PLACEHOLDER)
    for name in made.unset:
        print(f"unset {name}")
    for assignment in assignments(made, access.shell_key_text or shlex.quote(access.key)):
        print(f"export {assignment}")
    if made.args:
        print(start_comment(arguments.client, made.args))
    if not access.shell_key_text:
        print_notice("these lines hold the gateway's key, which is a secret.")
    return 0


def start_comment(client: str, args: Sequence[str]) -> str:
    """How to start the client, for people: a shell that evaluates it sees comments only."""
    return "# then: " + "\n# ".join(shlex.join([client, *args]).splitlines())


# --- the child: it owns the terminal, gets our signals, and its end is ours
#
# The terminal sends ctrl-C to every process in the foreground, so to the child, too: only signals that were meant for
# us alone are handed on. A child that suspends itself takes us with it, else the shell would wait for what is stopped.


_HANDED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_TERMINAL = ("SIGINT", "SIGQUIT")


def run_child(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run it to its end; its exit status, or 128 and the number of the signal that ended it. Raises OSError."""
    waiting: list[int] = []  # signals that came before the child was there
    child: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        if not child:
            waiting.append(number)
        elif child[0].returncode is None:  # its own send_signal might reap it while we wait for it
            os.kill(child[0].pid, number)

    with _handled(hand_on):
        child.append(subprocess.Popen(command, env=env))
        for number in waiting:
            os.kill(child[0].pid, number)
        return _ended(child[0])


@contextmanager
def _handled(hand_on: signal._HANDLER) -> Iterator[None]:
    """Our signals go to the child. What we were told to ignore (nohup, a shell's background job) stays ignored."""
    before: dict[int, signal._HANDLER] = {}
    for name in (*_HANDED_ON, *_FROM_TERMINAL):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            alone = name in _HANDED_ON or not _in_foreground()
            before[number] = signal.signal(number, hand_on if alone else _nothing)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The child has it too."""


def _in_foreground() -> bool:
    """Whether a terminal sends its signals to our group, and so to the child."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except (OSError, AttributeError):
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _ended(child: subprocess.Popen[bytes]) -> int:
    if not hasattr(os, "WUNTRACED"):
        return child.wait()
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        if _in_foreground():
            os.kill(os.getpid(), signal.SIGSTOP)  # until the shell lets us go on
            os.kill(child.pid, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # so that it is not waited for again
    return code if code >= 0 else 128 - code
