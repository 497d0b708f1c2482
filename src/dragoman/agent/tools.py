"""Tools: Python functions that a model may call.

`as_tool` derives name, description and JSON schema from a function's signature, type hints and docstring. `Toolbox`
runs calls: each gives exactly one result, also if the tool is unknown, the arguments do not fit, or the tool fails.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
import types
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from msgspec import NODEFAULT, Struct, structs

from dragoman.errors import LocalMisuse
from dragoman.model.blocks import Media, Text
from dragoman.model.conversation import ToolSpec
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

NO_OUTPUT = "(no output)"
RAW_ARGUMENTS = "raw_arguments"  # the key of arguments that are not an object (docs/decisions/content.md#d3)
_LONGEST_ERROR = 2000


class Tool(Struct, frozen=True):
    """A function with the name, description and schema that the model sees."""

    name: str
    function: Callable[..., Any]
    description: str
    schema: Mapping[str, Json]

    def spec(self) -> ToolSpec:
        """Return the declaration of the tool for a request."""
        return ToolSpec(self.name, self.description, self.schema)

    def call(self, arguments: Mapping[str, Any]) -> tuple[Text | Media, ...]:
        """Call the function and return its result as content. Raises ToolError for any failure."""
        try:
            converted = self._typed(arguments)
        except (msgspec.ValidationError, TypeError) as error:
            raise ToolError(f"the arguments do not fit: {error}") from None
        try:
            result = self.function(**converted)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            return _content(result)
        except (Exception, SystemExit) as error:  # a tool may raise anything, and the model needs the error
            text = str(error)[:_LONGEST_ERROR]
            raise ToolError(f"{type(error).__name__}: {text}" if text else type(error).__name__) from error

    def _typed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the arguments to the types of the function: numbers from texts, dataclasses from objects."""
        signature = inspect.signature(self.function)
        if set(arguments) == {RAW_ARGUMENTS} and RAW_ARGUMENTS not in signature.parameters:
            raise TypeError(f"expected a JSON object, got {arguments[RAW_ARGUMENTS]!r}"[:_LONGEST_ERROR])
        signature.bind(**arguments)  # raises TypeError with the name that is missing or unexpected
        try:
            hints = get_type_hints(self.function, include_extras=True)
        except (NameError, TypeError):
            hints = {}
        return {name: _converted(value, hints.get(name, Any), name) for name, value in arguments.items()}


class ToolError(Exception):
    """A failed call; its text is the result that the model gets."""


def _converted(value: Any, hint: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{name}: {error}") from None
    except TypeError:  # msgspec cannot convert to this type, so the function gets the value unchanged
        return value


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _content(result: Any) -> tuple[Text | Media, ...]:
    """Return a result as content blocks: text as text, None as a placeholder, other values as JSON."""
    if isinstance(result, Text | Media):
        return (result,)
    if isinstance(result, list | tuple) and result and all(isinstance(each, Text | Media) for each in result):
        return tuple(result)
    if result is None or result == "":
        return (Text(NO_OUTPUT),)
    if isinstance(result, str):
        return (Text(result),)
    try:
        return (Text(jsonio.encode(result).decode()),)
    except jsonio.JsonError:
        return (Text(str(result)),)


def as_tool(function: object) -> Tool:
    """Return a function as a tool. Raises LocalMisuse if it has no name or no known parameters."""
    if isinstance(function, Tool):
        return function
    name = getattr(function, "__name__", "")
    if not callable(function) or not name.isidentifier():  # a lambda has no usable name
        raise LocalMisuse(f"a tool must be a function with a name, not {function!r}")
    try:
        schema = function_schema(function)
    except ValueError:  # a builtin without a signature
        raise LocalMisuse(f"the tool {name} has no readable signature; wrap it in a Python function") from None
    return Tool(name, function, summary(function), schema)


class Toolbox:
    """The tools of a run, by name."""

    def __init__(self, tools: Iterable[Callable[..., Any] | Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in map(as_tool, tools):
            if tool.name in self._tools:
                raise LocalMisuse(f"two tools have the name {tool.name}")
            self._tools[tool.name] = tool

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the declarations of all tools for a request."""
        return tuple(tool.spec() for tool in self._tools.values())

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[tuple[Text | Media, ...], bool]:
        """Return the result of a call, and whether it is an error. Never raises."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return (Text(f"There is no tool named {name!r}. The tools are: {known}."),), True
        try:
            return tool.call(arguments), False
        except ToolError as error:
            return (Text(str(error)),), True


# --- the JSON schema of a function's parameters, from its type hints and its docstring


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
    """Return the schema of a function's parameters. Raises LocalMisuse if one cannot be passed by name."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        hints = {}
    descriptions = parameter_descriptions(function)
    properties: dict[str, Json] = {}
    required: list[Json] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise LocalMisuse(f"a tool's parameters are passed by name, but {function.__name__} has {parameter}")
        schema = type_schema(hints.get(name, Any))
        if name in descriptions and "description" not in schema:
            schema["description"] = descriptions[name]
        properties[name] = schema
        if parameter.default is parameter.empty:
            required.append(name)
    schema = {"type": "object", "properties": properties}
    return schema | ({"required": required} if required else {})


def type_schema(hint: Any) -> dict[str, Json]:
    """Return the JSON schema of a type; an unknown type gives a schema that allows any value."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        texts = [note for note in notes if isinstance(note, str)]
        return type_schema(inner) | ({"description": texts[0]} if texts else {})
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
    """Return the docstring of a function, up to its section about parameters."""
    lines: list[str] = []
    for line in inspect.cleandoc(function.__doc__ or "").splitlines():
        if _SECTION.match(line) or line.lstrip().startswith((":param", ":return", ":raises")):
            break
        if re.match(r"\s*(returns|raises|yields|examples?):\s*$", line, re.IGNORECASE):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def parameter_descriptions(function: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each parameter in a docstring, in Sphinx's or Google's style."""
    doc = inspect.cleandoc(function.__doc__ or "")
    descriptions = {name: text.strip() for name, text in _SPHINX.findall(doc)}
    lines = doc.splitlines()
    start = next((index for index, line in enumerate(lines) if _SECTION.match(line)), len(lines))
    current, indent = "", 0
    for line in lines[start + 1 :]:
        item = _ITEM.match(line)
        if item and (not indent or len(item[1]) == indent):
            current, indent = item[2], len(item[1])
            descriptions[current] = item[3].strip()
        elif current and line.startswith(" " * (indent + 1)):
            descriptions[current] = f"{descriptions[current]} {line.strip()}".strip()
        elif line.strip():
            break
    return descriptions
