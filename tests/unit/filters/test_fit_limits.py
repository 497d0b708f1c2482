"""fit_limits: settings and counts within what the target takes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dragoman
from dragoman.errors import Unrepresentable
from dragoman.filters.calls import RenameTools, fit_alphabet
from dragoman.filters.limits import FitLimits
from dragoman.model import assemble
from dragoman.model.blocks import Location, Opaque, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, IdentifierFormat, traits
from dragoman.model.conversation import Conversation, Message, Output, Thinking, ToolChoice, ToolSpec
from dragoman.model.events import BlockKeys, BlockStarted, Event, Events, Started, TextDelta
from dragoman.model.filter import Facts, Note, Notes, ResponseFilter
from dragoman.wire.jsonio import Json
from tests import strategies

USER = Message("user", (Text("hi"),))
TOOL = ToolSpec("f", "", {"type": "object", "properties": {}})


def fitted(target: Capabilities, **fields: object) -> tuple[Conversation, list[str]]:
    notes = Notes()
    all_fields = {"messages": (USER,), **fields}
    sent, _ = FitLimits(target).forward(Conversation("m", **all_fields), notes, Facts())  # type: ignore[arg-type]
    return sent, [note.rule for note in notes]


def test_more_than_one_reply_is_refused_at_n() -> None:
    with pytest.raises(Unrepresentable, match=r"^n: "):
        fitted(Capabilities(), choices=2)
    assert fitted(Capabilities(traits=traits("choices")), choices=2)[0].choices == 2


def test_sampling_settings_are_dropped_or_clamped() -> None:
    target = Capabilities(sampling=frozenset({"temperature"}), sampling_ranges=(("temperature", 0.0, 1.0),))
    sent, rules = fitted(target, sampling={"temperature": 1.7, "seed": 3})
    assert (sent.sampling, rules) == ({"temperature": 1.0}, ["knob.dropped", "knob.clamped"])


def test_max_tokens_is_added_where_needed_and_zero_refused_where_impossible() -> None:
    sent, rules = fitted(Capabilities(max_tokens=99))
    assert (sent.max_tokens, rules) == (99, ["max_tokens.default"])
    with pytest.raises(Unrepresentable, match=r"^max_tokens: "):
        fitted(Capabilities(), max_tokens=0)
    assert fitted(Capabilities(traits=traits("zero_tokens")), max_tokens=0)[1] == []


def test_stop_sequences_are_cut_to_what_the_target_takes() -> None:
    sent, rules = fitted(Capabilities(stop_limit=1), stop=("", "A", "B"))
    assert (sent.stop, rules) == (("A",), ["stop.blank", "stop.limit"])


@pytest.mark.parametrize(
    ("takes", "output", "expected"),
    [
        ({"text"}, Output("schema", "n", {"type": "object"}), Output()),
        ({"text", "json"}, Output("schema", "n", {"type": "object"}), Output("json")),
        ({"text", "schema"}, Output("json"), Output()),
    ],
)
def test_an_output_form_the_target_lacks(takes: set[str], output: Output, expected: Output) -> None:
    sent, rules = fitted(Capabilities(output=frozenset(takes), traits=traits("output_names")), output=output)
    assert (sent.output, rules) == (expected, ["output.form"])


def test_objects_of_an_output_schema_are_closed_but_names_and_values_are_not_keywords() -> None:
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {"properties": {"type": "object"}, "x": {"enum": [{"type": "object"}]}},
        "anyOf": [{"properties": {}}],
    }
    target = Capabilities(output=frozenset({"schema"}), traits=traits("closed_schemas"))
    sent, rules = fitted(target, output=Output("schema", schema=schema))
    closed = {
        "type": "object",
        "properties": {
            "properties": {"type": "object", "additionalProperties": False},
            "x": {"enum": [{"type": "object"}]},
        },
        "anyOf": [{"properties": {}, "additionalProperties": False}],
        "additionalProperties": False,
    }
    assert (sent.output.schema, rules) == (closed, ["output.closed"])


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (Thinking("on", "", 3000), Thinking(effort="low")),
        (Thinking("on", "", 31999), Thinking(effort="high")),
        (Thinking("on", "", 100_000), Thinking(effort="high")),
        (Thinking("adaptive", "xhigh", None, False), Thinking(effort="high")),
        (Thinking(effort="minimal"), Thinking(effort="low")),
        (Thinking("off", "high"), Thinking("off")),
        (Thinking(effort="unheard of"), Thinking()),
    ],
)
def test_thinking_in_the_targets_words(thinking: Thinking, expected: Thinking) -> None:
    target = Capabilities(efforts=("low", "medium", "high"), thinking=frozenset({"default", "off"}))
    sent, rules = fitted(target, thinking=thinking)
    assert (sent.thinking, rules) == (expected, ["thinking.fitted"])


def test_thinking_without_any_word_for_it() -> None:
    sent, rules = fitted(Capabilities(), thinking=Thinking("on", "", 3000))
    assert (sent.thinking, rules) == (Thinking(), ["thinking.dropped"])


@pytest.mark.parametrize(
    ("choice", "expected", "rules"),
    [
        (ToolChoice("any", ("f",)), ToolChoice("any"), ["tools.allowed"]),
        (ToolChoice("none"), ToolChoice(), ["tools.choice"]),
        (ToolChoice(parallel=False), ToolChoice(), ["tools.parallel"]),
    ],
)
def test_a_tool_choice_the_target_lacks(choice: ToolChoice, expected: ToolChoice, rules: list[str]) -> None:
    target = Capabilities(choice_modes=frozenset({"auto", "any", "one"}))
    other = ToolSpec("g", "", {"type": "object"})
    sent, noted = fitted(target, tools=(TOOL, other), tool_choice=choice)
    assert (sent.tool_choice, noted) == (expected, rules)
    assert (other in sent.tools) == (not choice.names)


def test_a_choice_and_a_parallel_flag_without_tools_go() -> None:
    """They must never leak without tools."""
    sent, rules = fitted(Capabilities(traits=traits("parallel_flag")), tool_choice=ToolChoice("any", parallel=False))
    assert (sent.tool_choice, rules) == (ToolChoice(), ["tools.choice"])


def test_one_tool_of_a_name_stays() -> None:
    search = Opaque("anthropic", {"type": "web_search_20250305", "name": "f"}, "web_search_20250305")
    sent, rules = fitted(Capabilities(), tools=(TOOL, ToolSpec("f", "again", {}), search))
    assert (sent.tools, rules) == ((TOOL,), ["tools.duplicate", "tools.duplicate"])
    sent, rules = fitted(
        Capabilities(traits=traits("shared_names")), tools=(TOOL, ToolSpec("f", "again", {}), search, search)
    )
    assert (sent.tools, rules) == ((TOOL, search, search), ["tools.duplicate"])


def test_strict_flags_and_user_ids_go_where_there_is_no_place() -> None:
    sent, rules = fitted(Capabilities(), tools=(ToolSpec("f", "", {}, strict=True),), user="u")
    assert (sent.tools, sent.user, rules) == ((ToolSpec("f", "", {}),), "", ["tools.strict", "user.dropped"])


# --- rename tools

NARROW = IdentifierFormat("a-zA-Z0-9_-", 64)
BEDROCK = IdentifierFormat("a-zA-Z0-9_.:-", 64)
TARGET = Capabilities(names=NARROW, ids=NARROW)


def forward(
    conversation: Conversation, target: Capabilities = TARGET
) -> tuple[Conversation, list[Note], ResponseFilter]:
    notes = Notes()
    fitted, make_back = RenameTools(target).forward(conversation, notes, Facts())
    assert make_back is not None
    return fitted, list(notes), make_back(notes, BlockKeys())


def reply_calls(back: ResponseFilter, *calls: tuple[str, str], id_: str = "msg_1") -> list[tuple[str, str]]:
    stream: Events = (Started(id_, "m"), *(BlockStarted(key, ToolCall(*each)) for key, each in enumerate(calls)))
    return [
        (e.block.id, e.block.name)
        for e in back.feed(stream)
        if isinstance(e, BlockStarted) and isinstance(e.block, ToolCall)
    ]


@pytest.mark.parametrize(
    ("text", "alphabet", "same"),
    [
        ("i" * 64, NARROW, True),
        ("i" * 65, NARROW, False),
        ("call_x|fc_y", BEDROCK, False),
        ("a.b:c", BEDROCK, True),
        ("a.b:c", NARROW, False),
        ("naïve", NARROW, False),
        ("line\n", NARROW, False),
        ("", NARROW, False),
        ("\ud800", NARROW, False),
    ],
)
def test_only_an_illegal_text_changes(text: str, alphabet: IdentifierFormat, same: bool) -> None:
    alias = fit_alphabet(text, alphabet)
    assert (alias == text) == same
    assert re.fullmatch(f"[{alphabet.pattern}]{{1,{alphabet.limit}}}", alias)


def test_an_alias_can_be_recognised_by_people() -> None:
    assert re.fullmatch("mcp_a_b_[0-9a-f]{8}", fit_alphabet("mcp.a.b", NARROW))


@given(st.text(), st.text(), strategies.alphabets)
def test_aliases_are_legal_and_distinct_and_settle(one: str, other: str, alphabet: IdentifierFormat) -> None:
    alias = fit_alphabet(one, alphabet)
    assert re.fullmatch(f"[{alphabet.pattern}]{{1,{alphabet.limit}}}", alias)
    assert fit_alphabet(alias, alphabet) == alias
    assert (one == other) == (alias == fit_alphabet(other, alphabet))


def test_ids_alike_in_their_first_characters_stay_distinct() -> None:
    assert fit_alphabet("x" * 80 + "1", NARROW) != fit_alphabet("x" * 80 + "2", NARROW)


def test_a_name_is_the_same_everywhere_and_comes_back_in_the_reply() -> None:
    conversation = Conversation(
        "m",
        (
            Message("user", (Text("go"),)),
            Message("assistant", (ToolCall("a|b", "mcp.a.b", at=Location("the call")),)),
            Message("user", (ToolResult("a|b"),)),
        ),
        tools=(ToolSpec("mcp.a.b", at=Location("tools[0]")), ToolSpec("mcp_a_b"), Opaque("anthropic", {"name": "a b"})),
        tool_choice=ToolChoice("one", ("mcp.a.b",)),
    )
    fitted, notes, back = forward(conversation)
    name, id_ = fit_alphabet("mcp.a.b", NARROW), fit_alphabet("a|b", NARROW)
    assert fitted.tools == (ToolSpec(name), ToolSpec("mcp_a_b"), conversation.tools[2])
    assert fitted.tool_choice == ToolChoice("one", (name,))
    assert fitted.messages[1].blocks == (ToolCall(id_, name),)
    assert fitted.messages[2].blocks == (ToolResult(id_),)
    assert [(note.rule, note.action, note.at) for note in notes] == [
        ("tools.renamed", "renamed", "tools[0]"),
        ("ids.renamed", "renamed", "the call"),
    ]
    assert reply_calls(back, ("1", name), ("2", "mcp_a_b"), ("3", "mcp.a.b")) == [
        ("1", "mcp.a.b"),
        ("2", "mcp_a_b"),
        ("3", "mcp.a.b"),
    ]


def test_a_request_without_illegal_names_is_the_same_object() -> None:
    conversation = Conversation("m", (Message("assistant", (ToolCall("a", "read"),)),), tools=(ToolSpec("read"),))
    fitted, notes, _ = forward(conversation)
    assert fitted is conversation
    assert notes == []


EMPTY = Conversation("m", ())


def test_a_call_without_an_id_gets_one_that_is_the_same_every_time() -> None:
    notes = Notes()
    _, make_back = RenameTools(TARGET).forward(EMPTY, notes, Facts())
    assert make_back is not None
    first = reply_calls(make_back(notes, BlockKeys()), ("", "read"), ("", "read"))
    assert first == reply_calls(make_back(Notes(), BlockKeys()), ("", "read"), ("", "read"))
    assert len({id_ for id_, _ in first}) == 2
    assert all(re.fullmatch("call_[0-9a-f]{24}", id_) for id_, _ in first)
    assert [(note.rule, note.action) for note in notes] == [("ids.minted", "added")] * 2


def test_minted_ids_of_one_conversation_differ_even_if_the_upstream_names_no_reply() -> None:
    _, _, first = forward(EMPTY)
    _, _, second = forward(Conversation("m", (Message("user", (Text("go"),)),)))
    assert reply_calls(first, ("", "read"), id_="") != reply_calls(second, ("", "read"), id_="")


def test_an_id_that_the_conversation_has_used_is_not_given_again() -> None:
    """Some upstreams begin with call_0 in every reply; clients that pair by id alone then loop."""
    notes = Notes()
    conversation = Conversation("m", (Message("assistant", (ToolCall("call_0", "read"),)),))
    _, make_back = RenameTools(TARGET).forward(conversation, notes, Facts())
    assert make_back is not None
    (first, _), (second, _), (third, _) = reply_calls(
        make_back(notes, BlockKeys()), ("call_0", "read"), ("call_1", "read"), ("call_1", "read")
    )
    assert second == "call_1"
    assert len({"call_0", first, second, third}) == 4
    assert [(note.rule, note.action) for note in notes] == [("ids.reused", "renamed")] * 2


def test_choices_have_ids_of_their_own() -> None:
    _, _, back = forward(EMPTY)
    events: Events = (BlockStarted(0, ToolCall("a", "read"), 0), BlockStarted(1, ToolCall("a", "read"), 1))
    assert back.feed(events) is events


def test_events_without_a_change_are_the_same_tuple() -> None:
    _, _, back = forward(EMPTY)
    for events in ((Started("1", "m"),), (BlockStarted(0, Text("")),), (TextDelta(0, "a"), TextDelta(0, "b")), ()):
        assert back.feed(events) is events


@given(strategies.conversations(), strategies.events(), st.data())
def test_the_response_half_keeps_the_grammar_and_does_not_depend_on_batches(
    conversation: Conversation, stream: Events, data: st.DataObject
) -> None:
    _, make_back = RenameTools(TARGET).forward(conversation, Notes(), Facts())
    assert make_back is not None
    whole = make_back(Notes(), BlockKeys()).feed(stream)
    back = make_back(Notes(), BlockKeys())
    pieces: list[Event] = [each for batch in data.draw(strategies.batches_of(stream)) for each in back.feed(batch)]
    assert tuple(pieces) == whole
    assemble.check(whole)
    calls = [(e.choice, e.block.id) for e in whole if isinstance(e, BlockStarted) and isinstance(e.block, ToolCall)]
    assert len(set(calls)) == len(calls)
    assert all(id_ for _, id_ in calls)


def test_the_choice_of_a_tool_that_is_not_ours_to_rename_keeps_its_name() -> None:
    tools = (Opaque("anthropic", {"type": "new", "name": "odd name"}, "new"), ToolSpec("a.b", "", {}))
    conversation = Conversation("m", (), tools=tools, tool_choice=ToolChoice("any", ("odd name", "a.b")))
    fitted, _, _ = forward(conversation)
    assert fitted.tools[0] is tools[0]
    assert fitted.tool_choice.names == ("odd name", fit_alphabet("a.b", NARROW))


# --- user ids fit every target that accepts one, and show no device id to another family

DEVICE = "d" * 64
CLAUDE_CODE = json.dumps(
    {"device_id": DEVICE, "account_uuid": "", "session_id": "7b0e6f0c-54a5-4d0e-9d4e-0d7a5f0c1b2a"}
)
OLDER = f"user_{'ab' * 32}_account__session_7b0e6f0c-54a5-4d0e-9d4e-0d7a5f0c1b2a"
SLOTS = {"openai": ("user",), "responses": ("user",), "anthropic": ("metadata", "user_id")}
SLOTS["bedrock"] = ("requestMetadata", "user_id")
ASKING: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "openai": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "bedrock": {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
}
LIMITS = {"openai": 64, "responses": 64, "anthropic": 256, "bedrock": 256}


def asking(source: str, user: str) -> dict[str, Any]:
    name, *inner = SLOTS[source]
    return {**ASKING[source], name: {inner[0]: user} if inner else user}


def sent(body: dict[str, Any], source: str, target: str, **options: Any) -> tuple[str, list[Note]]:
    """The user id that the target gets, and the notes about it."""
    translation = dragoman.translate_request(body, source=source, target=target, model="claude-x", **options)
    value: Any = translation.body
    for name in SLOTS[target]:
        value = value[name]
    assert isinstance(value, str)
    return value, [note for note in translation.notes if "user" in note.rule]


@pytest.mark.parametrize("target", SLOTS)
@pytest.mark.parametrize("source", SLOTS)
@pytest.mark.parametrize("length", [65, 150, 256, 257, 1000])
def test_a_user_id_fits_its_target(source: str, target: str, length: int) -> None:
    user = "u" * length
    value, notes = sent(asking(source, user), source, target)
    assert len(value) <= LIMITS[target]
    if length <= LIMITS[target]:
        assert (value, notes) == (user, [])
    else:
        assert [(note.rule, note.action, note.at) for note in notes] == [("user.hashed", "changed", "user")]
        assert user not in str(notes[0])


@pytest.mark.parametrize("target", SLOTS)
@pytest.mark.parametrize("user", [CLAUDE_CODE, OLDER], ids=["json", "older"])
def test_no_device_is_sent_to_another_family(target: str, user: str) -> None:
    value, notes = sent(asking("anthropic", user), "anthropic", target)
    if target == "anthropic":
        assert (value, notes) == (user, [])
        return
    assert DEVICE not in value and "ab" * 32 not in value and len(value) <= 64
    assert [(note.rule, note.action) for note in notes] == [("user.hashed", "changed")]
    assert DEVICE not in str(notes)


def test_the_hash_is_stable_and_differs_between_users() -> None:
    first, _ = sent(asking("anthropic", CLAUDE_CODE), "anthropic", "openai")
    again, _ = sent(asking("anthropic", CLAUDE_CODE), "anthropic", "responses")
    other, _ = sent(asking("anthropic", CLAUDE_CODE.replace("d", "e")), "anthropic", "openai")
    assert first == again != other


@pytest.mark.parametrize("target", ["openai", "responses"])
@pytest.mark.parametrize("source", ["openai", "responses"])
def test_both_slots_of_openai_fit(source: str, target: str) -> None:
    body = {**ASKING[source], "user": "u" * 100, "safety_identifier": "s" * 100, "model": "m"}
    translation = dragoman.translate_request(body, source=source, target=target)
    assert len(translation.body["user"]) == len(translation.body["safety_identifier"]) == 64
    assert sorted(note.at for note in translation.notes if note.rule == "user.hashed") == ["safety_identifier", "user"]
    request = {**ASKING[source], "safety_identifier": "s" * 100, "model": "m"}
    translation = dragoman.translate_request(request, source=source, target=source)
    assert len(translation.body["safety_identifier"]) == 64


def test_the_limit_is_a_setting_of_the_upstream() -> None:
    value, notes = sent(asking("openai", "u" * 100), "openai", "openai", user_limit=128)
    assert (value, notes) == ("u" * 100, [])


def test_a_target_without_user_ids_gets_none_and_no_hash() -> None:
    translation = dragoman.translate_request(
        asking("anthropic", CLAUDE_CODE), source="anthropic", target="gemini", model="gemini-3-pro"
    )
    assert [(note.rule, note.action) for note in translation.notes if "user" in note.rule] == [
        ("user.dropped", "dropped")
    ]
