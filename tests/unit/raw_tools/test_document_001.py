"""Mission document 001: what its text and its algorithm say of sections, parts, states and limits."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import Any

import pytest

from dragoman.filters.raw_tools.outputs import HELD_LIMIT
from dragoman.raw_tools import EventToolCall, ToolCallParser, ToolCallTransformer
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE
from tests.unit.raw_tools.test_components import Heard, chunk, transformed

ARGUMENTS = '{"description": "Explore core C headers", "n": 1.50, "s": "\\u00e9 <|x|>"}'
CALL = f"{CB} functions.task:45 {AB} {ARGUMENTS} {CE}"


def heard(*pieces: str, field: str = "reasoning", tools: Any = None, **options: Any) -> Heard:
    return Heard(transformed([*(chunk({field: piece}) for piece in pieces), chunk({}, "stop")], tools, **options))


def written(chunks: Iterable[dict[str, Any]]) -> list[bytes]:
    """What goes out for each chunk."""
    output = io.BytesIO()
    transformer = ToolCallTransformer(output)
    told = []
    for each in chunks:
        transformer.transform(chunk(each))
        told.append(output.getvalue())
        output.seek(0)
        output.truncate()
    return told


def test_a_whole_section_in_one_chunk() -> None:
    assert heard(f"{SB} {CALL} {SE}").calls == [
        {"id": "functions.task:45", "name": "functions.task", "arguments": ARGUMENTS}
    ]


def test_text_before_and_after_the_section_goes_out_at_once() -> None:
    before, opened, called, after = written({"reasoning": each} for each in ("I look.", SB, CALL + SE, " Done."))
    assert json.loads(before[6:])["choices"][0]["delta"] == {"reasoning": "I look."}
    assert opened == b""
    assert b"tool_calls" in called
    assert json.loads(after[6:])["choices"][0]["delta"] == {"reasoning": " Done."}


def test_text_in_the_chunk_of_a_marker_stays_text() -> None:
    found = heard(f"I look.{SB}", CALL, f"{SE} Done.")
    assert (found.texts["reasoning"], len(found.calls)) == ("I look. Done.", 1)


@pytest.mark.parametrize("part", [f"{CB}{CE}", f"{CB} \n{CE}", CE])
def test_a_part_without_an_argument_marker_and_without_a_name_is_no_call(part: str) -> None:
    assert [call["id"] for call in heard(SB, part, CALL, SE).calls] == ["functions.task:45"]


def test_a_named_part_without_an_argument_marker_is_a_call_without_arguments() -> None:
    """001 leaves it out; the model did name a tool, and tools without parameters are called so."""
    [call] = heard(SB, f"{CB}functions.task:45{CE}", SE).calls
    assert call == {"id": "functions.task:45", "name": "functions.task", "arguments": "{}"}


def test_empty_parts_are_passed_over() -> None:
    assert len(heard(f"{SB} \n {CALL} \n {CALL.replace('45', '46')} \n {SE}").calls) == 2


def test_the_name_stands_before_the_last_colon() -> None:
    [call] = heard(f"{SB}{CB}functions.ns:task:7{AB}{{}}{CE}{SE}").calls
    assert (call["name"], call["id"]) == ("functions.ns:task", "functions.ns:task:7")


def test_a_header_without_a_colon_is_a_name_and_its_id_is_made() -> None:
    """001 leaves the id empty; an empty id is refused by every service, so one is made (D5)."""
    [call] = heard(f"{SB}{CB}task{AB}{{}}{CE}{SE}").calls
    assert (call["name"], bool(call["id"])) == ("task", True)


@pytest.mark.parametrize("arguments", ["{}", ARGUMENTS, '{"a": [1, {"b": null}]}', '{"a":1e400}'])
def test_arguments_are_all_that_stands_after_the_marker(arguments: str) -> None:
    [call] = heard(SB, f"{CB}functions.task:0{AB}", *arguments, CE, SE).calls
    assert call["arguments"] == arguments


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content", "content"])
def test_calls_are_read_from_each_text_of_a_delta(field: str) -> None:
    assert len(heard(SB, CALL, SE, field=field).calls) == 1


def test_after_the_section_a_second_one_is_read() -> None:
    found = heard(SB, CALL, SE, " and ", SB, CALL.replace("45", "46"), SE)
    assert [call["id"] for call in found.calls] == ["functions.task:45", "functions.task:46"]
    assert found.texts["reasoning"].strip() == "and"


def test_over_a_megabyte_what_is_held_goes_out_and_the_next_section_is_read() -> None:
    long = f'{CB}functions.task:0{AB}{{"a": "{"x" * HELD_LIMIT}"}}{CE}'
    found = heard(SB, long, SE, SB, CALL, SE, mode="buffered")
    assert [call["id"] for call in found.calls] == ["functions.task:45"]
    assert "x" * HELD_LIMIT in found.texts["reasoning"]


def test_a_parser_gives_each_call_the_metadata_of_its_chunk() -> None:
    parser = ToolCallParser(mode="buffered")
    events = [event for piece in (SB, CALL, SE) for event in parser.process(chunk({"reasoning": piece}))]
    [found] = [event for event in events if event.type is EventToolCall]
    meta = found.metadata
    assert (meta.id, meta.model, meta.created) == ("chatcmpl-1", "kimi-k2", 7)
    assert found.tool_call is not None
    assert (found.tool_call.id, found.tool_call.arguments) == ("functions.task:45", ARGUMENTS)
