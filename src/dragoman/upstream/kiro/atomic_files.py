"""Replace files with secrets atomically, readable by their owner only, with one writer at a time.

Theory of operation. A replacement is first written next to its file, under a name with the digests of the old and the
new content. A process that is killed then leaves the only copy of a new token there. The next process that gets the
lock sees from the name that the replacement is complete and that the old content has not changed, and renames it.
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

_LOCK_TIMEOUT = 30.0  # seconds to wait for another process; it holds the lock for one refresh, at most 15 seconds
_POLL_INTERVAL = 0.05
_SUFFIX = ".dragoman-tmp"
_GROWTH = 16 * 1024  # bytes by which a file may grow


def replace_file(path: Path, data: bytes) -> None:
    """Replace the content of a file, mode 0600. A kill leaves the old or the new content. Raises OSError."""
    path = path.resolve()  # A symbolic link stays a link.
    pending = write_pending(path, _content(path), data)
    try:
        pending.replace(path)
    except BaseException:
        pending.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def check_replaceable(path: Path) -> None:
    """Finish a pending replacement, and check that there is permission and space for another. Raises OSError."""
    path = path.resolve()
    for pending in find_pending(path):
        if pending.replaces(_content(path)):
            pending.path.replace(path)
            sync_folder(path.parent)
        pending.path.unlink(missing_ok=True)
    write_temporary(path, _SUFFIX, bytes(len(_content(path)) + _GROWTH)).unlink()


class PendingReplacement(Struct, frozen=True):
    """A replacement that was written completely but not renamed."""

    path: Path
    old: str  # the digest of the content that it replaces
    data: bytes

    def replaces(self, content: bytes) -> bool:
        """Return whether it replaces this content."""
        return self.old == _digest(content)


def write_pending(path: Path, old: bytes, new: bytes) -> Path:
    """Write a replacement of `old` by `new` next to `path`, and return its path. Raises OSError."""
    return write_temporary(path.resolve(), _SUFFIX, new, f"{_digest(old)}-{_digest(new)}.")


def find_pending(path: Path) -> list[PendingReplacement]:
    """Return the replacements that killed processes left next to `path`; remove incomplete ones. Raises OSError."""
    path = path.resolve()
    pending = []
    for each in path.parent.glob(f".{path.name}.*{_SUFFIX}"):
        old, _, new = each.name.removeprefix(f".{path.name}.").partition(".")[0].partition("-")
        data = _content(each)
        if new == _digest(data):
            pending.append(PendingReplacement(each, old, data))
        else:
            each.unlink(missing_ok=True)
    return pending


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def write_error(path: Path, error: OSError | str) -> CredentialFault:
    """Return the fault for a token file that cannot be written."""
    why = error if isinstance(error, str) else error.strerror or str(error)
    return CredentialFault(
        f"cannot write {path} ({why}), so its token is not refreshed: the new one would be lost."
        " Make it writable, or run `dragoman auth login kiro` for a login of Dragoman's own."
    )


def lock_path(path: Path) -> Path:
    """Return the path of the lock file: next to the file, so that all processes that share the file share the lock."""
    path = path.resolve()
    return path.with_name(f".{path.name}.dragoman-lock")


class LockTimeout(CredentialFault):
    """Another process does not release the lock."""


@contextlib.asynccontextmanager
async def file_lock(lock: Path | None) -> AsyncIterator[None]:
    """Hold the lock, across processes; the kernel releases it when its holder dies. None: no lock is needed.

    Raises CredentialFault if the lock file cannot be opened, and LockTimeout if another process does not release it.
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
        while not _try_lock(handle):
            if waited >= _LOCK_TIMEOUT:
                raise LockTimeout(f"another process has held {lock} for {_LOCK_TIMEOUT:.0f} s.", is_permanent=False)
            await asyncio.sleep(_POLL_INTERVAL)
            waited += _POLL_INTERVAL
        yield
    finally:
        os.close(handle)


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
