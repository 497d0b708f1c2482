"""Document 001's components: OpenAI chunks in, OpenAI chunks out."""

from __future__ import annotations

import io
import json
import logging
import random
from collections.abc import Iterable
from typing import Any

import pytest

from dragoman.model.conversation import StopReason
from dragoman.raw_tools import (
    EventContent,
    EventFinish,
    EventPassthrough,
    EventToolCall,
    EventUsage,
    LoggingTransformer,
    SSETransformer,
    StreamMetadata,
    ToolCall,
    ToolCallEventBuilder,
    ToolCallParser,
    ToolCallTransformer,
)
from dragoman.wire.frame import Frame
from dragoman.wire.sse import SseDecoder
from tests.unit.raw_tools.cases import CASES, LOG, LOG_ARGUMENTS, Case
from tests.unit.raw_tools.samples import (
    AB,
    CB,
    CE,
    REASONING,
    SB,
    SE,
    TEXT,
    Call,
    ChannelText,
    call,
    channel_cuts,
    random_cut,
    section,
)

LS = '{"command":"ls"}'
ONE = section(call("functions.bash:0", LS))
ENVELOPE = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 7,
    "model": "kimi-k2",
    "x_unknown": {"a": 1},
}
TOOLS = [
    {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}}}},
    {"name": "read_file", "input_schema": {"properties": {"path": {"type": "string"}}}},
    {"type": "function", "function": {"name": "task", "parameters": {"properties": {"description": {}, "prompt": {}}}}},
]
DONE = "[DONE]"
FINISH = {StopReason.END: "stop", StopReason.LENGTH: "length", StopReason.TOOL: "tool_calls"}


def chunk(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> str:
    return json.dumps({**ENVELOPE, **more, "choices": [{"index": index, "delta": delta, "finish_reason": finish}]})


def frames_of(text: bytes) -> list[Frame]:
    decoder = SseDecoder()
    return [*decoder.feed(text), *decoder.close()]


def transformed(chunks: Iterable[str], tools: Any = TOOLS, **options: Any) -> list[Any]:
    """The data of every frame that comes out, as values."""
    output = io.BytesIO()
    transformer = ToolCallTransformer(output, tools, **options)
    for each in chunks:
        transformer.transform(each)
    transformer.flush()
    return [
        frame.data.decode() if frame.data == b"[DONE]" else json.loads(frame.data)
        for frame in frames_of(output.getvalue())
    ]


class ClientStream:
    """What a client makes of a stream."""

    def __init__(self, chunks: Iterable[Any], choice: int = 0) -> None:
        self.texts: dict[str, str] = {}
        self.calls: list[dict[str, str]] = []
        self.finish: list[str] = []
        self.roles: list[str] = []
        for each in chunks:
            for each_choice in each["choices"] if isinstance(each, dict) else ():
                if each_choice["index"] == choice:
                    self._add(each_choice)

    def _add(self, choice: dict[str, Any]) -> None:
        assert "tool_calls" not in choice["delta"] or choice["delta"]["tool_calls"], "never an empty list"
        for field, value in choice["delta"].items():
            if field == "tool_calls":
                for part in value:
                    self._call(part)
            elif field == "role":
                self.roles.append(value)
            elif isinstance(value, str):
                self.texts[field] = self.texts.get(field, "") + value
        if choice.get("finish_reason"):
            self.finish.append(choice["finish_reason"])

    def _call(self, part: dict[str, Any]) -> None:
        if "id" in part:
            assert part["index"] == len(self.calls), "indices are dense, and each call has its own"
            assert part["type"] == "function"
            self.calls.append({"id": part["id"], "name": part["function"]["name"], "arguments": ""})
        self.calls[part["index"]]["arguments"] += part["function"]["arguments"]


def wire_calls(calls: Iterable[Call]) -> list[dict[str, str]]:
    return [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls]


def as_chunks(pieces: Iterable[ChannelText], finish: str | None = "stop") -> list[str]:
    names = {TEXT: "content", REASONING: "reasoning_content"}
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({names[channel]: text}) for channel, text in pieces),
        *([chunk({}, finish)] if finish else []),
        DONE,
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.number)
def test_a_tricky_case_is_read_correctly_in_chunks(case: Case) -> None:
    tools = list(case.tools)
    for pieces in list(channel_cuts(case.content))[::7]:
        received = ClientStream(transformed(as_chunks(pieces, FINISH[case.finish]), tools))
        assert received.calls == wire_calls(case.calls)
        assert received.texts.get("content", "") == (case.text if case.auto_text is None else case.auto_text)
        assert received.texts.get("reasoning_content", "") == case.reasoning
        assert received.finish == [FINISH[case.why]]
        assert received.roles == ["assistant"]


@pytest.mark.parametrize(("tools", "name"), [(TOOLS, "task"), (None, "functions.task")])
def test_the_log_of_appendix_a_gives_two_calls(tools: Any, name: str) -> None:
    out = transformed([*(chunk({"reasoning": piece}) for piece in LOG), chunk({}, "stop"), DONE], tools)
    received = ClientStream(out)
    assert received.calls == [
        {"id": f"functions.task:{number}", "name": name, "arguments": arguments}
        for number, arguments in zip((45, 46), LOG_ARGUMENTS, strict=True)
    ]
    assert received.finish == ["tool_calls"]
    assert not received.texts.get("reasoning", "").strip()


def test_the_fixture_of_document_001() -> None:
    """Its chunks have no choices, and its id is a header that is nothing else."""
    arguments = '{"command":"ls"}'
    chunks = [
        json.dumps({"delta": {"reasoning": SB}}),
        json.dumps({"delta": {"reasoning": f"{CB}call_1{AB}{arguments}{CE}"}}),
        json.dumps({"delta": {"reasoning": SE}}),
        DONE,
    ]
    out = transformed(chunks, TOOLS)
    assert ClientStream(out).calls == [{"id": "call_1", "name": "bash", "arguments": arguments}]
    assert out[-1] == DONE


# --- frames


def test_frames_in_which_nothing_changes_are_forwarded_byte_for_byte() -> None:  # cases 38, 43
    rng = random.Random(1)
    words = ["word ", "a < b ", "it's ", "\n", "日本 ", "`x` ", "The end. "]
    raws = [f"data: {chunk({'role': 'assistant', 'content': ''})}\n\n".encode()]
    raws += [f"data:  {chunk({'content': rng.choice(words) * rng.randint(1, 9)})}\n\n".encode() for _ in range(2000)]
    raws += [
        f"data: {chunk({}, 'stop')}\n\n".encode(),
        b'data: {"id":"x","choices":[],"usage":{"total_tokens":3}}\n\n',
        b"data: [DONE]\n\n",
    ]
    output = io.BytesIO()
    transformer = ToolCallTransformer(output, TOOLS)
    for raw in raws:
        for frame in frames_of(raw):
            transformer.transform(frame)
        assert output.getvalue() == raw, "at once, and as it came"
        output.seek(0)
        output.truncate()


def test_usage_and_done_stay_where_they_are() -> None:  # case 38
    usage = json.dumps({**ENVELOPE, "choices": [], "usage": {"total_tokens": 3}})
    out = transformed([chunk({"content": ONE}), chunk({}, "stop"), usage, DONE])
    assert out[-2:] == [json.loads(usage), DONE]
    assert [each["choices"][0]["finish_reason"] for each in out[:-2]][-1] == "tool_calls"


def test_a_frame_we_make_has_the_envelope_of_the_frame_it_comes_from() -> None:
    first, second = (
        chunk({"content": SB + CB + "functions.bash:0" + AB}),
        chunk({"content": "{}" + CE}, id="other", y=2),
    )
    out = transformed([first, second])
    assert [{name: each[name] for name in each if name != "choices"} for each in out] == [
        ENVELOPE,
        {**ENVELOPE, "id": "other", "y": 2},
    ]


def test_the_last_frame_may_carry_text_and_the_finish() -> None:  # case 37
    out = transformed(
        [chunk({"content": ONE[:-30]}), chunk({"content": ONE[-30:] + " bye"}, "stop", usage={"total_tokens": 9}), DONE]
    )
    received = ClientStream(out)
    assert (received.calls, received.texts, received.finish) == (
        [{"id": "functions.bash:0", "name": "bash", "arguments": LS}],
        {"content": " bye"},
        ["tool_calls"],
    )
    assert [each.get("usage") for each in out[:-1]][-1] == {"total_tokens": 9}
    assert sum(1 for each in out[:-1] if each.get("usage")) == 1


def test_the_finish_frame_keeps_what_else_the_choice_says() -> None:
    last = {"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": 163586, "logprobs": None}
    out = transformed([chunk({"content": ONE}), json.dumps({**ENVELOPE, "choices": [last]})])
    assert out[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "stop_reason": 163586}]


def test_a_role_in_a_frame_of_markers_is_not_lost() -> None:
    received = ClientStream(transformed([chunk({"role": "assistant", "content": ONE}), chunk({}, "stop")]))
    assert (received.roles, len(received.calls)) == (["assistant"], 1)


@pytest.mark.parametrize("fields", [("reasoning", "reasoning_content"), ("reasoning", "reasoning_details")])
def test_copies_of_reasoning_are_one_stream_and_all_are_scrubbed(fields: tuple[str, str]) -> None:  # case 34
    text = f"hm {ONE} so"
    for pieces in ([text], list(text)):
        chunks = [
            chunk(
                {
                    name: [{"type": "reasoning.text", "text": piece}] if name.endswith("details") else piece
                    for name in fields
                }
            )
            for piece in pieces
        ]
        out = transformed([*chunks, chunk({}, "stop")])
        received = ClientStream(out)
        assert len(received.calls) == 1
        assert received.texts["reasoning"] == "hm  so"
        copies = [each["choices"][0]["delta"].get(fields[1]) for each in out]
        joined = "".join(copy if isinstance(copy, str) else copy[0]["text"] for copy in copies if copy)
        assert joined == "hm  so"


def test_native_calls_are_kept_and_ours_are_numbered_after_them() -> None:  # case 39
    native = {"index": 0, "id": "n", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    received = ClientStream(
        transformed([chunk({"tool_calls": [native]}), chunk({"content": f"{SE}x{ONE}"}), chunk({}, "tool_calls")])
    )
    assert [each["id"] for each in received.calls] == ["n", "functions.bash:0"]
    assert received.texts == {"content": "x"}
    later = ClientStream(transformed([chunk({"content": ONE}), chunk({"tool_calls": [native]}), chunk({}, "stop")]))
    assert [each["id"] for each in later.calls] == ["functions.bash:0", "n"]


def test_choices_in_one_chunk_are_independent() -> None:  # case 40
    texts = [ONE, "b" + section(call("functions.task:1", "{}"))]
    chunks = []
    for at in range(max(map(len, texts))):
        choices = [
            {"index": number, "delta": {"content": text[at : at + 1]}, "finish_reason": None}
            for number, text in enumerate(texts)
        ]
        chunks.append(json.dumps({**ENVELOPE, "choices": choices}))
    ends = [{"index": 0, "delta": {}, "finish_reason": "stop"}, {"index": 1, "delta": {}, "finish_reason": "length"}]
    out = transformed([*chunks, json.dumps({**ENVELOPE, "choices": ends})])
    assert ([each["name"] for each in ClientStream(out).calls], ClientStream(out).finish) == (["bash"], ["tool_calls"])
    second = ClientStream(out, 1)
    assert ([each["name"] for each in second.calls], second.finish, second.texts) == (
        ["task"],
        ["length"],
        {"content": "b"},
    )


def test_a_missing_finish_after_calls_is_sent_at_done_and_never_at_a_broken_end() -> None:
    assert ClientStream(transformed([chunk({"content": ONE}), DONE])).finish == ["tool_calls"]
    assert ClientStream(transformed([chunk({"content": ONE})])).finish == []
    assert ClientStream(transformed([chunk({"content": "text"}), DONE])).finish == []


def test_flush_releases_half_a_marker() -> None:
    assert ClientStream(transformed([chunk({"content": "a <|tool_call"})])).texts == {"content": "a <|tool_call"}


def test_text_around_a_call_keeps_its_order() -> None:
    out = transformed([chunk({"content": f"a{ONE}b"})])
    kinds = [next(iter(each["choices"][0]["delta"])) for each in out]
    assert kinds == ["content", "tool_calls", "content"]


# --- the parser


def test_the_first_event_of_a_call_carries_id_and_name_and_later_ones_more_arguments() -> None:
    parser = ToolCallParser(TOOLS)
    events = [
        event
        for piece in (f"{SB}{CB}functions.bash:0{AB}", '{"com', 'mand":1}', CE, SE)
        for event in parser.process(chunk({"content": piece}))
    ]
    assert [event.type for event in events] == [EventToolCall] * 3
    assert [event.tool_call for event in events] == [
        ToolCall(0, "functions.bash:0", "bash", ""),
        ToolCall(0, "", "", '{"com'),
        ToolCall(0, "", "", 'mand":1}'),
    ]
    assert events[0].metadata.id == "chatcmpl-1"


def test_buffered_gives_one_event_for_each_call() -> None:
    text = section(call("functions.bash:0", LS), call("functions.bash:1", LS))
    parser = ToolCallParser(TOOLS, mode="buffered")
    events = [event for char in text for event in parser.process(chunk({"content": char}))]
    assert [event.tool_call for event in events] == [
        ToolCall(number, f"functions.bash:{number}", "bash", LS) for number in (0, 1)
    ]


def test_what_kinds_of_events_there_are() -> None:
    parser = ToolCallParser(TOOLS)
    kinds = [
        [event.type for event in parser.process(each)]
        for each in (
            chunk({"content": "text"}),
            chunk({"content": "a" + ONE}),
            chunk({}, "stop"),
            json.dumps({"choices": [], "usage": {"total_tokens": 1}}),
            DONE,
        )
    ]
    assert kinds == [[EventContent], [EventContent, EventToolCall], [EventFinish], [EventUsage], [EventPassthrough]]
    assert parser.flush() == []


@pytest.mark.parametrize("field", ["content", "reasoning", "reasoning_content"])
def test_a_chunk_of_plain_text_gives_its_text_and_its_bytes(field: str) -> None:
    """001: `EventContent` with the text in `content`; the transformer writes `raw`, the chunk as it came."""
    parser = ToolCallParser(TOOLS)
    [event] = parser.process(chunk({field: "plain text"}))
    assert (event.type, event.content, event.fields) == (EventContent, "plain text", (field,))
    assert event.raw
    assert json.loads(event.raw.removeprefix(b"data: ")) == json.loads(chunk({field: "plain text"}))
    [finish] = parser.process(chunk({field: "more"}, "stop"))
    assert (finish.type, finish.content, finish.finish_reason) == (EventFinish, "more", "stop")
    [other] = parser.process(chunk({"role": "assistant"}))
    assert (other.type, other.content) == (EventPassthrough, "")


def test_invalid_json_is_logged_and_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    output = io.BytesIO()
    transformer = ToolCallTransformer(output, TOOLS)
    with caplog.at_level(logging.ERROR, "dragoman.raw_tools"):
        for raw in (b"data: {oops\n\n", b"data: 7\n\n", b'data: {"error": {"message": "x"}}\n\n', b"data: null\n\n"):
            for frame in frames_of(raw):
                transformer.transform(frame)
    assert output.getvalue() == b'data: {oops\n\ndata: 7\n\ndata: {"error": {"message": "x"}}\n\ndata: null\n\n'
    assert [record.levelname for record in caplog.records] == ["ERROR"]


@pytest.mark.parametrize(
    "data",
    ['{"choices": 7}', '{"choices": [7, null]}', '{"choices": [{"delta": 3}]}', '{"choices": [{"index": "a", "delta": {"content": ["x"]}}]}',
     '{"choices": [{"delta": {"tool_calls": [3, {"index": null}], "reasoning_details": "x"}, "finish_reason": 9}]}', '{"delta": []}', '{"choices": [{}], "id": 7, "created": "x"}'],
)  # fmt: skip
def test_odd_chunks_pass(data: str) -> None:
    assert transformed([data]) == [json.loads(data)]


def test_unknown_tokens_are_text() -> None:
    text = "<|unknown|> <|tool_call|> <|tool_calls_section|>"
    assert ClientStream(transformed([chunk({"content": char}) for char in text])).texts == {"content": text}


def test_an_error_of_the_writer_goes_up_the_stack() -> None:
    class Broken:
        def write(self, data: bytes, /) -> object:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        ToolCallTransformer(Broken()).transform(chunk({"content": "x"}))


def test_the_builder() -> None:
    builder, meta = ToolCallEventBuilder(), StreamMetadata("i", "m", 3)
    envelope = {"id": "i", "object": "chat.completion.chunk", "created": 3, "model": "m"}

    def choice(delta: Any, finish: str | None = None) -> Any:
        return {**envelope, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    first = {"index": 1, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    assert json.loads(builder.build_tool_call_delta(meta, ToolCall(1, "c", "f", "{"))) == choice(
        {"tool_calls": [first]}
    )
    later = {"index": 1, "function": {"arguments": "}"}}
    assert json.loads(builder.build_tool_call_delta(meta, ToolCall(1, arguments="}"))) == choice(
        {"tool_calls": [later]}
    )
    assert json.loads(builder.build_content_delta(meta, "x")) == choice({"content": "x"})
    assert json.loads(builder.build_finish_event(meta, "stop")) == choice({}, "stop")


# --- transformers


def test_a_log_is_sse_that_can_be_read_back() -> None:
    log, client = io.BytesIO(), io.BytesIO()
    logger = LoggingTransformer(log, client)
    transformer: SSETransformer = ToolCallTransformer(logger, TOOLS)
    for each in (*as_chunks([(TEXT, "a "), (TEXT, ONE)]),):
        transformer.transform(each)
    transformer.flush()
    logger.flush()
    assert log.getvalue() == client.getvalue()
    frames = frames_of(log.getvalue())
    assert frames[-1].data == b"[DONE]"
    assert ClientStream(json.loads(frame.data) for frame in frames[:-1]).finish == ["tool_calls"]


def test_a_logger_can_stand_alone() -> None:
    log = io.BytesIO()
    logger: SSETransformer = LoggingTransformer(log)
    logger.transform("{}")
    logger.transform(Frame("", b"x", b": ping\ndata: x\n\n"))
    assert log.getvalue() == b"data: {}\n\n: ping\ndata: x\n\n"


def test_two_hundred_transformers_fed_in_turn_write_what_each_writes_alone() -> None:
    rng = random.Random(2)
    streams = [
        as_chunks(
            [
                (TEXT, piece)
                for piece in random_cut(f"{at} {section(call(f'functions.bash:{at}', LS))} {at}", rng)
                if piece
            ]
        )
        for at in range(200)
    ]
    outputs = [io.BytesIO() for _ in streams]
    transformers = [ToolCallTransformer(output, TOOLS) for output in outputs]
    for at in range(max(map(len, streams))):
        for transformer, chunks in zip(transformers, streams, strict=True):
            if at < len(chunks):
                transformer.transform(chunks[at])
    for output, chunks in zip(outputs, streams, strict=True):
        other = io.BytesIO()
        transformer = ToolCallTransformer(other, TOOLS)
        for each in chunks:
            transformer.transform(each)
        assert output.getvalue() == other.getvalue()
        assert b'"functions.bash:' in other.getvalue()


# --- frames as text


def _fed(events: Iterable[Any]) -> bytes:
    output = io.BytesIO()
    transformer = ToolCallTransformer(output, TOOLS)
    for each in events:
        transformer.transform(each)
    transformer.flush()
    return output.getvalue()


UNCHANGED = [
    'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n',
    'data:{"id":"c","choices":[]}\r\n\r\n',
    ": keep-alive\n\n",
    'event: error\ndata: {"error": {"message": "no"}}\n\n',
    'id: 7\nretry: 5\ndata: {"a":\ndata: 1}\n\n',
    "data: [DONE]\n\n",
    "data: no json\n\n",
    "retry: 100\n\n",
    ': a\n\ndata: {"b": 1}\n\n: c\n\ndata: [DONE]\n\n',
    '\ufeffdata: {"b": 1}\n\n',
]


@pytest.mark.parametrize("text", UNCHANGED)
def test_a_frame_given_as_text_or_bytes_is_passed_on_byte_for_byte(text: str) -> None:
    for event in (text, text.encode(), bytearray(text.encode())):
        assert _fed([event]) == text.encode()
        log = io.BytesIO()
        LoggingTransformer(log).transform(event)  # type: ignore[arg-type]
        assert log.getvalue() == text.encode()


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\r"])
def test_a_frame_without_its_blank_line_gets_it(ending: str) -> None:
    log = io.BytesIO()
    logger = LoggingTransformer(log)
    for text in ('data: {"a": 1}', "data: [DONE]"):
        logger.transform(text + ending)
    assert [frame.data for frame in frames_of(log.getvalue())] == [b'{"a": 1}', b"[DONE]"]


def test_frames_and_their_data_mean_the_same() -> None:
    datas = [chunk({"content": piece}) for piece in random_cut(f"a{ONE}b", random.Random(1))]
    datas += [chunk({}, "stop"), DONE]
    frames = [f"data: {data}\n\n" for data in datas]
    expected = _fed(datas)
    assert b'"name":"bash"' in expected
    assert _fed(frames) == _fed([frame.encode() for frame in frames]) == _fed(["".join(frames)]) == expected
    parsers = ToolCallParser(TOOLS), ToolCallParser(TOOLS)
    for data, frame in zip(datas, frames, strict=True):
        assert parsers[0].process(data) == parsers[1].process(frame)


def test_a_comment_before_a_frame_that_changes_is_kept() -> None:
    text = f": ping\n\ndata: {chunk({'content': ONE})}\n\n"
    assert _fed([text]).startswith(b": ping\n\ndata: {")
