"""Raw tool-call tokens through the library and the command line, to both client dialects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.errors import LocalMisuse
from tests.anthropic_client import sse as data_of
from tests.unit.raw_tools.through import cut, sse

STORY = Path(__file__).parents[2] / "stories" / "kimi-tokens-in-reasoning"
SECTION = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>"
    '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>'
)
TOOLS = [{"name": "bash", "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}}}]
BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "tools": TOOLS, "messages": [{"role": "user", "content": "x"}]}


def stream(text: str, finish: str = "stop", size: int = 5, field: str = "content") -> bytes:
    return sse(cut([{field: text}], size), finish)


def frames(data: bytes, target: str, **options: Any) -> list[dict[str, Any]]:
    request = dragoman.translate_request(BODY, source="anthropic", target="openai") if target == "anthropic" else None
    translator = dragoman.stream_translator(source="openai", target=target, request=request, **options)
    return data_of(translator.feed(data) + translator.close())


@pytest.mark.parametrize(
    ("finish", "stop"), [("stop", "tool_use"), ("length", "max_tokens"), ("content_filter", "refusal")]
)
def test_an_anthropic_client_gets_tool_use(finish: str, stop: str) -> None:
    told = frames(stream("I will.\n" + SECTION, finish), "anthropic")
    starts = [frame["content_block"]["type"] for frame in told if frame["type"] == "content_block_start"]
    assert starts == ["text", "tool_use"]
    pieces = [frame["delta"].get("partial_json", "") for frame in told if frame["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == {"command": "ls"}
    assert len([piece for piece in pieces if piece]) > 2, "arguments stream live"
    assert told[-2]["delta"]["stop_reason"] == stop


def test_thinking_is_closed_before_the_call() -> None:
    told = frames(stream("hm " + SECTION, field="reasoning_content"), "anthropic")
    kinds = [(frame["type"], frame.get("content_block", {}).get("type")) for frame in told]
    assert kinds.index(("content_block_stop", None)) < kinds.index(("content_block_start", "tool_use"))
    assert kinds[1] == ("content_block_start", "thinking")


def test_an_openai_client_gets_tool_calls_and_row_55_no_marker_leaks() -> None:
    told = frames(stream(SECTION), "openai")
    assert "<|" not in json.dumps(told)
    assert told[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_off_leaves_the_text_alone_and_buffered_sends_a_call_whole() -> None:
    off = frames(stream(SECTION), "openai", raw_tools="off")
    assert "".join(frame["choices"][0]["delta"].get("content", "") for frame in off) == SECTION
    whole = frames(stream(SECTION), "openai", raw_tools="kimi", raw_tools_mode="buffered")
    calls = [
        frame["choices"][0]["delta"]["tool_calls"] for frame in whole if "tool_calls" in frame["choices"][0]["delta"]
    ]
    assert "".join(call[0]["function"]["arguments"] for call in calls) == '{"command": "ls"}'
    assert len([call for call in calls if call[0]["function"]["arguments"]]) == 1


def test_an_unknown_table_is_a_misuse() -> None:
    with pytest.raises(LocalMisuse, match="kimmi"):
        dragoman.stream_translator(source="openai", target="openai", raw_tools="kimmi")


def test_the_default_is_auto_for_openai_and_off_for_anthropic() -> None:
    reply = {
        "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1}, "content": [{"type": "text", "text": SECTION}],
    }  # fmt: skip
    assert dragoman.translate_reply(reply, source="anthropic", target="anthropic").body["content"][0]["text"] == SECTION
    message = {"role": "assistant", "content": SECTION}
    body = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    back = dragoman.translate_reply(body, source="openai", target="openai").body["choices"][0]
    assert (back["finish_reason"], back["message"]["content"]) == ("tool_calls", None)
    off = dragoman.translate_reply(body, source="openai", target="openai", raw_tools="off").body["choices"][0]
    assert off["message"]["content"] == SECTION


def test_kimi_ids_go_in_as_the_model_knows_them() -> None:
    """Case 41: the id that went out fresh comes back as a running count."""
    call = {"type": "tool_use", "id": "toolu_9", "name": "bash", "input": {"command": "ls"}}
    body = {
        **BODY,
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9", "content": "r"}]},
        ],
    }
    sent = dragoman.translate_request(body, source="anthropic", target="openai", model="kimi-k2.5").body["messages"]
    assert sent[1]["tool_calls"][0]["id"] == sent[2]["tool_call_id"] == "functions.bash:0"


def test_special_tokens_are_asked_for_only_on_option() -> None:
    plain = dragoman.translate_request(BODY, source="anthropic", target="openai").body
    asked = dragoman.translate_request(BODY, source="anthropic", target="openai", special_tokens=True).body
    assert ("skip_special_tokens" in plain, asked["skip_special_tokens"]) == (False, False)


@pytest.mark.parametrize(("request_file", "name"), [("anthropic.request.json", "task"), (None, "task")])
def test_the_log_of_001_on_the_command_line(request_file: str | None, name: str) -> None:
    told = ["--request", str(STORY / request_file)] if request_file else []
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "translate", "--what", "stream", "--from", "openai", "--to", "anthropic",
         *told, "--raw-tools" if not request_file else "--explain", *(["kimi"] if not request_file else []),
         str(STORY / "openai.stream")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("data: ")]
    calls = [line["content_block"] for line in lines if line.get("content_block", {}).get("type") == "tool_use"]
    assert [call["name"] for call in calls] == [name, name]
    pieces = [
        line["delta"]["partial_json"] for line in lines if line.get("delta", {}).get("type") == "input_json_delta"
    ]
    first, second = "".join(pieces).replace("}{", "}\n{").splitlines()
    assert json.loads(first)["description"] == "Explore core C headers"
    assert json.loads(second)["prompt"] == "See net/"
