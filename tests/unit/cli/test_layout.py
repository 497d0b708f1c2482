"""Layout for a terminal: nothing is lost, no line is too long, and what is copied stays whole."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli.layout import count_of, cut, display_width, fold, pad, shell_lines, table

WORDS = st.text(st.sampled_from("ab4é模🙂/-"), min_size=1, max_size=12)
LINES = st.lists(st.tuples(st.sampled_from([" ", "  "]), WORDS)).map(lambda pairs: "".join(map("".join, pairs)).strip())
COLUMNS = st.integers(1, 60)


@pytest.mark.parametrize(
    ("text", "columns"),
    [("abc", 3), ("é", 1), ("e\u0301", 1), ("模型", 4), ("🙂", 2), ("\x1b[1;31mab\x1b[0m", 2), ("", 0)],
)
def test_the_width_of_a_text(text: str, columns: int) -> None:
    assert display_width(text) == columns


@given(LINES, COLUMNS)
def test_folding_loses_no_word_and_breaks_none(text: str, columns: int) -> None:
    lines = fold(text, columns, first="> ", rest="    ")
    assert " ".join(lines).removeprefix("> ").split() == text.split()
    for line in lines:
        assert display_width(line) <= columns or len(line.removeprefix("> ").split()) <= 1


@given(LINES, COLUMNS)
def test_cut_words_fit_as_far_as_a_character_does(text: str, columns: int) -> None:
    lines = fold(text, columns + 4, rest="  ", cuts=True)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(display_width(line) <= columns + 4 or len(line.strip()) <= columns + 2 for line in lines)


@given(LINES, COLUMNS)
def test_a_cut_text_and_a_padded_one_have_the_width(text: str, columns: int) -> None:
    assert display_width(cut(text, columns)) <= columns
    assert display_width(pad(cut(text, columns), columns)) == columns
    assert cut(text, 10_000) == text


@given(st.lists(WORDS.map(shlex.quote), min_size=1), COLUMNS)
def test_a_command_over_several_lines_means_the_same(words: list[str], columns: int) -> None:
    lines = shell_lines(words, columns)
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(" ".join(words))
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert shell_lines(words, None) == [f"  {' '.join(words)}"]


def test_an_option_stays_with_its_value() -> None:
    words = ["env", "-u", "A", "codex", "-c", "a=b", "--flag", "-c", "c=d"]
    assert [line.strip(" \\") for line in shell_lines(words, 8)] == [
        "env",
        "-u A",
        "codex",
        "-c a=b",
        "--flag",
        "-c c=d",
    ]


ROWS = [("MODEL", "WINDOW", "UPSTREAM"), ("a-model", "200k", "one as another-model"), ("模型", "", "two")]


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (None, ["MODEL    WINDOW  UPSTREAM", "a-model    200k  one as another-model", "模型             two"]),
        (40, ["MODEL    WINDOW  UPSTREAM", "a-model    200k  one as another-model", "模型             two"]),
        (32, ["MODEL    WINDOW  UPSTREAM", "a-model    200k  one as", "                 another-model", "模型             two"]),
        (24, ["a-model", "    window 200k", "    upstream one as", "    another-model", "模型", "    upstream two"]),
    ],
)  # fmt: skip
def test_a_table_wraps_its_texts_or_names_its_values(columns: int | None, lines: list[str]) -> None:
    assert [line for _, line in table(ROWS, columns, right=(1,))] == lines


@given(st.lists(st.tuples(LINES, WORDS, LINES), min_size=1, max_size=5), COLUMNS)
def test_a_table_loses_no_word(rows: list[tuple[str, str, str]], columns: int) -> None:
    found = "\n".join(line for _, line in table([("A", "B", "C"), *rows], columns, right=(1,)))
    for row in rows:
        for cell in row:
            assert all(word in found for word in cell.split())


def test_counts_of_one_are_singular() -> None:
    assert [count_of(number, "day") for number in (0, 1, 2)] == ["0 days", "1 day", "2 days"]
