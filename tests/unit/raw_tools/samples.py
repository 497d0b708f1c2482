"""Streams with raw calls in them, functions that cut them, and the expected result."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from msgspec import Struct, structs

from dragoman.filters.raw_tools import CallIds, DeclaredTools, Engine, RawTools
from dragoman.filters.raw_tools.outputs import (
    Arguments,
    CallEnded,
    CallStarted,
    Channel,
    EngineOutput,
    Mode,
    TextOutput,
)
from dragoman.model import assemble
from dragoman.model.blocks import Reasoning, Text
from dragoman.model.blocks import ToolCall as CallBlock
from dragoman.model.conversation import Conversation, Message, Stop, StopReason, ToolSpec
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Event,
    Events,
    ReasoningDelta,
    Started,
    Stopped,
    TextDelta,
)
from dragoman.model.filter import Facts, Notes
from dragoman.wire.jsonio import Json
from tests.hypothesis_profile import IS_LONG_RUN

SB, SE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CB, AB, CE = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
TEXT, REASONING = Channel.TEXT, Channel.REASONING
ChannelText: TypeAlias = tuple[Channel, str]


def end(tag: str) -> str:
    return f"</{tag}>"


def call(header: str, arguments: str) -> str:
    return f"{CB}{header}{AB}{arguments}{CE}"


def section(*calls: str) -> str:
    return SB + "".join(calls) + SE


def tool(name: str, *keys: str) -> ToolSpec:
    properties: dict[str, Json] = {key: {"type": "string"} for key in keys}
    return ToolSpec(name, schema={"type": "object", "properties": properties, "required": [*keys]})


TOOLS = (tool("bash", "command"), tool("read_file", "path"), tool("task", "description", "prompt"))


class Call(Struct, frozen=True):
    id: str
    name: str
    arguments: str
    complete: bool = True


# One call, as the model writes it and as it is read.
LS = '{"command":"ls"}'
ONE = section(call("functions.bash:0", LS))
BASH = Call("functions.bash:0", "bash", LS)


class FilteredResponse(Struct, frozen=True):
    """All that a reply says, in the order in which it says it."""

    content: tuple[ChannelText | Call, ...]
    why: StopReason = StopReason.END
    rules: frozenset[str] = frozenset()

    @property
    def calls(self) -> list[Call]:
        return [each for each in self.content if isinstance(each, Call)]

    def text(self, channel: Channel = TEXT) -> str:
        return "".join(each[1] for each in self.content if not isinstance(each, Call) and each[0] is channel)


# --- cuts


def all_cuts(text: str, seed: int = 0) -> Iterator[list[str]]:
    """Whole, by character, at single places, and at random places.

    In `make laws-long` at every place, and fifty at random. In the suite a text of more than 48 characters is cut at
    every fourth place: which ones depends on its length, so texts of one form and different lengths share the places.
    """
    yield [text]
    yield list(text)
    some = not IS_LONG_RUN and len(text) > 48
    places = range(1 + len(text) % 4, len(text), 4) if some else range(1, len(text))
    yield from ([text[:at], text[at:]] for at in places)
    rng = random.Random(f"{seed} {text}" if some else seed)
    yield from (random_cut(text, rng) for _ in range(50 if IS_LONG_RUN else 8))


def random_cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.sample(range(len(text) + 1), min(len(text) + 1, rng.randint(1, 9))))
    return [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]


def channel_cuts(texts: Sequence[ChannelText], seed: int = 0) -> Iterator[list[ChannelText]]:
    """The same for a text that changes its carrier: a cut never joins two carriers."""
    whole = "".join(text for _, text in texts)
    for pieces in all_cuts(whole, seed):
        cut: list[ChannelText] = []
        rest = [[channel, text] for channel, text in texts]
        for piece in pieces:
            left = piece
            while left:
                channel, text = rest[0]
                taken = str(text)[: len(left)]
                cut.append((Channel(channel), taken))
                left = left[len(taken) :]
                rest[0][1] = str(text)[len(taken) :]
                if not rest[0][1]:
                    rest.pop(0)
        yield cut


# --- the engine alone


def outputs(
    pieces: Iterable[str | ChannelText],
    choice: str = "auto",
    tools: Iterable[ToolSpec] = TOOLS,
    mode: Mode = "live",
    *,
    muted: bool = False,
    trailing_text: bool = True,
    native: str = "",
    think_tags: bool = False,
) -> list[EngineOutput]:
    """What the engine says, neighbouring pieces of one kind joined. `native`: the id of a native call that came first."""
    engine = Engine(
        choice,
        DeclaredTools(tools),
        CallIds(),
        mode=mode,
        muted=muted,
        trailing_text=trailing_text,
        think_tags=think_tags,
    )
    if native:
        engine.add_native_call(native)
    emitted: list[EngineOutput] = []
    for piece in pieces:
        emitted += engine.feed(piece) if isinstance(piece, str) else engine.feed(piece[1], piece[0])
    return merge_adjacent([*emitted, *engine.close()])


def merge_adjacent(emitted: Iterable[EngineOutput]) -> list[EngineOutput]:
    joined: list[EngineOutput] = []
    for output in emitted:
        last = joined[-1] if joined else None
        if (
            isinstance(output, TextOutput)
            and isinstance(last, TextOutput)
            and structs.replace(output, text=last.text) == last
        ):
            joined[-1] = structs.replace(last, text=last.text + output.text)
        elif isinstance(output, Arguments) and isinstance(last, Arguments):
            joined[-1] = Arguments(last.text + output.text)
        else:
            joined.append(output)
    return joined


# --- the filter


def conversation(
    tools: Iterable[ToolSpec] = TOOLS, messages: tuple[Message, ...] = (), model: str = "kimi-k2"
) -> Conversation:
    question = Message("user", (Text("Do it."),))
    return Conversation(model, (*messages, question), tools=tuple(tools))


def stream(
    pieces: Iterable[ChannelText], why: StopReason = StopReason.END, choice: int = 0, first_key: int = 0
) -> Iterator[Events]:
    """Return a reply as a decoder sends it: one frame per piece, one block while the channel stays the same."""
    yield (Started("r", "m"),)
    yield from blocks(pieces, choice, first_key)
    yield (Stopped(Stop(why), choice),)
    yield (FINISHED,)


def blocks(pieces: Iterable[ChannelText], choice: int = 0, first_key: int = 0) -> Iterator[Events]:
    key, open_channel = first_key - 1, None
    for channel, text in pieces:
        frame: list[Event] = []
        if channel is not open_channel:
            if open_channel is not None:
                frame.append(BlockEnded(key))
            key, open_channel = key + 1, channel
            frame.append(BlockStarted(key, Text("") if channel is TEXT else Reasoning(""), choice))
        frame.append(TextDelta(key, text) if channel is TEXT else ReasoningDelta(key, text))
        yield tuple(frame)
    if open_channel is not None:
        yield (BlockEnded(key),)


def run_filter(
    frames: Iterable[Events], filter_: RawTools | None = None, request: Conversation | None = None
) -> FilteredResponse:
    """Send a reply through the response filter and check the order of its events."""
    _, make_back = (filter_ or RawTools()).forward(request or conversation(), Notes(), Facts())
    assert make_back is not None
    notes = Notes()
    back = make_back(notes, BlockKeys(1 << 20))  # samples choose the keys of their own blocks
    events = [event for frame in frames for event in back.feed(frame)]
    assemble.check(events)
    return collect_response(events, frozenset(note.rule for note in notes))


def collect_response(events: Iterable[Event], rules: frozenset[str] = frozenset(), choice: int = 0) -> FilteredResponse:
    parts: dict[int, ChannelText | Call] = {}
    why = StopReason.END
    for event in events:
        match event:
            case BlockStarted(key, CallBlock(id=id_, name=name), number) if number == choice:
                parts[key] = Call(id_, name, "", complete=False)
            case BlockStarted(key, Text() | Reasoning() as block, number) if number == choice:
                parts[key] = (TEXT if isinstance(block, Text) else REASONING, "")
            case TextDelta(key, text) | ReasoningDelta(key, text) | ArgumentsDelta(key, text) if key in parts:
                grown = parts[key]
                if isinstance(grown, Call):
                    parts[key] = Call(grown.id, grown.name, grown.arguments + text, complete=False)
                else:
                    parts[key] = (grown[0], grown[1] + text)
            case BlockEnded(key, complete) if key in parts:
                grown = parts[key]
                if isinstance(grown, Call):
                    parts[key] = Call(grown.id, grown.name, grown.arguments, complete)
            case Stopped(stop, number) if number == choice:
                why = stop.reason
            case _:
                pass
    return FilteredResponse(tuple(parts.values()), why, rules)


def calls_of(emitted: Sequence[EngineOutput]) -> list[tuple[str, object, bool | None]]:
    """Name, arguments as a value (or as text, if they are no JSON), whether it is complete; None: it never ended."""
    found: list[tuple[str, object, bool | None]] = []
    name, arguments = "", ""
    started = False
    for output in emitted:
        match output:
            case CallStarted():
                name, arguments, started = output.name, "", True
            case Arguments(text):
                arguments += text
            case CallEnded(complete):
                found.append((name, value_of(arguments), complete))
                started = False
            case _:
                pass
    return [*found, (name, value_of(arguments), None)] if started else found


def value_of(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
