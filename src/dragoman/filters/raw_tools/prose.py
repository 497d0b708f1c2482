"""What stands before a marker in the prose: is it a quotation, may a tag call begin here, may a header begin here.

Prose is only collected while it flows; it is read when a marker comes, or once in a while, so that it stays bounded.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

ENDS = ".!?:…。！？："  # of sentences
_BLANK = " \t\r\n"
_FENCE = re.compile(r"[ \t>]*(?:[-*+]|\d+[.)])?[ \t]*(`{3,}|~{3,})([^\n]*)")
_CLOSING = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*")
_LAST_WORD = re.compile(r"[^\s<]+\s{0,2}\Z")
_RUNS = re.compile(r"`+|[^`]+")
_CODE = re.compile(r" {0,3}\t\s*| {4}\s*| {0,3}[-+]\s*")  # an indented line, or one of a diff, up to its first word
_BLOCKQUOTE = re.compile(r" {0,3}>")
_ROW = re.compile(r" {0,3}\|")
_OPENING_QUOTES = "“‘«‹「『"
_HEAD, _TAIL = 80, 24
MANY = 64  # pieces: each takes more than its text, and every open stream has some


class Prose:
    """One carrier's text so far, as far as it matters."""

    __slots__ = (
        "_doubles",
        "_fence",
        "_head",
        "_line_quotes",
        "_paragraph_quotes",
        "_run",
        "_singles",
        "_size",
        "_span",
        "_tail",
        "_ticks",
        "begins",
        "line_ends",
        "pieces",
    )

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.begins = True  # a header without its marker may begin here: after a sentence or an empty line
        self.line_ends = 0  # in the white space that stands last
        self._fence = ""  # the marks that opened the code block we are in
        self._paragraph_quotes = False
        self._line("")

    def add(self, text: str) -> None:
        self.pieces.append(text)
        body = text.rstrip(_BLANK)
        if body:
            self.begins, self.line_ends = body[-1] in ENDS, 0
        self.line_ends += text.count("\n", len(body))
        self.begins = self.begins or self.line_ends > 1
        if len(self.pieces) > MANY:
            self.settle()

    def fresh(self) -> None:
        """A call has ended here: whatever was open before it, what follows begins anew."""
        self.pieces.clear()
        self.begins = True
        self.line_ends = 0
        self._fence = ""
        self._paragraph_quotes = False
        self._line("")

    def settle(self) -> None:
        """Read the pieces."""
        first, *more = "".join(self.pieces).split("\n")
        self.pieces.clear()
        self._grow(first)
        for line in more:
            self._end_line()
            self._line(line)

    def quoted(self) -> bool:
        """Whether what comes next is part of a code block or of a quotation in this line."""
        self.settle()
        if self._fence:
            return not self._closes()
        self._end_run()
        if self._span or self._line_quotes:
            return True
        last = self._tail[-1:]
        return (
            (last == '"' and self._doubles % 2 == 1)
            or (last == "'" and self._singles % 2 == 1)
            or (last != "" and last in _OPENING_QUOTES)
        )

    def cited(self) -> bool:
        """Whether a special token that comes next is quoted in any way, be it only by how its line begins."""
        if self.quoted() or (not self._fence and self._doubles % 2 == 1):
            return True
        if self._fence or not self._size:
            return False
        if self._size < _HEAD and _CODE.fullmatch(self._head):
            return True
        last = self._tail[-1]
        return (_BLOCKQUOTE.match(self._head) is not None and last not in ENDS) or (
            _ROW.match(self._head) is not None and (last != "|" or self._head.strip() == "|")
        )

    def alone(self) -> bool:
        """Whether a tag here may be meant: first in its line and not indented like code, or right after a sentence."""
        if self.quoted() or self._paragraph_quotes or self._doubles % 2 == 1:
            return False
        if self._fence or not self._head.strip():
            return self._fence != "" or (self._size < 4 and "\t" not in self._head)
        return self._tail[-1] in ENDS or self._tail.endswith("</think>")

    def quotes(self, tag: bool) -> None:
        """A marker was taken for a quotation: so are the others of its line, or if it is a tag of its paragraph."""
        if not self._span and not self._fence:  # those end by themselves
            self._line_quotes = True
            self._paragraph_quotes = tag or self._paragraph_quotes

    def _line(self, text: str) -> None:
        self._head = self._tail = ""
        self._size = self._ticks = self._doubles = self._singles = 0
        self._span = self._run = 0  # the backticks of the code span we are in, and those that stand last
        self._line_quotes = False
        self._grow(text)

    def _grow(self, text: str) -> None:
        if len(self._head) < _HEAD:
            self._head += text[: _HEAD - len(self._head)]
        self._tail = (self._tail + text[-_TAIL:])[-_TAIL:]
        self._size += len(text)
        if self._run or "`" in text:
            for part in _RUNS.findall(text):
                if part[0] == "`":
                    self._run += len(part)
                    self._ticks += len(part)
                else:
                    self._end_run()
        self._doubles += text.count('"')
        self._singles += text.count("'")

    def _end_run(self) -> None:
        if self._run and self._span in (0, self._run):
            self._span = 0 if self._span else self._run
        self._run = 0

    def _end_line(self) -> None:
        if not self._head.strip():
            self._paragraph_quotes = False
        if self._fence:
            if self._closes():
                self._fence = ""
            return
        found = _FENCE.match(self._head)
        if found is not None and (found[1][0] == "~" or self._ticks == len(found[1])):
            self._fence = found[1]

    def _closes(self) -> bool:
        """Whether this line, as far as it is there, is the one that closes the code block."""
        found = _CLOSING.fullmatch(self._head)
        return found is not None and self._size <= _HEAD and found[1].startswith(self._fence)


class Headless:
    """Finds `[functions.]NAME[:COUNT]` of a declared tool at the end of a text, or what may still become one.

    Some providers swallow the markers before it, so that only the marker after it tells that it was a header.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._whole = frozenset(spelt for name in names for spelt in (name, f"functions.{name}"))
        self._sorted = sorted(self._whole)
        self._longest = max(map(len, self._whole), default=0) + 12

    def start(self, text: str, at: int, end: int, before: Prose) -> int:
        """Where it begins; `end` if there is none. `before`: what was said before `at`."""
        begin = max(at, end - self._longest)
        run = _LAST_WORD.search(text[begin:end])
        if run is None:
            return end
        first = begin + run.start()
        places = [first, *(place for place in range(first + 1, end) if text[place - 1] in ENDS)]
        for place in places:
            if self._may_be(text[place:end]) and _begins(text, at, place, before):
                return place
        return end

    def _may_be(self, text: str) -> bool:
        name, colon, count = text.rstrip().partition(":")
        if len(text) > self._longest:
            return False
        if colon:
            return name in self._whole and (count.isdigit() or not count) and len(count) < 10
        if text != name:
            return name in self._whole
        place = bisect_left(self._sorted, name)
        return name != "" and place < len(self._sorted) and self._sorted[place].startswith(name)

    def is_header(self, text: str) -> bool:
        """Whether the text, which may be one, is one."""
        name, colon, count = text.rstrip().partition(":")
        return name in self._whole and (not colon or count.isdigit())


@lru_cache(64)
def headless_of(names: tuple[str, ...]) -> Headless:
    """The tools of a conversation are the same in every turn."""
    return Headless(names)


def _begins(text: str, at: int, place: int, before: Prose) -> bool:
    line_ends = 0
    while place > at and text[place - 1] in _BLANK:
        place -= 1
        line_ends += text[place] == "\n"
    if place > at:
        return line_ends > 1 or text[place - 1] in ENDS
    return before.begins or before.line_ends + line_ends > 1
