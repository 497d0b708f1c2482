"""`dragoman explain`: show what happened to a request, and both sides of one that an upstream refused.

The running gateway knows its last requests: their models, attempts, notes, tokens and times, without bodies. Of
refusals it also writes reports with bodies to the state folder, which this command reads and removes.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from urllib.parse import urlencode

import msgspec

from dragoman.cli.layout import fold
from dragoman.cli.log import note_lines
from dragoman.cli.status import add_gateway_options, admin_socket, objects_in, query_admin
from dragoman.cli.terminal import (
    CommandError,
    columns_of,
    one_line,
    plain,
    print_error,
    print_notice,
    replace_unencodable,
    width,
)
from dragoman.gateway import explain
from dragoman.gateway.explain import RefusalLog, RefusalReport
from dragoman.gateway.recent import is_id_of
from dragoman.gateway.records import LoggedRequest, epoch_of, input_text, local_time
from dragoman.gateway.secrets import app_folders
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_LAST = "last"
_LISTED = ("id", "at", "client", "upstream", "dialect", "model", "status", "fault")
_WIDEST = 160
_LONGEST_ROW = 300  # characters of what happened
_NOTHING = (
    "nothing to explain: no recent request was refused, failed or lost content, and no refusal of the last day is "
    "stored. `dragoman log` lists all recent requests."
)
_NOTHING_STORED = "nothing to explain: no gateway is running, and no refusal of the last day is stored."


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman explain`."""
    parser.add_argument(
        "id",
        nargs="?",
        metavar="ID",
        help="the id of a request, its first or last characters, or `last`; without it, list the requests that were "
        "refused, failed or lost content",
    )
    parser.add_argument("--purge", action="store_true", help="remove all stored refusals")
    add_gateway_options(parser)
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
    found = _recent(arguments)
    if not found and arguments.id not in (None, _LAST) and (running := _running(arguments)):
        raise CommandError(f"the request {running}; it is explained when it has ended.")
    if arguments.id is None:
        return _list(refusals, found or [], is_running=found is not None, as_json=arguments.json)
    return _show(refusals, found or [], arguments.id, as_json=arguments.json)


def _recent(arguments: Namespace) -> list[LoggedRequest] | None:
    """Return the requests that the running gateway knows: those that the ID names, else those that failed.

    None if no gateway is running.
    """
    socket = admin_socket(arguments.config, arguments.port)
    response = query_admin(socket, f"/requests?{urlencode({'id': arguments.id or ''})}")
    return msgspec.convert(response, list[LoggedRequest]) if isinstance(response, list) else None


def _running(arguments: Namespace) -> str:
    """Return what a request that the ID names does now; empty if none runs that has it."""
    data = query_admin(admin_socket(arguments.config, arguments.port), "/activity")
    if isinstance(data, dict):
        for row in objects_in(data.get("running")):
            if is_id_of(str(row.get("id")), arguments.id):
                where = f" at {row['upstream']}" if row.get("upstream") else ""
                return f"{row['id']} is {row.get('state')}{where}"
    return ""


# --- the list


def _list(refusals: RefusalLog, recent: list[LoggedRequest], *, is_running: bool, as_json: bool) -> int:
    known = {each.request_id for each in recent}
    stored = [found for identity in refusals.ids() if identity not in known and (found := refusals.load(identity))]
    rows = [*((epoch_of(each.ts), _recent_row(each)) for each in recent), *((each.at, _row(each)) for each in stored)]
    rows.sort(key=lambda row: row[0], reverse=True)
    if as_json:
        print(jsonio.encode_pretty([row for _, row in rows]).decode())
    elif not rows:
        print_notice(_NOTHING if is_running else _NOTHING_STORED)
    else:
        columns = columns_of(sys.stdout)
        for at, row in rows:
            print("\n".join(list_lines(at, row, columns)))
        print_notice("`dragoman explain ID` shows one; the last characters of an id are enough.")
    return 0


def _row(refusal: RefusalReport) -> dict[str, Json]:
    fields = {**msgspec.to_builtins(refusal), "status": refusal.response.line}
    return {name: fields[name] for name in _LISTED}


def _recent_row(entry: LoggedRequest) -> dict[str, Json]:
    lost = sorted({note.rule for note in entry.changes if note.action == "dropped"})
    what = entry.error or (f"lost content: {', '.join(lost)}" if lost else f"after {', '.join(entry.tried)}")
    return {
        "id": entry.request_id,
        "at": epoch_of(entry.ts),
        "client": entry.dialect or None,
        "upstream": entry.upstream or None,
        "dialect": entry.upstream_dialect or None,
        "model": entry.used_model or entry.model,
        "status": str(entry.status or "---"),
        "fault": what,
        "outcome": entry.outcome,
    }


def list_lines(at: float, row: dict[str, Json], columns: int | None) -> list[str]:
    """Return a request of the list: on one line, or on a terminal its id, and below it what happened."""
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(at))
    head = f"{row['id']}  {when}  {row['status']}"
    way = f"{row['client'] or '-'} → {row['upstream'] or '-'}"
    text = one_line("  ".join(filter(None, (way, str(row["model"] or ""), str(row["fault"])))), _LONGEST_ROW)
    if columns is None:
        return [f"{head}  {text}"]
    return [*fold(head, columns, rest="    "), *fold(text, columns, first="    ", rest="    ")]


# --- one request


def _show(refusals: RefusalLog, recent: list[LoggedRequest], requested_id: str, *, as_json: bool) -> int:
    ids = refusals.ids()
    if requested_id == _LAST:
        found = [recent[0].request_id] if recent else ids[:1]
    else:
        known = [*(each.request_id for each in recent), *ids]
        found = list(dict.fromkeys(each for each in known if is_id_of(each, requested_id)))
    if requested_id in found:
        found = [requested_id]
    if len(found) != 1:
        return print_error(_missing(requested_id, ids, found), 1)
    entry = next((each for each in recent if each.request_id == found[0]), None)
    refusal = refusals.load(found[0]) if found[0] in ids else None
    if entry is None and refusal is None:
        return print_error(_missing(requested_id, ids, []), 1)
    if as_json:
        parts = {"request": msgspec.to_builtins(entry), **(msgspec.to_builtins(refusal) if refusal else {})}
        print(jsonio.encode_pretty(parts).decode())
        return 0
    columns = width(_WIDEST)
    if entry is not None:
        print("\n".join(render_request(entry, columns, has_report=refusal is not None)))
    if refusal is not None:
        sys.stdout.write(("\n" if entry else "") + explain.render_report(refusal, columns))
    return 0


def render_request(entry: LoggedRequest, columns: int, *, has_report: bool = False) -> Iterator[str]:
    """Yield what is known about a request, as lines of text. A report about it shows its changes itself."""
    model = entry.model if entry.used_model in ("", entry.model) else f"{entry.model} as {entry.used_model}"
    upstream = f"{entry.upstream} ({entry.upstream_dialect})" if entry.upstream_dialect else entry.upstream
    kind = "stream" if entry.stream else "whole response"
    times = [f"{entry.total_ms:.0f} ms"]
    if entry.first_byte_ms is not None:
        times.append(f"first byte after {entry.first_byte_ms:.0f} ms")
    tokens = "" if entry.output_tokens is None else f"{input_text(entry)}, {entry.output_tokens} out"
    rows = {
        "request": f"{entry.method} {entry.path}, {entry.dialect or 'unknown dialect'}, {kind}",
        "from": entry.client,
        "model": model,
        "upstream": ", ".join(filter(None, (upstream, entry.credential and f"credential {entry.credential}"))),
        "outcome": f"{entry.outcome}, status {entry.status or 'none'}" + (f", stop {entry.stop}" if entry.stop else ""),
        "error": entry.error,
        "time": ", ".join(times),
        "tokens": f"{tokens} (estimated)" if entry.tokens_estimated else tokens,
        "attempts": str(entry.attempts or ""),
    }
    yield from fold(f"{entry.request_id}  {local_time(epoch_of(entry.ts))}", columns, rest="  ")
    for name, value in rows.items():
        if value:
            head = f"  {name:<9} "
            yield textwrap.fill(
                plain(one_line(value, 1000)), columns, initial_indent=head, subsequent_indent=" " * len(head)
            )
    shown = msgspec.structs.replace(entry, changes=(), notes=0) if has_report else entry
    lines = list(note_lines(shown, columns))
    if lines:
        yield ""
        yield from lines
    if not has_report and not entry.notes and entry.upstream:
        yield "\n    The translation changed nothing."


def _missing(requested_id: str, ids: list[str], found: list[str]) -> str:
    if len(found) > 1:
        return f"several ids begin or end with {requested_id!r}: {', '.join(found[:10])}. Give more characters."
    if requested_id == _LAST:
        return "no request is known: no gateway is running, or it has had none; and no refusal is stored."
    stored = f" Stored refusals: {', '.join(ids)}." if ids else ""
    return (
        f"no request {requested_id!r} is known. A running gateway keeps its last requests, and reports about refusals "
        f"are stored for a day; a new report may take a moment to appear.{stored}"
    )
