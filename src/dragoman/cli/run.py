"""`dragoman run CLIENT`: start a client that uses a gateway.

The running gateway is used if there is one; otherwise a private one runs in a thread until the client ends. The
settings of `client_setup` reach the client as environment variables and arguments; no file of the client is changed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import shutil
import signal
import subprocess
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from msgspec import Struct, structs

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
from dragoman.cli.codex_catalogue import catalogue_arguments
from dragoman.cli.detection import (
    NOTHING_FOUND,
    DetectedUpstream,
    load_or_detect,
    setup_hints,
    stale_configuration,
    upstream_variables,
)
from dragoman.cli.doctor_checks import check_saved_settings
from dragoman.cli.model_choice import KnownModels
from dragoman.cli.status import fetch_status, query_admin
from dragoman.cli.terminal import (
    EXIT_LOGIN_NEEDED,
    EXIT_NOT_RUNNING,
    CommandError,
    notice_if_slow,
    port_number,
    print_notice,
)
from dragoman.gateway.config import Config, load_config
from dragoman.gateway.model_entries import ASSUMED_WINDOW
from dragoman.gateway.model_names import words_of
from dragoman.gateway.secrets import KEY_PREFIX, app_folders, gateway_key
from dragoman.gateway.upstream_config import Upstream
from dragoman.wire.jsonio import Json

if TYPE_CHECKING:
    from dragoman.gateway.serve import GatewayServer

_NO_PROGRAM, _CANNOT_RUN = 127, 126
_LONGEST_WAIT = 10.0  # seconds for the models of the private gateway
_DRAIN = 1.0  # seconds for open responses once the client has ended: no process reads them
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman run`."""
    parser.usage = "dragoman run [options] CLIENT [--] [arguments of the client]"
    parser.add_argument(
        "client", metavar="CLIENT", help="claude, codex, opencode, gemini, aider, goose, qwen, or any command"
    )
    parser.add_argument("arguments", nargs=REMAINDER, metavar="ARGUMENTS", help="passed to the client unchanged")
    parser.add_argument(
        "--model",
        help="the model to use (default: the client's own choice, if an upstream serves it, else one of its family)",
    )
    parser.add_argument(
        "--upstream", metavar="UPSTREAM", help="use only this upstream: one of the configuration, or a preset"
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the configuration (default: DRAGOMAN_CONFIG, then the usual place)"
    )
    parser.add_argument("--port", type=port_number, help="the port of the private gateway (default: a free one)")
    parser.add_argument("--private", action="store_true", help="start a private gateway even if one is running")
    parser.add_argument(
        "--log", metavar="FILE", type=Path, help="the log file of the private gateway (default: no log)"
    )
    parser.add_argument(
        "--keep",
        metavar="NAME",
        action="append",
        default=[],
        help="a variable to pass to the client, even if it holds a key",
    )
    parser.add_argument(
        "--print-env",
        action="store_true",
        help="print the shell commands that set the client up for the running gateway",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")


class GatewayAccess(Struct, frozen=True):
    """A gateway that a client can use.

    `shell_key_text` is shell code that gives its key, such as `"$(cat FILE)"`; empty if there is none.
    """

    url: str
    key: str
    config: Config
    description: str
    models: Callable[[], Json]  # asks the gateway for the document of its models
    is_usable: Callable[[Upstream], bool] = lambda upstream: True  # whether an upstream has a credential
    shell_key_text: str = ""


def run(arguments: Namespace) -> int:
    """Run `dragoman run`; return the exit status."""
    setup = find_setup(arguments.client, os.environ)
    if setup.dialect and setup.dialect not in registry.names():
        raise CommandError(f"{setup.title} uses the dialect {setup.dialect}, which is not installed.", 1)
    if arguments.print_env:
        return _print_env(arguments, setup)
    program = shutil.which(arguments.client)
    if program is None and os.sep in arguments.client and Path(arguments.client).exists():
        raise CommandError(f"{arguments.client} is not executable.", _CANNOT_RUN)
    if program is None:
        hint = f" To install it: {setup.install}" if setup.install else ""
        raise CommandError(f"the program {arguments.client!r} was not found on PATH.{hint}", _NO_PROGRAM)
    with _open_gateway(arguments, setup) as access:
        child_setup = _prepare(setup, access, arguments.model, access.key)
        if not arguments.quiet:
            _print_notices(setup, access)
        client_arguments = arguments.arguments[1:] if arguments.arguments[:1] == ["--"] else arguments.arguments
        environ = child_environment(os.environ, child_setup, upstream_variables(access.config) - set(arguments.keep))
        with catalogue_arguments(child_setup.listed, child_setup.model if setup.has_catalogue else "") as more:
            try:
                return run_child([program, *child_setup.args, *more, *client_arguments], environ)
            except OSError as error:
                raise CommandError(f"{program}: {error.strerror or error}", _CANNOT_RUN) from None


def _print_notices(setup: ClientSetup, access: GatewayAccess) -> None:
    print_notice(access.description)
    for check in check_saved_settings(setup.name, app_folders(os.environ).home, access.config):
        print_notice(f"{check.what}; {check.remedy}")


# --- the gateway


@contextmanager
def _open_gateway(arguments: Namespace, setup: ClientSetup) -> Iterator[GatewayAccess]:
    """Yield the running gateway, or a private one if none runs or an option requires it; stop a private one at exit."""
    wants_own = arguments.private or arguments.config or arguments.upstream or arguments.port or arguments.log
    running = None if wants_own else _running_gateway()
    if running is not None:
        yield running
        return
    config, detected = load_or_detect(
        arguments.config,
        os.environ,
        flags={
            "server.host": "127.0.0.1",
            "server.port": arguments.port or 0,
            "server.drain": _DRAIN,
            **({"server.claude_aliases": True} if setup.has_claude_aliases else {}),
        },
        upstream=arguments.upstream,
    )
    _require_upstream(config, detected)
    with _private_gateway(config, arguments.log) as private:
        models = partial(_models_of, private)
        yield GatewayAccess(private.url, private.key, config, _description(config, detected), models, _is_usable)


def _models_of(running: GatewayServer) -> Json:
    """Return the document of the models of a gateway that runs in another thread."""
    assert running.loop is not None
    with notice_if_slow("fetching the models of the upstreams"):
        return asyncio.run_coroutine_threadsafe(running.gateway.models(), running.loop).result(_LONGEST_WAIT)


def _require_upstream(config: Config, detected: Sequence[DetectedUpstream] | None) -> None:
    """Raise CommandError if no upstream is usable; otherwise the client would retry without end."""
    if detected is not None and not detected:
        raise CommandError(
            "\n  ".join([f"{NOTHING_FOUND}, and none is configured.", *setup_hints()]), EXIT_LOGIN_NEEDED
        )
    from dragoman.gateway.upstream_credentials import missing_credential  # slow to load

    missing = [missing_credential(upstream, os.environ) for upstream in config.upstreams.values()]
    if all(missing):
        raise CommandError("no upstream is available. " + " ".join(missing), EXIT_LOGIN_NEEDED)


def _description(config: Config, detected: Sequence[DetectedUpstream] | None) -> str:
    names = ", ".join(config.upstreams)
    if detected is None:
        return f"a private gateway, configured by {config.file}: {names}"
    return f"a private gateway to {names} ({'; '.join(find.what for find in detected)})"


@contextmanager
def _private_gateway(config: Config, log: Path | None) -> Iterator[GatewayServer]:
    """Run a gateway in a thread of this process. Its key is not stored in any file."""
    from dragoman.gateway.access_log import AccessLog
    from dragoman.gateway.redaction import Redactor
    from dragoman.gateway.serve import route_logs, running_gateway

    key = f"{KEY_PREFIX}{secrets.token_urlsafe(32)}"
    descriptor = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
        access_log = AccessLog(Redactor(), stream=stream, form=config.log.format, level=config.log.level)
        with running_gateway(config, key=key, access_log=access_log, admin_socket="beside") as running:
            route_logs(running.gateway)
            try:
                yield running
            finally:
                running.stop(abort=True)


def _running_gateway(*, may_be_stale: bool = False) -> GatewayAccess | None:
    """Return the gateway that this user runs; None if there is none, or if it has an older configuration."""
    socket = load_config(None, os.environ).server.admin_socket
    status = fetch_status(socket)
    if status is None or status.get("state") != "ready" or not isinstance(status.get("url"), str):
        return None
    if why := stale_configuration(status, os.environ):
        remedy = "`dragoman reload` makes it read the configuration again."
        use = "" if may_be_stale else " A private gateway is used."
        print_notice(f"the gateway at {status['url']} has an older configuration: {why}.{use} {remedy}")
        if not may_be_stale:
            return None
    file = status.get("config")
    config = load_config(Path(file), os.environ) if isinstance(file, str) else load_config(None, os.environ)
    key = gateway_key(config.server.key, app_folders(os.environ).key_file).reveal()
    description = (
        f"the gateway at {status['url']} (pid {status.get('pid')}; {file or 'no configuration: the simulator is used'})"
    )
    shell_text = shell_key(config, os.environ)
    models = partial(query_admin, socket, "/models")
    return GatewayAccess(str(status["url"]), key, config, description, models, shell_key_text=shell_text)


# --- the client


def _prepare(setup: ClientSetup, access: GatewayAccess, requested: str | None, key: str) -> ChildSetup:
    known = KnownModels(access.config)
    own_names = [name for name, _ in setup.default_models]
    needs_model = setup.needs_model or not all(map(known.is_named, own_names))
    if needs_model and not requested and known.needs_lists(setup.family, access.is_usable):
        known = _fetch_models(access)
    choice = known.choose(setup.family, access.is_usable)
    is_lost = setup.needs_model or not all(map(known.is_served, own_names))
    if is_lost and not (requested or choice.model):
        upstreams = ", ".join(access.config.upstreams)
        raise CommandError(
            f"{setup.title} needs a model, and none is known for {upstreams}. Add --model NAME, or set default_model of"
            " the upstream in the configuration; `dragoman models` shows what the upstreams list.",
            2,
        )
    if requested and not known.is_served(requested):
        print_notice(
            f"no upstream is known to serve the model {requested!r}. `dragoman models` lists the known models."
        )
    model = requested or choice.model
    is_own = not model or setup.family in words_of(model)
    if not is_own and (setup.window_env or setup.has_catalogue) and known.window_of(model) is None:
        known = _fetch_models(access)
    return fill_setup(
        setup,
        url=access.url,
        key=key,
        choice=structs.replace(choice, window=_window(setup, known, [model, choice.small_model], is_own=is_own)),
        requested=requested or "",
        is_served=known.is_served,
        listed=known.entries,
    )


def _fetch_models(access: GatewayAccess) -> KnownModels:
    """Return the models with the upstreams' own lists, which the gateway fetches and keeps for a day."""
    return KnownModels.from_document(access.config, access.models())


def _window(setup: ClientSetup, known: KnownModels, models: Sequence[str], *, is_own: bool) -> int | None:
    """Return the smallest window of the models; None if the user has set one, or the client knows it itself."""
    if any(os.environ.get(name) for name in setup.window_env):
        return None
    windows = [window for name in models if name and (window := known.window_of(name))]
    return min(windows, default=None if is_own else ASSUMED_WINDOW)


def _is_usable(upstream: Upstream) -> bool:
    from dragoman.gateway.upstream_credentials import missing_credential  # slow to load

    return not missing_credential(upstream, os.environ)


def child_environment(environ: Mapping[str, str], child_setup: ChildSetup, hidden: set[str]) -> dict[str, str]:
    """Return the environment of the client: without the `hidden` upstream keys, and with loopback in NO_PROXY."""
    child = {name: value for name, value in environ.items() if name not in hidden and name not in child_setup.unset}
    if any(environ.get(name) for each in ("http_proxy", "https_proxy", "all_proxy") for name in (each, each.upper())):
        for name in ("NO_PROXY", "no_proxy"):
            excluded = [
                word.strip()
                for word in (environ.get(name) or environ.get("no_proxy") or environ.get("NO_PROXY") or "").split(",")
            ]
            child[name] = ",".join(dict.fromkeys([*filter(None, excluded), *_LOOPBACK])) if "*" not in excluded else "*"
    return {**child, **child_setup.env}


def _print_env(arguments: Namespace, setup: ClientSetup) -> int:
    access = _running_gateway(may_be_stale=True)
    if access is None:
        raise CommandError(
            "no gateway is running, so its address cannot be printed. Start one with `dragoman serve`.",
            EXIT_NOT_RUNNING,
        )
    child_setup = _prepare(setup, access, arguments.model, KEY_PLACEHOLDER)
    for name in child_setup.unset:
        print(f"unset {name}")
    for assignment in assignments(child_setup, access.shell_key_text or shlex.quote(access.key)):
        print(f"export {assignment}")
    if child_setup.args:
        print(start_comment(arguments.client, child_setup.args))
    if not access.shell_key_text:
        print_notice("these lines contain the gateway's key, which is a secret.")
    return 0


def start_comment(client: str, args: Sequence[str]) -> str:
    """Return the command that starts the client, as shell comments."""
    return "# then: " + "\n# ".join(shlex.join([client, *args]).splitlines())


# --- the child process: it owns the terminal and receives our signals; we exit with its status
#
# The terminal sends ctrl-C to every process in the foreground, including the child, so only signals that were sent to
# this process alone are forwarded. If the child suspends itself, this process suspends itself, too; otherwise the
# shell would keep waiting for a stopped job.


_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_TERMINAL = ("SIGINT", "SIGQUIT")


def run_child(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command to its end. Return its exit status, or 128 plus the signal that ended it. Raises OSError."""
    waiting: list[int] = []  # signals that arrived before the child was started
    child: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        if not child:
            waiting.append(number)
        elif child[0].returncode is None:  # Popen.send_signal might reap the child while we wait for it
            os.kill(child[0].pid, number)

    with _handling_signals(forward):
        child.append(subprocess.Popen(command, env=env))
        for number in waiting:
            os.kill(child[0].pid, number)
        return _wait_for(child[0])


@contextmanager
def _handling_signals(forward: signal._HANDLER) -> Iterator[None]:
    """Forward our signals to the child. Signals that are ignored (nohup, a background job) stay ignored."""
    before: dict[int, signal._HANDLER] = {}
    for name in (*_FORWARDED, *_FROM_TERMINAL):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            child_misses_it = name in _FORWARDED or not _in_foreground()
            before[number] = signal.signal(number, forward if child_misses_it else _ignore)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignore a signal that the terminal has sent to the child, too."""


def _in_foreground() -> bool:
    """Return whether the terminal sends its signals to our process group, and so to the child."""
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


def _wait_for(child: subprocess.Popen[bytes]) -> int:
    if not hasattr(os, "WUNTRACED"):
        return child.wait()
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        if _in_foreground():
            os.kill(os.getpid(), signal.SIGSTOP)  # until the shell continues us
            os.kill(child.pid, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # Popen must not wait for it again
    return code if code >= 0 else 128 - code
