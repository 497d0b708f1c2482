"""The embedded model: arguments that fit a schema, calls of named tools, quoted results, thinking, limits."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.model.conversation import Why
from dragoman.simulator.model import Prompt, Tool, example, example_value, respond
from dragoman.simulator.script import Reason, Say, Use
from dragoman.wire import jsonio

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def fits(value: Any, schema: Any) -> bool:
    """A validator of its own, for the keywords that the strategies below use."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    typed = not kinds or any(
        isinstance(value, _TYPES[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds
    )
    return bool(
        typed
        and ("const" not in schema or value == schema["const"])
        and ("enum" not in schema or value in schema["enum"])
        and (not isinstance(value, str) or _string_fits(value, schema))
        and (isinstance(value, bool) or not isinstance(value, int | float) or _number_fits(value, schema))
        and (not isinstance(value, list) or _array_fits(value, schema))
        and (not isinstance(value, dict) or _object_fits(value, schema))
        and all(fits(value, branch) for branch in schema.get("allOf", []))
        and ("anyOf" not in schema or any(fits(value, branch) for branch in schema["anyOf"]))
    )


def _string_fits(value: str, schema: Any) -> bool:
    return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9))


def _number_fits(value: float, schema: Any) -> bool:
    step = schema.get("multipleOf")
    return bool(
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and (step is None or value % step == 0)
    )


def _array_fits(value: list[Any], schema: Any) -> bool:
    items = all(fits(item, schema.get("items", {})) for item in value)
    return items and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)


def _object_fits(value: dict[str, Any], schema: Any) -> bool:
    known = schema.get("properties", {})
    return set(schema.get("required", ())) <= set(value) and all(
        fits(item, known.get(k, {})) for k, item in value.items()
    )


def _bounded(kind: str, low: str, high: str) -> st.SearchStrategy[Any]:
    return st.tuples(st.integers(0, 20), st.integers(0, 20)).map(
        lambda two: {"type": kind, low: min(two), high: max(two)}
    )


_LEAVES: st.SearchStrategy[Any] = (
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")])
    | st.just({})
    | _bounded("string", "minLength", "maxLength")
    | _bounded("integer", "minimum", "maximum")
    | _bounded("number", "minimum", "maximum")
    | st.integers(-9, 9).map(lambda low: {"type": "integer", "exclusiveMinimum": low})
    | st.tuples(st.integers(-9, 9), st.integers(2, 9)).map(
        lambda two: {"type": "integer", "minimum": two[0], "multipleOf": two[1]}
    )
    | st.lists(st.integers() | st.text(max_size=3), min_size=1, max_size=3).map(lambda words: {"enum": words})
    | st.text(max_size=4).map(lambda word: {"const": word})
    | st.just({"type": ["null", "string"]})
)
_NAMES = st.text("abcdef", min_size=1, max_size=3)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(_NAMES, inner, max_size=3).flatmap(
        lambda known: st.lists(_NAMES, max_size=3, unique=True).map(
            lambda required: {"type": "object", "properties": known, **({"required": required} if required else {})}
        )
    )


_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: (
        _objects(inner)
        | inner.map(lambda items: {"type": "array", "items": items})
        | st.tuples(inner, st.integers(0, 3)).map(lambda two: {"type": "array", "items": two[0], "minItems": two[1]})
        | st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
    ),
    max_leaves=6,
)


@given(_SCHEMAS)
def test_an_example_fits_its_schema(schema: Any) -> None:
    assert fits(example_value(schema), schema)


_KEYWORDS = "type properties items anyOf required enum $ref pattern minItems minLength minimum a".split()  # noqa: SIM905


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda i: st.lists(i, max_size=3) | st.dictionaries(st.sampled_from(_KEYWORDS), i, max_size=4),
        max_leaves=12,
    )
)
def test_no_schema_whatever_stops_the_model(schema: Any) -> None:
    assert isinstance(example(schema if isinstance(schema, dict) else None), dict)


KNOWN: tuple[tuple[Any, Any], ...] = (
    ({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]}, {"b": 1}),
    ({"type": "object", "properties": {"a": {"type": "boolean"}}}, {"a": True}),
    ({"type": "object", "properties": {"when": {"type": "string", "format": "date"}}}, {"when": "2026-01-01"}),
    ({"type": "object", "properties": {"n": {"type": "string", "pattern": "^[0-9]+$"}}}, {"n": "1"}),
    ({"type": "object", "$defs": {"c": {"enum": ["x"]}}, "properties": {"a": {"$ref": "#/$defs/c"}}}, {"a": "x"}),
    ({"allOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": "b"}),
    ({"type": "object", "properties": {"a": {"default": 7}}}, {"a": 7}),
    ({"type": "array", "prefixItems": [{"type": "integer"}]}, {}),
    (None, {}),
    ({}, {}),
)  # fmt: skip


@pytest.mark.parametrize(("schema", "made"), KNOWN)
def test_known_schemas_give_known_arguments(schema: Any, made: Any) -> None:
    assert example(schema) == made


def test_an_array_of_unique_items_has_unlike_items() -> None:
    made = example_value({"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True})
    assert isinstance(made, list)
    assert len(set(map(str, made))) == 3


def test_a_schema_that_refers_to_itself_ends() -> None:
    node: Any = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert len(jsonio.encode(example(node))) < 1000


WEATHER = Tool("get_weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
CLOCK = Tool("clock", {"type": "object", "properties": {}})


def test_a_named_tool_is_called_with_arguments_that_fit() -> None:
    said = respond(Prompt(text="Please use get_weather now", tools=(CLOCK, WEATHER)))
    assert said.parts == (Say("I will call get_weather."), Use("get_weather", '{"city":"example city"}'))
    assert said.stop is Why.TOOL


def test_two_named_tools_are_called_in_parallel_in_the_order_of_the_text() -> None:
    prompt = Prompt(text="First clock, then get_weather", tools=(WEATHER, CLOCK))
    assert [part.name for part in respond(prompt).parts if isinstance(part, Use)] == ["clock", "get_weather"]


def test_without_parallel_calls_only_the_first_is_made() -> None:
    prompt = Prompt(text="First clock, then get_weather", tools=(WEATHER, CLOCK), parallel=False)
    assert [part.name for part in respond(prompt).parts if isinstance(part, Use)] == ["clock"]


def test_arguments_written_after_the_name_are_used_as_they_are_written() -> None:
    said = respond(Prompt(text='get_weather {"city": "a } b", "n": 1.0} please', tools=(WEATHER,)))
    assert said.parts[-1] == Use("get_weather", '{"city": "a } b", "n": 1.0}')


def test_part_of_a_word_is_no_name() -> None:
    assert respond(Prompt(text="forget_weather, clockwork", tools=(WEATHER, CLOCK))).stop is Why.END


def test_the_last_paragraph_is_what_is_asked() -> None:
    prompt = Prompt(text="Your tools are clock and get_weather.\n\nCall clock", tools=(WEATHER, CLOCK))
    assert [part.name for part in respond(prompt).parts if isinstance(part, Use)] == ["clock"]


def test_a_must_is_obeyed_without_a_name() -> None:
    assert respond(Prompt(text="hello", tools=(WEATHER, CLOCK), must_call=True)).stop is Why.TOOL


def test_a_free_text_tool_gets_text() -> None:
    said = respond(Prompt(text="use shell", tools=(Tool("shell", None),)))
    assert said.parts[-1] == Use("shell", "example shell")


def test_results_are_quoted_and_not_answered_by_another_call() -> None:
    said = respond(Prompt(text="get_weather again", results=("21 degrees", "noon"), tools=(WEATHER,)))
    assert said.stop is Why.END
    (part,) = said.parts
    assert isinstance(part, Say)
    assert "21 degrees" in part.text
    assert "noon" in part.text


def test_thinking_comes_first_when_asked_for() -> None:
    assert isinstance(respond(Prompt(text="hello", thinks=True)).parts[0], Reason)
    assert not any(isinstance(part, Reason) for part in respond(Prompt(text="hello")).parts)


def test_an_output_schema_is_answered_by_json_that_fits() -> None:
    schema: Any = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (part,) = respond(Prompt(text="hello", output=schema)).parts
    assert isinstance(part, Say)
    assert jsonio.decode(part.text) == {"n": 1}


def test_the_token_limit_cuts_the_text_and_says_so() -> None:
    said = respond(Prompt(text="hello " * 50, max_tokens=3))
    assert said == respond(Prompt(text="hello " * 50, max_tokens=3))
    assert (said.parts, said.stop) == ((Say("You said: he"),), Why.LENGTH)


def test_a_stop_sequence_cuts_the_text_and_is_named() -> None:
    said = respond(Prompt(text="one STOP two", stop=("two", "STOP")))
    assert (said.parts, said.stop, said.sequence) == ((Say("You said: one "),), Why.SEQUENCE, "STOP")


def test_a_tool_with_a_name_full_of_signs_is_no_pattern() -> None:
    tool = Tool("a.b(c", {"type": "object"})
    assert respond(Prompt(text="use a.b(c", tools=(tool,))).stop is Why.TOOL
    assert respond(Prompt(text="use axb(c", tools=(tool,))).stop is Why.END
    assert re.escape(tool.name) != tool.name
