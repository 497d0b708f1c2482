"""Explain in plain words why msgspec refused a value; its own messages name Python types and JSON Schema. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

import msgspec
from msgspec import Struct

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "nothing",
    "datetime": "a date",
    "date": "a date",
    "time": "a time",
}
_QUOTED = re.compile(r"`([^`]*)`")
_INSIDE = re.compile(r" - at `\$\.?(.*)`\Z")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`")
_NOT_ALLOWED = re.compile(r"Invalid enum value (.*)")
_MISSING_FIELD = re.compile(r"Object missing required field `(.*)`")


class RefusedValue(Struct, frozen=True):
    """Why a value is refused. `at` is the place inside the value that was converted, such as `cut.event`."""

    at: str
    message: str

    def __str__(self) -> str:
        return f"{self.at}: {self.message}" if self.at else self.message


def explain_refusal(error: msgspec.ValidationError, fields: Iterable[str] = ()) -> RefusedValue:
    """Return the error as a sentence. `fields` are the known fields of the value, of which an unknown one reminds."""
    text = str(error)
    inside = _INSIDE.search(text)
    at, text = inside[1] if inside else "", _INSIDE.sub("", text)
    if unknown := _UNKNOWN_FIELD.fullmatch(text):
        return RefusedValue(at, f"there is no field {unknown[1]!r}{_known_fields(unknown[1], () if at else fields)}")
    if missing := _MISSING_FIELD.fullmatch(text):
        return RefusedValue(at, f"the field {missing[1]!r} is missing")
    if refused := _NOT_ALLOWED.fullmatch(text):
        return RefusedValue(at, f"{refused[1]} is not allowed here")
    return RefusedValue(at, _in_plain_words(text))


def _known_fields(name: str, fields: Iterable[str]) -> str:
    known = list(fields)
    near = get_close_matches(name, known, 1)
    if near:
        return f" (did you mean {near[0]}?)"
    return f" (the fields are: {', '.join(known)})" if known else ""


def _in_plain_words(text: str) -> str:
    """Return a message of msgspec with plain words for its types."""
    text = _QUOTED.sub(lambda found: " or ".join(word_for(part) for part in found[1].split(" | ")), text)
    return text[:1].lower() + text[1:]


def word_for(kind: str) -> str:
    """Return the plain word for a type of msgspec."""
    return _WORDS.get(kind, kind)
