"""The layers of a configuration: defaults < presets < file < environment < flags. Every value keeps its origin. Pure.

A layer is flat: it maps key paths to values. Tables of two layers are merged; a list replaces a list. A `Problem` names
the place (the file and line, or the variable), what is wrong, and what to do.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from msgspec import Struct, structs

from dragoman.errors import LocalMisuse
from dragoman.wire.toml_lines import KeyPath

# --- problems of a configuration


Layer: TypeAlias = Literal["default", "built-in", "preset", "file", "environment", "flag"]


class Origin(Struct, frozen=True):
    """Where a value comes from: the layer, and the place in it (a file and line, a variable, a preset, a flag)."""

    layer: Layer
    place: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.layer == "file":
            return f"{self.place}:{self.line}" if self.line else self.place
        return f"{self.layer} {self.place}".rstrip()


DEFAULT = Origin("default")


class Problem(Struct, frozen=True):
    """One problem of a configuration. `hint` says what to do about it."""

    at: str
    message: str
    hint: str = ""
    origin: Origin = DEFAULT

    def __str__(self) -> str:
        # The origin "default" is not shown: the user has to set the value somewhere else.
        source = f"{self.origin}: " if self.origin.layer != "default" else ""
        place = f"{self.at}: " if self.at else ""
        return f"{source}{place}{self.message}" + (f" ({self.hint})" if self.hint else "")


class ConfigError(LocalMisuse):
    """An invalid configuration, with all its problems; `hint` is that of the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)

    @property
    def hint(self) -> str:
        """The remedy of the first problem."""
        return self.problems[0].hint


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Return `did you mean NAME?`, or an empty string if no known name is similar."""
    found = get_close_matches(name.lower(), list(known), 1)
    return f"did you mean {found[0]}?" if found else ""


PREFIX = "DRAGOMAN_"
NOT_SETTINGS = frozenset({"DRAGOMAN_CONFIG", "DRAGOMAN_KEY"})  # the path of the file; the key for clients
# Variables that Kubernetes sets for a service named dragoman.
_SERVICE_LINK = re.compile(r"DRAGOMAN_(?:SERVICE_(?:HOST|PORT)\w*|PORT(?:_\d+_\w+)?)\Z")


class Leaf(Struct, frozen=True):
    """One value of a layer, with its origin."""

    value: Any
    origin: Origin


Leaves: TypeAlias = dict[KeyPath, Leaf]
_NO_LINES: Mapping[KeyPath, int] = {}


def flatten_tree(
    tree: Mapping[str, Any], origin: Origin, at: KeyPath = (), lines: Mapping[KeyPath, int] = _NO_LINES
) -> Leaves:
    """Return the leaves of a tree of tables. Lists of tables are flattened too; an empty table is a leaf."""

    def leaf(key: KeyPath, value: Any) -> Leaves:
        return {key: Leaf(value, structs.replace(origin, line=lines.get(key, 0)))}

    leaves: Leaves = {}
    for name, value in tree.items():
        key = (*at, name)
        if isinstance(value, Mapping) and value:
            leaves |= flatten_tree(value, origin, key, lines)
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for index, item in enumerate(value):
                leaves |= flatten_tree(item, origin, (*key, index), lines) if item else leaf((*key, index), {})
        else:
            leaves |= leaf(key, dict(value) if isinstance(value, Mapping) else value)
    return leaves


def merge_layers(*layers: Leaves) -> Leaves:
    """Merge layers; a later one overrides the ones before."""
    whole: Leaves = {}
    for layer in layers:
        above = _Override(layer)
        whole = {key: leaf for key, leaf in whole.items() if not above.hides(key)} | layer
    return whole


class _Override:
    """The keys that a layer overrides in the layers below it. Tables are merged, lists are replaced."""

    def __init__(self, layer: Leaves) -> None:
        prefixes = [(key, at) for key in layer for at in range(len(key))]
        self._leaves = layer
        self._tables = {key[:at] for key, at in prefixes}
        self._lists = {key[:at] for key, at in prefixes if isinstance(key[at], int)}

    def hides(self, key: KeyPath) -> bool:
        """Return whether this layer replaces the leaf, or a value or list that contains it."""
        for at in range(len(key) + 1):
            prefix = key[:at]
            ends = at == len(key) or isinstance(key[at], int)
            leaf = self._leaves.get(prefix)
            if prefix in self._lists or (leaf is not None and (ends or leaf.value != {})):
                return True
            if ends:
                return prefix in self._tables
        return False


def nest_leaves(leaves: Leaves) -> dict[str, Any]:
    """Return the tree of tables; the inverse of `flatten_tree`."""
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
    """Return the layer of the environment (DRAGOMAN_SERVER__PORT=1 is server.port = 1), and warnings.

    A warning names a variable with our prefix that is not a setting.
    """
    leaves: Leaves = {}
    warnings: list[str] = []
    top = frozenset(top)
    for name in sorted(environ):
        text = environ[name]
        if not name.startswith(PREFIX) or name in NOT_SETTINGS or not text or _SERVICE_LINK.match(name):
            continue
        parts = name[len(PREFIX) :].lower().split("__")
        if len(parts) == 1 and parts[0] not in top:
            warnings.append(f"{name} is not a setting and is ignored{_suggestion(parts[0], top)}")
            continue
        key = _named(parts, below)
        origin = Origin("environment", name)
        leaves = merge_layers(leaves, _leaf(key, _value(text), origin))
    return leaves, warnings


def from_flags(flags: Mapping[str, Any]) -> Leaves:
    """Return the layer of the flags, by dotted names: {"server.port": 0}. None means not set."""
    leaves: Leaves = {}
    for name, value in flags.items():
        if value is not None:
            leaves = merge_layers(leaves, _leaf(tuple(name.split(".")), value, Origin("flag", name)))
    return leaves


def _leaf(key: KeyPath, value: Any, origin: Origin) -> Leaves:
    *table, last = key
    return flatten_tree({str(last): value}, origin, tuple(table))


def _value(text: str) -> Any:
    """Parse a list or a table as TOML. Other values stay text, which `schema` converts to the type of the key."""
    if text[0] in "[{":
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    return text


def _named(parts: list[str], below: Leaves) -> KeyPath:
    """Find the key of a variable, which has neither case nor hyphens: `MY_BOX` is the upstream my-box."""
    key: KeyPath = ()
    for part in parts:
        depth = len(key)
        names = (other[depth] for other in below if len(other) > depth and other[:depth] == key)
        texts = (name for name in names if isinstance(name, str))
        found = (name for name in texts if name.lower().replace("-", "_").replace(".", "_") == part)
        key = (*key, next(found, part))
    return key


def _suggestion(name: str, top: Iterable[str]) -> str:
    for table in top:
        if name.startswith(f"{table}_"):
            rest = name.removeprefix(f"{table}_")
            return f"; did you mean {PREFIX}{table.upper()}__{rest.upper()}?"
    found = get_close_matches(name, list(top), 1)
    return f"; did you mean {PREFIX}{found[0].upper()}?" if found else ""
