"""Management of keys and limits: what `dragoman keys` and the inspector's page of keys do, with the same rules.

Functions take an open store. They raise LocalMisuse for what is not possible, and StoreUnavailable.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec import structs

from dragoman.accounts.keys import create_key, rotate_key
from dragoman.errors import LocalMisuse
from dragoman.store.interface import ALL, ClientKey, Limit, Store

_LONGEST_NAME = 100  # characters of the name of a key or an owner


async def add_key(
    store: Store,
    name: str,
    *,
    owner: str = "",
    models: Sequence[str] = (),
    upstreams: Sequence[str] = (),
    expires_at: float | None = None,
    limits: Sequence[Limit] = (),
) -> tuple[str, ClientKey]:
    """Create a key. Return its text, which is not stored, and the key. The scope of `limits` is filled in."""
    for what, text in (("name of a key", name), ("owner", owner)):
        if len(text) > _LONGEST_NAME or not text.isprintable() or text != text.strip():
            raise LocalMisuse(
                f"the {what} may have at most {_LONGEST_NAME} printable characters, and no space at its ends"
            )
    if not name:
        raise LocalMisuse("a key needs a name")
    if expires_at is not None and expires_at <= time.time():
        raise LocalMisuse("the key would expire in the past; give a later time")
    if any(is_valid(key) and key.name == name for key in await store.keys()):
        raise LocalMisuse(f"there is a key {name!r} already; revoke it, rotate it, or choose another name")
    text, key = create_key(name, owner=owner, models=models, upstreams=upstreams, expires_at=expires_at)
    await store.put_key(key)
    if limits:
        await store.put_limits(f"key:{key.id}", [structs.replace(limit, scope=f"key:{key.id}") for limit in limits])
    return text, key


async def find_key(store: Store, name: str) -> ClientKey:
    """Return the key with this id or name; of several with one name, the one that is valid."""
    found = [key for key in await store.keys() if name in (key.id, key.name)]
    found.sort(key=lambda key: (key.id == name, is_valid(key), key.created_at))
    if not found:
        raise LocalMisuse(f"there is no key {name!r}; `dragoman keys list` shows the keys")
    return found[-1]


async def revoke_key(store: Store, name: str) -> ClientKey:
    """Revoke a key. A revoked key cannot be used again."""
    key = await find_key(store, name)
    if key.revoked_at is not None:
        raise LocalMisuse(f"the key {key.name} ({key.id}) was revoked before")
    revoked = structs.replace(key, revoked_at=time.time())
    await store.put_key(revoked)
    return revoked


async def replace_secret(store: Store, name: str, grace: float) -> tuple[str, ClientKey]:
    """Give a key a new secret; the old one is accepted for `grace` seconds. Return the text and the key."""
    key = await find_key(store, name)
    if not is_valid(key):
        raise LocalMisuse(f"the key {key.name} ({key.id}) was revoked or has expired; create another one")
    text, rotated = rotate_key(key, grace)
    await store.put_key(rotated)
    return text, rotated


async def scope_of(store: Store, text: str) -> str:
    """Return the scope of limits that a text names: `all`, `owner:NAME`, or the id or name of a key."""
    if text == ALL or text.startswith("owner:"):
        return text
    return f"key:{(await find_key(store, text)).id}"


async def set_limits(store: Store, scope: str, limits: Sequence[Limit]) -> None:
    """Replace all limits of a scope."""
    twice = [limit.id for limit in limits if sum(each.id == limit.id for each in limits) > 1]
    if twice:
        raise LocalMisuse(f"{twice[0][1]}/{twice[0][2]} is given twice; give each limit once")
    await store.put_limits(scope, limits)


def is_valid(key: ClientKey, now: float | None = None) -> bool:
    """Return whether a key can be used: it was not revoked and has not expired."""
    at = time.time() if now is None else now
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > at)
