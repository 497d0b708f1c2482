"""fit_cache_marks: where marks stand, how long they last, how many there are; add_cache_key."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.errors import Unrepresentable
from dragoman.filters.cache_marks import FitCacheMarks
from dragoman.model.blocks import CacheBreakpoint, Text, ToolResult
from dragoman.model.capabilities import CacheMarks, Capabilities
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.filter import Facts, Notes
from dragoman.translate import plan

SHORT, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
POINT = {"mode": "explicit"}
SCHEMA = {"type": "object", "properties": {}}
CLAUDE: dict[str, Any] = {
    "model": "claude-x",
    "max_tokens": 99,
    "tools": [{"name": "f", "input_schema": SCHEMA, "cache_control": SHORT}],
    "system": [{"type": "text", "text": "one"}, {"type": "text", "text": "two", "cache_control": SHORT}],
    "messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "done", "cache_control": SHORT}],
        },
    ],
}


def translated(body: dict[str, Any], client: str, upstream: str, model: str, **settings: Any) -> tuple[Any, list[str]]:
    options: dict[str, Any] = {"settings": settings} if settings else {}
    sent = dragoman.translate_request(body, source=client, target=upstream, model=model, **options)
    return sent.body, [note.rule for note in sent.notes]


def test_a_fifth_mark_is_left_out_the_oldest_of_the_messages_first() -> None:
    mark = CacheBreakpoint("1h")
    old = Message("user", (ToolResult("t", (Text("x", mark),), cache=mark), Text("y", mark)))
    notes, target = Notes(), Capabilities(cache_marks=CacheMarks(4))
    conversation = Conversation(
        "m",
        (old, Message("user", (Text("z", mark),))),
        system=(Text("s", mark),),
        tools=(ToolSpec("f", "", {}, mark),),
    )
    sent, _ = FitCacheMarks(target, foreign=True).forward(conversation, notes, Facts())
    assert [note.rule for note in notes] == ["cache.marks"]
    assert (sent.system[0].cache, sent.tools[0].cache) == (mark, mark)
    result, text = sent.messages[0].blocks
    assert isinstance(result, ToolResult)
    assert (result.content[0].cache, result.cache, text) == (None, None, Text("y", mark))
    assert sent.messages[1].blocks == (Text("z", mark),)


def test_the_last_of_tools_and_system_are_kept_before_older_ones() -> None:
    mark = CacheBreakpoint()
    texts = tuple(Text(f"s{index}", mark) for index in range(6))
    conversation = Conversation("m", (Message("user", (Text("z", mark),)),), system=texts)
    sent, _ = FitCacheMarks(Capabilities(cache_marks=CacheMarks(4)), foreign=True).forward(
        conversation, Notes(), Facts()
    )
    assert [text.cache is not None for text in sent.system] == [False, False, False, True, True, True]
    assert sent.messages == conversation.messages


def test_marks_become_breakpoints_of_content_parts() -> None:
    body, rules = translated(CLAUDE, "anthropic", "responses", "gpt-5.6")
    assert body["input"][0]["content"] == [
        {"type": "input_text", "text": "one"},
        {"type": "input_text", "text": "two", "prompt_cache_breakpoint": POINT},
    ]
    assert body["input"][-1]["output"] == [{"type": "input_text", "text": "done", "prompt_cache_breakpoint": POINT}]
    assert body["tools"][0].keys() == {"type", "name", "parameters"}
    assert {"cache.moved", "cache.ttl"} <= set(rules)
    assert "prompt_cache_options" not in body  # mode `explicit` without marks turns caching off
    chat, _ = translated(CLAUDE, "anthropic", "openai", "gpt-5.6")
    assert chat["messages"][0]["content"][1]["prompt_cache_breakpoint"] == POINT
    assert chat["messages"][-1]["content"] == [{"type": "text", "text": "done", "prompt_cache_breakpoint": POINT}]


@pytest.mark.parametrize(("model", "accepted"), [("gpt-5.5", False), ("gpt-5.6", True), ("gpt-6.1-sol", True),
                                                 ("gpt-5.10", True), ("gpt-4.1", False), ("gpt-oss-120b", False),
                                                 ("kimi-k2", False)])  # fmt: skip
def test_only_models_that_accept_breakpoints_get_them(model: str, accepted: bool) -> None:
    for upstream in ("openai", "responses"):
        body, rules = translated(CLAUDE, "anthropic", upstream, model)
        assert ("prompt_cache_breakpoint" in json.dumps(body)) is accepted
        assert ("cache.marks" in rules) is not accepted
    body, _ = translated(CLAUDE, "anthropic", "openai", model, cache_marks="on")
    assert "prompt_cache_breakpoint" in json.dumps(body)
    body, _ = translated(CLAUDE, "anthropic", "openai", model, cache_marks="off")
    assert "prompt_cache_breakpoint" not in json.dumps(body)


def test_a_mark_of_an_hour_costs_more_only_by_a_setting() -> None:
    body = {**CLAUDE, "system": [{"type": "text", "text": "s", "cache_control": HOUR}], "tools": []}
    short, _ = translated(body, "anthropic", "responses", "gpt-5.6")
    long, _ = translated(body, "anthropic", "responses", "gpt-5.6", cache_long=True)
    assert short["input"][0]["content"][0]["prompt_cache_breakpoint"] == POINT
    assert long["input"][0]["content"][0]["prompt_cache_breakpoint"] == {**POINT, "ttl": "12h"}


def test_breakpoints_become_cache_control_and_cache_points() -> None:
    text = {"type": "input_text", "text": "long", "prompt_cache_breakpoint": {**POINT, "ttl": "12h"}}
    body = {"model": "gpt-5.6", "input": [{"role": "user", "content": [text]}]}
    claude, _ = translated(body, "responses", "anthropic", "claude-x")
    assert claude["messages"][0]["content"][0]["cache_control"] == HOUR
    bedrock, _ = translated(body, "responses", "bedrock", "anthropic.claude-x")
    assert bedrock["messages"][0]["content"][1] == {"cachePoint": {"type": "default", "ttl": "1h"}}


@pytest.mark.parametrize("model", ["gpt-5.6", "another-model"])
def test_breakpoints_pass_between_chat_and_responses_whatever_the_model(model: str) -> None:
    point = {**POINT, "ttl": "12h"}
    part = {"type": "text", "text": "long", "prompt_cache_breakpoint": point}
    options = {"mode": "explicit"}
    chat = {"model": "m", "messages": [{"role": "user", "content": [part]}], "prompt_cache_options": options}
    body, rules = translated(chat, "openai", "responses", model)
    assert body["input"][0]["content"][0]["prompt_cache_breakpoint"] == point
    assert (body["prompt_cache_options"], rules) == (options, [])
    back, rules = translated(body, "responses", "openai", model)
    assert back["messages"][0]["content"] == [part]
    assert rules == []


def test_cache_control_in_chat_is_a_mark_and_stays_one() -> None:
    part = {"type": "text", "text": "long", "cache_control": HOUR}
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}, "cache_control": HOUR}
    chat = {"model": "m", "messages": [{"role": "user", "content": [part]}], "tools": [tool]}
    same, _ = translated(chat, "openai", "openai", "m")
    assert (same["messages"][0]["content"], same["tools"]) == ([part], [tool])
    claude, _ = translated({**chat, "max_tokens": 9}, "openai", "anthropic", "claude-x")
    assert claude["messages"][0]["content"][0]["cache_control"] == claude["tools"][0]["cache_control"] == HOUR
    routed, _ = translated(CLAUDE, "anthropic", "openai", "a/b", cache_control=True)
    assert routed["tools"][0]["cache_control"] == SHORT
    assert routed["messages"][0]["content"][1]["cache_control"] == SHORT


def test_a_mark_of_a_block_that_is_left_out_moves_to_the_block_before() -> None:
    content = [{"type": "text", "text": "x"}, {"type": "browser_state", "cache_control": SHORT}]
    body, rules = translated(
        {**CLAUDE, "tools": [], "system": "s", "messages": [{"role": "user", "content": content}]},
        "anthropic", "openai", "gpt-5.6",
    )  # fmt: skip
    assert body["messages"][-1]["content"][0].get("prompt_cache_breakpoint") == POINT
    assert "cache.moved" in rules


def test_codecs_refuse_lifetimes_of_the_other_form() -> None:
    for name, ttl in (("anthropic", "30m"), ("bedrock", "12h"), ("responses", "5m")):
        conversation = Conversation("m", (Message("user", (Text("x", CacheBreakpoint(ttl)),)),))  # type: ignore[arg-type]
        with pytest.raises(Unrepresentable, match="lifetime"):
            registry.get(name).codec.render_request(conversation)


def test_the_key_of_the_session_is_added_where_the_target_has_one() -> None:
    client, conversation = registry.get("anthropic"), Conversation("m", (Message("user", (Text("x"),)),), session="s1")
    keyed = plan(client, registry.get("responses"), conversation)
    assert json.loads(keyed.request().body)["prompt_cache_key"] == "s1"
    assert [note.rule for note in keyed.notes] == ["cache.key"]
    assert "prompt_cache_key" not in json.loads(plan(client, registry.get("openai"), conversation).request().body)
    codec = registry.get("responses").codec
    own = codec.parse_request(
        registry.get("responses").binding.unwrap({"model": "m", "input": "x", "prompt_cache_key": "mine"})
    )
    sent = plan(registry.get("responses"), registry.get("responses"), own)
    assert json.loads(sent.request().body)["prompt_cache_key"] == "mine"
