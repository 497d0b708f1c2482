"""The files of recordings: append-only segments in a private folder, and their bounds. Does I/O.

A segment is a file `TIME-PROCESS.rec`, written by one process. It consists of batches:

    magic, length of the list, length of the parts | list of `RecordedRequest` (JSON) | part | part | …

Each part ends with a newline. The list has everything about a request except its bodies and frames, so that a list of
requests can be shown without reading the parts. The last batch of a process that was killed may be incomplete; readers
leave it out.

The process that writes a segment holds a lock on it. The oldest segments without a lock are deleted when all of them
together would exceed the bound of bytes, or when their oldest entry has reached the bound of hours.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from msgspec import Struct

from dragoman.gateway.records import FailedAttempt, LoggedRequest
from dragoman.gateway.secrets import make_private_folder
from dragoman.model.filter import Note
from dragoman.wire import jsonio
from dragoman.wire.http import Headers

SUFFIX = ".rec"
MAGIC = b"\nDRG1"
LAYOUT = struct.Struct(">5sIQ")  # magic, bytes of the list, bytes of the parts
_PARTS = 8  # segments of one process within the bound of bytes
_SPANS = 24  # segments of one process within the bound of hours
_MIN_SECONDS = 1.0  # that a segment is written to
_TRIM_SECONDS = 5.0  # between two looks at all segments
Parts: TypeAlias = tuple[tuple[str, int], ...]


class SentRequest(Struct, frozen=True):
    """The head of a request, masked. The URL is that of an upstream, or a path."""

    method: str
    url: str
    headers: Headers
    body_bytes: int


class ReceivedResponse(Struct, frozen=True):
    """The head of a response, masked."""

    status: int
    headers: Headers


class RecordedTarget(Struct, frozen=True):
    """Where an attempt went."""

    upstream: str
    dialect: str
    credential: str
    model: str
    request: SentRequest | None = None  # None: nothing was sent


class RecordedAttempt(Struct, frozen=True):
    """One attempt. Times are microseconds since the request began."""

    target: RecordedTarget
    at: int  # when it was sent, or failed without being sent
    answered: int = 0
    response: ReceivedResponse | None = None
    failed: int = 0
    failure: int = -1  # its index in `failures`


class RecordedRequest(Struct, frozen=True):
    """The recording of a request, without its bytes."""

    line: LoggedRequest  # as the log has it
    level: str
    began: int  # milliseconds of the epoch
    request: SentRequest
    session: str | None = None
    attempts: tuple[RecordedAttempt, ...] = ()
    response: ReceivedResponse | None = None  # to the client, if it is whole
    released: int = 0  # microseconds since the request began
    changes: tuple[Note, ...] = ()
    failures: tuple[FailedAttempt, ...] = ()
    truncated: tuple[str, ...] = ()
    parts: Parts = ()


class Entry(Struct, frozen=True, gc=False):
    """A recorded request that was found, and where its parts are."""

    recorded: RecordedRequest
    path: Path
    offset: int  # of the first part


read_batch: Callable[[bytes | str], list[RecordedRequest]] = jsonio.typed_decoder(list[RecordedRequest])


# --- reading


def scan(path: Path, offset: int = 0) -> Iterator[tuple[list[Entry], int]]:
    """Yield the requests of each batch of a segment from an offset on, with the offset of the next. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while offset + LAYOUT.size <= size:
            file.seek(offset)
            magic, list_size, parts_size = LAYOUT.unpack(file.read(LAYOUT.size))
            at = offset + LAYOUT.size + list_size
            offset = at + parts_size
            if magic != MAGIC or offset > size:
                return  # The rest is being written, or the process that wrote it was killed.
            try:
                requests = read_batch(file.read(list_size))
            except jsonio.JsonError:
                return
            found: list[Entry] = []
            for recorded in requests:
                found.append(Entry(recorded, path, at))
                at += sum(length for _, length in recorded.parts) + len(recorded.parts)
            yield found, offset


def read_parts(entry: Entry, names: Collection[str] = ()) -> dict[str, bytes]:
    """Return all parts of an entry, or those of these names. Raises OSError, also if the segment is too short."""
    found: dict[str, bytes] = {}
    with entry.path.open("rb") as file:
        at = entry.offset
        for name, size in entry.recorded.parts:
            if not names or name in names:
                file.seek(at)
                data = file.read(size)
                if len(data) != size:
                    raise OSError(f"{entry.path} ends within a recording")
                found[name] = data
            at += size + 1
    return found


def segments(folder: Path) -> list[Path]:
    """Return the segments of a folder, the oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.is_symlink())


# --- writing


def encode_batch(requests: bytes, parts: bytes) -> bytes:
    """Return a batch of its list, as JSON, and its parts, each with a line end."""
    return b"%b%b%b" % (LAYOUT.pack(MAGIC, len(requests), len(parts)), requests, parts)


class SegmentWriter:
    """Writes the segments of one process, and deletes old ones of all processes. Not thread-safe."""

    def __init__(self, folder: Path, name: str, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._name, self._clock = folder, name, clock
        self._file: BinaryIO | None = None
        self._path = folder  # of the open segment
        self._size, self._opened_at = 0, 0.0
        self._most, self._seconds, self._segment_bytes, self._processes = 0, 0.0, 0, 1
        self._number = 0
        self._free_bytes, self._trimmed_at = 0, 0.0  # bytes that may be written before segments are looked at again

    def configure(self, most: int, hours: float, processes: int) -> None:
        """Use these bounds: `most` bytes of all segments together, and hours. `processes` share the folder."""
        self._most, self._seconds = most, hours * 3600
        self._processes = max(processes, 1)
        self._segment_bytes = most // _PARTS // self._processes
        self._free_bytes = 0

    @property
    def max_entry(self) -> int:
        """The largest entry that is written, in bytes."""
        return self._most // 4

    def write(self, data: bytes) -> None:
        """Append entries. Raises OSError, ConfigError."""
        now = self._clock()
        is_full = self._size + len(data) > self._segment_bytes and self._size > 0
        if self._file is not None and (is_full or not self._is_there()):
            self.close()
        if len(data) > self._free_bytes or now - self._trimmed_at >= _TRIM_SECONDS:
            self.trim(len(data))
        file = self._file or self._open(now)
        file.write(data)
        self._size += len(data)
        self._free_bytes -= len(data)

    def trim(self, need: int = 0) -> None:
        """Delete segments that are too old, and the oldest ones until `need` more bytes fit."""
        if self._file is not None and self._is_old():
            self.close()
        found: list[tuple[Path, int, float]] = []
        for path in segments(self._folder):
            with suppress(OSError, ValueError):  # deleted by another process
                found.append((path, path.stat().st_size, _time_of(path)))
        total, now = sum(size for _, size, _ in found), self._clock()
        for path, size, began in found:
            # The oldest entry of a segment is hardly younger than the segment.
            if (total + need > self._most or now - began >= self._seconds) and self._delete(path):
                total -= size
        self._free_bytes, self._trimmed_at = max(self._most - total, 0) // self._processes, now

    def has_any(self) -> bool:
        """Return whether there are segments."""
        return next(self._folder.glob(f"*{SUFFIX}"), None) is not None

    def purge(self) -> None:
        """Delete all segments that no other process writes to."""
        self.close()
        for path in segments(self._folder):
            delete_segment(path)

    def close(self) -> None:
        """Close the segment; the next entry begins another one."""
        file, self._file = self._file, None
        self._size = 0
        if file is not None:
            with suppress(OSError):
                file.close()

    def _open(self, now: float) -> BinaryIO:
        make_private_folder(self._folder)
        self._number += 1
        path = self._folder / f"{int(now * 1000):012x}-{self._name}{self._number:04x}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        self._file = file = os.fdopen(os.open(path, flags, 0o600), "wb", buffering=0)
        _lock(file, shared=False)
        self._path, self._opened_at, self._size = path, now, 0
        return file

    def _is_old(self) -> bool:
        return self._clock() - self._opened_at >= max(self._seconds / _SPANS, _MIN_SECONDS)

    def _is_there(self) -> bool:
        """Return whether the segment still has a name; a person may have deleted it."""
        return self._file is not None and os.fstat(self._file.fileno()).st_nlink > 0

    def _delete(self, path: Path) -> bool:
        """Delete a segment, unless a process writes to it; return whether it was deleted."""
        return (self._file is None or path != self._path) and delete_segment(path)


def delete_segment(path: Path) -> bool:
    """Delete a segment, unless a process writes to it; return whether it no longer exists."""
    try:
        with path.open("rb") as file:
            if not _lock(file, shared=True):
                return False
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _time_of(path: Path) -> float:
    return int(path.name.partition("-")[0], 16) / 1000


def _lock(file: BinaryIO, *, shared: bool) -> bool:
    """Lock a file without waiting; return whether it worked. Systems without `fcntl` have no locks: it did."""
    try:
        import fcntl  # noqa: PLC0415  not on Windows
    except ImportError:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
