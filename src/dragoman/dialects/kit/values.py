"""JSON values of unknown shape: what has the wrong type reads as absent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TypeAlias

from dragoman.errors import BadFrame, DragomanError, MissingField
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

Object: TypeAlias = dict[str, Json]
Placed: TypeAlias = tuple[Object, str]  # an object, and its place in the payload


def members(value: Json) -> Object:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    """Return the value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: Json) -> str:
    """Return the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def telling(fields: Object) -> Object:
    """Return the fields that say something: nulls, zeros and empty objects do not."""
    return {name: value for name, value in fields.items() if value}


def objects(value: Json, at: str) -> Iterator[Placed]:
    """Yield the objects of an array, each with its place."""
    for index, item in enumerate(items(value)):
        if isinstance(item, dict):
            yield item, f"{at}[{index}]"


def decoded(data: bytes | str) -> Json:
    """Return the JSON value of a text, or None if it is no JSON."""
    try:
        return jsonio.decode(data)
    except jsonio.JsonError:
        return None


def is_json(text: str) -> bool:
    """Tell whether a text is JSON."""
    try:
        jsonio.decode(text)
    except jsonio.JsonError:
        return False
    return True


def json_text(value: Json, at: str, blame: type[DragomanError]) -> str:
    """Return a value as JSON text. Raises `blame` for one that has none."""
    try:
        return jsonio.text_of(value)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at) from None


def iso_time(seconds: int) -> str:
    """Return a moment as text, such as `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reply_fields(body: bytes) -> Fields:
    """Return the fields of a whole reply. Raises BadFrame for a body that is no JSON."""
    try:
        return Fields(jsonio.decode(body), blame=MissingField)
    except jsonio.JsonError as error:
        raise BadFrame(f"the reply is not JSON: {error}") from None
