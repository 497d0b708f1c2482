"""The effective configuration, value by value, each with the layer that it comes from. Secrets are masked. Pure."""

from __future__ import annotations

import re
import tomllib
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.gateway.access_log import CONTROL
from dragoman.gateway.layers import Leaf, Leaves, Origin
from dragoman.gateway.secrets import MASK, show_reference
from dragoman.gateway.upstream_config import UpstreamTable, is_secret_header
from dragoman.wire.toml_lines import KeyPath, dotted_key

_KEYS = UpstreamTable.__struct_fields__
_TABLES = ("server", "log", "upstreams", "models", "routes", "default")
_PLAIN = re.compile(r"(?:true|false|0|[1-9]\d{0,17}(?:\.\d+)?)\Z")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


class SettingLine(Struct, frozen=True):
    """One setting, as `dragoman config show` prints it."""

    key: str
    value: Any
    origin: Origin


def setting_lines(leaves: Leaves) -> list[SettingLine]:
    """Return all settings, in the order of the tables and of their keys."""
    order = {table: index for index, table in enumerate(dict.fromkeys(key[:2] for key in leaves if len(key) > 2))}

    def rank(key: KeyPath) -> tuple[bool, int, int, int]:
        name = key[2] if len(key) > 2 and key[0] == "upstreams" else ""
        place = _KEYS.index(name) if name in _KEYS else len(_KEYS)
        return len(key) > 1, _TABLES.index(key[0]) if key[0] in _TABLES else 0, order.get(key[:2], 0), place

    return [_line(key, leaves[key]) for key in sorted(leaves, key=rank)]


def _line(key: KeyPath, leaf: Leaf) -> SettingLine:
    value = _masked(key, leaf.value)
    if leaf.origin.layer in ("environment", "flag") and isinstance(value, str) and _PLAIN.match(value):
        value = tomllib.loads(f"value = {value}")["value"]  # The text of a number is shown as a number.
    return SettingLine(_spelt(key), value, leaf.origin)


def toml_value(value: object) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        value = value.encode(errors="replace").decode()  # The environment may contain bytes that are not UTF-8.
        return '"' + CONTROL.sub(_escaped, value.replace("\\", "\\\\").replace('"', '\\"')) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(str(name))} = {toml_value(item)}" for name, item in value.items()) + "}"
    return str(value)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _spelt(key: KeyPath) -> str:
    return dotted_key(tuple(_quoted(part) if isinstance(part, str) else part for part in key))


def _quoted(name: str) -> str:
    return name if _BARE.match(name) else toml_value(name)


def _masked(key: KeyPath, value: object) -> object:
    match key:
        case ("server", "key") | ("upstreams", _, "key"):
            return [_hidden(item) for item in value] if isinstance(value, list) else _hidden(value)
        case ("upstreams", _, "headers", str(name)) if is_secret_header(name):
            return _hidden(value)
        case ("upstreams", _, "proxy" | "base_url"):
            return _without_user(value)
        case _:
            return value


def _hidden(value: object) -> str:
    return show_reference(value) if isinstance(value, str) else MASK


def _without_user(value: object) -> object:
    if not isinstance(value, str) or "@" not in value:
        return value
    return urlsplit(value)._replace(netloc=f"{MASK}@{value.rpartition('@')[2].partition('/')[0]}").geturl()
