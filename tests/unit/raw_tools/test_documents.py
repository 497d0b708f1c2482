"""Laws that hold for every document: nothing is taken back, nothing is invented, nothing is lost, little is held."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from dragoman.filters.raw_tools import Engine, Tools
from dragoman.filters.raw_tools.call import HELD_LIMIT
from dragoman.filters.raw_tools.outputs import Arguments, CallStarted, Output, Remark, Said
from dragoman.filters.raw_tools.readers import LIMIT
from tests.budget import LONG
from tests.unit.raw_tools.documents import document_of, prose_and_calls
from tests.unit.raw_tools.renderers import AT_START, BY_NAME_ONLY, RENDER, CallToWrite
from tests.unit.raw_tools.samples import TOOLS, merged, outputs, random_cut, tool
from tests.unit.raw_tools.test_cuts import DOCUMENTS, ROUNDS, every_round, every_table

_IN_AUTO = [table for table in RENDER if table not in BY_NAME_ONLY]
every_table_of_auto = pytest.mark.parametrize("table", _IN_AUTO)
WRITE = tool("write", "content")


def spoken(told: Sequence[Output]) -> str:
    return "".join(output.text for output in told if isinstance(output, Said))


def begins(whole: Sequence[Output], part: Sequence[Output]) -> bool:
    """Whether the outputs begin with these, the last of which may have grown."""
    if not part:
        return True
    *sure, last = part
    if list(whole[: len(sure)]) != sure or len(whole) < len(part):
        return False
    grown = whole[len(sure)]
    match last, grown:
        case Said(text, carrier), Said(more, same):
            return carrier is same and more.startswith(text)
        case Arguments(text), Arguments(more):
            return more.startswith(text)
        case _:
            return last == grown


@every_round
@every_table
def test_what_came_out_is_never_taken_back(table: str, seed: int) -> None:
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS // 3):
        document = document_of(table, rng)
        choice = rng.choice(["auto", table])
        whole = outputs([document], choice)
        engine, so_far = Engine(choice, Tools(TOOLS)), []
        for piece in random_cut(document, rng):
            so_far += engine.feed(piece)
            assert begins(whole, merged(so_far)), (choice, document, piece)


@every_round
@every_table
def test_text_that_comes_out_is_text_that_came_in(table: str, seed: int) -> None:
    """Nothing is invented, nothing changes its place; without a call or a note nothing changes at all."""
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS):
        document = document_of(table, rng)
        told = outputs([document])
        rest = iter(document)
        assert all(char in rest for char in spoken(told)), document
        if not any(isinstance(output, CallStarted | Remark) for output in told):
            assert spoken(told) == document


@every_round
@every_table_of_auto
def test_prose_comes_back_byte_for_byte(table: str, seed: int) -> None:
    """Every paragraph comes out, in order, with the white space around it; every call is recovered."""
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS // 2):
        pieces = prose_and_calls(table, rng)
        if table in AT_START:
            pieces = pieces[1:3]
        document = "\n\n".join(text for _, text in pieces)
        told = outputs(random_cut(document, rng))
        assert spoken(told) == "\n\n".join("" if is_call else text for is_call, text in pieces), document
        calls = sum(isinstance(output, CallStarted) for output in told)
        assert calls == sum(is_call for is_call, _ in pieces), document


# --- what is held


@every_table
def test_a_long_argument_is_not_held(table: str) -> None:
    """A string streams: no format needs to see its end first."""
    opening, _, _ = RENDER[table]([CallToWrite("write", {"content": "HERE"}, {})]).partition("HERE")
    engine = Engine(table, Tools([WRITE]))
    engine.feed(opening)
    streamed = 0
    for _ in range(20_000):
        streamed += sum(len(each.text) for each in engine.feed("some words ") if isinstance(each, Arguments))
    assert streamed > 200_000
    assert engine.peak < 2 * LIMIT


@every_table_of_auto
def test_text_with_half_markers_is_not_held(table: str) -> None:
    example = RENDER[table]([CallToWrite("bash", {"command": "ls"}, {})])
    engine = Engine("auto", Tools(TOOLS))
    text = "Some words " + example[: len(example) // 4]
    for _ in range(2_000 if LONG else 500):
        engine.feed(text + " and others, ")
    assert engine.peak <= HELD_LIMIT + 4 * LIMIT
    engine = Engine("auto", Tools(TOOLS))
    for _ in range(20_000 if LONG else 2_000):
        engine.feed("a < b [c] `d` and ")
    assert engine.peak < LIMIT


_OPEN = ("```\n", "> ", "    ", "`", '"', "So. ")
# Every format, and every way to quote with a sixth of them: the limit does not depend on the pair.
_QUOTED = [(table, before) for table in _IN_AUTO for before in _OPEN]
_SOME_QUOTED = [(table, _OPEN[at % len(_OPEN)]) for at, table in enumerate(_IN_AUTO)]


@pytest.mark.parametrize(("table", "before"), _QUOTED if LONG else _SOME_QUOTED)
def test_a_quotation_that_never_closes_is_held_up_to_the_limit(table: str, before: str) -> None:
    example = RENDER[table]([CallToWrite("bash", {"command": "ls"}, {})])
    engine = Engine("auto", Tools(TOOLS))
    engine.feed(before + example)
    for _ in range(HELD_LIMIT // 10_000 * 3 // 2):
        engine.feed("some words " * 1_000)
    engine.close()
    assert engine.peak <= HELD_LIMIT + 16 * LIMIT
