"""The files of a SQLite store: private, locked, refused where they cannot be used, and unchanged by a failed write."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import pytest

from dragoman.store.interface import GrantRequest, Limit, Settlement, StoreUnavailable, StoreUnusable, UsageQuery
from dragoman.store.sqlite.core import SqliteCore
from dragoman.store.sqlite.files import KEYS, LEDGER, LOCK, StoreFolder, check_file_system, file_system_of
from dragoman.store.sqlite.schema import migrations_of
from tests.store.cluster import ManualClock, a_key, a_row

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="permissions, forks and limits of POSIX")


@pytest.fixture
def core(tmp_path: Path) -> Iterator[SqliteCore]:
    core = open_core(tmp_path / "store")
    yield core
    if core.folder.is_open:
        core.close()


def open_core(folder: Path, **more: Any) -> SqliteCore:
    core = SqliteCore(folder, clock=ManualClock(), lock_seconds=0.3, **more)
    core.open()
    return core


# --- where and how


def test_the_folder_and_all_files_are_private(core: SqliteCore) -> None:
    core.put_key(a_key())
    core.settle(Settlement([a_row()], {}))
    folder = core.folder.path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(files) == {KEYS, LEDGER, LOCK, *(f"{name}-{end}" for name in (KEYS, LEDGER) for end in ("wal", "shm"))}
    assert set(files.values()) == {0o600}


def test_files_that_others_could_read_become_private(tmp_path: Path) -> None:
    open_core(tmp_path).close()
    (tmp_path / KEYS).chmod(0o644)
    tmp_path.chmod(0o755)
    open_core(tmp_path).close()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, tmp_path / KEYS)] == [0o700, 0o600]


def test_keys_reach_the_disk_and_the_ledger_has_a_write_ahead_log(core: SqliteCore) -> None:
    assert core._keys is not None and core._ledger is not None
    modes = [
        db.execute(f"PRAGMA {name}").fetchone()[0]
        for db in (core._keys, core._ledger)
        for name in ("journal_mode", "synchronous")
    ]
    assert modes == ["wal", 2, "wal", 1]


MOUNTS = """22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /home/a\\040b rw - nfs4 server:/home rw
31 30 0:41 / /home/a\\040b/local rw - ext4 /dev/vdb rw
32 27 0:42 / /mnt/s rw - fuse.sshfs host: rw
33 27 0:42 / /mnt/s rw - xfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/x", "ext4"),
        ("/home/a b", "nfs4"),
        ("/home/a b/c", "nfs4"),
        ("/home/a b/local/c", "ext4"),
        ("/home/a bc", "ext4"),
        ("/mnt/s/t", "xfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, kind: str) -> None:
    assert file_system_of(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "fuse.sshfs", "fuse.glusterfs"])
def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"27 1 254:0 / / rw - {kind} server:/x rw\n")
    with pytest.raises(StoreUnusable, match=rf"{tmp_path} is on a network file system \({kind}\).*local disk"):
        check_file_system(tmp_path, str(mounts))


def test_local_file_systems_and_systems_without_a_table_of_mounts_are_accepted(tmp_path: Path) -> None:
    check_file_system(tmp_path, str(tmp_path / "none"))
    check_file_system(tmp_path)


def test_sqlite_is_not_imported_by_the_gateway() -> None:
    code = "import sys, dragoman.gateway.app, dragoman.store.interface; print([n for n in ('sqlite3', 'zoneinfo') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- the lock


def test_a_lock_that_is_held_for_too_long_is_an_error_and_nothing_is_written(core: SqliteCore) -> None:
    other = StoreFolder(core.folder.path)
    other.open_existing()
    with other.lock():
        with pytest.raises(StoreUnavailable, match=r"another process has locked .*store\.lock for 0\.3 seconds"):
            core.settle(Settlement([a_row()], {}))
        with pytest.raises(StoreUnavailable, match=r"store\.lock"):
            core.put_key(a_key())
        assert core.keys() == [] and core.changes() == 0  # readers need no lock
        assert core.usage(UsageQuery()) == []
    other.close()
    assert core.settle(Settlement([a_row()], {})).new_rows == 1


def test_threads_of_one_process_exclude_each_other(core: SqliteCore) -> None:
    entered = threading.Event()

    def hold() -> None:
        with core.folder.lock():
            entered.set()
            finish.wait()

    finish = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    try:
        entered.wait()
        with pytest.raises(StoreUnavailable, match=r"store\.lock"), core.folder.lock():
            pass
    finally:
        finish.set()
        thread.join()


def test_another_program_that_locks_a_file_is_named(core: SqliteCore) -> None:
    with sqlite3.connect(core.folder.path / LEDGER, isolation_level=None) as shell:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"ledger\.db is in use by another program"):
            core.settle(Settlement([a_row()], {}))
        shell.execute("ROLLBACK")
    shell.close()
    assert core.settle(Settlement([a_row()], {})).new_rows == 1


def test_every_write_transaction_and_every_close_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two checkpoints could meet (see `files`)."""
    core = open_core(tmp_path)
    held: list[bool] = []
    original = core.folder._wait_for_lock

    def wait() -> None:
        original()
        held.append(True)

    monkeypatch.setattr(core.folder, "_wait_for_lock", wait)
    statements: list[tuple[str, bool]] = []
    for connection in (core._keys, core._ledger):
        assert connection is not None
        connection.set_trace_callback(lambda text: statements.append((text, core.folder._thread_lock.locked())))
    core.put_key(a_key())
    core.put_limits("key:k1", [Limit("key:k1", "tokens", "day", 9)])
    core.grant([GrantRequest(("key:k1", "tokens", "day"), 1, 1)])
    core.settle(Settlement([a_row("a"), a_row("a")], {}))
    core.delete_before(0.0, 5)
    core.repair()
    writes = [
        (text, locked)
        for text, locked in statements
        if text.split()[0] in ("BEGIN", "COMMIT", "INSERT", "UPDATE", "DELETE")
    ]
    assert len(writes) > 20 and all(locked for _, locked in writes)
    count = len(held)
    core.close()
    assert len(held) == count + 2  # for the shares, and for the connections


# --- faults


def state(core: SqliteCore) -> object:
    return (
        core.requests("", 0.0, 99),
        core.usage(UsageQuery()),
        core.used(("key:k1", "tokens", "day")),
        core.keys(),
        core.limits([]),
    )


def prepare(core: SqliteCore) -> None:
    core.put_key(a_key())
    core.put_limits("key:k1", [Limit("key:k1", "tokens", "day", 10**6)])
    core.grant([GrantRequest(("key:k1", "tokens", "day"), 1000, 1000)])
    core.settle(Settlement([a_row("first")], {("key:k1", "tokens", "day"): 990}))


def fill(core: SqliteCore, *, full: bool) -> None:
    for connection in (core._keys, core._ledger):
        assert connection is not None
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages if full else 1 << 30}")


def test_a_full_database_changes_nothing_and_works_again_later(core: SqliteCore) -> None:
    """`max_page_count` makes SQLite report a full disk (SQLITE_FULL)."""
    prepare(core)
    fill(core, full=True)
    before = state(core)
    rows = [a_row(f"r{number}", session="x" * 1000) for number in range(500)]
    with pytest.raises(StoreUnavailable, match=r"ledger\.db could not be written: the disk is full.*free some space"):
        core.settle(Settlement(rows, {("key:k1", "tokens", "day"): 5}))
    with pytest.raises(StoreUnavailable, match=r"keys\.db could not be written: the disk is full"):
        core.put_key(a_key(2, name="x" * 100_000))
    assert state(core) == before
    fill(core, full=False)
    assert core.settle(Settlement(rows, {("key:k1", "tokens", "day"): 5})).new_rows == 500
    assert core.used(("key:k1", "tokens", "day")) == (5010, 5)
    assert core.check() == []


def in_child(work: Callable[[Pipe], None]) -> Any:
    """Run `work` in a forked process; return what it sends."""
    here, there = multiprocessing.Pipe()
    child = os.fork()
    if child == 0:
        try:
            work(there)
        except BaseException as error:  # noqa: BLE001  it must not return into pytest
            there.send(f"{type(error).__name__}: {error}")
        finally:
            os._exit(0)
    there.close()
    try:
        return here.recv()
    finally:
        here.close()
        os.waitpid(child, 0)


def test_a_disk_that_takes_no_more_bytes_changes_nothing(tmp_path: Path) -> None:
    """A limit on the size of files makes the system refuse writes in the middle of a transaction."""

    def work(pipe: Pipe) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        core = open_core(tmp_path)
        prepare(core)
        size = max(path.stat().st_size for path in tmp_path.iterdir())
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50_000, before[1]))
        check_failed_writes_of_ledger(core)
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        count = core.settle(Settlement([a_row(f"r{number}", session="x" * 1000) for number in range(500)], {})).new_rows
        pipe.send((count, core.check()))

    assert in_child(work) == (500, [])


def check_failed_writes_of_ledger(core: SqliteCore) -> None:
    before = state(core)
    rows = [a_row(f"r{number}", session="x" * 1000) for number in range(500)]
    with pytest.raises(StoreUnavailable, match=r"ledger\.db could not be (read or )?written.*Nothing was changed"):
        core.settle(Settlement(rows, {("key:k1", "tokens", "day"): 5}))
    assert state(core) == before


@pytest.fixture
def users_folder() -> Iterator[Path]:
    """A folder that another user can enter: pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name) / "store"


def as_user(work: Callable[[Pipe], None]) -> Any:
    """Run `work` in a process that may not write everywhere, as root may."""
    migrations_of(KEYS), migrations_of(LEDGER)

    def run(pipe: Pipe) -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work(pipe)

    return in_child(run)


def test_a_read_only_folder_is_an_error_with_a_remedy(users_folder: Path) -> None:
    def work(pipe: Pipe) -> None:
        users_folder.mkdir()
        users_folder.chmod(0o500)
        with pytest.raises(StoreUnavailable) as caught:
            open_core(users_folder / "store")
        pipe.send(str(caught.value))
        users_folder.chmod(0o700)

    message = as_user(work)
    assert "the store cannot be opened" in message and "permission denied" in message and "can write to it" in message


def test_read_only_files_are_an_error_and_nothing_is_written(users_folder: Path) -> None:
    def work(pipe: Pipe) -> None:
        core = open_core(users_folder)
        prepare(core)
        core.close()
        for name in (KEYS, LEDGER):
            (users_folder / name).chmod(0o400)
        with pytest.raises(StoreUnavailable) as caught:
            open_core(users_folder)
        for name in (KEYS, LEDGER):
            (users_folder / name).chmod(0o600)
        core = open_core(users_folder)
        pipe.send((str(caught.value), len(core.keys()), core.check()))

    message, keys, problems = as_user(work)
    assert "ledger.db cannot be written" in message and "may write to the file and its folder" in message
    assert (keys, problems) == (1, [])


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    open_core(tmp_path).close()
    (tmp_path / KEYS).write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreUnusable, match=r"keys\.db is damaged: file is not a database.*put back a backup"):
        open_core(tmp_path)
    assert (tmp_path / KEYS).read_bytes() == b"not a database" * 1000


def test_damage_is_found_by_a_check_and_named_by_whatever_meets_it(tmp_path: Path) -> None:
    core = open_core(tmp_path)
    core.settle(Settlement([a_row(f"r{number:05}", session="x" * 200) for number in range(2000)], {}))
    core.close()
    whole = bytearray((tmp_path / LEDGER).read_bytes())
    for page in range(20, len(whole) // 4096):
        whole[page * 4096 : page * 4096 + 2000] = b"\xff" * 2000
    (tmp_path / LEDGER).write_bytes(whole)
    core = open_core(tmp_path)
    problems = core.check()
    assert problems and all("ledger.db is damaged" in problem for problem in problems)
    with pytest.raises(StoreUnusable, match=r"ledger\.db is damaged"):
        core.requests("", 0.0, 5000)
    with pytest.raises(StoreUnusable, match=r"ledger\.db is damaged"):
        core.settle(Settlement([a_row(f"r{number:05}x") for number in range(2000)], {}))
    core.close()


def test_a_file_that_was_emptied_while_it_was_open_is_no_bug(core: SqliteCore) -> None:
    prepare(core)
    with sqlite3.connect(core.folder.path / LEDGER) as shell:
        shell.execute("DROP TABLE ledger")
    shell.close()
    with pytest.raises(StoreUnusable, match=r"ledger\.db is damaged: no such table"):
        core.settle(Settlement([a_row()], {}))


# --- checks and repairs


def change(core: SqliteCore, *statements: str) -> None:
    with sqlite3.connect(core.folder.path / LEDGER) as shell:
        for statement in statements:
            shell.execute(statement)
    shell.close()


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE usage_day SET cost = cost + 1", "the sums of 2026-11-16 are not those of its rows"),
        ("DELETE FROM usage_day", "the sums of 2026-11-16 are not those of its rows"),
        ("DELETE FROM ledger", "the sums of 2026-11-16 are not those of its rows"),
        ("UPDATE usage_day SET day = '2026-11-11'", "the sums of 2026-11-11 are not those of its rows"),
        ("UPDATE used SET tokens = tokens - 1", "the counter of key:k1 a day is not the sum of its days"),
    ],
)
def test_a_check_finds_wrong_sums_and_a_repair_mends_them(core: SqliteCore, statement: str, problem: str) -> None:
    prepare(core)
    assert core.check() == []
    change(core, statement)
    assert any(found.startswith(problem) and "dragoman store repair" in found for found in core.check())
    repair = core.repair()
    assert repair.days or repair.counters
    assert core.check() == []
    rows = core.requests("", 0.0, 9)
    assert core.used(("key:k1", "tokens", "day"))[0] == sum(row.tokens for row in rows)
    assert [usage.cost for usage in core.usage(UsageQuery())] == [row.cost for row in rows]


def test_a_check_of_a_store_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match=r"has no store: keys\.db and ledger\.db not found.*store migrate"):
        SqliteCore(tmp_path).check()
    assert list(tmp_path.iterdir()) == []
