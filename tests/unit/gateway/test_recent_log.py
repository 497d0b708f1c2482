"""The recent log: its bounds, its order, and what a reader that continues from a cursor gets."""

from __future__ import annotations

import asyncio
import io
import json
import sys

from hypothesis import given
from hypothesis import strategies as st

from dragoman.gateway import access_log
from dragoman.gateway.access_log import AccessLog, RecentEntries, RecentEntry, logged_request
from dragoman.gateway.recent import (
    LogPage,
    LogQuery,
    RecentLog,
    is_id_of,
    join_cursors,
    parse_cursor,
    read_request,
)
from dragoman.gateway.records import Outcome, Record, utc_time
from dragoman.gateway.redaction import Redactor
from dragoman.model.filter import Note
from dragoman.wire import jsonio

SECRET = "a-secret-of-the-tests-0123"


def record(number: int, outcome: Outcome = "ok", notes: int = 0, upstream: str = "one") -> Record:
    entry = Record(f"req_{number:06}", "POST", "/v1/messages", outcome=outcome, upstream=upstream)
    entry.notes = [Note("a.rule", "changed", f"messages[{each}]", f"sentence {each}") for each in range(notes)]
    return entry


def new_log(redactor: Redactor = Redactor()) -> tuple[RecentEntries, RecentLog]:  # noqa: B008  immutable
    """Return what keeps entries, and what reads them."""
    log = AccessLog(redactor, stream=io.StringIO())
    return log.recent_entries, RecentLog(log)


def add(recent_entries: RecentEntries, entry: Record, at: float) -> None:
    recent_entries.add(at, jsonio.encode(logged_request(entry, utc_time(at))), entry)


def page(log: RecentLog, query: LogQuery = LogQuery()) -> LogPage:  # noqa: B008  immutable
    return asyncio.run(log.page(query))


def ids(found: LogPage) -> list[str]:
    lines = [json.loads(line) for line in found.lines]
    return [line.get("request_id") or line["event"] for line in lines]


def test_the_last_thousand_requests_are_kept() -> None:
    recent_entries, log = new_log()
    for number in range(access_log.MAX_REQUESTS + 7):
        add(recent_entries, record(number), number)
    kept = ids(page(log))
    assert kept == [f"req_{number:06}" for number in range(7, access_log.MAX_REQUESTS + 7)]


def test_all_entries_together_stay_within_their_bytes() -> None:
    """The estimate is not below what the entries take."""
    recent_entries, _ = new_log()
    for number in range(300):
        long = record(number, notes=300)
        long.notes = [
            Note("a.rule", "changed", f"messages[{each}]", f"{number} {each} " + "x" * 90) for each in range(300)
        ]
        add(recent_entries, long, number)
        add(recent_entries, record(number, "refused", upstream=""), number)
        recent_entries.add_event(
            number, jsonio.encode({"ts": "", "level": "info", "event": "e", "message": f"{number}" + "y" * 5000})
        )
    queues = (recent_entries.requests, recent_entries.refused, recent_entries.events)
    assert sum(queue.bytes for queue in queues) <= access_log.MAX_BYTES
    assert all(queue.bytes == sum(entry.size for entry in queue.entries) for queue in queues)
    assert 0 < len(recent_entries.requests.entries) < 300
    assert all(entry.size >= _size(entry) for queue in queues for entry in queue.entries)


def _size(entry: RecentEntry) -> int:
    texts = [text for note in entry.notes for text in (note.at, note.detail)]
    values = [entry, entry.number, entry.at, entry.line, *texts, *entry.notes]
    return sum(map(sys.getsizeof, values))


def test_a_request_keeps_two_hundred_notes_and_the_number_of_all() -> None:
    recent_entries, log = new_log()
    add(recent_entries, record(1, notes=1234), 1.0)
    [line] = page(log, LogQuery(details=True)).lines
    entry = read_request(line)
    assert (entry.notes, len(entry.changes)) == (1234, access_log.MAX_NOTES)


def test_a_flood_of_refused_requests_pushes_out_no_answered_one() -> None:
    recent_entries, log = new_log()
    add(recent_entries, record(0), 0.0)
    for number in range(1, 5000):
        add(recent_entries, record(number, "refused", upstream=""), number)
    kept = ids(page(log))
    assert kept[0] == "req_000000" and len(kept) == 1 + access_log.MAX_REFUSED


def test_details_are_only_for_those_who_ask_and_have_no_secrets() -> None:
    recent_entries, log = new_log(Redactor(lambda: [SECRET]))
    entry = record(1)
    entry.notes = [Note("a.rule", "dropped", f"tools[{SECRET}]", f"the tool {SECRET} is gone")]
    add(recent_entries, entry, 1.0)
    for details in (False, True):
        found = page(log, LogQuery(details=details))
        text = b"".join(found.lines).decode()
        assert SECRET not in text and ("changes" in text) is details
        assert text.count("***") == (2 if details else 0)


def test_the_typed_form_is_the_json_line_and_can_be_read_again() -> None:
    entry = logged_request(record(1, notes=2), "2026-01-01T00:00:00.000Z")
    assert read_request(jsonio.encode(entry)) == entry


def test_a_request_is_found_by_its_id_its_beginning_and_its_end() -> None:
    recent_entries, log = new_log()
    for number in (100, 101, 222):
        add(recent_entries, record(number), number)
    assert [
        len(log.requests_with_details(text)) for text in ("req_000100", "req_0001", "req", "000222", "222", "nothing")
    ] == [*(1, 2, 3, 1, 0, 0)]
    assert [each.request_id for each in log.requests_with_details("last")] == ["req_000222"]
    assert is_id_of("req_000222", "req_000222")


def test_remarkable_requests_are_those_that_failed_and_some_that_lost_content() -> None:
    recent_entries, log = new_log()
    for number in range(40):
        entry = record(number, notes=1)
        if number % 2:
            entry.notes = [Note("knob.dropped", "dropped", "temperature", "not sent")]
        add(recent_entries, entry, number)
    add(recent_entries, record(90, "failed"), 90.0)
    retried = record(91)
    retried.mark_failed("one", "key", "429", "rate_limit", 429, "slow down")
    add(recent_entries, retried, 91.0)
    found = [each.request_id for each in log.requests_with_details("")]
    assert found[:2] == ["req_000091", "req_000090"]
    assert found[2:] == [f"req_{number:06}" for number in range(39, 19, -2)]


# --- cursors


def test_a_reader_that_continues_gets_what_is_new_and_the_number_of_what_it_missed() -> None:
    recent_entries, log = new_log()
    add(recent_entries, record(0), 0.0)
    first = page(log)
    for number in range(1, 4):
        add(recent_entries, record(number), number)
    second = page(log, LogQuery(first.cursor))
    assert (ids(second), second.missed) == (["req_000001", "req_000002", "req_000003"], 0)
    for number in range(4, access_log.MAX_REQUESTS + 14):
        add(recent_entries, record(number), number)
    third = page(log, LogQuery(second.cursor))
    assert (len(third.lines), third.missed) == (access_log.MAX_REQUESTS, 10)
    assert page(log, LogQuery(third.cursor)).lines == ()


def test_a_cursor_of_another_instance_begins_at_the_first_entry() -> None:
    recent_entries, log = new_log()
    add(recent_entries, record(0), 0.0)
    for cursor in ("other:77", "", "nonsense", ":", "a:b,c", f"{log.instance}:x"):
        assert ids(page(log, LogQuery(cursor))) == ["req_000000"]
    assert page(log, LogQuery("other:77")).missed == 0


def test_only_the_last_entries_are_given_without_a_cursor() -> None:
    recent_entries, log = new_log()
    for number in range(9):
        add(recent_entries, record(number), number)
    assert ids(page(log, LogQuery(last=2))) == ["req_000007", "req_000008"]
    assert (page(log, LogQuery(last=0)).lines, page(log, LogQuery(last=0)).cursor) == ((), f"{log.instance}:9")


def test_cursors_of_several_processes_are_one() -> None:
    assert parse_cursor(join_cursors("a:1,b:2", ["b:5", "c:1"])) == {"a": "1", "b": "5", "c": "1"}


@given(st.lists(st.tuples(st.sampled_from(["request", "refused", "event"]), st.floats(0, 100)), max_size=60), st.data())
def test_reading_in_parts_gives_each_entry_once_in_order(
    given_entries: list[tuple[str, float]], data: st.DataObject
) -> None:
    """A law: however a reader cuts the log, by calls or by time, it gets every entry that is kept exactly once."""
    recent_entries, log = new_log()
    seen, cursor = list[str](), f"{log.instance}:0"
    ordered = sorted(given_entries, key=lambda each: each[1])
    for number, (kind, at) in enumerate(ordered):
        if kind == "event":
            recent_entries.add_event(at, jsonio.encode({"ts": "", "level": "info", "event": f"req_{number:06}"}))
        else:
            refused = kind == "refused"
            add(recent_entries, record(number, "refused" if refused else "ok", upstream="" if refused else "one"), at)
        if data.draw(st.booleans()):
            until = data.draw(st.one_of(st.none(), st.floats(0, 100)))
            found = page(log, LogQuery(cursor, until=until))
            assert found.missed == 0
            seen, cursor = [*seen, *ids(found)], found.cursor
    seen += ids(page(log, LogQuery(cursor)))
    assert seen == [f"req_{number:06}" for number in range(len(ordered))]
