"""What the embedded model says to a person: it answers what was asked, and calls a tool only if it was asked to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import dragoman.dialects as registry
from dragoman.gateway.config import build_config
from dragoman.model.conversation import StopReason
from dragoman.simulator.model import ModelPrompt, PromptTool, respond
from dragoman.simulator.response import Pause
from dragoman.simulator.script import ReasoningPart, Script, TextPart, ToolCallPart, human_pace
from dragoman.simulator.service import DialectService
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

CLAUDE_TOOLS = tuple(PromptTool(name, {"type": "object"}) for name in ("Bash", "Read", "Task", "Write"))
REMINDER = "<system-reminder>\nUse Bash and Read. Call Task often.\n</system-reminder>"
CODEX = "<environment_context>\n<cwd>/home</cwd> use Bash\n</environment_context>"


@pytest.mark.parametrize(
    ("text", "response"),
    [
        ("Say hi", "hi"),
        (f"{REMINDER}\n\nSay hi", "hi"),
        (f"Say hi\n\n{REMINDER}", "hi"),
        (f"{CODEX}\n\nSay hi.", "hi"),
        ('Please say exactly "four words, no more"', "four words, no more"),
        ("Reply with only: OK", "OK"),
        ("What does Bash do?", "You said: What does Bash do?"),
        ("Read my mind", "You said: Read my mind"),
        ("I use Bash every day", "You said: I use Bash every day"),
        ("Do not use Bash.", "You said: Do not use Bash."),
        ("Use your head. Bash is a shell.", "You said: Use your head. Bash is a shell."),
        ("You may call Bash and Read.\n\nHello", "You said: You may call Bash and Read.\n\nHello"),
        (REMINDER, f"You said: {REMINDER}"),
    ],
)
def test_only_the_users_own_last_words_ask_for_a_call(text: str, response: str) -> None:
    reply = respond(ModelPrompt(text=text, tools=CLAUDE_TOOLS))
    assert (reply.parts, reply.stop) == ((TextPart(response),), StopReason.END)


@pytest.mark.parametrize("text", ["Use Bash", "could you run Bash?", f"{REMINDER}\nPlease try Bash", 'Bash {"a": 1}'])
def test_words_that_ask_for_a_call_get_it(text: str) -> None:
    parts = respond(ModelPrompt(text=text, tools=CLAUDE_TOOLS)).parts
    assert [part.name for part in parts if isinstance(part, ToolCallPart)] == ["Bash"]


@pytest.mark.parametrize("text", ["help", "Who are you?", f"{REMINDER}\n\nwhat can you do?", "Which model are you"])
def test_the_model_says_what_it_is_and_can_do(text: str) -> None:
    [part] = respond(ModelPrompt(text=text, tools=CLAUDE_TOOLS)).parts
    assert isinstance(part, TextPart)
    assert "small built-in model" in part.text and "`Use NAME`" in part.text


@pytest.mark.parametrize(
    ("prompt", "thought"),
    [
        (ModelPrompt(text=f"Say hi\n\n{REMINDER}", thinks=True), "The user says: Say hi"),
        (ModelPrompt(results=("sunny",), thinks=True), "A tool has answered."),
    ],
)
def test_the_model_thinks_about_the_users_last_words(prompt: ModelPrompt, thought: str) -> None:
    assert respond(prompt).parts[0] == ReasoningPart(thought)


def test_without_a_configuration_the_simulators_stream_as_fast_as_a_person_reads(tmp_path: Path) -> None:
    config = build_config("", None, {"HOME": str(tmp_path)}, {}).config
    assert {each.simulator.tokens_per_second for each in config.upstreams.values()} == {60.0}
    service = DialectService(registry.get("openai"), Script(pace=human_pace(60.0)))
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Say twelve chars"}]}
    headers = (("authorization", "Bearer k"), ("content-type", "application/json"))
    pieces = list(service.handle(HttpRequest("POST", "/v1/chat/completions", "", headers, jsonio.encode(body))).pieces)
    texts = [
        text for piece in pieces if isinstance(piece, bytes) for text in re.findall(rb'"content":"([^"]+)"', piece)
    ]
    assert texts == [b"twel", b"ve c", b"hars"]
    assert [isinstance(piece, Pause) for piece in pieces] == [True, False] * (len(pieces) // 2)
    assert {piece.seconds for piece in pieces if isinstance(piece, Pause)} == {1 / 60}
