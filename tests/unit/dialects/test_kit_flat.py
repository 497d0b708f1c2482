"""Helpers for services with flat messages: schema references, call ids, media types."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from dragoman.dialects.kit.filters import SchemaReferences, SimplifySchemas
from dragoman.dialects.kit.values import ToolCallIds, media_type
from dragoman.model.conversation import Conversation, ToolSpec
from dragoman.model.filter import Facts, Notes

ROOT = ("type", "properties", "required")
KEYWORDS = ("type", "description", "enum", "properties", "required", "anyOf", "items")
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def plain(schema: dict[str, Any]) -> tuple[Any, list[tuple[str, str]]]:
    notes = Notes()
    conversation = Conversation("m", (), tools=(ToolSpec("go", "", schema),))
    sent, _ = SimplifySchemas("some", ROOT, KEYWORDS).forward(conversation, notes, Facts())
    again, _ = SimplifySchemas("some", ROOT, KEYWORDS).forward(sent, notes, Facts())
    assert again is sent  # a second time there is nothing to do
    tool = sent.tools[0]
    assert isinstance(tool, ToolSpec)
    return tool.schema, [(note.action, note.detail) for note in notes]


def test_references_are_inlined_with_their_sibling_keywords() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "at": {"$ref": "#/$defs/point", "description": "Where."},
            "all": {"type": "array", "items": {"$ref": "#/definitions/a~1b"}},
            "$ref": {"type": "string"},  # a name, not a reference
            "kind": {"enum": [{"$ref": "#/$defs/point"}]},  # a value
        },
        "$defs": {"point": POINT},
        "definitions": {"a/b": {"type": "string"}},
    }
    references = SchemaReferences()
    found: Any = references.inline(schema)
    assert found["properties"] == {
        "at": {**POINT, "description": "Where."},
        "all": {"type": "array", "items": {"type": "string"}},
        "$ref": {"type": "string"},
        "kind": {"enum": [{"$ref": "#/$defs/point"}]},
    }
    assert found.keys() == {"type", "properties"} and not references.is_cut


@pytest.mark.parametrize("reference", ["#/$defs/none", "https://example.org/a.json", "#/properties/self", "#"])
def test_a_reference_that_cannot_be_inlined_accepts_any_value(reference: str) -> None:
    references = SchemaReferences()
    found = references.inline({"type": "object", "properties": {"self": {"$ref": reference, "title": "T"}}})
    assert references.is_cut and b"$ref" not in repr(found).encode()


def test_references_cannot_multiply_a_request() -> None:
    doubling: dict[str, Any] = {
        f"d{n}": {"type": "array", "items": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)
    }
    references = SchemaReferences()
    assert len(repr(references.inline({"$ref": "#/$defs/d0", "$defs": doubling}))) < 1024 * 1024
    assert references.is_cut


def test_a_schema_keeps_its_meaning_in_the_remaining_keywords() -> None:
    schema, notes = plain(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "title": "Go",
            "properties": {
                "how": {"const": "fast", "title": "How"},
                "what": {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/point"}]},
                "where": {"allOf": [{"$ref": "#/$defs/point"}], "description": "Where."},
            },
            "$defs": {"point": POINT},
        }
    )
    assert schema["properties"] == {
        "how": {"enum": ["fast"]},
        "what": {"anyOf": [{"type": "string"}, POINT]},
        "where": {**POINT, "description": "Where."},
    }
    assert [action for action, _ in notes] == ["changed"]


def test_lost_keywords_are_named() -> None:
    schema, notes = plain({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "default": 3}}})
    assert schema == {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert notes == [("dropped", "the schema of go is simplified (without default, minimum)")]


def test_a_union_of_objects_is_one_object() -> None:
    point = {"type": "object", "properties": {"y": {"type": "string"}}, "required": ["y"]}
    schema, notes = plain({"oneOf": [POINT, point]})
    assert schema == {"properties": {"y": {"type": "string"}, "x": {"type": "integer"}}, "type": "object"}
    assert notes[0][0] == "dropped"


def test_results_without_ids_match_calls_by_name_and_in_order() -> None:
    pairs = ToolCallIds("call_")
    tools = [
        pairs.add_call("", "read"),
        pairs.add_call("call_2", "find"),
        pairs.add_call("", "read"),
        pairs.add_call("", "find"),
    ]
    assert tools == ["call_1", "call_2", "call_3", "call_4"]
    assert [pairs.match_result("", "find"), pairs.match_result("call_1", ""), pairs.match_result("", "read")] == tools[
        1::-1
    ] + tools[2:3]
    assert [pairs.match_result("", ""), pairs.match_result("", ""), pairs.match_result("own", "x")] == [
        "call_4",
        "call_5",
        "own",
    ]
    assert (pairs.name_of("call_2"), pairs.name_of("call_5")) == ("find", "")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n0000", "image/png"),
        (b"\xff\xd8\xff\xe1", "image/jpeg"),
        (b"GIF89a......", "image/gif"),
        (b"RIFF0000WEBPVP8 ", "image/webp"),
        (b"RIFF0000WAVEfmt ", "audio/wav"),
        (b"RIFF0000AVI ", ""),
        (b"hi", ""),
    ],
)
def test_the_first_bytes_determine_a_media_type(data: bytes, expected: str) -> None:
    assert media_type(base64.b64encode(data).decode()) == expected
