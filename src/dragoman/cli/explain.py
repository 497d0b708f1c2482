"""`dragoman explain`: show a request that an upstream refused, on both sides, and the rule that it likely breaks.

The gateway stores the last refusals in the state folder; this command reads and removes them.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace

import msgspec

from dragoman.cli.terminal import one_line, print_error, replace_unencodable, width
from dragoman.gateway import explain
from dragoman.gateway.explain import RefusalLog, RefusalReport
from dragoman.gateway.secrets import app_folders
from dragoman.wire import jsonio

_LAST = "last"
_LISTED = ("id", "at", "client", "upstream", "dialect", "model", "status", "fault")
_WIDEST = 160


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman explain`."""
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="the id of a request, its first characters, or `last`; without it, list all"
    )
    parser.add_argument("--purge", action="store_true", help="remove all stored refusals")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Run `dragoman explain`; return the exit status."""
    replace_unencodable(sys.stdout)
    refusals = RefusalLog(app_folders(os.environ).state / "refusals")
    if arguments.purge:
        if arguments.id:
            return print_error("--purge removes all refusals, so it cannot be combined with an ID.", 2)
        print(f"refusals removed: {refusals.purge()}", file=sys.stderr)
        return 0
    if arguments.id is None:
        return _list(refusals, as_json=arguments.json)
    return _show(refusals, arguments.id, as_json=arguments.json)


def _list(refusals: RefusalLog, *, as_json: bool) -> int:
    stored = [found for identity in refusals.ids() if (found := refusals.load(identity))]
    if as_json:
        rows = [{**msgspec.to_builtins(each), "status": each.answered.line} for each in stored]
        print(jsonio.encode_pretty([{name: row[name] for name in _LISTED} for row in rows]).decode())
    elif not stored:
        print(
            "No refusal is stored: there was none in the last day, or the configuration sets `explain = false`.",
            file=sys.stderr,
        )
    else:
        for each in stored:
            print(_line(each))
        print("Run `dragoman explain ID` to see one.", file=sys.stderr)
    return 0


def _line(refusal: RefusalReport) -> str:
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(refusal.at))
    return one_line(
        f"{refusal.id}  {when}  {refusal.client} → {refusal.upstream}  {refusal.answered.line} {refusal.fault}"
    )


def _show(refusals: RefusalLog, requested_id: str, *, as_json: bool) -> int:
    ids = refusals.ids()
    found = (
        ids[:1]
        if requested_id == _LAST
        else [each for each in ids if each == requested_id or each.startswith(requested_id)]
    )
    if requested_id in found:
        found = [requested_id]
    refusal = refusals.load(found[0]) if len(found) == 1 else None
    if refusal is None:
        return print_error(_missing(requested_id, ids, found), 1)
    if as_json:
        print(jsonio.encode_pretty(msgspec.to_builtins(refusal)).decode())
    else:
        sys.stdout.write(explain.render_report(refusal, width(_WIDEST)))
    return 0


def _missing(requested_id: str, ids: list[str], found: list[str]) -> str:
    if len(found) > 1:
        return f"several ids begin with {requested_id!r}: {', '.join(found)}. Give more characters."
    if not ids:
        return f"no refusal is stored, so {requested_id!r} was not found. The gateway stores refusals for a day."
    stored = ", ".join(ids)
    return f"no refused request {requested_id!r} is stored; a new one may take a moment to appear. Stored: {stored}."
