"""Reading and writing Responses requests: every kind of item, tool and choice, and their translations."""

from __future__ import annotations

from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.conformance.laws import fixed_environment
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Media, Opaque, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Stop, StopReason, ToolChoice, ToolSpec
from dragoman.model.events import FINISHED, ArgumentsDelta, BlockEnded, BlockStarted, Started, Stopped
from dragoman.response_stream import ResponseFilters
from dragoman.translate import configure_dialect, plan
from dragoman.wire import jsonio

RESPONSES = registry.get("responses")
OTHERS = tuple(name for name in registry.names() if name != "responses")


def read(items: Any = "hi", **fields: Any) -> Conversation:
    return RESPONSES.codec.parse_request(RESPONSES.binding.unwrap({"model": "m", "input": items, **fields}))


def written(conversation: Conversation) -> dict[str, Any]:
    body: Any = jsonio.decode(RESPONSES.binding.wrap(RESPONSES.codec.render_request(conversation)).body)
    return dict(body)


def home(items: Any = "hi", **fields: Any) -> dict[str, Any]:
    return written(read(items, **fields))


def test_input_may_be_a_string() -> None:
    assert read("hello").messages == (Message("user", (Text("hello"),)),)


def test_a_message_needs_no_type() -> None:
    assert read([{"role": "user", "content": "hi"}]) == read([{"type": "message", "role": "user", "content": "hi"}])


@pytest.mark.parametrize("kind", ["input_text", "text"])
def test_content_may_be_parts(kind: str) -> None:
    assert read([{"role": "user", "content": [{"type": kind, "text": "hi"}]}]).messages[0].blocks == (Text("hi"),)


def test_leading_system_and_developer_messages_are_system_text_and_round_trip() -> None:
    items = [
        {"type": "message", "role": "developer", "content": "One.", "id": "msg_1"},
        {"type": "message", "role": "system", "content": "Two."},
        {"type": "message", "role": "user", "content": "hi"},
    ]
    conversation = read(items, instructions="Zero.")
    assert [text.text for text in conversation.system] == ["Zero.", "One.", "Two."]
    body = written(conversation)
    assert body["instructions"] == "Zero."
    assert body["input"] == items


def test_consecutive_assistant_items_are_one_turn() -> None:
    conversation = read(
        [
            {"role": "user", "content": "go"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "think"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "I will."}], "phase": "commentary"},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "g", "arguments": '{"x": 1.0}'},
            {"type": "function_call_output", "call_id": "a", "output": "A"},
            {"type": "function_call_output", "call_id": "b", "output": "B"},
            {"role": "user", "content": "and?"},
        ]
    )
    assert [message.role for message in conversation.messages] == ["user", "assistant", "user"]
    reasoning, text, first, second = conversation.messages[1].blocks
    assert isinstance(reasoning, Reasoning) and reasoning.text == "think" and reasoning.family == "responses"
    assert isinstance(text, Text) and text.text == "I will."
    assert isinstance(first, ToolCall) and isinstance(second, ToolCall)
    assert second.arguments == '{"x": 1.0}', "arguments are text from wire to wire"
    assert [type(block) for block in conversation.messages[2].blocks] == [ToolResult, ToolResult, Text]


CODEX_ITEMS: list[Any] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}], "id": "msg_u"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "a", "annotations": []}],
        "id": "msg_a",
        "phase": "commentary",
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "exec_command", "arguments": '{"cmd":"ls"}'},
    {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "files"},
    {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
    {"type": "custom_tool_call_output", "id": "ctco_1", "call_id": "c2", "output": "done"},
    {"type": "function_call", "id": "fc_2", "call_id": "c3", "name": "spawn", "arguments": "{}", "namespace": "agents"},
    {
        "type": "function_call_output",
        "call_id": "c3",
        "output": [
            {"type": "input_text", "text": "x"},
            {"type": "input_image", "image_url": "https://a.example/b.png"},
        ],
    },
    {"type": "local_shell_call", "id": "l", "call_id": "c4", "action": {"type": "exec", "command": ["ls"]}},
    {"type": "function_call_output", "call_id": "c4", "output": "ok"},
    {
        "type": "apply_patch_call",
        "call_id": "c5",
        "operation": {"type": "delete_file", "path": "a"},
        "status": "completed",
    },
    {"type": "apply_patch_call_output", "call_id": "c5", "output": "no such file", "status": "failed"},
    {"type": "tool_search_call", "call_id": "t", "execution": "client", "arguments": {"query": "x"}},
    {"type": "tool_search_output", "call_id": "t", "execution": "client", "status": "completed", "tools": []},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
    {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="},
    {"type": "compaction", "encrypted_content": "zzz"},
    {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "later"}]},
    {"type": "agent_message", "author": "scout", "content": [{"type": "input_text", "text": "found it"}]},
    {"type": "item_reference", "id": "msg_1"},
    {"type": "an_item_of_next_year", "x": {"y": [1, None]}},
    {"type": "message", "role": "user", "content": "and now?"},
]


def test_every_item_of_codex_survives_a_round_trip() -> None:
    def plainly(items: list[Any]) -> list[Any]:
        return [
            {**item, "content": item["content"][0]["text"]}
            if item.get("role") == "user" and isinstance(item["content"], list)
            else item
            for item in items
        ]

    assert home(CODEX_ITEMS)["input"] == plainly(CODEX_ITEMS)


@pytest.mark.parametrize("name", OTHERS)
def test_50_every_item_of_codex_is_sent_or_noted_in_other_dialects(name: str) -> None:
    """Calls of typed tools are calls; server items and tools are never sent raw, each with a note."""
    readable = [
        item for item in CODEX_ITEMS if item["type"] not in ("compaction", "item_reference")
    ]  # these are refused
    conversation = read(readable, tools=[{"type": "local_shell"}, {"type": "tool_search"}, {"type": "web_search"}])
    planned = plan(RESPONSES, registry.get(name), conversation)
    registry.get(name).binding.wrap(planned.call())
    # most leave them out, Kiro sends some of them as text (docs/decisions/kiro.md#d13)
    noted = {note.at for note in planned.notes}
    gone = {f"input[{index}]" for index in (13, 14, 15, 16, 19)} | {f"tools[{index}]" for index in range(3)}
    assert gone <= noted
    assert "later" in {
        tool.name for tool in planned.translated.tools if isinstance(tool, ToolSpec)
    }  # all that [17] says
    translated_blocks = [block for message in planned.translated.messages for block in message.blocks]
    calls = {block.name for block in translated_blocks if isinstance(block, ToolCall)}
    assert {"apply_patch", "local_shell", "agents__spawn", "exec_command"} <= calls
    assert any("found it" in block.text for block in translated_blocks if isinstance(block, Text))


def test_encrypted_reasoning_is_a_signature_of_this_family() -> None:
    conversation = read(
        [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, {"role": "user", "content": "x"}]
    )
    assert conversation.messages[0].blocks == (Reasoning("", "responses", Signature("responses", "gAAA", "encrypted")),)


def test_a_marked_signature_is_sent_to_the_family_that_made_it() -> None:
    """What the encoder marked in encrypted_content is a signature again at Anthropic (docs/decisions/signatures.md#d50)."""
    thought = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]}
    marked = {**thought, "encrypted_content": "dragoman1.anthropic.signature.c2ln"}
    conversation = read(
        [
            {"role": "user", "content": "x"},
            marked,
            {"role": "assistant", "content": "y"},
            {"role": "user", "content": "z"},
        ]
    )
    body: Any = plan(RESPONSES, registry.get("anthropic"), conversation).call().body
    assert body["messages"][1]["content"][0] == {"type": "thinking", "thinking": "Hm.", "signature": "sig"}


@pytest.mark.parametrize(
    "item",
    [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
        },
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "raw"}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "a"}],
            "content": [{"type": "reasoning_text", "text": "raw"}],
            "encrypted_content": "e",
        },
    ],
    ids=["two parts", "content", "both"],
)
def test_the_parts_of_reasoning_survive_a_round_trip(item: Any) -> None:
    [rendered] = home([item])["input"]
    assert rendered == item


def test_images_and_files() -> None:
    content = [
        {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low"},
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        {"type": "input_file", "file_url": "https://a.example/b.pdf"},
        {"type": "input_file", "file_id": "file_2"},
    ]
    conversation = read([{"role": "user", "content": content}])
    assert [(block.kind, block.form) for block in conversation.messages[0].blocks if isinstance(block, Media)] == [
        ("image", "base64"),
        ("image", "file"),
        ("document", "base64"),
        ("document", "url"),
        ("document", "file"),
    ]
    assert written(conversation)["input"][0]["content"] == content


# --- tools


TOOLS: Any = [
    {"type": "function", "name": "f", "description": "F", "parameters": {"type": "object"}, "strict": True},
    {"type": "custom", "name": "apply_patch", "description": "P", "format": {"type": "grammar", "syntax": "lark"}},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Helpers.",
        "tools": [
            {"type": "function", "name": "spawn", "parameters": {"type": "object"}},
            {"type": "custom", "name": "tell"},
        ],
    },
    {"type": "web_search", "external_web_access": True},
]


def test_tools_survive_a_round_trip() -> None:
    assert home(tools=TOOLS)["tools"] == TOOLS


def test_a_tool_in_a_namespace_is_known_by_both_names() -> None:
    conversation = read(tools=TOOLS)
    specs = [tool for tool in conversation.tools if isinstance(tool, ToolSpec)]
    assert [tool.name for tool in specs] == ["f", "apply_patch", "agents__spawn", "agents__tell"]
    assert specs[1].schema is None and specs[3].schema is None, "custom tools take free text"
    assert isinstance(conversation.tools[-1], Opaque)


@pytest.mark.parametrize("name", OTHERS)
def test_a_namespaced_tool_can_be_offered_everywhere(name: str) -> None:
    planned = plan(RESPONSES, registry.get(name), read(tools=TOOLS))
    assert "agents__spawn" in {tool.name for tool in planned.translated.tools if isinstance(tool, ToolSpec)}


def test_fields_named_like_canonical_ones_keep_their_place() -> None:
    inner = {"type": "function", "name": "g", "parameters": {}, "namespace": 2}
    tools = [
        {"type": "function", "name": "f", "parameters": {}, "namespace": {"description": "d"}},
        {"type": "namespace", "name": "n", "description": "d", "namespace": 1, "tools": [inner]},
    ]
    assert home(tools=tools)["tools"] == tools


@pytest.mark.parametrize("name", OTHERS)
def test_a_stored_prompt_alone_is_refused_by_other_dialects(name: str) -> None:
    with pytest.raises(Unrepresentable, match="stored by another service"):
        plan(RESPONSES, registry.get(name), read([], prompt={"id": "p"}))
    assert plan(RESPONSES, RESPONSES, read([], prompt={"id": "p"})).verbatim


@pytest.mark.parametrize("role", ["system", "developer"])
def test_an_empty_message_is_kept(role: str) -> None:
    conversation = read([{"role": role, "content": ""}])
    assert len(written(conversation)["input"]) == 1
    for name in OTHERS:
        other = registry.get(name)
        assert not other.codec.breaches(plan(RESPONSES, other, conversation).call()), name


def test_annotations_survive_a_round_trip_for_every_role() -> None:
    part = {"type": "input_text", "text": "x", "annotations": [{"type": "new"}]}
    items = [{"type": "message", "role": role, "content": [part]} for role in ("system", "user")]
    assert home(items)["input"] == items


def test_an_empty_namespace_is_kept_whole() -> None:
    tools = [{"type": "namespace", "name": "n", "description": "", "tools": []}]
    assert home(tools=tools)["tools"] == tools


def test_a_name_too_long_with_its_namespace_gets_one_alias_and_is_restored() -> None:
    long = {"type": "function", "name": "n" * 60, "parameters": {"type": "object", "properties": {}}}
    tools = [{"type": "namespace", "name": "space", "description": "d", "tools": [long]}]
    conversation = read(tools=tools)
    planned = plan(RESPONSES, registry.get("openai"), conversation)
    [tool] = [tool for tool in planned.translated.tools if isinstance(tool, ToolSpec)]
    assert len(tool.name) <= 64
    started = (
        Started("c", "m"),
        BlockStarted(0, ToolCall("a", tool.name)),
        BlockEnded(0),
        Stopped(Stop(StopReason.TOOL)),
    )
    events = ResponseFilters(planned).feed((*started, FINISHED))
    output: Any = jsonio.decode(RESPONSES.codec.render_reply(assemble_reply(events), conversation, fixed_environment()))
    [item] = output["output"]
    assert (item["namespace"], item["name"]) == ("space", "n" * 60)


@pytest.mark.parametrize(
    ("wire_choice", "choice"),
    [
        ("auto", ToolChoice()),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("any")),
        ({"type": "function", "name": "f"}, ToolChoice("one", ("f",))),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice("one", ("apply_patch",))),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, ToolChoice("one", ("agents__spawn",))),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
            ToolChoice("any", ("f",)),
        ),
    ],
    ids=str,
)
def test_tool_choices(wire_choice: Any, choice: ToolChoice) -> None:
    conversation = read(tools=TOOLS, tool_choice=wire_choice)
    assert conversation.tool_choice == choice
    assert written(conversation).get("tool_choice", "auto") == wire_choice


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "web_search"},
        {"type": "mcp", "server_label": "x"},
        {"type": "function", "name": "f", "namespace": "unknown"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f", "namespace": "unknown"}]},
    ],
    ids=str,
)
def test_a_choice_of_a_server_tool_survives_a_round_trip(choice: Any) -> None:
    assert home(tools=TOOLS, tool_choice=choice)["tool_choice"] == choice


# --- settings


def test_settings_and_unknown_fields_survive_a_round_trip() -> None:
    fields: Any = {
        "max_output_tokens": 100,
        "temperature": 0.5,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "reasoning": {"effort": "high", "summary": "auto", "context": "x"},
        "text": {
            "format": {
                "type": "json_schema",
                "name": "n",
                "schema": {"type": "object"},
                "strict": True,
                "description": "d",
            },
            "verbosity": "low",
        },
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "metadata": {"a": "b"},
        "truncation": "auto",
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "client_metadata": {"x": 1},
        "safety_identifier": "s",
        "top_logprobs": 2,
        "stream_options": {"include_obfuscation": False},
        "a_field_of_next_year": [1],
        "tools": TOOLS,
    }
    body = home(**fields)
    assert {name: body[name] for name in fields} == fields


def test_no_effort_is_thinking_switched_off() -> None:
    assert read(reasoning={"effort": "none"}).thinking.mode == "off"
    assert home(reasoning={"effort": "none"})["reasoning"] == {"effort": "none"}


@pytest.mark.parametrize("field", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}], ids=str)
def test_server_state_is_kept_for_responses_and_refused_by_other_dialects(field: Any) -> None:
    conversation = read("go on", **field)
    assert conversation.has_stored_turns
    assert field.items() <= written(conversation).items()
    with pytest.raises(Unrepresentable):
        plan(RESPONSES, registry.get("anthropic"), conversation).call()


def test_the_earlier_response_comes_first_without_its_instructions() -> None:
    before = read([{"role": "developer", "content": "Rules."}, {"role": "user", "content": "one"}], instructions="Old.")
    now = read([{"role": "system", "content": "From now on."}, {"role": "user", "content": "two"}], instructions="New.")
    assert RESPONSES.continuation is not None
    joined = RESPONSES.continuation.continue_conversation(before, now)
    assert [text.text for text in joined.system] == ["New.", "Rules."]
    assert [message.role for message in joined.messages] == ["user", "system", "user"]
    assert joined.previous_id is None


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"input": 1}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": 1}]}, "input[0].type"),
        ({"input": [{"role": "owner", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 7}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"text": "no type"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "a", "name": "", "arguments": "{}"}]}, "input[0].name"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"name": 3}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "tools": [{"type": "function", "name": "f"}]}]}, "tools[0].name"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "schema": 1}}}, "text.format.schema"),
        ({"previous_response_id": ""}, "previous_response_id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}]},
            "input[0].content[0].image_url",
        ),
    ],
    ids=str,
)
def test_bad_input_names_its_place(body: Any, place: str) -> None:
    with pytest.raises(MalformedRequest) as raised:
        RESPONSES.codec.parse_request(RESPONSES.binding.unwrap({"model": "m", "input": "x", **body}))
    assert raised.value.at == place


def test_a_long_call_id_is_clamped_on_both_sides_of_the_pair() -> None:
    long = ["i" * 80 + "1", "i" * 80 + "2"]
    messages = (
        Message("user", (Text("go"),)),
        Message("assistant", tuple(ToolCall(each, "f", "{}") for each in long)),
        Message("user", tuple(ToolResult(each, (Text("x"),)) for each in long)),
    )
    planned = plan(registry.get("anthropic"), RESPONSES, Conversation("m", messages, tools=(ToolSpec("f", "", {}),)))
    items: Any = planned.call().body["input"]  # type: ignore[index,call-overload]
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    outputs = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert calls == outputs and len(set(calls)) == 2 and all(len(each) <= 64 for each in calls)


def test_an_output_has_the_kind_of_its_call() -> None:
    messages = (
        Message("user", (Text("go"),)),
        Message("assistant", (ToolCall("a", "patch", "*** Begin", "text"),)),
        Message("user", (ToolResult("a", (Text("ok"),)),)),
    )
    conversation = Conversation("m", messages, tools=(ToolSpec("patch"),))
    items: Any = plan(registry.get("openai"), RESPONSES, conversation).call().body["input"]  # type: ignore[index,call-overload]
    assert [item["type"] for item in items] == ["message", "custom_tool_call", "custom_tool_call_output"]


def test_assistant_turns_in_a_row_are_joined_with_a_note() -> None:
    messages = (Message("user", (Text("a"),)), Message("assistant", (Text("b"),)), Message("assistant", (Text("c"),)))
    planned = plan(registry.get("openai"), RESPONSES, Conversation("m", messages))
    assert [note.rule for note in planned.notes] == ["responses.join_answers"]


def test_a_limit_below_sixteen_tokens_is_raised_with_a_note() -> None:
    planned = plan(
        registry.get("anthropic"), RESPONSES, Conversation("m", (Message("user", (Text("a"),)),), max_tokens=1)
    )
    assert planned.translated.max_tokens == 16
    assert [note.rule for note in planned.notes] == ["responses.least_tokens"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_custom_tool_is_offered_everywhere_and_its_call_is_free_text_again(name: str) -> None:
    upstream = registry.get(name)
    if name == "openai":
        upstream = configure_dialect(
            upstream, {"custom_tools": False}
        )  # as servers that know functions only are set up
    history = [
        {"role": "user", "content": "go"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin\n"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
    ]
    conversation = read(history, tools=[{"type": "custom", "name": "apply_patch", "description": "P"}])
    planned = plan(RESPONSES, upstream, conversation)
    [tool] = [tool for tool in planned.translated.tools if isinstance(tool, ToolSpec)]
    assert tool.schema is not None and "input" in tool.schema["properties"]  # type: ignore[operator]
    [call] = [
        block for message in planned.translated.messages for block in message.blocks if isinstance(block, ToolCall)
    ]
    assert jsonio.decode(call.arguments) == {"input": "*** Begin\n"}
    answered = (BlockStarted(0, ToolCall("c2", "apply_patch")), ArgumentsDelta(0, '{"input":"*** End"}'), BlockEnded(0))
    events = ResponseFilters(planned).feed((Started("x", "m"), *answered, Stopped(Stop(StopReason.TOOL)), FINISHED))
    reply: Any = jsonio.decode(RESPONSES.codec.render_reply(assemble_reply(events), conversation, fixed_environment()))
    [item] = reply["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", "*** End")


ADDED: dict[str, Any] = {
    "type": "additional_tools",
    "id": "at_1",
    "role": "developer",
    "tools": [
        {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]},
        {"type": "function", "name": "later", "parameters": {"type": "object"}},
    ],
}


def test_tools_of_an_item_are_offered_and_for_responses_only_by_the_item() -> None:
    """Codex 0.166 with its own model: no `tools`, but this item first."""
    items = [ADDED, {"type": "message", "role": "user", "content": "go"}]
    conversation = read(items)
    assert [tool.name for tool in conversation.tools if isinstance(tool, ToolSpec)] == ["functions__exec", "later"]
    assert written(conversation)["input"] == items
    assert "tools" not in written(conversation)


@pytest.mark.parametrize("name", OTHERS)
def test_a_call_of_a_tool_that_an_item_brought_has_its_namespace_again(name: str) -> None:
    conversation = read([ADDED, {"type": "message", "role": "user", "content": "go"}])
    planned = plan(RESPONSES, registry.get(name), conversation)
    assert [tool.name for tool in planned.translated.tools if isinstance(tool, ToolSpec)] == [
        "functions__exec",
        "later",
    ]
    answered = (BlockStarted(0, ToolCall("c", "functions__exec", form="text")), ArgumentsDelta(0, "1"), BlockEnded(0))
    events = (Started("x", "m"), *answered, Stopped(Stop(StopReason.TOOL)), FINISHED)
    reply: Any = jsonio.decode(RESPONSES.codec.render_reply(assemble_reply(events), conversation, fixed_environment()))
    [item] = reply["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "functions", "exec")


def test_a_tool_of_the_request_wins_over_items_and_a_later_item_over_earlier_ones() -> None:
    newer = {**ADDED, "tools": [{"type": "function", "name": "later", "description": "newer"}]}
    conversation = read([ADDED, {"role": "user", "content": "go"}, newer])
    sent = plan(RESPONSES, registry.get("openai"), conversation).translated.tools
    assert [tool.description for tool in sent if isinstance(tool, ToolSpec)] == ["", "newer"]
    conversation = read([ADDED, {"role": "user", "content": "go"}], tools=[{"type": "function", "name": "later"}])
    sent = plan(RESPONSES, registry.get("openai"), conversation).translated.tools
    assert [tool.name for tool in sent if isinstance(tool, ToolSpec)] == ["later", "functions__exec"]


def test_a_tool_in_an_item_that_is_none_is_named() -> None:
    with pytest.raises(MalformedRequest) as caught:
        read([{"type": "additional_tools", "tools": [{"type": "function", "name": 1}]}])
    assert caught.value.at == "input[0].tools[0].name"


# --- names that meet

APART = [
    {"type": "function", "name": "a__b", "parameters": {"type": "object"}},
    {
        "type": "namespace",
        "name": "a",
        "description": "of a",
        "tools": [{"type": "function", "name": "b", "parameters": {}}, {"type": "custom", "name": "_b"}],
    },
]
MET = [
    {"type": "message", "role": "user", "content": "go"},
    {"type": "function_call", "call_id": "c1", "name": "b", "arguments": "{}", "namespace": "a"},
    {"type": "function_call", "call_id": "c2", "name": "a__b", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "1"},
    {"type": "function_call_output", "call_id": "c2", "output": "2"},
]


@pytest.mark.parametrize("name", registry.names())
def test_a_tool_whose_name_looks_like_that_of_another_in_its_namespace_is_not_mistaken_for_it(name: str) -> None:
    conversation = read(MET, tools=APART)
    planned = plan(RESPONSES, registry.get(name), conversation)
    offered = [tool.name for tool in planned.translated.tools if isinstance(tool, ToolSpec)]
    assert len(set(offered)) == 3
    called = [
        block.name for message in planned.translated.messages for block in message.blocks if isinstance(block, ToolCall)
    ]
    assert called == [offered[1], "a__b"]
    if name == "responses":
        assert home(MET, tools=APART)["tools"] == APART and home(MET, tools=APART)["input"] == MET
    names: list[tuple[str, str | None]] = []
    for whole in offered:
        response = (BlockStarted(0, ToolCall("c9", whole)), ArgumentsDelta(0, "{}"), BlockEnded(0))
        events = ResponseFilters(planned).feed((Started("x", "m"), *response, Stopped(Stop(StopReason.TOOL)), FINISHED))
        reply: Any = jsonio.decode(
            RESPONSES.codec.render_reply(assemble_reply(events), conversation, fixed_environment())
        )
        names.append((reply["output"][0]["name"], reply["output"][0].get("namespace")))
    assert names == [("a__b", None), ("b", "a"), ("_b", "a")]


def test_a_choice_among_names_that_meet_is_of_the_one_it_names() -> None:
    chosen = {"type": "function", "name": "b", "namespace": "a"}
    conversation = read(MET, tools=APART, tool_choice=chosen)
    assert conversation.tool_choice.names != ("a__b",)
    assert written(conversation)["tool_choice"] == chosen


def test_an_added_tool_in_a_namespace_is_not_taken_for_one_that_only_looks_like_it() -> None:
    added = {"type": "additional_tools", "tools": APART[1:]}
    conversation = read([added, {"role": "user", "content": "go"}], tools=APART[:1])
    assert len([tool for tool in conversation.tools if isinstance(tool, ToolSpec)]) == 3


@pytest.mark.parametrize("field", ["foo.bar", ".", "textual.x"])
def test_a_field_with_a_dot_in_its_name_stays_as_it_is(field: str) -> None:
    assert home(**{field: 1})[field] == 1


@pytest.mark.parametrize("about", [{"id": "o", "call_id": "c"}, {"call_id": "c"}, {"id": "c"}])
def test_an_output_of_local_shell_names_its_call_as_it_did(about: dict[str, str]) -> None:
    call = {"type": "local_shell_call", "id": "l", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}}
    items = [{"type": "message", "role": "user", "content": "go"}, call]
    items.append({"type": "local_shell_call_output", **about, "output": "ok"})
    assert home(items)["input"] == items


@pytest.mark.parametrize("name", OTHERS)
def test_an_item_that_only_brings_tools_leaves_no_empty_turn_behind(name: str) -> None:
    conversation = read([{"role": "user", "content": "go"}, ADDED, {"role": "user", "content": "on"}])
    assert all(message.blocks for message in plan(RESPONSES, registry.get(name), conversation).translated.messages)


# --- joined names that are not legal, of names that are

LONG = [("a.b", "read"), ("n" * 40, "r" * 40), ("srv/x", "go")]


def inside(namespace: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name, "parameters": {"type": "object"}} for name in names]
    return {"type": "namespace", "name": namespace, "tools": tools}


@pytest.mark.parametrize(("namespace", "name"), LONG)
@pytest.mark.parametrize("mixed", [False, True], ids=["one", "among others"])
@pytest.mark.parametrize("added", [False, True], ids=["offered", "added"])
def test_no_tool_in_a_namespace_is_renamed_for_responses_and_the_choice_names_it(
    namespace: str, name: str, mixed: bool, added: bool
) -> None:
    chosen: dict[str, Any] = {"type": "function", "name": name, "namespace": namespace}
    if mixed:  # a choice without a canonical form is unchanged
        chosen = {"type": "allowed_tools", "mode": "auto", "tools": [chosen, {"type": "mcp", "server_label": "x"}]}
    tools = [inside(namespace, name, "other")]
    call = {"type": "function_call", "call_id": "c1", "name": name, "arguments": "{}", "namespace": namespace}
    items = [
        *([{"type": "additional_tools", "tools": tools}] if added else []),
        {"type": "message", "role": "user", "content": "go"},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
    ]
    body = {"input": items, "tool_choice": chosen} | ({} if added else {"tools": tools})
    translation = dragoman.translate_request({"model": "m", **body}, source="responses", target="responses")
    assert {field: translation.body.get(field) for field in body} == body
    assert not translation.notes
    output_item = {"type": "function_call", "call_id": "c2", "name": name, "arguments": "{}", "namespace": namespace}
    reply = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [output_item]}
    translated = dragoman.translate_reply(reply, source="responses", target="responses", request=translation)
    assert [translated.body["output"][0][field] for field in ("name", "namespace")] == [name, namespace]


def test_a_tool_whose_name_is_not_legal_in_its_namespace_either_is_renamed_and_the_choice_with_it() -> None:
    body = {"model": "m", "input": "go", "tools": [inside("n", "read file")]}
    chosen = {"type": "function", "name": "read file", "namespace": "n"}
    translation = dragoman.translate_request({**body, "tool_choice": chosen}, source="responses", target="responses")
    assert [note.rule for note in translation.notes] == ["tools.renamed"]
    assert translation.body["tool_choice"]["name"] == translation.body["tools"][0]["name"]


@pytest.mark.parametrize("target", [name for name in registry.names() if name != "responses"])
@pytest.mark.parametrize(("namespace", "name"), LONG)
def test_in_other_dialects_its_joined_name_is_made_legal_and_the_choice_follows(
    namespace: str, name: str, target: str
) -> None:
    chosen = {"type": "function", "name": name, "namespace": namespace}
    body = {"model": "m", "input": "go", "tools": [inside(namespace, name)], "tool_choice": chosen}
    sent = dragoman.translate_request(body, source="responses", target=target).plan.translated
    (tool,) = sent.tools
    assert isinstance(tool, ToolSpec)
    assert sent.tool_choice.names in ((), (tool.name,))  # Kiro has no choice
    assert registry.get(target).codec.capabilities("m").names.limit >= len(tool.name)
