"""`dragoman explain`: what an upstream refused, both requests side by side, and the rule most likely broken."""

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
    parser.add_argument("id", nargs="?", metavar="ID", help="a request's id, or its beginning; last; none lists all")
    parser.add_argument("--purge", action="store_true", help="remove every refusal that is kept")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: Namespace) -> int:
    replace_unencodable(sys.stdout)
    ring = RefusalLog(app_folders(os.environ).state / "refusals")
    if arguments.purge:
        if arguments.id:
            return print_error("--purge removes all of them: it takes no ID.", 2)
        print(f"{ring.purge()} removed", file=sys.stderr)
        return 0
    if arguments.id is None:
        return _list(ring, as_json=arguments.json)
    return _show(ring, arguments.id, as_json=arguments.json)


def _list(ring: RefusalLog, *, as_json: bool) -> int:
    kept = [found for identity in ring.ids() if (found := ring.load(identity))]
    if as_json:
        rows = [{**msgspec.to_builtins(each), "status": each.answered.line} for each in kept]
        print(jsonio.encode_pretty([{name: row[name] for name in _LISTED} for row in rows]).decode())
    elif not kept:
        print("No refusal is kept: none came in the last day, or `explain = false` says so.", file=sys.stderr)
    else:
        for each in kept:
            print(_line(each))
        print("dragoman explain ID shows one.", file=sys.stderr)
    return 0


def _line(refusal: RefusalReport) -> str:
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(refusal.at))
    return one_line(
        f"{refusal.id}  {when}  {refusal.client} → {refusal.upstream}  {refusal.answered.line} {refusal.fault}"
    )


def _show(ring: RefusalLog, wanted: str, *, as_json: bool) -> int:
    ids = ring.ids()
    found = ids[:1] if wanted == _LAST else [each for each in ids if each == wanted or each.startswith(wanted)]
    if wanted in found:
        found = [wanted]
    refusal = ring.load(found[0]) if len(found) == 1 else None
    if refusal is None:
        return print_error(_missing(wanted, ids, found), 1)
    if as_json:
        print(jsonio.encode_pretty(msgspec.to_builtins(refusal)).decode())
    else:
        sys.stdout.write(explain.render_report(refusal, width(_WIDEST)))
    return 0


def _missing(wanted: str, ids: list[str], found: list[str]) -> str:
    if len(found) > 1:
        return f"{wanted!r} begins several ids: {', '.join(found)}."
    if not ids:
        return f"nothing is kept of {wanted!r}, and of no other: only what an upstream refuses is, for a day."
    return (
        f"nothing is kept of {wanted!r}; what was refused just now is written down shortly. Kept are {', '.join(ids)}."
    )
