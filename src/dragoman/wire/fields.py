"""`Fields` reads JSON objects of any shape: typed, with errors that name the path, and with unknown fields kept.

A msgspec Struct is several times as fast, but its errors do not say who is to blame, and it drops unknown fields.
Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast, overload

from dragoman.errors import DragomanError, MalformedRequest, UpstreamViolation
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

D = TypeVar("D")
T = TypeVar("T")
Strings: TypeAlias = tuple[str, ...] | frozenset[str]


REQUIRED: Any = object()  # the default of a field that has none
_NAMES: Final[dict[type, str]] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def describe(value: Json) -> str:
    """Return the JSON type of a value with its article, for error messages: "a string"."""
    return _NAMES.get(type(value), "something else")


def is_blank(text: str) -> bool:
    """Return whether a text shows nothing: it is empty, or all spaces, controls and format characters."""
    return not any(character.isprintable() and character != " " for character in text)


class Fields:
    """Reads one JSON object at a path. Each method that takes a field removes it from `rest()`.

    With a default, null counts as absent; without one, the field is required. Errors are of the class `blame`, and name
    the path: `messages[3].content[0].text: expected a string, got a number`. The object itself is never changed.
    """

    __slots__ = ("_data", "_left", "at", "blame")

    def __init__(self, data: Json, at: str = "", blame: type[DragomanError] = MalformedRequest) -> None:
        if not isinstance(data, dict):
            raise blame(f"expected an object, got {describe(data)}", at=at)
        self.at = at
        self.blame = blame
        self._data = data
        self._left = data.copy()  # popping from a copy is faster than collecting names

    @classmethod
    def parse(cls, data: bytes | str, at: str = "", blame: type[DragomanError] = MalformedRequest) -> Fields:
        """Decode a JSON object. Raises `blame`, also if the text is not JSON."""
        try:
            return cls(jsonio.decode(data), at, blame)
        except jsonio.JsonError as error:
            raise blame(f"not JSON: {error}", at=at) from None

    @classmethod
    def of(cls, request: HttpRequest) -> Fields:
        """Decode the JSON body of a client's request. Raises MalformedRequest."""
        try:
            return cls(request.document)
        except jsonio.JsonError as error:
            raise MalformedRequest(f"not JSON: {error}") from None

    # --- scalars

    def text(self, name: str, default: D = REQUIRED) -> str | D:
        """Take a string."""
        value = self._left.pop(name, None)
        if isinstance(value, str):
            return value
        return self._default_or_raise(name, value, "a string", default)

    def identifier(self, name: str) -> str:
        """Take an id or a name, which must not be missing, null, empty or of another type.

        An upstream's must not be blank either. A client's blank id is legal here: it gets an alias later.
        See docs/decisions/content.md#d5.
        """
        value = self.text(name)
        if self._is_missing(value):
            self.fail(name, f"expected a string that is not {'blank' if value else 'empty'}")
        return value

    def maybe_identifier(self, name: str) -> str:
        """Take an id that may be missing, null or empty; return "" then.

        See docs/decisions/content.md#d5.
        """
        value = self.text(name, "")
        return "" if self._is_missing(value) else value

    def _is_missing(self, value: str) -> bool:
        return is_blank(value) if issubclass(self.blame, UpstreamViolation) else not value

    def integer(self, name: str, default: D = REQUIRED) -> int | D:
        """Take a whole number; `3.0` is one, `true` is not."""
        value = self._left.pop(name, None)
        if type(value) is int:
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        return self._default_or_raise(name, value, "an integer", default)

    def number(self, name: str, default: D = REQUIRED) -> float | D:
        """Take a number. An int stays an int, a float a float."""
        value = self._left.pop(name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        return self._default_or_raise(name, value, "a number", default)

    def flag(self, name: str, default: D = REQUIRED) -> bool | D:
        """Take a boolean."""
        value = self._left.pop(name, None)
        if isinstance(value, bool):
            return value
        return self._default_or_raise(name, value, "a boolean", default)

    @overload
    def one_of(self, name: str, choices: Mapping[str, T], default: D = ...) -> T | D: ...
    @overload
    def one_of(self, name: str, choices: Strings, default: D = ...) -> str | D: ...
    def one_of(self, name: str, choices: Mapping[str, T] | Strings, default: D = REQUIRED) -> T | str | D:
        """Take one of a few words: return the word itself, or its value if `choices` is a mapping."""
        value = self._left.pop(name, None)
        if value is None:
            return self._default_or_raise(name, value, "a string", default)
        if not isinstance(value, str) or value not in choices:
            got = jsonio.quote(value).decode() if isinstance(value, str) else describe(value)
            self.fail(name, f"expected one of {', '.join(choices)}, got {got}")
        return choices[value] if isinstance(choices, Mapping) else value

    def any(self, name: str, default: Json = None) -> Json:
        """Take a value of any type, null included."""
        return self._left.pop(name, default)

    # --- structure

    def child(self, name: str) -> Fields:
        """Take an object."""
        value = self._left.pop(name, None)
        if value is None:
            self._default_or_raise(name, value, "an object", REQUIRED)
        return Fields(value, self.path(name), self.blame)

    def maybe_child(self, name: str) -> Fields | None:
        """Take an object, or None when it is absent or null."""
        return None if self._data.get(name) is None else self.child(name)

    def array(self, name: str, default: D = REQUIRED) -> list[Json] | D:
        """Take an array of anything."""
        value = self._left.pop(name, None)
        if isinstance(value, list):
            return value
        return self._default_or_raise(name, value, "an array", default)

    def children(self, name: str, default: D = REQUIRED) -> list[Fields] | D:
        """Take an array of objects."""
        value = self._left.pop(name, None)
        if not isinstance(value, list):
            return self._default_or_raise(name, value, "an array", default)
        path, blame = self.path(name), self.blame
        return [Fields(item, f"{path}[{index}]", blame) for index, item in enumerate(value)]

    def objects(self, name: str) -> list[dict[str, Json]]:
        """Take an array of objects as it is, for callers that do not need Fields."""
        objects = self.array(name)
        for index, item in enumerate(objects):
            if not isinstance(item, dict):
                raise self.blame(f"expected an object, got {describe(item)}", at=f"{self.path(name)}[{index}]")
        return cast("list[dict[str, Json]]", objects)

    def strings(self, name: str, default: D = REQUIRED) -> tuple[str, ...] | D:
        """Take an array of strings."""
        value = self._left.pop(name, None)
        if not isinstance(value, list):
            return self._default_or_raise(name, value, "an array", default)
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise self.blame(f"expected a string, got {describe(item)}", at=f"{self.path(name)}[{index}]")
        return tuple(cast("list[str]", value))

    # --- access without taking

    def has(self, name: str) -> bool:
        """Return whether the object has the field, even if it is null or already taken."""
        return name in self._data

    def peek(self, name: str) -> Json:
        """Return the value of a field, None if it is absent, and leave it in `rest()`."""
        return self._data.get(name)

    def rest(self) -> dict[str, Json]:
        """Return a new dict of the fields that were not taken so far, in order."""
        return self._left.copy()

    # --- errors

    def path(self, name: str) -> str:
        """Return the path of a field from the root of the payload."""
        if not name.isidentifier():
            return f"{self.at}[{jsonio.quote(name).decode()}]"
        return f"{self.at}.{name}" if self.at else name

    def fail(self, name: str, message: str) -> NoReturn:
        """Raise `blame` for the field, or for the object itself if `name` is empty."""
        raise self.blame(message, at=self.path(name) if name else self.at)

    def _default_or_raise(self, name: str, value: Json, wanted: str, default: D) -> D:
        """Return the default of a field that is absent; raise `blame` for one of a wrong type."""
        if value is None and default is not REQUIRED:
            return default
        got = f"got {describe(value)}" if name in self._data else "found nothing"
        raise self.blame(f"expected {wanted}, {got}", at=self.path(name))
