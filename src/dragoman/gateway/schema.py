"""Convert a tree of settings into Structs, and report every invalid key with its place, not only the first. Pure.

msgspec converts single values. This module walks the tables itself, because a problem must name the key and its origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct, structs

from dragoman.gateway.layers import DEFAULT, Leaves, Origin, Problem, suggest_name
from dragoman.gateway.secret_sources import BadReference, ReferenceContext, expand_path
from dragoman.gateway.secrets import REMEDY, ConfiguredSecret, literal_secret, parse_reference
from dragoman.wire.toml_lines import KeyPath, dotted_key
from dragoman.wire.validation import explain_refusal, word_for

S = TypeVar("S", bound=Struct)

fields_of = cache(structs.fields)  # cached, because it evaluates the annotations each time

# Common wrong names of keys that are not similar to the right ones.
_OFTEN_MEANT = {
    "api_key": "key",
    "apikey": "key",
    "token": "key",
    "secret": "key",
    "url": "base_url",
    "endpoint": "base_url",
    "api_base": "base_url",
    "provider": "preset",
    "type": "preset",
    "format": "dialect",
    "bind": "host",
    "listen": "host",
    "fallback": "fallbacks",
    "to": "upstream",
    "pattern": "match",
}
# Keys that older versions had, and what to do about them.
_REMOVED: dict[KeyPath, str] = {
    ("server", "engine"): "it was removed: the gateway has one HTTP server; delete this setting",
}


class ConfigReader:
    """Converts tables and values, resolves secrets and paths, and collects the problems."""

    def __init__(
        self, leaves: Leaves, lines: Mapping[KeyPath, int], file: Path | None, around: ReferenceContext, literals: bool
    ) -> None:
        self.problems: list[Problem] = []
        self.reference_context = around
        self.allows_literals = literals
        self._leaves = leaves
        self._lines = lines
        self._file = file

    def problem(self, key: KeyPath, message: str, hint: str = "") -> None:
        """Add a problem of this key."""
        self.problems.append(Problem(dotted_key(key), message, hint, self.origin(key)))

    def origin(self, key: KeyPath) -> Origin:
        """Return the origin of a key: of the value, else of a value in the table, else of the table around it."""
        if key in self._leaves:
            return self._leaves[key].origin
        inside = [leaf.origin for other, leaf in self._leaves.items() if other[: len(key)] == key]
        explicit = [origin for origin in inside if origin.layer not in ("default", "preset")] if key else []
        if explicit:
            return self._whole(explicit[0], key)
        return self.origin(key[:-1]) if key else Origin("file", str(self._file)) if self._file else DEFAULT

    def _whole(self, origin: Origin, key: KeyPath) -> Origin:
        if origin.layer == "file" and key in self._lines:
            return Origin("file", origin.place, self._lines[key])
        return origin

    # --- tables

    def table(self, shape: type[S], tree: object, at: KeyPath) -> S | None:
        """Return the table as this Struct; None if it has problems, which are added to `problems`."""
        before = len(self.problems)
        values = self.fields(fields_of(shape), tree, at)
        return shape(**values) if len(self.problems) == before else None

    def fields(self, fields: Iterable[structs.FieldInfo], tree: object, at: KeyPath) -> dict[str, Any]:
        """Return the values of a table by name. Invalid ones are reported and left out."""
        known = {field.name: field for field in fields}
        if not isinstance(tree, Mapping):
            self.problem(at, f"expected a table, got {_kind(tree)}")
            return {}
        values: dict[str, Any] = {}
        for name, value in tree.items():
            if name not in known:
                self.problem((*at, name), "there is no such key", _REMOVED.get((*at, name)) or _hint(name, known))
            else:
                self._field(known[name], value, (*at, name), values)
        for field in known.values():
            if field.name not in tree and field.default is NODEFAULT and field.default_factory is NODEFAULT:
                self.problem(at, f"{field.name} is missing")
        return values

    def _field(self, field: structs.FieldInfo, value: object, key: KeyPath, values: dict[str, Any]) -> None:
        inner = _struct_of(field.type)
        if inner is not None:
            parsed: object = self.table(inner, value, key)
            if parsed is not None:
                values[field.name] = parsed
            return
        try:
            values[field.name] = self.value(field.type, value, key)
        except InvalidValue as wrong:
            self.problem(key, wrong.message, wrong.hint)

    # --- values

    def value(self, wanted: Any, value: object, key: KeyPath) -> Any:
        """Return the value, converted to the wanted type. Raises InvalidValue."""
        # Values of the environment and the command line are text, also for numbers.
        lax = self.origin(key).layer in ("environment", "flag")

        def hook(kind: type, raw: Any) -> Any:
            if not isinstance(raw, str):
                raise InvalidValue(f"expected a string, got {_kind(raw)}")
            if kind is ConfiguredSecret:
                return self.secret(raw, key)
            return expand_path(raw, self.reference_context.folder, self.reference_context.home)

        try:
            return msgspec.convert(value, wanted, strict=not lax, dec_hook=hook)
        except msgspec.ValidationError as error:
            cause = error.__cause__
            raise cause if isinstance(cause, InvalidValue) else _describe(error, wanted, value) from None

    def parse_reference(self, text: str) -> ConfiguredSecret | None:
        """Return the secret of a reference; None if the text is not a reference. Raises InvalidValue."""
        try:
            return parse_reference(text, self.reference_context)
        except BadReference as error:
            raise InvalidValue(str(error)) from None

    def secret(self, text: str, key: KeyPath) -> ConfiguredSecret:
        """Return the secret of a setting. Raises InvalidValue, which never contains the text."""
        try:
            secret = self.parse_reference(text)
            if secret is not None:
                return secret
            origin = self.origin(key)
            if origin.layer == "environment":  # An environment variable is a reference itself.
                named = parse_reference(f"env:{origin.place}", self.reference_context)
                if named is not None and self.reference_context.environ.get(origin.place) == text:
                    return named
            if self.allows_literals:
                return literal_secret(text)
        except BadReference as error:
            raise InvalidValue(str(error)) from None
        raise InvalidValue("a secret must not be written in the configuration", REMEDY)


class InvalidValue(ValueError):
    """An invalid value, with a message and a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def _struct_of(kind: Any) -> type[Struct] | None:
    options = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((option for option in options if isinstance(option, type) and issubclass(option, Struct)), None)


def _hint(name: str, known: Iterable[str]) -> str:
    known = list(known)
    meant = _OFTEN_MEANT.get(name.lower())
    if meant in known:
        return f"did you mean {meant}?"
    return suggest_name(name, known) or f"known here: {', '.join(known)}"


def _describe(error: msgspec.ValidationError, wanted: Any, value: object) -> InvalidValue:
    """Return an error of msgspec as an InvalidValue, without terms of Python."""
    words = _literals(wanted)
    if words and isinstance(value, str):
        return InvalidValue(f"{value!r} is not allowed; use one of {', '.join(words)}", suggest_name(value, words))
    refused = explain_refusal(error)
    return InvalidValue(f"item {refused}" if refused.at else refused.message)


def _literals(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [word for word in get_args(kind) if isinstance(word, str)]
    return [word for option in get_args(kind) for word in _literals(option)] if get_origin(kind) else []


def _kind(value: object) -> str:
    name = {"dict": "object", "list": "array"}.get(type(value).__name__, type(value).__name__)
    return word_for(name)
