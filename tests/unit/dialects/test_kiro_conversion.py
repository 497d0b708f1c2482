"""Document 002 of docs/mission.md: its tables, its four common problems, its token counts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

import dragoman
from dragoman.dialects.kiro.request import estimate_tokens
from dragoman.dialects.kiro.stream import TokenCounter, usage_of
from dragoman.model.conversation import Usage
from dragoman.response_stream import ResponseTranslator
from tests.anthropic_client import parse_message_stream, parse_sse
from tests.unit.dialects.kiro_helpers import (
    WEATHER,
    anthropic_request,
    assistant,
    call,
    calls,
    client_stream,
    current,
    frames,
    history,
    rules,
    state,
    stop_event,
    text,
    tools,
    translate_to_kiro,
    usage,
    use,
    user,
)

# --- the request


def test_thinking_in_history_is_wrapped() -> None:
    thought = {"type": "thinking", "thinking": "plan", "signature": "an anthropic one"}
    request = translate_to_kiro(
        anthropic_request(user("a"), assistant([thought, {"type": "text", "text": "b"}]), user("c"))
    )
    assert history(request)[1] == ("assistant", "<kiro_thinking>plan</kiro_thinking>\nb")


@pytest.mark.parametrize("name", ["web_search", "websearch", "Web_Search", "WEBSEARCH"])
def test_web_search_is_left_out(name: str) -> None:
    request = translate_to_kiro(anthropic_request(user("a"), tools=[{**WEATHER, "name": name}, WEATHER]))
    assert list(tools(request)) == ["get_weather"]
    assert "kiro.tools.web_search" in rules(request)


def test_a_long_description_is_cut_and_sent_whole_in_the_system_text() -> None:
    words = "x" * 9_217
    request = translate_to_kiro(anthropic_request(user("a"), tools=[{**WEATHER, "description": words}]))
    assert len(tools(request)["get_weather"]["description"]) == 9_216
    assert current(request)["content"] == f"The tool get_weather:\n{words}\n\na"
    cut = translate_to_kiro(
        anthropic_request(user("a"), tools=[{**WEATHER, "description": words}]), long_descriptions="cut"
    )
    assert current(cut)["content"] == "a"
    assert len(tools(cut)["get_weather"]["description"]) == 9_216


# --- common problems and solutions


@pytest.mark.parametrize("schema", [None, {}, {"type": "string"}])
def test_common_problem_1_improperly_formed_request(schema: Any) -> None:
    """`input` is always there, `inputSchema` is never null, history is in order."""
    request = translate_to_kiro(
        anthropic_request(
            user("a"), user("b"), assistant([{**use("t"), "input": None}]), tools=[{**WEATHER, "input_schema": schema}]
        )
    )
    entry = state(request)["history"][-1]["assistantResponseMessage"]
    assert entry["toolUses"][0]["input"] == {}
    assert tools(request)["get_weather"]["inputSchema"] == {"json": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("fragments", "arguments"),
    [
        ((), {}),
        (("not json",), {"raw_arguments": "not json"}),
        (('{"a": ', "1}"), {"a": 1}),
        (('{"a',), {"raw_arguments": '{"a'}),
    ],
)
def test_common_problem_2_json_serialization_error_for_raw_message(fragments: tuple[str, ...], arguments: Any) -> None:
    """In a whole reply, input that is no JSON is wrapped, and empty input is an empty object."""
    stream = frames(*[call(input=each) for each in fragments], call(stop=True), usage())
    reply = dragoman.translate_reply(stream, source="kiro", target="anthropic").body
    assert reply["content"] == [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": arguments}]
    assert reply["stop_reason"] == "tool_use"


def test_common_problem_3_null_is_not_an_object() -> None:
    """A tool's content_block_start carries `input: {}`, never null."""
    for first in (call(), call(input=""), call(input={}), call(input='{"a":1}'), call(input=None)):
        starts = [
            each
            for each in parse_sse(client_stream(frames(first, call(stop=True), usage())))
            if each["type"] == "content_block_start"
        ]
        assert [each["content_block"]["input"] for each in starts] == [{}]


def test_common_problem_4_dropped_events() -> None:
    """The first chunk may hold name, id and input at once; nothing of it is lost."""
    message = parse_message_stream(
        client_stream(frames(call(input='{"path":'), call(input='"file.js"}'), call(stop=True), usage()))
    )
    assert calls(message) == [("t1", "get_weather", '{"path":"file.js"}')]


# --- the reply


def test_message_start_has_an_estimate_and_message_delta_the_figure() -> None:
    request = translate_to_kiro(anthropic_request(user("word " * 1000)))
    events = parse_sse(client_stream(frames(text("x" * 48), usage()), request.plan))
    started, ended = events[0]["message"]["usage"], events[-2]["usage"]
    assert started["input_tokens"] == pytest.approx(1250, abs=20)
    assert started["output_tokens"] == 0
    assert ended == {
        "input_tokens": 91,
        "cache_creation_input_tokens": 183,
        "cache_read_input_tokens": 2301,
        "output_tokens": 12,
    }


# --- token distribution (docs/decisions/kiro.md#d15)


@pytest.mark.parametrize(
    ("percentage", "output", "split", "expected"),
    [
        (1.5, 12, (1, 2, 25), Usage(91, 12, 2301, 183)),
        (1.5, 12, None, Usage(2575, 12)),
        (0.05, 0, (1, 2, 25), Usage(86, 0)),
        (0.0, 40, (1, 2, 25), Usage(0, 40)),
        (0.058, 0, (1, 2, 25), Usage(3, 0, 90, 7)),
        (100.0, 500, (1, 2, 25), Usage(6142, 500, 153572, 12285 + 1)),
    ],
)
def test_token_distribution(percentage: float, output: int, split: Any, expected: Usage) -> None:
    found = usage_of(percentage, 172_500, output, split)
    assert found.estimated  # docs/decisions/kiro.md#d15
    total = found.input + found.cache_read + found.cache_write
    assert total == max(int(172_500 * percentage / 100) - output, 0)
    if percentage != 100.0:
        assert found == structs.replace(expected, estimated=True)


def test_the_window_and_the_split_are_settings() -> None:
    stream = frames(text("x" * 48), usage())
    whole = dragoman.translate_reply(stream, source="kiro", target="anthropic", usage_window="model", usage_split=False)
    assert whole.body["usage"]["input_tokens"] == 3000 - 12
    small = dragoman.translate_reply(stream, source="kiro", target="anthropic", usage_window=1000)
    assert small.body["usage"]["input_tokens"] == 3


@pytest.mark.parametrize("settings", [{}, {"usage_split": False}, {"usage_window": "model"}])
def test_d15_figures_made_from_the_percentage_are_marked_estimated(settings: dict[str, Any]) -> None:
    """Split or not, by any window. Counts that the service gives itself are not estimates.

    See docs/decisions/kiro.md#d15.
    """
    counted = ("metadataEvent", {"tokenUsage": {"uncachedInputTokens": 5, "outputTokens": 2, "totalTokens": 7}})
    for more, estimated in (((), True), ((counted,), False)):
        response = ResponseTranslator(translate_to_kiro(anthropic_request(user("hi")), **settings).plan)
        response.feed(frames(text("Hello"), usage(), *more))
        response.close()
        usage_seen = response.progress.usage
        assert usage_seen is not None
        assert usage_seen.estimated is estimated


def test_without_a_percentage_all_counts_are_marked_estimated() -> None:
    reply = dragoman.translate_reply(frames(text("Hello")), source="kiro", target="anthropic")
    assert [note.rule for note in reply.notes] == ["kiro.stream.no_usage"]
    assert reply.body["usage"]["output_tokens"] == 2


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((call(stop=True),), "tool_use"),
        ((text("Hello"), call(input="{")), "max_tokens"),
        ((text("Hello"), stop_event("MAX_TOKENS")), "max_tokens"),
    ],
)
def test_estimates_are_marked_for_every_end_of_the_reply(events: Any, reason: str) -> None:
    reply = dragoman.translate_reply(frames(*events), source="kiro", target="anthropic")
    assert reply.body["stop_reason"] == reason
    (note,) = [note for note in reply.notes if note.rule == "kiro.stream.no_usage"]
    assert note.detail == "the stream has no context usage: the counts are estimates"
    with_usage = dragoman.translate_reply(frames(*events, usage()), source="kiro", target="anthropic")
    assert "kiro.stream.no_usage" not in [note.rule for note in with_usage.notes]


def test_an_estimate_does_not_depend_on_how_text_was_cut() -> None:
    words = "Hello, 世界! " * 10
    counter = TokenCounter()
    for letter in words:
        counter.add(letter)
    assert counter.tokens == estimate_tokens(words)
    assert estimate_tokens("abcd") == 1
    assert estimate_tokens("漢字") == 2


# --- streams of Kiro to Claude Code


def test_web_search_typed_tool() -> None:
    request = translate_to_kiro(
        anthropic_request(user("a"), tools=[{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}])
    )
    assert tools(request) == {}
    assert rules(request).count("kiro.tools.web_search") == 1
