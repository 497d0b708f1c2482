"""Tools that change in the middle of a conversation, and summaries of the past, translated for other families."""

from __future__ import annotations

from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.conformance.laws import fixed_environment
from dragoman.errors import Unrepresentable
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Stop, StopReason, ToolSpec
from dragoman.model.events import FINISHED, ArgumentsDelta, BlockEnded, BlockStarted, Events, Started, Stopped
from dragoman.response_stream import ResponseFilters
from dragoman.translate import Plan, plan
from dragoman.wire import jsonio

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
ANTHROPIC, RESPONSES = registry.get("anthropic"), registry.get("responses")
FROM_ANTHROPIC = pytest.mark.parametrize(
    "target", [name for name in registry.names() if registry.get(name).codec.family != "anthropic"]
)
FROM_RESPONSES = pytest.mark.parametrize("target", [name for name in registry.names() if name != "responses"])


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": f"It is {name}.", "input_schema": SCHEMA, **more}


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": f"It is {name}.", "parameters": SCHEMA, **more}


def anthropic(messages: list[Any], tools: list[Any] | None = None, **more: Any) -> Conversation:
    body = {"model": "m", "max_tokens": 100, "messages": messages, "tools": tools or [], **more}
    return ANTHROPIC.codec.parse_request(ANTHROPIC.binding.unwrap(body))


def responses(items: list[Any], tools: list[Any] | None = None, **more: Any) -> Conversation:
    body = {"model": "m", "input": items, "tools": tools or [], **more}
    return RESPONSES.codec.parse_request(RESPONSES.binding.unwrap(body))


def sent_to(target: str, conversation: Conversation) -> Plan:
    """The plan for a target; it renders, and the target's own rules hold."""
    upstream = registry.get(target)
    planned = plan(ANTHROPIC if conversation.max_tokens else RESPONSES, upstream, conversation)
    assert not upstream.codec.breaches(planned.call())
    return planned


def names(planned: Plan) -> list[str]:
    return [each.name for each in planned.translated.tools if isinstance(each, ToolSpec)]


def rules(planned: Plan) -> set[str]:
    return {note.rule for note in planned.notes}


def text_of(planned: Plan) -> str:
    """All text that the target is sent."""
    words = [text.text for text in planned.translated.system]
    for message in planned.translated.messages:
        for block in message.blocks:
            parts = block.content if isinstance(block, ToolResult) else (block,)
            words += [part.text for part in parts if isinstance(part, Text)]
    return "\n".join(words)


def passes_unchanged(dialect: str, body: dict[str, Any]) -> None:
    own = registry.get(dialect)
    planned = plan(own, own, own.codec.parse_request(own.binding.unwrap(body)))
    assert planned.notes == ()
    assert jsonio.decode(own.binding.wrap(planned.call()).body) == body


USER = {"role": "user", "content": "hi"}
SEARCHED = [
    USER,
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "ToolSearch", "input": {"q": "web"}}]},
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "t1",
                "content": [
                    {"type": "tool_reference", "tool_name": "WebFetch"},
                    {"type": "tool_reference", "tool_name": "Edit"},
                ],
            },
            {"type": "text", "text": "Tool loaded."},
        ],
    },
]
CLAUDE_CODE = [
    tool("Agent"),
    {**tool("DeferredToolPlaceholder"), "defer_loading": True},
    tool("Edit", defer_loading=True),
    tool("Read"),
    tool("ToolSearch"),
    tool("WebFetch", defer_loading=True),
]


def change(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "tool": {"type": "tool_reference", "name": name}}


def definition(name: str) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool(name)}}


# --- Anthropic


@FROM_ANTHROPIC
def test_a_tool_defined_by_tool_addition_reaches_the_target(target: str) -> None:
    conversation = anthropic([USER, {"role": "system", "content": [definition("inline")]}], [tool("Read")])
    planned = sent_to(target, conversation)
    assert names(planned) == ["Read", "inline"]
    assert "Tool inline is available from here on." in text_of(planned)
    assert "tools.changed" in rules(planned) and not rules(planned) & {"foreign.block", "foreign.tool"}


@FROM_ANTHROPIC
def test_a_removed_tool_stays_declared_and_the_model_is_informed(target: str) -> None:
    messages = [USER, {"role": "system", "content": [change("tool_removal", "Read"), change("tool_addition", "gone")]}]
    planned = sent_to(target, anthropic(messages, [tool("Read")]))
    assert names(planned) == ["Read"]
    assert "Tool Read is no longer available." in text_of(planned)
    assert "Tool gone is not available." in text_of(planned)


@FROM_ANTHROPIC
def test_references_become_definitions_and_found_tools_come_last_in_order_of_reference(target: str) -> None:
    planned = sent_to(target, anthropic(SEARCHED, CLAUDE_CODE))
    assert names(planned) == ["Agent", "Read", "ToolSearch", "WebFetch", "Edit"]
    [result] = [
        block for message in planned.translated.messages for block in message.blocks if isinstance(block, ToolResult)
    ]
    lines = next(part.text for part in result.content if isinstance(part, Text)).split("\n")
    assert [lines[0], lines[3]] == ["<functions>", "</functions>"]
    shown = jsonio.decode(lines[1].removeprefix("<function>").removesuffix("</function>").encode())
    assert shown == {"description": "It is WebFetch.", "name": "WebFetch", "parameters": SCHEMA}
    assert {"tools.reference", "tools.deferred", "tools.placeholder"} <= rules(planned)
    assert not [note for note in planned.notes if note.action == "dropped" and note.at.startswith("tools")]


def test_an_unknown_reference_says_so_and_a_result_is_never_empty() -> None:
    planned = sent_to("openai", anthropic(SEARCHED, [tool("ToolSearch")]))
    assert "Tool WebFetch is not available.\nTool Edit is not available." in text_of(planned)


def test_the_definition_is_shown_under_the_name_that_is_sent() -> None:
    messages = jsonio.decode(jsonio.encode(SEARCHED).replace(b"WebFetch", b"mcp.web/fetch"))
    planned = sent_to("openai", anthropic(messages, [tool("ToolSearch"), tool("mcp.web/fetch", defer_loading=True)]))  # type: ignore[arg-type]
    alias = names(planned)[-1]
    assert alias.startswith("mcp_web_fetch_") and f'"name":"{alias}"' in text_of(planned)


@pytest.mark.parametrize(
    ("search", "choice", "sent"),
    [
        ("ToolSearch", {}, ["ToolSearch"]),
        ("search_tools", {}, ["search_tools"]),
        ("find_tool", {}, ["find_tool"]),
        ("ToolSearch", {"type": "tool", "name": "b"}, ["ToolSearch", "b"]),
        ("search_toolbox", {}, ["a", "search_toolbox", "b"]),
        ("Read", {}, ["a", "Read", "b"]),
    ],
)
def test_a_deferred_tool_waits_only_for_a_search_that_the_client_runs(
    search: str, choice: dict[str, Any], sent: list[str]
) -> None:
    tools = [tool("a", defer_loading=True), tool(search), tool("b", defer_loading=True)]
    planned = sent_to("openai", anthropic([USER], tools, **({"tool_choice": choice} if choice else {})))
    assert names(planned) == sent
    assert "tools.deferred" in rules(planned)


def test_a_called_tool_is_sent_though_its_reference_is_gone() -> None:
    called = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "Edit", "input": {}}]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}
    assert names(sent_to("openai", anthropic([USER, called, result], CLAUDE_CODE)))[-1] == "Edit"


def test_without_the_server_that_searches_all_deferred_tools_are_sent_in_their_order() -> None:
    tools = [
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
        tool("a", defer_loading=True),
        tool("ToolSearch"),
        tool("b", defer_loading=True),
    ]
    found = {
        "type": "tool_search_tool_search_result",
        "tool_references": [{"type": "tool_reference", "tool_name": "b"}],
    }
    searched = [
        {"type": "server_tool_use", "id": "s", "name": "tool_search_tool_regex", "input": {"query": "b.*"}},
        {"type": "tool_search_tool_result", "tool_use_id": "s", "content": found},
        {"type": "text", "text": "found"},
    ]
    conversation = anthropic([USER, {"role": "assistant", "content": searched}, USER], tools)
    planned = sent_to("openai", conversation)
    assert names(planned) == ["a", "ToolSearch", "b"]
    assert '(tool_search_tool_regex was used with {"query":"b.*"})' in text_of(planned)
    assert "<functions>" in text_of(planned) and '"name":"b"' in text_of(planned)


def test_defer_loading_false_says_nothing_and_loses_nothing() -> None:
    planned = sent_to("openai", anthropic([USER], [tool("a", defer_loading=False)]))
    assert planned.notes == ()


def test_anthropic_to_anthropic_passes_unchanged() -> None:
    compaction = {"type": "compaction", "content": "Past.", "encrypted_content": "x", "tool_changes": [definition("z")]}
    messages = [
        {"role": "assistant", "content": [compaction]},
        *SEARCHED,
        {"role": "system", "content": [definition("inline"), change("tool_removal", "Read")]},
    ]
    more = {"compaction": {"type": "summarize"}, "context_management": {"edits": [{"type": "compact_20260112"}]}}
    passes_unchanged("anthropic", {"model": "m", "max_tokens": 9, "messages": messages, "tools": CLAUDE_CODE, **more})


# --- Responses

SEARCH_TOOL = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": SCHEMA}
CRM = {"type": "namespace", "name": "crm", "description": "d", "tools": [function("get", defer_loading=True)]}
CALL = {"type": "tool_search_call", "call_id": "s1", "execution": "client", "arguments": {"q": "crm"}}
OUTPUT = {"type": "tool_search_output", "call_id": "s1", "execution": "client", "tools": [CRM, function("flat")]}
QUESTION = {"type": "message", "role": "user", "content": "hi"}


@FROM_RESPONSES
def test_a_tool_that_only_a_search_output_declares_reaches_the_target(target: str) -> None:
    conversation = responses(
        [QUESTION, CALL, OUTPUT], [function("X"), SEARCH_TOOL, function("later", defer_loading=True)]
    )
    planned = sent_to(target, conversation)
    assert names(planned) == ["X", "tool_search", "crm__get", "flat"]
    blocks = [block for message in planned.translated.messages for block in message.blocks]
    [call], [result] = ([b for b in blocks if isinstance(b, kind)] for kind in (ToolCall, ToolResult))
    assert isinstance(call, ToolCall) and call.name == "tool_search"
    assert isinstance(result, ToolResult) and result.call_id == call.id
    assert '"name":"crm__get"' in text_of(planned) and '"name":"flat"' in text_of(planned)
    assert {"tools.search", "tools.reference", "tools.deferred"} <= rules(planned)


def test_a_search_that_found_nothing_has_a_result_that_says_so() -> None:
    planned = sent_to("kiro", responses([QUESTION, CALL, {**OUTPUT, "tools": []}], [SEARCH_TOOL]))
    assert "No tool was found." in text_of(planned)


def test_a_search_that_the_service_ran_is_text_and_its_tools_are_sent() -> None:
    call = {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {"paths": ["crm"]}}
    output = {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": [CRM]}
    conversation = responses(
        [QUESTION, call, output, QUESTION], [{"type": "tool_search"}, function("b", defer_loading=True)]
    )
    planned = sent_to("openai", conversation)
    assert names(planned) == ["b", "crm__get"]
    assert "(tool_search was used with paths: crm)" in text_of(planned)
    assert "<functions>" in text_of(planned) and '"name":"crm__get"' in text_of(planned)


@FROM_RESPONSES
def test_additional_tools_anywhere_reach_the_target(target: str) -> None:
    def adding(*tools: Any) -> dict[str, Any]:
        return {"type": "additional_tools", "role": "developer", "tools": list(tools)}

    items = [
        adding(function("one"), SEARCH_TOOL),
        QUESTION,
        adding({**CRM, "tools": [function("two"), function("x", defer_loading=True)]}),
    ]
    planned = sent_to(target, responses(items))
    assert names(planned) == ["tool_search", "one", "crm__two"]
    assert names(
        sent_to(target, responses([*items, CALL, {**OUTPUT, "tools": [{**CRM, "tools": [function("x")]}]}]))
    ) == [
        *names(planned),
        "crm__x",
    ]


@FROM_RESPONSES
def test_a_namespace_in_a_namespace_keeps_its_tools(target: str) -> None:
    nested = {"type": "namespace", "name": "inner", "description": "d", "tools": [function("f")]}
    outer = {"type": "namespace", "name": "outer", "description": "d", "tools": [function("g"), nested]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "namespace": "inner", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    planned = sent_to(target, responses([QUESTION, call, output], [outer]))
    assert names(planned) == ["outer__g", "outer__inner__f"]
    passes_unchanged("responses", {"model": "m", "input": [QUESTION, call, output], "tools": [outer]})


def test_responses_to_responses_passes_unchanged() -> None:
    items = [QUESTION, CALL, OUTPUT, {"type": "compaction", "encrypted_content": "x"}, {"type": "compaction_trigger"}]
    management = [{"type": "compaction", "compact_threshold": 1000}]
    tools = [SEARCH_TOOL, function("later", defer_loading=True), CRM]
    passes_unchanged(
        "responses", {"model": "gpt-5.4", "input": items, "tools": tools, "context_management": management}
    )


def test_two_tools_that_would_have_one_name_are_refused() -> None:
    with pytest.raises(Unrepresentable, match="tool_search"):
        sent_to("openai", responses([QUESTION], [SEARCH_TOOL, function("tool_search")]))


SEARCH_REPLY: Events = (
    Started("r", "m"),
    BlockStarted(0, ToolCall("s9", "tool_search")),
    ArgumentsDelta(0, '{"q":'),
    ArgumentsDelta(0, '"web"}'),
    BlockEnded(0),
    Stopped(Stop(StopReason.TOOL)),
    FINISHED,
)


def test_a_call_of_the_search_comes_back_as_the_item_that_the_client_waits_for() -> None:
    conversation = responses([QUESTION], [SEARCH_TOOL])
    events = ResponseFilters(sent_to("openai", conversation)).feed(SEARCH_REPLY)
    whole: Any = jsonio.decode(RESPONSES.codec.render_reply(assemble_reply(events), conversation, fixed_environment()))
    frames = [
        jsonio.decode(payload.data)
        for payload in RESPONSES.codec.encoder(conversation, fixed_environment()).feed(events)
    ]
    streamed: Any = frames[-1]
    for output in (whole["output"], streamed["response"]["output"]):
        [item] = output
        assert item["type"] == "tool_search_call" and item["call_id"] == "s9" and item["execution"] == "client"
        assert item["arguments"] == {"q": "web"} and item["status"] == "completed"
    kinds = [frame["type"] for frame in frames if isinstance(frame, dict)]
    assert kinds[2:-1] == ["response.output_item.added", "response.output_item.done"]


# --- compaction


@FROM_ANTHROPIC
@pytest.mark.parametrize("role", ["assistant", "user"])
def test_the_summary_of_the_past_travels(target: str, role: str) -> None:
    block = {"type": "compaction", "content": "We chose blue.", "tool_changes": [definition("inline")]}
    planned = sent_to(target, anthropic([{"role": role, "content": [block]}, USER], [tool("Read")]))
    assert "We chose blue." in text_of(planned)
    assert planned.translated.messages[0].role == "user", "the summary is sent to the model, not a reply of it"
    assert names(planned) == ["Read", "inline"]
    assert "compaction.as_text" in rules(planned)


@FROM_ANTHROPIC
def test_a_summary_beside_a_call_does_not_part_the_call_from_its_result(target: str) -> None:
    use = {"type": "tool_use", "id": "c", "name": "Read", "input": {}}
    assistant_turn = {"role": "assistant", "content": [{"type": "compaction", "content": "Past."}, use]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}
    planned = sent_to(target, anthropic([USER, assistant_turn, result], [tool("Read")]))
    assert not rules(planned) & {"tools.missing_result", "tools.orphan_result", "tools.moved_result"}
    assert "Past." in text_of(planned)


def test_a_failed_compaction_says_nothing() -> None:
    failed = {"role": "assistant", "content": [{"type": "compaction", "content": None}, {"type": "text", "text": "a"}]}
    planned = sent_to("openai", anthropic([USER, failed, USER]))
    assert planned.notes == ()


@pytest.mark.parametrize(
    ("messages", "more", "place"),
    [
        ([{"role": "assistant", "content": [{"type": "compaction", "content": None, "encrypted_content": "x"}]}, USER], {},
         "messages[0].content[0]"),
        ([USER], {"compaction": {"type": "summarize"}}, "compaction"),
        ([USER], {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]}},
         "context_management.edits[1]"),
    ],
)  # fmt: skip
@FROM_ANTHROPIC
def test_what_cannot_be_honoured_is_refused_at_its_place(
    target: str, messages: list[Any], more: dict[str, Any], place: str
) -> None:
    with pytest.raises(Unrepresentable) as raised:
        sent_to(target, anthropic(messages, **more))
    assert raised.value.at == place and raised.value.fault.status == 400


def test_edits_that_only_save_room_are_left_out_with_a_note() -> None:
    planned = sent_to("openai", anthropic([USER], context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}))
    assert [(note.rule, note.at) for note in planned.notes] == [("foreign.field", "context_management")]


@pytest.mark.parametrize("kind", ["compaction", "compaction_summary", "context_compaction"])
@FROM_RESPONSES
def test_an_encrypted_past_is_refused_at_its_place(target: str, kind: str) -> None:
    with pytest.raises(Unrepresentable) as raised:
        sent_to(target, responses([QUESTION, {"type": kind, "encrypted_content": "x"}]))
    assert raised.value.at == "input[1]"


def test_a_wish_to_compact_is_refused() -> None:
    with pytest.raises(Unrepresentable) as raised:
        sent_to("kiro", responses([QUESTION], context_management=[{"type": "compaction", "compact_threshold": 9}]))
    assert raised.value.at == "context_management[0]"


def test_a_compaction_in_a_reply_is_noted_for_a_client_that_has_none() -> None:
    body = {"type": "message", "id": "m", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
    usage = {"input_tokens": 1, "output_tokens": 1}
    content = [{"type": "compaction", "content": "Past."}, {"type": "text", "text": "hi"}]
    translation = dragoman.translate_reply(
        {**body, "usage": usage, "content": content}, source="anthropic", target="responses"
    )
    assert [note.rule for note in translation.notes] == ["foreign.block"]
    assert b"hi" in jsonio.encode(translation.body)


# --- the tool that a call names


@pytest.mark.parametrize(
    ("call", "tools", "named"),
    [
        ({"name": "X", "namespace": "X"}, [function("X")], "X"),
        ({"name": "X", "namespace": "X"}, [{"type": "custom", "name": "X"}], "X"),
        ({"name": "f", "namespace": "functions"}, [function("f")], "f"),
        ({"name": "ns__f", "namespace": "ns"}, [function("ns__f")], "ns__f"),
        ({"name": "f", "namespace": "ns"}, [function("ns__f")], "ns__f"),
        ({"name": "get", "namespace": "crm"}, [CRM, function("get")], "crm__get"),
        ({"name": "get"}, [CRM], "crm__get"),
        ({"name": "get"}, [CRM, function("get")], "get"),
        ({"name": "X", "namespace": "X"}, [function("X"), {**CRM, "name": "X"}], "X"),
        ({"name": "X", "namespace": "X"}, [{**CRM, "name": "X", "tools": [function("X")]}], "X__X"),
        ({"name": "put", "namespace": "crm"}, [CRM, function("put")], "crm__put"),
        ({"name": "f", "namespace": "old"}, [function("g")], "old__f"),
    ],
    ids=str,
)
def test_a_call_names_the_declared_tool(call: dict[str, Any], tools: list[Any], named: str) -> None:
    items = [
        QUESTION,
        {"type": "function_call", "call_id": "c", **call, "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
    ]
    planned = sent_to("openai", responses(items, tools))
    [sent] = [b for message in planned.translated.messages for b in message.blocks if isinstance(b, ToolCall)]
    assert sent.name == named
    passes_unchanged("responses", {"model": "m", "input": items, "tools": tools})


@pytest.mark.parametrize("choice", [{"name": "X", "namespace": "X"}, {"name": "X", "namespace": "functions"}])
def test_a_choice_names_the_declared_tool(choice: dict[str, Any]) -> None:
    chosen = {"type": "function", **choice}
    planned = sent_to("openai", responses([QUESTION], [function("X")], tool_choice=chosen))
    assert planned.translated.tool_choice.names == ("X",) and planned.translated.tool_choice.mode == "one"
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [chosen]}
    for each in (chosen, allowed):
        passes_unchanged(
            "responses", {"model": "m", "input": [QUESTION], "tools": [function("X")], "tool_choice": each}
        )


def test_a_reply_names_the_tool_that_the_client_declared() -> None:
    translation = dragoman.translate_request(
        {"model": "m", "max_tokens": 9, "messages": [USER], "tools": [tool("X")]},
        source="anthropic",
        target="responses",
    )
    item = {"type": "function_call", "id": "fc", "call_id": "c", "name": "X", "namespace": "X", "arguments": "{}"}
    response = {"id": "resp_1", "object": "response", "model": "m", "status": "completed", "output": [item]}
    whole = dragoman.translate_reply(response, source="responses", target="anthropic", request=translation)
    assert b'"name":"X"' in jsonio.encode(whole.body)
    stream = dragoman.stream_translator(source="responses", target="anthropic", request=translation)
    events: list[Any] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "arguments": ""}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    frames = [b"event: %b\ndata: %b\n\n" % (each["type"].encode(), jsonio.encode(each)) for each in events]
    output = b"".join(map(stream.feed, frames)) + stream.close()
    assert b'"name":"X"' in output and b"X__X" not in output


# --- several definitions of one tool


@FROM_ANTHROPIC
def test_of_several_definitions_in_the_history_the_last_counts_at_the_place_of_the_first(target: str) -> None:
    again = definition("one")
    again["tool"]["definition"]["description"] = "Changed."
    blocks = [definition("one"), definition("one"), definition("two"), again]
    planned = sent_to(target, anthropic([USER, {"role": "system", "content": blocks}], [tool("Read")]))
    assert names(planned) == ["Read", "one", "two"]
    assert [note.at for note in planned.notes if note.rule == "tools.redefined"] == [
        "messages[1].content[3].tool.definition"
    ]
    [one] = [each for each in planned.translated.tools if isinstance(each, ToolSpec) and each.name == "one"]
    assert one.description == "Changed."


@FROM_RESPONSES
def test_the_tool_list_counts_before_a_definition_of_the_history(target: str) -> None:
    found = {**OUTPUT, "tools": [function("X", description="Old."), function("Y")]}
    conversation = responses([QUESTION, CALL, found], [SEARCH_TOOL, function("X")])
    planned = sent_to(target, conversation)
    assert names(planned) == ["tool_search", "X", "Y"]
    assert '"description":"It is X."' in text_of(planned)
    assert [note.at for note in planned.notes if note.rule == "tools.redefined"] == ["input[2].tools[0]"]
    passes_unchanged(
        "responses", {"model": "m", "input": [QUESTION, CALL, found], "tools": [SEARCH_TOOL, function("X")]}
    )
