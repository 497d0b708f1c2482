"""Keep the network addresses of upstreams out of errors that clients get. The log has them. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import urlsplit

from dragoman.errors import Kind

Known: TypeAlias = tuple[str, str]  # a URL, and the words that stand for it

_ANY = "an address"
# Errors of these kinds are about the request, which may hold addresses of its own.
_OF_THE_REQUEST: frozenset[Kind] = frozenset({"invalid", "context_full", "too_large", "not_found"})
_PORTS = {"http": 80, "https": 443}
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?(?![\w.]*\d)", re.ASCII)
_IPV6 = re.compile(r"(?<![\w:.])\[?[0-9a-fA-F:]{2,39}(?:\.\d{1,3}){0,3}\]?", re.ASCII)


def without_addresses(text: str, known: Iterable[Known], kind: Kind) -> str:
    """The text with words in place of known addresses, and of any IP address unless the fault is the request's."""
    low = text.lower()
    for host, pattern, words in _patterns(tuple(dict.fromkeys(known))):
        if host in low or "port" in low:
            text = pattern.sub(words, text)
    if kind in _OF_THE_REQUEST:
        return text
    if ":" in text:
        text = _IPV6.sub(_ip_hidden, text)
    return _IPV4.sub(_ANY, text)


def _ip_hidden(found: re.Match[str]) -> str:
    try:
        ipaddress.IPv6Address(found[0].strip("[]"))
    except ValueError:
        return found[0]
    return _ANY


@lru_cache(maxsize=16)
def _patterns(known: tuple[Known, ...]) -> tuple[tuple[str, re.Pattern[str], str], ...]:
    made = (_pattern(url, words) for url, words in known)
    return tuple(sorted((each for each in made if each is not None), key=lambda each: -len(each[0])))


def _pattern(url: str, words: str) -> tuple[str, re.Pattern[str], str] | None:
    """What finds a URL's host in a text: in a URL, with a port, alone, and its port after the word `port`.

    A host of one label, such as `ollama`, is also an ordinary word, so it is found in a URL or with a port only.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return None
    if not host:
        return None
    name = rf"\[?{re.escape(host)}\]?"
    alone = "?" if "." in host or ":" in host else ""
    ways = [
        rf"(?:https?|wss?)://(?:[^\s/@]{{0,200}}@)?{name}(?::\d{{1,5}})?(?![\w-]|\.\w)(?:[/?#][^\s\"'<>]*)?",
        rf"(?<![\w.-]){name}(?::\d{{1,5}}){alone}(?![\w-]|\.\w)",
    ]
    if port is not None and port != _PORTS.get(parts.scheme):
        ways.append(rf"\bport[ =:]{{1,3}}{port}\b")
    return host, re.compile("|".join(ways), re.IGNORECASE | re.ASCII), words
