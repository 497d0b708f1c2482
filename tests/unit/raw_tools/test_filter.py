"""The filter of raw tool calls, on events: what it changes, what it passes on and what it notes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from dragoman.errors import Fault
from dragoman.filters.raw_tools import RawTools
from dragoman.filters.raw_tools.grammar import grammar_of
from dragoman.model import assemble
from dragoman.model.assemble import assemble_reply, reply_events
from dragoman.model.blocks import Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.capabilities import IdentifierFormat
from dragoman.model.conversation import Choice, Conversation, Message, Reply, Stop, StopReason
from dragoman.model.events import (
    FINISHED,
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Event,
    Events,
    Failed,
    ReasoningDelta,
    SignatureAdded,
    Started,
    Stopped,
    TextDelta,
)
from dragoman.model.filter import Facts, Notes, ResponseFilter
from tests.strategies import continued_conversations, conversations, events
from tests.unit.raw_tools.documents import broken
from tests.unit.raw_tools.samples import (
    AB,
    BASH,
    CB,
    CE,
    LS,
    ONE,
    REASONING,
    SB,
    SE,
    TEXT,
    Call,
    all_cuts,
    blocks,
    call,
    collect_response,
    conversation,
    random_cut,
    run_filter,
    section,
    stream,
)

WITHOUT_REQUEST = Conversation("m", ())  # the translation of a reply alone


def back_of(
    filter_: RawTools | None = None, request: Conversation | None = None, notes: Notes | None = None
) -> ResponseFilter:
    _, make = (filter_ or RawTools()).forward(request or conversation(), Notes(), Facts())
    assert make is not None
    return make(notes if notes is not None else Notes(), BlockKeys(1 << 20))  # samples choose keys of their own


# --- what does not change


def test_a_reply_without_calls_keeps_every_frame_as_the_same_object() -> None:
    response_filter = back_of()
    frames = [
        (REASONING, "I think, "),
        (REASONING, "so: a < b."),
        (TEXT, "Yes\n"),
        (TEXT, "it is `x` "),
        (TEXT, "and so on "),
    ]
    for frame in stream(frames):
        assert response_filter.feed(frame) is frame


@given(events())
def test_other_replies_come_back_unchanged(expected: tuple[Event, ...]) -> None:
    may_begin = grammar_of("auto").search_marker
    texts = [event.text for event in expected if isinstance(event, TextDelta | ReasoningDelta)]
    assume(not any(may_begin(text) or text[:1].isspace() or text[:1] in "{[" for text in texts))
    response_filter = back_of(None, WITHOUT_REQUEST)
    assert [event for each in expected for event in response_filter.feed((each,))] == list(expected)
    assert back_of(None, WITHOUT_REQUEST).feed(expected) is expected


@given(events(), st.integers(0, 2**32))
def test_the_grammar_is_kept_whatever_the_texts_are(expected: tuple[Event, ...], seed: int) -> None:
    rng = random.Random(seed)
    for interleaves in (True, False):
        response_filter = back_of(RawTools(rng.choice(["auto", "kimi"]), interleaves=interleaves))
        checked = assemble.EventOrderCheck()
        for event in expected:
            is_text = isinstance(event, TextDelta | ReasoningDelta)
            checked.check(response_filter.feed((structs.replace(event, text=broken(rng)) if is_text else event,)))


def test_off_is_off() -> None:
    request = conversation()
    assert RawTools("off").forward(request, Notes(), Facts()) == (request, None)


# --- blocks


def test_a_text_that_is_nothing_but_a_call_leaves_no_empty_block() -> None:
    out = [event for frame in stream([(TEXT, ONE)]) for event in back_of_stream(frame)]
    started = [event.block for event in out if isinstance(event, BlockStarted)]
    assert [type(block) for block in started] == [ToolCall]


_backs: dict[int, ResponseFilter] = {}


def back_of_stream(frame: Events) -> Events:
    """One response filter for the frames of one test."""
    if isinstance(frame[0], Started):
        _backs[0] = back_of()
    return _backs[0].feed(frame)


def test_the_upstreams_own_empty_block_is_kept() -> None:
    frames: list[Events] = [
        (Started("r", "m"),),
        (BlockStarted(0, Text("")),),
        (BlockEnded(0),),
        (Stopped(Stop(StopReason.END)), FINISHED),
    ]
    response_filter = back_of()
    assert [event for frame in frames for event in response_filter.feed(frame)] == [
        event for frame in frames for event in frame
    ]


def test_for_a_client_that_takes_one_block_at_a_time_the_text_is_closed_before_the_call() -> None:
    response_filter = back_of(RawTools(interleaves=False))
    out = [
        event
        for frame in stream([(TEXT, f"a{SB}{CB}functions.bash:0{AB}{{"), (TEXT, f'"command":1}}{SE} b')])
        for event in response_filter.feed(frame)
    ]
    open_blocks = 0
    for event in out:
        open_blocks += isinstance(event, BlockStarted) - isinstance(event, BlockEnded)
        assert open_blocks <= 1
    assert [each if isinstance(each, Call) else each[1] for each in collect_response(out).content] == [
        "a",
        Call("functions.bash:0", "bash", '{"command":1}'),
        " b",
    ]


def test_reasoning_is_closed_before_a_call_so_that_the_call_streams_live() -> None:
    """The OpenAI encoder, for one, makes all wait while reasoning is open: it may still get a signature."""
    response_filter = back_of()
    pieces = [
        (REASONING, f"plan{SB}{CB}functions.bash:0{AB}"),
        (REASONING, "{}"),
        (REASONING, f"{SE}more"),
        (REASONING, "!"),
    ]
    out = [event for frame in stream(pieces) for event in response_filter.feed(frame)]
    kinds = [type(event) for event in out if isinstance(event, BlockStarted | BlockEnded)]
    assert kinds == [BlockStarted, BlockEnded] * 3
    assert collect_response(out).content == (
        (REASONING, "plan"),
        Call("functions.bash:0", "bash", "{}"),
        (REASONING, "more!"),
    )


def test_a_signature_that_comes_after_a_call_gets_a_block_of_its_own() -> None:
    signature = SignatureAdded(0, Signature("openai", "sig"))
    frames: list[Events] = [
        (Started("r", "m"),),
        (BlockStarted(0, Reasoning("")), ReasoningDelta(0, f"plan{ONE}")),
        (signature,),
        (BlockEnded(0),),
        (Stopped(Stop(StopReason.END)), FINISHED),
    ]
    for interleaves in (True, False):
        response_filter = back_of(RawTools(interleaves=interleaves))
        out = [event for frame in frames for event in response_filter.feed(frame)]
        assemble.check(out)
        assert [event.signature for event in out if isinstance(event, SignatureAdded)] == [signature.signature]


# --- how it ends


@pytest.mark.parametrize("why", list(StopReason))
def test_only_stop_becomes_tool_calls(why: StopReason) -> None:
    assert run_filter(stream([(TEXT, ONE)], why)).why is (StopReason.TOOL if why is StopReason.END else why)
    assert run_filter(stream([(TEXT, "text")], why)).why is why
    assert run_filter(stream([(TEXT, SB + SE)], why)).why is why


def test_a_call_that_was_cut_off_is_no_reason_to_call_tools() -> None:
    filtered = run_filter(stream([(TEXT, f'{SB}{CB}functions.bash:0{AB}{{"comm')]))
    assert filtered.calls == [Call("functions.bash:0", "bash", '{"comm', complete=False)]
    assert filtered.why is StopReason.END
    assert "raw_tools.cut_off" in filtered.rules


def test_a_call_whose_json_is_complete_is_complete_without_any_end_marker() -> None:
    filtered = run_filter(stream([(TEXT, f"{SB}{CB}functions.bash:0{AB}{LS}")]))
    assert filtered.calls == [BASH]
    assert filtered.why is StopReason.TOOL


def test_a_broken_stream_releases_the_buffer_and_then_fails() -> None:
    response_filter = back_of()
    fault = Failed(Fault("server", "gone"))
    frames: list[Events] = [(Started("r", "m"),), (BlockStarted(0, Text("")), TextDelta(0, "a <|tool_call")), (fault,)]
    out = [event for frame in frames for event in response_filter.feed(frame)]
    assemble.check(out)
    assert collect_response(out).text() == "a <|tool_call"
    assert out[-1] == fault
    assert not any(isinstance(event, Stopped) for event in out)


def test_a_call_in_a_broken_stream_ends_incomplete() -> None:
    response_filter = back_of()
    frames: list[Events] = [
        (Started("r", "m"),),
        (BlockStarted(0, Text("")), TextDelta(0, f'{SB}{CB}functions.bash:0{AB}{{"a')),
        (Failed(Fault("server", "gone")),),
    ]
    out = [event for frame in frames for event in response_filter.feed(frame)]
    assert [event.is_complete for event in out if isinstance(event, BlockEnded)] == [False]


# --- choices, native calls, tool_choice


def test_choices_are_independent() -> None:  # case 40
    first = list(blocks([(TEXT, piece) for piece in ONE], 0, 0))
    second = list(blocks([(TEXT, piece) for piece in "b " + section(call("functions.task:3", "{}"))], 1, 100))
    response_filter = back_of()
    out: list[Event] = [*response_filter.feed((Started("r", "m"),))]
    for at in range(max(len(first), len(second))):
        for frames in (first, second):
            out += response_filter.feed(frames[at]) if at < len(frames) else ()
    out += response_filter.feed((Stopped(Stop(StopReason.END), 0), Stopped(Stop(StopReason.LENGTH), 1), FINISHED))
    assemble.check(out)
    assert (collect_response(out, choice=0).calls, collect_response(out, choice=0).why) == ([BASH], StopReason.TOOL)
    assert (collect_response(out, choice=1).calls, collect_response(out, choice=1).why) == (
        [Call("functions.task:3", "task", "{}")],
        StopReason.LENGTH,
    )
    assert collect_response(out, choice=1).text() == "b "


def _with_native(text: str) -> list[Events]:
    native = ToolCall("functions.bash:0", "bash")
    return [
        (Started("r", "m"),),
        (BlockStarted(0, native), ArgumentsDelta(0, "{}"), BlockEnded(0)),
        (BlockStarted(1, Text("")), TextDelta(1, text)),
        (BlockEnded(1),),
        (Stopped(Stop(StopReason.TOOL)), FINISHED),
    ]


def test_a_native_call_is_kept_and_residue_of_markers_goes() -> None:  # case 39
    filtered = run_filter(_with_native(f"done{SE}"))
    assert filtered.calls == [Call("functions.bash:0", "bash", "{}")]
    assert filtered.text() == "done"
    assert filtered.rules == {"raw_tools.residue"}


def test_a_recovered_call_beside_a_native_one_has_an_id_of_its_own() -> None:
    filtered = run_filter(_with_native(ONE))
    assert [call.id for call in filtered.calls] == ["functions.bash:0", "functions.bash:1"]


def test_tags_do_not_count_if_a_whole_reply_holds_a_native_call_anywhere() -> None:
    tag = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    reply = Reply("r", "m", (Choice((Text(tag), ToolCall("c", "bash", "{}")), Stop(StopReason.TOOL)),))
    assert assemble_reply(back_of().feed(reply_events(reply))) == reply


def test_trailing_text_can_be_left_out() -> None:
    filtered = run_filter(stream([(TEXT, f"a{ONE}b")]), RawTools(trailing_text=False))
    assert filtered.text() == "a"
    assert "raw_tools.trailing_text" in filtered.rules


# --- whole replies


def test_a_whole_reply_is_read_as_a_streamed_one() -> None:
    rng = random.Random(7)
    for _ in range(200):
        text = broken(rng) or "x"
        reply = Reply("r", "m", (Choice((Text(text),), Stop(StopReason.END)),))
        whole = back_of().feed(reply_events(reply))
        response_filter = back_of()
        pieces = [(TEXT, piece) for piece in random_cut(text, rng) if piece]
        streamed = [event for frame in stream(pieces) for event in response_filter.feed(frame)]
        assert collect_response(whole) == collect_response(streamed)


# --- ids


def history(*calls: tuple[str, str]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for id_, name in calls:
        messages.append(Message("assistant", (ToolCall(id_, name, "{}"),)))
        messages.append(Message("user", (ToolResult(id_, (Text("ok"),)),)))
    return tuple(messages)


def test_an_id_the_conversation_has_is_not_given_again() -> None:  # case 41
    request = conversation(messages=history(("functions.read_file:0", "read_file")))
    response = run_filter(stream([(TEXT, section(call("functions.read_file:0", '{"path":"b"}')))]), None, request)
    (new_call,) = response.calls
    assert new_call.id == "functions.read_file:1"
    later = conversation(messages=history(("functions.read_file:0", "read_file"), (new_call.id, "read_file")))
    sent, _ = RawTools().forward(later, Notes(), Facts())
    assert ids_of(sent) == [
        "functions.read_file:0",
        "functions.read_file:0",
        "functions.read_file:1",
        "functions.read_file:1",
    ]


def ids_of(sent: Conversation) -> list[str]:
    blocks_ = [block for message in sent.messages for block in message.blocks]
    return [
        block.id if isinstance(block, ToolCall) else block.call_id
        for block in blocks_
        if isinstance(block, ToolCall | ToolResult)
    ]


def test_foreign_ids_become_kimis_in_order() -> None:
    messages = history(("call_x", "bash"), ("toolu_1", "task"), ("functions.bash:7", "bash"))
    notes = Notes()
    sent, _ = RawTools("kimi").forward(conversation(messages=messages), notes, Facts())
    assert ids_of(sent) == [
        each for each in ("functions.bash:0", "functions.task:1", "functions.bash:2") for _ in range(2)
    ]
    assert [note.rule for note in notes] == ["raw_tools.ids"] * 3


def test_an_id_used_twice_goes_with_its_own_result() -> None:
    parallel = Message("assistant", (ToolCall("c", "bash", "1"), ToolCall("c", "task", "2")))
    results = Message("user", (ToolResult("c", (Text("one"),)), ToolResult("c", (Text("two"),))))
    again = history(("c", "read_file"))
    sent, _ = RawTools("kimi").forward(conversation(messages=(parallel, results, *again)), Notes(), Facts())
    assert ids_of(sent) == [
        "functions.bash:0", "functions.task:1", "functions.bash:0", "functions.task:1",
        "functions.read_file:2", "functions.read_file:2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "model", "renames"),
    [
        ({"choice": "auto"}, "moonshotai/Kimi-K2.5", True),
        ({"choice": "auto"}, "qwen3", False),
        ({"choice": "kimi"}, "anything", True),
        ({"choice": "kimi", "kimi_ids": False}, "kimi-k2", False),
        ({"choice": "off"}, "kimi-k2", False),
        ({"choice": "off", "kimi_ids": True}, "kimi-k2", True),
    ],
)
def test_who_gets_kimis_ids(settings: dict[str, Any], model: str, renames: bool) -> None:
    request = conversation(messages=history(("call_x", "bash")), model=model)
    sent, _ = RawTools(**settings).forward(request, Notes(), Facts())
    assert (ids_of(sent)[0] == "functions.bash:0") is renames


@given(conversations())
def test_numbering_settles_and_notes_what_it_changes(request: Conversation) -> None:
    notes, again = Notes(), Notes()
    sent, _ = RawTools("kimi").forward(request, notes, Facts())
    assert RawTools("kimi").forward(sent, again, Facts())[0] == sent
    assert not len(again)
    assert bool(len(notes)) or sent == request


@given(continued_conversations())
def test_numbering_keeps_what_was_sent_before_as_a_prefix(both: tuple[Conversation, Conversation]) -> None:
    early, late = (RawTools("kimi").forward(each, Notes(), Facts())[0] for each in both)
    shared = len(early.messages) - 1
    assert late.messages[:shared] == early.messages[:shared]


def test_ids_keep_to_the_clients_alphabet() -> None:
    filter_ = RawTools(ids=IdentifierFormat("a-zA-Z0-9_-", 64))
    text = section(call("functions.bash:0", LS), call("functions.bash:0", LS))
    ids = [each.id for each in run_filter(stream([(TEXT, text)]), filter_).calls]
    assert len(set(ids)) == 2
    assert all(id_.replace("_", "").isalnum() for id_ in ids)
    request = conversation(messages=history((ids[0], "bash")))
    (again,) = run_filter(stream([(TEXT, ONE)]), filter_, request).calls
    assert again.id not in ids[:1]


def test_equal_replies_get_equal_ids() -> None:
    text = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>' * 2
    ids = [[each.id for each in run_filter(stream([(TEXT, text)])).calls] for _ in range(2)]
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2


@pytest.mark.parametrize(
    ("choice", "text", "rules"),
    [
        ("auto", ONE, {"recovered"}),
        ("auto", section(call("3", '{"path":"x"}')), {"recovered", "name_inferred"}),
        ("auto", section(call("3", '{"zz":"x"}')), set()),
        ("kimi", section(call("3", '{"zz":"x"}')), {"nameless"}),
        ("auto", f"a{SE}", set()),
        ("kimi", f"a{SE}", {"stray_marker"}),
        ("auto", f"{CE}{ONE}{CE}", {"recovered", "stray_marker"}),
        ("auto", f"{SB}noise{call('functions.bash:0', LS)}{SE}", {"recovered", "noise"}),
        ("auto", f"{SB}no call{SE}", set()),
        ("kimi", f"{SB}no call{SE}", {"stray_marker"}),
        ("auto", f"{SB}{CB}functions.ba", set()),
        ("kimi", f"{SB}{CB}functions.ba", {"unfinished"}),
        ("auto", f"{SB}{CB}functions.bash:0{AB}{LS[:5]}", {"recovered", "cut_off"}),
        ("auto", f"{SB}{CB}{'x' * 2000}", set()),
        ("auto", section(call("bash", LS)), {"recovered", "id_minted"}),
        ("auto", section(call("functions.unheard_of:0", LS)), {"recovered", "undeclared"}),
        ("auto", section(call("functions.bash:0", '{"command":"ls}')), {"recovered", "broken_arguments"}),
        ("auto", section(call("functions.bash:0", "ls -la")), {"recovered"}),
        ("harmony", "<|channel|>final<|message|>Hi.", {"wrapper"}),
        ("auto", "<|channel|>final<|message|>Hi.", {"wrapper"}),
        ("auto", "plain a < b", set()),
    ],
)
def test_every_change_has_its_note_and_no_note_is_without_a_change(choice: str, text: str, rules: set[str]) -> None:
    found = {run_filter(stream([(TEXT, piece) for piece in cut]), RawTools(choice)).rules for cut in all_cuts(text)}
    assert found == {frozenset(f"raw_tools.{rule}" for rule in rules)}


def test_a_request_without_tools_is_parsed_by_a_named_table_alone() -> None:
    """Where the request is known and declares no tools `auto` parses nothing; `functions.` is removed."""
    request = structs.replace(conversation(), tools=())
    task = section(call("functions.task:45", "{}"))
    assert RawTools().forward(request, Notes(), Facts()) == (request, None)
    assert [each.name for each in run_filter(stream([(TEXT, task)]), RawTools("kimi"), request).calls] == ["task"]
    assert [each.name for each in run_filter(stream([(TEXT, task)])).calls] == ["task"]


def test_a_reply_without_its_request_is_parsed() -> None:
    task = section(call("functions.task:45", "{}"))
    assert [each.name for each in run_filter(stream([(TEXT, task)]), None, WITHOUT_REQUEST).calls] == ["task"]


def test_thinking_in_tags_is_read_though_a_request_without_tools_is_not_parsed() -> None:
    request = structs.replace(conversation(), tools=())
    filtered = run_filter(stream([(TEXT, f"<think>plan</think>{ONE}")]), RawTools(think_tags=True), request)
    assert filtered.content == ((REASONING, "plan"), (TEXT, ONE))
    assert filtered.rules == {"think.tags"}
