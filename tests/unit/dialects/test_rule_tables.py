"""Every rule is declared once, with its evidence and severity; the code and the page agree with the tables."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.agent import BedrockClient, BedrockResponseError
from dragoman.cli.check import table_of
from dragoman.dialects.kiro.rules import EVIDENCE
from dragoman.dialects.kit.faults import FaultTable, error_response
from dragoman.dialects.kit.values import ExtraFields, merge_fields
from dragoman.dialects.rulebook import Rulebook
from dragoman.errors import Fault, MissingField
from dragoman.model.blocks import Extra
from dragoman.simulator.kiro.rules import RULES
from dragoman.wire import jsonio
from dragoman.wire.eventstream import encode_event

SOURCE = Path(registry.__file__).parent
PAGE = Path(__file__).parents[3] / "docs" / "checks.md"
DIALECTS = ["anthropic", "openai", "responses", "bedrock", "gemini", "kiro"]


def named(dialect: str) -> Iterator[str]:
    """The rule names that the code of a dialect uses, short; those of streams with or without `stream.`."""
    names = ("shapes.py", "rule")
    for file in files(dialect):
        if any(name in file.name for name in names):
            for node in ast.walk(ast.parse(file.read_text())):
                yield from constants(node)


def files(dialect: str) -> Iterator[Path]:
    """The code of a dialect, with the rules that it has from the kit; without the table of rules."""
    yield from (file for file in (SOURCE / dialect).glob("*.py") if file.name != "rule_table.py")
    shared = {"openai": "openai_rules.py", "responses": "openai_rules.py", "bedrock": "shapes.py"}
    if dialect in shared:
        yield SOURCE / "kit" / shared[dialect]


def constants(node: ast.AST) -> Iterator[str]:
    """Names in calls of `breach`, in tuples that are yielded, and in variables called `rule`."""
    expression: ast.AST | None = None
    match node:
        case ast.Call(func=ast.Attribute(attr="breach" | "_breach") | ast.Name(id="breach"), args=[first, *_]):
            expression = first
        case ast.Yield(value=ast.Tuple(elts=[first, _, *_])):
            expression = first
        case ast.Assign(targets=[ast.Name(id="rule")], value=value):
            expression = value
        case _:
            pass
    if expression is not None:
        parts = list(ast.walk(expression))
        skipped = {each for part in parts if isinstance(part, ast.IfExp) for each in ast.walk(part.test)}
        skipped |= {each for part in parts if isinstance(part, ast.JoinedStr) for each in ast.walk(part)}
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and part not in skipped:
                yield part.value


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_code_uses_no_rule_that_is_not_declared(dialect: str) -> None:
    declared = {rule.name.removeprefix(f"{dialect}.") for rule in registry.get(dialect).codec.rules()}
    used = set(named(dialect))
    assert len(used) > 30
    assert {name for name in used if not {name, f"stream.{name}"} & declared} == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_rule_is_declared_that_the_code_does_not_use(dialect: str) -> None:
    text = "".join(file.read_text() for file in files(dialect))
    for rule in registry.get(dialect).codec.rules():
        short = rule.name.removeprefix(f"{dialect}.")
        assert f'"{short}"' in text or f'"{short.removeprefix("stream.")}"' in text, rule.name


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_rule_without_evidence_is_advice(dialect: str) -> None:
    rules = registry.get(dialect).codec.rules()
    assert [rule.name for rule in rules if rule.evidence == "inferred" and rule.severity != "advice"] == []
    assert all(rule.sentence and rule.name.startswith(f"{dialect}.") for rule in rules)


def test_a_rule_that_is_not_declared_cannot_be_broken() -> None:
    with pytest.raises(KeyError):
        Rulebook("x", {"a": ("observed", "error", "words")}).breach("b", "")


def test_the_page_holds_the_tables() -> None:
    """docs/checks.md: written by `dragoman check --dialect D --rules`, and for the simulator by hand."""
    text = PAGE.read_text()
    for dialect in DIALECTS:
        assert "\n".join(table_of(registry.get(dialect))) in text, f"dragoman check --dialect {dialect} --rules"
    for rule in RULES:
        assert f"| {rule.number} | {rule.title} | {EVIDENCE[rule.grade]} |" in text


# --- an upstream's call without a usable id or name raises the typed violation, in every
# dialect

BLANK: list[Any] = [
    "",
    " ",
    "\t",
    "\n",
    " \r\n",
    "\u00a0",
    "\u2003",
    "\u3000",
    "\u200b",
    "\ufeff",
    "\u2028",
    "\x00",
    None,
    7,
    [],
    {},
]
NAMED = ("toolUseId", "name")


def use(field: str, value: Any) -> dict[str, Any]:
    return {"toolUseId": "t1", "name": "get", "input": {}} | {field: value}


def failure(frames: bytes, source: str, target: str = "anthropic") -> str:
    """The violation in a stream, which ends with the client's error."""
    stream = dragoman.stream_translator(source=source, target=target)
    out = stream.feed(frames) + stream.close()
    assert stream.error is not None
    assert b"tool_use" not in out
    return str(stream.error)


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("value", BLANK)
def test_a_whole_bedrock_reply(field: str, value: Any) -> None:
    content = [{"toolUse": use(field, value)}]
    reply = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use", "usage": {}}
    with pytest.raises(BedrockResponseError) as raised:
        BedrockClient().parse_tool_use(reply)
    assert raised.value.field == field
    with pytest.raises(MissingField, match=field):
        dragoman.translate_reply(reply, source="bedrock", target="anthropic")


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("value", BLANK)
@pytest.mark.parametrize("target", ["anthropic", "openai", "bedrock"])
def test_a_bedrock_stream(field: str, value: Any, target: str) -> None:
    frames = encode_event("messageStart", b'{"role":"assistant"}')
    start = {"contentBlockIndex": 0, "start": {"toolUse": use(field, value)}}
    frames += encode_event("contentBlockStart", jsonio.encode(start))
    frames += encode_event("contentBlockStop", b'{"contentBlockIndex":0}')
    frames += encode_event("messageStop", b'{"stopReason":"tool_use"}')
    assert field in failure(frames, "bedrock", target)


@pytest.mark.parametrize("call", [None, 3, "text", []])
def test_a_bedrock_call_that_is_no_object(call: Any) -> None:
    reply = {"output": {"message": {"role": "assistant", "content": [{"toolUse": call}]}}, "stopReason": "tool_use"}
    with pytest.raises(MissingField, match="toolUse"):
        dragoman.translate_reply(reply, source="bedrock", target="anthropic")
    frames = encode_event("messageStart", b'{"role":"assistant"}')
    start = jsonio.encode({"contentBlockIndex": 0, "start": {"toolUse": call}})
    assert "toolUse" in failure(frames + encode_event("contentBlockStart", start), "bedrock")


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("value", BLANK)
@pytest.mark.parametrize("target", ["anthropic", "openai", "kiro"])
def test_a_kiro_stream(field: str, value: Any, target: str) -> None:
    frames = encode_event("toolUseEvent", jsonio.encode({**use(field, value), "input": "{}", "stop": True}))
    assert field in failure(frames, "kiro", target)
    with pytest.raises(MissingField, match=field):
        dragoman.translate_reply(frames, source="kiro", target="anthropic")


@pytest.mark.parametrize("missing", [{}, {"toolUseId": ""}, {"toolUseId": None}, {"toolUseId": " "}])
def test_a_second_kiro_call_without_an_id_does_not_grow_the_first(missing: dict[str, Any]) -> None:
    first = {"toolUseId": "t1", "name": "get", "input": "{"}
    second = {"name": "put", "input": "{}", "stop": True} | missing
    frames = encode_event("toolUseEvent", jsonio.encode(first)) + encode_event("toolUseEvent", jsonio.encode(second))
    stream = dragoman.stream_translator(source="kiro", target="anthropic")
    stream.feed(frames)
    stream.close()
    assert "toolUseId" in str(stream.error)


def test_bare_fragments_of_a_kiro_call_still_belong_to_it() -> None:
    """Document 002: `{input}` and `{stop: true}` have no id of their own."""
    payloads = [{"name": "edit", "toolUseId": "t1"}, {"input": '{"a":1}'}, {"stop": True}]
    frames = b"".join(encode_event("toolUseEvent", jsonio.encode(each)) for each in payloads)
    reply = dragoman.translate_reply(frames, source="kiro", target="anthropic").body
    assert reply["content"] == [{"type": "tool_use", "id": "t1", "name": "edit", "input": {"a": 1}}]


OPENAI = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}


def replies(name: Any) -> list[tuple[str, dict[str, Any]]]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    item = {"type": "function_call", "id": "fc", "call_id": "c1", "name": name, "arguments": "{}"}
    parts = [{"functionCall": {"name": name, "args": {}}}]
    block = {"type": "tool_use", "id": "t1", "name": name, "input": {}}
    return [
        ("openai", {**OPENAI, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}),
        ("responses", {"id": "r", "object": "response", "status": "completed", "model": "m", "output": [item]}),
        ("gemini", {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}),
        ("anthropic", {"id": "m", "type": "message", "role": "assistant", "content": [block], "usage": {}}),
    ]


@pytest.mark.parametrize("name", BLANK)
def test_d5_a_missing_name_raises_in_every_dialect(name: Any) -> None:
    for source, reply in replies(name):
        with pytest.raises(MissingField, match="name"):
            dragoman.translate_reply(reply, source=source, target="bedrock")


@pytest.mark.parametrize("blank", [" ", "\u00a0", "\u200b"])
def test_d5_a_blank_id_is_a_missing_one(blank: str) -> None:
    """OpenAI's and Gemini's calls may lack an id: a legal one is made, with a note."""
    call = {"index": 0, "id": blank, "type": "function", "function": {"name": "get", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = {**OPENAI, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    done = dragoman.translate_reply(whole, source="openai", target="anthropic")
    assert "ids.minted" in [note.rule for note in done.notes]
    chunk = {**OPENAI, "object": "chat.completion.chunk"}
    chunk["choices"] = [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]
    stream = dragoman.stream_translator(source="openai", target="anthropic")
    stream.feed(b"data: " + jsonio.encode(chunk) + b"\n\ndata: [DONE]\n\n")
    stream.close()
    assert stream.error is None
    assert "ids.minted" in [note.rule for note in stream.notes]
    parts = [{"functionCall": {"id": blank, "name": "get", "args": {}}}]
    gemini = {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
    noted = dragoman.translate_reply(gemini, source="gemini", target="anthropic").notes
    assert "ids.minted" in [note.rule for note in noted]


# --- shared by dialects: the precedence of extra fields, and the table of faults


def test_a_kept_field_wins_and_objects_are_merged() -> None:
    body = merge_fields({"a": 1, "b": {"known": 1, "both": 1}}, {"a": 2, "b": {"both": 2, "more": 2}, "c": 2})
    assert body == {"a": 2, "b": {"known": 1, "both": 2, "more": 2}, "c": 2}


def test_only_its_own_family_writes_kept_fields_back() -> None:
    extra_fields = ExtraFields("ours")
    fields = {"a": 1, "~word": 2, "../outer": 3}
    assert extra_fields.with_extra({}, Extra("ours", fields)) == {"a": 1}
    assert (
        extra_fields.with_extra({}, Extra("theirs", fields))
        == {}
        == dict(extra_fields.own_fields(Extra("theirs", fields)))
    )


def test_a_type_is_read_as_its_first_kind() -> None:
    table = FaultTable({"invalid": ("bad", 400), "context_full": ("bad", 400), "server": ("broken", 500)})
    assert (table.by_type("bad"), table.by_type("new")) == ("invalid", None)
    assert table.type_of(Fault("server", "", code="bad")) == "broken"
    assert [table.by_status(status) for status in (418, 429, 599)] == ["invalid", "rate_limit", "server"]


def test_a_refusal_has_retry_after_in_whole_seconds() -> None:
    response = error_response(Fault("rate_limit", "", retry_after=1.2), 429, b"{}", ("x-more", "1"))
    assert response.headers == (("content-type", "application/json"), ("x-more", "1"), ("retry-after", "2"))
