"""`dragoman render_cooldown list|clear [UPSTREAM]`: list the upstreams in cooldown, or end their cooldowns."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from urllib.parse import urlencode

from dragoman.cli.status import add_port, admin_socket, objects_in, query_admin, render_cooldown
from dragoman.cli.terminal import EXIT_NOT_RUNNING, print_error, replace_unencodable
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "clear"), help="clear: let them be asked again, from now on")
    parser.add_argument("upstream", nargs="?", default="", metavar="UPSTREAM", help="this one only")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the one the gateway was started with")
    add_port(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: Namespace) -> int:
    replace_unencodable(sys.stdout)
    socket = admin_socket(arguments.config, arguments.port)
    clear = arguments.action == "clear"
    query = f"?{urlencode({'upstream': arguments.upstream})}" if arguments.upstream and clear else ""
    found = query_admin(socket, f"/cooldowns/clear{query}" if clear else "/cooldowns", "POST" if clear else "GET")
    if found is None:
        return print_error(f"no gateway answers at {socket}. `dragoman serve` starts one.", EXIT_NOT_RUNNING)
    if isinstance(found, dict):
        return _cleared(found, as_json=arguments.json)
    listed = [row for row in objects_in(found) if arguments.upstream in ("", row.get("upstream"))]
    if arguments.json:
        print(jsonio.encode_pretty(listed).decode())
    else:
        now = time.time()
        print(
            "\n".join(f"{row.get('upstream')}: {render_cooldown(row, now)}" for row in listed)
            or "no upstream is in cooldown"
        )
    return 0


def _cleared(found: dict[str, Json], *, as_json: bool) -> int:
    if "problem" in found:
        return print_error(f"{found['problem']}.", 1)
    count = found.get("cleared")
    print(jsonio.encode(found).decode() if as_json else f"{count} cleared" if count else "no upstream was in cooldown")
    return 0
