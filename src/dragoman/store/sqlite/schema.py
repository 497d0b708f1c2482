"""Numbered migrations of the files of a SQLite store.

A migration is a file `NNNN_name.sql` in `store/migrations/sqlite/FILE`. Each runs once, in one transaction under the
lock of the store, so a process that is killed leaves the old schema or the new one. The table `migration` has the
number, the name, the digest and the time of each that was applied. Migrations only go forward: a file with a newer
number than this program knows, or with a migration that was changed since, is refused.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct

from dragoman._version import __version__
from dragoman.store.interface import StoreUnusable
from dragoman.store.sqlite.files import Connection, StoreFolder

_FOLDER = Path(__file__).parents[1] / "migrations" / "sqlite"
_TABLE = """CREATE TABLE IF NOT EXISTS migration (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL)"""


class Migration(Struct, frozen=True):
    """One file of SQL statements."""

    number: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """The SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def statements(self) -> Iterator[str]:
        """Yield the statements. A semicolon in a string, a comment or a trigger does not end one."""
        statement = ""
        for line in self.text.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                yield statement
                statement = ""


@cache
def migrations_of(file: str) -> tuple[Migration, ...]:
    """Return the migrations of `keys.db` or `ledger.db` that this program knows, in their order."""
    paths = sorted((_FOLDER / file.removesuffix(".db")).glob("[0-9]*.sql"))
    return tuple(Migration(int(path.stem[:4]), path.stem[5:], path.read_text(encoding="utf-8")) for path in paths)


def pending_migrations(connection: Connection, path: Path, known: tuple[Migration, ...]) -> list[Migration]:
    """Return the migrations that a file lacks. Raises StoreUnusable if this program cannot use the file."""
    exists = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'migration'").fetchone()
    rows = connection.execute("SELECT number, name, digest FROM migration ORDER BY number").fetchall() if exists else []
    applied = {number: (name, digest) for number, name, digest in rows}
    newest, last = max(applied, default=0), known[-1].number
    if newest > last:
        raise StoreUnusable(
            f"{path} was made by a newer version of Dragoman: it has schema {newest}, and this version ({__version__}) "
            f"knows schema {last}. Use the newer version, or put back a backup from before it."
        )
    for each in known:
        name, digest = applied.get(each.number, ("", each.digest))
        if digest != each.digest:
            raise StoreUnusable(
                f"{path} cannot be used by this version of Dragoman ({__version__}): migration {each.number} ({name}) "
                "was changed after it was applied. Use the version that applied it."
            )
    return [each for each in known if each.number not in applied]


def migrate(
    folder: StoreFolder, file: str, connection: Connection, now: float, known: tuple[Migration, ...] = ()
) -> list[Migration]:
    """Apply the migrations that a file lacks; return them. Raises StoreUnusable, StoreUnavailable."""
    path, known = folder.path / file, known or migrations_of(file)
    with folder.read(file):
        pending = pending_migrations(connection, path, known)
    applied = []
    for each in pending:
        with folder.write(connection, file):
            connection.execute(_TABLE)
            if each not in pending_migrations(connection, path, known):
                continue  # Another process was faster.
            for statement in each.statements():
                connection.execute(statement)
            values = each.number, each.name, each.digest, now
            connection.execute("INSERT INTO migration (number, name, digest, at) VALUES (?, ?, ?, ?)", values)
            applied.append(each)
    return applied
