"""Law: a response is the same whether its deltas are translated by lanes or by decoder and encoder.

Streams here are made of frames that are alike and frames that nearly are: other spellings of JSON, other line ends,
comments, ids, broken bytes and checksums, texts in which calls and thoughts may begin; all of it cut anywhere.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import dragoman.dialects as registry
from dragoman.conformance.laws import fixed_environment
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.events import Event
from dragoman.response_stream import ResponseTranslator
from dragoman.translate import Plan, TranslationSettings, plan
from dragoman.wire.eventstream import encode_event
from tests.growth import check_linear_growth
from tests.unit.wire.cuts import fixed_size_reads

REQUEST = Conversation(
    "model-1",
    (Message("user", (Text("go"),)),),
    tools=(ToolSpec("read", schema={"type": "object", "properties": {"path": {"type": "string"}}}),),
    stream=True,
)
WORDS = (
    "word ",
    "word ",
    "two words",
    "end. ",
    "é",
    "漢字",
    "😀",
    "\u2028",
    "\n",
    "\n\n",
    '"',
    "\\",
    'a\\"',
    '","',
    '",',
    "/",
    "\x00",
    "\x7f",
    "\ud800",
    "",
    "~",
    "content",
    "<",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>",
    '{"path":',
    '"a"}',
    "<|tool_call_end|><|tool_calls_section_end|>",
    "[Called read with args: {",
    "<think>",
    "</think>",
    "data: {}\n\n",
    "x" * 3000,
)
Part = tuple[str, str]  # what it is, and its text
parts = st.lists(
    st.tuples(
        st.sampled_from(("text", "text", "text", "arguments", "arguments", "thought", "call", "odd")),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=8),
    ),
    max_size=6,
).map(lambda groups: [(kind, word) for kind, words in groups for word in words])
SPELLINGS: tuple[Callable[[Any], str], ...] = (
    lambda body: json.dumps(body, separators=(",", ":")),
    lambda body: json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace").decode(),
    json.dumps,
    lambda body: json.dumps(body, separators=(",", ":")).replace("/", "\\/"),
    lambda body: json.dumps(body, indent=0),
)


class _Counting(ResponseTranslator):
    """Counts the frames that went by a lane; `carefully`: it opens none."""

    def __init__(self, translation_plan: Plan, *, carefully: bool) -> None:
        super().__init__(translation_plan, fixed_environment())
        self.carefully = carefully
        self.in_lanes = 0

    def _open_lane(self, delta: Event, as_it_came: bool) -> Any:
        lane = None if self.carefully else super()._open_lane(delta, as_it_came)
        if lane is None:
            return None
        text_of = lane.text_of

        def counted(decoded: object) -> str | None:
            text = text_of(decoded)
            self.in_lanes += bool(text)
            return text

        return structs.replace(lane, text_of=counted)


def outcome(translation_plan: Plan, pieces: list[bytes], *, carefully: bool) -> tuple[object, ...]:
    response = _Counting(translation_plan, carefully=carefully)
    data = b"".join([*map(response.feed, pieces), response.close()])
    progress = response.progress
    return data, response.notes, response.is_over, response.fault, progress.usage, progress.stop, response.in_lanes


def lanes_do_not_matter(translation_plan: Plan, pieces: list[bytes]) -> int:
    """How many frames went by a lane."""
    *expected, _ = outcome(translation_plan, [b"".join(pieces)], carefully=True)
    *got, in_lanes = outcome(translation_plan, pieces, carefully=False)
    assert got == expected
    assert isinstance(in_lanes, int)
    return in_lanes


# --- frames of each dialect


def _openai(script: list[Part], spell: Callable[[Any], str]) -> Iterator[tuple[str, str]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[str, str]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return "", spell({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for kind, word in script:
        if kind == "call" or (kind == "arguments" and not calls):
            calls += 1
            function = {"name": "read", "arguments": ""}
            call = {"index": calls - 1, "id": f"call_{calls}", "type": "function", "function": function}
            yield chunk({"tool_calls": [call]})
        if kind == "arguments":
            yield chunk({"tool_calls": [{"index": calls - 1, "function": {"arguments": word}}]})
        elif kind == "text":
            yield chunk({"content": word})
        elif kind == "thought":
            yield chunk({"content": None, "reasoning_content": word})
        elif kind == "odd":
            yield chunk({"content": word, "x_unknown": word})
    yield chunk({}, "tool_calls" if calls else "stop")
    yield "", "[DONE]"


def _anthropic(script: list[Part], spell: Callable[[Any], str]) -> Iterator[tuple[str, str]]:
    def event(kind: str, **fields: Any) -> tuple[str, str]:
        return kind, spell({"type": kind, **fields})

    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": usage}
    starts: dict[str, tuple[dict[str, Any], str, str]] = {
        "text": ({"type": "text", "text": ""}, "text_delta", "text"),
        "thought": ({"type": "thinking", "thinking": "", "signature": ""}, "thinking_delta", "thinking"),
        "arguments": (
            {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
            "input_json_delta",
            "partial_json",
        ),
    }
    yield event("message_start", message={**message, "stop_reason": None, "stop_sequence": None})
    index, now = -1, ""
    for kind, word in script:
        if kind == "odd":
            yield event("ping")
            continue
        fresh, what = kind == "call", "arguments" if kind == "call" else kind
        if fresh or what != now:
            if now:
                yield event("content_block_stop", index=index)
            index, now = index + 1, what
            block = {**starts[what][0], **({"id": f"toolu_{index}"} if what == "arguments" else {})}
            yield event("content_block_start", index=index, content_block=block)
        _, delta, name = starts[what]
        yield event("content_block_delta", index=index, delta={"type": delta, name: word})
    if now:
        yield event("content_block_stop", index=index)
    yield event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 9})
    yield event("message_stop")


def _kiro(script: list[Part], spell: Callable[[Any], str]) -> Iterator[tuple[str, str]]:
    calls = 0
    for kind, word in script:
        if kind == "call" or (kind == "arguments" and not calls):
            calls += 1
        if kind in ("call", "arguments"):
            yield "toolUseEvent", spell({"toolUseId": f"t{calls}", "name": "read", "input": word})
        elif kind == "text":
            yield "assistantResponseEvent", spell({"content": word, "modelId": "m"})
        elif kind == "thought":
            yield "reasoningContentEvent", spell({"text": word})
        else:
            yield "reasoningContentEvent", spell({"text": word, "signature": word})
    for call in range(calls):
        yield "toolUseEvent", spell({"toolUseId": f"t{call + 1}", "name": "read", "stop": True})
    yield "contextUsageEvent", spell({"contextUsagePercentage": 1.5})


def _bedrock(script: list[Part], spell: Callable[[Any], str]) -> Iterator[tuple[str, str]]:
    yield "messageStart", spell({"role": "assistant"})
    index, now = -1, ""
    for kind, word in script:
        if kind == "odd":
            yield "x_event", spell({"text": word})
            continue
        fresh, what = kind == "call", "arguments" if kind == "call" else kind
        if fresh or what != now:
            if now:
                yield "contentBlockStop", spell({"contentBlockIndex": index})
            index, now = index + 1, what
            if what == "arguments":
                start = {"toolUse": {"toolUseId": f"t{index}", "name": "read"}}
                yield "contentBlockStart", spell({"contentBlockIndex": index, "start": start})
        delta = {
            "text": {"text": word},
            "thought": {"reasoningContent": {"text": word}},
            "arguments": {"toolUse": {"input": word}},
        }
        yield "contentBlockDelta", spell({"contentBlockIndex": index, "delta": delta[what]})
    if now:
        yield "contentBlockStop", spell({"contentBlockIndex": index})
    yield "messageStop", spell({"stopReason": "tool_use" if now == "arguments" else "end_turn"})
    yield "metadata", spell({"usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}, "metrics": {}})


DIALECTS = {"openai": _openai, "anthropic": _anthropic, "kiro": _kiro, "bedrock": _bedrock}
SSE_FRAMES: tuple[Callable[[str, bytes], bytes], ...] = (
    lambda kind, data: (b"event: %b\n" % kind.encode() if kind else b"") + b"data: %b\n\n" % data,
    lambda kind, data: (b"event: %b\r\n" % kind.encode() if kind else b"") + b"data: %b\r\n\r\n" % data,
    lambda kind, data: (b"event:%b\n" % kind.encode() if kind else b"") + b"id: 7\ndata:%b\n\n" % data,
    lambda kind, data: (b"event: %b\n" % kind.encode() if kind else b"") + b": c\ndata: %b\n\n\n" % data,
    lambda kind, data: (b"event: %b\r" % kind.encode() if kind else b"") + b"data: %b\r\r" % data,
    lambda kind, data: b"data: %b\nevent: %b\n\n: ping\n\n" % (data, kind.encode()),
)


def framed(name: str, kind: str, data: str, shape: int) -> bytes:
    raw = data.encode("utf-8", "replace")
    if name in ("kiro", "bedrock"):
        types = ("application/json", "application/json", "application/json", "text/plain")
        return encode_event(kind, raw, content_type=types[shape % 4])
    return SSE_FRAMES[shape](kind, raw.replace(b"\n", b" "))


@st.composite
def streams(draw: st.DrawFn, name: str) -> list[bytes]:
    script = draw(parts)
    spell = draw(st.sampled_from(SPELLINGS))
    shape = draw(st.integers(0, len(SSE_FRAMES) - 1))
    frames = [framed(name, kind, data, shape) for kind, data in DIALECTS[name](script, spell)]
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(frames) - 1))
        raw = frames[at]
        place = draw(st.integers(0, max(len(raw) - 1, 0)))
        change = draw(st.sampled_from(("swap", "cut", "other", "again")))
        if change == "swap":
            frames[at] = (
                raw[:place] + draw(st.sampled_from((b"\xff", b'"', b"\\", b"\n", b"{", b"0"))) + raw[place + 1 :]
            )
        elif change == "cut":
            frames[at] = raw[:place]
        elif change == "again":
            frames.insert(at, raw)
        elif name in ("openai", "anthropic"):
            frames[at] = raw.replace(b"\n", b"\r\n")
    if draw(st.booleans()):
        return frames
    whole = b"".join(frames)
    edges = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    return [whole[start:end] for start, end in zip([0, *edges], [*edges, len(whole)], strict=True)]


def planned(client: str, upstream: str, settings: TranslationSettings | None = None) -> Plan:
    return plan(registry.get(client), registry.get(upstream), REQUEST, settings=settings)


@pytest.mark.parametrize("upstream", DIALECTS)
@given(client=st.sampled_from(sorted(registry.names())), data=st.data())
def test_lanes_do_not_matter(upstream: str, client: str, data: st.DataObject) -> None:
    think, repair = data.draw(st.booleans(), "think tags"), data.draw(st.booleans(), "repair")
    raw = data.draw(st.sampled_from((None, "auto", "off")), "raw tools")
    translation_plan = planned(client, upstream, TranslationSettings(think_tags=think, repair=repair, raw_tools=raw))
    lanes_do_not_matter(translation_plan, data.draw(streams(upstream)))


def _plain(name: str, kind: str, count: int) -> list[bytes]:
    script = [(kind, f"w{at % 10} ") for at in range(count)]
    if kind == "arguments":
        script = [(kind, '{"a":"'), *script, (kind, '"}')]
    return [framed(name, *frame, 0) for frame in DIALECTS[name](script, SPELLINGS[0])]


@pytest.mark.parametrize("repair", [True, False])
@pytest.mark.parametrize("client", ["anthropic", "openai"])
@pytest.mark.parametrize("kind", ["text", "thought", "arguments"])
@pytest.mark.parametrize("upstream", DIALECTS)
def test_nearly_all_of_a_usual_stream_goes_by_lanes(upstream: str, kind: str, client: str, repair: bool) -> None:
    translation_plan = planned(client, upstream, TranslationSettings(repair=repair))
    frames = _plain(upstream, kind, 100)
    for pieces in (frames, [b"".join(frames)], fixed_size_reads(b"".join(frames), 1000)):
        least = 70 if len(pieces) > 1 and len(pieces) < len(frames) else 95
        assert lanes_do_not_matter(translation_plan, pieces) >= least


@pytest.mark.parametrize("repair", [True, False])
@pytest.mark.parametrize("client", ["anthropic", "openai"])
@pytest.mark.parametrize("kind", ["text", "thought", "arguments"])
@pytest.mark.parametrize("upstream", DIALECTS)
def test_what_comes_alone_is_looked_at(upstream: str, kind: str, client: str, repair: bool) -> None:
    translation_plan = planned(client, upstream, TranslationSettings(repair=repair, raw_tools="auto"))
    for word in WORDS:
        words = ["a ", "b ", "c ", "d ", word, "e ", "f ", "g "]
        script = [(kind, each) for each in (['{"a":"', *words] if kind == "arguments" else words)]
        for spell in SPELLINGS:
            frames = [framed(upstream, *frame, 0) for frame in DIALECTS[upstream](script, spell)]
            lanes_do_not_matter(translation_plan, frames)


def test_reasoning_of_a_plain_field_is_recognised_when_it_is_repeated() -> None:
    words = ["a ", "b ", "c ", "d ", "e "]
    frames = [framed("openai", *frame, 0) for frame in _openai([("thought", word) for word in words], SPELLINGS[0])]
    detail = {"type": "reasoning.text", "text": "".join(words), "signature": "s", "index": 0}
    choice = {"index": 0, "delta": {"reasoning_details": [detail]}, "finish_reason": None}
    signed = framed("openai", "", SPELLINGS[0]({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}), 0)
    translation_plan = planned("anthropic", "openai")
    assert lanes_do_not_matter(translation_plan, [*frames[:-2], signed, *frames[-2:]]) > 2
    whole, *_ = outcome(translation_plan, [*frames[:-2], signed, *frames[-2:]], carefully=False)
    assert isinstance(whole, bytes) and whole.count(b"event: content_block_start") == 1


def test_one_odd_frame_does_not_hide_behind_its_neighbours() -> None:
    translation_plan = planned("anthropic", "openai")
    frames = _plain("openai", "text", 40)
    for odd in (
        b'"',
        b"\\",
        b'\\"',
        b'a","x":"b',
        b'a\\\\","x":"b',
        b"\xff",
        b"\xc3",
        b"\x01",
        b"\\ud800",
        b"\\x",
        b"\\u00e9",
        b"\\/",
    ):
        for at in (10, 11, 30):
            changed = [*frames[:at], frames[at].replace(b"w", odd + b"w", 1), *frames[at + 1 :]]
            lanes_do_not_matter(translation_plan, changed)
            lanes_do_not_matter(translation_plan, [b"".join(changed)])
            ended = [*frames[:at], frames[at].replace(b' "}', odd + b'"}', 1), *frames[at + 1 :]]
            lanes_do_not_matter(translation_plan, [b"".join(ended)])


def test_one_odd_message_does_not_hide_behind_its_neighbours() -> None:
    translation_plan = planned("anthropic", "kiro")
    payloads = [b'{"content":"w%d ","modelId":"m"}' % at for at in range(20)]
    frames = [encode_event("assistantResponseEvent", payload) for payload in payloads]
    for odd in (b'a","b', b'a","x":"b', b'a","content":"b', b"a\\", b"a\\\\", b'"', b"\xff", b"\n", b"\\ud800"):
        changed = encode_event("assistantResponseEvent", payloads[9].replace(b"w9 ", odd))
        lanes_do_not_matter(translation_plan, [b"".join([*frames[:9], changed, *frames[10:]])])
    for at, (start, other) in enumerate([(-20, b"X"), (-2, b"XX"), (5, b"X"), (9, b"XX"), (20, b"X")]):
        broken = frames[9][:start] + other + frames[9][start + len(other) or len(frames[9]) :]
        assert len(broken) == len(frames[9]), at
        lanes_do_not_matter(translation_plan, [b"".join([*frames[:9], broken, *frames[10:]])])
    pair = [encode_event("assistantResponseEvent", payloads[9].replace(b"w9 ", odd)) for odd in (b"a\\", b',"b')]
    lanes_do_not_matter(translation_plan, [b"".join([*frames[:9], *pair, *frames[10:]])])
    total, headers = struct.unpack_from(">II", frames[9])
    lengths = struct.pack(">II", total, headers + 1)
    moved = lengths + struct.pack(">I", crc32(lengths)) + frames[9][12:-4]
    lanes_do_not_matter(
        translation_plan, [b"".join([*frames[:9], moved + struct.pack(">I", crc32(moved)), *frames[10:]])]
    )


def test_arguments_read_by_a_lane_count_as_emitted() -> None:
    """Arguments that begin with nothing: were it not known that more came, the encoder would add an empty object."""
    for client, upstream in (("openai", "anthropic"), ("anthropic", "openai"), ("openai", "kiro")):
        translation_plan = planned(client, upstream, TranslationSettings(repair=True))
        for words in (["", '{"path":"a"}'], ["", "", "{", "}"], ["{", '"path"', ":", '"a"', "}", " "], ["{", "}", "x"]):
            script = [("arguments", word) for word in words]
            frames = [framed(upstream, *frame, 0) for frame in DIALECTS[upstream](script, SPELLINGS[0])]
            lanes_do_not_matter(translation_plan, frames)
            lanes_do_not_matter(translation_plan, [b"".join(frames)])


def test_a_call_gives_way_in_a_lane() -> None:
    """Two calls side by side: the first is over for a client that takes one at a time when its object is complete."""
    frames = [framed("openai", *frame, 0) for frame in _openai([("call", ""), ("call", "")], SPELLINGS[0])]

    def more(index: int, words: str) -> bytes:
        delta = {"tool_calls": [{"index": index, "function": {"arguments": words}}]}
        body = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
        return framed("openai", "", SPELLINGS[0](body), 0)

    deltas = [more(0, word) for word in ("{", '"path"', ":", '"a"', "}", " ")] + [more(1, word) for word in "{ }"]
    for client in ("anthropic", "openai"):
        translation_plan = planned(client, "openai", TranslationSettings(repair=True))
        for whole in (
            [*frames[:3], *deltas, *frames[3:]],
            [*frames[:2], *deltas[:6], frames[2], *deltas[6:], *frames[3:]],
        ):
            lanes_do_not_matter(translation_plan, whole)
            lanes_do_not_matter(translation_plan, [b"".join(whole)])
            slow, quick = _Counting(translation_plan, carefully=True), _Counting(translation_plan, carefully=False)
            assert [*map(quick.feed, whole)] == [*map(slow.feed, whole)]  # and each of them at its time


def test_a_signature_beside_a_thought_is_gathered() -> None:
    translation_plan = planned("anthropic", "kiro")
    script = [("thought", "a"), ("thought", "b"), *[("odd", "c")] * 3, ("thought", "d")]
    frames = [framed("kiro", *frame, 0) for frame in _kiro(script, SPELLINGS[0])]
    lanes_do_not_matter(translation_plan, frames)
    lanes_do_not_matter(translation_plan, [b"".join(frames)])


def test_a_text_that_stands_in_its_frame_twice_is_found_where_it_is_read() -> None:
    translation_plan = planned("anthropic", "openai")

    def chunk(word: str, other: str) -> bytes:
        choice = (
            f'"choices":[{{"index":0,"delta":{{"content":"{word}","\\u0063ontent":"{other}"}},"finish_reason":null}}]'
        )
        return f'data: {{"id":"{word}","object":"chat.completion.chunk",{choice}}}\n\n'.encode()

    frames = [chunk("a", "a"), chunk("a", "a"), chunk("b", "a"), chunk("a", "b"), chunk("b", "b")]
    lanes_do_not_matter(translation_plan, frames)
    lanes_do_not_matter(translation_plan, [b"".join(frames)])


@pytest.mark.parametrize("upstream", ["openai", "kiro"])
@pytest.mark.parametrize("word", ["plain", "<", "\ud800"])
def test_a_read_of_many_frames_is_linear(upstream: str, word: str) -> None:
    translation_plan = planned("anthropic", upstream)

    def work(count: int) -> Callable[[], object]:
        script = [("text", word if at % 2 else "x") for at in range(count)]
        frames = [framed(upstream, *frame, 0) for frame in DIALECTS[upstream](script, SPELLINGS[0])]
        data = b"".join(frames)
        return lambda: ResponseTranslator(translation_plan, fixed_environment()).feed(data)

    check_linear_growth(work, 150)
