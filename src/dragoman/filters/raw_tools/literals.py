"""Convert literals of other languages (Python, Gemma) to JSON while they stream. Pure.

Python writes the arguments of a call as `a=1, b="x", c=[True, None]`, Gemma as `a:1,b:<|"|>x<|"|>,c:[true,null]`. Both
are lists of members whose values are literals; a `LiteralSyntax` describes how they differ. The scanner begins after
the opening bracket of the list and writes the JSON after the opening bracket of an object.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from copy import copy

from msgspec import Struct

from dragoman.filters.raw_tools.values import escape_json, quote_json

WORD_LIMIT = 1024  # characters of a number, a word or a key
_DEEPEST = 200
_BLANKS = re.compile(r"\s+")
_PREFIX = re.compile(r"[rRbBfFuU]{0,2}(?=[\"'])")
_OPENING = re.compile(r"[rRbBfFuU]{0,2}[\"']")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_HALF_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|[0-7]{0,2})\Z")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_SIMPLE |= {char: char for char in "\\\"'/"}
_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")  # as JSON writes it
_KEY, _COLON, _VALUE, _NEXT = range(4)  # the next token
# Parts of strings that are the same in JSON, if their characters are printable. The fast path.
_SAME_IN_JSON = {quote: re.compile(rf"[^{quote}\"\\]*+(?:\\[\"\\nrt][^{quote}\"\\]*+)*+").match for quote in ("'", '"')}
_BETWEEN_STRINGS = re.compile(
    r"(?P<blanks>\s*)(?P<prefix>[rRbBfFuU]{0,2})(?P<quote>[\"']?)"
)  # Python joins such strings
_VALUE_STARTS = "[({-+.0123456789"  # first characters of values that cannot begin a key
_AFTER_WORD = re.compile(r"\s*(?P<next>.?)", re.DOTALL)


class LiteralSyntax(Struct, frozen=True):
    """How a language writes literals."""

    closer: str  # closes the list of members
    equals: str  # between a key and its value in that list
    key: re.Pattern[str]  # a bare key in that list
    word: re.Pattern[str]  # a bare value; without a `mark` also a key of a nested object
    quotes: str  # before and after a string with escapes
    mark: str = ""  # before and after a string without escapes


PYTHON_SYNTAX = LiteralSyntax(")", "=", re.compile(r"[^\W\d]\w*"), re.compile(r"[\w.+-]+"), "\"'")


def gemma_syntax(mark: str) -> LiteralSyntax:
    """Return Gemma's syntax, with its string mark. A bare value may be any text without brackets and commas."""
    return LiteralSyntax(
        "}", ":", re.compile(r'[^\s,{}\[\]:<"][^,{}\[\]:<"]*'), re.compile(r'[^\s,{}\[\]<"][^,{}\[\]<]*'), '"', mark
    )


class LiteralScanner:
    """Reads members up to the closing bracket (see readers.ValueScanner). Undecided text stays in `rest`."""

    def __init__(self, style: LiteralSyntax, parameters: Callable[[], tuple[str, ...]] = tuple) -> None:
        self._parameters = parameters  # returns the names for arguments without a key, in order
        self._place = 0  # number of arguments without a key so far
        self._keyed = False  # an argument had a key; all after it must have one
        self.in_string = False
        self.complete = False
        self.is_broken = False
        self.broken_size = 0  # characters since the position where the value broke
        self.has_begun = False  # a key and the sign after it were read
        self.rest = ""  # text that was read and is not written so far
        self._style = style
        self._stack = [style.closer]
        self._expects = _KEY
        self._comma = False  # a comma was read; it is written when another item follows
        self._quote = ""  # the quote that ends the current string
        self._raw = False  # the string has no escapes

    @property
    def whole(self) -> bool:
        """Whether the value is complete."""
        return self.complete

    def copy(self) -> LiteralScanner:
        """Return a scanner in the same state."""
        duplicate = copy(self)
        duplicate._stack = [*self._stack]
        return duplicate

    def take_string(self, text: str) -> str | None:
        """Read the text if all of it is part of the current string, and return it as JSON; None: use `read`."""
        quote, rest = self._quote, self.rest
        if not quote or (rest and rest != "\\"):
            return None
        if quote in _SAME_IN_JSON and not self._raw and text.isprintable():
            text = rest + text
            same = _SAME_IN_JSON[quote](text)
            end = len(text) if same is None else same.end()
            if end == len(text):
                self.rest = ""
                return text
            if end == len(text) - 1 and text[end] == "\\":
                self.rest = "\\"
                return text[:-1]
            return None
        if rest or quote[0] in text or ("\\" in text and quote != self._style.mark):
            return None
        return escape_json(text)

    def read(self, text: str, at: int, stop: int, out: list[str]) -> int:
        """Read text[at:stop]. If the value breaks, `rest` is the text that was not written."""
        begin = at - len(self.rest)
        text = self.rest + text[at:stop]
        at = 0
        self.in_string = bool(self._quote)
        while at < len(text) and not self.complete and not self.is_broken:
            moved = self._string(text, at, out) if self.in_string else self._structure(text, at, out)
            if moved == at:
                break
            at = moved
        self.rest = "" if self.complete else text[at:]
        self.broken_size = len(self.rest)
        if self.is_broken and self._comma:
            self.rest = "," + self.rest
        elif _OPENING.fullmatch(self.rest):
            self.in_string = True  # one quote or the first of three: the next text is in a string
        return begin + at if self.complete else stop

    # --- outside strings; a method that returns its own position needs more text, or the value is broken

    def _structure(self, text: str, at: int, out: list[str]) -> int:
        blanks = _BLANKS.match(text, at)
        if blanks is not None:
            return blanks.end()
        if text[at] in _VALUE_STARTS and self._at_argument and not self._positional(out):
            return self._break(at)
        if self._expects in (_KEY, _VALUE):
            moved = self._opening(text, at, out)
            if moved is None:
                moved = self._bare(text, at, out)
            if moved is not None:
                return moved
        return self._symbol(text[at], at, out)

    def _opening(self, text: str, at: int, out: list[str]) -> int | None:
        """Open the string that begins at the position; return None if there is none."""
        mark = self._style.mark
        if mark and text.startswith(mark, at):
            return self._open(mark, at + len(mark), out)
        if mark and mark.startswith(text[at : at + len(mark)]):
            return at
        prefix = _PREFIX.match(text, at)
        if prefix is None or text[prefix.end()] not in self._style.quotes or (mark and prefix[0]):
            return None
        if self._at_argument and not self._positional(out):
            return self._break(at)
        quote, begin = text[prefix.end()], prefix.end()
        first = text[begin : begin + 3]
        if first in (quote, quote * 2) and begin + len(first) == len(text):
            return at  # it may become three
        self._raw = "r" in prefix[0].lower()
        return self._open(quote * 3 if first == quote * 3 else quote, begin + (3 if first == quote * 3 else 1), out)

    @property
    def _at_argument(self) -> bool:
        """Whether an argument of a Python call begins, with its key or without."""
        return self._expects == _KEY and self._style is PYTHON_SYNTAX and len(self._stack) == 1

    def _positional(self, out: list[str]) -> bool:
        """Write the key of an argument without one; return False if no parameter is left."""
        names = self._parameters()
        if self._keyed or self._place >= len(names):
            return False
        self._separate(out)
        out.append(f"{quote_json(names[self._place])}:")
        self._place += 1
        self._expects, self.has_begun = _VALUE, True
        return True

    def _open(self, quote: str, at: int, out: list[str]) -> int:
        self._separate(out)
        self.in_string, self._quote = True, quote
        out.append('"')
        return at

    def _bare(self, text: str, at: int, out: list[str]) -> int | None:
        """Read the key or value without quotes at the position; return None if there is none."""
        is_key = self._expects == _KEY
        pattern = self._style.key if is_key and (self._style.mark or len(self._stack) == 1) else self._style.word
        found = pattern.match(text, at)
        if found is None:
            return None
        if found.end() - at > WORD_LIMIT:
            return self._break(at)
        if found.end() == len(text):
            return at
        if self._at_argument and found[0].lower() in _WORDS:
            after = _AFTER_WORD.match(text, found.end(), found.end() + WORD_LIMIT)
            if after is None or (not after["next"] and after.end() == len(text)):
                return at
            if after["next"] != "=":
                is_key = False
                if not self._positional(out):
                    return self._break(at)
        self._keyed = self._keyed or self._at_argument
        self._separate(out)
        out.append(quote_json(found[0].rstrip()) if is_key else literal(found[0].rstrip()))
        self._expects = _COLON if is_key else _NEXT
        return found.end()

    def _symbol(self, char: str, at: int, out: list[str]) -> int:
        outermost = len(self._stack) == 1
        if char == self._stack[-1] and self._expects != _COLON and (self._expects != _VALUE or char != "}"):
            if outermost and self._expects == _VALUE:
                return self._break(at)
            self._close(out)
        elif self._expects == _COLON and char == (self._style.equals if outermost else ":"):
            self._expects, self.has_begun = _VALUE, True
            out.append(":")
        elif self._expects == _NEXT and char == ",":
            self._comma = True
            self._expects = _KEY if self._in_members else _VALUE
        elif self._expects == _VALUE and char in "[({" and len(self._stack) < _DEEPEST:
            self._separate(out)
            self._stack.append("]" if char == "[" else ")" if char == "(" else "}")
            self._expects = _KEY if char == "{" else _VALUE
            out.append("{" if char == "{" else "[")
        else:
            return self._break(at)
        return at + 1

    @property
    def _in_members(self) -> bool:
        return len(self._stack) == 1 or self._stack[-1] == "}"

    def _close(self, out: list[str]) -> None:
        out.append("}" if self._in_members else "]")
        self._stack.pop()
        self._comma = False
        self._expects = _NEXT
        self.complete = not self._stack

    def _separate(self, out: list[str]) -> None:
        """Write the comma before an item."""
        if self._comma:
            out.append(",")
            self._comma = False

    def _break(self, at: int) -> int:
        self.is_broken = True
        return at

    # --- inside a string

    def _string(self, text: str, at: int, out: list[str]) -> int:
        end = _find(text, at, self._quote, "\\" if self._quote != self._style.mark else "")
        if end > at:
            out.append(escape_json(text[at:end]))
            return end
        if text[at] == "\\" and self._quote != self._style.mark:
            return self._escape(text, at, out)
        if text.startswith(self._quote, at):
            at += len(self._quote)
            if self._style is PYTHON_SYNTAX and (next_part := self._next_string_part(text, at)) is not None:
                return next_part
            self.in_string, self._quote, self._raw = False, "", False
            out.append('"')
            self._expects = _COLON if self._expects == _KEY else _NEXT
            return at
        if len(text) - at < len(self._quote) and self._quote.startswith(text[at:]):
            return at
        out.append(escape_json(text[at]))
        return at + 1

    def _next_string_part(self, text: str, at: int) -> int | None:
        """Read after a string: Python joins adjacent strings. None: the string has ended."""
        between = _BETWEEN_STRINGS.match(text, at, at + WORD_LIMIT)
        if between is None or (not between["quote"] and between.end() < min(len(text), at + WORD_LIMIT)):
            return None
        begin = between.end()
        if between.end() == at + WORD_LIMIT:
            return None
        quote = between["quote"]
        first = text[begin - 1 : begin + 2] if quote else ""
        if not quote or (first in (quote, quote * 2) and begin - 1 + len(first) == len(text)):
            return at - len(self._quote)  # more text is needed
        triple = first == quote * 3
        self._quote, self._raw = quote * 3 if triple else quote, "r" in between["prefix"].lower()
        return begin + (2 if triple else 0)

    def _escape(self, text: str, at: int, out: list[str]) -> int:
        if _HALF_ESCAPE.match(text, at) or at + 1 == len(text):
            return at
        found = _ESCAPE.match(text, at)
        if found is None:
            return self._break(at)
        out.append(escape_json(found[0] if self._raw else _unescaped(found[0])))
        return found.end()


def _find(text: str, at: int, quote: str, escape: str) -> int:
    """Return the position of the first character that may begin the end of the string, or an escape."""
    end = text.find(quote[0], at)
    end = len(text) if end < 0 else end
    other = text.find(escape, at, end) if escape else -1
    return end if other < 0 else other


def _unescaped(escape: str) -> str:
    kind = escape[1]
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    try:
        if kind in "xuU" and len(escape) > 2:
            return chr(int(escape[2:], 16))
        return chr(int(escape[1:], 8)) if kind in "01234567" else escape
    except (ValueError, OverflowError):
        return escape


def literal(word: str) -> str:
    """Return a bare word as JSON: a number, true, false, null, else a string."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    if _NUMBER.fullmatch(word):
        return word
    try:
        return str(int(word, 0))
    except ValueError:
        pass
    try:
        number = float(word)
    except ValueError:
        return quote_json(word)
    return repr(number) if math.isfinite(number) and any(char.isdigit() for char in word) else quote_json(word)
