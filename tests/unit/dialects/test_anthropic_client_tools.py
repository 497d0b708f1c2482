"""L3: a tool that the client runs reaches every target, whatever its type and shape."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import translate_request

TARGETS = ("openai", "responses", "bedrock", "gemini", "kiro")
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "bash_20250124", "name": "shell"},
    {"type": "text_editor_20250728", "name": "editor", "max_characters": 100},
    {"type": "memory_20250818", "name": "notes"},
    {"type": "computer_20251124", "name": "screen", "display_width_px": 800, "display_height_px": 600},
    {"type": "function", "function": {"name": "chat", "description": "d", "parameters": SCHEMA}},
    {"type": "function", "name": "flat", "description": "d", "parameters": SCHEMA},
]


def asked(tool: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}], "tools": [tool]}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["type"])
def test_l3_a_tool_that_the_client_runs_is_offered_as_a_function(tool: dict[str, Any], target: str) -> None:
    made = translate_request(asked(tool), source="anthropic", target=target)
    name = tool.get("name") or tool["function"]["name"]
    assert f'"name":"{name}"' in made.raw.decode()
    rules = [note.rule for note in made.notes]
    assert "tools.as_function" in rules and "foreign.tool" not in rules


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["type"])
def test_such_a_tool_stays_what_it_is_in_its_own_dialect(tool: dict[str, Any]) -> None:
    made = translate_request(asked(tool), source="anthropic", target="anthropic")
    assert made.body["tools"] == [tool] and not made.notes


def test_a_tool_that_the_service_runs_is_no_function() -> None:
    made = translate_request(
        asked({"type": "web_search_20250305", "name": "web_search"}), source="anthropic", target="openai"
    )
    assert "foreign.tool" in [note.rule for note in made.notes] and "tools" not in made.body
