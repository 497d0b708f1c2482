"""A tool-loop agent: it validates every response before it uses it, and gives each tool call exactly one result.

Public API, which docs/agent.md describes; `dragoman agent` uses it, too. It sends requests through `dragoman.http` and
runs the given tools in threads. Its errors are those of `dragoman`, and BedrockResponseError.
"""

from __future__ import annotations

from dragoman.agent.client import BedrockClient, Client, DialectClient, HttpSender, Sender
from dragoman.agent.runner import AgentRunner
from dragoman.agent.tools import Tool, ToolError, as_tool
from dragoman.agent.types import (
    BedrockResponseError,
    ReasoningReceived,
    RunEnded,
    RunEvent,
    RunResult,
    StepEnded,
    StepResult,
    StepStarted,
    TextReceived,
    ToolAnswer,
    ToolEnded,
    ToolStarted,
    ToolUseBlock,
)
from dragoman.model.blocks import Media, Text
from dragoman.model.conversation import Conversation, Message, Usage
from dragoman.wire.http import HttpRequest, HttpResponse

__all__ = [
    "AgentRunner",
    "BedrockClient",
    "BedrockResponseError",
    "Client",
    "Conversation",
    "DialectClient",
    "HttpRequest",
    "HttpResponse",
    "HttpSender",
    "Media",
    "Message",
    "ReasoningReceived",
    "RunEnded",
    "RunEvent",
    "RunResult",
    "Sender",
    "StepEnded",
    "StepResult",
    "StepStarted",
    "Text",
    "TextReceived",
    "Tool",
    "ToolAnswer",
    "ToolEnded",
    "ToolError",
    "ToolStarted",
    "ToolUseBlock",
    "Usage",
    "as_tool",
]
