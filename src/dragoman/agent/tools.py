"""Tools: Python functions that a model may call. Whatever they do, each call gets exactly one answer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct

from dragoman.agent.schema import function_schema, summary
from dragoman.errors import LocalMisuse
from dragoman.model.blocks import Media, Text
from dragoman.model.conversation import ToolSpec
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

NO_OUTPUT = "(no output)"
RAW = "raw_arguments"  # what arguments that are no object come as (D3)
_LONGEST_ERROR = 2000


class Tool(Struct, frozen=True):
    """A function with the name, description and schema that the model sees."""

    name: str
    function: Callable[..., Any]
    description: str
    schema: Mapping[str, Json]

    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, self.description, self.schema)

    def call(self, arguments: Mapping[str, Any]) -> tuple[Text | Media, ...]:
        """Call the function and give its answer. Raises ToolTrouble, whatever went wrong."""
        try:
            given = self._typed(arguments)
        except (msgspec.ValidationError, TypeError) as error:
            raise ToolTrouble(f"the arguments do not fit: {error}") from None
        try:
            result = self.function(**given)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
            return _content(result)
        except (Exception, SystemExit) as error:  # a tool may raise anything, and the model must be told
            words = str(error)[:_LONGEST_ERROR]
            raise ToolTrouble(f"{type(error).__name__}: {words}" if words else type(error).__name__) from error

    def _typed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function's own types: numbers from texts, dataclasses from objects."""
        signature = inspect.signature(self.function)
        if set(arguments) == {RAW} and RAW not in signature.parameters:
            raise TypeError(f"expected a JSON object, got {arguments[RAW]!r}"[:_LONGEST_ERROR])
        signature.bind(**arguments)  # names what is missing or too many
        try:
            hints = get_type_hints(self.function, include_extras=True)
        except (NameError, TypeError):
            hints = {}
        return {name: _converted(value, hints.get(name, Any), name) for name, value in arguments.items()}


class ToolTrouble(Exception):
    """A call that failed; its text is what the model is told."""


def _converted(value: Any, hint: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{name}: {error}") from None
    except TypeError:  # a hint that has no conversion: the function knows what to do with it
        return value


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


def _content(result: Any) -> tuple[Text | Media, ...]:
    """A result as content: blocks as they are, text as text, nothing as words, all else as JSON."""
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


def as_tool(given: object) -> Tool:
    """A tool out of a function. Raises LocalMisuse for what cannot be one."""
    if isinstance(given, Tool):
        return given
    name = getattr(given, "__name__", "")
    if not callable(given) or not name.isidentifier():  # a lambda has no name to be called by
        raise LocalMisuse(f"a tool is a function with a name, not {given!r}")
    try:
        schema = function_schema(given)
    except ValueError:  # a builtin without a signature
        raise LocalMisuse(f"the parameters of {name} cannot be known") from None
    return Tool(name, given, summary(given), schema)


class Toolbox:
    """The tools of a run, by name."""

    def __init__(self, tools: Iterable[Callable[..., Any] | Tool]) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in map(as_tool, tools):
            if tool.name in self._tools:
                raise LocalMisuse(f"two tools are named {tool.name}")
            self._tools[tool.name] = tool

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec() for tool in self._tools.values())

    def call(self, name: str, arguments: Mapping[str, Any]) -> tuple[tuple[Text | Media, ...], bool]:
        """The answer to a call, and whether it is an error. Never raises."""
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools) or "none"
            return (Text(f"There is no tool named {name!r}. The tools are: {known}."),), True
        try:
            return tool.call(arguments), False
        except ToolTrouble as trouble:
            return (Text(str(trouble)),), True
