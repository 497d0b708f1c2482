"""A tool-loop agent: it validates every response before it uses it, and gives each tool call exactly one result.

Public API; `dragoman agent` uses it, too. It sends requests through `dragoman.http` and runs the given tools in
threads.
"""

from __future__ import annotations

from dragoman.agent.client import BedrockClient, Client, DialectClient, HttpSender
from dragoman.agent.runner import AgentRunner
from dragoman.agent.tools import Tool, as_tool
from dragoman.agent.types import (
    Answered,
    Asked,
    BedrockResponseError,
    Called,
    Ended,
    RunResult,
    Said,
    Stepped,
    StepResult,
    Thought,
    ToolAnswer,
    ToolUseBlock,
    Watched,
)

__all__ = [
    "AgentRunner",
    "Answered",
    "Asked",
    "BedrockClient",
    "BedrockResponseError",
    "Called",
    "Client",
    "DialectClient",
    "Ended",
    "HttpSender",
    "RunResult",
    "Said",
    "StepResult",
    "Stepped",
    "Thought",
    "Tool",
    "ToolAnswer",
    "ToolUseBlock",
    "Watched",
    "as_tool",
]
