"""The inverse law: a call rendered in a format and read back is the same call, and the text around it stays.

Exceptions, all of formats that write values without escapes: a value that contains what ends a value in that format
(`</parameter>`), Gemma's string mark, or MiniMax M3's tag prefix. `endings_of` has them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, note, settings
from hypothesis import strategies as st

from dragoman.filters.raw_tools import TABLES
from dragoman.filters.raw_tools.outputs import Arguments, CallStarted, EngineOutput, TextOutput
from tests.hypothesis_profile import IS_LONG_RUN
from tests.unit.raw_tools.generated import after_calls, before_calls, calls
from tests.unit.raw_tools.render_json import as_json
from tests.unit.raw_tools.renderers import AT_START, BY_NAME_ONLY, MARKUP, MISSING, PYTHON, SPELLINGS, CallToWrite
from tests.unit.raw_tools.samples import calls_of, outputs, random_cut

_TABLES = {table.name: table for table in TABLES}
_STRING_MARKS = {"gemma4": ('<|"|>',), "functiongemma": ("<escape>",), "minimax_m3": ("]<]minimax[>[",)}
# Each example is tried in more than fifty spellings: fewer of them in the suite than other laws have.
some = settings(max_examples=settings().max_examples if IS_LONG_RUN else 30)


def endings_of(table: str) -> tuple[str, ...]:
    """What a value of this format cannot contain."""
    if table in _STRING_MARKS:
        return _STRING_MARKS[table]
    markup = _TABLES[table].markup
    if table not in MARKUP or markup is None:
        return ()
    return (*markup.value_ends, *markup.value_stops, *_TABLES[table].call_end, *_TABLES[table].section_end)


def can_be_written(table: str, written: Sequence[CallToWrite]) -> bool:
    endings = endings_of(table)
    return not any(ending in as_raw(call.arguments) for call in written for ending in endings)


def as_raw(value: object) -> str:
    """All strings of a value, so that an ending is found wherever it stands, escaped or not."""
    match value:
        case str():
            return value
        case dict():
            return "\0".join(part for key, each in value.items() for part in (key, as_raw(each)))
        case list():
            return "\0".join(map(as_raw, value))
        case _:
            return ""


def canonical_value(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def text_of(emitted: Sequence[EngineOutput]) -> str:
    return "".join(output.text for output in emitted if isinstance(output, TextOutput))


def check(choice: str, text: str, written: Sequence[CallToWrite], shown: str, rng: random.Random) -> None:
    tools = [call.tool for call in written]
    expected = [(call.name, canonical_value(call.arguments), True) for call in written]
    whole = outputs([text], choice, tools)
    assert [(name, canonical_value(value), ended) for name, value, ended in calls_of(whole)] == expected, (choice, text)
    assert text_of(whole).rstrip() == shown.rstrip(), (choice, text)
    assert outputs(random_cut(text, rng), choice, tools) == whole, "the result depends on the cut"


def test_every_table_has_a_renderer() -> None:
    assert MISSING == []


@some
@given(data=st.data(), before=before_calls, after=after_calls, rng=st.randoms(use_true_random=False))
def test_what_is_rendered_is_read_back(data: Any, before: str, after: str, rng: random.Random) -> None:
    kinds = {
        (loose, hyphens): data.draw(calls(identifiers=not loose, hyphens=hyphens))
        for loose in (False, True)
        for hyphens in (False, True)
    }
    for title, (table, _) in SPELLINGS.items():
        note(title)
        written = kinds[table in MARKUP and table != "minimax_m3", table not in PYTHON]
        if can_be_written(table, written):
            _is_read_back(title, written, before, after, rng)


def _is_read_back(title: str, written: list[CallToWrite], before: str, after: str, rng: random.Random) -> None:
    table, render = SPELLINGS[title]
    before = "" if table in AT_START else before
    text = before + render(written) + after
    check(table, text, written, before + after, rng)
    if table not in BY_NAME_ONLY:
        check("auto", text, written, before + after, rng)


@some
@given(plain=calls(hyphens=False), hyphened=calls(hyphens=True), rng=st.randoms(use_true_random=False))
def test_two_sections_with_text_between_them(
    plain: list[CallToWrite], hyphened: list[CallToWrite], rng: random.Random
) -> None:
    for title, (table, _) in SPELLINGS.items():
        note(title)
        written = plain if table in PYTHON else hyphened
        if table not in AT_START and can_be_written(table, written):
            _two_sections(title, written, rng)


def _two_sections(title: str, written: list[CallToWrite], rng: random.Random) -> None:
    table, render = SPELLINGS[title]
    text = "First.\n" + render(written[:1]) + "\n\nThen.\n" + render(written[:1]) + "\nDone."
    twice = [written[0], written[0]]
    for choice in (table,) if table in BY_NAME_ONLY else (table, "auto"):
        whole = outputs([text], choice, [written[0].tool])
        expected = [(call.name, canonical_value(call.arguments), True) for call in twice]
        assert [(name, canonical_value(value), ended) for name, value, ended in calls_of(whole)] == expected, (
            choice,
            text,
        )
        assert text_of(whole) == "First.\n\n\nThen.\n\nDone."
        assert outputs(random_cut(text, rng), choice, [written[0].tool]) == whole


@some
@given(written=calls())
def test_arguments_of_json_formats_are_the_model_s_own_bytes(written: list[CallToWrite]) -> None:
    """Nothing is parsed and written again where the format writes JSON (docs/decisions/content.md#d3)."""
    for title, (table, _) in SPELLINGS.items():
        note(title)
        if _TABLES[table].body in ("json", "wrapped", "array"):
            _are_own_bytes(title, written)


def _are_own_bytes(title: str, written: list[CallToWrite]) -> None:
    table, render = SPELLINGS[title]
    emitted = outputs([render(written)], table, [call.tool for call in written])
    parts: list[str] = []
    for output in emitted:
        if isinstance(output, CallStarted):
            parts.append("")
        elif isinstance(output, Arguments):
            parts[-1] += output.text
    assert parts == [as_json(call.arguments) for call in written]
