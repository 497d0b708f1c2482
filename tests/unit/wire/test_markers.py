"""Markers finds the leftmost, longest marker in text that is cut anywhere, and holds no more than a marker's beginning."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.markers import Markers

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


class Splitter:
    """Use Markers as its callers do: keep what it left unread, and look again when more text has come."""

    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self.held = ""
        self.pieces: list[str] = []

    def feed(self, text: str, *, final: bool = False) -> None:
        text, at = self.held + text, 0
        while True:
            start, marker = self.markers.find(text, at, final)
            self._plain(text[at:start])
            if not marker:
                self.held = text[start:]
                return
            self.pieces.append(marker)
            at = start + len(marker)

    def _plain(self, text: str) -> None:
        if self.pieces and text and self.pieces[-1] not in self.markers.markers:
            self.pieces[-1] += text
        elif text:
            self.pieces.append(text)


@given(some_markers, some_text)
def test_cut_anywhere_it_is_leftmost_longest(markers: set[str], texts: list[str]) -> None:
    splitter = Splitter(Markers(markers))
    for text in texts:
        splitter.feed(text)
    splitter.feed("", final=True)
    assert splitter.pieces == by_the_book(markers, "".join(texts))
    assert splitter.held == ""


@given(some_markers, some_text)
def test_nothing_is_held_but_the_beginning_of_a_marker(markers: set[str], texts: list[str]) -> None:
    splitter = Splitter(Markers(markers))
    for at, text in enumerate(texts):
        splitter.feed(text)
        assert "".join(splitter.pieces) + splitter.held == "".join(texts[: at + 1])
        assert splitter.held == "" or any(m.startswith(splitter.held) and m != splitter.held for m in markers)


@given(st.text("ab<", max_size=12), st.sets(st.text("ab<", min_size=1, max_size=4), min_size=1, max_size=4))
def test_a_marker_is_found_as_soon_and_only_as_soon_as_it_is_certain(text: str, words: set[str]) -> None:
    markers = Markers(words)
    start, found = markers.find(text, 0, True)
    assert (start, found) == min(
        ((text.find(word), -len(word), word) for word in words if word in text), default=(len(text), 0, "")
    )[::2]
    start, found = markers.find(text, 0, False)
    if found:
        assert text.startswith(found, start)
        assert all(markers.find(text + more, 0, False) == (start, found) for more in ("", "a", "b<", "<<<<"))
    else:
        assert any(word.startswith(text[start:]) and word != text[start:] for word in words) or start == len(text)
    assert not any(word in text[:start] for word in words if text.find(word) + len(word) <= start)


@given(some_markers, st.text("ab<c", max_size=10), st.integers(0, 10))
def test_match_and_find_agree_on_what_begins_at_a_position(markers: set[str], text: str, at: int) -> None:
    at = min(at, len(text))
    both = Markers(markers)
    start, found = both.find(text, at, True)
    assert both.match(text, at, True) == (found if found and start == at else None)
    now = both.match(text, at, False)
    if now:
        assert all(both.match(text + more, at, False) == now for more in ("", "a", "b<", "<<<<"))
    elif now == "":
        assert at == len(text) or any(marker.startswith(text[at:]) and marker != text[at:] for marker in markers)
    else:
        assert all(both.match(text + more, at, False) is None for more in ("", "a", "b<", "<<<<"))


def test_a_tool_section_character_by_character() -> None:
    text = (
        "let me <look>: <|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_end|><|tool_calls_section_end|><|"
    )
    splitter = Splitter(Markers(KIMI))
    for char in text:
        splitter.feed(char)
    splitter.feed("", final=True)
    assert splitter.pieces == by_the_book(set(KIMI), text)
    assert [piece for piece in splitter.pieces if piece in KIMI] == [KIMI[0], KIMI[2], KIMI[3], KIMI[1]]


@pytest.mark.parametrize(
    ("text", "held"), [("a > b", ""), ("a < b", ""), ("", ""), ("if a <", "<"), ("b\n<|", "<|"), ("<|x", "")]
)
def test_text_without_a_marker_is_held_only_where_one_may_begin(text: str, held: str) -> None:
    assert Markers(KIMI).find(text, 0, False) == (len(text) - len(held), "")


def test_a_marker_that_begins_another_waits() -> None:
    markers = Markers(["<a", "<a b c"])
    assert markers.find("<a b", 0, False) == (0, "")
    assert markers.find("<a b!", 0, False) == (0, "<a")
    assert markers.find("<a b c", 0, False) == (0, "<a b c")
    assert markers.find("<a", 0, False) == (0, "")
    assert markers.find("<a", 0, True) == (0, "<a")
    assert markers.match("<a b", 0, False) == ""
    assert markers.match("<a b!", 0, False) == "<a"


def test_no_markers_find_nothing() -> None:
    assert Markers(()).find("any <text>", 0, False) == (10, "")
    assert Markers(()).match("any <text>", 4, True) is None


def test_characters_that_mean_something_to_a_pattern() -> None:
    markers = ["]]>", "^-", ".*", "\\d", "\n\n"]
    text = "a]]>b^-c.*d\\de\n\nf.x]"
    splitter = Splitter(Markers(markers))
    splitter.feed(text)
    splitter.feed("", final=True)
    assert splitter.pieces == by_the_book(set(markers), text)
