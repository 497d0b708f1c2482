"""Mask secrets in recorded bytes. Each character of a secret becomes a star, so lengths and offsets stay. Pure.

The result is what `redaction.Redactor` would mask, found faster: bodies are long, and few of their words can be part
of a secret. Every form of a key has at least 15 characters without a space or quote. So only such runs are looked at:
a table maps each byte to "may be in a key" or not, and a search for 15 marked bytes skips everything else. Words that
were harmless once are remembered.

A known secret that is shorter or has other characters, and a private key, are searched for in all bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from dragoman.gateway.redaction import KEY_FORM, KEY_PREFIXES, NAMED_KEY
from dragoman.upstream.credentials import encoded_forms

ByteSpan: TypeAlias = tuple[int, int]

_LEAST_RUN = 15  # characters of the shortest form of a key
_IN_KEY = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~+/=-"
_MARKS = bytes(120 if each in _IN_KEY else 32 for each in range(256))  # x or space
_RUN, _END = b"x" * _LEAST_RUN, b" "
_PORTION = 256 * 1024  # bytes that are marked at a time, so that no call takes long
_LONG = 2048  # bytes of a run, such as base64, that is searched with `find`
_BEFORE = 64  # bytes before a value in which its name may be
_MAX_HARMLESS, _LONGEST_HARMLESS = 20_000, 200  # remembered runs, and bytes of each

_FORM = re.compile(KEY_FORM.pattern.encode())
_HEAD = re.compile(b"|".join(re.escape(prefix.encode()) for prefix in KEY_PREFIXES))
_NAMED = re.compile(NAMED_KEY.pattern.encode(), re.IGNORECASE)
_NAMES = re.compile(b"key|token|secret|password|bearer")
_DIGIT = re.compile(rb"\d")
_PRIVATE = b"PRIVATE KEY-----"
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[^-\"]{0,20000}(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
)


class Masker:
    """Masks these secrets, and everything that looks like a key."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        texts = {form for secret in secrets for form in encoded_forms(secret) if form.strip("*")}
        forms = {form.encode(errors="surrogatepass") for form in texts}
        inside = sorted(form for form in forms if len(form) >= _LEAST_RUN and not form.translate(None, _IN_KEY))
        self._elsewhere = sorted(forms.difference(inside))  # forms that need not be in a run
        self._inside: Sequence[bytes] = inside
        self._known = re.compile(b"|".join(map(re.escape, inside))) if inside else None
        self._words: set[bytes] = set()  # harmless runs without a digit
        self._values: set[bytes] = set()  # harmless runs with a digit, and the bytes before them

    def mask(self, data: bytes) -> bytes:
        """Return the bytes with stars in place of secrets: the same object if there are none."""
        while spans := self._spans(data):  # Behind a mask, the rest of a word may begin like a key.
            masked = bytearray(data)
            for begin, end in spans:
                masked[begin:end] = b"*" * (end - begin)
            data = bytes(masked)
        return data

    def _spans(self, data: bytes) -> list[ByteSpan]:
        spans: list[ByteSpan] = []
        for form in self._elsewhere:
            spans += _occurrences(data, form)
        if data.find(_PRIVATE) >= 0:
            spans += [found.span() for found in _PRIVATE_KEY.finditer(data)]
        begin, size = 0, len(data)
        while begin < size:
            marks = data.translate(_MARKS) if size <= _PORTION else _portion(data, begin)
            self._search(data, begin, marks, spans)
            begin += len(marks)
        return spans

    def mask_text(self, text: str) -> str:
        """Return a text with stars in place of secrets."""
        data = text.encode(errors="surrogatepass")
        masked = self.mask(data)
        return text if masked is data else masked.decode(errors="surrogatepass")

    def _search(self, data: bytes, base: int, marks: bytes, spans: list[ByteSpan]) -> None:
        """Add the secrets in the runs of a portion, which begins at `base`."""
        words, values = self._words, self._values
        at = marks.find(_RUN)
        while at >= 0:
            end = marks.find(_END, at + _LEAST_RUN)
            if end < 0:
                end = len(marks)
            begin, last = base + at, base + end
            # Where a value begins with its name is known to be harmless, too.
            if data[begin:last] not in words and data[max(begin - _BEFORE, 0) : last] not in values:
                spans += self._spans_of_run(data, begin, last)
            at = marks.find(_RUN, end)

    def _spans_of_run(self, data: bytes, begin: int, end: int) -> list[ByteSpan]:
        """Return the secrets in one run; remember a harmless one."""
        if end - begin > _LONG:
            return list(self._spans_of_long_run(data, begin, end))
        run, spans = data[begin:end], [*_forms(data, begin, end), *self._known_spans(data, begin, end)]
        has_digit = _DIGIT.search(run) is not None
        around = data[max(begin - _BEFORE, 0) : end]
        if has_digit and _NAMES.search(around.lower()):
            spans += _named(data, begin, end)
        if not spans and len(run) <= _LONGEST_HARMLESS:
            # Only a value with a digit may be a secret because of its name.
            harmless, key = (self._values, around) if has_digit else (self._words, run)
            if len(harmless) >= _MAX_HARMLESS:
                harmless.clear()
            harmless.add(key)
        return spans

    def _known_spans(self, data: bytes, begin: int, end: int) -> Iterator[ByteSpan]:
        if self._known is not None:
            yield from (found.span() for found in self._known.finditer(data, begin, end))

    def _spans_of_long_run(self, data: bytes, begin: int, end: int) -> Iterator[ByteSpan]:
        run = data[begin:end]
        for form in self._inside:
            yield from ((begin + first, begin + last) for first, last in _occurrences(run, form))
        for prefix in KEY_PREFIXES:
            for first, _ in _occurrences(run, prefix.encode()):
                if found := _FORM.match(data, begin + first, end):
                    yield found.span()
        first = max(begin - _BEFORE, 0)
        for name in _NAMES.finditer(data[first:end].lower()):
            at = first + name.start()
            limit = min(at + _LONG, end)
            for named in _NAMED.finditer(data, max(at - _BEFORE, 0), limit):
                yield named.end(1), end if named.end() == limit else named.end()


def _portion(data: bytes, begin: int) -> bytes:
    """Return the marks of a portion. A run that goes on belongs to the next one, unless it fills this one."""
    end = begin + _PORTION
    marks = data[begin:end].translate(_MARKS)
    if end >= len(data):
        return marks
    last = marks.rfind(_END) + 1
    while not last and end < len(data):
        more = data[end : end + _PORTION].translate(_MARKS)
        last = more.find(_END) + 1
        last += len(marks) if last else 0
        marks, end = marks + more, end + _PORTION
    return marks[:last] if last else marks


def _forms(data: bytes, begin: int, end: int) -> Iterator[ByteSpan]:
    """Yield what has the form of a key."""
    for head in _HEAD.finditer(data, begin, end):
        if found := _FORM.match(data, head.start(), end):
            yield found.span()


def _named(data: bytes, begin: int, end: int) -> Iterator[ByteSpan]:
    """Yield values whose name says that they are secrets."""
    for found in _NAMED.finditer(data, max(begin - _BEFORE, 0), end):
        yield found.end(1), found.end()


def _occurrences(data: bytes, part: bytes) -> Iterator[ByteSpan]:
    at = data.find(part)
    while at >= 0:
        yield at, at + len(part)
        at = data.find(part, at + len(part))
