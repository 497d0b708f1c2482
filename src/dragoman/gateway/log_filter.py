"""The language of filters of requests: `upstream:kiro status:>=400 tool:Bash first_byte:>3s`. Pure.

`dragoman log` and the inspector use it. `parse_filter` reads a text, or raises FilterError with the place of the
mistake; `complete_filter` completes one. All words of a filter must match. docs/inspector.md describes the language,
`filter_keys` has the table of what can be asked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import TypeAlias

from msgspec import Struct

from dragoman.errors import LocalMisuse
from dragoman.gateway.filter_keys import FILTER_KEYS, FilteredRequest, FilterKey, ValueKind


class FilterError(LocalMisuse):
    """A filter that is not valid. `position` and `length` say where in its text."""

    def __init__(self, message: str, position: int, length: int) -> None:
        super().__init__(message)
        self.position, self.length = position, length

    def show(self, text: str) -> str:
        """Return the message with the text below it, and a mark below the place."""
        return f"{self}\n  {text}\n  {' ' * self.position}{'^' * max(self.length, 1)}"


class Word(Struct, frozen=True):
    """One word of a filter, as it is written: its place, its key ("" for a bare word) and its value."""

    begin: int
    end: int
    is_negated: bool
    key: str
    key_at: int
    value: str  # with its quotes
    value_at: int


Test: TypeAlias = Callable[[FilteredRequest], bool]
_KEY = re.compile(r"([A-Za-z_]+):")
_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"]+')
_MAX_LENGTH, _MAX_WORDS = 2000, 50


class LogFilter(Struct, frozen=True):
    """A filter that was read. An empty one matches every request."""

    text: str
    tests: tuple[Test, ...]

    def matches(self, subject: FilteredRequest) -> bool:
        """Return whether the request matches all words."""
        return all(test(subject) for test in self.tests)


def parse_filter(text: str, now: float | None = None) -> LogFilter:
    """Return the filter of a text. Times such as `at:>10m` count back from `now`. Raises FilterError."""
    if len(text) > _MAX_LENGTH:
        raise FilterError(f"the filter has more than {_MAX_LENGTH} characters", 0, len(text))
    words = list(split_words(text))
    if len(words) > _MAX_WORDS:
        raise FilterError(f"the filter has more than {_MAX_WORDS} words", words[_MAX_WORDS].begin, 1)
    at = time.time() if now is None else now
    return LogFilter(text, tuple([_test_of(word, at) for word in words]))


def split_words(text: str) -> Iterator[Word]:
    """Yield the words of a filter. Raises FilterError for a quote that is not closed."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        begin, at = at, _word_end(text, at)
        is_negated = text[begin] == "-" and at > begin + 1
        key_at = begin + is_negated
        key = _KEY.match(text, key_at, at)
        value_at = key.end() if key else key_at
        yield Word(begin, at, is_negated, key[1].lower() if key else "", key_at, text[value_at:at], value_at)


def _word_end(text: str, at: int) -> int:
    while at < len(text) and not text[at].isspace():
        piece = _PIECE.match(text, at)
        if piece is None:
            raise FilterError('a quote is not closed: add " at its end', at, len(text) - at)
        at = piece.end()
    return at


def _test_of(word: Word, now: float) -> Test:
    if not word.key:
        test = _contains(unquote_value(word.value))
    else:
        key = FILTER_KEYS.get(word.key)
        if key is None:
            raise FilterError(_unknown_key(word.key), word.key_at, len(word.key))
        if not word.value:
            raise FilterError(_missing(key), word.key_at, word.end - word.key_at)
        test = _any_of([_value_test(key, value, at, now) for value, at in _alternatives(word)])
    return (lambda subject: not test(subject)) if word.is_negated else test


def _unknown_key(name: str) -> str:
    near = get_close_matches(name, FILTER_KEYS, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(FILTER_KEYS)}"
    return f'there is no key {name!r}; {hint} (to search for a text with a colon, write it in quotes: "{name}:…")'


def _missing(key: FilterKey) -> str:
    return f"{key.name}: a value is missing ({VALUE_FORMS[key.kind]})"


def _any_of(tests: Sequence[Test]) -> Test:
    return tests[0] if len(tests) == 1 else lambda subject: any(test(subject) for test in tests)


def _alternatives(word: Word) -> Iterator[tuple[str, int]]:
    """Yield the values between commas, each with its place. A comma in quotes separates nothing."""
    begin = at = 0
    while at < len(word.value):
        if word.value[at] == ",":
            yield word.value[begin:at], word.value_at + begin
            begin = at = at + 1
        elif word.value[at] == '"':
            piece = _PIECE.match(word.value, at)
            assert piece is not None  # `split_words` has checked the quotes
            at = piece.end()
        else:
            at += 1
    yield word.value[begin:], word.value_at + begin


def unquote_value(value: str) -> str:
    """Return a value without quotes and backslashes."""
    parts = (
        re.sub(r"\\(.)", r"\1", piece[1:-1], flags=re.DOTALL) if piece.startswith('"') else piece
        for piece in _PIECE.findall(value)
    )
    return "".join(parts)


def quote_value(value: str) -> str:
    """Return a value as it is written in a filter: in quotes where it needs them."""
    if value and not re.search(r'[\s",*\\]', value) and value[0] not in "<>=$" and ".." not in value:
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _contains(needle: str) -> Test:
    wanted = needle.casefold()

    def test(subject: FilteredRequest) -> bool:
        request = subject.request
        fields = (
            request.request_id, request.path, request.dialect, request.model, request.used_model, request.upstream,
            request.upstream_dialect, request.credential, request.outcome, request.error, request.client, request.key,
            subject.session, *request.tools, *request.rules, *request.tried,
        )  # fmt: skip
        return any(wanted in field.casefold() for field in fields)

    return test


# --- values

VALUE_FORMS: Mapping[ValueKind, str] = {
    "text": "a text, in which * stands for any characters",
    "word": "one of a few words",
    "number": "a number, such as 200, >=400 or 400..499",
    "count": "a number, such as 3, >10k or 1k..2k",
    "duration": "a duration, such as >3s, <250ms or 1s..2m",
    "share": "a share, such as >50% or <0.5",
    "dollars": "dollars, such as >$0.01 or 0.5..1",
    "flag": "yes or no",
    "time": "a time, such as >10m (less than 10 minutes ago) or <2026-11-19T10:00",
}
_FLAGS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_COMPARED = re.compile(r"(>=|<=|>|<|=)?(.*)", re.DOTALL)
_NUMBER = re.compile(r"(\$?)(\d{1,15}(?:\.\d{1,9})?)([a-z%]{0,2})", re.IGNORECASE | re.ASCII)
_UNITS: Mapping[ValueKind, Mapping[str, float]] = {
    "number": {"": 1},
    "count": {"": 1, "k": 1e3, "m": 1e6, "g": 1e9},
    "duration": {"ms": 1, "s": 1e3, "m": 60e3, "h": 3600e3},
    "share": {"": 1, "%": 0.01},
    "dollars": {"": 1},
}
_AGO = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _value_test(key: FilterKey, value: str, at: int, now: float) -> Test:
    if not value:
        raise FilterError(_missing(key), max(at - 1, 0), 1)
    if key.texts is not None:
        return _text_test(key, value, at)
    number = key.number
    assert number is not None  # a key has texts or a number
    if value == "*":
        return lambda subject: number(subject) is not None
    least, most, is_open = _bounds(key, value, at, now)

    def test(subject: FilteredRequest) -> bool:
        found = number(subject)
        if found is None:
            return False
        return least < found < most if is_open else least <= found <= most

    return test


def _text_test(key: FilterKey, value: str, at: int) -> Test:
    texts = key.texts
    assert texts is not None  # the caller has looked
    if value == "*":
        return lambda subject: any(texts(subject))
    plain = unquote_value(value)
    if key.words and plain.casefold() not in key.words:
        raise FilterError(f"{key.name}: expected one of {', '.join(key.words)}, got {plain!r}", at, len(value))
    wanted = plain.casefold()
    if "*" not in value or value.startswith('"'):
        return lambda subject: wanted in [text.casefold() for text in texts(subject)]
    parts = wanted.split("*")
    return lambda subject: any(_matches_parts(text.casefold(), parts) for text in texts(subject))


def _matches_parts(text: str, parts: Sequence[str]) -> bool:
    """Return whether a text consists of these parts, in order, with any characters between them."""
    first, *middle, last = parts
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _bounds(key: FilterKey, value: str, at: int, now: float) -> tuple[float, float, bool]:
    """Return the least and the greatest number, and whether they themselves do not count."""
    infinite = float("inf")
    least, dots, most = value.partition("..")
    if dots:
        return _number(key, least, at, now), _number(key, most, at + len(least) + 2, now), False
    found = _COMPARED.fullmatch(value)
    assert found is not None  # it matches any text
    sign = found[1] or "="
    number = _number(key, found[2], at + len(found[1] or ""), now)
    match sign:
        case ">":
            return number, infinite, True
        case ">=":
            return number, infinite, False
        case "<":
            return -infinite, number, True
        case "<=":
            return -infinite, number, False
        case _:
            return number, number, False


def _number(key: FilterKey, text: str, at: int, now: float) -> float:
    """Return the number that a text stands for. Raises FilterError."""
    wrong = FilterError(f"{key.name}: expected {VALUE_FORMS[key.kind]}, got {text!r}", at, max(len(text), 1))
    if key.kind == "flag":
        if text.lower() not in _FLAGS:
            raise wrong
        return _FLAGS[text.lower()]
    found = _NUMBER.fullmatch(text)
    if key.kind == "time":
        return now - float(found[2]) * _AGO[found[3]] if found and found[3] in _AGO else _date(text, wrong)
    units = _UNITS[key.kind]
    if found is None or found[3].lower() not in units or (found[1] and key.kind != "dollars"):
        raise wrong
    return float(found[2]) * units[found[3].lower()]


def _date(text: str, wrong: FilterError) -> float:
    try:
        return datetime.fromisoformat(unquote_value(text)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise wrong from None


# --- completion


class Completion(Struct, frozen=True):
    """One way to complete a filter: `insert` replaces the characters `begin` to `end`."""

    insert: str
    begin: int
    end: int
    detail: str = ""


_MOST_COMPLETIONS = 20


def complete_filter(text: str, at: int, known: Callable[[str], Sequence[str]]) -> list[Completion]:
    """Return the completions at a position: keys, or values of a key, of which `known` returns those that occur."""
    begin = max(text.rfind(blank, 0, at) for blank in " \t\n") + 1
    begin += text[begin : begin + 1] == "-"
    end = at
    while end < len(text) and not text[end].isspace():
        end += 1
    name, colon, _ = text[begin:at].partition(":")
    if not colon:
        found = [key for key in FILTER_KEYS.values() if key.name.startswith(name.lower())]
        return [Completion(f"{key.name}:", begin, end, key.detail) for key in found[:_MOST_COMPLETIONS]]
    key = FILTER_KEYS.get(name.lower())
    if key is None:
        return []
    begin = max(text.rfind(",", begin, at), begin + len(name)) + 1
    typed = text[begin:at].strip('"').casefold()
    return [Completion(value, begin, end, VALUE_FORMS[key.kind]) for value in _values_like(key, typed, known)]


def _values_like(key: FilterKey, typed: str, known: Callable[[str], Sequence[str]]) -> list[str]:
    """Return the values of a key that begin with what was typed, then those that contain it."""
    if key.kind == "flag":
        values: Sequence[str] = ("yes", "no")
    elif key.texts is None:
        return [] if typed else [">", "<"]
    else:
        values = key.words or known(key.name)
    first = [value for value in values if value.casefold().startswith(typed)]
    others = [value for value in values if typed in value.casefold() and value not in first]
    return [quote_value(value) for value in [*first, *others][:_MOST_COMPLETIONS]]
