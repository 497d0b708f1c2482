"""References to state of the client's service pass unchanged to that service, and are refused elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.dialects.base import SYSTEM_ENVIRONMENT
from dragoman.errors import MalformedRequest, Unrepresentable, UpstreamFault
from dragoman.model.blocks import ToolResult
from dragoman.model.conversation import Conversation
from dragoman.translate import Plan, TranslationSettings, plan
from dragoman.wire.http import HttpResponse

NAMES = tuple(registry.names())
CALL_ID = "call_on_the_server"
RESULT = {"type": "tool_result", "tool_use_id": CALL_ID, "content": "18 degrees"}
OUTPUT = {"type": "function_call_output", "call_id": CALL_ID, "output": "18 degrees"}
FUNCTION_RESPONSE = {"functionResponse": {"name": "get_weather", "response": {"output": "18 degrees"}}}


def anthropic(**more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [RESULT]}], **more}


def responses(*items: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m", "input": [*items, OUTPUT], **more}


THREAD = {"type": "continue", "previous_message_id": "msg_1"}
REFERENCES: dict[
    str, tuple[str, dict[str, Any], str]
] = {  # the client's dialect, its request, the place of the reference
    "thread": ("anthropic", anthropic(thread=THREAD), "thread"),
    "thread of next year": ("anthropic", anthropic(thread={"type": "fork", "from": "msg_1"}), "thread"),
    "previous": ("responses", responses(previous_response_id="resp_1"), "previous_response_id"),
    "conversation": ("responses", responses(conversation="conv_1"), "conversation"),
    "conversation object": ("responses", responses(conversation={"id": "conv_1"}), "conversation"),
    "item": ("responses", responses({"type": "item_reference", "id": "fc_1"}), "input[0]"),
    "item without a type": ("responses", responses({"role": "user", "content": "x"}, {"id": "fc_1"}), "input[1]"),
    "cache": (
        "gemini",
        {
            "model": "m",
            "contents": [{"role": "user", "parts": [FUNCTION_RESPONSE]}],
            "cachedContent": "cachedContents/1",
        },
        "cachedContent",
    ),
}
BEGUN: dict[str, tuple[str, dict[str, Any], str]] = {  # no earlier turn, but only that service can do it
    "new thread": (
        "anthropic",
        {**anthropic(thread={"type": "create"}), "messages": [{"role": "user", "content": "x"}]},
        "thread",
    ),
    "prompt of Bedrock": (
        "bedrock",
        {"messages": [{"role": "user", "content": [{"text": "x"}]}], "promptVariables": {"a": {"text": "b"}}},
        "promptVariables",
    ),
    "background": ("responses", {"model": "m", "input": "x", "background": True}, "background"),
    "template": ("responses", {"model": "m", "prompt": {"id": "pmpt_1"}}, "prompt"),
    "template and input": ("responses", {"model": "m", "input": "x", "prompt": {"id": "pmpt_1"}}, "prompt"),
}


def read(source: str, body: dict[str, Any]) -> Conversation:
    dialect = registry.get(source)
    return dialect.codec.parse_request(dialect.binding.unwrap(body))


def planned(source: str, target: str, body: dict[str, Any], **settings: Any) -> Plan:
    return plan(
        registry.get(source), registry.get(target), read(source, body), settings=TranslationSettings(**settings)
    )


def results(conversation: Conversation) -> list[ToolResult]:
    return [block for message in conversation.messages for block in message.blocks if isinstance(block, ToolResult)]


@pytest.mark.parametrize("repair", [False, True], ids=["passes", "repair"])
@pytest.mark.parametrize("title", REFERENCES)
def test_a_result_stays_a_result_where_the_service_holds_its_call(title: str, repair: bool) -> None:
    source, body, _ = REFERENCES[title]
    translation_plan = planned(source, source, body, repair=repair)
    assert not translation_plan.notes and translation_plan.verbatim is not repair
    assert (
        [each.content for each in results(translation_plan.translated)]
        == [each.content for each in results(translation_plan.original)]
        != []
    )
    sent = translation_plan.call().body
    assert isinstance(sent, dict)
    assert {name: sent[name] for name in body if name not in ("model", "max_tokens")} == {
        name: value for name, value in body.items() if name not in ("model", "max_tokens")
    } or "type" in title


@pytest.mark.parametrize("title", [*REFERENCES, *BEGUN])
@pytest.mark.parametrize("target", NAMES)
def test_elsewhere_it_is_refused_and_the_place_is_named(title: str, target: str) -> None:
    source, body, place = {**REFERENCES, **BEGUN}[title]
    if target == source:
        planned(source, target, body).call()
        return
    with pytest.raises(Unrepresentable) as refused:
        planned(source, target, body)
    fault = refused.value.fault
    assert (fault.at, fault.status, fault.kind) == (place, 400, "invalid")
    assert fault.message.startswith(f"{place}: ")


@pytest.mark.parametrize("source", NAMES)
@pytest.mark.parametrize("target", NAMES)
def test_a_result_without_a_call_is_still_an_orphan_where_nothing_is_stored(source: str, target: str) -> None:
    if source not in ("anthropic", "responses"):
        return
    translation_plan = planned(source, target, anthropic() if source == "anthropic" else responses())
    assert "tools.orphan_result" in {note.rule for note in translation_plan.notes} and not results(
        translation_plan.translated
    )


def test_other_results_of_a_continued_request_are_paired_as_ever() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    again = {"type": "function_call_output", "call_id": "a", "output": "other"}
    body = responses(call, {**again, "output": "one"}, again, previous_response_id="resp_1")
    translation_plan = planned("responses", "responses", body)
    assert [each.call_id for each in results(translation_plan.translated)] == ["a", CALL_ID]
    assert [note.rule for note in translation_plan.notes] == ["tools.duplicate_result"]


def test_the_error_of_a_thread_makes_the_sdks_send_the_whole_history() -> None:
    with pytest.raises(Unrepresentable) as refused:
        planned("anthropic", "openai", anthropic(thread=THREAD))
    codec = registry.get("anthropic").codec
    body = json.loads(codec.render_fault(refused.value.fault))
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_the_services_own_refusal_of_a_thread_keeps_its_details() -> None:
    codec = registry.get("anthropic").codec
    details = {"error_code": "thread_not_found", "previous_message_id": "msg_1"}
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "no", "details": details}}
    fault = codec.parse_fault(HttpResponse(400, (), json.dumps(error).encode()))
    assert json.loads(codec.render_fault(fault))["error"]["details"] == details


def test_a_paused_turn_of_a_thread_goes_on_without_a_message() -> None:
    translation_plan = planned("anthropic", "anthropic", {**anthropic(thread=THREAD), "messages": []})
    assert not translation_plan.notes and translation_plan.verbatim
    assert translation_plan.call().body["messages"] == []  # type: ignore[call-overload,index]


def test_a_compatible_service_can_be_configured_as_without_threads() -> None:
    with pytest.raises(Unrepresentable, match="thread"):
        dragoman.translate_request(anthropic(thread=THREAD), source="anthropic", target="anthropic", threads=False)


def test_without_a_thread_nothing_is_stored() -> None:
    assert read("anthropic", anthropic(thread=None)).server_state == ()
    assert (
        read("responses", responses(previous_response_id=None, conversation=None, background=False)).server_state == ()
    )
    assert read("gemini", {"model": "m", "contents": [], "cachedContent": ""}).server_state == ()


@pytest.mark.parametrize("conversation", [7, [], {}, {"id": ""}, ""], ids=str)
def test_a_conversation_that_names_nothing_is_malformed(conversation: Any) -> None:
    with pytest.raises(MalformedRequest) as refused:
        read("responses", responses(conversation=conversation))
    assert refused.value.at.startswith("conversation")


@pytest.mark.parametrize("title", [*REFERENCES, *BEGUN])
def test_the_library_keeps_nothing_and_says_so(title: str) -> None:
    source, body, place = {**REFERENCES, **BEGUN}[title]
    with pytest.raises(Unrepresentable) as refused:
        dragoman.translate_request(body, source=source, target="kiro")
    assert refused.value.at == place


@pytest.mark.parametrize("status", ["queued", "in_progress"])
def test_an_unfinished_response_is_accepted_only_where_a_job_was_asked_for(status: str) -> None:
    codec = registry.get("responses").codec
    body = {"id": "resp_1", "object": "response", "status": status, "model": "m", "output": [], "background": True}
    job, other = (read("responses", {"model": "m", "input": "x", **more}) for more in ({"background": True}, {}))
    reply = codec.parse_reply(json.dumps(body).encode(), job)
    document = json.loads(codec.render_reply(reply, job, SYSTEM_ENVIRONMENT))
    assert (document["id"], document["status"], document["background"], document["usage"]) == (
        "resp_1",
        status,
        True,
        None,
    )
    with pytest.raises(UpstreamFault, match=status):
        codec.parse_reply(json.dumps(body).encode(), other)


# --- files stored by the client's service

FILES: dict[str, tuple[str, Any]] = {
    "anthropic": ("anthropic", {"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
    "responses": ("responses", {"type": "input_image", "file_id": "file-1"}),
    "openai": ("openai", {"type": "file", "file": {"file_id": "file-1"}}),
}


def with_file(source: str, part: Any, *, last: bool) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": [part]}]
    if not last:
        messages += [{"role": "assistant", "content": "seen"}, {"role": "user", "content": "and now?"}]
    return (
        {"model": "m", "max_tokens": 9, "messages": messages}
        if source != "responses"
        else {"model": "m", "input": messages}
    )


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", FILES)
def test_a_file_id_never_goes_to_another_service(source: str, target: str) -> None:
    name, part = FILES[source]
    services = {"anthropic": "anthropic", "bedrock.invoke": "anthropic", "responses": "openai", "openai": "openai"}
    same = services[source] == services.get(target)
    if same and (source, target) != ("responses", "openai"):  # Chat has no image by a file's id
        assert (
            b"file"
            in registry.get(target).binding.wrap(planned(name, target, with_file(name, part, last=True)).call()).body
        )
        return
    with pytest.raises(Unrepresentable):
        planned(name, target, with_file(name, part, last=True))
    translation_plan = planned(name, target, with_file(name, part, last=False))
    assert [note.action for note in translation_plan.notes if note.rule == "media.replaced"] == ["dropped"]
    assert (
        b"file-1" not in (body := registry.get(target).binding.wrap(translation_plan.call()).body)
        and b"file_1" not in body
    )


ADDRESSES = {
    "gemini": ("gs://b/x.png", "https://generativelanguage.googleapis.com/v1beta/files/1"),
    "bedrock": ("s3://b/x.png",),
}


def with_address(source: str, address: str) -> dict[str, Any]:
    if source == "gemini":
        part: Any = {"fileData": {"fileUri": address, "mimeType": "image/png"}}
        return {"model": "m", "contents": [{"role": "user", "parts": [part]}]}
    part = {"image": {"format": "png", "source": {"s3Location": {"uri": address}}}}
    return {"modelId": "anthropic.claude-sonnet-4-5-20250929-v1:0", "messages": [{"role": "user", "content": [part]}]}


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", ADDRESSES)
def test_an_address_that_only_the_clients_service_can_read_never_goes_elsewhere(source: str, target: str) -> None:
    for address in ADDRESSES[source]:
        body = with_address(source, address)
        if target == source:
            assert not planned(source, target, body).notes
            continue
        with pytest.raises(Unrepresentable):
            planned(source, target, body)


def test_an_address_of_the_targets_own_service_passes() -> None:
    image: Any = {"type": "image_url", "image_url": {"url": "gs://b/x.png"}}
    body = {"model": "m", "messages": [{"role": "user", "content": [image]}]}
    assert b"gs://b/x.png" in registry.get("gemini").binding.wrap(planned("openai", "gemini", body).call()).body
