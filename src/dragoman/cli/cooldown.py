"""`dragoman cooldown list|clear [UPSTREAM]`: list the upstreams in cooldown, or end their cooldowns."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from urllib.parse import urlencode

from dragoman.cli.status import add_gateway_options, admin_socket, no_gateway, objects_in, query_admin, render_cooldown
from dragoman.cli.terminal import print_error, replace_unencodable, say
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman cooldown`."""
    parser.add_argument(
        "action", nargs="?", choices=("list", "clear"), default="list", help="clear: end the cooldowns now"
    )
    parser.add_argument("upstream", nargs="?", default="", metavar="UPSTREAM", help="only this upstream")
    add_gateway_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Run `dragoman cooldown`; return the exit status."""
    replace_unencodable(sys.stdout)
    socket = admin_socket(arguments.config, arguments.port)
    clear = arguments.action == "clear"
    query = f"?{urlencode({'upstream': arguments.upstream})}" if arguments.upstream and clear else ""
    response = query_admin(socket, f"/cooldowns/clear{query}" if clear else "/cooldowns", "POST" if clear else "GET")
    if response is None:
        raise no_gateway(socket)
    if isinstance(response, dict):
        return _cleared(response, as_json=arguments.json)
    listed = [row for row in objects_in(response) if arguments.upstream in ("", row.get("upstream"))]
    if arguments.json:
        print(jsonio.encode_pretty(listed).decode())
    else:
        now = time.time()
        for row in listed:
            say(f"{row.get('upstream')}: {render_cooldown(row, now)}")
        if not listed:
            print("no upstream is in cooldown")
    return 0


def _cleared(response: dict[str, Json], *, as_json: bool) -> int:
    if "problem" in response:
        return print_error(f"{response['problem']}.", 1)
    count = response.get("cleared")
    print(
        jsonio.encode(response).decode()
        if as_json
        else f"cooldowns ended: {count}"
        if count
        else "no upstream was in cooldown"
    )
    return 0
