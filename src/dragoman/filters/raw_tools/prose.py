"""The context before a marker in ordinary text: whether the marker is quoted, and whether a tag or header may begin.

Text is only collected while it streams. It is parsed when a marker arrives, or after `MAX_PIECES` pieces, so that the
memory stays bounded.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

from msgspec import Struct

SENTENCE_ENDS = ".!?…。！？"
CLAUSE_ENDS = SENTENCE_ENDS + ":："  # a tag may follow these directly
_BLANK = " \t\r\n"
_FENCE = re.compile(r"[ \t>]*(?:[-*+]|\d+[.)])?[ \t]*(`{3,}|~{3,})([^\n]*)")
_CLOSING = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t\r]*")
_LAST_WORD = re.compile(r"[^\s<]+\s{0,2}\Z")
_PAIRS = {"“": "”", "‘": "’", "«": "»", "‹": "›", "「": "」", "『": "』"}
# German, Swedish and East Asian quotation marks. A mark that closes an open quotation opens none.
_PAIRS |= {"„": "“", "‚": "‘", "»": "«", "›": "‹", "”": "”", "【": "】", "《": "》", "〈": "〉", "〝": "〞", "＂": "＂"}
_MARKS = re.compile("`+|[\"'" + "".join(sorted({*_PAIRS, *_PAIRS.values()})) + "]")
_CODE_TAG = re.compile(r"<(pre|code|samp|kbd)\b[^<>]*>[ \t]*\Z")
_BEFORE_A_QUOTE = " \t\r([{<=:,;|/>—–-+*_~@#&\"'“‘«"  # an apostrophe or an inch sign follows other characters
_INDENTED = re.compile(r" {0,3}\t\s*| {4}\s*|[+]\s*|-(?:\s{2,})?")  # code, or a line of a diff, up to its first word
_BLOCKQUOTE = re.compile(r" {0,3}>")
_ROW = re.compile(r" {0,3}\||[^|`]*[^|`\s] \| ")
_CLOSING_MARKS = {"|": r"(?<=[\s\]})>])\|(?=\s|\Z)"}  # bars are part of many markers too
_HEAD, _TAIL = 80, 24
MAX_PIECES = 64  # unparsed pieces; each takes memory, and every open stream has some


class Quotation(Struct, frozen=True):
    """A quotation that was opened before a marker, and the mark that would close it after the marker.

    A line with its mark closes a `fence`, the mark in the same line closes `inline`, any text after the calls closes a
    `block`.
    """

    kind: Literal["fence", "inline", "block"]
    mark: str = ""

    @property
    def scope_end(self) -> str:
        """The text before which an inline quotation must close: inline code may continue in the next line."""
        return "\n\n" if self.mark[0] == "`" else "\n"

    def is_closing_line(self, line: str) -> bool:
        """Return whether a line closes this code block."""
        if self.mark[0] == "<":
            return self.mark in line
        found = _CLOSING.fullmatch(line)
        return found is not None and found[1].startswith(self.mark)

    def closing(self, line: str, markers: Iterable[tuple[int, bool]]) -> int:
        """Return where this quotation ends in the rest of its line, or -1.

        Arguments may contain the mark too: then the next marker ends a call. A straight quotation mark, which is
        frequent in arguments, must follow the end of a call, or a character that can be one. `markers` are the
        positions of the markers in the line, and whether they end something.
        """
        before, place, ends, rest = False, 0, False, iter((*markers, (len(line) + 1, False)))
        for found in re.finditer(_CLOSING_MARKS.get(self.mark) or _closing_mark(self.mark), line):
            while place < found.end():
                before, (place, ends) = ends, next(rest)
            sure = self.mark not in "\"'" or before or line[found.start() - 1] in "]})>"
            if not ends and sure:
                return found.end()
        return -1


def _closing_mark(mark: str) -> str:
    return f"(?<!`){mark}(?!`)" if mark[0] == "`" else re.escape(mark)


class Prose:
    """The relevant state of the text of one channel so far."""

    __slots__ = (
        "_fence",
        "_head",
        "_last",
        "_not_quoted",
        "_open",
        "_paragraph_quotes",
        "_run",
        "_size",
        "_tail",
        "_ticks",
        "begins",
        "line_ends",
        "pieces",
    )

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.reset()

    def add(self, text: str) -> None:
        """Append text."""
        self.pieces.append(text)
        body = text.rstrip(_BLANK)
        if body:
            self.begins, self.line_ends = body[-1] in CLAUSE_ENDS, 0
        self.line_ends += text.count("\n", len(body))
        self.begins = self.begins or self.line_ends > 1
        if len(self.pieces) > MAX_PIECES:
            self.parse_pieces()

    def reset(self) -> None:
        """Reset the state: a call has ended here."""
        self.pieces.clear()
        self.begins = True  # a header without its marker may begin here: after a sentence or an empty line
        self.line_ends = 0  # line ends in the white space at the end
        self._fence = ""  # the marks that opened the current code block
        self._paragraph_quotes = False
        self._begin_line("")

    def parse_pieces(self) -> None:
        """Parse the collected pieces."""
        first, *more = "".join(self.pieces).split("\n")
        self.pieces.clear()
        self._grow(first, not more)
        last = len(more)
        for number, line in enumerate(more, 1):
            self._end_line()
            self._begin_line(line, number == last)

    def quotation(self) -> Quotation | None:
        """Return the quotation around a special token that follows next, if there is one."""
        self.parse_pieces()
        if self._fence:
            return None if self._closes() else Quotation("fence", self._fence)
        if self._not_quoted or not self._size:
            return None
        if mark := self._quote():
            return Quotation("inline", mark)
        if tag := _CODE_TAG.search(self._tail):
            return Quotation("inline", f"</{tag[1]}>")
        if _ROW.match(self._head):
            return Quotation("inline", "|")
        if (_BLOCKQUOTE.match(self._head) and self._tail.rstrip()[-1:] not in CLAUSE_ENDS) or (
            self._size < _HEAD and _INDENTED.fullmatch(self._head)
        ):
            return Quotation("block")
        return None

    def tag_may_begin(self) -> Quotation | bool:
        """Return whether a tag that follows next counts; a Quotation: only if that is not closed after it.

        A tag counts at the start of a line that is not indented like code, or after a sentence.
        """
        self.parse_pieces()
        if self._fence:
            return self._closes()
        if self._quote() or self._paragraph_quotes:
            return False
        if not self._head.strip():
            return self._size < 4 and "\t" not in self._head
        before = self._tail.rstrip(" \t")
        if re.search(r"\d:\Z", before):  # a line of a log or of grep
            return False
        if before[-1:] and (before[-1] in SENTENCE_ENDS or (before[-1] in CLAUSE_ENDS and before == self._tail)):
            return _BLOCKQUOTE.match(self._head) is None and _ROW.match(self._head) is None
        if before.endswith("</think>"):
            return True
        plain = _BLOCKQUOTE.match(self._head) is None and _ROW.match(self._head) is None
        return Quotation("block") if plain and before[-1:] in (":", "：") else False

    def forget_quotation(self) -> None:
        """Record that the open quotation is not one."""
        self._fence = ""
        self._not_quoted = True

    def record_quoted_tag(self) -> None:
        """Record that a tag is quoted: then the other tags of its paragraph are quoted too."""
        if not self._fence and not self._open:  # an open quotation has an end of its own
            self._paragraph_quotes = True

    def _quote(self) -> str:
        """Return the mark that would close the current quotation."""
        self._end_run()
        return self._open[-1] if self._open else ""

    def _begin_line(self, text: str, is_last: bool = True) -> None:
        self._head = self._tail = self._last = ""
        self._size = self._ticks = self._run = 0
        self._not_quoted = False  # the line looks quoted but is not
        self._open: list[str] = []  # closing marks of the open quotations in this line, the innermost last
        self._grow(text, is_last)

    def _grow(self, text: str, is_last: bool) -> None:
        """Read more of a line. Of ended lines only the opening of a code block matters."""
        if not text:
            return
        if len(self._head) < _HEAD:
            self._head += text[: _HEAD - len(self._head)]
        if not is_last:
            self._ticks += text.count("`")
        elif not self._fence:
            self._read_marks(text)
        self._tail = (self._tail + text[-_TAIL:])[-_TAIL:]
        self._size += len(text)
        self._last = text[-1]

    def _read_marks(self, text: str) -> None:
        if self._run and text[0] != "`":
            self._end_run()
        for found in _MARKS.finditer(text):
            at, mark = found.start(), found[0]
            if mark[0] == "`":
                self._run += len(mark)
                self._ticks += len(mark)
                if found.end() < len(text):
                    self._end_run()
            else:
                self._quote_mark(text[at - 1] if at else self._last, mark)

    def _quote_mark(self, before: str, mark: str) -> None:
        inner = self._open[-1] if self._open else ""
        if inner[:1] == "`" or before == "\\":
            return
        if mark in self._open:
            del self._open[self._open.index(mark) :]
        elif mark in _PAIRS:
            self._open.append(_PAIRS[mark])
        elif mark in "\"'" and (not before or before in _BEFORE_A_QUOTE):
            self._open.append(mark)

    def _end_run(self) -> None:
        """End a run of backticks: it opens a code span, or closes the span that an equal run opened."""
        if not self._run:
            return
        run, self._run = "`" * self._run, 0
        inner = self._open[-1] if self._open else ""
        if inner == run:
            self._open.pop()
        elif inner[:1] != "`":
            self._open.append(run)

    def _end_line(self) -> None:
        if not self._head.strip():
            self._paragraph_quotes = False
        if self._fence:
            if self._closes():
                self._fence = ""
            return
        if tag := _CODE_TAG.search(self._tail):
            self._fence = f"</{tag[1]}>"
            return
        found = _FENCE.match(self._head)
        if found is not None and (found[1][0] == "~" or self._ticks == len(found[1])):
            self._fence = found[1]

    def _closes(self) -> bool:
        """Return whether the current line, so far, closes the code block."""
        if self._fence[0] == "<":
            return self._fence in self._head or self._fence in self._tail
        found = _CLOSING.fullmatch(self._head)
        return found is not None and self._size <= _HEAD and found[1].startswith(self._fence)


class HeadlessFinder:
    """Finds `[functions.]NAME[:COUNT]` of a declared tool at the end of a text, or a text that may become one.

    Some providers remove the markers before it, so that only the marker after it shows that it is a header.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(each for name in names for each in (name, f"functions.{name}"))
        self._sorted = sorted(self._names)
        self._longest = max(map(len, self._names), default=0) + 12

    def start(self, text: str, at: int, end: int, before: Prose) -> int:
        """Return where the header begins; `end` if there is none. `before` is the context before `at`."""
        begin = max(at, end - self._longest)
        run = _LAST_WORD.search(text[begin:end])
        if run is None:
            return end
        first = begin + run.start()
        places = [first, *(place for place in range(first + 1, end) if text[place - 1] in CLAUSE_ENDS)]
        for place in places:
            if self._may_be_header(text[place:end]) and _begins(text, at, place, before):
                return place
        return end

    def _may_be_header(self, text: str) -> bool:
        name, colon, count = text.rstrip().partition(":")
        if len(text) > self._longest:
            return False
        if colon:
            return name in self._names and (count.isdigit() or not count) and len(count) < 10
        if text != name:
            return name in self._names
        place = bisect_left(self._sorted, name)
        return name != "" and place < len(self._sorted) and self._sorted[place].startswith(name)

    def is_header(self, text: str) -> bool:
        """Return whether the text is a complete header."""
        name, colon, count = text.rstrip().partition(":")
        return name in self._names and (not colon or count.isdigit())


@lru_cache(64)
def headless_finder(names: tuple[str, ...]) -> HeadlessFinder:
    """Return a cached finder: the tools of a conversation are the same in every turn."""
    return HeadlessFinder(names)


def _begins(text: str, at: int, place: int, before: Prose) -> bool:
    line_ends = 0
    while place > at and text[place - 1] in _BLANK:
        place -= 1
        line_ends += text[place] == "\n"
    if place > at:
        return line_ends > 1 or text[place - 1] in CLAUSE_ENDS
    return before.begins or before.line_ends + line_ends > 1
