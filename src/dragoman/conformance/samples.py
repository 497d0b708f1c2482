"""Conversations and streams that between them use every part of the model."""

from __future__ import annotations

from dragoman.errors import Fault
from dragoman.model.blocks import Media, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Output, Stop, Thinking, ToolChoice, ToolSpec, Usage, Why
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    Events,
    Failed,
    ReasoningDelta,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
_WEATHER = ToolSpec(
    "get_weather",
    "Tell the weather.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


def _user(*blocks: Text | Media | ToolResult) -> Message:
    return Message("user", blocks)


def _assistant(*blocks: Text | Reasoning | ToolCall) -> Message:
    return Message("assistant", blocks)


_CALLS = (
    ToolCall("call_1", "get_weather", '{"city":"Paris"}'),
    ToolCall("call_2", "get_weather", '{"city":"Oslo"}'),
)

CONVERSATIONS: dict[str, Conversation] = {
    "a question": Conversation("m", (_user(Text("Hello")),)),
    "settings": Conversation(
        "m",
        (_user(Text("Hello")),),
        system=(Text("Be brief."), Text("Be kind.")),
        max_tokens=100,
        stop=("END",),
        knobs={"temperature": 0.5, "top_p": 0.9},
        thinking=Thinking(effort="high"),
        stream=True,
        user="someone",
    ),
    "parallel calls": Conversation(
        "m",
        (
            _user(Text("Weather in Paris and Oslo?")),
            _assistant(Text("I will look."), *_CALLS),
            _user(ToolResult("call_1", (Text("sunny"),)), ToolResult("call_2", (Text("no such city"),), is_error=True)),
        ),
        tools=(_WEATHER,),
        tool_choice=ToolChoice("any"),
    ),
    "messy tools": Conversation(
        "m",
        (
            _user(Text("Go")),
            _assistant(ToolCall("bad id|x", "mcp.weather tool", "not json"), ToolCall("b", "get_weather")),
            _user(ToolResult("bad id|x", ()), ToolResult("orphan", (Text("nobody asked"),))),
            _assistant(Text("  ")),
            _user(Text("and now?")),
        ),
        tools=(_WEATHER, ToolSpec("mcp.weather tool", "", {"type": "object", "properties": {}})),
    ),
    "images": Conversation(
        "m",
        (
            _user(Text("See"), Media("image", "image/png", "base64", _PIXEL)),
            _assistant(ToolCall("c", "get_weather", "{}")),
            _user(ToolResult("c", (Text("a picture"), Media("image", "image/png", "base64", _PIXEL)))),
        ),
        tools=(_WEATHER,),
    ),
    "a free-text tool": Conversation(
        "m",
        (
            _user(Text("Patch it")),
            _assistant(ToolCall("p", "patch", "*** Begin", "text")),
            _user(ToolResult("p", (Text("ok"),))),
        ),
        tools=(ToolSpec("patch", "Apply a patch."),),
        tool_choice=ToolChoice("one", ("patch",)),
    ),
    "an output schema": Conversation(
        "m",
        (_user(Text("List")),),
        output=Output("schema", "answer", {"type": "object", "properties": {"x": {"type": "integer"}}}, True),
    ),
    "a system message between": Conversation(
        "m",
        (
            _user(Text("one")),
            _assistant(Text("two")),
            Message("system", (Text("Now in French."),)),
            _user(Text("three")),
        ),
    ),
}


def _stream(*items: object, why: Why = Why.END) -> Events:
    return (
        Started("msg_1", "m"),
        *items,  # type: ignore[arg-type]
        UsageReported(Usage(12, 7, 100, 20)),
        Stopped(Stop(why)),
        FINISHED,
    )


STREAMS: dict[str, Events] = {
    "text": _stream(BlockStarted(0, Text("")), TextDelta(0, "Hel"), TextDelta(0, "lo ✓"), BlockEnded(0)),
    "reasoning, text, a call": _stream(
        BlockStarted(0, Reasoning("", "anthropic")),
        ReasoningDelta(0, "Let me think."),
        BlockEnded(0),
        BlockStarted(1, Text("")),
        TextDelta(1, "I will look."),
        BlockEnded(1),
        BlockStarted(2, ToolCall("call_1", "get_weather")),
        ArgumentsDelta(2, '{"city":'),
        ArgumentsDelta(2, '"Paris"}'),
        BlockEnded(2),
        why=Why.TOOL,
    ),
    "interleaved calls": _stream(
        BlockStarted(0, ToolCall("a", "f")),
        BlockStarted(1, ToolCall("b", "g")),
        ArgumentsDelta(0, '{"x":'),
        ArgumentsDelta(1, '{"y":'),
        ArgumentsDelta(0, "1}"),
        ArgumentsDelta(1, "2}"),
        BlockEnded(0),
        BlockEnded(1),
        why=Why.TOOL,
    ),
    "a call without arguments": _stream(BlockStarted(0, ToolCall("a", "now")), BlockEnded(0), why=Why.TOOL),
    "cut by length": _stream(BlockStarted(0, Text("")), TextDelta(0, "and so"), BlockEnded(0), why=Why.LENGTH),
    "nothing": _stream(),
    "failed": (
        Started("msg_1", "m"),
        BlockStarted(0, Text("")),
        TextDelta(0, "Hel"),
        Failed(Fault("overloaded", "too busy", 529)),
    ),
}
