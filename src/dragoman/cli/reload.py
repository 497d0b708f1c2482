"""`dragoman reload`: let the running gateway read its configuration again, and print what changed.

Exit status: 0 everything was applied, 1 some settings need a restart, 3 the configuration was refused, 4 no gateway is
running.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

import msgspec
from msgspec import structs

from dragoman.cli.status import add_gateway_options, admin_socket, no_gateway, query_admin
from dragoman.cli.terminal import EXIT_BAD_CONFIG, plain, print_error, print_notice, replace_unencodable
from dragoman.gateway.reload import ReloadResult
from dragoman.wire import jsonio


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman reload`."""
    add_gateway_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Run `dragoman reload`; return the exit status."""
    from dragoman.gateway import admin

    replace_unencodable(sys.stdout)
    socket = admin_socket(arguments.config, arguments.port)
    response = query_admin(socket, "/reload", "POST", admin.RELOAD_TIMEOUT)
    if response is None:
        raise no_gateway(socket)
    result = msgspec.convert(response, ReloadResult)
    if arguments.json:
        print(jsonio.encode_pretty(structs.asdict(result)).decode())
    if result.refused:
        if arguments.json:
            return EXIT_BAD_CONFIG
        return print_error("the gateway keeps its configuration.", EXIT_BAD_CONFIG, result.refused)
    if not arguments.json:
        for line in result_lines(result):
            print(plain(line))
        for warning in result.warnings:
            print_notice(f"warning: {warning}")
    return 1 if result.restart else 0


def result_lines(result: ReloadResult) -> list[str]:
    """Return what was applied and what was not, one setting a line."""
    lines = [f"{name}: reloaded" for name in result.changed]
    lines += [f"{name}: restart needed" for name in result.restart]
    return lines or ["reloaded; no setting changed"]
