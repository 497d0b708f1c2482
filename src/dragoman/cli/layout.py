"""Layout of text for a terminal: its width in columns, wrapping at words, and tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from unicodedata import combining, east_asian_width

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_TOKEN = re.compile(r" *[^ ]+")
_GAP = "  "  # between the columns of a table
_MORE = "    "  # before the rest of a row that is too long for one line


def display_width(text: str) -> int:
    """Return how many columns a terminal needs for a text: two for a wide character, none for a style."""
    if text.isascii():
        return len(text) if "\x1b" not in text else len(_STYLE.sub("", text))
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in _STYLE.sub("", text))


def count_of(number: int, what: str) -> str:
    """Return a number of things: `1 day`, `2 days`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def pad(text: str, columns: int, *, to_right: bool = False) -> str:
    """Return the text with spaces up to `columns` columns, on its left side with `to_right`."""
    spaces = " " * (columns - display_width(text))
    return spaces + text if to_right else text + spaces


def cut(text: str, columns: int) -> str:
    """Return a text without styles in at most `columns` columns; `…` stands for its end if it is longer."""
    if display_width(text) <= columns:
        return text
    while text and display_width(text) >= columns:
        text = text[:-1]
    return f"{text}…"


def fold(text: str, columns: int | None, *, first: str = "", rest: str = "", cuts: bool = False) -> list[str]:
    """Return one line of text wrapped at spaces, with `first` before it and `rest` before its further lines.

    A word that is too long stays whole, so that a path or a command can be copied, unless `cuts`. None: one line.
    """
    if columns is None or display_width(first) + display_width(text) <= columns:
        return [first + text]
    indent = text[: len(text) - len(text.lstrip(" "))]
    line, used, lines = first + indent, display_width(first) + len(indent), []
    tokens = _TOKEN.findall(text[len(indent) :])
    if cuts:
        size = max(columns - display_width(rest), 1)
        tokens = [token[at : at + size] for token in tokens for at in range(0, len(token), size)]
    for number, token in enumerate(tokens):
        size = display_width(token)
        is_shorter_later = display_width(rest) < display_width(first) and display_width(rest) + size <= columns
        if used + size > columns and (number or is_shorter_later):
            lines.append(line)
            line, used = rest + indent, display_width(rest) + len(indent)
            token = token.lstrip(" ")  # noqa: PLW2901
            size = display_width(token)
        line, used = line + token, used + size
    return [*lines, line]


def shell_lines(words: Sequence[str], columns: int | None, *, first: str = "  ", rest: str = "    ") -> list[str]:
    """Return a shell command, continued by a backslash at the end of a line where it is too long for one."""
    lines, line = [], first
    parts = [*_option_pairs(words)]
    for number, word in enumerate(parts):
        text = f" {word}" if line not in (first, rest) else word
        room = 0 if number == len(parts) - 1 else 2  # for a backslash
        if columns is not None and line.strip() and display_width(line) + display_width(text) + room > columns:
            lines.append(f"{line} \\")
            line, text = rest, word
        line += text
    return [*lines, line]


def _option_pairs(words: Sequence[str]) -> Iterator[str]:
    """Yield the words, an option together with its value."""
    option = ""
    for word in words:
        if option:
            yield option if word.startswith("-") else f"{option} {word}"
        elif not word.startswith("-"):
            yield word
        option = word if word.startswith("-") else ""
    if option:
        yield option


def table(rows: Sequence[Sequence[str]], columns: int | None, right: Collection[int] = ()) -> Iterator[tuple[int, str]]:
    """Yield the lines of a table, each with the number of its row; the columns of `right` are aligned to the right.

    If it is too wide, texts wrap inside their columns; if that is not enough, each value comes with the head of its
    column. None: each row is one line, so that scripts can read it.
    """
    sizes = [max(map(display_width, cells)) for cells in zip(*rows, strict=True)]
    if columns is not None:
        sizes = _narrowed(rows, sizes, columns, right)
        if _total(sizes) > columns:
            yield from _records(rows, columns)
            return
    for number, row in enumerate(rows):
        folded = [fold(cell, None if columns is None else size) for cell, size in zip(row, sizes, strict=True)]
        for cells in zip_longest(*folded, fillvalue=""):
            padded = (
                pad(cell, size, to_right=index in right)
                for index, (cell, size) in enumerate(zip(cells, sizes, strict=True))
            )
            yield number, _GAP.join(padded).rstrip()


def _records(rows: Sequence[Sequence[str]], columns: int) -> Iterator[tuple[int, str]]:
    """Yield each row as its first cell, and the others below it, each after the head of its column."""
    head = rows[0]
    for number, row in enumerate(rows[1:], 1):
        pairs = zip(head[1:], map(str.strip, row[1:]), strict=True)
        values = [f"{name.lower()} {value}" for name, value in pairs if value]
        yield from ((number, line) for line in fold(row[0], columns) if line)
        yield from ((number, line) for line in fold(_GAP.join(values), columns, first=_MORE, rest=_MORE))


def _total(sizes: Sequence[int]) -> int:
    return sum(sizes) + len(_GAP) * (len(sizes) - 1)


def _narrowed(rows: Sequence[Sequence[str]], sizes: list[int], columns: int, right: Collection[int]) -> list[int]:
    """Return the widths of columns after the widest were narrowed, as far as their words and numbers allow."""
    sizes = list(sizes)
    least = [
        max(_longest_word(cell) if number == 0 or index not in right else display_width(cell) for number, cell in found)
        for index, found in ((index, list(enumerate(cells))) for index, cells in enumerate(zip(*rows, strict=True)))
    ]
    while (excess := _total(sizes) - columns) > 0:
        wider = [index for index, size in enumerate(sizes) if size > least[index]]
        if not wider:
            break
        widest = max(wider, key=lambda index: sizes[index])
        sizes[widest] = max(least[widest], sizes[widest] - excess)
    return sizes


def _longest_word(text: str) -> int:
    return max(map(display_width, text.split(" ")))
