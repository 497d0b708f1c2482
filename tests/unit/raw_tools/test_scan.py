from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.filters.raw_tools.scan import JsonScanner

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
structures = st.lists(values, max_size=4) | st.dictionaries(st.text(max_size=4), values, max_size=4)


def scanned(pieces: list[str]) -> tuple[int, bool, bool]:
    """How far it went over all pieces, whether the value is complete, whether it stopped in a string."""
    scanner, done = JsonScanner(), 0
    for piece in pieces:
        end = scanner.scan(piece, 0)
        done += end
        if end < len(piece):
            break
    return done, scanner.complete, scanner.quoted


@given(structures, st.sampled_from([None, 1]), st.booleans(), st.text(" x}]<", max_size=3))
def test_json_is_followed_to_its_end_and_no_further(
    value: object, indent: int | None, ascii_: bool, after: str
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_)
    assert scanned([text + after]) == scanned([*text, *after]) == (len(text), True, False)


@given(st.text('{}[]",:\\ \n01-e.tfnrualsx<', max_size=24), st.randoms(use_true_random=False))
def test_where_it_stops_does_not_depend_on_the_cut(text: str, rng: random.Random) -> None:
    places = sorted(rng.sample(range(len(text) + 1), min(3, len(text) + 1)))
    cut = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
    assert scanned([text]) == scanned(list(text)) == scanned(cut)


@given(st.text('{}[]",:\\ 01-etrufalsn', max_size=20))
def test_what_python_takes_for_json_is_never_refused(text: str) -> None:
    try:
        json.loads(text)
    except ValueError:
        return
    done, _, _ = scanned([text])
    assert not text[done:].strip()


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ('{"a":"echo "hi"}', 12),
        ('{"a":1 "b"', 7),
        ('{"a" "b"', 5),
        ("{a", 1),
        ("{,", 1),
        ('{"a":tr ', 7),
        ("[1,]", 3),
        ('{"a":1,}', 7),
        ("nul<", 3),
        ("[" * 1001, 1000),
    ],
)
def test_it_stops_at_the_first_character_that_is_no_json(text: str, stops: int) -> None:
    assert scanned([text])[0] == stops


@pytest.mark.parametrize("text", ['{"a":"x\\"y\\\\","b":2}', '["\\\\\\"",1]', '{"\\"k":"\\u0041\\n\\""}x'])
def test_an_escape_at_a_cut_is_still_an_escape(text: str) -> None:
    whole = scanned([text])
    assert whole[1]
    for cut in range(len(text) + 1):
        assert scanned([text[:cut], text[cut:]]) == whole
        for second in range(cut, len(text) + 1):
            assert scanned([text[:cut], text[cut:second], text[second:]]) == whole


@given(st.lists(st.text('\\"ab', max_size=4), max_size=6))
def test_within_takes_what_scan_takes(pieces: list[str]) -> None:
    scanner = JsonScanner()
    scanner.scan('["', 0)
    for piece in pieces:
        other = scanner.copy()
        taken = scanner.within(piece)
        end = other.scan(piece, 0)
        assert taken == (piece if piece and end == len(piece) and other.quoted else None)
        if taken is None:
            break
        assert scanner._escaped == other._escaped
