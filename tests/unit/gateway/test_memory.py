"""Earlier answers are kept within bounds, for their own key only."""

from __future__ import annotations

from pathlib import Path

import pytest

import dragoman.dialects as registry
from dragoman.answer import Answer
from dragoman.conformance.laws import encoded, still_world
from dragoman.conformance.samples import STREAMS
from dragoman.errors import ClientFault, Fault
from dragoman.gateway import memory
from dragoman.gateway.memory import Memory, Pickled, all_said
from dragoman.http.exchange import Owner
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, Stop, Why
from dragoman.model.events import (
    FINISHED,
    AnswerLimits,
    BlockEnded,
    BlockStarted,
    Budget,
    Failed,
    Started,
    Stopped,
    TextDelta,
)
from dragoman.translate import Settings
from dragoman.wire import jsonio

RESPONSES, CHAT = registry.get("responses"), registry.get("openai")
KEY, OTHER = Owner("one"), Owner("two")


def said(text: str) -> Conversation:
    return Conversation("m", (Message("user", (Text(text),)),))


def read(text: str, **fields: object) -> Conversation:
    return RESPONSES.codec.parse_request(RESPONSES.binding.unwrap({"model": "m", "input": text, **fields}))  # type: ignore[dict-item]


def test_the_bounds_are_those_that_the_page_states() -> None:
    assert (memory.MOST, memory.MOST_BYTES, memory.OLDEST) == (1000, 64 * 1024 * 1024, 6 * 3600)
    page = Path("docs/dialects/responses.md").read_text()
    assert "at most 1000 answers, 64 MB and 6 hours" in page


def test_count_is_bounded_and_the_oldest_goes_first() -> None:
    memory = Memory(most=2)
    for name in "abc":
        memory.keep("me", name, said(name))
    assert [memory.recall("me", name) is not None for name in "abc"] == [False, True, True]


def test_bytes_are_bounded() -> None:
    memory = Memory(most_bytes=10_000)
    memory.keep("me", "a", said("x" * 1000))
    memory.keep("me", "b", said("x" * 1000))
    assert memory.recall("me", "a") is None and memory.recall("me", "b") is not None
    memory.keep("me", "c", said("x" * 9000))
    assert memory.recall("me", "c") is None and memory.size <= 10_000


def test_age_is_bounded() -> None:
    now = [0.0]
    memory = Memory(oldest=10, now=lambda: now[0])
    memory.keep("me", "a", said("x"))
    now[0] = 11.0
    assert memory.recall("me", "a") is None
    assert (len(memory), memory.size) == (0, 0)


def test_the_same_id_again_replaces_what_was_kept() -> None:
    memory = Memory()
    memory.keep("me", "a", said("one"))
    size = memory.size
    memory.keep("me", "a", said("two"))
    assert memory.recall("me", "a") == said("two") and memory.size == size


def answered(memory: Memory, owner: Owner, asked: Conversation, *, fails: bool = False) -> str:
    """The id the client was given for an answer that streamed through."""
    made, store = memory.plan(owner, RESPONSES, CHAT, asked, model="m", settings=Settings())
    events = STREAMS["text"]
    if fails:
        events = (Started("x", "m"), BlockStarted(0, Text("")), TextDelta(0, "Hel"), BlockEnded(0))
        events = (*events, Failed(Fault("server", "broke")))
    answer = Answer(made, still_world(), encoder=store.encoder(made, still_world()) if store else None)
    data = answer.feed(encoded(CHAT, events)) + answer.close()
    first = next(line for line in data.split(b"\n") if line.startswith(b"data: "))
    return str(jsonio.decode(first[6:])["response"]["id"])  # type: ignore[index,call-overload]


def test_what_was_said_is_told_to_the_next_target_and_only_for_the_same_key() -> None:
    memory = Memory()
    answer_id = answered(memory, KEY, read("one", stream=True))
    now = read("two", previous_response_id=answer_id)
    made, _ = memory.plan(KEY, RESPONSES, CHAT, now, model="m", settings=Settings())
    assert [(message.role, message.blocks[0]) for message in made.sent.messages] == [
        ("user", Text("one")),
        ("assistant", Text("Hello ✓")),
        ("user", Text("two")),
    ]
    with pytest.raises(ClientFault) as refused:
        memory.plan(OTHER, RESPONSES, CHAT, now, model="m", settings=Settings())
    assert refused.value.fault.code == "previous_response_not_found"
    assert refused.value.at == "previous_response_id"


def test_what_is_known_here_is_told_at_home_too_and_not_sent_as_the_clients_bytes() -> None:
    memory = Memory()
    answer_id = answered(memory, KEY, read("one"))
    now = read("two", previous_response_id=answer_id)
    made, _ = memory.plan(KEY, RESPONSES, RESPONSES, now, model="m", settings=Settings())
    assert made.sent.previous is None and len(made.sent.messages) == 3 and not made.verbatim


@pytest.mark.parametrize("asked", [{"store": False}, {}], ids=["not stored", "failed"])
def test_neither_what_may_not_be_stored_nor_what_failed_is_kept(asked: dict[str, object]) -> None:
    memory = Memory()
    answered(memory, KEY, read("one", **asked), fails=not asked)
    assert len(memory) == 0


def test_a_dialect_without_previous_answers_costs_nothing() -> None:
    memory = Memory()
    made, _ = memory.plan(KEY, CHAT, CHAT, said("x"), model="m", settings=Settings())
    assert made.client is CHAT
    assert len(memory) == 0


def test_an_answer_says_what_it_goes_on_from_and_notes_say_where_the_client_said_it() -> None:
    memory = Memory()
    image: dict[str, jsonio.Json] = {
        "type": "input_file",
        "file_data": "data:application/pdf;base64,aGk=",
        "filename": "a.pdf",
        "odd": 1,
    }
    asked = RESPONSES.codec.parse_request(
        RESPONSES.binding.unwrap({"model": "m", "input": [{"role": "user", "content": [image]}]})
    )
    answer_id = answered(memory, KEY, asked)
    now = read("two", previous_response_id=answer_id)
    made, _ = memory.plan(KEY, RESPONSES, CHAT, now, model="m", settings=Settings())
    assert made.notes and {note.at.partition(".")[0] for note in made.notes} == {"previous_response_id"}
    answer = Answer(made, still_world())
    data = answer.feed(encoded(CHAT, STREAMS["text"])) + answer.close()
    assert data.count(b'"previous_response_id":"%b"' % answer_id.encode()) == 3


def test_s3_a_conversation_that_has_grown_large_is_kept_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the worker process reads it again: many small requests can make one conversation as large as a large one."""
    monkeypatch.setattr(memory, "LARGE", 2000)
    store = Memory()
    store.keep("me", "a", said("x" * 1000))
    store.keep("me", "b", said("y" * 3000))
    small, large = store.recall("me", "a"), store.recall("me", "b")
    assert not isinstance(small, Pickled)
    assert isinstance(large, Pickled)
    assert jsonio.encode(large.read().messages) == jsonio.encode(all_said(said("y" * 3000), ()).messages)
    store.forget("me", "a")
    store.forget("me", "b")
    assert store.size == 0


def test_an_answer_that_is_kept_twice_has_its_whole_limit_and_one_over_it_is_sent_and_not_stored() -> None:
    """The encoder keeps a text for its last event, and the store keeps it, too: neither takes the other's room."""
    limits = AnswerLimits(answer=100_000)
    kept = Memory()
    made, store = kept.plan(KEY, RESPONSES, CHAT, read("?", stream=True), model="m", settings=Settings())
    text = "y" * 70_000
    block = (BlockStarted(0, Text("")), TextDelta(0, text), BlockEnded(0))
    events = (Started("x", "m"), *block, Stopped(Stop(Why.END)), FINISHED)
    assert store is not None
    budget = Budget(limits)
    answer = Answer(made, still_world(), budget=budget, encoder=store.encoder(made, still_world(), budget))
    assert text.encode() in answer.feed(encoded(CHAT, events)) and answer.fault is None
    assert len(kept) == 1
    unused = Memory()
    store = unused.store(KEY, RESPONSES, read("?"))
    assert store is not None
    encoder = RESPONSES.codec.encoder(read("?"), still_world())
    small = memory._KeepingEncoder(encoder, store, Budget(AnswerLimits(answer=100)))
    told = b"".join(payload.data for payload in small.feed(events))
    assert text.encode() in told and len(unused) == 0
