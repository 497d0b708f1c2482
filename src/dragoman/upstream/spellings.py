"""How a secret may stand in a text: plainly, in JSON, in a URL, in base64; and the text without it. Pure."""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote, urlsplit

from dragoman.wire import jsonio

MASK = "***"
_SHORTEST = 6  # shorter ones would mask common words
_SHORTEST_CORE = 8


def masked(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, however they are spelt."""
    for spelling in _all_spellings(tuple(secrets)):
        if spelling in text:
            text = text.replace(spelling, MASK)
    return text


@lru_cache(maxsize=16)
def _all_spellings(secrets: tuple[str, ...]) -> tuple[str, ...]:
    found = {spelling for secret in secrets for spelling in spellings(secret)}
    return tuple(sorted(found, key=lambda each: (-len(each), each)))


def spellings(secret: str) -> set[str]:
    """All that gives the secret away; nothing for one too short to be told from a word."""
    return {each for part in (secret, *_inside(secret)) if len(part) >= _SHORTEST for each in _spelt(part)}


def _inside(secret: str) -> Iterator[str]:
    """The secrets within an address: a proxy is told its user and password on their own, and decoded."""
    if "@" not in secret:
        return
    try:
        user = urlsplit(secret if "://" in secret else f"//{secret}").netloc.rpartition("@")[0]
    except ValueError:
        return
    password = user.partition(":")[2]
    yield from (user, unquote(user), password, unquote(password))


def _spelt(text: str) -> Iterator[str]:
    yield text
    yield jsonio.quote(text).decode()[1:-1]
    for spelt in (quote(text, safe=""), quote(text), quote_plus(text)):
        yield spelt
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), spelt)
    raw = text.encode(errors="surrogatepass")
    for encode in (b64encode, urlsafe_b64encode):
        yield from (core for offset in range(3) if len(core := _core(raw, offset, encode)) >= _SHORTEST_CORE)


def _core(raw: bytes, offset: int, encode: Callable[[bytes], bytes]) -> str:
    """What is the same of its base64 wherever it stands in a longer text: after so many bytes, whatever follows."""
    encoded = encode(bytes(offset) + raw).decode()
    return encoded[(0, 2, 3)[offset] : len(encoded) - (0, 3, 2)[(offset + len(raw)) % 3]]
