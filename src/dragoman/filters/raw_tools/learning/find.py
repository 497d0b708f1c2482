"""Find out how a template writes calls: which body, which markers, as a Table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dragoman.filters.raw_tools.learning import find_json, find_tags
from dragoman.filters.raw_tools.learning.pieces import is_end_of_turn, is_token, pieces, tokens
from dragoman.filters.raw_tools.learning.probes import FIRST, call_id
from dragoman.filters.raw_tools.learning.shots import Shots
from dragoman.filters.raw_tools.table import Table

_CLOSES_LATE = ("</think>",)  # reasoning that ends right after a call
_COMMON_REASONING = ("<think>", "</think>")  # the engine reads these in any format

_FINDERS: tuple[Callable[[Mapping[str, str]], dict[str, Any] | None], ...] = (
    find_json.json_after_header,
    find_json.call_objects,
    find_tags.pythonic,
    find_tags.gemma,
    find_tags.elements,
    find_tags.markup,
)


class CannotLearn(Exception):
    """The renderings show no tool calls that a table could read. The text says what they show."""


def learn(shots: Shots, name: str) -> Table:
    """Return the table of what the renderings show. Raises CannotLearn."""
    text = shots.calls.get("one", "")
    if not text.strip():
        raise CannotLearn("the template renders no tool calls: an answer with calls looks like one without")
    if FIRST.name not in text:
        shown = call_id(0, FIRST, "plain") in text
        raise CannotLearn(
            "the template renders the ids of calls and not their names"
            if shown
            else f"the name of the tool is not in what the template renders for a call: {text[:200]!r}"
        )
    for find in _FINDERS:
        fields = find(shots.calls)
        if fields is not None:
            return _table(name, _without_end_of_turn(fields), shots)
    raise CannotLearn(f"the arguments are written in a form that no reader knows: {text[:300]!r}")


def _without_end_of_turn(fields: dict[str, Any]) -> dict[str, Any]:
    """A token that ends the turn is no end of a call: servers stop at it and do not send it."""
    end = fields.get("call_end", ())
    if not end or not is_end_of_turn(end[0]) or fields["body"] not in ("json", "wrapped", "array"):
        return fields
    rest = {field: value for field, value in fields.items() if field != "call_end"}
    return {**rest, "stray": end, "self_closing": True}


def _table(name: str, fields: dict[str, Any], shots: Shots) -> Table:
    openers = (*fields.get("section_begin", ()), *fields.get("call_begin", ()))
    markers = {marker for field in fields.values() if isinstance(field, tuple) for marker in field}
    ends = tuple(token for token in dict.fromkeys(tokens(shots.end)) if token not in markers)
    stray = (*fields.pop("stray", ()), *ends)
    pair = shots.reasoning
    reasoning = (pair,) if pair is not None and pair != _COMMON_REASONING and _single(pair) else ()
    return Table(
        name=name,
        family=name,
        special=bool(fields.get("tag_prefix")) or any(map(is_token, openers[:1])),
        stray=stray,
        trailing=_CLOSES_LATE,
        reasoning=reasoning,
        **fields,
    )


def _single(pair: Iterable[str]) -> bool:
    return all(len(pieces(marker)) == 1 for marker in pair)
