"""Migrations: each once and whole, only forward, and never changed."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from dragoman._version import __version__
from dragoman.store.interface import StoreUnavailable, StoreUnusable
from dragoman.store.sqlite.core import SqliteCore
from dragoman.store.sqlite.files import KEYS, LEDGER, Connection, StoreFolder
from dragoman.store.sqlite.schema import Migration, migrate, migrations_of

NEXT = Migration(
    2,
    "colours",
    """-- a comment; with a semicolon
CREATE TABLE colour (name TEXT DEFAULT ';');
CREATE TRIGGER added AFTER INSERT ON colour BEGIN
    DELETE FROM colour WHERE name = 'none';
    DELETE FROM colour WHERE name = 'nil';
END;
INSERT INTO colour VALUES ('red;
blue');
""",
)


def opened(folder: Path) -> tuple[StoreFolder, Connection]:
    found = StoreFolder(folder, 5.0)
    found.prepare()
    return found, found.connect(LEDGER)


def tables(folder: Path) -> set[str]:
    with sqlite3.connect(folder / LEDGER) as shell:
        names = {name for (name,) in shell.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    shell.close()
    return names


def test_the_first_start_applies_all_and_the_second_none(tmp_path: Path) -> None:
    core = SqliteCore(tmp_path)
    assert [each.name for each in core.open()] == ["keys", "ledger"]
    core.close()
    assert core.open() == []
    core.close()
    with sqlite3.connect(tmp_path / LEDGER) as shell:
        rows = shell.execute("SELECT number, name, digest FROM migration").fetchall()
    shell.close()
    assert rows == [(each.number, each.name, each.digest) for each in migrations_of(LEDGER)]


@pytest.mark.parametrize("file", [KEYS, LEDGER])
def test_migrations_are_numbered_without_gaps(file: str) -> None:
    known = migrations_of(file)
    assert known and [each.number for each in known] == list(range(1, len(known) + 1))
    assert all(list(each.statements()) for each in known)


def test_statements_are_split_where_sqlite_says_that_they_end(tmp_path: Path) -> None:
    assert len(list(NEXT.statements())) == 3
    folder, connection = opened(tmp_path)
    known = (*migrations_of(LEDGER), NEXT)
    assert migrate(folder, LEDGER, connection, 1.0, known) == list(known)
    assert migrate(folder, LEDGER, connection, 1.0, known) == []
    assert connection.execute("SELECT name FROM colour").fetchall() == [("red;\nblue",)]
    connection.close()
    folder.close()


def test_a_changed_migration_is_refused(tmp_path: Path) -> None:
    folder, connection = opened(tmp_path)
    [first, *_] = migrations_of(LEDGER)
    migrate(folder, LEDGER, connection, 1.0, (first,))
    changed = structs.replace(first, text=first.text + "-- more\n")
    with pytest.raises(
        StoreUnusable, match=rf"ledger\.db cannot be used.*{re.escape(__version__)}.*migration 1 \(ledger\) was changed"
    ):
        migrate(folder, LEDGER, connection, 1.0, (changed, NEXT))
    assert "colour" not in tables(tmp_path)
    connection.close()
    folder.close()


def test_a_newer_schema_is_refused_and_both_versions_are_named(tmp_path: Path) -> None:
    SqliteCore(tmp_path).open()
    with sqlite3.connect(tmp_path / KEYS) as shell:
        shell.execute("INSERT INTO migration VALUES (7, 'future', 'x', 1.0)")
    shell.close()
    core = SqliteCore(tmp_path)
    with pytest.raises(
        StoreUnusable,
        match=rf"keys\.db was made by a newer version.*schema 7.*\({re.escape(__version__)}\) knows schema 1\.",
    ):
        core.open()
    assert any("schema 7" in problem for problem in core.check())


def test_a_migration_that_fails_leaves_the_old_schema(tmp_path: Path) -> None:
    folder, connection = opened(tmp_path)
    known = migrations_of(LEDGER)
    broken = structs.replace(NEXT, text=NEXT.text + "INSERT INTO colour (nothing) VALUES (1);\n")
    with pytest.raises(sqlite3.OperationalError):
        migrate(folder, LEDGER, connection, 1.0, (*known, broken))
    assert "ledger" in tables(tmp_path) and "colour" not in tables(tmp_path)
    assert migrate(folder, LEDGER, connection, 1.0, (*known, NEXT)) == [NEXT]
    connection.close()
    folder.close()


def forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return child


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_a_process_killed_in_a_migration_leaves_the_old_schema(tmp_path: Path) -> None:
    """It is killed after each statement in turn; the next process does all of it."""
    count = sum(len(list(each.statements())) for each in migrations_of(LEDGER))
    for killed_after in range(count + 3):
        folder = tmp_path / str(killed_after)

        def work(folder: Path = folder, killed_after: int = killed_after) -> None:
            found, connection = opened(folder)
            done = 0

            def traced(text: str) -> None:
                nonlocal done
                done += text.lstrip().startswith(("CREATE", "--", "INSERT", "COMMIT"))
                if done > killed_after:
                    os.kill(os.getpid(), signal.SIGKILL)

            connection.set_trace_callback(traced)
            migrate(found, LEDGER, connection, 1.0)

        os.waitpid(forked(work), 0)
        assert "ledger" not in tables(folder), killed_after
        core = SqliteCore(folder)
        core.open()
        assert core.check() == []
        core.close()


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_processes_that_start_at_once_migrate_once(tmp_path: Path) -> None:
    def work() -> None:
        core = SqliteCore(tmp_path)
        core.open()
        core.close()

    children = [forked(work) for _ in range(6)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    core = SqliteCore(tmp_path)
    assert core.open() == [] and core.check() == []
    core.close()


def test_a_migration_that_cannot_get_the_lock_says_so(tmp_path: Path) -> None:
    holder, connection = opened(tmp_path)
    core = SqliteCore(tmp_path, lock_seconds=0.1)
    with holder.lock(), pytest.raises(StoreUnavailable, match=r"store\.lock"):
        core.open()
    assert tables(tmp_path) == set()
    connection.close()
    holder.close()
