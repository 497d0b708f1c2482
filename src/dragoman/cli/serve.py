"""`dragoman serve`: run the gateway.

The address and the set-up of clients go to standard output, one log line per request to standard error.
"""

from __future__ import annotations

import gc
import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from dragoman.cli.client_setup import setup_lines
from dragoman.cli.layout import fold, shell_lines
from dragoman.cli.ports import explain_listen_error
from dragoman.cli.terminal import Paint, columns_of, port_number, print_error, replace_unencodable
from dragoman.errors import LocalMisuse
from dragoman.gateway.config import Config, LoadedConfig, load_with_origins
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.model_entries import known_models

if TYPE_CHECKING:
    from dragoman.gateway.serve import GatewayServer

_ROOT = "the gateway runs as root, which it does not need: create a user for it and start it as that user"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman serve`."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="the configuration (default: DRAGOMAN_CONFIG, then the usual place)"
    )
    parser.add_argument("--host", help="the address to listen on (default: server.host, then 127.0.0.1)")
    parser.add_argument(
        "--port", type=port_number, help="the port; 0 picks a free one (default: server.port, then 8787)"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that share the port (default: server.workers, then 1)"
    )
    parser.add_argument("--worker", type=int, help=SUPPRESS)  # the number of this worker process
    parser.add_argument("--quiet", action="store_true", help="print the address only")


def run(arguments: Namespace) -> int:
    """Run `dragoman serve`; return the exit status."""
    replace_unencodable(sys.stdout)
    options = {"server.host": arguments.host, "server.port": arguments.port, "server.workers": arguments.workers}
    flags = {name: value for name, value in options.items() if value is not None}
    read = partial(load_with_origins, arguments.config, os.environ, flags=flags)
    if arguments.worker:
        read = partial(_read_for_worker, read, arguments.worker)
    loaded = read()
    config = loaded.config
    gc.disable()  # until the gateway serves: loading leaves no garbage
    try:
        return _serve(loaded, read, arguments)
    except ConfigError:
        raise
    except LocalMisuse as error:
        return print_error(error, 1)
    except OSError as error:
        server = config.server
        why = explain_listen_error(server.host, server.port, error, f"the socket {server.admin_socket}")
        return print_error(why, 1)
    finally:
        gc.enable()


def _serve(loaded: LoadedConfig, read: Callable[[], LoadedConfig], arguments: Namespace) -> int:
    from dragoman.gateway import serve  # slow to load, and not needed to report a bad configuration

    config, number = loaded.config, arguments.worker
    if number is None and config.server.workers == 1:
        return serve.serve(loaded, ready=partial(_announce, config, quiet=arguments.quiet, first=True), read=read)
    from dragoman.gateway.server_workers import serve_workers, sibling_sockets

    if number is not None:
        ready = partial(_announce, config, quiet=arguments.quiet, first=number == 1)
        siblings = sibling_sockets(config.server.admin_socket, number, config.server.workers)
        return serve.serve(loaded, ready=ready, read=read, worker=True, siblings=siblings)
    gc.enable()
    command = [sys.executable, "-m", "dragoman", "serve", "--quiet", "--host", config.server.host]
    command += ["--config", str(arguments.config)] if arguments.config else []
    return serve_workers(loaded, command, read=read, ready=partial(_print_banner, config, quiet=arguments.quiet))


def _read_for_worker(read: Callable[[], LoadedConfig], number: int) -> LoadedConfig:
    """Return the configuration of a worker: the shared one, with the worker's own admin socket."""
    from dragoman.gateway.server_workers import socket_of

    loaded = read()
    server = loaded.config.server
    server = structs.replace(server, admin_socket=socket_of(server.admin_socket, number), admin_port=None)
    return structs.replace(loaded, config=structs.replace(loaded.config, server=server))


def _announce(config: Config, running: GatewayServer, *, quiet: bool, first: bool) -> None:
    if first and sys.platform != "win32" and os.geteuid() == 0:
        running.gateway.log.event("warning", "root", message=_ROOT)  # the log goes to stderr
    for warning in config.warnings:
        running.gateway.log.event("warning", "config", message=warning)
    _print_banner(config, running.url, quiet=quiet)


def _print_banner(config: Config, url: str, *, quiet: bool) -> None:
    if quiet:
        print(url, flush=True)
        return
    paint = Paint(sys.stdout)
    names = ", ".join(config.upstreams)
    rows: list[tuple[str, Any]] = [
        ("Anthropic API", url),
        ("OpenAI API", f"{url}/v1"),
        ("Gemini API", url),
        ("Bedrock API", url),
        ("models", ", ".join(model.name for model in known_models(config)[:8]) or "any name that your upstreams know"),
        ("upstreams", names if config.file else f"{names} (no configuration: the simulator is used)"),
        ("status", "dragoman status, dragoman log -f, dragoman top; dragoman reload reads the configuration again"),
        ("clients", "dragoman run claude (or codex, opencode, gemini …) sets one up and starts it; by hand:"),
    ]
    columns = columns_of(sys.stdout)
    lines = [paint(url, "bold"), ""]
    for name, value in rows:
        lines += fold(str(value), columns, first=f"  {name:<14} ", rest=" " * 17)
    lines.append("")
    for client in setup_lines(url, config, os.environ):
        hint = f"  ({client.hint})" if client.hint else ""
        lines += [paint(line, "dim") for line in fold(f"{client.name}{hint}", columns, first="# ", rest="#   ")]
        lines += shell_lines(client.words, columns)
    print("\n".join(lines), end="\n\n", flush=True)
