"""`dragoman keys`: create, list, show, revoke and rotate the keys of clients, and set limits.

The command writes to the store itself, so it also works while no gateway runs. A running gateway notices a change
within a fraction of a second.
"""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import datetime

from dragoman.accounts import management
from dragoman.accounts.keys import aws_secret
from dragoman.accounts.limit_text import FORM, parse_duration, parse_limit, parse_time, render_amount, render_limit
from dragoman.cli.store_access import add_config_option, load_store_config, with_store
from dragoman.cli.terminal import CommandError, Paint, one_line, replace_unencodable, say, table_lines
from dragoman.gateway.config import Config
from dragoman.gateway.secrets import app_folders, gateway_key
from dragoman.store.interface import ALL, ClientKey, Limit, LimitId, Store
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_GRACE = "24h"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman keys`."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="create | list | show | revoke | rotate | limit"
    )
    created = actions.add_parser("create", help="create a key and print it; it is not shown again")
    created.add_argument("name", metavar="NAME", help="the name of the key, for lists and messages")
    created.add_argument("--owner", default="", metavar="NAME", help="the person or team that the key belongs to")
    created.add_argument("--expires", metavar="TIME", help="30d, or a date: the key is refused from then on")
    created.add_argument(
        "--model", action="append", default=[], metavar="PATTERN", help="a model that it may ask for; may be repeated"
    )
    created.add_argument(
        "--upstream",
        action="append",
        default=[],
        metavar="UPSTREAM",
        help="an upstream that may answer; may be repeated",
    )
    created.add_argument("--limit", action="append", default=[], metavar="LIMIT", help=FORM)
    listed = actions.add_parser("list", help="list the keys")
    listed.add_argument("--all", action="store_true", help="also the revoked and expired ones")
    shown = actions.add_parser("show", help="show a key, its limits, and what it has used of them")
    revoked = actions.add_parser("revoke", help="refuse a key from now on, for ever")
    rotated = actions.add_parser("rotate", help="give a key a new secret; id, limits and usage stay")
    rotated.add_argument(
        "--grace", default=_GRACE, metavar="TIME", help=f"how long the old secret is accepted, too (default: {_GRACE})"
    )
    limited = actions.add_parser("limit", help="set the limits of a key, of an owner or of all")
    limited.add_argument("scope", metavar="KEY|owner:NAME|all", help="what is limited")
    limited.add_argument("limits", nargs="*", metavar="LIMIT", help=f"{FORM}; without one, all limits are removed")
    for named in (shown, revoked, rotated):
        named.add_argument("name", metavar="KEY", help="the id or the name of a key")
    for each in (created, listed, shown, revoked, rotated, limited):
        add_config_option(each)
        each.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: Namespace) -> int:
    """Run `dragoman keys`; return the exit status."""
    replace_unencodable(sys.stdout)
    config = load_store_config(arguments)

    async def work(store: Store) -> Json:
        match arguments.action:
            case "create":
                return await _create(store, arguments, config)
            case "list":
                return await _list(store, everything=arguments.all)
            case "show":
                return await _show(store, await management.find_key(store, arguments.name))
            case "revoke":
                return _row(await management.revoke_key(store, arguments.name))
            case "rotate":
                grace = parse_duration(arguments.grace)
                text, key = await management.replace_secret(store, arguments.name, grace)
                return _secret(text, key, config)
            case _:
                return await _limit(store, arguments.scope, arguments.limits)

    result = with_store(config, work)
    if arguments.json:
        print(jsonio.encode_pretty(result).decode())
    else:
        say(_render(arguments.action, result), rest="    ")
    return 0


# --- the actions


async def _create(store: Store, arguments: Namespace, config: Config) -> Json:
    for name in arguments.upstream:
        if name not in config.upstreams:
            known = ", ".join(config.upstreams)
            raise CommandError(f"there is no upstream {name!r} in the configuration; there are: {known}.", 2)
    text, key = await management.add_key(
        store,
        arguments.name,
        owner=arguments.owner,
        models=arguments.model,
        upstreams=arguments.upstream,
        expires_at=None if arguments.expires is None else parse_time(arguments.expires, ahead=True),
        limits=[parse_limit("", each) for each in arguments.limit],
    )
    return _secret(text, key, config)


def _secret(text: str, key: ClientKey, config: Config) -> Json:
    own = gateway_key(config.server.key, app_folders(os.environ).key_file).reveal()
    aws: Json = {"access_key_id": key.id, "secret_access_key": aws_secret(own, key)}
    return {**_row(key), "key": text, "aws": aws}


async def _list(store: Store, *, everything: bool) -> Json:
    limits = await store.limits(())
    rows: list[Json] = []
    for key in await store.keys():
        if everything or management.is_valid(key):
            own: list[Json] = [render_limit(limit) for limit in limits if limit.scope == f"key:{key.id}"]
            rows.append({**_row(key), "limits": own})
    return rows


async def _show(store: Store, key: ClientKey) -> Json:
    scopes = [f"key:{key.id}", *([f"owner:{key.owner}"] if key.owner else []), ALL]
    limits = [await _limit_row(store, limit) for limit in await store.limits(scopes)]
    return {**_row(key), "limits": [*limits]}


async def _limit_row(store: Store, limit: Limit) -> Json:
    used, in_shares = await store.used(limit.id)
    return {
        "scope": limit.scope,
        "resource": limit.resource,
        "span": limit.span,
        "amount": limit.amount,
        "used": used,
        "held": in_shares,
    }


async def _limit(store: Store, scope: str, texts: Sequence[str]) -> Json:
    named = await management.scope_of(store, scope)
    await management.set_limits(store, named, [parse_limit(named, text) for text in texts])
    return {"scope": named, "limits": [await _limit_row(store, limit) for limit in await store.limits([named])]}


def _row(key: ClientKey) -> dict[str, Json]:
    now = time.time()
    state = "revoked" if key.revoked_at is not None else "valid" if management.is_valid(key, now) else "expired"
    return {
        "id": key.id,
        "name": key.name,
        "owner": key.owner or None,
        "state": state,
        "models": [*key.models],
        "upstreams": [*key.upstreams],
        "created_at": _time(key.created_at),
        "expires_at": _time(key.expires_at),
        "revoked_at": _time(key.revoked_at),
    }


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at).astimezone().isoformat(timespec="seconds")


# --- text


def _render(action: str, result: Json) -> str:
    if isinstance(result, list):
        rows = [row for row in result if isinstance(row, dict)]
        return _table(rows) if rows else "there are no keys; `dragoman keys create NAME` creates one"
    assert isinstance(result, dict)
    match action:
        case "create" | "rotate":
            return _render_secret(result)
        case "revoke":
            return f"the key {result['name']} ({result['id']}) is revoked"
        case "limit":
            return f"limits of {result['scope']}:\n{_limits(result)}"
        case _:
            return _render_key(result)


def _render_secret(row: dict[str, Json]) -> str:
    paint, aws = Paint(sys.stdout), row["aws"]
    assert isinstance(aws, dict)
    return "\n".join(
        [
            f"The key {row['name']} ({row['id']}). It is not stored and cannot be shown again:",
            "",
            f"  {paint(str(row['key']), 'bold')}",
            "",
            "For AWS clients (boto3), which sign their requests:",
            "",
            f"  AWS_ACCESS_KEY_ID={aws['access_key_id']}",
            f"  AWS_SECRET_ACCESS_KEY={aws['secret_access_key']}",
        ]
    )


def _render_key(row: dict[str, Json]) -> str:
    lines = [f"{row['name']}  {row['id']}  {row['state']}"]
    for name, what in (("owner", "owner"), ("created_at", "created"), ("expires_at", "expires")):
        if row.get(name):
            lines.append(f"  {what:<10}{row[name]}")
    for name in ("models", "upstreams"):
        if isinstance(listed := row.get(name), list) and listed:
            lines.append(f"  {name:<10}{', '.join(map(str, listed))}")
    return "\n".join([*lines, _limits(row)])


def _limits(row: dict[str, Json]) -> str:
    listed = row.get("limits")
    lines = []
    for each in listed if isinstance(listed, list) else ():
        assert isinstance(each, dict)
        limit_id: LimitId = (str(each["scope"]), each["resource"], each["span"])  # type: ignore[assignment]
        amount, used = (render_amount(limit_id[1], int(str(each[name]))) for name in ("amount", "used"))
        scope = "" if limit_id[0].startswith("key:") else f"  ({limit_id[0]})"
        span = "" if limit_id[2] == "now" else f"/{limit_id[2]}"
        lines.append(f"  {limit_id[1]}{span}: {used} of {amount}{scope}")
    return "\n".join(lines) or "  no limits"


def _table(rows: Sequence[dict[str, Json]]) -> str:
    columns = ("ID", "NAME", "OWNER", "STATE", "EXPIRES", "LIMITS")
    cells = [
        [
            str(row["id"]),
            one_line(row["name"], 30),
            one_line(row.get("owner") or "-", 20),
            str(row["state"]),
            str(row.get("expires_at") or "-")[:10],
            ", ".join(map(str, listed)) if isinstance(listed := row.get("limits"), list) and listed else "-",
        ]
        for row in rows
    ]
    return "\n".join(table_lines([columns, *cells], Paint(sys.stdout)))
