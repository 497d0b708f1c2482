from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import LocalMisuse
from dragoman.wire.markers import MarkerScanner

KIMI = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"]
some_markers = st.sets(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4)
some_text = st.lists(st.text("ab<c", max_size=6), max_size=6)


def by_the_book(markers: set[str], text: str) -> list[str]:
    """Leftmost, then longest; neighbouring text in one piece."""
    pieces, plain = [], ""
    while text:
        fitting = [marker for marker in markers if text.startswith(marker)]
        if fitting:
            found = max(fitting, key=len)
            pieces += [plain, found]
            plain, text = "", text[len(found) :]
        else:
            plain, text = plain + text[0], text[1:]
    return [piece for piece in [*pieces, plain] if piece]


def merged(scanner: MarkerScanner, pieces: list[str]) -> list[str]:
    found: list[str] = []
    for piece in pieces:
        if found and piece not in scanner.markers and found[-1] not in scanner.markers:
            found[-1] += piece
        else:
            found.append(piece)
    return found


@given(some_markers, some_text)
def test_cut_anywhere_it_is_leftmost_longest(markers: set[str], texts: list[str]) -> None:
    scanner = MarkerScanner(markers)
    pieces = [piece for text in texts for piece in scanner.feed(text)] + scanner.close()
    assert "" not in pieces
    assert merged(scanner, pieces) == by_the_book(markers, "".join(texts))
    assert scanner.held == ""


@given(some_markers, some_text)
def test_nothing_is_held_but_the_beginning_of_a_marker(markers: set[str], texts: list[str]) -> None:
    scanner, given_out = MarkerScanner(markers), ""
    for at, text in enumerate(texts):
        given_out += "".join(scanner.feed(text))
        assert given_out + scanner.held == "".join(texts[: at + 1])
        assert scanner.held == "" or any(m.startswith(scanner.held) and m != scanner.held for m in markers)


def test_a_tool_section_character_by_character() -> None:
    text = (
        "let me <look>: <|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_end|><|tool_calls_section_end|><|"
    )
    scanner = MarkerScanner(KIMI)
    pieces = [piece for char in text for piece in scanner.feed(char)] + scanner.close()
    assert merged(scanner, pieces) == by_the_book(set(KIMI), text)
    assert [piece for piece in pieces if piece in scanner.markers] == [KIMI[0], KIMI[2], KIMI[3], KIMI[1]]


def test_text_without_a_marker_passes_at_once() -> None:
    scanner = MarkerScanner(KIMI)
    assert scanner.feed("a > b") == ["a > b"]
    assert scanner.feed("a < b") == ["a < b"]
    assert scanner.feed("") == []
    assert scanner.feed("if a <") == ["if a "]
    assert scanner.feed(" b\n<|") == ["< b\n"]
    assert scanner.feed("x") == ["<|x"]
    assert scanner.close() == []


def test_a_marker_that_begins_another_waits() -> None:
    scanner = MarkerScanner(["<a", "<a b c"])
    assert scanner.feed("<a b") == []
    assert scanner.feed("!") == ["<a", " b!"]
    assert scanner.feed("<a b c") == ["<a b c"]
    assert scanner.feed("<a") == []
    assert scanner.close() == ["<a"]


@pytest.mark.parametrize("markers", [[], [""], ["a", ""]])
def test_empty_markers_are_refused(markers: list[str]) -> None:
    with pytest.raises(LocalMisuse):
        MarkerScanner(markers)


def test_characters_that_mean_something_to_a_pattern() -> None:
    markers = ["]]>", "^-", ".*", "\\d", "\n\n"]
    scanner = MarkerScanner(markers)
    text = "a]]>b^-c.*d\\de\n\nf.x]"
    assert merged(scanner, scanner.feed(text) + scanner.close()) == by_the_book(set(markers), text)
