"""Mission document 002: its own examples, word for word, and its streams chunk by chunk."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from dragoman.answer import Answer
from dragoman.conformance.laws import still_world
from tests.anthropic_client import sse
from tests.unit.dialects.kiro_talk import (
    MODEL,
    WEATHER,
    ask,
    assistant,
    call,
    current,
    frames,
    history,
    result,
    results,
    sent,
    state,
    text,
    usage,
    use,
    user,
)

ARN = "arn:aws:codewhisperer:us-east-1:123456789012:profile/ABCDEFGHIJKL"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
EDIT = {"name": "edit", "description": "Edit a file.", "input_schema": SCHEMA}
DONE = "File edited successfully"


def told(*chunks: Any, model: str = MODEL) -> list[list[Any]]:
    """The Anthropic events that each Kiro chunk gives, and last those that the end of the stream gives."""
    answer = Answer(sent(ask(user("hi"), model=model)).plan, still_world())
    return [*(sse(answer.feed(frames(each))) for each in chunks), sse(answer.close())]


def kinds(*chunks: Any) -> list[list[str]]:
    return [[event["type"] for event in events] for events in told(*chunks)]


# --- requests


def test_the_whole_request_has_the_structure_of_the_document() -> None:
    body = ask(user("Hello"), assistant("Hi!"), user("Edit it."), system="Be kind.", tools=[EDIT])
    request = sent(body, profile_arn=ARN)
    named = {"modelId": "claude-sonnet-4.5", "origin": "AI_EDITOR"}
    tool = {"name": "edit", "description": "Edit a file.", "inputSchema": {"json": SCHEMA}}
    identity = state(request)["conversationId"]
    assert request.body == {
        "conversationState": {
            "chatTriggerType": "MANUAL",
            "conversationId": identity,
            "history": [
                {"userInputMessage": {"content": "Be kind.\n\nHello", **named}},
                {"assistantResponseMessage": {"content": "Hi!"}},
            ],
            "currentMessage": {
                "userInputMessage": {
                    "content": "Edit it.",
                    **named,
                    "userInputMessageContext": {"tools": [{"toolSpecification": tool}]},
                }
            },
        },
        "profileArn": ARN,
    }
    assert str(uuid.UUID(identity)) == identity
    assert list(request.body) == ["profileArn", "conversationState"]
    assert request.path == "/generateAssistantResponse"


def test_a_call_of_the_history_becomes_a_tool_use() -> None:
    given = {"path": "file.js", "content": "..."}
    blocks = [{"type": "text", "text": "I'll edit the file"}, use("toolu_xxx", "edit", given)]
    request = sent(ask(user("a"), assistant(blocks), user([result("toolu_xxx", DONE)]), tools=[EDIT]))
    assert state(request)["history"][1] == {
        "assistantResponseMessage": {
            "content": "I'll edit the file",
            "toolUses": [{"toolUseId": "toolu_xxx", "name": "edit", "input": given}],
        }
    }
    assert current(request)["content"] == "Tool results provided."
    assert results(request) == [{"content": [{"text": DONE}], "status": "success", "toolUseId": "toolu_xxx"}]


def test_a_failed_result_has_the_status_error() -> None:
    failed = result("t", "no such file", is_error=True)
    request = sent(ask(user("a"), assistant([use("t")]), user([failed]), tools=[WEATHER]))
    assert results(request) == [{"content": [{"text": "no such file"}], "status": "error", "toolUseId": "t"}]


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_texts_of_a_message_are_joined(role: str) -> None:
    words = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turns = [user(words), assistant("b")] if role == "user" else [user("a"), assistant(words)]
    assert (role, "one\ntwo") in history(sent(ask(*turns, user("c"))))


@pytest.mark.parametrize("turns", range(1, 7))
def test_history_never_ends_with_a_user_turn(turns: int) -> None:
    for first in (user, assistant):
        second = assistant if first is user else user
        told = history(sent(ask(*[(first, second)[number % 2](f"{number}") for number in range(turns)])))
        assert not told or told[-1][0] == "assistant"
    assert history(sent(ask(*[user(f"{number}") for number in range(turns + 1)])))[-1][0] == "assistant"


# --- answers, chunk by chunk


def test_the_first_content_chunk_gives_its_three_events_at_once_and_the_next_one() -> None:
    assert kinds(text("Hello"), text(" world"), usage())[:2] == [
        ["message_start", "content_block_start", "content_block_delta"],
        ["content_block_delta"],
    ]


def test_the_tool_use_chunks_give_the_events_of_the_document() -> None:
    first = call("toolu_xxx", "edit", input='{"path":')
    events = told(first, ("toolUseEvent", {"input": '"file.js"}'}), ("toolUseEvent", {"stop": True}), usage())
    start, delta = events[0][1:]
    assert [event["type"] for event in events[0]] == ["message_start", "content_block_start", "content_block_delta"]
    assert start["content_block"] == {"type": "tool_use", "id": "toolu_xxx", "name": "edit", "input": {}}
    assert delta["delta"] == {"type": "input_json_delta", "partial_json": '{"path":'}
    assert [(event["type"], event["delta"]) for event in events[1]] == [
        ("content_block_delta", {"type": "input_json_delta", "partial_json": '"file.js"}'})
    ]
    assert [event["type"] for event in events[2]] == ["content_block_stop"]
    assert [event["delta"]["stop_reason"] for event in events[-1] if event["type"] == "message_delta"] == ["tool_use"]


def test_text_is_block_0_and_the_call_after_it_block_1() -> None:
    events = told(text("Hello"), call("toolu_xxx", "edit", input='{"path":'), call("toolu_xxx", "edit", stop=True))
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
    assert events[0][-1] == delta
    starts = [(event["index"], event["content_block"]["type"]) for event in events[1] if "content_block" in event]
    assert starts == [(1, "tool_use")]


def test_the_percentage_is_kept_for_the_last_usage() -> None:
    events = told(text("Hello"), usage(1.5))
    assert [event["type"] for event in events[1]] == []
    assert [event["type"] for event in events[2]] == ["content_block_stop", "message_delta", "message_stop"]
    counts = events[2][1]["usage"]
    assert sum(counts[name] for name in counts) == int(172_500 * 1.5 / 100)
