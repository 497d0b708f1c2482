"""The places of keys in a TOML text, for error messages: key paths and lines, which tomllib does not report. Pure.

Only texts that tomllib has accepted are scanned, so nothing is validated. If the scan fails, the lines found so far are
used.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str | int, ...]  # a place in the tree of a document: names, and numbers in lists


def dotted_key(key: KeyPath) -> str:
    """Return a key path as text: `routes[0].upstream`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")' r"|'''.*?'{3,5}(?!')" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN_VALUE = re.compile(r"[^,\]}\n#]*")


def line_numbers(text: str) -> dict[KeyPath, int]:
    """Return the line, from 1, of every key, table and list item."""
    scan = _Scan(text)
    with suppress(_ScanFailed, RecursionError, tomllib.TOMLDecodeError):
        scan.document()
    return scan.lines


class _ScanFailed(Exception):
    """The text is not what TOML has at this place."""


class _Scan:
    def __init__(self, text: str) -> None:
        self.lines: dict[KeyPath, int] = {}
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self._items: dict[KeyPath, int] = {}  # arrays of tables: how many items so far

    def document(self) -> None:
        table: KeyPath = ()
        while self._blank() < len(self._text):
            if self._take("[["):
                table = self._next_item()
                self._must("]]")
            elif self._take("["):
                table = self._table(self._key())
                self._must("]")
            else:
                self._pair(table)

    # --- tables

    def _table(self, names: tuple[str, ...]) -> KeyPath:
        """Return the key path of a header; a list of tables in it means its last item."""
        line = self._here()
        key: KeyPath = ()
        for name in names:
            key = (*key, name)
            self.lines.setdefault(key, line)
            key = (*key, self._items[key] - 1) if key in self._items else key
        return key

    def _next_item(self) -> KeyPath:
        *table, last = self._key()
        line = self._here()
        key = (*self._table(tuple(table)), last)
        self._items[key] = self._items.get(key, 0) + 1
        self.lines.setdefault(key, line)
        item = (*key, self._items[key] - 1)
        self.lines[item] = line
        return item

    # --- keys and values

    def _pair(self, table: KeyPath) -> None:
        line = self._here()
        key = table
        for name in self._key():
            key = (*key, name)
            self.lines.setdefault(key, line)
        self._must("=")
        self._space()
        self._value(key)

    def _key(self) -> tuple[str, ...]:
        return tuple(self._names())

    def _names(self) -> Iterator[str]:
        while True:
            self._space()
            if found := _STRING.match(self._text, self._at):
                yield str(tomllib.loads(f"key = {found[0]}")["key"])
            elif found := _BARE_KEY.match(self._text, self._at):
                yield found[0]
            else:
                raise _ScanFailed
            self._at = found.end()
            self._space()
            if not self._take("."):
                return

    def _value(self, key: KeyPath) -> None:
        if found := _STRING.match(self._text, self._at):
            self._at = found.end()
        elif self._take("["):
            self._list(key)
        elif self._take("{"):
            self._inline_table(key)
        elif found := _PLAIN_VALUE.match(self._text, self._at):
            self._at = found.end()

    def _list(self, key: KeyPath) -> None:
        index = 0
        while not self._take("]", blank=True):
            self.lines[(*key, index)] = self._here()
            self._value((*key, index))
            index += 1
            if not self._take(",", blank=True):
                self._must("]", blank=True)
                return

    def _inline_table(self, key: KeyPath) -> None:
        while not self._take("}", blank=True):
            self._pair(key)
            if not self._take(",", blank=True):
                self._must("}", blank=True)
                return

    # --- moving on

    def _blank(self) -> int:
        self._at = self._end(_BLANK)
        return self._at

    def _space(self) -> None:
        self._at = self._end(_SPACE)

    def _end(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self._text, self._at)
        return found.end() if found else self._at

    def _take(self, mark: str, *, blank: bool = False) -> bool:
        if blank:
            self._blank()
        if not self._text.startswith(mark, self._at):
            return False
        self._at += len(mark)
        return True

    def _must(self, mark: str, *, blank: bool = False) -> None:
        if not self._take(mark, blank=blank):
            raise _ScanFailed

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line
