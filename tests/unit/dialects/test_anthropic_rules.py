"""The rules of Anthropic's API for requests, and the filters that make requests follow them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.dialects.anthropic import DIALECT
from dragoman.dialects.anthropic.quirks import AddFirstMessage, FitAnthropicReasoning, RequireObjectSchemas
from dragoman.dialects.base import ApiRequest
from dragoman.filters import FitThinkingBudget
from dragoman.model.blocks import Block, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, Thinking, ToolChoice, ToolSpec
from dragoman.model.filter import Facts, Filter, Notes
from dragoman.wire.frame import Frame

CODEC = DIALECT.codec
TOOL: dict[str, Any] = {"name": "f", "input_schema": {"type": "object"}}
THINKS = {"type": "enabled", "budget_tokens": 1024}
CACHED = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks) or "x"}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def use(call_id: Any = "a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "f", "input": {}, **more}


def result(call_id: Any = "a", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, **more}


def text(value: Any = "x") -> dict[str, Any]:
    return {"type": "text", "text": value}


def broken(model: str = "m", **change: Any) -> list[str]:
    body = {"max_tokens": 4096, "messages": [user()], **change}
    body = {name: value for name, value in body.items() if value is not ...}
    return [
        breach.rule.removeprefix("anthropic.") for breach in CODEC.breaches(ApiRequest("generate", model, False, body))
    ]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"max_tokens": 0},
        {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}},
        {"messages": [user(), assistant(use("a"), use("b")), user(result("b"), result("a"), text())]},
        {"messages": [user(), assistant(use("a")), user(result("a")), user(), assistant(text())]},
        {"messages": [user(), {"role": "system", "content": "now"}, user()]},
        {"messages": [user(), assistant()]},
        {
            "thinking": THINKS,
            "messages": [
                user(),
                assistant({"type": "thinking", "thinking": "", "signature": "s"}, use()),
                user(result()),
            ],
        },
        {
            "thinking": {"type": "adaptive"},
            "messages": [user(), assistant(use()), user(result())],
            "output_config": {"effort": "max"},
        },
        {"messages": [user(CACHED, CACHED, CACHED)], "system": [CACHED]},
        {
            "messages": [user({"type": "search_result"})],
            "tools": [{"type": "web_search_20250305", "name": "web_search"}],
        },
        {"system": ""},
        {"messages": [user(), assistant(use()), user(result(content=""))]},
    ],
)
def test_accepted_requests_break_no_rule(change: dict[str, Any]) -> None:
    assert broken(**change) == []


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("max_tokens.required", {"max_tokens": ...}),
        ("max_tokens.range", {"max_tokens": -1}),
        ("max_tokens.range", {"max_tokens": True}),
        ("temperature.range", {"temperature": 1.5}),
        ("top_p.range", {"top_p": "x"}),
        ("stop_sequences.blank", {"stop_sequences": [" "]}),
        ("messages.required", {"messages": []}),
        ("messages.required", {"messages": ...}),
        ("messages.role", {"messages": [{"role": "tool", "content": "x"}]}),
        ("messages.role", {"messages": ["x"]}),
        ("messages.empty", {"messages": [{"role": "user", "content": []}]}),
        ("messages.empty", {"messages": [{"role": "user"}]}),
        ("messages.trailing_space", {"messages": [user(), {"role": "assistant", "content": "x "}]}),
        ("text.empty", {"messages": [{"role": "user", "content": ""}]}),
        ("text.blank", {"messages": [user(text(" \n"))]}),
        ("text.empty", {"messages": [user(text(None))]}),
        ("text.empty", {"system": [text("")]}),
        ("text.empty", {"messages": [user(), assistant(use()), user(result(content=[text("")]))]}),
        ("block.type", {"messages": [user({"text": "x"})]}),
        ("system.text", {"system": [{"type": "image"}]}),
        (
            "cache.count",
            {
                "messages": [user(CACHED, CACHED, CACHED)],
                "system": [CACHED],
                "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}],
            },
        ),
        (
            "cache.thinking",
            {
                "messages": [
                    user(),
                    assistant({"type": "redacted_thinking", "data": "x", "cache_control": {"type": "ephemeral"}}),
                ]
            },
        ),
        (
            "thinking.signature",
            {"messages": [user(), assistant({"type": "thinking", "thinking": "x", "signature": ""})]},
        ),
        ("tools.name", {"tools": [{**TOOL, "name": "a.b"}]}),
        ("tools.name", {"tools": [{**TOOL, "name": "a" * 129}]}),
        ("tools.name", {"tools": [{**TOOL, "name": "a\n"}]}),
        ("tools.schema", {"tools": [{"name": "f"}]}),
        ("tools.schema", {"tools": [{"name": "f", "input_schema": {"type": "string"}}]}),
        ("tools.duplicate", {"tools": [TOOL, TOOL]}),
        ("tools.deferred_cache", {"tools": [{**TOOL, "defer_loading": True, "cache_control": {"type": "ephemeral"}}]}),
        ("tool_choice.type", {"tools": [TOOL], "tool_choice": "auto"}),
        ("tool_choice.name", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}),
        ("tool_choice.no_tools", {"tool_choice": {"type": "any"}}),
        ("tool_choice.parallel", {"tools": [TOOL], "tool_choice": {"type": "none", "disable_parallel_tool_use": True}}),
        ("tool_use.id_charset", {"messages": [user(), assistant(use("a.b")), user(result("a_b"))]}),
        ("tool_use.id_required", {"messages": [user(), assistant(use(None)), user(result("a"))]}),
        ("tool_use.name", {"messages": [user(), assistant(use(name="")), user(result())]}),
        ("tool_use.input", {"messages": [user(), assistant(use(input="{}")), user(result())]}),
        ("tool_use.unanswered", {"messages": [user(), assistant(use()), user()]}),
        ("tool_use.unanswered", {"messages": [user(), assistant(use())]}),
        ("tool_use.duplicate", {"messages": [user(), assistant(use(), use()), user(result())]}),
        ("tool_result.orphan", {"messages": [user(result())]}),
        ("tool_result.duplicate", {"messages": [user(), assistant(use()), user(result(), result())]}),
        ("tool_result.id_required", {"messages": [user(), assistant(use()), user(result(""))]}),
        ("thinking.type", {"thinking": {"type": "on"}}),
        ("thinking.budget_required", {"thinking": {"type": "enabled"}}),
        ("thinking.budget_least", {"thinking": {"type": "enabled", "budget_tokens": 1023}}),
        ("thinking.budget_limit", {"thinking": {"type": "enabled", "budget_tokens": 4096}}),
        ("thinking.forced_tool", {"thinking": THINKS, "tools": [TOOL], "tool_choice": {"type": "any"}}),
        ("thinking.opening", {"thinking": THINKS, "messages": [user(), assistant(text(), use()), user(result())]}),
        ("output_config.effort", {"output_config": {"effort": "extreme"}}),
    ],
)
def test_a_broken_rule_is_named(rule: str, change: dict[str, Any]) -> None:
    assert rule in broken(**change)


ODD: list[Any] = [
    [],
    "x",
    None,
    {},
    {"messages": [None, 1, {"role": "user", "content": [1, None, {}]}]},
    {"tools": {}, "system": 3},
]


@pytest.mark.parametrize("body", ODD)
def test_a_body_of_any_shape_is_linted(body: Any) -> None:
    assert CODEC.breaches(ApiRequest("generate", "m", False, body))


def test_breaches_name_the_place() -> None:
    body: dict[str, Any] = {"max_tokens": 1, "messages": [user(), assistant(use("a|b")), user(result("a|b"))]}
    breach = CODEC.breaches(ApiRequest("generate", "m", False, body))[0]
    assert (breach.rule, breach.at) == ("anthropic.tool_use.id_charset", "messages[1].content[0].id")


# --- streams

START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "x",
        "content": [],
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
STOP: dict[str, Any] = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
END = {"type": "message_stop"}


def begin(index: Any = 0, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block or text("")}


def grow(index: Any = 0, kind: str = "text_delta", **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **(fields or {"text": "x"})}}


def close(index: Any = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def stream_broken(*frames: dict[str, Any]) -> list[str]:
    taken = [Frame(str(frame.get("kind", frame["type"])), json.dumps(frame).encode(), b"") for frame in frames]
    return [breach.rule.removeprefix("anthropic.stream.") for breach in CODEC.stream_breaches(taken)]


def test_a_good_stream_breaks_no_rule() -> None:
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    body = (begin(), grow(), close(), begin(1, **call), grow(1, "input_json_delta", partial_json='{"a":1}'), close(1))
    assert stream_broken(START, {"type": "ping"}, *body, STOP, END) == []
    assert stream_broken({"type": "error", "error": {"type": "api_error", "message": "x"}}) == []


@pytest.mark.parametrize(
    ("rule", "frames"),
    [
        ("event_name", ({**START, "kind": ""}, STOP, END)),
        ("first", (begin(), START, STOP, END)),
        ("start_once", (START, START, STOP, END)),
        ("message", ({"type": "message_start", "message": {**START["message"], "content": None}}, STOP, END)),
        ("message_fields", ({"type": "message_start", "message": {**START["message"], "id": ""}}, STOP, END)),
        ("usage", ({"type": "message_start", "message": {**START["message"], "usage": {}}}, STOP, END)),
        ("usage", (START, {**STOP, "usage": {}}, END)),
        ("object", (START, {**STOP, "usage": None}, END)),
        ("stop_reason", (START, {**STOP, "delta": {"stop_reason": None}}, END)),
        ("index", (START, begin(1), close(1), STOP, END)),
        ("index", (START, begin(0), close(0), begin(0), close(0), STOP, END)),
        ("index", (START, begin(None), STOP, END)),
        ("interleaved", (START, begin(0), begin(1), close(0), close(1), STOP, END)),
        ("no_block", (START, grow(), STOP, END)),
        ("no_block", (START, close(), STOP, END)),
        ("no_block", (START, begin(), grow(None), close(), STOP, END)),
        ("delta_kind", (START, begin(), grow(kind="thinking_delta", thinking="x"), close(), STOP, END)),
        ("delta_value", (START, begin(), grow(text=None), close(), STOP, END)),
        ("block_start", (START, begin(type="text"), close(), STOP, END)),
        ("block_start", (START, begin(type="tool_use", id="", name="f", input={}), close(), STOP, END)),
        ("input_at_start", (START, begin(type="tool_use", id="a", name="f", input={"a": 1}), close(), STOP, END)),
        (
            "input_json",
            (
                START,
                begin(type="tool_use", id="a", name="f", input={}),
                grow(kind="input_json_delta", partial_json="{"),
                close(),
                STOP,
                END,
            ),
        ),
        ("open_block", (START, begin(), STOP, END)),
        ("late_block", (START, STOP, begin(), close(), END)),
        ("delta_once", (START, STOP, STOP, END)),
        ("no_delta", (START, END)),
        ("after_end", (START, STOP, END, STOP)),
        ("after_end", (START, {"type": "error", "error": {"type": "x", "message": "y"}}, STOP)),
        ("unfinished", (START, STOP)),
        ("error", (START, {"type": "error", "error": {}})),
    ],
)
def test_a_broken_rule_of_streams_is_named(rule: str, frames: tuple[dict[str, Any], ...]) -> None:
    assert rule in stream_broken(*frames)


def test_data_that_is_no_object_is_named() -> None:
    found = CODEC.stream_breaches([Frame("message_stop", b"null", b"")])
    assert found[0].rule == "anthropic.stream.json"


# --- the dialect's own filters

CALL, USER, THOUGHT = (
    ToolCall("a", "f"),
    Message("user", (Text("x"),)),
    Reasoning("t", "anthropic", Signature("anthropic", "s")),
)


def run(each: Filter, conversation: Conversation) -> tuple[Conversation, list[str]]:
    notes = Notes()
    settled, back = each.forward(conversation, notes, Facts())
    assert back is None
    again = Notes()
    assert each.forward(settled, again, Facts())[0] == settled
    assert len(again) == 0
    assert bool(len(notes)) == (settled != conversation)
    return settled, [note.rule for note in notes]


@pytest.mark.parametrize(
    ("budget", "limit", "expected"),
    [(2048, 4096, 2048), (100, 4096, 1024), (9000, 4096, 4095), (None, 4096, 2048), (None, 1025, 1024)],
)
def test_a_budget_is_brought_within_its_bounds(budget: int | None, limit: int, expected: int) -> None:
    settled, rules = run(
        FitThinkingBudget(Capabilities(min_thinking_budget=1024)),
        Conversation("m", (USER,), thinking=Thinking("on", "", budget), max_tokens=limit),
    )
    assert settled.thinking == Thinking("on", "", expected)
    assert rules == ([] if budget == expected else ["thinking.budget"])


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation("m", (USER,), thinking=Thinking("on", "", 1024), max_tokens=1024),
        Conversation("m", (USER,), thinking=Thinking("adaptive"), tool_choice=ToolChoice("any"), max_tokens=9000),
        Conversation(
            "m", (USER,), thinking=Thinking("on", "", 1024), tool_choice=ToolChoice("one", ("f",)), max_tokens=9000
        ),
        Conversation(
            "m", (USER, Message("assistant", (Text("x"), CALL))), thinking=Thinking("on", "", 1024), max_tokens=9000
        ),
        Conversation(
            "m",
            (USER, Message("assistant", (Text("x"),)), Message("assistant", (THOUGHT, CALL))),
            thinking=Thinking("on", "", 1024),
            max_tokens=9000,
        ),
    ],
)
def test_thinking_that_the_service_would_refuse_is_turned_off(conversation: Conversation) -> None:
    settled, rules = run(FitThinkingBudget(Capabilities(min_thinking_budget=1024)), conversation)
    assert settled.thinking == Thinking("off")
    assert rules == ["thinking.off"]


@pytest.mark.parametrize(
    "conversation",
    [
        Conversation(
            "m", (USER, Message("assistant", (THOUGHT, CALL))), thinking=Thinking("on", "", 1024), max_tokens=9000
        ),
        Conversation(
            "m",
            (USER, Message("assistant", (CALL,))),
            thinking=Thinking("adaptive"),
            sampling={"temperature": 1, "top_p": 0.97},
        ),
        Conversation(
            "m", (USER, Message("assistant", (CALL,))), sampling={"temperature": 0.2}, tool_choice=ToolChoice("any")
        ),
    ],
)
def test_an_accepted_conversation_is_unchanged(conversation: Conversation) -> None:
    assert run(FitThinkingBudget(Capabilities(min_thinking_budget=1024)), conversation) == (conversation, [])


RESULT = Message("user", (ToolResult("a", (Text("ok"),)),))
LOOP = (Message("assistant", (THOUGHT, CALL)), RESULT, Message("assistant", (CALL,)), RESULT)


def thinking_of(*messages: Message) -> Thinking:
    conversation = Conversation("m", (USER, *messages), thinking=Thinking("on", "", 1024), max_tokens=9000)
    return run(FitThinkingBudget(Capabilities(min_thinking_budget=1024)), conversation)[0].thinking


def test_only_the_first_message_of_a_tool_loop_must_start_with_thinking() -> None:
    assert thinking_of(*LOOP) == Thinking("on", "", 1024)
    opened: Any = assistant({"type": "thinking", "thinking": "t", "signature": "s"}, use())
    turns = [user(), opened, user(result()), assistant(use("b")), user(result("b"))]
    assert "thinking.opening" not in broken(thinking=THINKS, messages=turns)
    assert "thinking.opening" in broken(thinking=THINKS, messages=[*turns, assistant(text()), user(), *turns[3:]])


def test_thinking_that_one_loop_turned_off_stays_off() -> None:
    """Switching thinking on and off would invalidate the service's cache of the messages."""
    without = (Message("assistant", (CALL,)), RESULT)
    later_turns = (Message("assistant", (Text("done"),)), USER)
    for history in (
        without,
        (*without, *later_turns),
        (*without, *later_turns, *LOOP),
        (*LOOP, *later_turns, *without),
    ):
        assert thinking_of(*history) == Thinking("off")


def test_sampling_settings_that_exclude_thinking_are_dropped() -> None:
    conversation = Conversation(
        "m", (USER,), thinking=Thinking("adaptive"), sampling={"temperature": 0.5, "top_k": 4, "top_p": 0.5}
    )
    settled, rules = run(FitThinkingBudget(Capabilities(min_thinking_budget=1024)), conversation)
    assert settled.sampling == {}
    assert set(rules) == {"thinking.knob"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({}, {"type": "object"}),
        ({"properties": {"a": {}}}, {"properties": {"a": {}}, "type": "object"}),
        ({"type": ["object", "null"], "x": 1}, {"type": "object", "x": 1}),
        ({"type": "string"}, {"type": "object", "properties": {}}),
    ],
)
def test_a_schema_gets_the_type_object(schema: dict[str, Any], expected: dict[str, Any]) -> None:
    settled, rules = run(RequireObjectSchemas(), Conversation("m", (USER,), tools=(ToolSpec("f", "", schema),)))
    assert settled.tools == (ToolSpec("f", "", expected),)
    assert rules == ["anthropic.tools.schema"]


def test_an_empty_conversation_gets_a_user_message() -> None:
    settled, rules = run(AddFirstMessage(), Conversation("m", (), system=(Text("Be brief."),)))
    assert settled.messages == (Message("user", (Text("Continue"),)),)
    assert rules == ["anthropic.messages.question"]


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (Thinking("default", "high", 4096), Thinking("on", "high", 4096)),
        (Thinking("off", "", 4096, show=True), Thinking("off")),
        (Thinking("adaptive", "", 4096, show=False), Thinking("adaptive", "", None, show=False)),
        (Thinking("default", "low", show=True), Thinking("default", "low")),
        (Thinking("between_tools", show=False), Thinking("between_tools")),
    ],
)
def test_thinking_settings_are_made_compatible(thinking: Thinking, expected: Thinking) -> None:
    settled, rules = run(
        FitThinkingBudget(Capabilities(min_thinking_budget=1024)),
        Conversation("m", (USER,), thinking=thinking, max_tokens=9000),
    )
    assert settled.thinking == expected
    assert rules == ["thinking.words"]


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            Reasoning("t", "anthropic", Signature("anthropic", "s", "redacted")),
            Reasoning("", "anthropic", Signature("anthropic", "s", "redacted")),
        ),
        (Reasoning("t", "anthropic", Signature("anthropic", "s", "encrypted")), None),
        (THOUGHT, THOUGHT),
    ],
)
def test_reasoning_has_one_of_two_forms(block: Block, expected: Block | None) -> None:
    conversation = Conversation("m", (USER, Message("assistant", (block,))))
    settled, _ = run(FitAnthropicReasoning(), conversation)
    assert settled.messages[1].blocks == (expected or Text("."),)
    CODEC.render_request(settled)
