"""The token store of kiro-cli: rows of a SQLite database. Does file I/O.

A refreshed token is written to the row that it was read from, in one transaction. `logins` opens the store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from dragoman.upstream.credentials import CredentialFault, MissingCredential
from dragoman.upstream.kiro.atomic_files import find_pending, lock_path, write_error, write_pending
from dragoman.upstream.kiro.stores import is_superseded, version_of
from dragoman.upstream.kiro.token import (
    Document,
    LoginKind,
    Token,
    first_text,
    parse_token,
    region_of_arn,
    update_document,
)
from dragoman.wire import jsonio

# kiro-cli itself misspells `oidc` as `odic`.
_KEYS: dict[str, LoginKind] = {
    "kirocli:social:token": "social",
    "kirocli:odic:token": "idc",
    "kirocli:oidc:token": "idc",
    "codewhisperer:odic:token": "idc",
}
_PROFILE = "api.codewhisperer.profile"
_BUSY_TIMEOUT = 5.0  # seconds to wait while kiro-cli writes


class CliStore:
    """The logins of kiro-cli in one database file.

    `load` returns the login that expires last: kiro-cli no longer renews the others.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def label(self) -> str:
        return f"kiro-cli ({self.path})"

    @property
    def lock(self) -> Path | None:
        return lock_path(self.path)

    def load(self) -> Token:
        with self._reading() as database:
            rows = {key: self._row(database, "auth_kv", key) for key in _KEYS}
            tokens, faults = self._logins(database, {key: row for key, row in rows.items() if row})
        if not tokens:
            no_login = f"{self.path} contains no login. Run `kiro-cli login` or `dragoman auth login kiro`."
            raise faults[0] if faults else MissingCredential(no_login)
        return max(tokens, key=lambda token: token.expires_at or 0)

    def version(self) -> object:
        return version_of(self.path), version_of(self.path.with_name(f"{self.path.name}-wal"))

    def prepare(self) -> None:
        try:
            writes = find_pending(self.path)
            with self._writing() as database:
                for write in writes:
                    for key in _KEYS:
                        if write.replaces(self._text(database, key)):
                            self._update(database, key, write.data)
            for write in writes:
                write.path.unlink(missing_ok=True)
        except OSError as error:
            raise write_error(self.path, error) from None

    def save(self, token: Token, previous: Token) -> Token:
        with self._writing() as database:
            row = self._row(database, "auth_kv", token.slot)
            if not row:
                raise CredentialFault(
                    f"another program removed the login in {self.path}. Run `kiro-cli login` to log in again."
                )
            stored = self._token(database, token.slot, row)
            if is_superseded(stored, previous, token):
                return stored
            value = jsonio.encode(update_document(row, token))
            # A commit waits for the disk, and the process may be killed meanwhile.
            pending = self._write_ahead(self._text(database, token.slot), value)
            self._update(database, token.slot, value)
        if pending is not None:
            pending.unlink(missing_ok=True)
        return token

    def _write_ahead(self, old: bytes, new: bytes) -> Path | None:
        try:
            return write_pending(self.path, old, new)
        except OSError:  # writing to the database may still succeed
            return None

    def _logins(
        self, database: sqlite3.Connection, rows: dict[str, Document]
    ) -> tuple[list[Token], list[CredentialFault]]:
        tokens, faults = [], []
        for key, row in rows.items():
            try:
                tokens.append(self._token(database, key, row))
            except CredentialFault as fault:  # other rows may still be valid
                faults.append(fault)
        return tokens, faults

    def _token(self, database: sqlite3.Connection, key: str, row: Document) -> Token:
        registration = self._row(database, "auth_kv", key.removesuffix("token") + "device-registration")
        arn = first_text(self._row(database, "state", _PROFILE), "arn", "profileArn", "profile_arn")
        names = ("client_id", "client_secret", "clientId", "clientSecret", "region")
        fields: Document = {name: registration[name] for name in names if name in registration}
        fields["client_expires_at"] = registration.get("client_secret_expires_at")
        if region_of_arn(arn):
            fields["profile_arn"] = arn
        return parse_token(
            fields | {name: value for name, value in row.items() if value}, str(self.path), _KEYS[key], key
        )

    def _text(self, database: sqlite3.Connection, key: str) -> bytes:
        row = database.execute("SELECT value FROM auth_kv WHERE key = ?", (key,)).fetchone()
        return row[0].encode() if row and isinstance(row[0], str) else bytes(row[0] or b"") if row else b""

    def _update(self, database: sqlite3.Connection, key: str, value: bytes) -> None:
        database.execute("UPDATE auth_kv SET value = ? WHERE key = ?", (value.decode(), key))

    def _row(self, database: sqlite3.Connection, table: str, key: str) -> Document:
        """Return the JSON object of a row; empty if the row, or in some versions of kiro-cli the table, is missing."""
        query = {"auth_kv": "SELECT value FROM auth_kv WHERE key = ?", "state": "SELECT value FROM state WHERE key = ?"}
        try:
            row = database.execute(query[table], (key,)).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return {}
            raise
        return (jsonio.decode_object(row[0]) if row and isinstance(row[0], (str, bytes)) else None) or {}

    # --- connections: a new one each time, because calls come from any thread and about once an hour

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise CredentialFault(f"{self.path} does not exist. Run `dragoman auth login kiro`.")
        try:
            with closing(self._open()) as database:
                yield database
        except sqlite3.Error as error:
            raise CredentialFault(f"cannot read {self.path}: {error}.") from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._connect("mode=rw")) as database:
                database.execute("PRAGMA synchronous = FULL")  # the token must be on disk before it is used
                database.execute("BEGIN IMMEDIATE")
                try:
                    yield database
                except BaseException:
                    database.execute("ROLLBACK")
                    raise
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise write_error(self.path, str(error)) from None

    def _open(self) -> sqlite3.Connection:
        try:
            return self._readable("mode=ro")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise
        try:
            return self._readable("mode=rw")  # rolls back the unfinished write of a killed process
        except sqlite3.OperationalError:
            if _rollback_journal(self.path).exists():
                raise
        return self._connect("immutable=1")  # the only mode for a write-ahead log on a read-only mount

    def _readable(self, mode: str) -> sqlite3.Connection:
        database = self._connect(mode)
        try:
            database.execute("SELECT 1 FROM sqlite_master LIMIT 1")
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _connect(self, mode: str) -> sqlite3.Connection:
        uri = f"{self.path.resolve().as_uri()}?{mode}"
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT, isolation_level=None)


def _rollback_journal(path: Path) -> Path:
    """Return the path of the rollback journal, which exists during a write or after an interrupted one."""
    path = path.resolve()
    return path.with_name(f"{path.name}-journal")
