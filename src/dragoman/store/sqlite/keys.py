"""Client keys, limits and their changes, as SQL on a connection to `keys.db`. The caller holds the transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from dragoman.errors import LocalMisuse
from dragoman.store.interface import ALL, ClientKey, Limit, LimitId
from dragoman.store.sqlite.files import Connection
from dragoman.wire import jsonio

_COLUMNS = ", ".join(ClientKey.__struct_fields__)
_SELECT_KEY = f"SELECT {_COLUMNS} FROM client_key"
# A revoked key stays revoked, also if another process writes what it read before.
_PUT_KEY = f"""INSERT INTO client_key ({_COLUMNS}) VALUES ({", ".join("?" * len(ClientKey.__struct_fields__))})
    ON CONFLICT (id) DO UPDATE SET
        digest = excluded.digest, name = excluded.name, owner = excluded.owner, models = excluded.models,
        upstreams = excluded.upstreams, created_at = excluded.created_at, expires_at = excluded.expires_at,
        revoked_at = coalesce(client_key.revoked_at, excluded.revoked_at), revision = excluded.revision,
        former_digest = excluded.former_digest, former_until = excluded.former_until"""
_PUT_LIMIT = "INSERT INTO usage_limit (scope, resource, span, amount, since) VALUES (?, ?, ?, ?, ?)"
_CHUNK = 500  # parameters of one statement
_names_of = jsonio.typed_decoder(tuple[str, ...])


class StoredLimit(Struct, frozen=True):
    """A limit, and the change with which its scope got its first limit of this span."""

    limit: Limit
    since: int


def find_key(connection: Connection, column: str, value: str | bytes) -> ClientKey | None:
    """Return the key whose `id`, `digest` or `former_digest` has this value."""
    row = connection.execute(f"{_SELECT_KEY} WHERE {column} = ?", (value,)).fetchone()
    return None if row is None else _key_of(row)


def all_keys(connection: Connection) -> list[ClientKey]:
    """Return all keys, in the order of their creation."""
    return [_key_of(row) for row in connection.execute(f"{_SELECT_KEY} ORDER BY created_at, id")]


def _key_of(row: Sequence[Any]) -> ClientKey:
    values = dict(zip(ClientKey.__struct_fields__, row, strict=True))
    values["models"], values["upstreams"] = _names_of(values["models"]), _names_of(values["upstreams"])
    return ClientKey(**values)


def put_key(connection: Connection, key: ClientKey, now: float) -> None:
    """Add a key, or replace the one with its id."""
    models, upstreams = jsonio.encode(key.models).decode(), jsonio.encode(key.upstreams).decode()
    values = (
        key.id, key.digest, key.name, key.owner, models, upstreams, key.created_at, key.expires_at, key.revoked_at,
        key.revision, key.former_digest, key.former_until,
    )  # fmt: skip
    try:
        connection.execute(_PUT_KEY, values)
    except sqlite3.IntegrityError:
        raise LocalMisuse(f"the key {key.id} has the digest of another key, or lacks a value.") from None
    _add_change(connection, f"key:{key.id}", now)


def limits_of(connection: Connection, scopes: Sequence[str]) -> list[StoredLimit]:
    """Return the limits of these scopes; of all scopes for an empty sequence."""
    select, order = "SELECT scope, resource, span, amount, since FROM usage_limit", "ORDER BY scope, resource, span"
    if not scopes:
        rows = connection.execute(f"{select} {order}").fetchall()
    else:
        rows = []
        for start in range(0, len(scopes), _CHUNK):
            some = scopes[start : start + _CHUNK]
            rows += connection.execute(f"{select} WHERE scope IN ({', '.join('?' * len(some))}) {order}", some)
    return [StoredLimit(Limit(*row[:4]), row[4]) for row in rows]


def put_limits(connection: Connection, scope: str, limits: Sequence[Limit], now: float) -> list[LimitId]:
    """Replace all limits of a scope; return the ids of those that were removed. Raises LocalMisuse."""
    _check_limits(scope, limits)
    before = limits_of(connection, (scope,))
    since = {each.limit.span: each.since for each in before}
    number = _add_change(connection, scope, now)
    connection.execute("DELETE FROM usage_limit WHERE scope = ?", (scope,))
    rows = [(scope, each.resource, each.span, each.amount, since.get(each.span, number)) for each in limits]
    connection.executemany(_PUT_LIMIT, rows)
    remaining = {each.id for each in limits}
    return [each.limit.id for each in before if each.limit.id not in remaining]


def _check_limits(scope: str, limits: Sequence[Limit]) -> None:
    if scope != ALL and not scope.startswith(("key:", "owner:")):
        raise LocalMisuse(f"{scope!r} is no scope of limits: use key:ID, owner:NAME or all.")
    for limit in limits:
        if limit.scope != scope:
            raise LocalMisuse(f"the limit {limit.id} does not belong to the scope {scope!r}.")
        if (limit.resource == "concurrency") != (limit.span == "now"):
            raise LocalMisuse(f"the limit {limit.id} has a span that {limit.resource} cannot have.")
        if not 0 <= limit.amount < 1 << 62:
            raise LocalMisuse(f"the limit {limit.id} has an amount that is too small or too large: {limit.amount}.")
    if len({limit.id for limit in limits}) != len(limits):
        raise LocalMisuse(f"the limits of {scope!r} name one resource and span twice.")


def _add_change(connection: Connection, what: str, now: float) -> int:
    return connection.execute("INSERT INTO change (what, at) VALUES (?, ?)", (what, now)).lastrowid or 0


def last_change(connection: Connection) -> int:
    """Return the number of the last change."""
    [number] = connection.execute("SELECT max(number) FROM change").fetchone()
    return number or 0


def changed_since(connection: Connection, number: int) -> list[str]:
    """Return what changed after this number, each once, in the order of the last change."""
    sql = "SELECT what FROM change WHERE number > ? GROUP BY what ORDER BY max(number)"
    return [what for (what,) in connection.execute(sql, (number,))]
