"""The files of a SQLite store: their folder, the lock that every write holds, connections, and what errors mean.

Every write transaction of every process holds one lock, an `flock` on a file beside the databases. SQLite would exclude
writers as well, but SQLite 3.7.0 to 3.51.2 may damage a file in WAL mode if one connection writes while another one
resets the log in a checkpoint. Checkpoints run in COMMIT and when a connection is closed, so both happen under the
lock. Readers need no lock: in WAL mode they see the last commit, and neither wait nor make writers wait.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.store.interface import StoreUnavailable, StoreUnusable
from dragoman.upstream.private_files import make_private_folder, sync_folder

KEYS, LEDGER, LOCK = "keys.db", "ledger.db", "store.lock"
LOCK_SECONDS = 5.0
_READ_SECONDS = 0.25  # A reader may run in the event loop, so it does not wait for long.
_LONGEST_POLL = 0.005
_LOG_BYTES = 16 << 20  # what is kept of a write-ahead log after a checkpoint
_PRIVATE = 0o600
_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

# File systems of other machines: processes there do not share memory, which the WAL mode of SQLite needs.
_NETWORK_TYPES = frozenset(
    (
        "9p", "afs", "auristorfs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "pvfs2", "rclone", "s3fs", "smb", "smb2", "smb3", "smbfs", "sshfs",
    )
)  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")


class StoreFolder:
    """The folder of a store, and its lock. Several threads may use it."""

    def __init__(self, path: Path, lock_seconds: float = LOCK_SECONDS) -> None:
        self.path = path
        self._lock_seconds = lock_seconds
        self._handle = -1  # of the lock file
        self._thread_lock = threading.Lock()  # `flock` excludes other processes, not threads with the same handle

    def prepare(self) -> None:
        """Create the folder and its files, private. Raises StoreUnusable, StoreUnavailable."""
        try:
            make_private_folder(self.path)
            check_file_system(self.path)
            self._open_lock()
            for name in (KEYS, LEDGER):
                _create_private(self.path / name)
        except OSError as error:
            raise _os_error(self.path, error) from None

    @property
    def is_open(self) -> bool:
        """Whether the lock file is open."""
        return self._handle >= 0

    def open_existing(self) -> None:
        """Open the lock of a store that exists. Raises StoreUnusable, StoreUnavailable."""
        missing = [name for name in (KEYS, LEDGER) if not (self.path / name).is_file()]
        if missing:
            raise StoreUnusable(
                f"{self.path} has no store: {' and '.join(missing)} not found. "
                "`dragoman store migrate --folder FOLDER` creates one."
            )
        try:
            check_file_system(self.path)
            self._open_lock()
        except OSError as error:
            raise _os_error(self.path, error) from None

    def _open_lock(self) -> None:
        if not self.is_open:
            self._handle = os.open(self.path / LOCK, _OPEN_FLAGS, _PRIVATE)

    def close(self) -> None:
        """Close the lock file."""
        if self.is_open:
            os.close(self._handle)
            self._handle = -1

    def connect(self, name: str, *, durable: bool = False, writes: bool = True, cache_kib: int = 512) -> Connection:
        """Open a database. `durable`: a commit reaches the disk before it returns. Raises StoreUnavailable."""
        path = self.path / name
        seconds = self._lock_seconds if writes else min(self._lock_seconds, _READ_SECONDS)
        with translated_errors(path):
            found = sqlite3.connect(path, timeout=seconds, isolation_level=None, check_same_thread=False)
            try:
                _configure(found, path, durable=durable, writes=writes, cache_kib=cache_kib)
            except BaseException:
                found.close()
                raise
        return found

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the store. Raises StoreUnavailable if another process does not release it."""
        if not self._thread_lock.acquire(timeout=self._lock_seconds):
            raise self._still_locked()
        try:
            self._wait_for_lock()
            try:
                yield
            finally:
                unlock(self._handle)
        finally:
            self._thread_lock.release()

    def _wait_for_lock(self) -> None:
        if try_lock(self._handle):
            return
        deadline, wait = time.monotonic() + self._lock_seconds, 0.0002
        while not try_lock(self._handle):
            if time.monotonic() > deadline:
                raise self._still_locked()
            time.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_POLL)

    def _still_locked(self) -> StoreUnavailable:
        return StoreUnavailable(
            f"another process has locked {self.path / LOCK} for {self._lock_seconds:g} seconds, so nothing was "
            "written. Find it with `fuser`, and end it if it hangs."
        )

    @contextmanager
    def write(self, connection: Connection, name: str) -> Iterator[None]:
        """Run a write transaction under the lock: all of it is done, or nothing. Raises StoreUnavailable."""
        with self.lock(), translated_errors(self.path / name):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # Some errors have ended the transaction already.
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                raise

    @contextmanager
    def read(self, name: str) -> Iterator[None]:
        """Translate errors of reads. Raises StoreUnavailable."""
        with translated_errors(self.path / name):
            yield


Connection = sqlite3.Connection


def _configure(connection: Connection, path: Path, *, durable: bool, writes: bool, cache_kib: int) -> None:
    if writes:
        [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnusable(
                f"{path} cannot use SQLite's write-ahead log (its mode stays {mode!r}): the file system lacks shared "
                "memory. Put the store on a local disk."
            )
    connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
    connection.execute("PRAGMA trusted_schema = OFF")
    if not writes:
        connection.execute("PRAGMA query_only = ON")


def _create_private(path: Path) -> None:
    """Create an empty file that only its owner can read; make an existing one private.

    An existing file is not opened: to close it again would release the locks of all connections of this process.
    """
    try:
        os.close(os.open(path, _OPEN_FLAGS | os.O_EXCL, _PRIVATE))
        sync_folder(path.parent)
    except FileExistsError:
        if os.name == "posix":
            mode = path.stat().st_mode & _PRIVATE
            # SQLite makes its log read-only if the file is, and the log then stays read-only.
            for each in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
                with suppress(FileNotFoundError):
                    if each.stat().st_mode & 0o777 != mode:
                        each.chmod(mode)


# --- the lock


if sys.platform == "win32":
    import msvcrt

    def try_lock(handle: int) -> bool:
        """Lock the file if no other process has; return whether it did."""
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def unlock(handle: int) -> None:
        """Release the lock."""
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def try_lock(handle: int) -> bool:
        """Lock the file if no other process has; return whether it did."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(handle: int) -> None:
        """Release the lock."""
        fcntl.flock(handle, fcntl.LOCK_UN)


# --- file systems


def check_file_system(folder: Path, mounts: str = "/proc/self/mountinfo") -> None:
    """Refuse a folder on a file system of the network. Systems without such a table of mounts are not checked.

    Raises StoreUnusable.
    """
    try:
        table = Path(mounts).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = file_system_of(folder.resolve(), table)
    if kind.removeprefix("fuse.") in _NETWORK_TYPES:
        raise StoreUnusable(
            f"{folder} is on a network file system ({kind}), where several processes cannot safely share a SQLite "
            "file: it may be damaged. Put the store on a local disk."
        )


def file_system_of(path: Path, mountinfo: str) -> str:
    """Return the type of the file system of a path, from the text of /proc/self/mountinfo; empty if unknown."""
    longest, kind = -1, ""
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split(" ")
        if not dash or len(fields) < 5:
            continue
        point = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4]))
        if path.is_relative_to(point) and len(point.parts) >= longest:  # a later mount covers an earlier one
            longest, kind = len(point.parts), right.split(" ")[0]
    return kind


# --- errors


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite that the machine causes into sentences about the file; others are bugs and stay."""
    try:
        yield
    except sqlite3.Error as error:
        code = str(vars(error).get("sqlite_errorname", ""))  # an error of the Python module has none
        why = str(error)
        if why.startswith("no such table"):  # the file was replaced
            code = "SQLITE_CORRUPT"
        for prefix, make in _MEANINGS.items():
            if code.startswith(prefix):
                raise make(path, why) from error
        raise


def _os_error(path: Path, error: OSError) -> StoreUnavailable:
    where = error.filename or path
    return StoreUnavailable(
        f"the store cannot be opened: {where}: {(error.strerror or str(error)).lower()}. "
        "Make sure that this user owns the folder and can write to it."
    )


def _full(path: Path, _: str) -> StoreUnavailable:
    return StoreUnavailable(f"{path} could not be written: the disk is full. Nothing was changed; free some space.")


def _read_only(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} cannot be written: {why}. Nothing was changed. Make sure that this user may write to the file and its "
        "folder, and that the file system is not mounted read-only."
    )


def _busy(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} is in use by another program ({why}), and nothing was changed. Close programs that have the file open."
    )


def _failed(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{path} could not be read or written: {why}. Nothing was changed. Look for a full or failing disk, or a limit "
        "on the size of files."
    )


def _damaged(path: Path, why: str) -> StoreUnusable:
    return StoreUnusable(
        f"{path} is damaged: {why}. Stop the gateway, keep a copy, and put back a backup; "
        "`dragoman store check` shows the damage."
    )


_MEANINGS: dict[str, Callable[[Path, str], StoreUnavailable]] = {
    "SQLITE_FULL": _full,
    "SQLITE_READONLY": _read_only,
    "SQLITE_PERM": _read_only,
    "SQLITE_CANTOPEN": _read_only,
    "SQLITE_AUTH": _read_only,
    "SQLITE_BUSY": _busy,
    "SQLITE_LOCKED": _busy,
    "SQLITE_PROTOCOL": _busy,
    "SQLITE_CORRUPT": _damaged,
    "SQLITE_NOTADB": _damaged,
    "SQLITE_IOERR": _failed,
    "SQLITE_NOMEM": _failed,
}
