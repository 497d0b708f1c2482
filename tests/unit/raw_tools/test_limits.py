"""What is held, and what happens when it is too much.

See docs/dialects/raw_tools.md#limits; docs/decisions/raw_tools.md#d22.
"""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

import dragoman
from dragoman.filters.raw_tools import DeclaredTools, Engine
from dragoman.filters.raw_tools.outputs import Arguments, CallEnded, CallStarted, EngineNote, TextOutput
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT, LIMIT, LOOKAHEAD_LIMIT
from dragoman.model.conversation import ToolSpec
from tests.growth import Work, check_linear_growth
from tests.hypothesis_profile import IS_LONG_RUN
from tests.unit.raw_tools.client_view import chunk, client_request
from tests.unit.raw_tools.renderers import BY_NAME_ONLY, RENDER, CallToWrite
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE, TEXT, TOOLS, call, outputs, section, tool
from tests.unit.raw_tools.schemas import HEADERS
from tests.unit.raw_tools.validity import measure_validity

MARKERS = [SB, SE, CB, AB, CE, "<|tool_call_section_begin|>", "<|im_end|>"]


def test_in_prose_no_more_is_buffered_than_may_still_become_a_marker() -> None:
    for marker in MARKERS:
        engine = Engine("kimi")
        for size in range(1, len(marker)):
            assert engine.feed(marker[size - 1]) == []
            assert len(engine._unread) == size
        assert engine.feed("?") == [TextOutput(marker[:-1] + "?", TEXT)] or marker[-1] == "?"


def test_text_is_sent_in_the_delta_it_came_in() -> None:
    engine = Engine("auto", DeclaredTools(TOOLS))
    for piece in ("So ", "I think ", "a < ", "b and ", "that ", "is `it` ", "all\n\n", "of it"):
        assert engine.feed(piece) == [TextOutput(piece, TEXT)]


def test_the_name_is_sent_with_the_marker_and_arguments_in_the_delta_they_come_in() -> None:
    engine = Engine("auto", DeclaredTools(TOOLS))
    assert engine.feed(f"{SB}{CB}functions.bash:0") == []
    assert engine.feed(AB) == [CallStarted("functions.bash:0", "bash", "kimi_k2", TEXT)]
    assert engine.feed(' {"') == [Arguments('{"')]
    assert engine.feed("command") == [Arguments("command")]
    assert engine.feed('":') == [Arguments('":')]
    assert engine.feed(' "l') == [Arguments(' "l')]
    assert engine.feed('s"} ') == [Arguments('s"}')]
    assert engine.feed(CE) == [CallEnded()]


def test_a_header_that_never_ends_is_text() -> None:
    for size in (LIMIT - 100, LIMIT + 200, 10 * LIMIT):
        header = "x" * size
        emitted = outputs([f"{SB}{CB}{header}{AB}{{}}{CE}"], tools=())
        calls = [output for output in emitted if isinstance(output, CallStarted)]
        text = "".join(output.text for output in emitted if isinstance(output, TextOutput))
        if size < LIMIT:
            assert [call.name for call in calls] == [] or not text
        else:
            assert not calls
            assert text == f"{SB}{CB}{header}{AB}{{}}{CE}"
            assert not any(isinstance(output, EngineNote) for output in emitted)  # nothing changed


def test_a_section_without_calls_gives_its_text_back() -> None:
    prose = "This is prose. " * 200
    for choice, shown in (("auto", SB + prose), ("kimi", prose)):
        emitted = outputs([SB + prose], choice)
        assert "".join(output.text for output in emitted if isinstance(output, TextOutput)) == shown


@pytest.mark.parametrize("size", [BUFFER_LIMIT - 100, BUFFER_LIMIT + 100, 3 * BUFFER_LIMIT])
def test_a_call_that_waits_for_its_name_may_wait_for_a_megabyte(size: int) -> None:
    arguments = '{"path":"' + "x" * size + '"}'
    document = section(call("3", arguments)) + "end"
    emitted = outputs([document])
    if size < BUFFER_LIMIT:
        assert [output.text for output in emitted if isinstance(output, Arguments)] == [arguments]
    else:
        assert not any(isinstance(output, CallStarted) for output in emitted)
        assert "".join(output.text for output in emitted if isinstance(output, TextOutput)) == document
        assert any(isinstance(output, EngineNote) and output.rule == "over_limit" for output in emitted)


def test_after_too_much_the_next_call_is_read_again() -> None:
    too_much = call("3", '{"path":"' + "x" * (BUFFER_LIMIT + 1) + '"}')
    emitted = outputs([section(too_much), section(call("functions.bash:0", "{}"))])
    assert [output.name for output in emitted if isinstance(output, CallStarted)] == ["bash"]


def test_buffered_holds_a_megabyte_and_no_more() -> None:
    for size, delivered in ((BUFFER_LIMIT - 100, True), (BUFFER_LIMIT + 100, False)):
        emitted = outputs([section(call("functions.bash:0", '{"command":"' + "x" * size + '"}'))], mode="buffered")
        assert any(isinstance(output, CallStarted) for output in emitted) is delivered


def _grown(engine: Engine, pieces: list[str]) -> int:
    """How much memory some megabytes of these pieces leave behind."""
    for piece in pieces * 1200:  # more than any look ahead
        engine.feed(piece)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range((8 if IS_LONG_RUN else 1) * 1024 * 1024 // sum(map(len, pieces))):
        for piece in pieces:
            engine.feed(piece)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown


def test_memory_stays_flat_over_megabytes_of_arguments() -> None:
    engine = Engine("auto", DeclaredTools(TOOLS))
    engine.feed(f'{SB}{CB}functions.bash:0{AB}{{"command":"')
    assert (
        _grown(engine, ['text with \\"quotes\\" and <|tool_call> and \\n', '", "b": [1, {"c": null}], "d": "']) < 20_000
    )
    assert engine.peak < 100


def test_an_end_marker_in_a_string_waits_for_a_bounded_look_ahead() -> None:
    """If the arguments go on well for AHEAD_LIMIT characters after the marker, it is part of the string."""
    engine = Engine("auto", DeclaredTools(TOOLS))
    engine.feed(f'{SB}{CB}functions.bash:0{AB}{{"command":"')
    pieces = ['text with \\"quotes\\" and <|tool_call_end|> and \\n', '", "b": [1, {"c": null}], "d": "']
    longest = max(map(len, pieces))
    assert _grown(engine, pieces) < 4 * LOOKAHEAD_LIMIT
    assert LOOKAHEAD_LIMIT == 64 * 1024
    assert LOOKAHEAD_LIMIT - longest <= engine.peak <= LOOKAHEAD_LIMIT + longest
    assert engine.feed(f'"}}{CE}{SE}')[-1] == CallEnded(complete=True)


@pytest.mark.parametrize("size", [4, 100, LOOKAHEAD_LIMIT // 2, LOOKAHEAD_LIMIT - len(CE + SE) - 1])
def test_an_unterminated_string_ends_at_the_end_marker(size: int) -> None:
    """It does not swallow the end markers, and what follows them is text."""
    text = (" and so on." * (size // 11 + 1))[:size]
    begin = f'{SB}{CB}functions.bash:0{AB}{{"command":"ls'
    for pieces in ([f"{begin}{CE}{SE}{text}"], [*begin, *CE, *SE, text[:3], text[3:]]):
        emitted = outputs(pieces)
        assert "".join(output.text for output in emitted if isinstance(output, Arguments)) == '{"command":"ls'
        assert [output.complete for output in emitted if isinstance(output, CallEnded)] == [False]
        assert "".join(output.text for output in emitted if isinstance(output, TextOutput)) == text
        assert [output.rule for output in emitted if isinstance(output, EngineNote)] == ["broken_arguments"]


def test_a_string_that_goes_on_for_the_whole_look_ahead_is_believed() -> None:
    """The other side of the bound: the same end marker is part of the string, and the text after it too."""
    begin, rest = f'{SB}{CB}functions.bash:0{AB}{{"command":"ls', "x" * (LOOKAHEAD_LIMIT - len(CE + SE))
    for pieces in ([f"{begin}{CE}{SE}{rest}"], [*begin, *CE, *SE, rest[:3], rest[3:]]):
        emitted = outputs(pieces)
        assert [output.text for output in emitted if isinstance(output, Arguments)] == [
            f'{{"command":"ls{CE}{SE}{rest}'
        ]
        assert [output.rule for output in emitted if isinstance(output, EngineNote)] == ["cut_off"]


def test_deep_nesting_costs_no_stack() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    emitted = outputs([section(call("functions.bash:0", deep))])
    assert [output.text for output in emitted if isinstance(output, Arguments)] == [deep]


def test_white_space_without_end_is_not_buffered_without_end() -> None:
    engine = Engine("auto", DeclaredTools(TOOLS))
    engine.feed(f"{SB}{CB}functions.bash:0{AB}{{")
    for _ in range(5000):
        engine.feed("   \n")
    engine.feed(f"}}{CE}{SE}")
    for _ in range(5000):
        engine.feed("   \n")
    assert engine.peak < 2 * LIMIT


def test_two_hundred_engines_fed_in_turn_say_what_each_says_alone() -> None:
    documents = [
        f"{at} {section(call(f'functions.bash:{at}', f'{{{chr(34)}command{chr(34)}:{at}}}'))} {at}" for at in range(200)
    ]
    engines = [Engine("auto", DeclaredTools(TOOLS)) for _ in documents]
    emitted: list[list[object]] = [[] for _ in documents]
    for at in range(max(map(len, documents))):
        for engine, document, results in zip(engines, documents, emitted, strict=True):
            results.extend(engine.feed(document[at : at + 1]))
    for engine, document, results in zip(engines, documents, emitted, strict=True):
        other = Engine("auto", DeclaredTools(TOOLS))
        assert [*results, *engine.close()] == [
            *(each for char in document for each in other.feed(char)),
            *other.close(),
        ]


# --- How long text and arguments wait, measured in deltas: nothing is held longer than it must be

DECLARED = (tool("bash", "command"), tool("read", "path"))
PROSE = (
    'The function f(x) < 3 and a[i] > b, {"name": 1}, it\'s <b>bold</b>, a | b, “quoted”, `code`, 24" and\n'
    "- a list: one, two\n> quoted\n\n```python\nif a<b: print([1])\n```\n\nfunctional analysis, tools, call me. Read it.\n"
)
LONGEST = 60  # characters: no marker is longer than this
VALUE = "word " * 400


def test_ordinary_text_is_sent_at_once() -> None:
    """Character by character: what waits may begin a marker or a header, and is soon decided."""
    engine = Engine("auto", DeclaredTools(DECLARED))
    sent = 0
    waits: list[int] = []
    for came, char in enumerate(PROSE * 5, 1):
        sent += sum(len(each.text) for each in engine.feed(char, TEXT) if isinstance(each, TextOutput))
        waits.append(came - sent)
    assert max(waits) <= LONGEST
    assert sum(1 for wait in waits if wait) < len(waits) / 4, "most deltas go out as they come"


def test_words_are_sent_with_their_delta() -> None:
    engine = Engine("auto", DeclaredTools(DECLARED))
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
        assert engine.feed(word, TEXT) == [TextOutput(word, TEXT)], word


# What has to be whole before it can be sent: values whose type is known only by their end.
_WHOLE = {"llama3_bare", "phi4_start"}  # nothing marks them as calls


@pytest.mark.parametrize("auto", [False, True], ids=["by name", "auto"])
@pytest.mark.parametrize("table", [table for table in RENDER if table not in _WHOLE])
def test_arguments_are_sent_while_they_come(table: str, auto: bool) -> None:
    if auto and table in BY_NAME_ONLY:
        pytest.skip("auto does not look for it")
    choice = "auto" if auto else table
    document = RENDER[table]((CallToWrite("bash", {"command": VALUE}, dict(DECLARED[0].schema or {})),))
    engine = Engine(choice, DeclaredTools(DECLARED))
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
        translator: Any = dragoman.stream_translator(source="openai", target=client, request=client_request(client))
        translator.feed(chunk({"role": "assistant"}))
        frames = [translator.feed(chunk({"content": document[at : at + 10]})) for at in range(0, len(document), 10)]
        live = [frame for frame in frames if key in frame]
        assert len(live) >= len(value) // 10, client


# --- text that is full of what may begin a tag is read in time that grows with its length, not with its square

TYPED = [ToolSpec("f", "", {"type": "object", "properties": {"a": {"type": "string"}}})]
CALLS = {
    "qwen": "<function=f>\n<parameter=a>\nx\n</parameter>\n",
    "invoke": '<function_calls><invoke name="f"><parameter name="a">x</parameter>',
}
ENDS = {"qwen": "</function>", "invoke": "</invoke>"}


@pytest.mark.parametrize("stray", ["<", "</a "])
@pytest.mark.parametrize("form", CALLS)
def test_strays_after_a_parameter_take_no_square_time(form: str, stray: str) -> None:
    def work(count: int) -> Work:
        text = CALLS[form] + stray * count + ENDS[form]
        return lambda: Engine("auto", DeclaredTools(TYPED)).feed(text)

    check_linear_growth(work, 500)


# --- figure


@pytest.mark.parametrize("table", RENDER)
def test_all_arguments_are_valid_for_their_schema(table: str) -> None:
    by_reader = table in HEADERS
    valid, equal = measure_validity(table, 300 if by_reader else 30)
    assert valid == 1.0
    # A string that looks like another allowed type is read as that type.
    assert equal > (0.9 if by_reader else 0.8)
