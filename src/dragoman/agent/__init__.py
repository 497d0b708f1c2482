"""An agent that trusts nothing: Bedrock's responses are validated before they are used, and no tool call is lost.

Programs of others and `dragoman agent` call it. It sends requests through `dragoman.http`, and runs the given tools.
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
