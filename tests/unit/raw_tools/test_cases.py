"""The tricky cases of raw tool calls (`cases.py`), each cut at every place."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import pytest

from dragoman.filters.raw_tools import TABLES, RawTools
from dragoman.filters.raw_tools.outputs import CallEnded, CallStarted, Channel, EngineNote, TextOutput
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT
from dragoman.model.conversation import StopReason
from dragoman.model.filter import Facts, Notes
from dragoman.raw_tools import EventToolCall, ToolCallParser, ToolCallTransformer
from tests.unit.raw_tools.cases import CASES, Case
from tests.unit.raw_tools.renderers import AT_START, BY_NAME_ONLY, RENDER, CallToWrite
from tests.unit.raw_tools.samples import (
    AB,
    CB,
    CE,
    REASONING,
    SB,
    SE,
    TEXT,
    TOOLS,
    Call,
    FilteredResponse,
    all_cuts,
    call,
    channel_cuts,
    conversation,
    outputs,
    run_filter,
    section,
    stream,
)
from tests.unit.raw_tools.test_components import ClientStream, chunk, transformed


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
@pytest.mark.parametrize(("choice", "interleaves"), [("auto", True), ("auto", False), ("kimi", True)])
def test_a_tricky_case_is_read_correctly_under_every_cut(case: Case, choice: str, interleaves: bool) -> None:
    filter_ = RawTools(choice, interleaves=interleaves)
    request = conversation(case.tools)
    for pieces in channel_cuts(case.content):
        filtered = run_filter(stream(pieces, case.finish), filter_, request)
        assert filtered.calls == list(case.calls), pieces
        assert filtered.text() == _text_of(case, choice), pieces
        assert filtered.text(REASONING) == case.reasoning, pieces
        assert filtered.why is case.why, pieces


def _text_of(case: Case, choice: str) -> str:
    return case.text if case.auto_text is None or choice != "auto" else case.auto_text


NO_TOOLS = [
    (section(call("functions.task:1", "{}")), Call("functions.task:1", "task", "{}")),
    (section(call("call_1", "{}")), Call("functions.call_1:0", "call_1", "{}")),
]


@pytest.mark.parametrize(("text", "expected"), NO_TOOLS)
def test_without_declared_tools_only_a_named_table_parses(text: str, expected: Call) -> None:
    """The name comes without `functions.`; where the request declares no tools `auto` parses nothing."""
    request = conversation(())
    for pieces in channel_cuts([(TEXT, text)]):
        filtered = run_filter(stream(pieces), RawTools("kimi"), request)
        assert (filtered.calls, filtered.text(), filtered.why) == ([expected], "", StopReason.TOOL)
    assert RawTools("auto").forward(request, Notes(), Facts()) == (request, None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
def test_a_tricky_case_is_noted_the_same_under_every_cut(case: Case) -> None:
    rules = {
        run_filter(stream(pieces, case.finish), None, conversation(case.tools)).rules
        for pieces in channel_cuts(case.content)
    }
    assert len(rules) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
def test_buffered_mode_reads_the_same_except_calls_that_were_cut_off(case: Case) -> None:
    for pieces in channel_cuts(case.content):
        filtered = run_filter(stream(pieces, case.finish), RawTools(mode="buffered"), conversation(case.tools))
        assert filtered.calls == [call for call in case.calls if call.complete or case.finish is not StopReason.LENGTH]
        assert (filtered.text(), filtered.text(REASONING)) == (_text_of(case, "auto"), case.reasoning)


def test_calls_stand_where_they_were_written() -> None:
    text = f"a {section(call('functions.bash:0', '{}'))} b"
    filtered = run_filter(stream([(TEXT, text)]), RawTools(interleaves=False))
    assert filtered.content == ((TEXT, "a "), Call("functions.bash:0", "bash", "{}"), (TEXT, " b"))


@pytest.mark.parametrize("size", [60_000, 8_000_000])
def test_long_arguments_come_whole_and_nothing_of_them_is_kept(size: int) -> None:  # case 31
    from dragoman.filters.raw_tools import Engine
    from dragoman.filters.raw_tools.outputs import Arguments

    engine = Engine("auto")
    engine.feed(f'{SB}<|tool_call_begin|>functions.write:0{AB}{{"content":"')
    piece = "0123456789abcdef" * 64
    sent = 0
    for _ in range(size // len(piece)):
        outputs = engine.feed(piece)
        assert outputs == [Arguments(piece)]
        sent += len(piece)
    assert engine.feed('"}<|tool_call_end|>') and engine.completed_calls == 1
    assert engine.peak < 64


@pytest.mark.parametrize("choice", ["auto", "kimi"])
def test_thinking_that_holds_a_section_and_is_closed_after_it(choice: str) -> None:  # case 36
    text = f"<think>plan{section(call('functions.bash:0', '{}'))}</think>done"
    for pieces in channel_cuts([(TEXT, text)]):
        filtered = run_filter(stream(pieces), RawTools(choice, think_tags=True))
        assert (filtered.text(REASONING), filtered.calls, filtered.text()) == (
            "plan",
            [Call("functions.bash:0", "bash", "{}")],
            "done",
        )
        assert filtered.why is StopReason.TOOL


def test_text_stays_in_the_field_it_came_in() -> None:
    texts: list[tuple[Channel, str]] = [(REASONING, "a <|tool"), (TEXT, "b <|tool"), (REASONING, "c"), (TEXT, "d")]
    for pieces in channel_cuts(texts):
        filtered: FilteredResponse = run_filter(stream(pieces))
        assert (filtered.text(REASONING), filtered.text()) == ("a <|toolc", "b <|toold")


# --- Document 001 of docs/mission.md: what its text and its algorithm say of sections, parts, states and limits

ARGUMENTS = '{"description": "Explore core C headers", "n": 1.50, "s": "\\u00e9 <|x|>"}'
CALL = f"{CB} functions.task:45 {AB} {ARGUMENTS} {CE}"


def client_stream(*pieces: str, field: str = "reasoning", tools: Any = None, **options: Any) -> ClientStream:
    return ClientStream(
        transformed([*(chunk({field: piece}) for piece in pieces), chunk({}, "stop")], tools, **options)
    )


def written(chunks: Iterable[dict[str, Any]]) -> list[bytes]:
    """Return what is sent for each chunk."""
    output = io.BytesIO()
    transformer = ToolCallTransformer(output)
    rows = []
    for each in chunks:
        transformer.transform(chunk(each))
        rows.append(output.getvalue())
        output.seek(0)
        output.truncate()
    return rows


def test_a_whole_section_in_one_chunk() -> None:
    assert client_stream(f"{SB} {CALL} {SE}").calls == [
        {"id": "functions.task:45", "name": "functions.task", "arguments": ARGUMENTS}
    ]


def test_text_before_and_after_the_section_is_sent_at_once() -> None:
    before, opened, called, after = written({"reasoning": each} for each in ("I look.", SB, CALL + SE, " Done."))
    assert json.loads(before[6:])["choices"][0]["delta"] == {"reasoning": "I look."}
    assert opened == b""
    assert b"tool_calls" in called
    assert json.loads(after[6:])["choices"][0]["delta"] == {"reasoning": " Done."}


def test_text_in_the_chunk_of_a_marker_stays_text() -> None:
    found = client_stream(f"I look.{SB}", CALL, f"{SE} Done.")
    assert (found.texts["reasoning"], len(found.calls)) == ("I look. Done.", 1)


@pytest.mark.parametrize("part", [f"{CB}{CE}", f"{CB} \n{CE}", CE])
def test_a_part_without_an_argument_marker_and_without_a_name_is_no_call(part: str) -> None:
    assert [call["id"] for call in client_stream(SB, part, CALL, SE).calls] == ["functions.task:45"]


def test_a_named_part_without_an_argument_marker_is_a_call_without_arguments() -> None:
    """001 leaves it out; the model did name a tool, and tools without parameters are called so."""
    [call] = client_stream(SB, f"{CB}functions.task:45{CE}", SE).calls
    assert call == {"id": "functions.task:45", "name": "functions.task", "arguments": "{}"}


def test_empty_parts_are_passed_over() -> None:
    assert len(client_stream(f"{SB} \n {CALL} \n {CALL.replace('45', '46')} \n {SE}").calls) == 2


def test_the_name_stands_before_the_last_colon() -> None:
    [call] = client_stream(f"{SB}{CB}functions.ns:task:7{AB}{{}}{CE}{SE}").calls
    assert (call["name"], call["id"]) == ("functions.ns:task", "functions.ns:task:7")


def test_a_header_without_a_colon_is_a_name_and_its_id_is_made() -> None:
    """001 leaves the id empty; an empty id is refused by every service, so one is made.

    See docs/decisions/content.md#d5.
    """
    [call] = client_stream(f"{SB}{CB}task{AB}{{}}{CE}{SE}").calls
    assert (call["name"], bool(call["id"])) == ("task", True)


@pytest.mark.parametrize("arguments", ["{}", ARGUMENTS, '{"a": [1, {"b": null}]}', '{"a":1e400}'])
def test_arguments_are_all_that_stands_after_the_marker(arguments: str) -> None:
    [call] = client_stream(SB, f"{CB}functions.task:0{AB}", *arguments, CE, SE).calls
    assert call["arguments"] == arguments


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "content"])
def test_calls_are_read_from_each_text_of_a_delta(field: str) -> None:
    assert len(client_stream(SB, CALL, SE, field=field).calls) == 1


def test_after_the_section_a_second_one_is_read() -> None:
    found = client_stream(SB, CALL, SE, " and ", SB, CALL.replace("45", "46"), SE)
    assert [call["id"] for call in found.calls] == ["functions.task:45", "functions.task:46"]
    assert found.texts["reasoning"].strip() == "and"


def test_over_a_megabyte_the_buffer_is_sent_and_the_next_section_is_read() -> None:
    long = f'{CB}functions.task:0{AB}{{"a": "{"x" * BUFFER_LIMIT}"}}{CE}'
    found = client_stream(SB, long, SE, SB, CALL, SE, mode="buffered")
    assert [call["id"] for call in found.calls] == ["functions.task:45"]
    assert "x" * BUFFER_LIMIT in found.texts["reasoning"]


def test_a_parser_gives_each_call_the_metadata_of_its_chunk() -> None:
    parser = ToolCallParser(mode="buffered")
    events = [event for piece in (SB, CALL, SE) for event in parser.process(chunk({"reasoning": piece}))]
    [found] = [event for event in events if event.type is EventToolCall]
    meta = found.metadata
    assert (meta.id, meta.model, meta.created) == ("chatcmpl-1", "kimi-k2", 7)
    assert found.tool_call is not None
    assert (found.tool_call.id, found.tool_call.arguments) == ("functions.task:45", ARGUMENTS)


# --- What does count in `auto` (docs/decisions/raw_tools.md#d20): a call is recovered, and the text before it is kept
# byte for byte

_BY_NAME = {table.name: table for table in TABLES}
_FOUND = [table for table in RENDER if table not in BY_NAME_ONLY | AT_START]
SPECIALS = [table for table in _FOUND if _BY_NAME[table].special]
TAGS = [table for table in _FOUND if not _BY_NAME[table].special]
every_special = pytest.mark.parametrize("table", SPECIALS)
every_tag = pytest.mark.parametrize("table", TAGS)


def example(table: str, name: str = "bash", key: str = "command") -> str:
    return RENDER[table]([CallToWrite(name, {key: "ls"}, {})])


def is_call(document: str, shown: str, name: str = "bash") -> None:
    for cut in all_cuts(document):
        emitted = outputs(cut)
        assert [each.name for each in emitted if isinstance(each, CallStarted)] == [name], cut
        assert [each.complete for each in emitted if isinstance(each, CallEnded)] == [True], cut
        assert "".join(each.text for each in emitted if isinstance(each, TextOutput)) == shown, cut


def is_text(document: str) -> None:
    for cut in all_cuts(document):
        emitted = outputs(cut)
        assert not any(isinstance(each, CallStarted) for each in emitted), cut
        assert "".join(each.text for each in emitted if isinstance(each, TextOutput)) == document, cut


@every_special
@pytest.mark.parametrize(
    "before",
    [
        "",
        "\n",
        "   ",
        "I will look ",
        "I will look. ",
        "I will look:\n\n",
        "a 24\" screen ",
        "It's so. ",
        'It is "so" ',
        "the ` key ",
        "`code` ",
        "- ",
        "* ",
        "1. ",
        "> ",
        "> As you said.",
        "> As you said.\n\n",
        " - ",
        "\n ",
        "- I look at it ",
        "- one\n- two: ",
        "a    ",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "| ",
        "    ",
        "\t",
        "+ ",
        "```sh\nls\n```\n",
        "```sh\nls\n```",
        "```\n",
        "```\nnever closed\n",
        "~~~text\n",
        "Look:\n~~~text\nls\n",
        "````\n```\n```\n",
        "`<tool_call>` it is:\n",
        "</think>",
    ],
)  # fmt: skip
def test_a_special_token_section_counts_whatever_stands_before_it(table: str, before: str) -> None:
    shown = before.removesuffix("</think>")
    if before == "</think>":
        emitted = outputs([before + example(table)])
        assert sum(isinstance(each, CallStarted) for each in emitted) == 1
        return
    is_call(before + example(table), shown)


@every_special
def test_in_an_open_code_block_it_counts_only_for_a_declared_tool_with_its_arguments(table: str) -> None:
    is_text("```\n" + example(table, "unheard_of"))
    is_text("```\n" + example(table, key="other"))
    is_text("```\n" + example(table)[: example(table).index("ls") + 1])


@every_special
def test_a_special_token_section_of_an_undeclared_tool_is_a_call_with_a_note(table: str) -> None:
    is_call("I look.\n" + example(table, "unheard_of"), "I look.\n", "unheard_of")
    emitted = outputs(["I look.\n" + example(table, "unheard_of")])
    assert any(isinstance(each, EngineNote) for each in emitted)


@every_tag
@pytest.mark.parametrize(
    "before",
    [
        "",
        "\n",
        "  ",
        "I will check.",
        "I will check. ",
        "I will check.  ",
        "Sure! ",
        "Why not? ",
        "確認します。",
        "I will check:\n\n",
        "```sh\nls\n```",
        'It\'s `odd` and "quoted".\n',
        "```sh\nls\n```\n",
        "`<tool_call>` it is:\n",
        "</think>",
    ],
)
def test_a_tag_counts_at_a_line_start_and_after_a_sentence(table: str, before: str) -> None:
    is_call(before + example(table), before.removesuffix("</think>"))


@pytest.mark.parametrize("table", [table for table in _FOUND if _BY_NAME[table].section_begin])
def test_without_its_section_a_call_counts_only_when_it_is_whole(table: str) -> None:
    """Closed, for a declared tool, with the arguments that its schema requires; else all of its text comes back."""
    shipped = _BY_NAME[table]
    whole = example(table)
    begin = min((whole.find(mark) for mark in shipped.call_begin if mark in whole), default=-1)
    finish = max((whole.rfind(mark) + len(mark) for mark in shipped.call_end if mark in whole), default=-1)
    if begin < 0 or finish < 0:
        pytest.skip("a call of this format has no markers of its own")
    is_call("I look.\n" + whole[begin:finish], "I look.\n")
    missing = example(table, key="other")
    begin = min(missing.find(mark) for mark in shipped.call_begin if mark in missing)
    finish = max(missing.rfind(mark) + len(mark) for mark in shipped.call_end if mark in missing)
    is_text("I look.\n" + missing[begin:finish] + "\nThat is it.")


@every_special
def test_residue_of_a_marker_beside_a_native_call_is_removed(table: str) -> None:
    """Hosted services parse the call and leave a marker of it in the text."""
    shipped = _BY_NAME[table]
    for marker in (*shipped.section_end, *shipped.call_end, *shipped.section_begin):
        document = f"Done. {marker}"
        for cut in all_cuts(document):
            emitted = outputs(cut, native="call_1")
            assert "".join(each.text for each in emitted if isinstance(each, TextOutput)).rstrip() == "Done.", cut
            assert [each.rule for each in emitted if isinstance(each, EngineNote)] == ["residue"], cut
        fenced = f"```\n{marker}\n```\n"
        assert outputs([fenced], native="call_1") == [TextOutput(fenced, TEXT)]


@pytest.mark.parametrize("table", RENDER)
def test_a_named_table_reads_a_request_without_tools(table: str) -> None:
    filtered = run_filter(stream([(TEXT, example(table))]), RawTools(table), conversation(tools=()))
    assert [each.name for each in filtered.calls] == ["bash"]


@pytest.mark.parametrize("table", RENDER)
def test_a_named_table_reads_quotations_too(table: str) -> None:
    for before, after in [("", "")] if table in AT_START else [("- `", ""), ("```\n", "\n```")]:
        emitted = outputs([before + example(table) + after], table, TOOLS)
        assert [each.name for each in emitted if isinstance(each, CallStarted)] == ["bash"]
