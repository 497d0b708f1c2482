"""Sample conversations and streams, which together use every part of the canonical model."""

from __future__ import annotations

from dragoman.errors import Fault
from dragoman.model import events as ev
from dragoman.model.blocks import Media, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import (
    Conversation,
    Message,
    Output,
    Stop,
    StopReason,
    Thinking,
    ToolChoice,
    ToolSpec,
    Usage,
)

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
_WEATHER = ToolSpec(
    "get_weather",
    "Get the weather.",
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
        sampling={"temperature": 0.5, "top_p": 0.9},
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
            _user(ToolResult("bad id|x", ()), ToolResult("orphan", (Text("not requested"),))),
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


def _stream(*items: object, why: StopReason = StopReason.END) -> ev.Events:
    return (
        ev.Started("msg_1", "m"),
        *items,  # type: ignore[arg-type]
        ev.UsageReported(Usage(12, 7, 100, 20)),
        ev.Stopped(Stop(why)),
        ev.FINISHED,
    )


STREAMS: dict[str, ev.Events] = {
    "text": _stream(ev.BlockStarted(0, Text("")), ev.TextDelta(0, "Hel"), ev.TextDelta(0, "lo ✓"), ev.BlockEnded(0)),
    "reasoning, text, a call": _stream(
        ev.BlockStarted(0, Reasoning("", "anthropic")),
        ev.ReasoningDelta(0, "Let me think."),
        ev.BlockEnded(0),
        ev.BlockStarted(1, Text("")),
        ev.TextDelta(1, "I will look."),
        ev.BlockEnded(1),
        ev.BlockStarted(2, ToolCall("call_1", "get_weather")),
        ev.ArgumentsDelta(2, '{"city":'),
        ev.ArgumentsDelta(2, '"Paris"}'),
        ev.BlockEnded(2),
        why=StopReason.TOOL,
    ),
    "interleaved calls": _stream(
        ev.BlockStarted(0, ToolCall("a", "f")),
        ev.BlockStarted(1, ToolCall("b", "g")),
        ev.ArgumentsDelta(0, '{"x":'),
        ev.ArgumentsDelta(1, '{"y":'),
        ev.ArgumentsDelta(0, "1}"),
        ev.ArgumentsDelta(1, "2}"),
        ev.BlockEnded(0),
        ev.BlockEnded(1),
        why=StopReason.TOOL,
    ),
    "a call without arguments": _stream(
        ev.BlockStarted(0, ToolCall("a", "now")), ev.BlockEnded(0), why=StopReason.TOOL
    ),
    "cut by length": _stream(
        ev.BlockStarted(0, Text("")), ev.TextDelta(0, "and so"), ev.BlockEnded(0), why=StopReason.LENGTH
    ),
    "nothing": _stream(),
    "failed": (
        ev.Started("msg_1", "m"),
        ev.BlockStarted(0, Text("")),
        ev.TextDelta(0, "Hel"),
        ev.Failed(Fault("overloaded", "too busy", 529)),
    ),
}
