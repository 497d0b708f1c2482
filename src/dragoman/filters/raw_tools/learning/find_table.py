"""Find how a chat template writes tool calls, from renderings of probes: `learn` returns it as a `Table`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, structs

from dragoman.filters.raw_tools.families import THINK_END
from dragoman.filters.raw_tools.learning import find_json
from dragoman.filters.raw_tools.learning.find_json import HEADER, QUOTES, body_name_fields, marker_fields
from dragoman.filters.raw_tools.learning.pieces import (
    END_OF_TURN,
    SPECIAL_TOKEN,
    CallMarkers,
    ProbeTexts,
    count_common_end,
    count_common_start,
    find_markers,
    join_marker,
    split_text,
)
from dragoman.filters.raw_tools.learning.probes import FIRST, SECOND, TYPES, ProbeCall, call_id
from dragoman.filters.raw_tools.table import Markup, Table

# --- Formats that write each argument separately: tags, elements, Python calls, Gemma's notation


_ATTRIBUTE = re.compile(r"""(?<![\w:-])([\w:-]++)=["']([^"']*+)["']""")
_GEMMA_CALL = "call:"  # the word before each name
_SPACE = re.compile(r"(?:\\\s)+")  # as re.escape writes it
_PYTHON_NAME = re.compile(r"=\s*[\"']\Z")


class CallLayout(Struct, frozen=True):
    """The texts around the name, keys and values of a call with two string arguments."""

    before: str  # before the name
    header: str  # from the name to the first key
    middle: str  # from a key to its value
    gap: str  # from a value to the next key
    after: str  # after the last value


def layout_of(text: str, call: ProbeCall) -> CallLayout | None:
    """Return where the name, the keys and the values of a call are in a text; None if they are not there in order."""
    (key, value), (next_key, next_value) = call.arguments.items()
    key_at = text.find(key)
    name_at = text.rfind(call.name, 0, max(key_at, 0))
    value_at = text.find(str(value), key_at)
    next_at = text.find(next_key, value_at)
    last_at = text.find(str(next_value), next_at)
    if -1 in (key_at, name_at, value_at, next_at, last_at):
        return None
    return CallLayout(
        text[:name_at],
        text[name_at + len(call.name) : key_at],
        text[key_at + len(key) : value_at],
        text[value_at + len(str(value)) : next_at],
        text[last_at + len(str(next_value)) :],
    )


def _text_between_calls(probes: Mapping[str, str], end: str) -> str | None:
    """Return the text from the last value of the first call to the name of the second; None if there is no second.

    `end` is the text that closes a value or a call; it is left out.
    """
    two = probes.get("two", "")
    *_, value = FIRST.arguments.values()
    start = two.find(str(value))
    name = two.find(SECOND.name, start)
    if start == -1 or name == -1:
        return None
    return two[start + len(str(value)) : name].removeprefix(end)


# --- Python calls and Gemma's notation


def pythonic(probes: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the fields of a format like `[name(key="value", …), …]` (Llama 4, Olmo 3, LFM2), or None."""
    layout = layout_of(probes["one"], FIRST)
    if layout is None or layout.header.strip() != "(" or not _PYTHON_NAME.fullmatch(layout.middle):
        return None
    end = f"{layout.middle[-1]})"
    if not layout.after.startswith(end):
        return None
    before, after = layout.before.rstrip(), layout.after[len(end) :].lstrip()
    fields = body_name_fields(
        CallMarkers(join_marker([before.removesuffix("[")]), "", "", after.removeprefix("]").strip()), "["
    )
    if not before.endswith("["):
        del fields["header_stop"]
    if fields.get("at_start"):
        fields["by_name_only"] = True  # a list of calls without markers may be Python code
    return {**fields, "body": "pythonic"}


def gemma(probes: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the fields of a format like `call:name{key:MARKvalueMARK,…}` (Gemma 4, FunctionGemma), or None."""
    layout = layout_of(probes["one"], FIRST)
    if layout is None or layout.header.strip() != "{" or not layout.middle.startswith(":"):
        return None
    mark = layout.middle[1:].strip()
    if not mark or not layout.gap.startswith(mark) or not layout.after.startswith(mark + "}"):
        return None
    if not layout.before.endswith(_GEMMA_CALL):
        return None
    before, between = layout.before, _text_between_calls(probes, mark + "}")
    if between is not None:
        between = between.removesuffix(_GEMMA_CALL)
    frame = find_markers(before.removesuffix(_GEMMA_CALL), layout.after[len(mark) + 1 :], between)
    return {**body_name_fields(frame, _GEMMA_CALL), "body": "gemma", "string_mark": mark}


# --- tags


def elements(probes: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the fields of a format with elements named after the keys (MiniMax M3), or None."""
    layout = layout_of(probes["one"], FIRST)
    key, last = FIRST.arguments
    if layout is None or f"</{key}>" not in layout.gap or f"</{last}>" not in layout.after:
        return None
    prefix = layout.gap.partition(f"</{key}>")[0].strip()
    end = layout.after[: layout.after.index(f"</{last}>") + len(last) + 3]
    frame = _find_prefixed_markers(layout.before, layout.after[len(end) :], _text_between_calls(probes, end), prefix)
    header = layout.header.rpartition("<")[0].strip().removesuffix(prefix).strip().lstrip(QUOTES)
    fields = {**marker_fields(frame), "header": HEADER, "body": "elements", "tag_prefix": prefix}
    return {**fields, "header_end": (header or ">",)}


def _find_prefixed_markers(before: str, after: str, between: str | None, prefix: str) -> CallMarkers:
    """Return the markers of a format with a prefix before each tag; the search moves the prefix into the tags."""
    mark = "\x00"
    moved = [text.replace(f"{prefix}<", f"<{mark}") if prefix and text else text for text in (before, after, between)]
    frame = find_markers(moved[0] or "", moved[1] or "", moved[2])
    markers = (frame.section_begin, frame.call_begin.rstrip(QUOTES), frame.call_end, frame.section_end)
    return CallMarkers(*(marker.replace(f"<{mark}", f"{prefix}<") for marker in markers))


def markup(probes: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the fields of a format with key tag, value and end tag (Qwen3-Coder, GLM, DSML, MiniMax M2), or None."""
    layout = layout_of(probes["one"], FIRST)
    if layout is None or not layout.middle.strip() or not layout.gap.strip():
        return None
    gap, after, header = split_text(layout.gap), split_text(layout.after), split_text(layout.header)
    ends = _without_blank(gap, count_common_start(gap, after))
    opens = count_common_end(header, gap[ends:])
    value_end, opening = join_marker(gap[:ends]), join_marker(header[len(header) - opens :])
    if not value_end or not opening:
        return None
    end = "".join(gap[:ends])
    frame = find_markers(layout.before, layout.after.removeprefix(end), _text_between_calls(probes, end))
    frame = structs.replace(frame, call_begin=frame.call_begin.rstrip(QUOTES))
    fields = {**marker_fields(frame), "header": HEADER, "body": "markup"}
    header_end = join_marker(header[: len(header) - opens]).lstrip(QUOTES)
    if header_end:
        fields["header_end"] = (header_end,)
    else:
        fields["header_stop"] = (opening.rstrip(QUOTES), *fields.get("call_end", ()))
    fields["markup"] = Markup(
        opens=_opens(opening, layout.middle, _other_middle(probes.get("types", ""))),
        open_end=_open_end(layout.middle),
        value_ends=(value_end,),
        value_stops=(opening.rstrip(QUOTES),),
        trims=layout.middle.endswith("\n") and layout.gap.startswith("\n"),
    )
    return fields


def _without_blank(parts: list[str], count: int) -> int:
    """Return how many of the first `count` parts are left without white space at their end."""
    while count and parts[count - 1].isspace():
        count -= 1
    return count


def _open_end(middle: str) -> str:
    last = [part for part in split_text(middle) if not part.isspace()][-1]
    return last if last.startswith("<") else last.lstrip(QUOTES)[-1:]


def _other_middle(text: str) -> str:
    """Return the text between a key and its value if the value is a number."""
    key = "key_i"
    start = text.find(key)
    stop = text.find(str(TYPES.arguments[key]), start)
    return text[start + len(key) : stop] if -1 not in (start, stop) else ""


def _opens(opening: str, middle: str, other: str) -> re.Pattern[str]:
    """Return the pattern of an opening tag. An attribute that differs by type is its group `kind`."""
    quoted = opening.endswith(tuple(QUOTES))
    pattern = _loose(opening.rstrip(QUOTES)) + r"""\s*["']?(?P<key>[^<>"']*?)["']?\s*"""
    rest = (middle.lstrip(QUOTES) if quoted else middle).strip()
    others = dict(_ATTRIBUTE.findall(other))
    at = 0
    for attribute in _ATTRIBUTE.finditer(rest):
        if others.get(attribute[1], attribute[2]) != attribute[2]:
            pattern += _loose(rest[at : attribute.start()])
            pattern += rf"""(?:{re.escape(attribute[1])}=["'](?P<kind>[^"']*)["'])?\s*"""
            at = attribute.end()
            break
    return re.compile(pattern + _loose(rest[at:].lstrip()))


def _loose(text: str) -> str:
    """Return a pattern of this text in which white space may have any length."""
    return "".join(r"\s*" if part.isspace() else _SPACE.sub(r"\\s+", re.escape(part)) for part in split_text(text))


_COMMON_REASONING = ("<think>", "</think>")  # the engine reads these in any format

_FINDERS: tuple[Callable[[Mapping[str, str]], dict[str, Any] | None], ...] = (
    find_json.json_after_header,
    find_json.call_objects,
    pythonic,
    gemma,
    elements,
    markup,
)


class CannotLearn(Exception):
    """The renderings show no tool calls that a table could read. The message gives the reason."""


def learn(probes: ProbeTexts, name: str) -> Table:
    """Return the table of the format in the renderings. Raises CannotLearn."""
    text = probes.calls.get("one", "")
    if not text.strip():
        raise CannotLearn("the template renders no tool calls: a reply with calls looks like one without")
    if FIRST.name not in text:
        shown = call_id(0, FIRST, "plain") in text
        raise CannotLearn(
            "the template renders the ids of calls, but not their names"
            if shown
            else f"the template renders a call without the name of its tool: {text[:200]!r}"
        )
    for find in _FINDERS:
        fields = find(probes.calls)
        if fields is not None:
            return _table(name, _without_end_of_turn(fields), probes)
    raise CannotLearn(f"no reader supports the form of the arguments: {text[:300]!r}")


def _without_end_of_turn(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields without an end of turn as the end of a call: servers stop at that token and do not send it."""
    end = fields.get("call_end", ())
    if not end or not END_OF_TURN.fullmatch(end[0]) or fields["body"] not in ("json", "wrapped", "array"):
        return fields
    rest = {field: value for field, value in fields.items() if field != "call_end"}
    return {**rest, "stray": end, "self_closing": True}


def _table(name: str, fields: dict[str, Any], probes: ProbeTexts) -> Table:
    openers = (*fields.get("section_begin", ()), *fields.get("call_begin", ()))
    markers = {marker for field in fields.values() if isinstance(field, tuple) for marker in field}
    ends = tuple(token for token in dict.fromkeys(SPECIAL_TOKEN.findall(probes.end)) if token not in markers)
    stray = (*fields.pop("stray", ()), *ends)
    pair = probes.reasoning
    is_single_tokens = pair is not None and all(len(split_text(marker)) == 1 for marker in pair)
    reasoning = (pair,) if pair is not None and pair != _COMMON_REASONING and is_single_tokens else ()
    return Table(
        name=name,
        family=name,
        special=bool(fields.get("tag_prefix")) or any(map(SPECIAL_TOKEN.match, openers[:1])),
        stray=stray,
        trailing=THINK_END,
        reasoning=reasoning,
        **fields,
    )
