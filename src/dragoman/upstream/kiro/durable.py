"""Files that hold secrets: replaced whole or not at all, readable by their owner only, one writer at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from dragoman.upstream.credentials import CredentialFault

PATIENCE = 30.0  # seconds to wait for another process; it holds the lock for one refresh, which takes 15 at most
_GLANCE = 0.05
_LEFTOVER = ".dragoman-tmp"


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` in the file's place, 0600. A kill at any moment leaves the old content or the new. Raises OSError."""
    path = path.resolve()  # a link stays a link
    temporary = _temporary(path)
    try:
        with temporary.open("r+b") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def check_replaceable(path: Path) -> None:
    """Do all of `replace_file` that can fail because of permissions. Raises OSError."""
    path = path.resolve()
    for leftover in path.parent.glob(f".{path.name}.*{_LEFTOVER}"):  # of a process that was killed while it wrote
        leftover.unlink(missing_ok=True)
    _temporary(path).unlink()


def make_private_folder(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def _temporary(path: Path) -> Path:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_LEFTOVER)  # 0600
    os.close(handle)
    return Path(name)


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where a folder can be opened at all."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def unwritable(path: Path, error: OSError | str) -> CredentialFault:
    why = error if isinstance(error, str) else error.strerror or str(error)
    return CredentialFault(
        f"cannot write {path} ({why}), so its token is not refreshed: the new one would be lost."
        " Make it writable, or run `dragoman auth login kiro` for a login of Dragoman's own."
    )


def lock_beside(path: Path) -> Path:
    """The lock's place: beside what it guards, so that all who share the file share the lock."""
    path = path.resolve()
    return path.with_name(f".{path.name}.dragoman-lock")


@contextlib.asynccontextmanager
async def locked(lock: Path | None, patience: float = PATIENCE) -> AsyncIterator[None]:
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
        raise unwritable(lock, error) from None
    try:
        waited = 0.0
        while not _taken(handle):
            if waited >= patience:
                raise CredentialFault(f"another process has held {lock} for {patience:.0f} s.", lasting=False)
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
