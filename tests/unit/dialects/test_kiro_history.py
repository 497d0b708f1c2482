"""History pairs user and assistant turns, by placeholders or by merging: document 003 of docs/mission.md, and
docs/decisions/kiro.md#d10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from dragoman.dialects.kiro.quirks.request import FitSize
from dragoman.dialects.kiro.quirks.turns import (
    MAX_ASSISTANT_CHARACTERS,
    MAX_RESULT_CHARACTERS,
    MAX_USER_CHARACTERS,
    BuildHistory,
)
from dragoman.dialects.kiro.request import estimate_input_tokens, estimate_message_tokens
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import Location, Media, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.filter import Facts, Note, Notes
from tests.growth import check_linear_growth
from tests.unit.dialects.kiro_helpers import (
    WEATHER,
    anthropic_request,
    assistant,
    current,
    history,
    results,
    rules,
    state,
    translate_to_kiro,
    use,
    user,
)
from tests.unit.dialects.kiro_helpers import result as tool_result

FILLER = ("assistant", "I understand.")


def test_claude_code_request_structure() -> None:
    """003's example: u, u, a, u and the current u give exactly six history entries."""
    request = translate_to_kiro(anthropic_request(user("0"), user("1"), assistant("2"), user("3"), user("4")))
    assert history(request) == [
        ("user", "0"),
        FILLER,
        ("user", "1"),
        ("assistant", "2"),
        ("user", "3"),
        FILLER,
    ]
    assert current(request)["content"] == "4"
    assert rules(request).count("turn.placeholder") == 2


def test_every_user_turn_names_model_and_origin() -> None:
    request = translate_to_kiro(anthropic_request(user("0"), user("1"), assistant("2"), user("3")), origin="KIRO_CLI")
    turns = [entry["userInputMessage"] for entry in state(request)["history"] if "userInputMessage" in entry]
    for turn in (*turns, current(request)):
        assert (turn["modelId"], turn["origin"]) == ("claude-sonnet-4.5", "KIRO_CLI")


def test_merge_joins_turns_of_one_role_instead() -> None:
    request = translate_to_kiro(
        anthropic_request(user("a"), user("b"), assistant("c"), assistant("d"), user("e")), pairing="merge"
    )
    assert history(request) == [("user", "a\n\nb"), ("assistant", "c\n\nd")]
    assert current(request)["content"] == "e"


def test_an_assistant_message_without_a_user_message_gets_one() -> None:
    request = translate_to_kiro(anthropic_request(assistant("hi"), assistant("there"), user("x")))
    assert history(request) == [("user", "Continue"), ("assistant", "hi"), ("user", "Continue"), ("assistant", "there")]


@pytest.mark.parametrize("pairing", ["placeholders", "merge"])
def test_a_conversation_that_ends_with_the_assistant_asks_to_continue(pairing: str) -> None:
    request = translate_to_kiro(anthropic_request(user("a"), assistant("b")), pairing=pairing)
    assert history(request) == [("user", "a"), ("assistant", "b")]
    assert current(request)["content"] == "Continue"


def test_both_fillers_are_settings() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), user("b"), assistant("c")), fillers=("Yes.", "Go on"))
    assert history(request) == [("user", "a"), ("assistant", "Yes."), ("user", "b"), ("assistant", "c")]
    assert current(request)["content"] == "Go on"


def test_no_history_is_left_out() -> None:
    assert "history" not in state(translate_to_kiro(anthropic_request(user("a"))))


def test_the_system_text_stands_before_the_first_user_turn_filler_or_not() -> None:
    assert current(translate_to_kiro(anthropic_request(user("a"), system="S")))["content"] == "S\n\na"
    assert history(translate_to_kiro(anthropic_request(assistant("hi"), user("a"), system="S")))[0] == (
        "user",
        "S\n\nContinue",
    )


def test_a_system_message_between_is_folded_with_a_label() -> None:
    request = translate_to_kiro(
        anthropic_request(user("a"), {"role": "system", "content": "Now in French."}, assistant("b"), user("c"))
    )
    assert history(request)[0] == ("user", "a\n[System] Now in French.")


def test_tool_results_stay_with_the_turn_that_follows_their_call() -> None:
    request = translate_to_kiro(
        anthropic_request(user("a"), assistant([use("t")]), user([tool_result("t")]), user("and?"), tools=[WEATHER])
    )
    assert history(request) == [("user", "a"), ("assistant", ".")]
    assert current(request)["content"] == "and?"
    assert [each["toolUseId"] for each in results(request)] == ["t"]


def test_the_conversation_has_one_id_in_all_its_turns() -> None:
    first = state(translate_to_kiro(anthropic_request(user("a"))))["conversationId"]
    assert state(translate_to_kiro(anthropic_request(user("a"), assistant("b"), user("c"))))["conversationId"] == first
    assert state(translate_to_kiro(anthropic_request(user("other"))))["conversationId"] != first


@pytest.mark.parametrize(
    "session",
    [
        "user_ab_account__session_12345678-1234-1234-1234-123456789abc",
        '{"session_id":"12345678-1234-1234-1234-123456789abc"}',
    ],
)
def test_a_clients_session_names_the_conversation(session: str) -> None:
    one, other = (
        translate_to_kiro(anthropic_request(user(words), metadata={"user_id": session})) for words in ("a", "b")
    )
    assert state(one)["conversationId"] == state(other)["conversationId"]
    assert "kiro.conversation_id" in rules(one)


def test_a_user_without_a_session_does_not_mix_conversations() -> None:
    one, other = (translate_to_kiro(anthropic_request(user(words), metadata={"user_id": "me"})) for words in ("a", "b"))
    assert state(one)["conversationId"] != state(other)["conversationId"]


def test_equal_requests_render_equal_bytes() -> None:
    body = anthropic_request(user("a"), assistant([use("t")]), user([tool_result("t")]), tools=[WEATHER])
    assert translate_to_kiro(body).raw == translate_to_kiro(body).raw


# --- size and count limits (docs/decisions/kiro.md#d10)

LONG = "word " * 60_000  # about 75,000 tokens


def test_a_conversation_that_is_too_long_is_refused_so_that_clients_compact() -> None:
    with pytest.raises(Unrepresentable, match=r"^prompt is too long: 2250\d\d tokens > 200000 maximum$") as caught:
        translate_to_kiro(anthropic_request(*[user(LONG), assistant("b")] * 3, user("c")))
    assert (caught.value.fault.kind, caught.value.fault.status) == ("context_full", 400)


def test_a_million_token_model_still_has_the_services_own_limit() -> None:
    body = anthropic_request(*[user(LONG), assistant("b")] * 5, user("c"), model="claude-opus-4.7")
    with pytest.raises(DragomanError, match="tokens > 300000 maximum"):
        translate_to_kiro(body)


def test_trimming_drops_the_oldest_whole_exchanges_and_keeps_the_system_text() -> None:
    exchange = [user(LONG), assistant([use("t")]), user([tool_result("t", "r")]), assistant("done")]
    body = anthropic_request(
        *exchange, user("second " + LONG), assistant("b"), user("third " + LONG), system="S", tools=[WEATHER]
    )
    request = translate_to_kiro(body, oversize="trim")
    assert [role for role, _ in history(request)] == []
    assert current(request)["content"].startswith("S\n\nthird word")
    assert "kiro.history.trimmed" in rules(request)
    assert (
        state(request)["conversationId"] == state(translate_to_kiro(anthropic_request(exchange[0])))["conversationId"]
    )


def test_trimming_that_cannot_help_is_a_refusal() -> None:
    with pytest.raises(Unrepresentable, match="prompt is too long"):
        translate_to_kiro(anthropic_request(user("a"), assistant("b"), user(LONG * 4)), oversize="trim")


@pytest.mark.parametrize("pairing", ["placeholders", "merge"])
@pytest.mark.parametrize("limit", [2, 4, 7])
def test_history_limit_counts_entries_placeholders_included(pairing: str, limit: int) -> None:
    messages = [each for number in range(6) for each in (user(f"u{number}"), user(f"v{number}"), assistant("a"))]
    request = translate_to_kiro(
        anthropic_request(*messages, user("now"), system="S"), history_limit=limit, pairing=pairing
    )
    assert len(history(request)) <= limit
    first = history(request)[0][1] if history(request) else current(request)["content"]
    assert first.startswith("S\n\n")
    assert current(request)["content"].endswith("now")


def test_history_limit_never_cuts_between_a_call_and_its_result() -> None:
    exchange = [user("q"), assistant([use("t")]), user([tool_result("t")]), assistant("done")]
    request = translate_to_kiro(
        anthropic_request(*exchange, *[user("x"), assistant("y")], user("now"), tools=[WEATHER]), history_limit=5
    )
    assert history(request) == [("user", "x"), ("assistant", "y")]


def test_a_short_history_is_unchanged() -> None:
    request = translate_to_kiro(anthropic_request(user("a"), assistant("b"), user("c")), history_limit=2)
    assert "kiro.history.trimmed" not in rules(request)
    assert len(history(request)) == 2


@pytest.mark.parametrize("limit", [2, 3, 4, 6])
def test_history_limit_leaves_as_many_whole_exchanges_as_it_counts(limit: int) -> None:
    turns = [each for number in range(8) for each in (user(f"q{number}"), assistant("a"))]
    request = translate_to_kiro(anthropic_request(*turns, user("now")), history_limit=limit)
    assert len(history(request)) == limit // 2 * 2


def details(request: Any) -> list[str]:
    return [note.detail for note in request.notes if note.rule == "kiro.history.trimmed"]


def test_trimming_names_its_cause() -> None:
    turns = [user("q"), assistant("a")] * 3
    assert details(translate_to_kiro(anthropic_request(*turns, user("now")), history_limit=2)) == [
        "the oldest 4 messages are left out: history_limit is 2"
    ]
    long = [user(LONG), assistant("b")] * 3
    assert details(translate_to_kiro(anthropic_request(*long, user("now")), oversize="trim")) == [
        "the oldest 4 messages are left out: the service accepts at most 200000 tokens"
    ]
    assert details(translate_to_kiro(anthropic_request(*long, user("now")), oversize="trim", history_limit=4)) == [
        "the oldest 2 messages are left out: history_limit is 4"
    ]
    assert (
        len(details(translate_to_kiro(anthropic_request(*turns, *long, user("now")), oversize="trim", history_limit=6)))
        == 2
    )


MANY = tuple([Message(role, (Text("word " * 80),)) for _ in range(4_000) for role in ("user", "assistant")])


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize(("oversize", "limit"), [("trim", None), ("refuse", 2), ("trim", 7_000)])
def test_trimming_takes_time_in_proportion_to_history(oversize: str, limit: int | None, merges: bool) -> None:
    def work(count: int) -> Callable[[], object]:
        conversation = Conversation("claude-sonnet-4.5", (*MANY[:count], Message("user", (Text("now"),))))
        return lambda: FitSize(200_000, oversize, limit, merges).forward(conversation, Notes(), Facts())

    check_linear_growth(work, len(MANY), 4, in_c=False)
    fitted, _ = FitSize(200_000, oversize, limit, merges).forward(
        Conversation("claude-sonnet-4.5", (*MANY, Message("user", (Text("now"),)))), Notes(), Facts()
    )
    assert 1 < len(fitted.messages) < len(MANY)


def test_a_tool_that_is_nested_too_deeply_counts_nothing() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    conversation = Conversation("m", (Message("user", (Text("four"),)),), tools=(ToolSpec("deep", "", schema),))
    assert estimate_input_tokens(conversation) == 1
    while schema:  # one by one, as a tree of such depth cannot be freed at once
        schema = schema["not"]


def test_system_messages_count_and_stay_when_exchanges_are_removed() -> None:
    system = Message("system", (Text("word " * 80_000),))  # 100,000 tokens
    late = (Message("user", (Text("q"),)), system, *MANY, Message("user", (Text("now"),)))
    fitted, _ = FitSize(200_000, "trim", None, False).forward(Conversation("claude-sonnet-4.5", late), Notes(), Facts())
    assert fitted.messages[0] == system
    assert 140_000 < sum(map(estimate_message_tokens, fitted.messages)) <= 150_000


def test_system_messages_are_no_entries_of_their_own() -> None:
    system = Message("system", (Text("S"),))
    (ask_, response), now = MANY[:2], Message("user", (Text("now"),))
    conversation = Conversation("claude-sonnet-4.5", (ask_, response, ask_, system, response, now))
    fitted, _ = FitSize(200_000, "refuse", 4, False).forward(conversation, Notes(), Facts())
    assert fitted.messages is conversation.messages
    fitted, _ = FitSize(200_000, "refuse", 2, False).forward(conversation, Notes(), Facts())
    assert fitted.messages == conversation.messages[2:]


def test_an_empty_conversation_has_no_history() -> None:
    nothing = Conversation("claude-sonnet-4.5", ())
    assert FitSize(200_000, "trim", 1, False).forward(nothing, Notes(), Facts()) == (
        structs.replace(nothing, estimated_tokens=0),
        None,
    )


# --- the builder by itself


def build(*messages: Message) -> tuple[tuple[Message, ...], list[Note]]:
    notes = Notes()
    conversation, back = BuildHistory().forward(Conversation("m", messages), notes, Facts())
    assert back is None
    return conversation.messages, list(notes)


def turn(role: Any, *blocks: Any) -> Message:
    return Message(role, blocks, at=Location("here"))


IMAGE = Media("image", "image/png", "base64", "aGk=")
SIGNED = Reasoning("plan", "kiro", Signature("kiro", "sig"))
CALL = ToolCall("t", "f", "{}")
RESULT = ToolResult("t", (Text("r"),))


@pytest.mark.parametrize(
    ("message", "blocks", "rule"),
    [
        (turn("user", RESULT), (RESULT, Text("Tool results provided.")), "kiro.text.missing"),
        (turn("user", IMAGE), (Text("(image)"), IMAGE), "kiro.text.missing"),
        (turn("user"), (Text("."),), "kiro.text.missing"),
        (turn("user", IMAGE, Text("a")), (Text("a"), IMAGE), "kiro.text.joined"),
        (turn("user", Text("a"), Text("b")), (Text("a\nb"),), "kiro.text.joined"),
        (turn("assistant", CALL), (Text("."), CALL), "kiro.text.missing"),
        (turn("assistant", CALL, Text("a")), (Text("a"), CALL), "kiro.text.joined"),
        (turn("assistant", SIGNED), (SIGNED, Text(".")), "kiro.text.missing"),
        (
            turn("assistant", SIGNED, Text("a"), Reasoning("more", "kiro", Signature("kiro", "other"))),
            (SIGNED, Text("a\n<kiro_thinking>more</kiro_thinking>")),
            "kiro.thinking.wrapped",
        ),
        (
            turn("assistant", SIGNED, Text("a"), Reasoning("", "kiro", Signature("kiro", "x", "redacted"))),
            (SIGNED, Text("a")),
            "kiro.thinking.unreadable",
        ),
        (
            turn("assistant", Reasoning("raw"), Text("a")),
            (Text("<kiro_thinking>raw</kiro_thinking>\na"),),
            "kiro.thinking.wrapped",
        ),
    ],
)
def test_a_turn_gets_the_one_form_the_service_has(message: Message, blocks: tuple[Any, ...], rule: str) -> None:
    (built,), notes = build(message)
    assert built.blocks == blocks
    assert notes[0].rule == rule
    assert build(built) == ((built,), [])


@pytest.mark.parametrize(
    "message",
    [turn("user", RESULT, Text("a"), IMAGE), turn("assistant", SIGNED, Text("a"), CALL)],
)
def test_a_turn_in_that_form_is_unchanged(message: Message) -> None:
    conversation = Conversation("m", (message,))
    notes = Notes()
    assert BuildHistory().forward(conversation, notes, Facts())[0] is conversation
    assert not list(notes)


def test_many_turns_without_text_are_one_note_for_each_text_that_they_got() -> None:
    message = turn("user", RESULT)
    _, notes = build(message, turn("assistant", CALL), message, turn("assistant", Text("a")), message)
    assert [(note.rule, note.at, note.detail) for note in notes] == [
        ("kiro.text.missing", "here", f"{what} no text, and the service requires one; {words!r} is sent")
        for what, words in (("3 turns or results have", "Tool results provided."), ("a turn or result has", "."))
    ]


def test_parts_of_a_result_are_joined() -> None:
    (built,), notes = build(turn("user", ToolResult("t", (Text("a"), Text("b"))), Text("c")))
    assert built.blocks[0] == ToolResult("t", (Text("a\nb"),))
    assert [note.rule for note in notes] == ["kiro.text.joined"]


def test_joining_is_one_note_however_many_turns() -> None:
    _, notes = build(*[turn("user", Text("a"), Text("b"))] * 3)
    assert [note.detail for note in notes] == [
        "the texts of 3 turns or results were joined, in the order of the service"
    ]


@pytest.mark.parametrize(
    ("message", "longest"),
    [
        (turn("user", Text("x" * 700_000)), MAX_USER_CHARACTERS),
        (turn("assistant", Text("x" * 700_000)), MAX_ASSISTANT_CHARACTERS),
        (turn("user", ToolResult("t", (Text("x" * 900_000),)), Text("a")), MAX_RESULT_CHARACTERS),
    ],
)
def test_rule_51_a_text_that_is_too_long_loses_its_middle(message: Message, longest: int) -> None:
    (built,), notes = build(message)
    first = built.blocks[0]
    text = first.content[0] if isinstance(first, ToolResult) else first
    assert isinstance(text, Text)
    assert len(text.text) == longest
    assert "the middle left out]" in text.text
    assert [note.rule for note in notes] == ["kiro.text.cut"]
    assert build(built) == ((built,), [])
