"""Known conversion bugs of other gateways that concern anthropic and openai, and tricky cases, through the public API."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dragoman
from dragoman.errors import DragomanError, MalformedRequest
from tests.anthropic_client import accumulate_message, parse_message_stream, parse_sse

# --- helpers for streams


def chat(*chunks: Any, done: bool = True) -> bytes:
    """An OpenAI stream: a dict is a delta, a tuple a delta with its finish reason, None the usage chunk."""
    out = b""
    for chunk in chunks:
        if chunk is None:
            body: dict[str, Any] = {
                "choices": [],
                "usage": {
                    "prompt_tokens": 132,
                    "completion_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 100},
                },
            }
        else:
            delta, finish = chunk if isinstance(chunk, tuple) else (chunk, None)
            body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        out += b"data: " + json.dumps({"id": "c", "created": 1, "model": "m", **body}).encode() + b"\n\n"
    return out + (b"data: [DONE]\n\n" if done else b"")


def tool(index: int, arguments: str = "", **first: str) -> dict[str, Any]:
    head = {"id": first["id"], "type": "function"} if first else {}
    name = {"name": first["name"]} if "name" in first else {}
    return {"tool_calls": [{"index": index, **head, "function": {**name, "arguments": arguments}}]}


def translated(
    stream: bytes, source: str = "openai", target: str = "anthropic", **request: Any
) -> list[dict[str, Any]]:
    """Return the decoded frames that a client gets, without OpenAI's [DONE]."""
    translator = dragoman.stream_translator(source=source, target=target, **request)
    return parse_sse(translator.feed(stream) + translator.close())


def blocks(frames: list[dict[str, Any]]) -> Any:
    """Return the content blocks of an Anthropic stream."""
    return accumulate_message(frames)["content"]


def kinds(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["type"] for frame in frames]


def stop_of(frames: list[dict[str, Any]]) -> str:
    (delta,) = [frame for frame in frames if frame["type"] == "message_delta"]
    reason: str = delta["delta"]["stop_reason"]
    return reason


ROLE = {"role": "assistant", "content": ""}


def test_the_first_text_delta_survives() -> None:
    (text,) = blocks(translated(chat({"role": "assistant", "content": "Hel"}, {"content": "lo"}, ({}, "stop"))))
    assert text["text"] == "Hello"


def test_the_first_delta_after_thinking_survives() -> None:
    stream = chat(ROLE, {"reasoning_content": "hm"}, {"content": "A"}, {"content": "B"}, ({}, "stop"))
    thinking, text = blocks(translated(stream))
    assert (thinking["thinking"], text["text"]) == ("hm", "AB")


def test_arguments_in_the_first_tool_chunk_survive() -> None:
    stream = chat({"content": "x"}, tool(0, '{"a":', id="i", name="f"), tool(0, "1}"), ({}, "tool_calls"))
    _, call = blocks(translated(stream))
    assert call["json"] == '{"a":1}'


def test_deltas_match_their_block_and_message_start_comes_once() -> None:
    stream = chat(ROLE, {"reasoning_content": "a"}, {"content": "b"}, {"reasoning_content": "c"}, ({}, "stop"))
    frames = translated(stream)
    assert [block["type"] for block in blocks(frames)] == ["thinking", "text", "thinking"]
    assert kinds(frames).count("message_start") == 1


def test_reasoning_and_content_in_one_chunk_are_two_blocks_reasoning_first() -> None:
    thinking, text = blocks(translated(chat({"reasoning_content": "r", "content": "c"}, ({}, "stop"))))
    assert (thinking["thinking"], text["text"]) == ("r", "c")


def test_empty_signed_thinking_round_trips() -> None:
    thought = {"type": "thinking", "thinking": "", "signature": "c2ln"}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [thought, call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]},
        ],
    }
    done = dragoman.translate_request(body, source="anthropic", target="anthropic")
    assert done.body["messages"][1]["content"] == [thought, call]
    chat_body = dragoman.translate_request(body, source="anthropic", target="openai").body
    assert "reasoning_content" not in chat_body["messages"][1]


def test_interleaved_parallel_arguments_stay_with_their_call() -> None:
    stream = chat(
        ROLE,
        tool(0, id="a", name="f"),
        tool(1, id="b", name="g"),
        tool(0, '{"x":'),
        tool(1, '{"y":'),
        tool(0, "1}"),
        tool(1, "2}"),
        ({}, "tool_calls"),
    )
    assert [(call["id"], call["json"]) for call in blocks(translated(stream))] == [("a", '{"x":1}'), ("b", '{"y":2}')]


def test_to_10_indices_are_contiguous_from_0() -> None:
    stream = chat(
        {"reasoning_content": "r"}, {"content": "c"}, tool(3, "{}", id="a", name="f"), tool(7, "{}", id="b", name="g"),
        ({}, "tool_calls"),
    )  # fmt: skip
    assert [block["type"] for block in blocks(translated(stream))] == ["thinking", "text", "tool_use", "tool_use"]
    (only,) = blocks(translated(chat(tool(1, "{}", id="a", name="f"), ({}, "tool_calls"))))
    assert only["id"] == "a"


def test_translators_share_no_state() -> None:
    stream = chat({"content": "x"}, tool(0, "{}", id="a", name="f"), ({}, "tool_calls"))
    alone = dragoman.stream_translator(source="openai", target="anthropic")
    expected = alone.feed(stream) + alone.close()
    many = [dragoman.stream_translator(source="openai", target="anthropic") for _ in range(50)]
    outs = [b""] * len(many)
    for start in range(0, len(stream), 11):
        for index, each in enumerate(many):
            outs[index] += each.feed(stream[start : start + 11])
    assert {out + each.close() for out, each in zip(outs, many, strict=True)} == {expected}


def test_14_late_usage_gives_one_message_delta_before_message_stop() -> None:
    frames = translated(chat({"content": "x"}, ({}, "stop"), None))
    assert kinds(frames)[-2:] == ["message_delta", "message_stop"]
    assert kinds(frames).count("message_delta") == 1


def test_usage_arithmetic_both_ways() -> None:
    frames = translated(chat({"content": "x"}, ({}, "stop"), None))
    usage = frames[-2]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (32, 100, 7)
    start: dict[str, Any] = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    counts = {"input_tokens": 12, "output_tokens": 1, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    events: list[Any] = [
        {"type": "message_start", "message": {**start, "stop_sequence": None, "usage": counts}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    stream = b"".join(b"event: %s\ndata: %s\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events)
    last = translated(stream, "anthropic", "openai")[-1]["usage"]
    assert (last["prompt_tokens"], last["completion_tokens"], last["total_tokens"]) == (132, 7, 139)
    assert last["prompt_tokens_details"]["cached_tokens"] == 100


def test_a_second_finish_changes_nothing() -> None:
    once = chat(tool(0, '{"a":1}', id="a", name="f"), ({}, "tool_calls"))
    twice = chat(tool(0, '{"a":1}', id="a", name="f"), ({}, "tool_calls"), ({}, "tool_calls"))
    assert translated(once) == translated(twice)


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("delta", [{"content": "x"}, tool(0, "{}", id="a", name="f")])
def test_no_finish_reason_is_an_error_with_or_without_done(delta: Any, done: bool) -> None:
    frames = translated(chat(delta, done=done))
    assert kinds(frames)[-1] == "error"
    assert "message_stop" not in kinds(frames)


def test_an_empty_finish_reason_is_none_yet() -> None:
    stream = chat(({"content": "a"}, ""), ({"content": "b"}, ""), ({}, "length"))
    frames = translated(stream)
    assert (blocks(frames)[0]["text"], stop_of(frames)) == ("ab", "max_tokens")


def test_stop_with_a_tool_call_is_tool_use() -> None:
    assert stop_of(translated(chat(tool(0, "{}", id="a", name="f"), ({}, "stop")))) == "tool_use"


def test_tool_calls_without_a_call_is_end_turn() -> None:
    assert stop_of(translated(chat({"content": "x"}, ({}, "tool_calls")))) == "end_turn"


@pytest.mark.parametrize(
    ("row", "arguments", "expected"),
    [
        (25, "", {}),
        (26, '"\\"\\""', {"raw_arguments": '"\\"\\""'}),
        (27, '{"a": ', {"raw_arguments": '{"a": '}),
        (26, '"{\\"a\\":1}"', {"a": 1}),
    ],
)
def test_to_27_arguments_in_history_become_an_object(row: int, arguments: str, expected: dict[str, Any]) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
        ],
    }
    done = dragoman.translate_request(body, source="openai", target="anthropic")
    assert done.body["messages"][1]["content"][0]["input"] == expected


def history(*ids: str, results: tuple[str, ...] | None = None, name: str = "f") -> dict[str, Any]:
    calls = [{"id": each, "type": "function", "function": {"name": name, "arguments": "{}"}} for each in ids]
    tool_messages = [{"role": "tool", "tool_call_id": each, "content": f"r{each}"} for each in results or ids]
    return {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}],
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *tool_messages,
            {"role": "user", "content": "go on"},
        ],
    }


def anthropic(body: dict[str, Any]) -> dict[str, Any]:
    return dragoman.translate_request(body, source="openai", target="anthropic").body


def test_consecutive_tool_messages_are_one_turn_with_one_result_each() -> None:
    *_, turn = anthropic(history("a", "b", results=("b", "a", "a")))["messages"]
    results = [block["tool_use_id"] for block in turn["content"] if block["type"] == "tool_result"]
    assert results == ["b", "a"]


def test_tool_history_without_tools_is_accepted() -> None:
    body = history("a")
    del body["tools"]
    assert anthropic(body)["messages"][1]["content"][0]["type"] == "tool_use"


def test_a_choice_without_tools_is_dropped() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}
    sent = anthropic({**body, "parallel_tool_calls": False})
    assert "tool_choice" not in sent


@pytest.mark.parametrize("bad", ["call_x|fc_y", "a.b:c", "x" * 65, "naïve"])
def test_illegal_ids_are_aliased_alike_on_call_and_result(bad: str) -> None:
    sent = anthropic(history(bad))
    alias = sent["messages"][1]["content"][0]["id"]
    assert alias == sent["messages"][2]["content"][0]["tool_use_id"]
    assert alias != bad
    assert alias.replace("-", "").replace("_", "").isalnum()
    assert len(alias) <= 64


def test_legal_ids_stay_and_empty_ones_are_refused() -> None:
    assert anthropic(history("y" * 64))["messages"][1]["content"][0]["id"] == "y" * 64
    with pytest.raises(MalformedRequest, match=r"messages\[1\]\.tool_calls\[0\]"):
        anthropic(history(""))


def test_two_long_ids_with_one_beginning_stay_two() -> None:
    ids = ("p" * 80 + "1" * 10, "p" * 80 + "2" * 10)
    calls = anthropic(history(*ids))["messages"][1]["content"]
    assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize("name", ["files.read all", "n" * 129])
def test_names_are_aliased_and_mapped_back(name: str) -> None:
    body = history("a", name=name)
    body["tools"].append({"type": "function", "function": {"name": "files_read_all"}})
    done = dragoman.translate_request(body, source="openai", target="anthropic")
    alias, other = (each["name"] for each in done.body["tools"])
    assert (other, alias == other, alias == name) == ("files_read_all", False, False)
    assert done.body["messages"][1]["content"][0]["name"] == alias
    reply = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [{"type": "tool_use", "id": "t", "name": alias, "input": {}}],
    }
    back = dragoman.translate_reply(reply, source="anthropic", target="openai", request=done)
    assert back.body["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == name


def test_blank_texts_do_not_travel_to_anthropic() -> None:
    messages = [{"role": "user", "content": "  "}, {"role": "user", "content": "x"}]
    sent = anthropic({"model": "m", "messages": messages})
    assert all(parse_message_stream["content"].strip() for parse_message_stream in sent["messages"])


PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}


def test_an_image_in_a_tool_result_reaches_the_model() -> None:
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}]},
        ],
    }
    *_, result, user = dragoman.translate_request(body, source="anthropic", target="openai").body["messages"]
    assert result["role"] == "tool"
    assert result["content"]
    assert user["content"][0]["image_url"]["url"].endswith(PIXEL)


def test_a_user_image_reaches_the_model() -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [IMAGE]}]}
    (parse_message_stream,) = dragoman.translate_request(body, source="anthropic", target="openai").body["messages"]
    assert parse_message_stream["content"][0]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"


def test_reasoning_content_goes_back_on_tool_turns() -> None:
    """An open model gets its reasoning back through an Anthropic client, which knows only signed thinking."""
    frames = translated(chat({"reasoning_content": "plan"}, tool(0, "{}", id="a", name="f"), ({}, "tool_calls")))
    thinking, call = blocks(frames)
    call.pop("json", None)
    echoed = {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [thinking, {**call, "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r"}]},
        ],
    }
    sent = dragoman.translate_request(echoed, source="anthropic", target="openai").body
    assert sent["messages"][1]["reasoning_content"] == "plan"


def test_a_custom_tool_is_a_function_elsewhere_and_free_text_again_here() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "custom", "custom": {"name": "apply_patch"}}],
    }
    done = dragoman.translate_request(body, source="openai", target="anthropic")
    assert done.body["tools"][0]["input_schema"]["required"] == ["input"]
    reply = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
        "content": [{"type": "tool_use", "id": "t", "name": "apply_patch", "input": {"input": "*** Begin"}}],
    }
    back = dragoman.translate_reply(reply, source="anthropic", target="openai", request=done).body
    (call,) = back["choices"][0]["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "apply_patch", "input": "*** Begin"})


def test_fragments_cut_inside_escapes_and_characters_are_exact() -> None:
    whole = chat(tool(0, '{"p":"caf', id="a", name="f"), tool(0, "é \\u00"), tool(0, 'e9"}'), ({}, "tool_calls"))
    for cut in range(1, len(whole)):
        translator = dragoman.stream_translator(source="openai", target="anthropic")
        out = translator.feed(whole[:cut]) + translator.feed(whole[cut:]) + translator.close()
        (call,) = parse_message_stream(out)["content"]
        assert json.loads(call["json"]) == {"p": "café é"}


def test_results_stay_in_the_clients_order_before_the_text() -> None:
    *_, turn = anthropic(history("a", "b", results=("b", "a")))["messages"]
    found = [block.get("tool_use_id", block.get("text")) for block in turn["content"]]
    assert found == ["b", "a", "go on"]


def test_an_unanswered_call_gets_an_error_result() -> None:
    *_, turn = anthropic(history("a", "b", results=("a",)))["messages"]
    assert turn["content"][1] == {
        "type": "tool_result",
        "tool_use_id": "b",
        "content": "(no result)",
        "is_error": True,
    }


def test_a_result_for_an_unknown_id_becomes_text() -> None:
    *_, turn = anthropic(history("a", results=("a", "zz")))["messages"]
    assert [block["type"] for block in turn["content"]] == ["tool_result", "text", "text"]
    assert turn["content"][1]["text"] == "rzz"


def test_empty_result_and_empty_text_beside_a_call() -> None:
    body = history("a")
    body["messages"][1]["content"] = ""
    body["messages"][2]["content"] = ""
    sent = anthropic(body)
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["tool_use"]
    assert sent["messages"][2]["content"][0]["type"] == "tool_result"


def test_a_buffered_block_over_the_limit_ends_with_the_dialects_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.filters.response.BUFFER_LIMIT", 100)
    stream = chat(tool(0, '{"a', id="a", name="f"), tool(1, '{"a":"' + "x" * 101, id="b", name="g"), ({}, "tool_calls"))
    frames = translated(stream)
    assert kinds(frames)[-1] == "error"
    assert "message_stop" not in kinds(frames)


def test_the_response_must_belong_to_the_request() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    done = dragoman.translate_request(body, source="openai", target="anthropic")
    with pytest.raises(DragomanError, match="from anthropic to openai"):
        dragoman.stream_translator(source="openai", target="anthropic", request=done)
