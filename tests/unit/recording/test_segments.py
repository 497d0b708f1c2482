"""The files of recordings: private, append-only, bounded by bytes and hours, and readable while they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from dragoman.gateway.access_log import logged_request
from dragoman.gateway.recording.segments import (
    LAYOUT,
    Entry,
    RecordedRequest,
    SegmentWriter,
    SentRequest,
    encode_batch,
    read_parts,
    scan,
    segments,
)
from dragoman.gateway.records import Record
from dragoman.wire import jsonio

MEBIBYTE = 1024 * 1024


class Clock:
    now = 1_795_000_000.0

    def __call__(self) -> float:
        return self.now


def batch(*identities: str, body: bytes = b"a body") -> bytes:
    """Return a batch of requests, each with one part."""
    requests = [
        RecordedRequest(
            logged_request(Record(identity, "POST", "/"), "2026-11-19T10:00:00.000Z"),
            "full",
            1_795_000_000_000,
            SentRequest("POST", "/", (), len(body)),
            parts=(("client_body", len(body)),),
        )
        for identity in identities
    ]
    return encode_batch(jsonio.encode(requests), (body + b"\n") * len(requests))


def new_writer(
    folder: Path, clock: Clock, most: int = 64 * MEBIBYTE, hours: float = 24, processes: int = 1
) -> SegmentWriter:
    writer = SegmentWriter(folder, "a" * 12, clock)
    writer.configure(most, hours, processes)
    return writer


@pytest.fixture
def create() -> Iterator[Callable[..., SegmentWriter]]:
    """Give a function that creates writers; all are closed at the end."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(closing(new_writer(*args, **kwargs)))


def entries(folder: Path) -> list[Entry]:
    return [entry for path in segments(folder) for found, _ in scan(path) for entry in found]


def ids(folder: Path) -> list[str]:
    return [entry.recorded.line.request_id for entry in entries(folder)]


def test_what_is_written_is_read_back(tmp_path: Path, create: Callable[..., SegmentWriter]) -> None:
    writer = create(tmp_path / "recordings", Clock())
    writer.write(batch("req_1", "req_2"))
    writer.write(batch("req_3", body=b"another\nbody"))
    found = entries(tmp_path / "recordings")
    assert [entry.recorded.line.request_id for entry in found] == ["req_1", "req_2", "req_3"]
    assert [read_parts(entry)["client_body"] for entry in found] == [b"a body", b"a body", b"another\nbody"]
    assert read_parts(found[0], {"nothing"}) == {}
    [path] = segments(tmp_path / "recordings")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


def test_a_reader_continues_where_it_was(tmp_path: Path, create: Callable[..., SegmentWriter]) -> None:
    writer = create(tmp_path, Clock())
    writer.write(batch("req_1"))
    [path] = segments(tmp_path)
    [(_, offset)] = scan(path)
    writer.write(batch("req_2"))
    [(found, _)] = scan(path, offset)
    assert [entry.recorded.line.request_id for entry in found] == ["req_2"]


def test_the_rest_of_a_killed_process_is_left_out(tmp_path: Path, create: Callable[..., SegmentWriter]) -> None:
    writer = create(tmp_path, Clock())
    writer.write(batch("req_1"))
    writer.close()
    [path] = segments(tmp_path)
    whole, more = path.read_bytes(), batch("req_2")
    for size in (1, LAYOUT.size - 1, LAYOUT.size, LAYOUT.size + 10, len(more) - 1):
        path.write_bytes(whole + more[:size])
        assert ids(tmp_path) == ["req_1"], size
    for damaged in (b"x" + more[1:], more[: LAYOUT.size] + b"!" + more[LAYOUT.size + 1 :]):
        path.write_bytes(whole + damaged)
        assert ids(tmp_path) == ["req_1"]


def test_the_bound_of_bytes_holds_and_the_oldest_go_first(tmp_path: Path, create: Callable[..., SegmentWriter]) -> None:
    clock, most = Clock(), 1 * MEBIBYTE
    writer = create(tmp_path, clock, most)
    for number in range(200):
        clock.now += 0.01
        writer.write(batch(f"req_{number:03}", body=b"x" * 20_000))
        assert sum(path.stat().st_size for path in segments(tmp_path)) <= most
    kept = ids(tmp_path)
    assert kept == [f"req_{number:03}" for number in range(200 - len(kept), 200)] and len(kept) > 35


def test_the_bound_of_hours_holds(tmp_path: Path, create: Callable[..., SegmentWriter]) -> None:
    clock = Clock()
    writer = create(tmp_path, clock, hours=1)
    began = {}
    for number in range(300):
        clock.now += 60
        writer.write(batch(name := f"req_{number:03}"))
        began[name] = clock.now
        assert all(clock.now - began[each] <= 3600 for each in ids(tmp_path))
        assert number < 60 or len(ids(tmp_path)) > 55
    clock.now += 3700
    writer.trim()
    assert ids(tmp_path) == [] and not writer.has_any()


def test_a_segment_that_a_person_deletes_is_begun_again(tmp_path: Path, create: Callable[..., SegmentWriter]) -> None:
    writer = create(tmp_path, Clock())
    writer.write(batch("req_1"))
    segments(tmp_path)[0].unlink()
    writer.write(batch("req_2"))
    assert ids(tmp_path) == ["req_2"]


@contextmanager
def other_writer(folder: Path) -> Iterator[None]:
    """Let another process write a segment, and keep it open."""
    code = """
import sys
from pathlib import Path
from tests.unit.recording.test_segments import Clock, batch, new_writer
clock = Clock()
clock.now -= 1000
writer = new_writer(Path(sys.argv[1]), clock)
writer.write(batch("req_other"))
print("written", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(folder)]
    root = Path(__file__).parents[3]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "written\n"
        yield
        process.communicate()


def test_a_segment_that_another_process_writes_is_not_deleted(
    tmp_path: Path, create: Callable[..., SegmentWriter]
) -> None:
    writer = create(tmp_path, Clock(), MEBIBYTE)
    with other_writer(tmp_path):
        for number in range(100):
            writer.write(batch(f"req_{number}", body=b"x" * 20_000))
        assert ids(tmp_path)[0] == "req_other"
        writer.purge()
        assert ids(tmp_path) == ["req_other"]
    writer.purge()
    assert ids(tmp_path) == []
