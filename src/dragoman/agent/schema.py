"""The JSON schema of a Python function's parameters, from its type hints and its docstring."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from msgspec import NODEFAULT, Struct, structs

from dragoman.errors import LocalMisuse
from dragoman.wire.jsonio import Json

_PLAIN: dict[Any, dict[str, Json]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    bytes: {"type": "string", "contentEncoding": "base64"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    set: {"type": "array", "uniqueItems": True},
    dict: {"type": "object"},
}
_SPHINX = re.compile(r"^[ \t]*:param\s+(?:\w+\s+)?(\w+):\s*(.+)$", re.MULTILINE)
_SECTION = re.compile(r"^\s*(?:args|arguments|parameters):\s*$", re.IGNORECASE)
_ITEM = re.compile(r"^(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")


def function_schema(function: Callable[..., Any]) -> dict[str, Json]:
    """The schema of a function's parameters. Raises LocalMisuse for parameters that have no name to be given by."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    told = parameter_texts(function)
    properties: dict[str, Json] = {}
    required: list[Json] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise LocalMisuse(f"a tool's parameters are given by name; {function.__name__} has {parameter}")
        schema = type_schema(hints.get(name, Any))
        if name in told and "description" not in schema:
            schema["description"] = told[name]
        properties[name] = schema
        if parameter.default is parameter.empty:
            required.append(name)
    schema = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def type_schema(hint: Any) -> dict[str, Json]:
    """The schema of a type; what we do not know may be anything."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        words = [note for note in notes if isinstance(note, str)]
        return type_schema(inner) | ({"description": words[0]} if words else {})
    if hint in _PLAIN:
        return {**_PLAIN[hint]}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if is_typeddict(hint) or dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, Struct)):
        return _record(hint)
    return _generic(get_origin(hint), get_args(hint))


def _generic(origin: Any, arguments: tuple[Any, ...]) -> dict[str, Json]:
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(each) for each in arguments]}
    if not isinstance(origin, type):
        return {}
    if issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": type_schema(arguments[-1])}
    if issubclass(origin, tuple) and arguments and arguments[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [type_schema(each) for each in arguments]}
    if issubclass(origin, Sequence | AbstractSet):
        schema: dict[str, Json] = {"type": "array", "items": type_schema(arguments[0])}
        return schema | {"uniqueItems": True} if issubclass(origin, AbstractSet) else schema
    return {}


def _record(hint: Any) -> dict[str, Json]:
    hints = get_type_hints(hint, include_extras=True)
    properties: dict[str, Json] = {name: type_schema(each) for name, each in hints.items()}
    required: list[Json] = [name for name in hints if name in _required(hint)]
    schema: dict[str, Json] = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def _required(hint: Any) -> set[str]:
    if is_typeddict(hint):
        return set(hint.__required_keys__)
    if dataclasses.is_dataclass(hint):
        missing = dataclasses.MISSING
        return {field.name for field in dataclasses.fields(hint) if field.default is missing is field.default_factory}
    return {field.name for field in structs.fields(hint) if field.default is NODEFAULT is field.default_factory}


# --- docstrings


def summary(function: Callable[..., Any]) -> str:
    """What a function does: its docstring up to the part about parameters."""
    lines: list[str] = []
    for line in inspect.cleandoc(function.__doc__ or "").splitlines():
        if _SECTION.match(line) or line.lstrip().startswith((":param", ":return", ":raises")):
            break
        if re.match(r"\s*(returns|raises|yields|examples?):\s*$", line, re.IGNORECASE):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def parameter_texts(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each parameter, in Sphinx's or Google's manner."""
    doc = inspect.cleandoc(function.__doc__ or "")
    told = {name: text.strip() for name, text in _SPHINX.findall(doc)}
    lines = doc.splitlines()
    start = next((index for index, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    current, indent = "", 0
    for line in lines[start + 1 :]:
        item = _ITEM.match(line)
        if item and (not indent or len(item[1]) == indent):
            current, indent = item[2], len(item[1])
            told[current] = item[3].strip()
        elif current and line.startswith(" " * (indent + 1)):
            told[current] = f"{told[current]} {line.strip()}".strip()
        elif line.strip():
            break
    return told
