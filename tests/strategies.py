"""Hypothesis strategies for the canonical model: conversations, event streams, and splits of them into batches.

`conversations()` is canonical, as every codec returns it, but breaks the rules of every target: illegal, duplicate and
reused ids, results without calls, missing, late and duplicate results, blank texts, system messages anywhere, and
content of two model families. `continued_conversations()` gives a conversation and the same one some turns later.
`events()` follows the rules of model/assemble.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec import structs

from dragoman.errors import Fault
from dragoman.model.blocks import (
    Block,
    CacheBreakpoint,
    Extra,
    Location,
    Media,
    Opaque,
    Reasoning,
    Signature,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.capabilities import Capabilities, IdentifierFormat
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
    to_canonical,
)
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    CitationAdded,
    Event,
    Events,
    Failed,
    OpaqueEvent,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)

FAMILIES = ("anthropic", "openai")

# Few, so that names collide. Each covers one rule: legal, legal on some targets only, too long, equal in the first 80
# characters, equal to the new name that a renaming of another one could produce.
IDS = (
    "call_1",
    "call_2",
    "call_1_2",
    "functions.read:0",
    "call_x|fc_y",
    "naïve id",
    "i" * 64,
    "i" * 65,
    "i" * 80 + "1",
    "i" * 80 + "2",
)
NAMES = ("read", "mcp.a.b", "mcp_a_b", "files.read all", "n" * 64, "n" * 65, "n" * 129)
TEXTS = (
    "",
    " ",
    "\n\t ",
    "hi",
    "two\nlines",
    "ends with space ",
    " begins with one",
    "é 漢 🐉",
    "</think>",
    '"quoted"\\',
)
BLANKS = ("", " ", "\n\t ")


# ---- plain values

texts: SearchStrategy[str] = st.sampled_from(TEXTS) | st.text(max_size=6)
ids: SearchStrategy[str] = st.sampled_from(IDS)
names: SearchStrategy[str] = st.sampled_from(NAMES)
numbers: SearchStrategy[float] = st.floats(-4, 4, allow_nan=False).map(lambda number: round(number, 3) + 0.0)
counts: SearchStrategy[int] = st.integers(0, 5000)
scalars: SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | numbers | texts
json_values: SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2), max_leaves=4
)
schemas: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(names, st.sampled_from([{"type": "string"}, {"type": "integer"}]), max_size=2),
    }
)
arguments: SearchStrategy[str] = st.sampled_from(
    ("", "{}", '{"path": "a", "n": 1.0}', '{ "x":[1,2] }', '"{\\"a\\":1}"', "[1]", '{"cut', "no json")
)


def maybe(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Return a strategy that mostly gives None, so that rare fields stay rare and shrink away."""
    return st.one_of(st.none(), st.none(), strategy)


# No dialect knows these field names: each must keep them unchanged, or note that it dropped them.
extras: SearchStrategy[Extra] = st.builds(
    Extra,
    st.sampled_from(FAMILIES),
    st.dictionaries(  # some readers treat null as absent, so null would prove nothing
        st.sampled_from(("x_mark", "x_trace")),
        json_values.filter(lambda value: value is not None),
        min_size=1,
        max_size=2,
    ),
)
caches: SearchStrategy[CacheBreakpoint] = st.builds(CacheBreakpoint, st.sampled_from(("5m", "1h", "30m", "12h")))
_short_caches: SearchStrategy[CacheBreakpoint] = st.builds(CacheBreakpoint)  # of blocks that replies have, too
_SIGNATURES = (
    ("anthropic", "signature"),
    ("anthropic", "redacted"),
    ("openai", "signature"),
    ("openai", "encrypted"),
    ("gemini", "signature"),
)
signatures: SearchStrategy[Signature] = st.builds(
    lambda origin, data: Signature(origin[0], data, origin[1]),
    st.sampled_from(_SIGNATURES),
    st.sampled_from(("c2VhbA==", "bW9yZQ==")),
)


_signatures = signatures.filter(
    lambda signature: signature.kind == "signature"
)  # the other kinds come without text, in one piece

# ---- blocks


def opaques(kinds: Sequence[str] = ("x_widget",)) -> SearchStrategy[Opaque]:
    make = lambda family, kind, cache: Opaque(family, {"type": kind, "x_data": [1, None]}, kind, cache)  # noqa: E731
    return st.builds(make, st.sampled_from(FAMILIES), st.sampled_from(kinds), maybe(_short_caches))


media: SearchStrategy[Media] = st.one_of(
    st.builds(
        Media,
        st.just("image"),
        st.sampled_from(("image/png", "image/jpeg")),
        st.just("base64"),
        st.just("aGk="),
        cache=maybe(_short_caches),
        extra=maybe(extras),
    ),
    st.builds(Media, st.just("image"), st.just(""), st.just("url"), st.just("https://example.org/a.png")),
    st.builds(Media, st.just("document"), st.just("application/pdf"), st.just("base64"), st.just("JVBERg=="), texts),
    st.builds(Media, st.just("document"), st.just("text/plain"), st.just("text"), texts),
    st.builds(Media, st.just("document"), st.just(""), st.just("file"), st.just("file_1")),
    st.builds(Media, st.just("audio"), st.just("audio/wav"), st.just("base64"), st.just("UklGRg==")),
)
plain_texts: SearchStrategy[Text] = st.builds(Text, texts, maybe(caches), extra=maybe(extras))
assistant_texts: SearchStrategy[Text] = st.builds(
    Text, texts, maybe(_short_caches), maybe(signatures), st.lists(opaques(("x_citation",)), max_size=1).map(tuple)
)
reasonings: SearchStrategy[Reasoning] = st.builds(Reasoning, texts, st.sampled_from(("", *FAMILIES)), maybe(signatures))


def tool_calls(ids: SearchStrategy[str] = ids) -> SearchStrategy[ToolCall]:
    form = st.sampled_from(("json", "json", "text"))
    return st.builds(
        ToolCall, ids, names, arguments, form, maybe(_short_caches), maybe(signatures), extra=maybe(extras)
    )


def tool_results(ids: SearchStrategy[str] = ids) -> SearchStrategy[ToolResult]:
    part = plain_texts | media | opaques(("x_widget", "unreadable media"))
    content = st.lists(part, max_size=3).map(tuple)
    return st.builds(ToolResult, ids, content, st.booleans(), maybe(caches), extra=maybe(extras))


# ---- messages

_user_blocks: SearchStrategy[list[Block]] = st.lists(
    st.one_of(plain_texts, plain_texts, media, tool_results(), opaques()), max_size=3
)
_assistant_blocks: SearchStrategy[list[Block]] = st.lists(
    st.one_of(assistant_texts, assistant_texts, reasonings, tool_calls(), opaques()), max_size=3
)
_system_blocks: SearchStrategy[list[Block]] = st.lists(st.one_of(plain_texts, plain_texts, opaques()), max_size=2)


def _message(
    role: Literal["user", "assistant", "system"], blocks: SearchStrategy[list[Block]]
) -> SearchStrategy[Message]:
    return st.builds(Message, st.just(role), blocks.map(tuple), extra=maybe(extras))


def _possibly_blank(blocks: SearchStrategy[list[Block]]) -> SearchStrategy[list[Block]]:
    blank: SearchStrategy[list[Block]] = st.lists(st.builds(Text, st.sampled_from(BLANKS), maybe(caches)), max_size=2)
    return st.one_of(blocks, blocks, blocks, blank)


user_turns = _message("user", _possibly_blank(_user_blocks))
assistant_turns = _message("assistant", _possibly_blank(_assistant_blocks))
system_turns = _message("system", _possibly_blank(_system_blocks))
turn_lists: SearchStrategy[list[Message]] = st.lists(
    st.one_of(user_turns, user_turns, assistant_turns, assistant_turns, system_turns), min_size=1, max_size=3
)


@st.composite
def tool_exchanges(draw: DrawFn) -> list[Message]:
    """Calls and their results in every bad order that clients send: shuffled, lost, duplicated, late, interrupted."""
    calls = draw(st.lists(tool_calls(), min_size=1, max_size=3))
    results = [draw(tool_results(st.just(call.id))) for call in calls if draw(st.integers(0, 5))]
    if results and not draw(st.integers(0, 3)):
        results.append(draw(st.sampled_from(results)))
    results = draw(st.permutations(results))
    cut = draw(st.integers(0, len(results))) if not draw(st.integers(0, 2)) else len(results)
    texts = draw(st.lists(plain_texts, max_size=1))
    before = draw(st.lists(assistant_texts | reasonings, max_size=1))
    between = (
        draw(st.lists(st.one_of(system_turns, user_turns, assistant_turns), max_size=1)) if cut < len(results) else []
    )
    return [
        Message("assistant", (*before, *calls)),
        *draw(st.lists(system_turns, max_size=1) if not draw(st.integers(0, 3)) else st.just([])),
        Message("user", (*results[:cut], *texts)),
        *between,
        *([Message("user", tuple(results[cut:]))] if cut < len(results) else []),
    ]


def _concatenated(parts: Iterable[list[Message]]) -> tuple[Message, ...]:
    return tuple([message for part in parts for message in part])


histories: SearchStrategy[tuple[Message, ...]] = st.lists(turn_lists | tool_exchanges(), max_size=4).map(_concatenated)


# ---- conversations

tool_specs: SearchStrategy[ToolSpec] = st.builds(
    ToolSpec, names, texts, maybe(schemas), maybe(caches), maybe(st.booleans()), extra=maybe(extras)
)
tools: SearchStrategy[tuple[ToolSpec | Opaque, ...]] = st.lists(
    st.one_of(tool_specs, tool_specs, tool_specs, opaques(("x_server_tool",))), max_size=3
).map(tuple)
outputs: SearchStrategy[Output] = st.one_of(
    st.just(Output()),
    st.just(Output("json")),
    st.builds(Output, st.just("schema"), st.sampled_from(("", "answer")), schemas, maybe(st.booleans())),
)
thinkings: SearchStrategy[Thinking] = st.one_of(
    st.just(Thinking()),
    st.builds(
        Thinking,
        st.sampled_from(("default", "off", "on", "adaptive", "between_tools")),
        st.sampled_from(("", "low", "medium", "high", "max")),
        maybe(st.integers(1024, 4096)),
        maybe(st.booleans()),
    ),
)
sampling: SearchStrategy[dict[str, float]] = st.dictionaries(
    st.sampled_from(("temperature", "top_p", "top_k", "seed", "frequency_penalty", "x_knob")), numbers, max_size=2
)


@st.composite
def tool_choices(draw: DrawFn, declared: Sequence[str]) -> ToolChoice:
    parallel = draw(maybe(st.booleans()))
    if not declared:
        return ToolChoice(draw(st.sampled_from(("auto", "none"))), parallel=parallel)
    mode: Any = draw(st.sampled_from(("auto", "any", "none", "one")))
    limit = {"one": (1, 1), "none": (0, 0)}.get(mode, (0, 2))
    chosen = draw(st.lists(st.sampled_from(declared), min_size=limit[0], max_size=limit[1], unique=True))
    return ToolChoice(mode, tuple(chosen), parallel)


@st.composite
def conversations(draw: DrawFn, messages: SearchStrategy[tuple[Message, ...]] | None = None) -> Conversation:
    """A canonical conversation, with `messages` for its history."""
    declared = draw(tools)
    conversation = Conversation(
        draw(st.sampled_from(("model-1", "claude-x"))),
        draw(histories if messages is None else messages),
        tuple(draw(st.lists(plain_texts, max_size=2))),
        declared,
        draw(tool_choices([tool.name for tool in declared if isinstance(tool, ToolSpec)])),
        draw(outputs),
        draw(thinkings),
        draw(maybe(st.integers(0, 4096))),
        tuple(draw(st.lists(st.sampled_from(("STOP", "\n\n")), max_size=2))),
        draw(sampling),
        draw(st.sampled_from((1, 1, 1, 2))),
        draw(st.booleans()),
        user=draw(st.sampled_from(("", "user-1"))),
        extra=draw(maybe(extras)),
    )
    return with_paths(to_canonical(conversation))


@st.composite
def continued_conversations(draw: DrawFn) -> tuple[Conversation, Conversation]:
    """A conversation that ends with a user turn and has no open call, and the same one some turns later.

    This is what a prompt cache sees: the later one continues with the model's reply to the earlier one.
    """
    earlier = draw(conversations(st.tuples(histories, user_turns).map(lambda pair: (*pair[0], pair[1]))))
    messages = (*earlier.messages, *_results_of_open_calls(earlier.messages))
    answered = draw(st.tuples(assistant_turns, user_turns).map(list) | tool_exchanges())
    later = (*messages, *answered, *draw(histories))
    return (
        with_paths(to_canonical(structs.replace(earlier, messages=messages))),
        with_paths(to_canonical(structs.replace(earlier, messages=later))),
    )


def _results_of_open_calls(messages: Iterable[Message]) -> list[Message]:
    """Return a result for each call without one. Calls may share an id; an extra result is harmless."""
    called = [block.id for message in messages for block in message.blocks if isinstance(block, ToolCall)]
    return [Message("user", tuple([ToolResult(id_, (Text("late"),)) for id_ in called]))] if called else []


def with_paths(conversation: Conversation) -> Conversation:
    """Return the conversation with a path on every node, as a codec sets them."""
    return structs.replace(
        conversation,
        system=_with_paths(conversation.system, "system"),
        tools=_with_paths(conversation.tools, "tools"),
        messages=tuple(
            [
                structs.replace(
                    message, at=Location(f"messages[{i}]"), blocks=_with_paths(message.blocks, f"messages[{i}].content")
                )
                for i, message in enumerate(conversation.messages)
            ]
        ),
    )


def _with_paths(nodes: Iterable[Any], path: str) -> tuple[Any, ...]:
    with_paths: list[Any] = []
    for index, node in enumerate(nodes):
        here = f"{path}[{index}]"
        content = {"content": _with_paths(node.content, f"{here}.content")} if isinstance(node, ToolResult) else {}
        with_paths.append(structs.replace(node, at=Location(here), **content))
    return tuple(with_paths)


# ---- targets

alphabets: SearchStrategy[IdentifierFormat] = st.builds(
    IdentifierFormat, st.sampled_from(("a-zA-Z0-9_-", "a-zA-Z0-9_.:-", "a-zA-Z0-9")), st.sampled_from((9, 40, 64, 128))
)
capabilities: SearchStrategy[Capabilities] = st.builds(
    Capabilities,
    system=st.sampled_from(("native", "leading", "none")),
    turns=st.sampled_from(("free", "merge", "pair")),
    turn_separator=st.sampled_from(("", "\n\n")),
    traits=st.frozensets(st.sampled_from(("user_last", "no_blank_text", "result_errors"))),
    names=alphabets,
    ids=alphabets,
    result_media=st.sampled_from((frozenset(), frozenset({"image", "document"}))),
)
"""Capabilities that differ in what they ask of a conversation's shape."""


# ---- replies

usages: SearchStrategy[Usage] = st.builds(Usage, counts, counts, counts, counts, st.just(0), st.booleans())
stops: SearchStrategy[Stop] = st.sampled_from(list(StopReason)).map(
    lambda why: Stop(why, "STOP" if why is StopReason.SEQUENCE else None)
)
faults: SearchStrategy[Fault] = st.sampled_from(
    (Fault("overloaded", "busy", 529), Fault("rate_limit", "slow down", 429, 3.0), Fault("server", "broke", 500))
)
_texts_begun = st.builds(Text, st.just(""))
_calls_begun = st.builds(ToolCall, st.just("") | ids, names)
_block_starts: dict[str, SearchStrategy[Any]] = {  # the reasoning of a reply belongs to one family
    family: st.one_of(
        _texts_begun,
        _texts_begun,
        st.just(Reasoning("", family)),
        _calls_begun,
        _calls_begun,
        media,
        opaques(),
    )
    for family in FAMILIES
}
_deltas: dict[type, Any] = {Text: TextDelta, Reasoning: ReasoningDelta, ToolCall: ArgumentsDelta}


_ACTS = ("start", "grow", "grow", "grow", "grow", "end", "stop", "usage", "opaque")


@st.composite
def events(draw: DrawFn, choices: int = 2, may_fail: bool = True) -> Events:
    """One whole stream: blocks interleave, keys have any order, choices stop one by one; it may fail anywhere."""
    if may_fail and not draw(st.integers(0, 15)):
        return (Failed(draw(faults)),)
    stream: list[Event] = [
        Started(draw(st.sampled_from(("", "msg_1"))), "model-1", draw(maybe(usages)), draw(maybe(extras)))
    ]
    begun = _block_starts[draw(st.sampled_from(FAMILIES))]
    keys = iter(draw(st.permutations(range(8))))
    running = list(range(draw(st.integers(1, choices))))
    open_blocks: dict[int, BlockStarted] = {}
    signed_keys: set[int] = set()
    for _ in range(draw(st.integers(0, 24))):
        act = draw(st.sampled_from(_ACTS)) if open_blocks else draw(st.sampled_from(("start", "start", *_ACTS)))
        if act == "start" and running and (key := next(keys, None)) is not None:
            open_blocks[key] = BlockStarted(key, draw(begun), draw(st.sampled_from(running)))
            stream.append(open_blocks[key])
        elif act in ("grow", "end") and open_blocks:
            key = draw(st.sampled_from(sorted(open_blocks)))
            stream.append(
                _next_delta(draw, open_blocks, key, signed_keys)
                if act == "grow"
                else _end_of_block(draw, open_blocks, key)
            )
        elif act == "stop" and len(running) > 1:
            stream.extend(_stop_of_choice(draw, open_blocks, running.pop()))
        elif act == "usage":
            stream.append(UsageReported(draw(usages)))
        elif act == "opaque":
            stream.append(OpaqueEvent(draw(st.sampled_from(FAMILIES)), "x_event", {"type": "x_event"}))
    if may_fail and not draw(st.integers(0, 7)):
        return (*stream, Failed(draw(faults)))
    while running:
        stream.extend(_stop_of_choice(draw, open_blocks, running.pop(0)))
    stream = [_length_stop_if_incomplete(event, stream) for event in stream]
    return (*stream, *draw(st.lists(usages.map(UsageReported), max_size=1)), FINISHED)


def _length_stop_if_incomplete(event: Event, stream: Sequence[Event]) -> Event:
    """Return the stop event, with reason `length` if a block of its choice is incomplete.

    No other stop reason leaves a block incomplete.

    See docs/decisions/responses.md#d7.
    """
    if not isinstance(event, Stopped):
        return event
    cut = {ended.key for ended in stream if isinstance(ended, BlockEnded) and not ended.is_complete}
    keys = {started.key for started in stream if isinstance(started, BlockStarted) and started.choice == event.choice}
    return Stopped(Stop(StopReason.LENGTH), event.choice) if cut & keys else event


def _next_delta(draw: DrawFn, open_blocks: dict[int, BlockStarted], key: int, signed_keys: set[int]) -> Event:
    block = open_blocks[key].block
    delta = _deltas.get(type(block))
    if delta is None:  # the block came in one piece
        return _end_of_block(draw, open_blocks, key)
    if key not in signed_keys and not draw(st.integers(0, 4)):
        signed_keys.add(key)
        return SignatureAdded(key, draw(_signatures))
    if isinstance(block, Text) and not draw(st.integers(0, 4)):
        return CitationAdded(key, draw(opaques(("x_citation",))))
    grown: Event = delta(key, draw(texts))
    return grown


def _end_of_block(draw: DrawFn, open_blocks: dict[int, BlockStarted], key: int) -> Event:
    del open_blocks[key]
    return BlockEnded(key, bool(draw(st.integers(0, 5))))


def _stop_of_choice(draw: DrawFn, open_blocks: dict[int, BlockStarted], choice: int) -> list[Event]:
    ending = [key for key, started in open_blocks.items() if started.choice == choice]
    return [*(_end_of_block(draw, open_blocks, key) for key in ending), Stopped(draw(stops), choice)]


# ---- cuts


@st.composite
def batches_of(draw: DrawFn, stream: Events) -> list[Events]:
    """The events split into batches of any size, also empty ones."""
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=len(stream))))
    return [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
