"""Editors and chat programs that cannot run here: a request of the shape that each documents, over every upstream.

One row is one program in one mode. docs/clients.md has a line for each program.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.gateway.harness import gateway_with_simulator

UPSTREAMS = ("anthropic", "openai", "bedrock", "responses", "gemini", "kiro")
MODEL = "claude-sonnet-4.5"
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FUNCTION = {"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": SCHEMA}}
FLAT = {"type": "function", "name": "read_file", "description": "Reads a file.", "parameters": SCHEMA, "strict": False}
PATCH = {"type": "custom", "name": "ApplyPatch", "description": "Edits files.", "format": {"type": "text"}}
CLAUDE_TOOL = {"name": "read_file", "description": "Reads a file.", "input_schema": SCHEMA}
SYSTEM = {"role": "system", "content": "You are an assistant in an editor."}
USER = {"role": "user", "content": "hello"}


class Program(NamedTuple):
    name: str
    path: str
    body: dict[str, Any]


def chat(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [SYSTEM, USER], "stream": True, **more}


PROGRAMS = (
    Program(
        "Cursor agent",  # a Responses body on Chat's path; the response is expected as chat chunks
        CHAT,
        {
            "model": MODEL,
            "input": [{"role": "system", "content": "You are an agent."}, USER],
            "tools": [FLAT, PATCH],
            "reasoning": {"effort": "medium", "summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "text": {"verbosity": "low"},
            "store": False,
            "stream": True,
            "user": "google-oauth2|user_01",
        },
    ),
    Program("Cursor ask", CHAT, chat(tools=[FUNCTION, PATCH], stream_options={"include_usage": True}, user="user_01")),
    Program(
        "Cursor with Claude",
        CHAT,
        chat(
            tools=[CLAUDE_TOOL],
            messages=[
                SYSTEM,
                USER,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "hello"}]},
            ],
        ),
    ),
    Program(
        "Zed",
        CHAT,
        chat(tools=[FUNCTION], tool_choice="auto", parallel_tool_calls=False, temperature=1.0, prompt_cache_key="thread-1"),
    ),
    Program("Zed by Messages", MESSAGES, {"model": MODEL, "max_tokens": 8192, "system": "You help.", "messages": [USER], "tools": [CLAUDE_TOOL], "stream": True, "temperature": 1.0}),
    Program("JetBrains AI Assistant", CHAT, chat(tools=[FUNCTION], temperature=0.0, stream_options={"include_usage": True})),
    Program("Junie", RESPONSES, {"model": MODEL, "input": [USER], "instructions": "You are Junie.", "tools": [FLAT], "stream": True, "store": False}),
    Program("VS Code chat-completions", CHAT, chat(tools=[FUNCTION], n=1, temperature=0.1, top_p=1, max_tokens=4096, stream_options={"include_usage": True})),
    Program("VS Code responses", RESPONSES, {"model": MODEL, "input": [SYSTEM, USER], "tools": [FLAT], "tool_choice": "auto", "stream": True, "store": False, "truncation": "disabled", "include": ["reasoning.encrypted_content"]}),
    Program("VS Code messages", MESSAGES, {"model": MODEL, "max_tokens": 4096, "messages": [USER], "system": [{"type": "text", "text": "You help.", "cache_control": {"type": "ephemeral"}}], "tools": [CLAUDE_TOOL], "stream": True}),
    Program("Xcode", CHAT, chat(messages=[SYSTEM, {"role": "user", "content": [{"type": "text", "text": "hello"}]}], tools=[FUNCTION])),
    Program("Open WebUI", CHAT, chat(stream_options={"include_usage": True})),
    Program("Open WebUI title", CHAT, chat(stream=False, messages=[{"role": "user", "content": "### Task: hello"}], max_completion_tokens=1000)),
    Program(
        "LibreChat",
        CHAT,
        chat(temperature=1, top_p=1, presence_penalty=0, frequency_penalty=0, user="65f1c0ffee", stop=["||>", "\nUser:"]),
    ),
)  # fmt: skip


def _chat_text(body: bytes) -> str:
    chunks = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def _event_text(body: bytes) -> str:
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    found = [
        event["delta"] if isinstance(event["delta"], str) else event["delta"].get("text", "")
        for event in events
        if "delta" in event
    ]
    return "".join(found)


READERS: dict[str, Callable[[bytes], str]] = {CHAT: _chat_text, RESPONSES: _event_text, MESSAGES: _event_text}


@pytest.mark.parametrize("upstream", UPSTREAMS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name.replace(" ", "-"))
def test_a_request_of_a_program_is_answered_in_its_form(program: Program, upstream: str, tmp_path: Path) -> None:
    route = '[[routes]]\nmatch = "*"\nupstream = "one"\nmodel = "anthropic.claude-x"\n' if upstream == "bedrock" else ""
    with gateway_with_simulator("", tmp_path, upstream, route) as (harness, simulator):
        status, headers, body = harness.request(program.path, program.body)
        assert (status, simulator.total) == (200, 1), body
    if program.body["stream"]:
        assert headers["content-type"].startswith("text/event-stream")
        assert READERS[program.path](body)
        assert b"[DONE]" in body or program.path != CHAT
    else:
        assert json.loads(body)["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models?limit=1000"])
def test_programs_that_list_models_find_them(path: str, tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path, more=f'models = ["{MODEL}"]') as (harness, _):
        status, _, body = harness.request(path, method="GET")
    assert status == 200
    assert MODEL in [model["id"] for model in json.loads(body)["data"]]


def test_the_page_has_a_line_for_each_program() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
    for program in PROGRAMS:
        assert f"| {program.name.split(' ')[0]}" in page, program.name
