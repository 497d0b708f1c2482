from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import MalformedRequest, MissingField, UpstreamViolation
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

OBJECT: dict[str, Json] = {
    "text": "t",
    "int": 3,
    "whole": 3.0,
    "float": 0.5,
    "flag": False,
    "null": None,
    "object": {"a": 1},
    "array": ["x", "y"],
    "objects": [{"n": 0}, {"n": 1}],
}
READERS: dict[str, Callable[..., Any]] = {
    "text": Fields.text,
    "integer": Fields.integer,
    "number": Fields.number,
    "flag": Fields.flag,
    "array": Fields.array,
    "children": Fields.children,
    "strings": Fields.strings,
    "one_of": lambda fields, name, *default: fields.one_of(name, ("t", "u"), *default),
}
# what each reader makes of each field; all else is an error
GOOD: dict[str, dict[str, Any]] = {
    "text": {"text": "t"},
    "integer": {"int": 3, "whole": 3},
    "number": {"int": 3, "whole": 3.0, "float": 0.5},
    "flag": {"flag": False},
    "array": {"array": ["x", "y"], "objects": OBJECT["objects"]},
    "children": {"objects": ...},
    "strings": {"array": ("x", "y")},
    "one_of": {"text": "t"},
}
NAMES = {"text": "a string", "integer": "an integer", "number": "a number", "flag": "a boolean", "one_of": "a string"}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", OBJECT)
def test_every_reader_on_every_type(reader: str, name: str) -> None:
    read = READERS[reader]
    if name in GOOD[reader]:
        value = read(Fields(OBJECT), name)
        expected = GOOD[reader][name]
        assert expected is ... or (value == expected and type(value) is type(expected))
        return
    with pytest.raises(MalformedRequest) as caught:
        read(Fields(OBJECT), name)
    assert caught.value.at.startswith(name)
    assert str(caught.value).startswith(f"{caught.value.at}: expected ")
    if name == "null":
        assert str(caught.value).endswith(f"expected {NAMES.get(reader, 'an array')}, got null")
        assert read(Fields(OBJECT), name, "default") == "default"
    else:
        with pytest.raises(MalformedRequest):  # a default is for what is absent, not for what is wrong
            read(Fields(OBJECT), name, "default")


@pytest.mark.parametrize("reader", READERS)
def test_what_is_missing_is_named(reader: str) -> None:
    fields = Fields({}, "messages[3]", MissingField)
    with pytest.raises(MissingField) as caught:
        READERS[reader](fields, "x")
    assert str(caught.value) == f"messages[3].x: expected {NAMES.get(reader, 'an array')}, found nothing"
    assert READERS[reader](fields, "x", None) is None


@pytest.mark.parametrize(
    ("value", "got"),
    [("s", "a string"), (1, "a number"), (0.5, "a number"), (True, "a boolean"), (None, "null"), ([], "an array")],
)
def test_an_object_is_expected(value: Json, got: str) -> None:
    with pytest.raises(UpstreamViolation, match=f"^a.b: expected an object, got {got}$"):
        Fields(value, "a.b", UpstreamViolation)
    with pytest.raises(MalformedRequest, match=f"^a: expected an object, got {got}$"):
        Fields({"a": value}).child("a")
    with pytest.raises(MalformedRequest, match=rf"^a\[1\]: expected an object, got {got}$"):
        Fields({"a": [{}, value]}).children("a")


def test_paths_go_all_the_way_down() -> None:
    body: Json = {"messages": [{}, {"content": [{"text": 5, "odd name": {'x"y': 1, "": None}}]}]}
    [_, message] = Fields(body).children("messages")
    [block] = message.children("content")
    with pytest.raises(MalformedRequest) as caught:
        block.text("text")
    assert caught.value.at == "messages[1].content[0].text"
    odd = block.child("odd name")
    assert odd.at == 'messages[1].content[0]["odd name"]'
    assert odd.path('x"y') == 'messages[1].content[0]["odd name"]["x\\"y"]'
    with pytest.raises(MalformedRequest, match=r"^messages\[1\]: no good$"):
        message.fail("", "no good")
    with pytest.raises(MalformedRequest, match=r"^messages\[1\]\.role: no good$"):
        message.fail("role", "no good")


def test_children_inherit_the_blame() -> None:
    with pytest.raises(MissingField):
        Fields({"a": {"b": [{}]}}, "", MissingField).child("a").children("b")[0].text("c")


def test_maybe_child() -> None:
    fields = Fields({"a": {"x": 1}, "b": None, "c": 5})
    child = fields.maybe_child("a")
    assert child is not None
    assert child.integer("x") == 1
    assert fields.maybe_child("b") is None
    assert fields.maybe_child("z") is None
    with pytest.raises(MalformedRequest, match=r"^c: expected an object, got a number"):
        fields.maybe_child("c")
    with pytest.raises(MalformedRequest, match=r"^z: expected an object, found nothing"):
        fields.child("z")
    with pytest.raises(MalformedRequest, match=r"^b: expected an object, got null"):
        fields.child("b")
    assert fields.rest() == {}


def test_one_of_maps_and_refuses() -> None:
    fields = Fields({"a": "x", "b": "z", "c": 1})
    assert fields.one_of("a", {"x": 10, "y": 20}) == 10
    with pytest.raises(MalformedRequest, match=r'^b: expected one of x, y, got "z"$'):
        fields.one_of("b", {"x": 10, "y": 20})
    with pytest.raises(MalformedRequest, match=r"^c: expected one of x, y, got a number$"):
        fields.one_of("c", ("x", "y"))
    assert fields.one_of("d", ("x", "y"), "auto") == "auto"


def test_strings_name_the_item() -> None:
    with pytest.raises(MalformedRequest, match=r"^stop\[1\]: expected a string, got a number$"):
        Fields({"stop": ["a", 1]}).strings("stop")


def test_readers_take_and_lookers_do_not() -> None:
    data: dict[str, Json] = {"a": "1", "b": None, "c": 3, "d": [4]}
    fields = Fields(data)
    assert (fields.peek("a"), fields.peek("z"), fields.has("b"), fields.has("z")) == ("1", None, True, False)
    assert fields.rest() == data
    assert fields.text("a") == "1"
    assert fields.any("d") == [4]
    assert fields.any("z", 9) == 9
    assert (fields.peek("a"), fields.has("a")) == ("1", True)
    assert list(fields.rest().items()) == [("b", None), ("c", 3)]
    assert data == {"a": "1", "b": None, "c": 3, "d": [4]}


@given(
    st.dictionaries(st.text(max_size=3), st.none() | st.integers() | st.text(max_size=3)), st.sets(st.text(max_size=3))
)
def test_rest_is_all_that_was_not_taken(data: dict[str, Json], taken: set[str]) -> None:
    before = list(data.items())
    fields = Fields(data)
    for name in taken:
        fields.any(name)
    assert list(fields.rest().items()) == [(name, value) for name, value in before if name not in taken]
    assert list(data.items()) == before


def test_parse() -> None:
    assert Fields.parse(b'{"a":1}').integer("a") == 1
    with pytest.raises(UpstreamViolation, match=r"^delta: not JSON: .*truncated"):
        Fields.parse(b'{"a":', "delta", UpstreamViolation)
    with pytest.raises(MalformedRequest, match=r"^expected an object, got an array$"):
        Fields.parse(b"[]")
