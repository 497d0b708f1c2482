"""The object scanner against a decoder that tries every prefix."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.jsonscan import ObjectScanner

trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('a"\\{}[]é\n', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k"\\}', max_size=3), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text('k"\\}', max_size=3), trees, max_size=4)


@given(objects, st.sampled_from(["", " ", "}", '{"next":1}']), st.data())
def test_complete_exactly_at_the_closing_bracket_under_every_cut(
    value: object, after: str, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    scanner = ObjectScanner()
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        assert not scanner.complete or start == len(text)
        assert scanner.feed(text[start:end]) == ""
    assert scanner.complete
    assert scanner.feed(after) == after


@pytest.mark.parametrize("text", ["", "  ", "{", '{"a', '{"a": "}', '{"a": "\\"}', '{"a": [1}'])
def test_not_complete(text: str) -> None:
    scanner = ObjectScanner()
    rest = "".join(map(scanner.feed, text))
    assert (scanner.complete, rest) == (False, "")


def test_what_follows_is_given_back() -> None:
    assert ObjectScanner().feed('{"a":1}}  x') == "}  x"
