"""Recognise formats that write arguments as JSON: after a header, in a call object, or in an array of call objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, structs

from dragoman.filters.raw_tools.families import EMPTY_HEADER, prefix_pattern
from dragoman.filters.raw_tools.learning.pieces import CallMarkers, find_markers
from dragoman.filters.raw_tools.learning.probes import FIRST, SECOND, ProbeCall, call_id
from dragoman.filters.raw_tools.table import Keys
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

NAME = r"""[^\s<>{}\[\]"']*"""
HEADER = re.compile(rf"""\s*["']?(?P<name>{NAME})["']?\s*""")
QUOTES = "\"'"
_FENCE = re.compile(r"(?<!\s)\s*+(```\w*+)\s*+\Z")


class JsonSpan(Struct, frozen=True):
    """A JSON value in a text."""

    start: int
    end: int
    value: Json


def values_in(text: str) -> Iterator[JsonSpan]:
    """Yield the objects and arrays of a text, outer ones only."""
    at = 0
    while at < len(text):
        if text[at] in "{[":
            try:
                value, end = jsonio.decode_at(text, at)
            except jsonio.JsonError:
                pass
            else:
                yield JsonSpan(at, end, value)
                at = end
                continue
        at += 1


def marker_fields(frame: CallMarkers) -> dict[str, Any]:
    """Return the markers as fields of a table."""
    fields = structs.asdict(frame).items()
    return {field: (marker,) for field, marker in fields if marker and field != "between"}


# --- a header, then the arguments


def json_after_header(probes: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the fields of a format with a name before JSON arguments (Kimi K2, DeepSeek V3, Mistral), or None."""
    text = probes["one"]
    first = _arguments(text, FIRST)
    if first is None or FIRST.name not in text[: first.start]:
        return None
    header = _header(text[: first.start], 0, FIRST)
    between = None
    if "two" in probes:
        two = probes["two"]
        left, right = _arguments(two, FIRST), _arguments(two, SECOND)
        if left is None or right is None or right.start < left.end:
            return None
        between = two[left.end : left.end + _header(two[left.end : right.start], 1, SECOND).start]
    after, drops = _without_fence(text[first.end :], header.after)
    if drops and between is not None:
        between = between.lstrip().removeprefix("```")
    frame = find_markers(header.before, after, between)
    fields = marker_fields(
        structs.replace(frame, call_begin=frame.call_begin.rstrip(QUOTES))
    )  # quotes belong to the header
    fields.update(_header_fields(header, drops))
    fields.update(body="json")
    if not frame.call_end and not frame.section_end:
        fields["self_closing"] = True
    return fields


class _Header(Struct, frozen=True):
    """A rendered header, with the texts around its name and id."""

    before: str
    start: int  # where the name or the id begins
    inner: str  # between name and id, if it has both
    after: str
    numbered: bool = False
    has_id: bool = False


def _arguments(text: str, call: ProbeCall) -> JsonSpan | None:
    return next((span for span in values_in(text) if span.value == call.arguments), None)


def _header(text: str, number: int, call: ProbeCall) -> _Header:
    kimi = call_id(number, call, "kimi")
    if (at := text.rfind(kimi)) != -1:
        return _Header(text[:at], at, "", text[at + len(kimi) :], numbered=True)
    at = text.rfind(call.name)
    after = text[at + len(call.name) :]
    id_ = call_id(number, call, "plain")
    if id_ in after:
        inner, _, after = after.partition(id_)
        return _Header(text[:at], at, inner, after, has_id=True)
    return _Header(text[:at], at, "", after)


def _header_fields(header: _Header, drops: tuple[str, ...]) -> dict[str, Any]:
    fields: dict[str, Any] = {"numbered": True} if header.numbered else {"header": HEADER}
    if header.has_id:
        rest = prefix_pattern(header.inner.strip(), f"(?P<id>{NAME})")
        fields["header"] = re.compile(rf"\s*(?P<name>{NAME}){rest}\s*")
    if drops:
        fields.update(header_end=("\n",), drops=drops)
        return fields
    end = header.after.strip().lstrip(QUOTES)
    if end:
        fields["header_end"] = (end,)
    elif header.after.strip(" \t"):
        fields.update(header_end=("\n",), header_stop=("{",))
    else:
        fields["header_stop"] = ("{",)
    return fields


def _without_fence(after: str, header: str) -> tuple[str, tuple[str, ...]]:
    """Return the text after the arguments without their Markdown fence, and the fence's two lines."""
    opened = _FENCE.search(header)
    if opened is None or not after.lstrip().startswith("```"):
        return after, ()
    return after.lstrip().removeprefix("```"), tuple(dict.fromkeys((opened[1], "```")))


# --- objects that are calls


def call_objects(probes: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the fields of a format with call objects, alone or in an array (Hermes, Llama 3, Granite), or None."""
    text = probes["one"]
    span = _call_value(text, FIRST)
    if span is None:
        return None
    keys = _keys(span.value, FIRST, 0)
    if keys is None:
        return None
    array = isinstance(span.value, list)
    second = _call_value(probes.get("two", ""), SECOND)
    first = _call_value(probes.get("two", ""), FIRST)
    between = probes["two"][first.end : second.start] if first and second and first.end <= second.start else None
    frame = find_markers(text[: span.start], text[span.end :], between)
    fields = body_name_fields(frame, "[" if array else "{")
    fields.update(body="array" if array else "wrapped")
    if keys != Keys():
        fields["keys"] = keys
    if frame.between:
        fields["separators"] = "".join(dict.fromkeys(frame.between + " \n"))
    if not (frame.call_end or frame.section_end):
        fields["self_closing"] = True
    return fields


def body_name_fields(frame: CallMarkers, first: str) -> dict[str, Any]:
    """Return the fields of a table whose body names its calls and begins with this text."""
    if not frame.call_begin:  # one pair of markers is around all calls
        frame = CallMarkers(call_begin=frame.section_begin, call_end=frame.call_end or frame.section_end)
    fields = marker_fields(frame)
    fields.update(header=EMPTY_HEADER, header_stop=(first,))
    if not frame.call_begin:
        fields["at_start"] = True
    return fields


def _call_value(text: str, call: ProbeCall) -> JsonSpan | None:
    """Return the outer JSON value that contains a call."""
    return next((span for span in values_in(text) if _contains(span.value, call.name)), None)


def _contains(value: Json, name: str) -> bool:
    if isinstance(value, dict):
        return name in value or any(_contains(each, name) for each in value.values())
    if isinstance(value, list):
        return any(_contains(each, name) for each in value)
    return value == name


def _keys(value: Json, call: ProbeCall, number: int) -> Keys | None:
    """Return the keys of the call object; the default keys if they match."""
    if isinstance(value, list):
        value = next((each for each in value if _contains(each, call.name)), None)
    if not isinstance(value, dict):
        return None
    if _is_arguments(value.get(call.name), call):
        return Keys(is_name=True)
    name = next((key for key, each in value.items() if each == call.name), None)
    arguments = next((key for key, each in value.items() if _is_arguments(each, call)), None)
    if name is None or arguments is None:
        return None
    ids = {call_id(number, call, style) for style in ("plain", "kimi")}
    id_ = next((key for key, each in value.items() if isinstance(each, str) and each in ids), None)
    default = Keys()
    if name in default.name and arguments in default.arguments and (id_ is None or id_ in default.id):
        return default
    return Keys(name=(name,), arguments=(arguments,), id=(id_,) if id_ else default.id)


def _is_arguments(value: Json, call: ProbeCall) -> bool:
    if isinstance(value, str):
        value = jsonio.decode_object(value)
    return value == call.arguments
