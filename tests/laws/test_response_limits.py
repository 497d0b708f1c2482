"""An endless response never makes the memory of a translation grow, whatever it repeats, for every client dialect.

Every pair of dialects is fed responses that repeat one thing many times over, with small limits. What is held afterwards
is measured by walking through all objects that the response refers to.
"""

from __future__ import annotations

import functools
import gc
import io
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from msgspec import Struct

import dragoman.dialects as registry
import dragoman.response_stream
from dragoman.conformance import laws
from dragoman.conformance.laws import EMPTY_REQUEST, fixed_environment
from dragoman.dialects.base import Dialect, Environment
from dragoman.errors import ResponseTooLarge
from dragoman.filters.raw_tools.grammar import Grammar
from dragoman.filters.raw_tools.table import Table
from dragoman.gateway.response_modes import PassThrough
from dragoman.gateway.response_store import ResponseSaver, ResponseStore
from dragoman.http.exchange import Owner
from dragoman.model.blocks import Opaque, Reasoning, Signature, Text, ToolCall
from dragoman.model.conversation import Conversation, Message, ToolSpec, Usage
from dragoman.model.events import (
    ArgumentsDelta,
    BlockEnded,
    BlockStarted,
    CitationAdded,
    Events,
    Failed,
    ReasoningDelta,
    ResponseBudget,
    ResponseLimits,
    SignatureAdded,
    Started,
    TextBuffer,
    TextDelta,
    UsageReported,
    json_size,
)
from dragoman.response_stream import ResponseTranslator
from dragoman.translate import Plan, TranslationSettings, plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload
from dragoman.wire.markers import Markers

DIALECTS = sorted(registry.names())
LIMITS = ResponseLimits(max_bytes=32 * 1024, blocks=48, choices=6)
FEW_NOTES = 20
FRAMES = 400
MUCH = 6 * LIMITS.max_bytes  # bytes of frames
MAX_BUFFERED = 3 * LIMITS.max_bytes  # that may be held when the response is over, or goes on
WORDS = "words of a response that has no end " * 16
ENDLESS = ResponseLimits(sys.maxsize, sys.maxsize, sys.maxsize)
FAMILIES = {name: registry.get(name).codec.family for name in DIALECTS}

Repeated: TypeAlias = Iterator[Events | Payload]


# --- what is repeated


def text(_family: str) -> Repeated:
    yield (BlockStarted(0, Text("")),)
    while True:
        yield (TextDelta(0, WORDS),)


def short_text(_family: str) -> Repeated:
    yield (BlockStarted(0, Text("")),)
    while True:
        yield (TextDelta(0, "é"),)


def reasoning(family: str) -> Repeated:
    yield (BlockStarted(0, Reasoning("", family)),)
    while True:
        yield (ReasoningDelta(0, WORDS),)


def arguments(_family: str) -> Repeated:
    yield (BlockStarted(0, ToolCall("call_1", "read")),)
    yield (ArgumentsDelta(0, '{"path": "'),)
    while True:
        yield (ArgumentsDelta(0, WORDS),)


def free_text_arguments(_family: str) -> Repeated:
    yield (BlockStarted(0, ToolCall("call_1", "patch")),)
    yield (ArgumentsDelta(0, '{"input": "'),)
    while True:
        yield (ArgumentsDelta(0, WORDS),)


def odd_arguments(_family: str) -> Repeated:
    yield (BlockStarted(0, ToolCall("call_1", "read")),)
    while True:
        yield (ArgumentsDelta(0, WORDS),)


def calls(_family: str) -> Repeated:
    for key in itertools.count():
        yield (BlockStarted(key, ToolCall(f"call_{key}", "read")), ArgumentsDelta(key, "{}"), BlockEnded(key))


def long_ids(_family: str) -> Repeated:
    for key in itertools.count():
        call = ToolCall(f"call_{key}_" + "x" * 2000, "read")
        yield (BlockStarted(key, call), ArgumentsDelta(key, "{}"), BlockEnded(key))


def open_calls(_family: str) -> Repeated:
    for key in itertools.count():
        yield (BlockStarted(key, ToolCall(f"call_{key}", "read")), ArgumentsDelta(key, '{"a": "' + WORDS))


def side_by_side(_family: str) -> Repeated:
    """The first block never ends; all others wait where only one may be open."""
    yield (BlockStarted(0, ToolCall("call_0", "read")), ArgumentsDelta(0, '{"a": "'))
    yield (BlockStarted(1, ToolCall("call_1", "read")), ArgumentsDelta(1, '{"a": "'))
    while True:
        yield (ArgumentsDelta(1, WORDS),)


def thoughts(family: str) -> Repeated:
    for key in itertools.count():
        thought = BlockStarted(key, Reasoning("", family))
        yield (thought, ReasoningDelta(key, "so"), SignatureAdded(key, Signature(family, "c2VhbA==")), BlockEnded(key))


def alternating(family: str) -> Repeated:
    for key in itertools.count(step=2):
        yield (BlockStarted(key, Reasoning("", family)), ReasoningDelta(key, "so"), BlockEnded(key))
        yield (BlockStarted(key + 1, Text("")), TextDelta(key + 1, "so"), BlockEnded(key + 1))


def choices(_family: str) -> Repeated:
    for key in itertools.count():
        yield (BlockStarted(key, Text(""), key), TextDelta(key, "one of many"))


def usage(_family: str) -> Repeated:
    yield (BlockStarted(0, Text("")), TextDelta(0, "a"))
    for count in itertools.count(1):
        yield (UsageReported(Usage(count, count)),)


def empty(_family: str) -> Repeated:
    yield (BlockStarted(0, Text("")), TextDelta(0, "a"))
    while True:
        yield (TextDelta(0, ""),)


def markers(_family: str) -> Repeated:
    """Raw tool tokens that begin nothing."""
    yield (BlockStarted(0, Text("")),)
    while True:
        yield (TextDelta(0, "<|tool_call_end|>" * 30),)


def raw_call(_family: str) -> Repeated:
    yield (BlockStarted(0, Text("")), TextDelta(0, '<tool_call>\n{"name": "read", "arguments": {"path": "'))
    while True:
        yield (TextDelta(0, WORDS),)


def blanks(_family: str) -> Repeated:
    yield (BlockStarted(0, Text("")),)
    while True:
        yield (TextDelta(0, " \n" * 300),)


def closed_thinking(_family: str) -> Repeated:
    yield (BlockStarted(0, Text("")), TextDelta(0, "<thinking>a</thinking>"))
    while True:
        yield (TextDelta(0, " " * 600),)


def unreadable(_family: str) -> Repeated:
    while True:
        yield Payload(b"message", b'{"nope": ')


CITATIONS: dict[str, Any] = {
    "anthropic": {"type": "char_location", "cited_text": "a", "document_index": 0, "document_title": "t"},
    "openai": {"type": "url_citation", "url_citation": {"url": "http://a", "title": "t"}},
    "responses": {"type": "url_citation", "url": "http://a", "title": "t", "start_index": 0, "end_index": 1},
    "bedrock": {"title": "t", "sourceContent": [{"text": "a"}], "location": {}},
}


def citations(family: str) -> Repeated:
    yield (BlockStarted(0, Text("")), TextDelta(0, "a"))
    for number in itertools.count():
        data = {**CITATIONS[family], "title": f"{number} {WORDS}", "document_title": f"{number} {WORDS}"}
        yield (CitationAdded(0, Opaque(family, data)),)


def blocks_of_its_own(family: str) -> Repeated:
    for key in itertools.count():
        data = OWN_BLOCKS[family](f"{key} {WORDS}")
        yield (BlockStarted(key, Opaque(family, data, str(data.get("type", "")))), BlockEnded(key))


OWN_BLOCKS: dict[str, Callable[[str], Any]] = {
    "anthropic": lambda words: {"type": "web_search_tool_result", "tool_use_id": "a", "content": [{"title": words}]},
    "responses": lambda words: {"type": "web_search_call", "id": words[:8], "query": words},
    "bedrock": lambda words: {"toolResult": {"toolUseId": "a", "type": "x", "content": [{"text": words}]}},
    "gemini": lambda words: {"executableCode": {"language": "PYTHON", "code": words}},
}


def frames(*data: Any, kind: str = "") -> Callable[[str], Repeated]:
    """Frames of one dialect, in which `#` is a number that grows and `W` are words."""

    def repeated(_family: str) -> Repeated:
        for number, each in zip(itertools.count(), itertools.cycle(data)):
            written = jsonio.encode(each).replace(b"#", str(number).encode()).replace(b'"@"', str(number).encode())
            yield Payload(kind.encode(), written.replace(b"~W", WORDS.encode()))

    return repeated


def _call(**fields: Any) -> Any:
    return {"id": "c", "choices": [{"index": 0, "delta": {"tool_calls": [fields]}}]}


OF_ONE: dict[str, dict[str, Callable[[str], Repeated]]] = {
    "openai": {
        "early fields": frames({"field #": "~W"}),
        "nameless calls": frames(_call(index="@", id="call_#~W", function={"arguments": "x"})),
        "fields of a nameless call": frames(_call(index=0, id="c", **{"field #": "~W"})),
        "unknown fields": frames({"id": "c", "choices": [{"index": 0, "delta": {"odd #": "~W"}}]}),
        "sources": frames({"id": "c", "citations": ["http://#~W"], "choices": [{"index": 0, "delta": {}}]}),
        "calls without an index": frames(_call(id="call_#", function={"name": "read", "arguments": "{}"})),
        "logprobs": frames({"id": "c", "choices": [{"index": 0, "delta": {}, "logprobs": {"content": ["~W"]}}]}),
        "empty choices": frames({"id": "c", "choices": [{"index": "@", "delta": {}}]}),
    },
    "responses": {
        "messages": frames(
            {"type": "response.output_item.added", "output_index": "@", "item": {"type": "message", "id": "#~W"}}
        ),
        "parts": frames(
            {"type": "response.content_part.added", "output_index": 0, "content_index": "@"}
            | {"item_id": "m", "part": {"type": "output_text", "text": ""}}
        ),
        "unknown": frames({"type": "response.odd_#", "words": "~W"}),
        "searches": frames(
            {"type": "response.output_item.done", "output_index": "@"}
            | {"item": {"type": "web_search_call", "id": "#", "query": "~W"}}
        ),
        "thoughts": frames(
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": "@", "delta": "~W"}
        ),
        "text sent whole": frames({"type": "response.output_text.done", "output_index": "@", "text": "~W"}),
    },
    "anthropic": {
        "unknown": frames({"type": "odd_#", "words": "~W"}, kind="odd"),
        "pings": frames({"type": "ping"}, kind="ping"),
        "blocks that grow": frames(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "odd", "input": {}}},
            *[{"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "~W"}}]
            * FRAMES,
        ),
        "texts that grow": frames(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "odd", "text": ""}},
            *[{"type": "content_block_delta", "index": 0, "delta": {"type": "odd_delta", "text": "~W"}}] * FRAMES,
        ),
    },
    "bedrock": {
        "ends": frames({"contentBlockIndex": "@"}, kind="contentBlockStop"),
        "unknown": frames({"words": "~W"}, kind="oddEvent"),
        "signatures": frames(
            {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "~W"}}}, kind="contentBlockDelta"
        ),
        "odd deltas": frames({"contentBlockIndex": 0, "delta": {"odd": {"text": "~W"}}}, kind="contentBlockDelta"),
    },
    "kiro": {
        "unknown": frames({"words": "~W"}, kind="oddEvent"),
        "signatures": frames({"signature": "~W"}, kind="reasoningContentEvent"),
        "metering": frames({"unit": "credit", "usage": "@"}, kind="meteringEvent"),
        "context usage": frames({"contextUsagePercentage": 3}, kind="contextUsageEvent"),
        "inputs": frames({"toolUseId": "#~W", "name": "read", "input": {"path": "~W"}}, kind="toolUseEvent"),
    },
    "gemini": {
        "fields": frames({"field #": "~W", "candidates": [{"content": {"parts": [{"text": ""}]}}]}),
        "changing field": frames({"field": "#~W", "candidates": [{"content": {"parts": [{"text": ""}]}}]}),
        "signed texts": frames({"candidates": [{"content": {"parts": [{"text": "a", "thoughtSignature": "YQ=="}]}}]}),
        "call in pieces": frames(
            {"candidates": [{"content": {"parts": [{"functionCall": {"name": "read", "willContinue": True}}]}}]},
            *[
                {"candidates": [{"content": {"parts": [{"functionCall": piece}]}}]}
                for piece in [{"partialArgs": [{"jsonPath": "$.a", "stringValue": "~W"}], "willContinue": True}]
                * FRAMES
            ],
        ),
        "sources": frames(
            {"candidates": [{"groundingMetadata": {"groundingChunks": [{"web": {"uri": "http://#", "title": "~W"}}]}}]}
        ),
    },
}
SHARED: dict[str, Callable[[str], Repeated]] = {
    shape.__name__: shape
    for shape in (
        text, short_text, reasoning, arguments, free_text_arguments, odd_arguments, calls, long_ids, open_calls,
        side_by_side, thoughts, alternating, usage, empty, markers, raw_call, blanks, closed_thinking, unreadable,
    )
}  # fmt: skip
WITH_CHOICES, WITH_CITATIONS, WITH_BLOCKS = ("openai", "gemini"), tuple(CITATIONS), tuple(OWN_BLOCKS)


def shapes_of(upstream: str) -> dict[str, Callable[[str], Repeated]]:
    family = FAMILIES[upstream]
    found = {**SHARED, **OF_ONE.get(family, {})}
    found |= {"choices": choices} if family in WITH_CHOICES else {}
    found |= {"citations": citations} if family in WITH_CITATIONS else {}
    found |= {"blocks_of_its_own": blocks_of_its_own} if family in WITH_BLOCKS else {}
    return found


def stream(upstream: Dialect, shape: Callable[[str], Repeated]) -> Iterator[bytes]:
    """The frames of a response that repeats something without end."""
    encoder = upstream.codec.encoder(EMPTY_REQUEST, fixed_environment(), ResponseBudget(ENDLESS))
    frame = upstream.binding.encode_frame
    if shape.__qualname__ != OF_ONE["openai"]["early fields"].__qualname__ or upstream.codec.family != "openai":
        yield b"".join([frame(payload) for payload in encoder.feed((Started("msg_1", "model-1"),))])
    for part in shape(upstream.codec.family):
        if isinstance(part, Payload):
            yield frame(part)
        else:
            yield b"".join([frame(payload) for payload in encoder.feed(part)])


def fed(response: ResponseTranslator, pieces: Iterator[bytes]) -> bytes:
    """Feed many frames, or as many as it takes to say much; gives what came out."""
    out, size = [], 0
    for piece in itertools.islice(pieces, FRAMES):
        out.append(response.feed(piece))
        size += len(piece)
        if response.is_over or size > MUCH:
            break
    return b"".join(out)


# --- what is held


SHARED_KINDS: tuple[type, ...] = (type, types.ModuleType, types.BuiltinFunctionType, Plan, Dialect, Conversation)
SHARED_KINDS += (TranslationSettings, ResponseStore, Grammar, Markers, Table)  # the last three are of raw tool calls


def memory_of(*roots: object) -> int:
    """Bytes of all objects that these refer to, without what requests and programs have in common."""
    size, seen, todo = 0, set[int](), list(roots)
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, SHARED_KINDS):
            continue
        seen.add(id(value))
        size += sys.getsizeof(value)
        if isinstance(value, types.FunctionType):
            todo += [cell.cell_contents for cell in value.__closure__ or ()]
        elif isinstance(value, functools.partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, Struct):
            todo += [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, io.StringIO):
            size += sys.getsizeof(value.getvalue())
        else:
            todo += gc.get_referents(value)
    return size


def make_conversation() -> Conversation:
    read = ToolSpec("read", schema={"type": "object", "properties": {"path": {"type": "string"}}})
    return Conversation("model-1", (Message("user", (Text("go"),)),), tools=(read, ToolSpec("patch")), stream=True)


@pytest.fixture(autouse=True)
def few_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dragoman.response_stream, "MAX_RESPONSE_NOTES", FEW_NOTES)


def bounded(
    planned: Plan, make: Callable[..., ResponseTranslator], name: str, shape: Callable[[str], Repeated]
) -> ResponseTranslator:
    """Check one response, and give it."""
    response = make(planned, fixed_environment(), budget=ResponseBudget(LIMITS))
    before = memory_of(response)
    out = fed(response, stream(planned.upstream, shape))
    grown = memory_of(response) - before
    assert grown < MAX_BUFFERED, f"{name}: {grown} bytes are held"
    if response.fault is not None:
        assert response.is_over
        assert isinstance(laws.decode_events(planned.client, out)[-1], Failed), f"{name}: no error at the end"
    return response


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("upstream", DIALECTS)
def test_no_response_makes_a_translation_grow(client: str, upstream: str) -> None:
    settings = TranslationSettings(raw_tools="auto", think_tags=True)
    for name, shape in shapes_of(upstream).items():
        for how in (TranslationSettings(), settings):
            planned = plan(registry.get(client), registry.get(upstream), make_conversation(), settings=how)
            bounded(planned, ResponseTranslator, f"{name}, {how.raw_tools}", shape)


@pytest.mark.parametrize("name", DIALECTS)
def test_no_response_makes_a_reader_that_follows_it_grow(name: str) -> None:
    dialect = registry.get(name)
    for shape_name, shape in shapes_of(name).items():
        bounded(plan(dialect, dialect, make_conversation()), PassThrough, shape_name, shape)


@pytest.mark.parametrize("upstream", [name for name in DIALECTS if FAMILIES[name] != "responses"])
def test_what_is_stored_of_a_response_is_counted(upstream: str) -> None:
    memory, owner = ResponseStore(), Owner("a")
    for name, shape in shapes_of(upstream).items():
        client = registry.get("responses")
        upstream_dialect = registry.get(upstream)
        planned, store = memory.plan(
            owner, client, upstream_dialect, make_conversation(), model="model-1", settings=TranslationSettings()
        )
        assert store is not None

        def keeping(
            planned: Plan, environment: Environment, budget: ResponseBudget, store: ResponseSaver = store
        ) -> ResponseTranslator:
            return ResponseTranslator(
                planned, environment, budget=budget, encoder=store.encoder(planned, environment, budget)
            )

        bounded(planned, keeping, name, shape)
    assert len(memory) == 0


WAITING = {  # what is not sent before its end
    "gemini": ("open_calls", "arguments", "odd_arguments"),
    "kiro": ("open_calls",),
    "ollama": ("open_calls", "arguments", "odd_arguments", "thoughts"),  # thoughts in a row are one
}
ENDED = ("calls", "long_ids", "open_calls", "thoughts", "alternating", "choices")


@pytest.mark.parametrize("client", DIALECTS)
@pytest.mark.parametrize("upstream", DIALECTS)
def test_a_limit_ends_the_stream_with_an_error(client: str, upstream: str) -> None:
    names = ENDED + (("arguments", "text", "odd_arguments") if FAMILIES[client] == "responses" else ())
    for name in names:
        shape = shapes_of(upstream).get(name)
        if shape is None or name in WAITING.get(FAMILIES[upstream], ()):
            continue
        planned = plan(registry.get(client), registry.get(upstream), make_conversation())
        response = bounded(planned, ResponseTranslator, name, shape)
        assert response.fault is not None and response.is_over, f"{name} goes on"
        if name != "choices" or FAMILIES[client] in WITH_CHOICES:
            assert "(limit: " in response.fault.message and response.fault.is_final, (name, response.fault)


KEEPING = ("responses",)  # these repeat the whole text at the end, so it has to be kept


@pytest.mark.parametrize("client", [name for name in DIALECTS if FAMILIES[name] not in KEEPING])
@pytest.mark.parametrize("upstream", [name for name in DIALECTS if FAMILIES[name] not in KEEPING])
def test_what_need_not_be_kept_goes_on(client: str, upstream: str) -> None:
    names = ["text", "short_text", "usage", "empty", "blanks", "unknown", "pings", "logprobs", "changing field"]
    for name in names:
        shape = shapes_of(upstream).get(name)
        if shape is not None:
            planned = plan(registry.get(client), registry.get(upstream), make_conversation())
            assert bounded(planned, ResponseTranslator, name, shape).fault is None, name


@pytest.mark.parametrize("name", [name for name in DIALECTS if FAMILIES[name] not in KEEPING])
def test_what_passes_as_it_came_goes_on(name: str) -> None:
    dialect = registry.get(name)
    for shape in (text, short_text, usage, empty, blanks):
        response = bounded(plan(dialect, dialect, make_conversation()), PassThrough, shape.__name__, shape)
        assert response.fault is None, shape.__name__


# --- the budget itself


class Shared:
    """What all responses keep."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0

    def keep(self, size: int) -> None:
        if self.used + size > self.most:
            raise ResponseTooLarge("all responses together")
        self.used += size

    def free(self, size: int) -> None:
        self.used -= size


def test_a_budget_takes_room_from_the_account_in_steps_and_gives_it_back() -> None:
    account = Shared(1 << 20)
    budget = ResponseBudget(ResponseLimits(max_bytes=1 << 20), account)
    budget.reserve(1)
    first = account.used
    assert first >= 1
    budget.reserve(first - 1)
    assert account.used == first  # no second step was needed
    budget.reserve(10 * first)
    assert account.used >= budget.reserved
    budget.release(10 * first)
    assert budget.reserved <= account.used <= 3 * first
    budget.close()
    assert account.used == budget.reserved == 0


def test_a_budget_that_the_account_refuses_counts_nothing() -> None:
    account = Shared(100_000)
    budget = ResponseBudget(ResponseLimits(), account)
    with pytest.raises(ResponseTooLarge, match="all responses"):
        budget.reserve(200_000)
    assert account.used == budget.reserved == 0


def test_kept_text_counts_what_it_takes() -> None:
    budget = ResponseBudget()
    buffer = TextBuffer(budget)
    for piece in ("plain", " text ", "ünd wide \N{GRINNING FACE}"):
        buffer.add(piece)
    assert budget.reserved == 4 * len(buffer)
    assert buffer.take() == "plain text ünd wide \N{GRINNING FACE}"
    assert budget.reserved == len(buffer) == 0


def test_the_size_of_json_is_no_less_than_what_it_takes() -> None:
    value: Any = {
        "a": [{"b": "text", "c": [1, 2.5, None, True]} for _ in range(200)],
        "d": {str(n): "x" for n in range(99)},
    }
    assert memory_of(value) < json_size(value) < 10 * memory_of(value)
