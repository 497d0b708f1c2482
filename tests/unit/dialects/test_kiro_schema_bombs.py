"""S4: references in tool schemas are put in place towards Kiro. All tools of a request share one limit."""

from __future__ import annotations

import tracemalloc

import pytest

import dragoman.dialects as registry
from dragoman.dialects.kiro.quirks.schemas import MOST_ADDED, Room, clean
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.translate import plan
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

SCHEMA = dict[str, Json]


def ref(name: object) -> SCHEMA:
    return {"$ref": f"#/$defs/{name}"}


def levels(depth: int, width: int, more: SCHEMA | None = None) -> SCHEMA:
    """Each level refers `width` times to the next."""
    level: dict[str, Json] = {
        str(at): {"properties": {f"p{each}": ref(at + 1) for each in range(width)}, **(more or {})}
        for at in range(depth)
    }
    return {"type": "object", "properties": {"root": ref(0)}, "$defs": {**level, str(depth): {"type": "string"}}}


def mutual(width: int) -> SCHEMA:
    """Every definition refers to every other."""
    defs: SCHEMA = {str(at): {"properties": {str(to): ref(to) for to in range(width)}} for at in range(width)}
    return {"type": "object", "properties": {"root": ref(0)}, "$defs": defs}


def unions(depth: int) -> SCHEMA:
    """Unions at the root, which are merged: each branch has two of the next."""
    defs: SCHEMA = {str(at): {"anyOf": [ref(at + 1), ref(at + 1)]} for at in range(depth)}
    return {"anyOf": [ref(0), ref(0)], "$defs": {**defs, str(depth): {"properties": {"x": {}}}}}


def described(size: int, times: int) -> SCHEMA:
    """A long description that is referred to many times: few values, many bytes."""
    return {
        "type": "object",
        "properties": {f"p{each}": ref("long") for each in range(times)},
        "$defs": {"long": {"type": "string", "description": "d" * size}},
    }


def listed(size: int, times: int) -> SCHEMA:
    """The same with an `enum`, which is no schema but may be long."""
    return {
        "type": "object",
        "properties": {f"p{each}": ref("long") for each in range(times)},
        "$defs": {"long": {"enum": [f"value {each}" for each in range(size)]}},
    }


BOMBS: dict[str, SCHEMA] = {
    "1.4 KB wide": levels(5, 8),
    "deep": levels(40, 2),
    "mutual": mutual(12),
    "unions": unions(40),
    "252 KB": described(100_000, 1500),
    "enum": listed(2000, 1000),
    "described levels": levels(6, 6, {"description": "words " * 50}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_s4_a_reference_bomb_does_not_grow(name: str) -> None:
    bomb = BOMBS[name]
    tracemalloc.start()
    try:
        cleaned, removed = clean(bomb)
        assert len(jsonio.encode(cleaned)) < 2 * MOST_ADDED + len(jsonio.encode(bomb))
        assert "$ref (as any value)" in removed and b"$ref" not in jsonio.encode(cleaned)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * MOST_ADDED + 4 * len(jsonio.encode(bomb))


def asked(*schemas: SCHEMA) -> Conversation:
    tools = tuple(ToolSpec(f"tool_{at}", "does it", schema) for at, schema in enumerate(schemas))
    return Conversation("claude-sonnet-4.5", (Message("user", (Text("hello"),)),), tools=tools)


def test_s4_the_tools_of_a_request_share_one_limit_and_a_note_names_the_tool() -> None:
    one = described(20_000, 4)
    made = plan(registry.get("anthropic"), registry.get("kiro"), asked(*[one] * 10))
    assert len(made.request().body) < 2 * MOST_ADDED
    cut = [note.detail for note in made.notes if "(as any value)" in note.detail]
    assert cut[0].startswith("the schema of tool_3 ") and len(cut) == 7  # three of them are within the limit
    assert {note.action for note in made.notes if "(as any value)" in note.detail} == {"dropped"}


def test_s4_a_recursive_schema_keeps_its_first_levels() -> None:
    """A tree whose nodes hold every other kind of node, as document editors have: it is usable, and bounded."""
    cleaned, removed = clean(mutual(12))
    first = cleaned["properties"]
    assert isinstance(first, dict) and isinstance(first["root"], dict) and isinstance(first["root"]["properties"], dict)
    assert len(first["root"]["properties"]) == 12 and "$ref (as any value)" in removed


def test_s4_small_schemas_from_the_cache_count_too() -> None:
    small, room = described(1000, 3), Room()
    found = [len(jsonio.encode(clean(small, room)[0])) for _ in range(1000)]
    assert 0 <= room.left < 4000 and sum(found[:50]) > 100_000 and sum(found[500:]) < 500 * 200


def test_s4_usual_references_are_put_in_place() -> None:
    cleaned, _ = clean(levels(3, 3, {"description": "a level"}))
    assert jsonio.encode(cleaned).count(b"a level") == 1 + 3 + 9


@pytest.mark.parametrize("target", ["anthropic", "openai", "responses", "bedrock", "gemini"])
@pytest.mark.parametrize("name", ["deep", "mutual", "unions", "252 KB"])
def test_s4_no_other_dialect_puts_references_in_place(target: str, name: str) -> None:
    bomb = BOMBS[name]
    body = plan(registry.get("openai"), registry.get(target), asked(bomb)).request().body
    assert len(body) < 2 * len(jsonio.encode(bomb)) + 2000
