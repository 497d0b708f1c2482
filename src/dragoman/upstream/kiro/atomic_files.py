"""Files that hold secrets: replaced whole or not at all, readable by their owner only, one writer at a time.

A replacement is first written beside its file, under a name that tells what it replaces and what it is. A process that
is killed after that leaves the only copy of a new token there: whoever holds the lock next sees from the name that it
is whole and that what it replaces has not changed since, and takes the last step.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from msgspec import Struct

from dragoman.upstream.credentials import CredentialFault
from dragoman.upstream.private_files import sync_folder, write_temporary

_PATIENCE = 30.0  # seconds to wait for another process; it holds the lock for one refresh, which takes 15 at most
_GLANCE = 0.05
_LEFTOVER = ".dragoman-tmp"
_ROOM = 16 * 1024  # bytes that a file may grow by


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` in the file's place, 0600. A kill at any moment leaves the old content or the new. Raises OSError."""
    path = path.resolve()  # a link stays a link
    ahead = write_pending(path, _content(path), data)
    try:
        ahead.replace(path)
    except BaseException:
        ahead.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def check_replaceable(path: Path) -> None:
    """Finish what was left, and do all of `replace_file` that can fail for want of leave or room. Raises OSError."""
    path = path.resolve()
    for left in find_pending(path):
        if left.replaces(_content(path)):
            left.path.replace(path)
            sync_folder(path.parent)
        left.path.unlink(missing_ok=True)
    write_temporary(path, _LEFTOVER, bytes(len(_content(path)) + _ROOM)).unlink()


class PendingReplacement(Struct, frozen=True):
    """A replacement that was written whole, and not put in its place."""

    path: Path
    old: str  # the digest of what it replaces
    data: bytes

    def replaces(self, content: bytes) -> bool:
        return self.old == _digest(content)


def write_pending(path: Path, old: bytes, new: bytes) -> Path:
    """Write down beside `path` that something in it is about to be replaced. Raises OSError."""
    return write_temporary(path.resolve(), _LEFTOVER, new, f"{_digest(old)}-{_digest(new)}.")


def find_pending(path: Path) -> list[PendingReplacement]:
    """What killed processes wrote down beside `path`; what they did not finish to write is removed. Raises OSError."""
    path = path.resolve()
    found = []
    for each in path.parent.glob(f".{path.name}.*{_LEFTOVER}"):
        old, _, new = each.name.removeprefix(f".{path.name}.").partition(".")[0].partition("-")
        data = _content(each)
        if new == _digest(data):
            found.append(PendingReplacement(each, old, data))
        else:
            each.unlink(missing_ok=True)
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def write_error(path: Path, error: OSError | str) -> CredentialFault:
    why = error if isinstance(error, str) else error.strerror or str(error)
    return CredentialFault(
        f"cannot write {path} ({why}), so its token is not refreshed: the new one would be lost."
        " Make it writable, or run `dragoman auth login kiro` for a login of Dragoman's own."
    )


def lock_path(path: Path) -> Path:
    """The lock's place: beside what it guards, so that all who share the file share the lock."""
    path = path.resolve()
    return path.with_name(f".{path.name}.dragoman-lock")


class LockTimeout(CredentialFault):
    """Another process does not let go of the lock."""


@contextlib.asynccontextmanager
async def file_lock(lock: Path | None) -> AsyncIterator[None]:
    """Hold the lock, across processes; the kernel lets go of it when its holder dies. None: there is nothing to guard.

    Raises CredentialFault: the lock file cannot be opened, or another process does not let go.
    """
    if lock is None:
        yield
        return
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(lock, flags, 0o600)
    except OSError as error:
        raise write_error(lock, error) from None
    try:
        waited = 0.0
        while not _taken(handle):
            if waited >= _PATIENCE:
                raise LockTimeout(f"another process has held {lock} for {_PATIENCE:.0f} s.", is_permanent=False)
            await asyncio.sleep(_GLANCE)
            waited += _GLANCE
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _taken(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _taken(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
