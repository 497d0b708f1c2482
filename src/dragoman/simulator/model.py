"""The embedded model: no intelligence, but useful answers. Deterministic.

It answers tool results by quoting them; calls the declared tools that the last user turn names, with arguments that
fit their schemas (or the JSON object that the turn writes after the name); thinks when asked to; else repeats the turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dragoman.model.conversation import Why
from dragoman.simulator.example import example, example_value
from dragoman.simulator.turn import Part, Reason, Say, Use
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_MOST_CALLS = 8
_QUOTED = 4000  # characters of one tool result
_REPEATED = 400  # characters of the user's turn
_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)


class Tool(Struct, frozen=True):
    """A declared tool; without a schema it takes free text."""

    name: str
    schema: Mapping[str, Json] | None


class Prompt(Struct, frozen=True, kw_only=True):
    """What the model sees of a request, whatever its dialect."""

    text: str = ""  # the last user turn
    results: tuple[str, ...] = ()  # the tool results in it
    tools: tuple[Tool, ...] = ()
    must_call: bool = False
    parallel: bool = True
    thinks: bool = False
    output: Mapping[str, Json] | None = None  # a schema the answer must fit
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    input_tokens: int = 0


class Spoken(Struct, frozen=True):
    """What the model says, and why it stopped."""

    parts: tuple[Part, ...]
    stop: Why
    sequence: str | None = None


def respond(prompt: Prompt) -> Spoken:
    """Answer a prompt."""
    thought: list[Part] = (
        [Reason(f"The last turn has {len(prompt.text)} characters; I answer it.")] if prompt.thinks else []
    )
    if prompt.results:
        return _said(prompt, thought, _quoting(prompt.results))
    calls = _calls(prompt)
    if calls:
        names = " and ".join(call.name for call in calls)
        return Spoken((*thought, Say(f"I will call {names}."), *calls), Why.TOOL)
    if prompt.output is not None:
        return _said(prompt, thought, jsonio.encode(example_value(prompt.output)).decode())
    return _said(prompt, thought, f"You said: {_shown(prompt.text, _REPEATED)}")


def estimate(text: str) -> int:
    """Tokens in a text, roughly."""
    return -(-len(text) // 4)


def output_tokens(parts: Sequence[Part]) -> int:
    """Tokens in an answer, roughly."""
    total = 0
    for part in parts:
        match part:
            case Say(text) | Reason(text):
                total += estimate(text)
            case Use():
                total += estimate(part.name) + estimate(part.arguments)
            case _:
                pass
    return total


def _said(prompt: Prompt, before: list[Part], text: str) -> Spoken:
    """Say a text, as far as stop sequences and the token limit let it."""
    stop, sequence = Why.END, None
    found = [(text.index(each), each) for each in prompt.stop if each and each in text]
    if found:
        at, sequence = min(found)
        text, stop = text[:at], Why.SEQUENCE
    if prompt.max_tokens is not None and estimate(text) > prompt.max_tokens:
        text, stop, sequence = text[: 4 * prompt.max_tokens], Why.LENGTH, None
    return Spoken((*before, *([Say(text)] if text else [])), stop, sequence)


def _quoting(results: tuple[str, ...]) -> str:
    quoted = [_shown(result, _QUOTED) for result in results]
    return f"The tool answered: {quoted[0]}" if len(quoted) == 1 else "The tools answered:\n" + "\n".join(quoted)


def _shown(text: str, limit: int) -> str:
    text = text.strip()
    return text if len(text) <= limit else text[:limit] + " …"


def _calls(prompt: Prompt) -> list[Use]:
    text = _REMINDER.sub("", prompt.text)
    # Clients put long instructions that name every tool around the question: a call that is written out is meant, else
    # the last paragraph says what is wanted now.
    named = _written(text, prompt.tools)
    named = named or _named(text.strip().rpartition("\n\n")[2], prompt.tools) or _named(text, prompt.tools)
    if not named and prompt.must_call and prompt.tools:
        named = [(prompt.tools[0], "")]
    calls = [Use(tool.name, _arguments(tool, rest)) for tool, rest in named]
    return calls[: _MOST_CALLS if prompt.parallel else 1]


def _written(text: str, tools: tuple[Tool, ...]) -> list[tuple[Tool, str]]:
    """The tools of `Call NAME {…}`, wherever it stands."""
    orders = [(match.start(), tool, text[match.end() :]) for tool in tools for match in _order(tool).finditer(text)]
    return [(tool, rest) for _, tool, rest in sorted(orders, key=lambda each: each[0]) if _written_object(rest)]


def _order(tool: Tool) -> re.Pattern[str]:
    return re.compile(rf"\bCall {re.escape(tool.name)}(?=\s*\{{)")


def _named(text: str, tools: tuple[Tool, ...]) -> list[tuple[Tool, str]]:
    """The tools a text names, in its order, each with the text after its name."""
    found = []
    for tool in tools:
        match = re.search(rf"(?<![\w-]){re.escape(tool.name)}(?![\w-])", text)
        if match:
            found.append((match.start(), tool, text[match.end() :]))
    return [(tool, rest) for _, tool, rest in sorted(found, key=lambda each: each[0])]


def _arguments(tool: Tool, rest: str) -> str:
    written = _written_object(rest)
    if written is not None:
        return written
    if tool.schema is None:
        return f"example {tool.name}"
    return jsonio.encode(example(tool.schema)).decode()


def _written_object(rest: str) -> str | None:
    """The JSON object that stands right after a tool's name, as it is written."""
    lead = re.match(r"[\s`:(]*(?:with\s+)?(?=\{)", rest)
    if lead is None:
        return None
    start = lead.end()
    for end in (match.end() for match in re.finditer(r"\}", rest[start : start + 10_000])):
        text = rest[start : start + end]
        try:
            value = jsonio.decode(text)
        except jsonio.JsonError:
            continue
        return text if isinstance(value, dict) else None
    return None
