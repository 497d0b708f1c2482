"""A log that nobody reads, or that everybody fills, costs no request anything."""

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

from dragoman.gateway.access_log import AccessLog, Cap, Record
from dragoman.gateway.redaction import Redactor


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
    made = Record("req_1", "POST", "/v1/messages")
    made.outcome, made.status = outcome, status
    return made


def test_a_reader_that_stops_reading_stops_nobody_and_is_told_what_it_missed() -> None:
    with pipe() as (reading, stream):
        journal = AccessLog(Redactor(), stream=stream, form="json")
        count = 20_000

        def write() -> None:
            for _ in range(count):
                journal.request(record())

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        writing.join(20)
        assert not writing.is_alive()  # it would wait for ever
        assert 0 < journal.dropped < count
        lines = _resume(reading, journal)
        told = [line for line in lines if line["event"] == "dropped"]
        assert [line["lines"] for line in told] == [journal.dropped]
        assert sum(line["event"] == "request" for line in lines) == count - journal.dropped


def _resume(reading: int, journal: AccessLog) -> list[dict[str, Any]]:
    """Read on until the journal has nothing left, and it says the word."""
    os.set_blocking(reading, False)
    got = b""
    said = False
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        empty = journal._sink.drain()
        try:
            got += os.read(reading, 65536)
        except BlockingIOError:
            if empty and said:
                break
        if empty and not said:
            journal.event("info", "the end")
            said = True
    return [json.loads(line) for line in got.decode().splitlines()]


def test_what_waits_is_written_when_the_reader_is_back_without_another_line() -> None:
    async def scene(reading: int, journal: AccessLog) -> bytes:
        for number in range(2000):
            journal.event("info", "line", number=number)
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
        journal = AccessLog(Redactor(), stream=stream, form="json")
        lines = asyncio.run(scene(reading, journal)).decode().splitlines()
        assert [json.loads(line)["number"] for line in lines] == list(range(2000))
        assert journal.dropped == 0


SECRETS = ("the-secret-of-the-tests", "one-that-came-later", "sk-of-a-known-shape-0123456789")


def _with_secrets(journal: AccessLog, known: list[str]) -> None:
    """A line alone, then a handful at once, in all of which somebody says a secret; one becomes known in between."""
    for number in range(20):
        if number == 10:
            known.append(SECRETS[1])
        told = SECRETS[:1] + SECRETS[2:] if number < 10 else SECRETS
        journal.event("info", "line", number=number, said=" and ".join(told))


@pytest.mark.parametrize("running", [False, True], ids=["each by itself", "in one go"])
@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_reaches_a_real_file_whether_lines_come_alone_or_many_at_once(
    form: Any, running: bool, tmp_path: Path
) -> None:
    known = list(SECRETS[:1])

    async def busy(journal: AccessLog) -> None:
        _with_secrets(journal, known)
        await asyncio.sleep(0.1)
        _with_secrets(journal, known)

    with (tmp_path / "log").open("w") as stream:
        journal = AccessLog(Redactor(lambda: known), stream=stream, form=form)
        if running:
            asyncio.run(busy(journal))
        else:
            _with_secrets(journal, known)
        journal.close()
        text = (tmp_path / "log").read_text()
    assert text.count("\n") == (40 if running else 20) == text.count("line")
    assert not [secret for secret in SECRETS if secret in text]
    assert text.count("***") >= 50


def test_no_secret_waits_in_the_clear_for_a_reader_that_stopped() -> None:
    with pipe() as (reading, stream):
        journal = AccessLog(Redactor(lambda: SECRETS), stream=stream, form="json")
        for _ in range(3000):
            journal.event("info", "line", said=" ".join(SECRETS), text="x" * 60)
        lines = [line for line in _resume(reading, journal) if line["event"] == "line"]
    assert len(lines) == 3000
    assert {line["said"] for line in lines} == {"*** *** ***"}


def test_the_last_lines_are_written_when_the_log_is_closed_and_those_before_without_it() -> None:
    async def scene(reading: int, journal: AccessLog) -> tuple[bytes, bytes]:
        os.set_blocking(reading, False)
        for number in range(3):
            journal.event("info", "line", number=number)
        until = time.monotonic() + 5
        early = b""
        while early.count(b"\n") < 3 and time.monotonic() < until:
            await asyncio.sleep(0.005)
            with suppress(BlockingIOError):
                early += os.read(reading, 65536)
        for number in range(3, 6):  # at once after others: they would be gathered
            journal.event("info", "line", number=number)
        journal.close()
        return early, os.read(reading, 65536)

    with pipe() as (reading, stream):
        early, last = asyncio.run(scene(reading, AccessLog(Redactor(), stream=stream, form="json")))
    assert [json.loads(line)["number"] for line in early.splitlines()] == [0, 1, 2]
    assert [json.loads(line)["number"] for line in last.splitlines()] == [3, 4, 5]


def test_a_busy_log_is_written_in_few_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write, writes = os.write, list[int]()

    def counted(handle: int, data: bytes) -> int:
        writes.append(handle)
        return write(handle, data)

    async def scene(journal: AccessLog) -> None:
        for number in range(30):
            journal.event("info", "line", number=number)
        await asyncio.sleep(0.1)

    with (tmp_path / "log").open("w") as stream:
        journal = AccessLog(Redactor(), stream=stream, form="json")
        monkeypatch.setattr(os, "write", counted)
        asyncio.run(scene(journal))
        assert 1 < writes.count(stream.fileno()) < 5
        assert (tmp_path / "log").read_text().count("\n") == 30


def test_a_line_longer_than_a_pipe_comes_whole() -> None:
    with pipe() as (reading, stream):
        journal = AccessLog(Redactor(), stream=stream, form="json")
        journal.event("info", "long", text="x" * 300_000)
        [line] = [line for line in _resume(reading, journal) if line["event"] == "long"]
        assert line["text"] == "x" * 300_000


def test_a_reader_that_left_is_counted_and_nothing_more() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        journal = AccessLog(Redactor(), stream=stream, form="json")
        for _ in range(10):
            journal.request(record())
        assert journal.dropped == 10


def test_ten_thousand_bad_requests_are_a_hundred_lines_and_a_count() -> None:
    log = io.StringIO()
    journal = AccessLog(Redactor(), stream=log, form="json")
    for number in range(10_000):
        journal.request(record("refused", 401 if number % 2 else 400))
    journal.request(record())  # others are not silenced by it
    journal.close()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert len(lines) <= 210
    assert sum(line["lines"] for line in lines if line["event"] == "suppressed") == journal.suppressed == 9800
    assert [line["outcome"] for line in lines if line["event"] == "request"].count("ok") == 1


def test_a_storm_that_ends_is_told_too() -> None:
    told: list[tuple[object, int]] = []
    cap = Cap(most=3, seconds=10.0)
    assert [cap.allows(400, 100.0, lambda *each: told.append(each)) for _ in range(5)] == [True] * 3 + [False] * 2
    assert cap.allows(401, 101.0, lambda *each: told.append(each))
    assert not told
    assert cap.allows(400, 110.0, lambda *each: told.append(each))
    assert told == [(400, 2)]


def test_kinds_without_end_share_one_cap() -> None:
    cap = Cap(most=2, kinds=4)
    assert sum(cap.allows(number, 1.0, lambda *_: None) for number in range(1000)) == 4 + 2


def test_every_request_that_was_answered_has_its_line() -> None:
    log = io.StringIO()
    journal = AccessLog(Redactor(), stream=log, form="json")
    for _ in range(5000):
        journal.request(record("failed", 502))
    assert log.getvalue().count("\n") == 5000
