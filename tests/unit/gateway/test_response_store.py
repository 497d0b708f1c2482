"""The response store (bounded, separate for each key), and the access log."""

from __future__ import annotations

import asyncio
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

import dragoman.dialects as registry
from dragoman.conformance.laws import encode_events, fixed_environment
from dragoman.conformance.samples import STREAMS
from dragoman.errors import ClientFault, Fault
from dragoman.gateway import response_store
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.log_rate_limit import LogRateLimit
from dragoman.gateway.records import Record
from dragoman.gateway.redaction import Redactor
from dragoman.gateway.response_store import PickledConversation, ResponseStore, whole_conversation
from dragoman.http.exchange import Owner
from dragoman.model.blocks import Text
from dragoman.model.conversation import Conversation, Message, Stop, StopReason
from dragoman.model.events import (
    FINISHED,
    BlockEnded,
    BlockStarted,
    Failed,
    ResponseBudget,
    ResponseLimits,
    Started,
    Stopped,
    TextDelta,
)
from dragoman.response_stream import ResponseTranslator
from dragoman.translate import TranslationSettings
from dragoman.wire import jsonio

RESPONSES, CHAT = registry.get("responses"), registry.get("openai")
KEY, OTHER = Owner("one"), Owner("two")


def user_turn(text: str) -> Conversation:
    return Conversation("m", (Message("user", (Text(text),)),))


def read(text: str, **fields: object) -> Conversation:
    return RESPONSES.codec.parse_request(RESPONSES.binding.unwrap({"model": "m", "input": text, **fields}))  # type: ignore[dict-item]


def test_the_limits_are_those_of_the_documentation() -> None:
    assert (response_store.MAX_RESPONSES, response_store.MAX_STORED_BYTES, response_store.MAX_AGE) == (
        1000,
        64 * 1024 * 1024,
        6 * 3600,
    )
    page = Path("docs/dialects/responses.md").read_text()
    assert "at most 1000 responses, 64 MB and 6 hours" in page


def test_the_number_is_bounded_and_the_oldest_is_removed_first() -> None:
    response_store = ResponseStore(most=2)
    for name in "abc":
        response_store.keep("me", name, user_turn(name))
    assert [response_store.find_conversation("me", name) is not None for name in "abc"] == [False, True, True]


def test_bytes_are_bounded() -> None:
    response_store = ResponseStore(most_bytes=10_000)
    response_store.keep("me", "a", user_turn("x" * 1000))
    response_store.keep("me", "b", user_turn("x" * 1000))
    assert (
        response_store.find_conversation("me", "a") is None and response_store.find_conversation("me", "b") is not None
    )
    response_store.keep("me", "c", user_turn("x" * 9000))
    assert response_store.find_conversation("me", "c") is None and response_store.size <= 10_000


def test_age_is_bounded() -> None:
    now = [0.0]
    response_store = ResponseStore(oldest=10, now=lambda: now[0])
    response_store.keep("me", "a", user_turn("x"))
    now[0] = 11.0
    assert response_store.find_conversation("me", "a") is None
    assert (len(response_store), response_store.size) == (0, 0)


def test_the_same_id_replaces_the_stored_response() -> None:
    response_store = ResponseStore()
    response_store.keep("me", "a", user_turn("one"))
    size = response_store.size
    response_store.keep("me", "a", user_turn("two"))
    assert response_store.find_conversation("me", "a") == user_turn("two") and response_store.size == size


def streamed_response_id(
    response_store: ResponseStore, owner: Owner, conversation: Conversation, *, fails: bool = False
) -> str:
    """Return the id that the client got for a response that was streamed."""
    planned, store = response_store.plan(
        owner, RESPONSES, CHAT, conversation, model="m", settings=TranslationSettings()
    )
    events = STREAMS["text"]
    if fails:
        events = (Started("x", "m"), BlockStarted(0, Text("")), TextDelta(0, "Hel"), BlockEnded(0))
        events = (*events, Failed(Fault("server", "broke")))
    response = ResponseTranslator(
        planned, fixed_environment(), encoder=store.encoder(planned, fixed_environment()) if store else None
    )
    data = response.feed(encode_events(CHAT, events)) + response.close()
    first = next(line for line in data.split(b"\n") if line.startswith(b"data: "))
    return str(jsonio.decode(first[6:])["response"]["id"])  # type: ignore[index,call-overload]


def test_a_continued_conversation_is_sent_to_any_target_and_only_for_the_same_key() -> None:
    response_store = ResponseStore()
    response_id = streamed_response_id(response_store, KEY, read("one", stream=True))
    now = read("two", previous_response_id=response_id)
    planned, _ = response_store.plan(KEY, RESPONSES, CHAT, now, model="m", settings=TranslationSettings())
    assert [(message.role, message.blocks[0]) for message in planned.translated.messages] == [
        ("user", Text("one")),
        ("assistant", Text("Hello ✓")),
        ("user", Text("two")),
    ]
    with pytest.raises(ClientFault) as refused:
        response_store.plan(OTHER, RESPONSES, CHAT, now, model="m", settings=TranslationSettings())
    assert refused.value.fault.code == "previous_response_not_found"
    assert refused.value.at == "previous_response_id"


def test_a_continued_conversation_of_the_same_dialect_is_rendered_and_not_passed_through() -> None:
    response_store = ResponseStore()
    response_id = streamed_response_id(response_store, KEY, read("one"))
    now = read("two", previous_response_id=response_id)
    planned, _ = response_store.plan(KEY, RESPONSES, RESPONSES, now, model="m", settings=TranslationSettings())
    assert planned.translated.previous_id is None and len(planned.translated.messages) == 3 and not planned.verbatim


@pytest.mark.parametrize("fields", [{"store": False}, {}], ids=["not stored", "failed"])
def test_responses_that_failed_or_may_not_be_stored_are_not_stored(fields: dict[str, object]) -> None:
    response_store = ResponseStore()
    streamed_response_id(response_store, KEY, read("one", **fields), fails=not fields)
    assert len(response_store) == 0


def test_a_dialect_without_continuation_stores_nothing() -> None:
    response_store = ResponseStore()
    planned, _ = response_store.plan(KEY, CHAT, CHAT, user_turn("x"), model="m", settings=TranslationSettings())
    assert planned.client is CHAT
    assert len(response_store) == 0


def test_a_response_has_its_previous_id_and_notes_locate_earlier_messages_there() -> None:
    response_store = ResponseStore()
    image: dict[str, jsonio.Json] = {
        "type": "input_file",
        "file_data": "data:application/pdf;base64,aGk=",
        "filename": "a.pdf",
        "odd": 1,
    }
    conversation = RESPONSES.codec.parse_request(
        RESPONSES.binding.unwrap({"model": "m", "input": [{"role": "user", "content": [image]}]})
    )
    response_id = streamed_response_id(response_store, KEY, conversation)
    now = read("two", previous_response_id=response_id)
    planned, _ = response_store.plan(KEY, RESPONSES, CHAT, now, model="m", settings=TranslationSettings())
    assert planned.notes and {note.at.partition(".")[0] for note in planned.notes} == {"previous_response_id"}
    response = ResponseTranslator(planned, fixed_environment())
    data = response.feed(encode_events(CHAT, STREAMS["text"])) + response.close()
    assert data.count(b'"previous_response_id":"%b"' % response_id.encode()) == 3


def test_a_large_conversation_is_stored_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the job process reads it again: many small requests can make one conversation as large as a large one."""
    monkeypatch.setattr(response_store, "LARGE_CONVERSATION", 2000)
    store = ResponseStore()
    store.keep("me", "a", user_turn("x" * 1000))
    store.keep("me", "b", user_turn("y" * 3000))
    small, large = store.find_conversation("me", "a"), store.find_conversation("me", "b")
    assert not isinstance(small, PickledConversation)
    assert isinstance(large, PickledConversation)
    assert jsonio.encode(large.read().messages) == jsonio.encode(whole_conversation(user_turn("y" * 3000), ()).messages)
    store.forget("me", "a")
    store.forget("me", "b")
    assert store.size == 0


def test_a_stored_response_has_its_whole_limit_and_one_over_it_is_sent_but_not_stored() -> None:
    """The encoder keeps a text for its last event, and the store keeps it, too: neither takes the other's room."""
    limits = ResponseLimits(max_bytes=100_000)
    memory = ResponseStore()
    planned, store = memory.plan(
        KEY, RESPONSES, CHAT, read("?", stream=True), model="m", settings=TranslationSettings()
    )
    text = "y" * 70_000
    block = (BlockStarted(0, Text("")), TextDelta(0, text), BlockEnded(0))
    events = (Started("x", "m"), *block, Stopped(Stop(StopReason.END)), FINISHED)
    assert store is not None
    budget = ResponseBudget(limits)
    response = ResponseTranslator(
        planned, fixed_environment(), budget=budget, encoder=store.encoder(planned, fixed_environment(), budget)
    )
    assert text.encode() in response.feed(encode_events(CHAT, events)) and response.fault is None
    assert len(memory) == 1
    unused = ResponseStore()
    store = unused.saver(KEY, RESPONSES, read("?"))
    assert store is not None
    encoder = RESPONSES.codec.encoder(read("?"), fixed_environment())
    small = response_store._SavingEncoder(encoder, store, ResponseBudget(ResponseLimits(max_bytes=100)))
    sent = b"".join(payload.data for payload in small.feed(events))
    assert text.encode() in sent and len(unused) == 0


# --- the access log: a slow reader, or a flood of lines, does not delay requests


@contextmanager
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe as a supervisor gives it."""
    reading, writing = os.pipe()
    try:
        with os.fdopen(writing, "w", encoding="utf-8") as stream:
            yield reading, stream
    finally:
        os.close(reading)


def record(outcome: Any = "ok", status: int = 200) -> Record:
    entry = Record("req_1", "POST", "/v1/messages")
    entry.outcome, entry.status = outcome, status
    return entry


def test_a_stalled_log_reader_blocks_no_request_and_gets_the_count_of_dropped_lines() -> None:
    with pipe() as (reading, stream):
        access_log = AccessLog(Redactor(), stream=stream, form="json")
        count = 20_000

        def write() -> None:
            for _ in range(count):
                access_log.request(record())

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(20)
        assert not writing.is_alive()  # it would wait for ever
        assert 0 < access_log.dropped < count
        lines = _resume(reading, access_log)
        dropped = [line for line in lines if line["event"] == "dropped"]
        assert [line["lines"] for line in dropped] == [access_log.dropped]
        assert sum(line["event"] == "request" for line in lines) == count - access_log.dropped


def _resume(reading: int, access_log: AccessLog) -> list[dict[str, Any]]:
    """Read until the log has no queued lines and has written its last line."""
    os.set_blocking(reading, False)
    got = b""
    has_written_end = False
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        empty = access_log._sink.drain()
        try:
            got += os.read(reading, 65536)
        except BlockingIOError:
            if empty and has_written_end:
                break
        if empty and not has_written_end:
            access_log.event("info", "the end")
            has_written_end = True
    return [json.loads(line) for line in got.decode().splitlines()]


def test_queued_lines_are_written_when_the_reader_resumes() -> None:
    async def scene(reading: int, access_log: AccessLog) -> bytes:
        for number in range(2000):
            access_log.event("info", "line", number=number)
        got = b""
        os.set_blocking(reading, False)
        until = time.monotonic() + 10
        while b'"number":1999}' not in got and time.monotonic() < until:
            try:
                got += os.read(reading, 65536)
            except BlockingIOError:
                await asyncio.sleep(0.01)
        return got

    with pipe() as (reading, stream):
        access_log = AccessLog(Redactor(), stream=stream, form="json")
        lines = asyncio.run(scene(reading, access_log)).decode().splitlines()
        assert [json.loads(line)["number"] for line in lines] == list(range(2000))
        assert access_log.dropped == 0


SECRETS = ("the-secret-of-the-tests", "one-that-came-later", "sk-of-a-known-shape-0123456789")


def _with_secrets(access_log: AccessLog, known: list[str]) -> None:
    """Write one line, then several at once, all with a secret; the second secret becomes known in between."""
    for number in range(20):
        if number == 10:
            known.append(SECRETS[1])
        secrets = SECRETS[:1] + SECRETS[2:] if number < 10 else SECRETS
        access_log.event("info", "line", number=number, content=" and ".join(secrets))


@pytest.mark.parametrize("running", [False, True], ids=["each by itself", "in one go"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_reaches_a_log_file_from_single_or_batched_lines(form: Any, running: bool, tmp_path: Path) -> None:
    known = list(SECRETS[:1])

    async def busy(access_log: AccessLog) -> None:
        _with_secrets(access_log, known)
        await asyncio.sleep(0.1)
        _with_secrets(access_log, known)

    with (tmp_path / "log").open("w") as stream:
        access_log = AccessLog(Redactor(lambda: known), stream=stream, form=form)
        if running:
            asyncio.run(busy(access_log))
        else:
            _with_secrets(access_log, known)
        access_log.close()
        text = (tmp_path / "log").read_text()
    assert text.count("\n") == (40 if running else 20) == text.count("line")
    assert not [secret for secret in SECRETS if secret in text]
    assert text.count("***") >= 50


def test_queued_lines_contain_no_secret() -> None:
    with pipe() as (reading, stream):
        access_log = AccessLog(Redactor(lambda: SECRETS), stream=stream, form="json")
        for _ in range(3000):
            access_log.event("info", "line", content=" ".join(SECRETS), text="x" * 60)
        lines = [line for line in _resume(reading, access_log) if line["event"] == "line"]
    assert len(lines) == 3000
    assert {line["content"] for line in lines} == {"*** *** ***"}


def test_lines_are_written_in_the_background_and_the_last_at_close() -> None:
    async def scene(reading: int, access_log: AccessLog) -> tuple[bytes, bytes]:
        os.set_blocking(reading, False)
        for number in range(3):
            access_log.event("info", "line", number=number)
        until = time.monotonic() + 5
        early = b""
        while early.count(b"\n") < 3 and time.monotonic() < until:
            await asyncio.sleep(0.005)
            with suppress(BlockingIOError):
                early += os.read(reading, 65536)
        for number in range(3, 6):  # at once after others: they would be gathered
            access_log.event("info", "line", number=number)
        access_log.close()
        return early, os.read(reading, 65536)

    with pipe() as (reading, stream):
        early, last = asyncio.run(scene(reading, AccessLog(Redactor(), stream=stream, form="json")))
    assert [json.loads(line)["number"] for line in early.splitlines()] == [0, 1, 2]
    assert [json.loads(line)["number"] for line in last.splitlines()] == [3, 4, 5]


def test_a_busy_log_is_written_in_few_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write, writes = os.write, list[int]()

    def counted(handle: int, data: bytes) -> int:
        writes.append(handle)
        return write(handle, data)

    async def scene(access_log: AccessLog) -> None:
        for number in range(30):
            access_log.event("info", "line", number=number)
        await asyncio.sleep(0.1)

    with (tmp_path / "log").open("w") as stream:
        access_log = AccessLog(Redactor(), stream=stream, form="json")
        monkeypatch.setattr(os, "write", counted)
        asyncio.run(scene(access_log))
        assert 1 < writes.count(stream.fileno()) < 5
        assert (tmp_path / "log").read_text().count("\n") == 30


def test_a_line_longer_than_a_pipe_buffer_is_written_whole() -> None:
    with pipe() as (reading, stream):
        access_log = AccessLog(Redactor(), stream=stream, form="json")
        access_log.event("info", "long", text="x" * 300_000)
        [line] = [line for line in _resume(reading, access_log) if line["event"] == "long"]
        assert line["text"] == "x" * 300_000


def test_lines_for_a_closed_reader_are_counted_as_dropped() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        access_log = AccessLog(Redactor(), stream=stream, form="json")
        for _ in range(10):
            access_log.request(record())
        assert access_log.dropped == 10


def test_ten_thousand_bad_requests_write_a_hundred_lines_and_a_count() -> None:
    log = io.StringIO()
    access_log = AccessLog(Redactor(), stream=log, form="json")
    for number in range(10_000):
        access_log.request(record("refused", 401 if number % 2 else 400))
    access_log.request(record())  # others are not silenced by it
    access_log.close()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert len(lines) <= 210
    assert sum(line["lines"] for line in lines if line["event"] == "suppressed") == access_log.suppressed == 9800
    assert [line["outcome"] for line in lines if line["event"] == "request"].count("ok") == 1


def test_the_count_of_suppressed_lines_is_logged_after_a_flood() -> None:
    suppressed: list[tuple[object, int]] = []
    cap = LogRateLimit(most=3, seconds=10.0)
    assert [cap.allows(400, 100.0, lambda *each: suppressed.append(each)) for _ in range(5)] == [True] * 3 + [False] * 2
    assert cap.allows(401, 101.0, lambda *each: suppressed.append(each))
    assert not suppressed
    assert cap.allows(400, 110.0, lambda *each: suppressed.append(each))
    assert suppressed == [(400, 2)]


def test_unlimited_kinds_of_lines_share_one_limit() -> None:
    cap = LogRateLimit(most=2, kinds=4)
    assert sum(cap.allows(number, 1.0, lambda *_: None) for number in range(1000)) == 4 + 2


def test_every_served_request_has_its_log_line() -> None:
    log = io.StringIO()
    access_log = AccessLog(Redactor(), stream=log, form="json")
    for _ in range(5000):
        access_log.request(record("failed", 502))
    assert log.getvalue().count("\n") == 5000
