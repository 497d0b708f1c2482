"""Each loss has exactly one note, at its place, and there are no other notes. Through the public API."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.errors import MalformedRequest

SCHEMA = {"type": "object", "properties": {}}
PIXEL = "data:image/png;base64,iVBORw0KGgo="
ELSEWHERE = [name for name in registry.names() if name != "responses"]


def sent(source: str, target: str, body: dict[str, Any], **options: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the body the upstream gets, and the notes, except those that a target adds to any request."""
    translated = dragoman.translate_request(body, source=source, target=target, **options)
    usual = ("max_tokens.default", "kiro.", "openai.ask_usage")
    return dict(translated.body), [str(note) for note in translated.notes if not note.rule.startswith(usual)]


def body_with(items: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "input": items, **fields}


def chatted(content: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


# --- fields of a message


@pytest.mark.parametrize("target", ELSEWHERE)
def test_the_phase_of_a_message_is_noted_once_and_where_it_stands(target: str) -> None:
    parts = [{"type": "output_text", "text": text} for text in ("One.", "Two.")]
    items = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": parts, "phase": "commentary"},
        {"role": "assistant", "content": "Three.", "phase": "final_answer"},
        {"role": "user", "content": "and?"},
    ]
    _, notes = sent("responses", target, body_with(items))
    assert [note.split(":")[0] for note in notes if "phase" in note] == [
        "[foreign.field] dropped input[1].phase",
        "[foreign.field] dropped input[2].phase",
    ]


def test_the_name_of_a_system_message_is_noted_once() -> None:
    parts = [{"type": "text", "text": text} for text in ("Be brief.", "Be kind.")]
    messages = [{"role": "system", "content": parts, "name": "house"}, {"role": "user", "content": "hi"}]
    body = {"model": "m", "messages": messages}
    _, notes = sent("openai", "anthropic", body)
    assert [note.split(":")[0] for note in notes] == ["[foreign.field] dropped messages[0].name"]
    home, notes = sent("openai", "openai", body)
    assert home["messages"] == messages and not notes


@pytest.mark.parametrize("target", ELSEWHERE)
def test_an_item_that_brings_tools_is_not_lost_when_they_are_offered(target: str) -> None:
    added = {"type": "additional_tools", "tools": [{"type": "function", "name": "read", "parameters": SCHEMA}]}
    body, notes = sent("responses", target, body_with([{"role": "user", "content": "hi"}, added]))
    assert not notes
    assert '"read"' in json.dumps(body)


def test_a_tool_in_such_an_item_that_only_responses_has_is_lost() -> None:
    added = {"type": "additional_tools", "tools": [{"type": "image_generation"}]}
    _, notes = sent("responses", "anthropic", body_with([added, {"role": "user", "content": "hi"}]))
    assert [note.split(":")[0] for note in notes] == ["[foreign.tool] dropped input[0].tools[0]"]


# --- fields that both of OpenAI's dialects have

SHARED = {
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "auto"},
    "service_tier": "flex",
}
PICTURE = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}


def test_what_chat_has_too_goes_there_without_a_note() -> None:
    image = {"type": "input_image", "image_url": PIXEL, "detail": "low"}
    question = body_with([{"role": "user", "content": [image]}], text={"verbosity": "low"}, **SHARED)
    body, notes = sent("responses", "openai", question)
    assert not notes
    assert {name: body[name] for name in SHARED} == SHARED
    assert body["verbosity"] == "low" and "text" not in body and "text.verbosity" not in body
    assert body["messages"][0]["content"] == [PICTURE]


def test_what_responses_has_too_goes_there_without_a_note() -> None:
    question = chatted([PICTURE], verbosity="low", metadata={"team": "a"}, **SHARED)
    body, notes = sent("openai", "responses", question)
    assert not notes
    assert {name: body[name] for name in SHARED} == SHARED and body["metadata"] == {"team": "a"}
    assert body["text"] == {"verbosity": "low"} and "verbosity" not in body
    [part] = body["input"][0]["content"]
    assert part == {"type": "input_image", "image_url": PIXEL, "detail": "low"}


def test_chat_takes_metadata_only_beside_store() -> None:
    """OpenAI responds 400 to metadata without store, and a translation must not turn store on by itself."""
    body, notes = sent("responses", "openai", body_with(metadata={"team": "a"}, store=True))
    assert (body["metadata"], body["store"], notes) == ({"team": "a"}, True, [])
    for question in (body_with(metadata={"team": "a"}), body_with(metadata={"team": "a"}, store=False)):
        body, notes = sent("responses", "openai", question)
        assert "metadata" not in body and "store" not in body
        assert [note.split(":")[0] for note in notes] == ["[foreign.field] dropped metadata"]


FLAT = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"}
NESTED = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/s"}}


def test_the_grammar_of_a_custom_tool_goes_both_ways() -> None:
    flat = {"type": "custom", "name": "apply_patch", "format": FLAT}
    nested = {"type": "custom", "custom": {"name": "apply_patch", "format": NESTED}}
    body, notes = sent("responses", "openai", body_with(tools=[flat]))
    assert (body["tools"], notes) == ([nested], [])
    body, notes = sent("openai", "responses", chatted(tools=[nested]))
    assert (body["tools"], notes) == ([flat], [])
    for source, question in (("responses", body_with(tools=[flat])), ("openai", chatted(tools=[nested]))):
        assert sent(source, source, question)[0]["tools"] == question["tools"]


@pytest.mark.parametrize("form", [FLAT, {**NESTED, "x": 1}, {"type": "grammar", "grammar": {"syntax": "lark"}}, 5, {}])
def test_a_form_that_chat_does_not_have_returns_unchanged(form: Any) -> None:
    tool = {"type": "custom", "custom": {"name": "apply_patch", "format": form}}
    assert sent("openai", "openai", chatted(tools=[tool]))[0]["tools"] == [tool]


def test_where_custom_tools_are_functions_their_grammar_is_noted() -> None:
    tool = {"type": "custom", "name": "apply_patch", "format": FLAT}
    body, notes = sent("responses", "openai", body_with(tools=[tool]), custom_tools=False)
    assert "grammar" not in json.dumps(body)
    assert notes[0].startswith("[foreign.field] dropped tools[0].format:")
    _, notes = sent("responses", "anthropic", body_with(tools=[{**tool, "format": {"type": "text"}}]))
    assert not [note for note in notes if "format" in note]


def test_a_server_that_accepts_fewer_fields_gets_fewer() -> None:
    body, notes = sent("responses", "openai", body_with(**SHARED), options=("prompt_cache_key",))
    assert body["prompt_cache_key"] == "k" and "service_tier" not in body
    assert len(notes) == len(SHARED) - 1


@pytest.mark.parametrize("target", [name for name in ELSEWHERE if name != "openai"])
def test_fields_that_the_target_lacks_are_noted_with_the_names_and_places_of_the_client(target: str) -> None:
    model = {"model": "claude-sonnet-4.5" if target == "kiro" else "m"}
    image = {"type": "input_image", "image_url": PIXEL, "detail": "low"}
    question = body_with([{"role": "user", "content": [image]}], text={"verbosity": "low"}, **SHARED) | model
    _, notes = sent("responses", target, question)
    places = [note.split(":")[0].rpartition(" ")[2] for note in notes]
    assert sorted(places) == sorted(["input[0].content[0].detail", "text.verbosity", *SHARED])
    _, notes = sent("openai", target, chatted([PICTURE], verbosity="low", **SHARED) | model)
    places = [note.split(":")[0].rpartition(" ")[2] for note in notes]
    assert sorted(places) == sorted(["messages[0].content[0].image_url.detail", "verbosity", *SHARED])


@pytest.mark.parametrize(
    ("source", "body"),
    [
        ("responses", body_with([{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}]}])),
        ("responses", body_with(truncation="disabled", background=False, service_tier="auto", store=False)),
        ("openai", chatted([{"type": "image_url", "image_url": {"url": PIXEL, "detail": "auto"}}])),
    ],
)  # fmt: skip
def test_dropping_a_default_value_is_not_a_loss(source: str, body: dict[str, Any]) -> None:
    assert not sent(source, "anthropic", body)[1]


def test_the_detail_of_a_picture_in_chats_form_is_not_lost_on_a_responses_route() -> None:
    body, _ = sent("responses", "responses", body_with([{"role": "user", "content": [PICTURE]}]))
    assert body["input"][0]["content"] == [{"type": "input_image", "image_url": PIXEL, "detail": "low"}]


@pytest.mark.parametrize(("source", "target"), [("openai", "responses"), ("responses", "openai")])
def test_both_dialects_report_the_service_tier(source: str, target: str) -> None:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    replies: dict[str, dict[str, Any]] = {
        "openai": {"choices": [{"message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}]},
        "responses": {"id": "resp_1", "object": "response", "status": "completed", "output": [message]},
    }
    translated = dragoman.translate_reply({**replies[source], "service_tier": "flex"}, source=source, target=target)
    assert translated.body["service_tier"] == "flex" and not translated.notes


# --- a tool choice that names a missing tool

CHOICES: dict[str, tuple[dict[str, Any], str]] = {
    "anthropic": (
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        | {"tools": [{"name": "read", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "write"}},
        "tool_choice",
    ),
    "openai": (
        chatted(tools=[{"type": "function", "function": {"name": "read", "parameters": SCHEMA}}])
        | {"tool_choice": {"type": "function", "function": {"name": "write"}}},
        "tool_choice",
    ),
    "responses": (
        body_with(tools=[{"type": "function", "name": "read"}], tool_choice={"type": "function", "name": "write"}),
        "tool_choice",
    ),
    "bedrock": (
        {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}
        | {
            "toolConfig": {
                "tools": [{"toolSpec": {"name": "read", "inputSchema": {"json": SCHEMA}}}],
                "toolChoice": {"tool": {"name": "write"}},
            }
        },
        "toolConfig.toolChoice",
    ),
    "gemini": (
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
        | {
            "tools": [{"functionDeclarations": [{"name": "read"}]}],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["write"]}},
        },
        "toolConfig.functionCallingConfig",
    ),
}


@pytest.mark.parametrize("target", registry.names())
@pytest.mark.parametrize("source", CHOICES)
def test_a_choice_of_a_tool_that_is_not_offered_is_refused_at_its_place(source: str, target: str) -> None:
    body, place = CHOICES[source]
    with pytest.raises(MalformedRequest, match="the request does not declare the tool 'write'") as refused:
        sent(source, target, body)
    assert refused.value.fault.at == place


def test_a_choice_in_the_older_form_is_refused_at_its_own_place() -> None:
    with pytest.raises(MalformedRequest) as refused:
        sent("openai", "anthropic", chatted(functions=[{"name": "read"}], function_call={"name": "write"}))
    assert refused.value.fault.at == "function_call"


def test_a_tool_that_only_its_server_names_may_be_chosen() -> None:
    body, _ = CHOICES["anthropic"]
    toolset = {"type": "mcp_toolset", "mcp_server_name": "files"}
    translated, _ = sent("anthropic", "anthropic", {**body, "tools": [*body["tools"], toolset]})
    assert translated["tool_choice"] == {"type": "tool", "name": "write"}
    search = {"type": "web_search_20250305", "name": "web_search"}
    chosen = {"type": "tool", "name": "web_search"}
    translated, _ = sent("anthropic", "anthropic", {**body, "tools": [*body["tools"], search], "tool_choice": chosen})
    assert translated["tool_choice"] == chosen


# --- why a reply stopped

PAUSED = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "pause_turn",
    "stop_sequence": None, "content": [{"type": "text", "text": "so far"}],
    "usage": {"input_tokens": 1, "output_tokens": 1},
}  # fmt: skip


@pytest.mark.parametrize("target", ["openai", "responses", "bedrock", "kiro", "gemini"])
def test_a_pause_is_an_end_with_a_warning_for_clients_that_know_none(target: str) -> None:
    translated = dragoman.translate_reply(PAUSED, source="anthropic", target=target)
    assert [note.rule for note in translated.notes] == ["stop.pause"]


def test_a_pause_is_a_pause_for_dialects_that_have_it() -> None:
    translated = dragoman.translate_reply(PAUSED, source="anthropic", target="anthropic")
    assert translated.body["stop_reason"] == "pause_turn" and not translated.notes


def test_a_pause_of_gemini_is_kept_in_the_same_dialect() -> None:
    paused = {"candidates": [{"content": {"role": "model", "parts": [{"text": "a"}]}, "finishReason": "CONTINUATION"}]}
    translated = dragoman.translate_reply(paused, source="gemini", target="gemini")
    assert translated.body["candidates"][0]["finishReason"] == "CONTINUATION" and not translated.notes


REFUSED = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": None, "refusal": "I will not."},
                 "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


@pytest.mark.parametrize("target", [name for name in registry.names() if name not in ("openai", "bedrock.invoke")])
def test_a_refusal_loses_nothing_whole_or_streamed(target: str) -> None:
    translated = dragoman.translate_reply(REFUSED, source="openai", target=target)
    assert b"I will not." in translated.raw and not translated.notes
    stream = dragoman.stream_translator(source="openai", target=target)
    for delta, reason in (
        ({"role": "assistant", "refusal": "I will "}, None),
        ({"refusal": "not."}, None),
        ({}, "stop"),
    ):
        chunk = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        stream.feed(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    stream.feed(b"data: [DONE]\n\n")
    stream.close()
    assert stream.error is None and not stream.notes


def test_a_refusal_stays_unchanged_in_the_same_dialect() -> None:
    translated = dragoman.translate_reply(REFUSED, source="openai", target="openai", repair=True).body
    [choice] = translated["choices"]
    assert (choice["message"]["refusal"], choice["finish_reason"]) == ("I will not.", "stop")
