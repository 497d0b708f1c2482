"""Generated tool schemas, arguments that are valid for them, and a validator of the words that the generator uses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.reader_harness import read_pieces
from tests.unit.raw_tools.renderers import RENDER, CallToWrite

Schema = dict[str, Any]

# Strings that look like something else, and some that markup could stumble over.
STRINGS = (
    "plain words",
    "",
    "7",
    "-0.5",
    "true",
    "False",
    "[1, 2]",
    '{"a": 1}',
    "{'a': None}",
    '"quoted"',
    " blank ends ",
    "ends with a line\n",
    'back\\slash "quote" tab\t',
    "two\n\nlines\r\n",
    "<div class='x'>a < b && c</div>",
    "&amp; &lt;",
    "日本 😀",
    "(1, 2)",
    "x" * 40,
)
NULL_WORDS = ("null", "None")
NAMES = ("path", "count", "content", "Some-Name", "a.b", "_x", "key_2", "items", "text", "value", "日本")


def tool_schema(rng: random.Random, ambiguous: bool = True) -> Schema:
    """Make the schema of a tool's arguments. `ambiguous`: some values may be a string or of another type."""
    defs: Schema = {}
    make = _schema if ambiguous else _plain_schema
    properties = {name: make(rng, 3, defs) for name in rng.sample(NAMES, rng.randint(0, 6))}
    required = [name for name in properties if rng.random() < 0.5]
    schema: Schema = {"type": "object", "properties": properties, "required": required}
    if defs:
        schema["$defs"] = defs
    return schema


def _plain_schema(rng: random.Random, depth: int, defs: Schema) -> Schema:
    """Make one of a single type at every depth."""
    while True:
        trial = dict(defs)
        schema = _schema(rng, depth, trial)
        if not _is_ambiguous([schema, *(trial[name] for name in trial.keys() - defs.keys())]):
            defs.update(trial)
            return schema


def _is_ambiguous(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_is_ambiguous, schema))
    if not isinstance(schema, dict):
        return False
    kind = schema.get("type")
    mixed = "anyOf" in schema or "oneOf" in schema or schema.get("enum") == ["x", 5]
    return (
        mixed
        or kind == ["string", "null"]
        or (kind == "string" and "nullable" in schema)
        or any(map(_is_ambiguous, schema.values()))
    )


def _schema(rng: random.Random, depth: int, defs: Schema) -> Schema:
    kinds = ["string", "string", "integer", "number", "boolean", "enum", "nullable", "any_of", "null", "const"]
    kind = rng.choice(kinds + ["array", "object", "map", "ref", "all_of"] * (depth > 0))
    match kind:
        case "enum":
            return rng.choice([{"enum": ["a", "b c", "1"]}, {"type": "integer", "enum": [1, 2]}, {"enum": ["x", 5]}])
        case "const":
            return {"const": rng.choice(["fixed", 3, True])}
        case "nullable":
            inner = rng.choice(["integer", "boolean", "string"])
            return rng.choice([{"type": [inner, "null"]}, {"type": inner, "nullable": True}])
        case "any_of":
            inner = rng.choice(["integer", "boolean", "null", "object"])
            return {rng.choice(["anyOf", "oneOf"]): [{"type": "string"}, {"type": inner}]}
        case "array":
            return {"type": "array", "items": _schema(rng, depth - 1, defs)}
        case "object":
            inner_names = rng.sample(NAMES, rng.randint(0, 3))
            return {
                "type": "object",
                "properties": {name: _schema(rng, depth - 1, defs) for name in inner_names},
                "required": [name for name in inner_names if rng.random() < 0.5],
            }
        case "map":
            return {"type": "object", "additionalProperties": _schema(rng, depth - 1, defs)}
        case "ref":
            name = f"d{len(defs)}"
            defs[name] = {}
            defs[name] = _schema(rng, depth - 1, defs)
            return {"$ref": f"#/$defs/{name}"}
        case "all_of":
            return {"allOf": [_schema(rng, 0, defs), {"description": "more about it"}]}
        case _:
            return {"type": kind}


def arguments_of(rng: random.Random, schema: Schema) -> dict[str, Json]:
    """Make arguments that are valid for a tool's schema."""
    value = _value(rng, schema, schema)
    assert isinstance(value, dict)
    return value


def _value(rng: random.Random, schema: Schema, root: Schema) -> Json:
    if "$ref" in schema:
        return _value(rng, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "const" in schema:
        return schema["const"]  # type: ignore[no-any-return]
    if "enum" in schema:
        return rng.choice(schema["enum"])  # type: ignore[no-any-return]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return _value(rng, rng.choice(schema[word]), root)
    if "allOf" in schema:
        return _value(rng, schema["allOf"][0], root)
    kind = schema["type"]
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if schema.get("nullable") and rng.random() < 0.3:
        return None
    return _typed_value(rng, kind, schema, root)


def _typed_value(rng: random.Random, kind: str, schema: Schema, root: Schema) -> Json:
    match kind:
        case "string":
            return rng.choice((*STRINGS, *NULL_WORDS))
        case "integer":
            return rng.choice((0, -7, 42, 12345678901234567890))
        case "number":
            return rng.choice((0, -7, 1.5, -0.25, 1e22, 3))
        case "boolean":
            return rng.random() < 0.5
        case "array":
            return [_value(rng, schema["items"], root) for _ in range(rng.randint(0, 3))] if "items" in schema else []
        case "object":
            return _object_value(rng, schema, root)
        case _:
            return None


def _object_value(rng: random.Random, schema: Schema, root: Schema) -> Json:
    value: dict[str, Json] = {}
    for name, inner in schema.get("properties", {}).items():
        if name in schema.get("required", ()) or rng.random() < 0.7:
            value[name] = _value(rng, inner, root)
    if isinstance(rest := schema.get("additionalProperties"), dict):
        value.update({name: _value(rng, rest, root) for name in rng.sample(NAMES, rng.randint(0, 2))})
    return value


# --- a validator of what is generated above


def is_valid(value: Any, schema: Schema, root: Schema) -> bool:
    """Whether a value is valid for a schema, as far as the generator uses the words of JSON Schema."""
    if "$ref" in schema:
        return is_valid(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if value is None and schema.get("nullable"):
        return True
    words: dict[str, Callable[[Any], bool]] = {
        "const": lambda expected: _same(value, expected),
        "enum": lambda expected: any(_same(value, each) for each in expected),
        "anyOf": lambda expected: any(is_valid(value, each, root) for each in expected),
        "oneOf": lambda expected: sum(is_valid(value, each, root) for each in expected) == 1,
        "allOf": lambda expected: all(is_valid(value, each, root) for each in expected),
        "type": lambda expected: any(
            _is(value, each) for each in (expected if isinstance(expected, list) else [expected])
        ),
    }
    if not all(check(schema[word]) for word, check in words.items() if word in schema):
        return False
    if isinstance(value, list) and "items" in schema:
        return all(is_valid(each, schema["items"], root) for each in value)
    return not isinstance(value, dict) or _is_valid_object(value, schema, root)


def _is_valid_object(value: dict[str, Any], schema: Schema, root: Schema) -> bool:
    properties = schema.get("properties", {})
    rest = schema.get("additionalProperties", {})
    if any(name not in value for name in schema.get("required", ())):
        return False
    return all(is_valid(each, properties.get(name, rest), root) for name, each in value.items())


def _same(one: object, other: object) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _is(value: object, kind: str) -> bool:
    match kind:
        case "integer":
            return (isinstance(value, int) or (isinstance(value, float) and value.is_integer())) and not isinstance(
                value, bool
            )
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "null":
            return value is None
        case _:
            types = {"string": str, "boolean": bool, "array": list, "object": dict}
            return isinstance(value, types[kind])


# --- bodies of calls

# What stands between the beginning of a rendered call of the tool `f` and its body.
HEADERS = {
    "dsml": 'invoke name="f">',
    "kimi_k3": 'tool="f" index="1"<|sep|>',
    "qwen_coder": "<function=f>",
    "glm": "<tool_call>f\n",
    "invoke": 'invoke name="f">',
    "minimax_m3": 'invoke name="f">',
}


def body_of(table: str, arguments: dict[str, Json], schema: Schema) -> str:
    """Return the body of a rendered call, with all that follows it."""
    return RENDER[table]([CallToWrite("f", arguments, schema)]).partition(HEADERS[table])[2]


def read_back(table: str, arguments: dict[str, Json], schema: Schema) -> Any:
    """Write a call in a format and return the arguments that its reader reads."""
    read = read_pieces(table, [body_of(table, arguments, schema)], schema)
    assert read.is_over and read.valid, read
    return json.loads(read.text)
