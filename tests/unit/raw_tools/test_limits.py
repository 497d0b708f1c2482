"""What is held, and what happens when it is too much (facts/kimi.md, point 12; D22)."""

from __future__ import annotations

import tracemalloc

import pytest

from dragoman.filters.raw_tools import Engine, Tools
from dragoman.filters.raw_tools.outputs import HELD_LIMIT, Arguments, CallEnded, CallStarted, Remark, Said
from dragoman.filters.raw_tools.readers import AHEAD_LIMIT, LIMIT
from tests.budget import LONG
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE, TEXT, TOOLS, call, outputs, section

MARKERS = [SB, SE, CB, AB, CE, "<|tool_call_section_begin|>", "<|im_end|>"]


def test_in_prose_no_more_is_held_than_may_still_become_a_marker() -> None:
    for marker in MARKERS:
        engine = Engine("kimi")
        for size in range(1, len(marker)):
            assert engine.feed(marker[size - 1]) == []
            assert len(engine._held) == size
        assert engine.feed("?") == [Said(marker[:-1] + "?", TEXT)] or marker[-1] == "?"


def test_text_goes_out_in_the_delta_it_came_in() -> None:
    engine = Engine("auto", Tools(TOOLS))
    for piece in ("So ", "I think ", "a < ", "b and ", "that ", "is `it` ", "all\n\n", "of it"):
        assert engine.feed(piece) == [Said(piece, TEXT)]


def test_the_name_goes_out_with_the_marker_and_arguments_in_the_delta_they_come_in() -> None:
    engine = Engine("auto", Tools(TOOLS))
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
        told = outputs([f"{SB}{CB}{header}{AB}{{}}{CE}"], tools=())
        calls = [output for output in told if isinstance(output, CallStarted)]
        text = "".join(output.text for output in told if isinstance(output, Said))
        if size < LIMIT:
            assert [call.name for call in calls] == [] or not text
        else:
            assert not calls
            assert text == f"{SB}{CB}{header}{AB}{{}}{CE}"
            assert not any(isinstance(output, Remark) for output in told)  # nothing changed


def test_a_section_without_calls_gives_its_text_back() -> None:
    prose = "This is prose. " * 200
    for choice, shown in (("auto", SB + prose), ("kimi", prose)):
        told = outputs([SB + prose], choice)
        assert "".join(output.text for output in told if isinstance(output, Said)) == shown


@pytest.mark.parametrize("size", [HELD_LIMIT - 100, HELD_LIMIT + 100, 3 * HELD_LIMIT])
def test_a_call_that_waits_for_its_name_may_wait_for_a_megabyte(size: int) -> None:
    arguments = '{"path":"' + "x" * size + '"}'
    document = section(call("3", arguments)) + "end"
    told = outputs([document])
    if size < HELD_LIMIT:
        assert [output.text for output in told if isinstance(output, Arguments)] == [arguments]
    else:
        assert not any(isinstance(output, CallStarted) for output in told)
        assert "".join(output.text for output in told if isinstance(output, Said)) == document
        assert any(isinstance(output, Remark) and output.rule == "over_limit" for output in told)


def test_after_too_much_the_next_call_is_read_again() -> None:
    too_much = call("3", '{"path":"' + "x" * (HELD_LIMIT + 1) + '"}')
    told = outputs([section(too_much), section(call("functions.bash:0", "{}"))])
    assert [output.name for output in told if isinstance(output, CallStarted)] == ["bash"]


def test_buffered_holds_a_megabyte_and_no_more() -> None:
    for size, delivered in ((HELD_LIMIT - 100, True), (HELD_LIMIT + 100, False)):
        told = outputs([section(call("functions.bash:0", '{"command":"' + "x" * size + '"}'))], mode="buffered")
        assert any(isinstance(output, CallStarted) for output in told) is delivered


def _grown(engine: Engine, pieces: list[str]) -> int:
    """How much memory some megabytes of these pieces leave behind."""
    for piece in pieces * 1200:  # more than any look ahead
        engine.feed(piece)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range((8 if LONG else 1) * 1024 * 1024 // sum(map(len, pieces))):
        for piece in pieces:
            engine.feed(piece)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return grown


def test_memory_stays_flat_over_megabytes_of_arguments() -> None:
    engine = Engine("auto", Tools(TOOLS))
    engine.feed(f'{SB}{CB}functions.bash:0{AB}{{"command":"')
    assert (
        _grown(engine, ['text with \\"quotes\\" and <|tool_call> and \\n', '", "b": [1, {"c": null}], "d": "']) < 20_000
    )
    assert engine.peak < 100


def test_an_end_marker_in_a_string_waits_for_a_bounded_look_ahead() -> None:
    """L31: if the arguments go on well for AHEAD_LIMIT characters after the marker, it is part of the string."""
    engine = Engine("auto", Tools(TOOLS))
    engine.feed(f'{SB}{CB}functions.bash:0{AB}{{"command":"')
    pieces = ['text with \\"quotes\\" and <|tool_call_end|> and \\n', '", "b": [1, {"c": null}], "d": "']
    longest = max(map(len, pieces))
    assert _grown(engine, pieces) < 4 * AHEAD_LIMIT
    assert AHEAD_LIMIT == 64 * 1024
    assert AHEAD_LIMIT - longest <= engine.peak <= AHEAD_LIMIT + longest
    assert engine.feed(f'"}}{CE}{SE}')[-1] == CallEnded(complete=True)


@pytest.mark.parametrize("size", [4, 100, AHEAD_LIMIT // 2, AHEAD_LIMIT - len(CE + SE) - 1])
def test_an_unterminated_string_ends_at_the_end_marker(size: int) -> None:
    """L31: it does not swallow the end markers, and what follows them is text."""
    said = (" and so on." * (size // 11 + 1))[:size]
    begin = f'{SB}{CB}functions.bash:0{AB}{{"command":"ls'
    for pieces in ([f"{begin}{CE}{SE}{said}"], [*begin, *CE, *SE, said[:3], said[3:]]):
        told = outputs(pieces)
        assert "".join(output.text for output in told if isinstance(output, Arguments)) == '{"command":"ls'
        assert [output.complete for output in told if isinstance(output, CallEnded)] == [False]
        assert "".join(output.text for output in told if isinstance(output, Said)) == said
        assert [output.rule for output in told if isinstance(output, Remark)] == ["broken_arguments"]


def test_a_string_that_goes_on_for_the_whole_look_ahead_is_believed() -> None:
    """The other side of the bound: the same end marker is part of the string, and the text after it too."""
    begin, said = f'{SB}{CB}functions.bash:0{AB}{{"command":"ls', "x" * (AHEAD_LIMIT - len(CE + SE))
    for pieces in ([f"{begin}{CE}{SE}{said}"], [*begin, *CE, *SE, said[:3], said[3:]]):
        told = outputs(pieces)
        assert [output.text for output in told if isinstance(output, Arguments)] == [f'{{"command":"ls{CE}{SE}{said}']
        assert [output.rule for output in told if isinstance(output, Remark)] == ["cut_off"]


def test_deep_nesting_costs_no_stack() -> None:
    deep = "[" * 100_000 + "]" * 100_000
    told = outputs([section(call("functions.bash:0", deep))])
    assert [output.text for output in told if isinstance(output, Arguments)] == [deep]


def test_white_space_without_end_is_not_held_without_end() -> None:
    engine = Engine("auto", Tools(TOOLS))
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
    engines = [Engine("auto", Tools(TOOLS)) for _ in documents]
    told: list[list[object]] = [[] for _ in documents]
    for at in range(max(map(len, documents))):
        for engine, document, said in zip(engines, documents, told, strict=True):
            said.extend(engine.feed(document[at : at + 1]))
    for engine, document, said in zip(engines, documents, told, strict=True):
        alone = Engine("auto", Tools(TOOLS))
        assert [*said, *engine.close()] == [*(each for char in document for each in alone.feed(char)), *alone.close()]
