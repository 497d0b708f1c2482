"""The embedded model: arguments that fit a schema, calls of named tools, quoted results, thinking, limits."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli import main, sim
from dragoman.errors import LocalMisuse
from dragoman.model.conversation import StopReason
from dragoman.simulator.model import ModelPrompt, PromptTool, example_arguments, example_value, respond
from dragoman.simulator.response import BodyEnd, BodyPiece, Pause, apply_pace
from dragoman.simulator.script import (
    CutPoint,
    ExceptionPart,
    FramePart,
    ReasoningPart,
    ScriptPlayer,
    ScriptTurn,
    StreamPace,
    TextPart,
    ToolCallPart,
    WaitPart,
    load_script,
    parse_script,
)
from dragoman.wire import jsonio
from tests.unit.simulator.kiro_cases import body, user

_TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def fits(value: Any, schema: Any) -> bool:
    """A validator of its own, for the keywords that the strategies below use."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    typed = not kinds or any(
        isinstance(value, _TYPES[kind]) and (kind == "boolean") == isinstance(value, bool) for kind in kinds
    )
    return bool(
        typed
        and ("const" not in schema or value == schema["const"])
        and ("enum" not in schema or value in schema["enum"])
        and (not isinstance(value, str) or _string_fits(value, schema))
        and (isinstance(value, bool) or not isinstance(value, int | float) or _number_fits(value, schema))
        and (not isinstance(value, list) or _array_fits(value, schema))
        and (not isinstance(value, dict) or _object_fits(value, schema))
        and all(fits(value, branch) for branch in schema.get("allOf", []))
        and ("anyOf" not in schema or any(fits(value, branch) for branch in schema["anyOf"]))
    )


def _string_fits(value: str, schema: Any) -> bool:
    return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9))


def _number_fits(value: float, schema: Any) -> bool:
    step = schema.get("multipleOf")
    return bool(
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and (step is None or value % step == 0)
    )


def _array_fits(value: list[Any], schema: Any) -> bool:
    items = all(fits(item, schema.get("items", {})) for item in value)
    return items and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)


def _object_fits(value: dict[str, Any], schema: Any) -> bool:
    known = schema.get("properties", {})
    return set(schema.get("required", ())) <= set(value) and all(
        fits(item, known.get(k, {})) for k, item in value.items()
    )


def _bounded(kind: str, low: str, high: str) -> st.SearchStrategy[Any]:
    return st.tuples(st.integers(0, 20), st.integers(0, 20)).map(
        lambda two: {"type": kind, low: min(two), high: max(two)}
    )


_LEAVES: st.SearchStrategy[Any] = (
    st.sampled_from([{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")])
    | st.just({})
    | _bounded("string", "minLength", "maxLength")
    | _bounded("integer", "minimum", "maximum")
    | _bounded("number", "minimum", "maximum")
    | st.integers(-9, 9).map(lambda low: {"type": "integer", "exclusiveMinimum": low})
    | st.tuples(st.integers(-9, 9), st.integers(2, 9)).map(
        lambda two: {"type": "integer", "minimum": two[0], "multipleOf": two[1]}
    )
    | st.lists(st.integers() | st.text(max_size=3), min_size=1, max_size=3).map(lambda words: {"enum": words})
    | st.text(max_size=4).map(lambda word: {"const": word})
    | st.just({"type": ["null", "string"]})
)
_NAMES = st.text("abcdef", min_size=1, max_size=3)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(_NAMES, inner, max_size=3).flatmap(
        lambda known: st.lists(_NAMES, max_size=3, unique=True).map(
            lambda required: {"type": "object", "properties": known, **({"required": required} if required else {})}
        )
    )


_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: (
        _objects(inner)
        | inner.map(lambda items: {"type": "array", "items": items})
        | st.tuples(inner, st.integers(0, 3)).map(lambda two: {"type": "array", "items": two[0], "minItems": two[1]})
        | st.lists(inner, min_size=1, max_size=3).map(lambda branches: {"anyOf": branches})
    ),
    max_leaves=6,
)


@given(_SCHEMAS)
def test_an_example_fits_its_schema(schema: Any) -> None:
    assert fits(example_value(schema), schema)


_KEYWORDS = "type properties items anyOf required enum $ref pattern minItems minLength minimum a".split()  # noqa: SIM905


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda i: st.lists(i, max_size=3) | st.dictionaries(st.sampled_from(_KEYWORDS), i, max_size=4),
        max_leaves=12,
    )
)
def test_no_schema_whatever_stops_the_model(schema: Any) -> None:
    assert isinstance(example_arguments(schema if isinstance(schema, dict) else None), dict)


KNOWN: tuple[tuple[Any, Any], ...] = (
    ({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]}, {"b": 1}),
    ({"type": "object", "properties": {"a": {"type": "boolean"}}}, {"a": True}),
    ({"type": "object", "properties": {"when": {"type": "string", "format": "date"}}}, {"when": "2026-01-01"}),
    ({"type": "object", "properties": {"n": {"type": "string", "pattern": "^[0-9]+$"}}}, {"n": "1"}),
    ({"type": "object", "$defs": {"c": {"enum": ["x"]}}, "properties": {"a": {"$ref": "#/$defs/c"}}}, {"a": "x"}),
    ({"allOf": [{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["b"]}]}, {"a": 1, "b": "b"}),
    ({"type": "object", "properties": {"a": {"default": 7}}}, {"a": 7}),
    ({"type": "array", "prefixItems": [{"type": "integer"}]}, {}),
    (None, {}),
    ({}, {}),
)  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), KNOWN)
def test_known_schemas_give_known_arguments(schema: Any, value: Any) -> None:
    assert example_arguments(schema) == value


def test_an_array_of_unique_items_has_unlike_items() -> None:
    value = example_value({"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True})
    assert isinstance(value, list)
    assert len(set(map(str, value))) == 3


def test_a_schema_that_refers_to_itself_ends() -> None:
    node: Any = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    assert len(jsonio.encode(example_arguments(node))) < 1000


WEATHER = PromptTool(
    "get_weather", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)
CLOCK = PromptTool("clock", {"type": "object", "properties": {}})


def test_a_named_tool_is_called_with_arguments_that_fit() -> None:
    reply = respond(ModelPrompt(text="Please use get_weather now", tools=(CLOCK, WEATHER)))
    assert reply.parts == (TextPart("I will call get_weather."), ToolCallPart("get_weather", '{"city":"example city"}'))
    assert reply.stop is StopReason.TOOL


def test_two_named_tools_are_called_in_parallel_in_the_order_of_the_text() -> None:
    prompt = ModelPrompt(text="First use clock, then get_weather", tools=(WEATHER, CLOCK))
    assert [part.name for part in respond(prompt).parts if isinstance(part, ToolCallPart)] == ["clock", "get_weather"]


def test_without_parallel_calls_only_the_first_is_made() -> None:
    prompt = ModelPrompt(text="First use clock, then get_weather", tools=(WEATHER, CLOCK), parallel=False)
    assert [part.name for part in respond(prompt).parts if isinstance(part, ToolCallPart)] == ["clock"]


def test_arguments_written_after_the_name_are_used_as_they_are_written() -> None:
    reply = respond(ModelPrompt(text='get_weather {"city": "a } b", "n": 1.0} please', tools=(WEATHER,)))
    assert reply.parts[-1] == ToolCallPart("get_weather", '{"city": "a } b", "n": 1.0}')


def test_part_of_a_word_is_no_name() -> None:
    assert respond(ModelPrompt(text="forget_weather, clockwork", tools=(WEATHER, CLOCK))).stop is StopReason.END


def test_the_last_paragraph_is_what_is_asked() -> None:
    prompt = ModelPrompt(text="Your tools are clock and get_weather.\n\nCall clock", tools=(WEATHER, CLOCK))
    assert [part.name for part in respond(prompt).parts if isinstance(part, ToolCallPart)] == ["clock"]


def test_a_must_is_obeyed_without_a_name() -> None:
    assert respond(ModelPrompt(text="hello", tools=(WEATHER, CLOCK), must_call=True)).stop is StopReason.TOOL


def test_a_free_text_tool_gets_text() -> None:
    reply = respond(ModelPrompt(text="use shell", tools=(PromptTool("shell", None),)))
    assert reply.parts[-1] == ToolCallPart("shell", "example shell")


def test_results_are_quoted_and_not_answered_by_another_call() -> None:
    reply = respond(ModelPrompt(text="get_weather again", results=("21 degrees", "noon"), tools=(WEATHER,)))
    assert reply.stop is StopReason.END
    (part,) = reply.parts
    assert isinstance(part, TextPart)
    assert "21 degrees" in part.text
    assert "noon" in part.text


def test_thinking_comes_first_when_asked_for() -> None:
    assert isinstance(respond(ModelPrompt(text="hello", thinks=True)).parts[0], ReasoningPart)
    assert not any(isinstance(part, ReasoningPart) for part in respond(ModelPrompt(text="hello")).parts)


def test_an_output_schema_is_answered_by_json_that_fits() -> None:
    schema: Any = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (part,) = respond(ModelPrompt(text="hello", output=schema)).parts
    assert isinstance(part, TextPart)
    assert jsonio.decode(part.text) == {"n": 1}


def test_the_token_limit_cuts_the_text_and_says_so() -> None:
    reply = respond(ModelPrompt(text="hello " * 50, max_tokens=3))
    assert reply == respond(ModelPrompt(text="hello " * 50, max_tokens=3))
    assert (reply.parts, reply.stop) == ((TextPart("You said: he"),), StopReason.LENGTH)


def test_a_stop_sequence_cuts_the_text_and_is_named() -> None:
    reply = respond(ModelPrompt(text="one STOP two", stop=("two", "STOP")))
    assert (reply.parts, reply.stop, reply.sequence) == ((TextPart("You said: one "),), StopReason.SEQUENCE, "STOP")


def test_a_tool_with_a_name_full_of_signs_is_no_pattern() -> None:
    tool = PromptTool("a.b(c", {"type": "object"})
    assert respond(ModelPrompt(text="use a.b(c", tools=(tool,))).stop is StopReason.TOOL
    assert respond(ModelPrompt(text="use axb(c", tools=(tool,))).stop is StopReason.END
    assert re.escape(tool.name) != tool.name


# --- Scripts: what a file says, in which order it is played, and errors that name the place

FULL = """
then = "last"

[pace]
chunk = 5
delay = 0.5

[tokens]
access = ["a"]
lifetime = 2.5
uses = 3

[[turn]]
text = "Hello"
chunk = 1

[[turn]]
stop = "tool"
quirks = ["object_input"]
cut = { byte = 10, how = "reset" }
parts = [
  { reasoning = "hm" },
  { text = "I look." },
  { tool = "read", arguments = { path = "a" }, id = "t1" },
  { tool = "broken", arguments = '{"a":' },
  { wait = 0.1 },
  { event = "codeEvent", data = { content = "x" } },
  { exception = "ThrottlingException", message = "slow down", reason = "R" },
]

[[turn]]
status = [429, 503, 200]
retry_after = 1.5
message = "no"
"""


def test_a_full_script_says_what_it_says() -> None:
    script = parse_script(FULL)
    hello, rich, *refusals, last = script.turns
    assert hello == ScriptTurn(parts=(TextPart("Hello"),), chunk=1, delay=0.5)
    assert rich.parts == (
        ReasoningPart("hm"),
        TextPart("I look."),
        ToolCallPart("read", '{"path":"a"}', "t1"),
        ToolCallPart("broken", '{"a":'),
        WaitPart(0.1),
        FramePart("codeEvent", {"content": "x"}),
        ExceptionPart("ThrottlingException", "slow down", "R"),
    )
    assert (rich.stop, rich.cut, rich.quirks) == (
        StopReason.TOOL,
        CutPoint(byte=10, how="reset"),
        frozenset({"object_input"}),
    )
    assert [(turn.status, turn.message, turn.retry_after) for turn in refusals] == [(429, "no", 1.5), (503, "no", 1.5)]
    assert (last.status, last.parts) == (200, None)
    assert (script.tokens.access, script.tokens.lifetime, script.tokens.uses) == (["a"], 2.5, 3)


@pytest.mark.parametrize(
    ("then", "texts"),
    [("model", ["a", "b", None, None]), ("repeat", ["a", "b", "a", "b"]), ("last", ["a", "b", "b", "b"])],
)
def test_what_follows_the_last_turn(then: str, texts: list[str | None]) -> None:
    player = ScriptPlayer(parse_script(f'then = "{then}"\n[[turn]]\ntext = "a"\n[[turn]]\ntext = "b"'))
    turns = [player.next() for _ in texts]
    assert [turn.parts for turn in turns] == [None if text is None else (TextPart(text),) for text in texts]


def test_times_repeats_a_turn() -> None:
    assert len(parse_script("[[turn]]\nstatus = [500, 200]\ntimes = 3").turns) == 6


WRONG = (
    ("[[turn]]\ntxt = 'a'", r"s: turn\[0\]: there is no field 'txt' \(did you mean text"),
    ("[[turn]]\ntext = 'a'\n[[turn]]\nchunk = 'x'", r"s: turn\[1\]\.chunk: expected a whole number, got a string"),
    ("[[turn]]\nparts = [{ text = 'a' }, { text = 'a', tool = 'b' }]", r"s: turn\[0\]\.parts\[1\]: .*exactly one of"),
    ("[[turn]]\nparts = [{ wait = 'a' }]", r"s: turn\[0\]\.parts\[0\]\.wait: expected a number, got a string"),
    ("[[turn]]\nparts = [{ }]", r"s: turn\[0\]\.parts\[0\]: .*exactly one of"),
    ("[[turn]]\nparts = [{ text = 'a', arguments = { } }]", r"s: turn\[0\]\.parts\[0\]: there is no field 'arguments'"),
    ("[[turn]]\ntext = 'a'\nparts = []", r"s: turn\[0\]: .*must not have both"),
    ("[[turn]]\ncut = { how = 'end' }", r"s: turn\[0\]\.cut: a cut needs"),
    ("[[turn]]\ncut = { byte = 1, event = 1 }", r"s: turn\[0\]\.cut: a cut needs"),
    ("[[turn]]\ncut = { byte = -1 }", r"s: turn\[0\]\.cut\.byte: expected a whole number >= 0"),
    ("[[turn]]\ncut = { byte = 1, how = 'gently' }", r"s: turn\[0\]\.cut\.how: 'gently' is not allowed here"),
    ("[[turn]]\nstatus = 99", r"s: turn\[0\]\.status: expected a whole number >= 200"),
    ("[[turn]]\nchunk = 0", r"s: turn\[0\]\.chunk: expected a whole number >= 1"),
    ("[[turn]]\ntimes = 0", r"s: turn\[0\]\.times: expected a whole number >= 1"),
    ("[[turn]]\nquirks = ['odd']", r"s: turn\[0\]\.quirks: there is no quirk 'odd' \(known: bare_fragments"),
    ("[pace]\nwrite = -1", r"s: pace\.write: expected a whole number >= 0"),
    ("then = 'repeat'", r"s: then: 'repeat' needs at least one turn"),
    ("[[turn]\n", r"s is not valid TOML: .*line 1"),
)  # fmt: skip


@pytest.mark.parametrize(("text", "complaint"), WRONG)
def test_a_wrong_script_is_refused_by_naming_the_place(text: str, complaint: str) -> None:
    with pytest.raises(LocalMisuse, match=complaint):
        parse_script(text, "s")


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalMisuse, match=r"cannot read the script .*none\.toml"):
        load_script(tmp_path / "none.toml")


# --- Pieces of a body: pace, cuts and write sizes change what they say they change, and no byte more

_FRAMES = st.lists(st.binary(min_size=1, max_size=9), max_size=6)


def sent(pieces: Iterable[BodyPiece]) -> bytes:
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))


@given(_FRAMES, st.integers(0, 12), st.sampled_from([0.0, 0.1]))
def test_pace_and_write_size_keep_every_byte(frames: list[bytes], write: int, delay: float) -> None:
    pieces = list(apply_pace(frames, StreamPace(write=write, delay=delay), None))
    assert sent(pieces) == b"".join(frames)
    assert sum(isinstance(piece, Pause) for piece in pieces) == (len(frames) if delay else 0)


@given(_FRAMES, st.integers(1, 9))
def test_writes_have_their_size_except_the_last(frames: list[bytes], write: int) -> None:
    sizes = [len(piece) for piece in apply_pace(frames, StreamPace(write=write), None) if isinstance(piece, bytes)]
    assert all(size == write for size in sizes[:-1])
    assert all(size <= write for size in sizes[-1:])


@given(_FRAMES, st.integers(0, 60), st.integers(0, 5))
def test_a_cut_at_a_byte_sends_exactly_the_bytes_before_it(frames: list[bytes], byte: int, write: int) -> None:
    *pieces, last = apply_pace(frames, StreamPace(write=write), CutPoint(byte=byte, how="reset"))
    assert sent(pieces) == b"".join(frames)[:byte]
    assert last == BodyEnd("reset")


@given(_FRAMES, st.integers(0, 8))
def test_a_cut_at_an_event_sends_exactly_the_frames_before_it(frames: list[bytes], event: int) -> None:
    *pieces, last = apply_pace(frames, StreamPace(), CutPoint(event=event))
    assert pieces == frames[:event]
    assert last == BodyEnd("close")


# --- `dragoman sim` prints its address, serves requests, prints each exchange, and reports errors in sentences


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    sim.add_arguments(parser)
    return parser.parse_args(arguments)


def test_the_simulator_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    script = tmp_path / "script.toml"
    script.write_text('[[turn]]\ntext = "scripted"')
    code = (
        "import argparse, sys; from dragoman.cli import sim; p = argparse.ArgumentParser(); sim.add_arguments(p); "
        "sys.exit(sim.run(p.parse_args(sys.argv[1:])))"
    )
    command = [sys.executable, "-c", code, "kiro", "--port", "0", "--script", str(script), "--limit", "tool_count=3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        headers = {"authorization": "Bearer t"}
        good = httpx.post(f"{url}/generateAssistantResponse", json=body(), headers=headers)
        bad = httpx.post(f"{url}/generateAssistantResponse", json=body(user("")), headers=headers)
        missing = httpx.post(f"{url}/nowhere", json={}, headers=headers)
        process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=60)
    assert b"scripted" in good.content
    assert (bad.status_code, missing.status_code) == (200, 404)  # the default profile has no rule 6
    assert output.splitlines()[0] == "POST /generateAssistantResponse 200"
    assert "POST /nowhere 404  rule 0 (the operation must exist) at path" in output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["kyro"], "unknown dialect 'kyro'"),
        (["kiro", "--profile", "soft"], "unknown profile 'soft'"),
        (["kiro", "--host", "0.0.0.0"], "loopback only"),
        (["kiro", "--script", "/none.toml"], "cannot read the script"),
        (["kiro", "--limit", "tool_count=many"], "--limit tool_count: expected a whole number, got a string"),
        (["kiro", "--limit", "tools=1"], "--limit tools: there is no such limit. The limits are: tool_count, name,"),
    ],
)
def test_a_wrong_argument_is_a_sentence_and_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", *arguments]) == 2
    assert complaint in capsys.readouterr().err
