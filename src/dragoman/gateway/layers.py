"""Layers of settings: defaults < presets < file < environment < flags. Every value keeps its origin. Pure.

A layer is flat: a place in the tree and what stands there. Tables of two layers mingle; a list replaces a list.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.gateway.problems import Key, Origin

PREFIX = "DRAGOMAN_"
NOT_SETTINGS = frozenset({"DRAGOMAN_CONFIG", "DRAGOMAN_KEY"})  # where the file is; what a client of ours is given
# What Kubernetes puts into the environment for a service named dragoman.
_SERVICE_LINK = re.compile(r"DRAGOMAN_(?:SERVICE_(?:HOST|PORT)\w*|PORT(?:_\d+_\w+)?)\Z")


class Leaf(Struct, frozen=True):
    value: Any
    origin: Origin


Leaves: TypeAlias = dict[Key, Leaf]


def flat(tree: Mapping[str, Any], origin: Callable[[Key], Origin], at: Key = ()) -> Leaves:
    """The leaves of a tree of tables. Lists of tables are gone into; an empty table is a leaf, lest it be lost."""
    leaves: Leaves = {}
    for name, value in tree.items():
        key = (*at, name)
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, origin, key)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for index, item in enumerate(value):
                leaves |= (
                    flat(item, origin, (*key, index)) if item else {(*key, index): Leaf({}, origin((*key, index)))}
                )
        else:
            leaves[key] = Leaf(dict(value) if isinstance(value, Mapping) else value, origin(key))
    return leaves


def stacked(*layers: Leaves) -> Leaves:
    """All layers as one; a later one wins."""
    whole: Leaves = {}
    for layer in layers:
        above = _Above(layer)
        whole = {key: leaf for key, leaf in whole.items() if not above.hides(key)} | layer
    return whole


class _Above:
    """A layer as those below it see it. Tables mingle, lists never do. Each key is asked for once, not against all."""

    def __init__(self, layer: Leaves) -> None:
        ways = [(key, at) for key in layer for at in range(len(key))]
        self._leaves = layer
        self._gone_into = {key[:at] for key, at in ways}
        self._lists = {key[:at] for key, at in ways if isinstance(key[at], int)}

    def hides(self, key: Key) -> bool:
        """Whether a leaf below is out of sight: replaced, or part of a value or list that is."""
        for at in range(len(key) + 1):
            way = key[:at]
            ends = at == len(key) or isinstance(key[at], int)
            leaf = self._leaves.get(way)
            if way in self._lists or (leaf is not None and (ends or leaf.value != {})):
                return True
            if ends:
                return way in self._gone_into
        return False


def nested(leaves: Leaves) -> dict[str, Any]:
    """The tree again."""
    tree: dict[str, Any] = {}
    for key, leaf in leaves.items():
        here: Any = tree
        for part, following in pairwise(key):
            here = _step(here, part, [] if isinstance(following, int) else {})
        _put(here, key[-1], {} if leaf.value == {} else leaf.value)
    return tree


def _step(here: Any, part: str | int, new: Any) -> Any:
    if isinstance(here, list):
        if part == len(here):
            here.append(new)
        return here[-1]
    return here.setdefault(part, new)


def _put(here: Any, part: str | int, value: Any) -> None:
    if isinstance(here, list):
        here.append(value)
    elif value == {}:
        here.setdefault(part, value)
    else:
        here[part] = value


# --- the environment and the command line


def from_environment(environ: Mapping[str, str], below: Leaves, top: Iterable[str]) -> tuple[Leaves, list[str]]:
    """DRAGOMAN_SERVER__PORT=1 is server.port = 1. Also warnings: names of ours that mean nothing."""
    leaves: Leaves = {}
    warnings: list[str] = []
    top = frozenset(top)
    for name in sorted(environ):
        text = environ[name]
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or not text or _SERVICE_LINK.match(name):
            continue
        parts = name[len(PREFIX) :].lower().split("__")
        if len(parts) == 1 and parts[0] not in top:
            warnings.append(f"{name} is no setting and is not read{_meant(parts[0], top)}")
            continue
        key = _named(parts, below)
        origin = Origin("environment", name)
        leaves = stacked(leaves, _leaf(key, _value(text), origin))
    return leaves, warnings


def from_flags(flags: Mapping[str, Any]) -> Leaves:
    """What a caller gives by dotted names: {"server.port": 0}. None is not given."""
    leaves: Leaves = {}
    for name, value in flags.items():
        if value is not None:
            leaves = stacked(leaves, _leaf(tuple(name.split(".")), value, Origin("flag", name)))
    return leaves


def _leaf(key: Key, value: Any, origin: Origin) -> Leaves:
    *way, last = key
    return flat({str(last): value}, lambda _: origin, tuple(way))


def _value(text: str) -> Any:
    """A list or a table is written as in TOML; everything else is text, and read as what the key wants."""
    if text[0] in "[{":
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    return text


def _named(parts: list[str], below: Leaves) -> Key:
    """Variables know neither case nor hyphens: `MY_BOX` finds the upstream that is called my-box."""
    key: Key = ()
    for part in parts:
        depth = len(key)
        names = (other[depth] for other in below if len(other) > depth and other[:depth] == key)
        key = (*key, next((name for name in names if isinstance(name, str) and _folded(name) == part), part))
    return key


def _folded(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


def _meant(name: str, top: Iterable[str]) -> str:
    for table in top:
        if name.startswith(f"{table}_"):
            rest = name.removeprefix(f"{table}_")
            return f"; did you mean {PREFIX}{table.upper()}__{rest.upper()}?"
    found = get_close_matches(name, list(top), 1)
    return f"; did you mean {PREFIX}{found[0].upper()}?" if found else ""
