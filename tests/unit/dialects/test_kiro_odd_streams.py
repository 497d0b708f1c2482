"""L23: what Kiro's streams leave open, figures that are none, and text that only begins as a call does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.answer import Answer, reply_whole
from dragoman.conformance.laws import still_world
from dragoman.dialects.kiro.quirks.leaks import LeakScan
from dragoman.model.blocks import Text, ToolCall
from dragoman.model.conversation import Conversation, Message, ToolSpec, Why
from dragoman.translate import Plan, plan
from dragoman.wire.eventstream import encode_event

CLIENTS = [name for name in registry.names() if name != "kiro"]
NAMES = ("edit", "read")


def planned(client: str) -> Plan:
    tools = tuple(ToolSpec(name, schema={"type": "object"}) for name in NAMES)
    asked = Conversation("claude-sonnet-4.5", (Message("user", (Text("go"),)),), tools=tools, stream=True)
    return plan(registry.get(client), registry.get("kiro"), asked)


def frame(kind: str, **body: Any) -> bytes:
    return encode_event(kind, json.dumps(body).encode())


def text(words: str) -> bytes:
    return frame("assistantResponseEvent", content=words, modelId="m")


def call(call_id: str, *, stop: bool) -> bytes:
    head = {"toolUseId": call_id, "name": "read"}
    told = frame("toolUseEvent", **head, input='{"path":"a"}')
    return told + frame("toolUseEvent", **head, stop=True) if stop else told


END = frame("contextUsageEvent", contextUsagePercentage=1.5)


# --- a call that gets no stop because the next begins


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("ends", [(False, True), (True, False), (False, False), (False, True, True)])
def test_l23_a_call_without_its_stop_is_not_completed(client: str, ends: tuple[bool, ...]) -> None:
    data = b"".join(call(f"t{at}", stop=stop) for at, stop in enumerate(ends)) + END
    made = planned(client)
    reply, notes = reply_whole(made, data, still_world())
    [choice] = reply.choices
    calls = [block.id for block in choice.blocks if isinstance(block, ToolCall)]
    assert len(calls) == sum(ends)
    assert choice.stop.why is Why.LENGTH
    assert [note.rule for note in notes].count("kiro.stream.open_call") == ends.count(False)
    answer = Answer(made, still_world())
    answer.feed(data)
    answer.close()
    assert answer.progress.stop is not None and answer.progress.stop.why is Why.LENGTH
    assert [note.rule for note in answer.notes].count("kiro.stream.open_call") == ends.count(False)


@pytest.mark.parametrize("client", CLIENTS)
def test_l23_calls_that_interleave_and_end_are_completed(client: str) -> None:
    pieces = [
        call("t0", stop=False),
        call("t1", stop=True),
        frame("toolUseEvent", toolUseId="t0", name="read", stop=True),
    ]
    reply, notes = reply_whole(planned(client), b"".join([*pieces, END]), still_world())
    assert sorted(block.id for block in reply.choices[0].blocks if isinstance(block, ToolCall)) == ["t0", "t1"]
    assert reply.choices[0].stop.why is Why.TOOL
    assert not [note for note in notes if "call" in note.rule]


# --- figures


@pytest.mark.parametrize("kind", ["contextUsageEvent", "metadataEvent", "meteringEvent", "messageMetadataEvent"])
@given(
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.just([])
)
def test_l23_no_figure_fails_an_answer(kind: str, value: Any) -> None:
    inside = dict.fromkeys(("outputTokens", "uncachedInputTokens", "contextUsagePercentage"), value)
    body = {"contextUsagePercentage": value, "tokenUsage": inside, "stopReason": value, "utteranceId": value}
    for told in (body, {**body, "tokenUsage": value}):
        data = text("Hello") + encode_event(kind, json.dumps(told).encode())
        reply, _ = reply_whole(planned("anthropic"), data, still_world())
        assert [block.text for block in reply.choices[0].blocks if isinstance(block, Text)] == ["Hello"]
        assert reply.usage is not None and min(reply.usage.input, reply.usage.output) >= 0


# --- text that begins as a call does


@pytest.mark.parametrize(
    "words",
    [
        "[Called edit on the file, as asked.",
        "[Called editor",
        "[Called nobody with args: {",
        "[Called edit with arguments: ",
        '[Called edit with args: {"path":"a"}] and it went well.',
        '[Called edit with args: {"path":"a"}',
        "<invoke name=nothing>",
        '<invoke name="other">',
        '<invoke name="edit">words',
        '<invoke name="edit"></invoke> was what I wrote',
        "<function_calls> are a thing",
    ],
)
def test_l23_text_that_cannot_be_a_call_is_not_held(words: str) -> None:
    answer = Answer(planned("anthropic"), still_world())
    held = not LeakScan(NAMES).feed(words)
    out = b"".join(answer.feed(text(letter)) for letter in f"Well. {words}")
    told = "".join(json.loads(line[6:])["delta"]["text"] for line in out.splitlines() if b"text_delta" in line)
    assert (told == f"Well. {words}") == held
    more = b"".join(answer.feed(text(letter)) for letter in "} more words, and then some.")
    told += "".join(json.loads(line[6:])["delta"]["text"] for line in more.splitlines() if b"text_delta" in line)
    assert told == f"Well. {words}}} more words, and then some."


@pytest.mark.parametrize(
    "words",
    [
        '[Called edit with args: {"path": "a } ]"}]',
        '[Called edit with args: {}]\n[Called read with args: {"a": {"b": 1}}]\n',
        '<function_calls>\n<invoke name="edit">\n<parameter name="path">a</parameter>\n</invoke>\n</function_calls>',
        '<invoke name="edit"><parameter name="path">a</parameter><parameter name="b">c</parameter></invoke>',
        "[Called edited something. [Called edit with args: {}]",
        "[Called edit with args: {}] then [Called edit with args: {}]",
    ],
)
def test_l23_calls_are_still_found(words: str) -> None:
    for size in (1, 3, 1000):
        pieces = [text(words[at : at + size]) for at in range(0, len(words), size)]
        reply, notes = reply_whole(planned("anthropic"), b"".join([*pieces, END]), still_world())
        calls = [block for block in reply.choices[0].blocks if isinstance(block, ToolCall)]
        assert calls and reply.choices[0].stop.why is Why.TOOL
        assert [note.rule for note in notes].count("kiro.stream.recovered") == len(calls)


@given(st.lists(st.sampled_from(["[Called ", "edit", " with args: {", "}", "]", '"', "<invoke name=\"edit\">", "</invoke>",
       "<parameter name=\"p\">", "</parameter>", "```", "x", " ", "\n"]), max_size=14), st.integers(1, 5))  # fmt: skip
def test_l23_nothing_is_lost_however_it_is_cut(parts: list[str], size: int) -> None:
    words = "".join(parts) or "x"
    whole, _ = reply_whole(planned("anthropic"), text(words) + END, still_world())
    cut = b"".join(text(words[at : at + size]) for at in range(0, len(words), size))
    pieces, _ = reply_whole(planned("anthropic"), cut + END, still_world())
    assert [(type(block), getattr(block, "text", "") or getattr(block, "arguments", "")) for block in whole.choices[0].blocks] == [
        (type(block), getattr(block, "text", "") or getattr(block, "arguments", "")) for block in pieces.choices[0].blocks
    ]  # fmt: skip
    if not any(isinstance(block, ToolCall) for block in whole.choices[0].blocks):
        assert "".join(block.text for block in whole.choices[0].blocks if isinstance(block, Text)) == words
