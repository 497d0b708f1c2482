"""Python functions as tools: their schemas, their arguments, their results."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from dragoman.agent import Tool, as_tool
from dragoman.agent.tools import Toolbox, ToolError, function_schema, parameter_descriptions, summary, type_schema
from dragoman.errors import LocalMisuse
from dragoman.model.blocks import Media, Text


class Unit(Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclass
class Place:
    city: str
    zip: str = ""


class Options(TypedDict, total=False):
    verbose: bool


class Point(msgspec.Struct):
    x: float
    y: float = 0.0


def weather(city: str, days: int = 1, unit: Unit = Unit.CELSIUS, *, place: Place | None = None) -> str:
    """Return the weather.

    It is always sunny.

    Args:
        city: the city's name,
            spelt out
        days (int): how many

    Returns:
        words
    """
    return f"{city} {days} {unit.value} {place}"


def test_a_schema_says_types_descriptions_and_what_is_required() -> None:
    tool = as_tool(weather)
    assert (tool.name, tool.description) == ("weather", "Return the weather.\n\nIt is always sunny.")
    place = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "zip": {"type": "string"}},
        "required": ["city"],
    }
    assert tool.schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "the city's name, spelt out"},
            "days": {"type": "integer", "description": "how many"},
            "unit": {"enum": ["c", "f"]},
            "place": {"anyOf": [place, {"type": "null"}]},
        },
        "required": ["city"],
    }


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (tuple[int, str], {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[str, "a name"], {"type": "string", "description": "a name"}),
        (Options, {"type": "object", "properties": {"verbose": {"type": "boolean"}}}),
        (
            Point,
            {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x"]},
        ),
        (Any, {}),
        (object, {}),
    ],
)
def test_types(hint: Any, schema: Any) -> None:
    assert type_schema(hint) == schema


def test_docstrings_in_sphinxs_manner() -> None:
    def search(query: str, limit: int) -> None:
        """Search.

        :param query: what for
        :param int limit: how many
        :returns: nothing
        """

    assert summary(search) == "Search."
    assert parameter_descriptions(search) == {"query": "what for", "limit": "how many"}


def test_a_function_without_hints_or_words_is_a_tool_too() -> None:
    def plain(a, b=1):  # type: ignore[no-untyped-def]
        return a

    assert function_schema(plain) == {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
    assert as_tool(plain).description == ""


@pytest.mark.parametrize("bad", [lambda x: x, 3, "name"])
def test_what_has_no_name_is_no_tool(bad: Any) -> None:
    with pytest.raises(LocalMisuse):
        as_tool(bad)


def test_parameters_that_cannot_be_named_are_refused() -> None:
    def several(*items: int) -> None: ...

    with pytest.raises(LocalMisuse, match="by name"):
        as_tool(several)
    with pytest.raises(LocalMisuse, match="two tools"):
        Toolbox([weather, weather])


# --- calling


def test_arguments_come_as_the_functions_own_types() -> None:
    (response,) = as_tool(weather).call({"city": "Oslo", "days": "3", "unit": "f", "place": {"city": "x"}})
    assert response == Text("Oslo 3 f Place(city='x', zip='')")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "city"),
        ({"city": "x", "wrong": 1}, "wrong"),
        ({"city": "x", "days": "many"}, "days"),
        ({"city": 3}, "city"),
    ],
)
def test_arguments_that_do_not_fit_are_reported(arguments: Any, words: str) -> None:
    with pytest.raises(ToolError, match=words):
        as_tool(weather).call(arguments)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("words", (Text("words"),)),
        ("", (Text("(no output)"),)),
        (None, (Text("(no output)"),)),
        ({"a": [1]}, (Text('{"a":[1]}'),)),
        (3, (Text("3"),)),
        (Place("Oslo"), (Text('{"city":"Oslo","zip":""}'),)),
        (object, (Text(str(object)),)),
        (Media("image", "image/png", "base64", "aGk="), (Media("image", "image/png", "base64", "aGk="),)),
        ([Text("a"), Text("b")], (Text("a"), Text("b"))),
        ([], (Text("[]"),)),
    ],
)
def test_results_of_tools(value: Any, content: Any) -> None:
    def give() -> Any:
        return value

    assert as_tool(give).call({}) == content


def test_a_coroutine_is_awaited() -> None:
    async def slow(n: int) -> int:
        await asyncio.sleep(0)
        return n + 1

    assert as_tool(slow).call({"n": 1}) == (Text("2"),)


def test_an_error_is_reported_by_its_type_and_message() -> None:
    def fail() -> None:
        raise KeyError("lost")

    assert Toolbox([fail]).call("fail", {}) == ((Text("KeyError: 'lost'"),), True)


def test_an_unknown_tool_is_answered_with_the_tools_there_are() -> None:
    content, is_error = Toolbox([weather]).call("wether", {})
    assert is_error
    assert content == (Text("There is no tool named 'wether'. The tools are: weather."),)


def test_a_tool_may_be_made_by_hand() -> None:
    tool = Tool("sum", lambda **numbers: sum(numbers.values()), "Adds.", {"type": "object"})
    assert Toolbox([tool]).call("sum", {"a": 1, "b": 2}) == ((Text("3"),), False)
