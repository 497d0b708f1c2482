"""How long text and arguments wait, measured in deltas: nothing is held longer than it must be."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
from dragoman.filters.raw_tools import Engine, Tools
from dragoman.filters.raw_tools.outputs import Arguments, Said
from tests.unit.raw_tools.renderers import BY_NAME_ONLY, RENDER, CallToWrite
from tests.unit.raw_tools.samples import TEXT, tool
from tests.unit.raw_tools.through import asked, chunk

DECLARED = (tool("bash", "command"), tool("read", "path"))
PROSE = (
    'The function f(x) < 3 and a[i] > b, {"name": 1}, it\'s <b>bold</b>, a | b, “quoted”, `code`, 24" and\n'
    "- a list: one, two\n> quoted\n\n```python\nif a<b: print([1])\n```\n\nfunctional analysis, tools, call me. Read it.\n"
)
LONGEST = 60  # characters: no marker is longer than this
VALUE = "word " * 400


def test_ordinary_text_goes_out_at_once() -> None:
    """Character by character: what waits may begin a marker or a header, and is soon decided."""
    engine = Engine("auto", Tools(DECLARED))
    sent = 0
    waits: list[int] = []
    for came, char in enumerate(PROSE * 5, 1):
        sent += sum(len(each.text) for each in engine.feed(char, TEXT) if isinstance(each, Said))
        waits.append(came - sent)
    assert max(waits) <= LONGEST
    assert sum(1 for wait in waits if wait) < len(waits) / 4, "most deltas go out as they come"


def test_words_go_out_with_their_delta() -> None:
    engine = Engine("auto", Tools(DECLARED))
    engine.feed("Hello", TEXT)
    for word in (
        " I",
        " will",
        " explain",
        " this",
        ",",
        " then",
        " write",
        " code",
        " for",
        " you",
        " all",
        " assistant",
    ):
        assert engine.feed(word, TEXT) == [Said(word, TEXT)], word


# What has to be whole before it can go out: values whose type is known only by their end.
_WHOLE = {"llama3_bare", "phi4_start"}  # nothing marks them as calls


@pytest.mark.parametrize("auto", [False, True], ids=["by name", "auto"])
@pytest.mark.parametrize("table", [table for table in RENDER if table not in _WHOLE])
def test_arguments_go_out_while_they_come(table: str, auto: bool) -> None:
    if auto and table in BY_NAME_ONLY:
        pytest.skip("auto does not look for it")
    choice = "auto" if auto else table
    document = RENDER[table]((CallToWrite("bash", {"command": VALUE}, dict(DECLARED[0].schema or {})),))
    engine = Engine(choice, Tools(DECLARED))
    begin = document.index(VALUE)
    engine.feed(document[:begin], TEXT)
    sent = 0
    for at in range(begin, begin + len(VALUE), 10):
        sent += sum(len(each.text) for each in engine.feed(document[at : at + 10], TEXT) if isinstance(each, Arguments))
        assert at + 10 - begin - sent <= LONGEST, f"{table}: {at - begin} came, {sent} went out"


def test_a_client_gets_the_arguments_in_as_many_deltas() -> None:
    value = "word " * 200
    head = "<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>"
    document = head + json.dumps({"command": value}) + "<|tool_call_end|><|tool_calls_section_end|>"
    for client, key in (("anthropic", b"partial_json"), ("responses", b"arguments.delta"), ("openai", b'"arguments"')):
        made: Any = dragoman.stream_translator(source="openai", target=client, request=asked(client))
        made.feed(chunk({"role": "assistant"}))
        frames = [made.feed(chunk({"content": document[at : at + 10]})) for at in range(0, len(document), 10)]
        live = [frame for frame in frames if key in frame]
        assert len(live) >= len(value) // 10, client
