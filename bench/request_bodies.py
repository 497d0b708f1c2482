"""The request bodies of the load generator: one for each kind of question and dialect."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from bench.canned_responses import TOOL

_SYSTEM = "You are a careful programmer. Answer briefly, and use the tools you have." * 2
_ASK = "Please change the function in src/app.py so that it reads four five six."
_LINES = "    result = compute(values[index], limit=10)  # \"quoted\" and 'quoted', a tab\t, an é\n"
_MESSAGES = 200
SIZE = 2380  # characters per message; the body has 507 KB
_SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}},
    "required": ["path", "old", "new"],
}
_NAMES = (TOOL, "read_file", "run_command")


@cache
def request_body(dialect: str, kind: str, model: str, *, stream: bool, size: int = SIZE) -> bytes:
    """Return a request body of a kind: small, `tools`, `long`, or `pairs` (long, with calls and results).

    `size` is the number of characters per message of a long one.
    """
    body: dict[str, Any] = {"model": model, "stream": stream}
    if kind == "tools":
        body |= {"messages": _with_system(dialect, [_user(_ASK)]), "tools": [_tool(dialect, name) for name in _NAMES]}
    elif kind == "long":
        body |= {"messages": _with_system(dialect, [_turn(at, size) for at in range(_MESSAGES - 1)])}
    elif kind == "pairs":
        body |= {"messages": _pairs(size), "tools": [_tool(dialect, name) for name in _NAMES]}
    else:
        body |= {"messages": _with_system(dialect, [_user(_ASK)])}
    if dialect == "anthropic":
        body |= {"max_tokens": 4096, "system": _SYSTEM}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _with_system(dialect: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return messages if dialect == "anthropic" else [{"role": "system", "content": _SYSTEM}, *messages]


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _filler(at: int, size: int) -> str:
    line = f"{at} {_LINES}"
    return (line * (size // len(line) + 1))[:size]


def _turn(at: int, size: int) -> dict[str, Any]:
    return {"role": "assistant" if at % 2 else "user", "content": _filler(at, size)}


def _pairs(size: int) -> list[dict[str, Any]]:
    """Return a user message, then calls and results alternately; a result is the last message."""
    messages = [_user(_ASK)]
    for at in range(_MESSAGES // 2):
        text = _filler(at, size)
        call = {"type": "tool_use", "id": f"toolu_{at}", "name": TOOL, "input": {"path": "a.py", "new": text}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{at}", "content": text}
        messages.append({"role": "assistant", "content": [{"type": "text", "text": "Next."}, call]})
        messages.append({"role": "user", "content": [result]})
    return messages


def _tool(dialect: str, name: str) -> dict[str, Any]:
    text = f"The tool {name}: it works on files of this project, one at a time."
    if dialect == "anthropic":
        return {"name": name, "description": text, "input_schema": _SCHEMA}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": _SCHEMA}}
