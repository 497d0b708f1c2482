"""How a written value becomes JSON: tables of examples, and the figure over generated schemas and arguments."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters.raw_tools.schemas import SchemaDocument
from dragoman.filters.raw_tools.values import find_parameter, fits_schema, object_text
from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.reader_harness import read_pieces
from tests.unit.raw_tools.samples import random_cut
from tests.unit.raw_tools.schemas import HEADERS, arguments_of, body_of, is_valid, read_back, tool_schema

DEFS: dict[str, Json] = {
    "text": {"type": "string"},
    "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}}},
    "circle": {"anyOf": [{"$ref": "#/$defs/circle"}, {"type": "integer"}]},
    "a/b": {"type": "boolean"},
    "chain": {"$ref": "#/$defs/text"},
}


def written(schema: Json, raw: str, type_word: str = "") -> str:
    """The JSON text of a parameter with this schema."""
    return find_parameter({"type": "object", "properties": {"key": schema}, "$defs": DEFS}, "key").as_json(
        raw, type_word
    )


@pytest.mark.parametrize(
    ("schema", "raw", "expected"),
    [
        # one type
        ({"type": "string"}, "5", '"5"'),
        ({"type": "string"}, "null", '"null"'),
        ({"type": "string"}, '"quoted"', '"\\"quoted\\""'),
        ({"type": "string"}, " a\n", '" a\\n"'),
        ({"type": "integer"}, "5", "5"),
        ({"type": "integer"}, " 5\n", "5"),
        ({"type": "integer"}, "12345678901234567890", "12345678901234567890"),
        ({"type": "integer"}, "018956", "18956"),
        ({"type": "integer"}, "+5", "5"),
        ({"type": "integer"}, "-007", "-7"),
        ({"type": "integer"}, "5.0", "5"),
        ({"type": "integer"}, "1_000", "1000"),
        ({"type": "integer"}, '"5"', "5"),
        ({"type": "integer"}, "many", '"many"'),
        ({"type": "integer"}, "5.7", "5.7"),
        ({"type": "integer"}, "", '""'),
        ({"type": "number"}, "1.50", "1.50"),
        ({"type": "number"}, "5.0", "5.0"),
        ({"type": "number"}, ".5", "0.5"),
        ({"type": "number"}, "5.", "5.0"),
        ({"type": "number"}, "1E5", "1E5"),
        ({"type": "number"}, "1e999", '"1e999"'),
        ({"type": "number"}, "NaN", '"NaN"'),
        ({"type": "number"}, "." , '"."'),
        ({"type": "boolean"}, "true", "true"),
        ({"type": "boolean"}, "True", "true"),
        ({"type": "boolean"}, "FALSE", "false"),
        ({"type": "boolean"}, "1", "true"),
        ({"type": "boolean"}, "No", "false"),
        ({"type": "boolean"}, '"true"', "true"),
        ({"type": "boolean"}, "maybe", '"maybe"'),
        ({"type": "null"}, "null", "null"),
        ({"type": "null"}, "None", "null"),
        ({"type": "null"}, "", "null"),
        # objects and arrays keep their bytes
        ({"type": "object"}, '{"n": 9007199254740993, "e": "\\u00e9"}', '{"n": 9007199254740993, "e": "\\u00e9"}'),
        ({"type": "array"}, ' [1, 2.50]\n', "[1, 2.50]"),
        ({"type": "object"}, "[1]", "[1]"),
        ({"type": "object"}, "words", '"words"'),
        # escaped JSON
        ({"type": "object"}, '"{\\"a\\": 1}"', '{"a": 1}'),
        ({"type": "object"}, '{\\"a\\": \\"b\\\\nc\\"}', '{"a": "b\\nc"}'),
        ({"type": "array"}, '[\\"a\\", \\"b\\"]', '["a", "b"]'),
        ({"type": "array"}, '"\\"[1]\\""', "[1]"),
        # Python literals
        ({"type": "object"}, "{'a': True, 'b': None, 1: (1, 2)}", '{"a":true,"b":null,"1":[1,2]}'),
        ({"type": "object"}, "{'it': \"that's\", 'ok': true}", '{"it":"that\'s","ok":true}'),
        ({"type": "array"}, "('a', 'b')", '["a","b"]'),
        ({"type": "array"}, "[{'a': 1}, None]", '[{"a":1},null]'),
        ({"type": "array"}, "{'b', 'a'}", '["a","b"]'),
        ({"type": "array"}, "['\\d']", '["\\\\d"]'),
        ({"type": "object"}, "{'a': open('x')}", '"{\'a\': open(\'x\')}"'),
        ({"type": "object"}, "{'a': b'x'}", '"{\'a\': b\'x\'}"'),
        # JSON with control characters in its strings
        ({"type": "object"}, '{"a": "one\ntwo\t"}', '{"a": "one\\u000atwo\\u0009"}'),
        # several types
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "Null", "null"),
        ({"type": ["string", "null"]}, "", '""'),
        ({"type": ["integer", "null"]}, "", "null"),
        ({"type": ["integer", "null"]}, "None", "null"),
        ({"type": ["integer", "null"]}, "7", "7"),
        ({"type": "integer", "nullable": True}, "null", "null"),
        ({"type": "string", "nullable": True}, "null", "null"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", "7"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "007", '"007"'),
        ({"oneOf": [{"type": "string"}, {"type": "object"}]}, '{"a": 1}', '{"a": 1}'),
        ({"oneOf": [{"type": "string"}, {"type": "object"}]}, "{'a': 1}", '"{\'a\': 1}"'),
        ({"anyOf": [{"type": "array"}, {"type": "null"}]}, "None", "null"),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]}, "7", "7"),
        ({"allOf": [{"description": "x"}, {"type": "number"}]}, "7", "7"),
        ({"type": "integer", "anyOf": [{"minimum": 1}, {"maximum": -1}]}, "7", "7"),
        # enumerations
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"enum": ["a", "b"]}, " a\n", '"a"'),
        ({"enum": ["a", "b"]}, '"a"', '"a"'),
        ({"enum": ["a", "b"]}, "c", '"c"'),
        ({"enum": [1, 2]}, "1", "1"),
        ({"enum": [1, 2]}, '"2"', "2"),
        ({"enum": ["7", 8]}, "7", '"7"'),
        ({"enum": ["7", 8]}, "8", "8"),
        ({"enum": ["auto", None]}, "null", "null"),
        ({"type": "string", "enum": ["null", "x"]}, "null", '"null"'),
        ({"const": True}, "True", "true"),
        ({"const": "on"}, "on", '"on"'),
        ({"anyOf": [{"const": "x"}, {"const": 5}]}, "5", "5"),
        # references
        ({"$ref": "#/$defs/text"}, "5", '"5"'),
        ({"$ref": "#/$defs/chain"}, "5", '"5"'),
        ({"$ref": "#/$defs/node"}, "{'n': 1}", '{"n":1}'),
        ({"$ref": "#/$defs/circle"}, "5", "5"),
        ({"$ref": "#/$defs/a~1b"}, "True", "true"),
        ({"$ref": "#/definitions/text"}, "5", '"5"'),
        ({"$ref": "#/properties/key"}, "5", '"5"'),
        ({"$ref": "#/$defs/missing"}, "[1]", "[1]"),
        ({"$ref": "#/$defs/inner", "$defs": {"inner": {"type": "integer"}}}, "5", "5"),
        ({"$ref": "#/$defs/text", "nullable": True}, "null", "null"),
        # what other frameworks write
        ({"type": "STRING"}, "5", '"5"'),
        ({"type": "int"}, "5", "5"),
        ({"type": "dict"}, "{'a': 1}", '{"a":1}'),
        ({"type": "any"}, "5", '"5"'),
        ({"items": {"type": "string"}}, "['a']", '["a"]'),
        ({}, "5", '"5"'),
        ({}, "[5]", "[5]"),
        (True, "5", '"5"'),
        ("nonsense", "5", '"5"'),
    ],
)  # fmt: skip
def test_the_schema_decides(schema: Json, raw: str, expected: str) -> None:
    assert written(schema, raw) == expected
    json.loads(expected)


@pytest.mark.parametrize(
    ("schema", "raw", "type_word", "expected"),
    [
        # The markup's word is weaker than the schema
        ({"type": "integer"}, "5", "true", "5"),
        ({"type": "string"}, "5", "false", '"5"'),
        ({"type": "string"}, "null", "false", '"null"'),
        ({"type": "object"}, '{"a": 1}', "true", '{"a": 1}'),
        ({"type": "boolean"}, "true", "string", "true"),
        ({"type": "string"}, "5", "number", '"5"'),
        ({"type": "array"}, "['a']", "string", '["a"]'),
        ({"type": "string"}, '{"a": 1}', "object", '"{\\"a\\": 1}"'),
        # where they agree it decides
        ({"type": ["string", "integer"]}, "5", "true", '"5"'),
        ({"type": ["string", "integer"]}, "5", "false", "5"),
        ({"type": ["string", "null"]}, "null", "string", '"null"'),
        ({"type": ["string", "null"]}, "null", "null", "null"),
        ({"type": ["string", "object"]}, "{'a': 1}", "object", '{"a":1}'),
        ({"enum": [1, "1"]}, "1", "string", '"1"'),
        ({"enum": [1, 2]}, "2", "string", "2"),
        ({"type": "string"}, '"quoted JSON"', "false", '"quoted JSON"'),
    ],
)
def test_what_the_markup_says_is_weaker_than_the_schema(schema: Json, raw: str, type_word: str, expected: str) -> None:
    assert written(schema, raw, type_word) == expected


@pytest.mark.parametrize(
    ("raw", "type_word", "expected"),
    [
        ("5", "", '"5"'),
        ("true", "", '"true"'),
        ('{"a": 1}', "", '{"a": 1}'),
        ("[1]", "", "[1]"),
        ("{'a': 1}", "", "\"{'a': 1}\""),
        ("5", "true", '"5"'),
        ("5", "false", "5"),
        ("None", "false", "null"),
        ("many", "false", '"many"'),
        ("", "false", '""'),
        ('{"a": 1}', "string", '"{\\"a\\": 1}"'),
        ("007", "number", "7"),
        ("{'a': 1}", "object", '{"a":1}'),
        ("5", "no type", '"5"'),
    ],
)
def test_without_a_schema_the_markup_decides_else_only_objects_and_arrays_are_json(
    raw: str, type_word: str, expected: str
) -> None:
    assert find_parameter(None, "key").as_json(raw, type_word) == expected
    assert find_parameter({"properties": {"other": {}}}, "key").as_json(raw, type_word) == expected


def test_which_values_stream() -> None:
    properties: dict[str, Json] = {
        "text": {"type": "string"},
        "mixed": {"type": ["string", "integer"]},
        "listed": {"enum": ["a"]},
        "n": {"type": "integer"},
    }
    shapes = partial(find_parameter, {"properties": properties})
    assert shapes("text").streams() and not shapes("text").streams("false")
    assert not shapes("mixed").streams() and shapes("mixed").streams("true")
    assert not shapes("listed").streams()
    assert not shapes("n").streams("true")
    assert not shapes("unheard of").streams() and shapes("unheard of").streams("string")
    assert shapes("text").declared and not shapes("unheard of").declared


def test_which_parameters_may_wrap_the_arguments() -> None:
    known: dict[str, Json] = {"properties": {"path": {"type": "string"}, "input": {"type": "object"}}}
    assert find_parameter(known, "arguments").wrapper and find_parameter(known, "args").wrapper
    assert not find_parameter(known, "input").wrapper and not find_parameter(known, "other").wrapper
    assert not find_parameter(None, "arguments").wrapper and not find_parameter({"type": "object"}, "arguments").wrapper
    assert not find_parameter({**known, "additionalProperties": {"type": "object"}}, "arguments").wrapper


def test_members_and_items_have_shapes_of_their_own() -> None:
    schema: dict[str, Json] = {
        "oneOf": [{"properties": {"deep": {"$ref": "#/$defs/node"}}}, {"properties": {"rows": {"type": "array"}}}],
        "properties": {
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "pair": {"prefixItems": [{"type": "string"}, {"type": "boolean"}], "items": {"type": "integer"}},
            "old": {"items": [{"type": "string"}], "additionalItems": {"type": "integer"}},
        },
        "$defs": DEFS,
    }
    shapes = partial(find_parameter, schema)
    assert shapes("deep").member("next").member("next").member("n").as_json("007") == "7"
    assert shapes("map").member("any").as_json("5") == "5" and not shapes("map").member("any").declared
    assert [shapes("pair").item(index).as_json("1") for index in range(3)] == ['"1"', "true", "1"]
    assert [shapes("old").item(index).as_json("1") for index in range(2)] == ['"1"', "1"]
    assert {"deep", "rows", "map", "pair", "old"} == set(SchemaDocument(schema).names())


def test_fits_asks_for_an_object_with_all_that_is_required() -> None:
    schema: dict[str, Json] = {"required": ["a"], "allOf": [{"required": ["b"]}]}
    assert fits_schema(schema, '{"a": 1, "b": 2}') and not fits_schema(schema, '{"a": 1}')
    assert not fits_schema(schema, "[]") and not fits_schema(schema, '{"a": 1, "b"')
    assert fits_schema(None, "{}") and not fits_schema(None, "5")


def test_schemas_that_are_none_are_harmless() -> None:
    for schema in (
        {"properties": 5},
        {"properties": {"key": {"$ref": 5}}},
        {"required": "a"},
        {"$ref": "#"},
        {"allOf": 1},
    ):
        shape = find_parameter(schema, "key")  # type: ignore[arg-type]
        assert shape.as_json("5") == '"5"'
        assert shape.member("x").item(3).as_json("5") == '"5"'
        assert fits_schema(schema, "{}")  # type: ignore[arg-type]


def test_references_that_form_a_lattice_cost_no_more_than_their_number() -> None:
    defs: dict[str, Json] = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(50)}
    defs["d50"] = {"type": "integer"}
    assert find_parameter({"properties": {"key": {"$ref": "#/$defs/d0"}}, "$defs": defs}, "key").as_json("007") == "7"


def test_a_schema_that_nests_without_end_is_harmless() -> None:
    schema: Json = {"type": "integer"}
    for _ in range(5000):
        schema = {"anyOf": [schema]}
    assert find_parameter({"properties": {"key": schema}}, "key").as_json("5") == '"5"'


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ("{'a': 1}", '{"a":1}'),
        ("[1]", None),
        ("words", None),
        ("", None),
        ("null", None),
    ],
)
def test_the_object_that_a_text_holds(raw: str, expected: str | None) -> None:
    assert object_text(raw) == expected


# --- over generated schemas

randoms = st.randoms(use_true_random=False)
tables = pytest.mark.parametrize("table", HEADERS)


@given(raw=st.text(), rng=randoms, type_word=st.sampled_from(["", "true", "false", "string", "object", "number"]))
def test_whatever_is_written_becomes_json_and_is_not_lost(raw: str, rng: random.Random, type_word: str) -> None:
    schema = tool_schema(rng)
    for key in (*schema["properties"], "unheard of"):
        text = find_parameter(schema, key).as_json(raw, type_word)
        value = json.loads(text)
        assert not isinstance(value, str) or value.strip() in (raw.strip(), raw.strip().strip('"')) or '"' in raw


@tables
@given(rng=randoms)
def test_arguments_are_read_back_valid(table: str, rng: random.Random) -> None:
    schema = tool_schema(rng)
    arguments = arguments_of(rng, schema)
    assert is_valid(arguments, schema, schema)
    assert is_valid(read_back(table, arguments, schema), schema, schema)


@tables
@given(rng=randoms)
def test_arguments_are_read_back_the_same_where_the_format_or_the_schema_has_their_types(
    table: str, rng: random.Random
) -> None:
    schema = tool_schema(rng, ambiguous=table in ("dsml", "kimi_k3"))
    arguments = arguments_of(rng, schema)
    assert read_back(table, arguments, schema) == arguments


@tables
@given(rng=randoms, places=st.randoms(use_true_random=False))
def test_the_reading_does_not_depend_on_the_cut(table: str, rng: random.Random, places: random.Random) -> None:
    schema = tool_schema(rng)
    body = body_of(table, arguments_of(rng, schema), schema)
    whole = read_pieces(table, [body], schema)
    assert read_pieces(table, list(body), schema) == whole
    assert read_pieces(table, random_cut(body, places), schema) == whole


def test_the_validator_of_these_tests_sees_what_is_wrong() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert is_valid({"n": 1}, schema, schema)
    wrong_values: list[Any] = [{}, {"n": "1"}, {"n": True}, {"n": 1.5}, [], None]
    for wrong in wrong_values:
        assert not is_valid(wrong, schema, schema)
