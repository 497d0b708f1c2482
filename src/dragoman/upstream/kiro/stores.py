"""Where a token is kept. A store reads it, and takes a refreshed one back in the same place and spelling."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from dragoman.upstream.credentials import CredentialFault, Secret
from dragoman.upstream.kiro.durable import (
    check_replaceable,
    left_ahead,
    lock_beside,
    make_private_folder,
    replace_file,
    unwritable,
    write_ahead,
)
from dragoman.upstream.kiro.token import Document, Kind, Token, parse_token, pick, region_of_arn, renewed
from dragoman.wire import jsonio

_LARGEST = 1024 * 1024
_HASH = re.compile(r"[A-Za-z0-9_-]{1,128}")  # it becomes a file's name


class Store(Protocol):
    """A place for one token. All methods may block, and raise CredentialFault."""

    @property
    def label(self) -> str:
        """What to call it before people."""

    @property
    def lock(self) -> Path | None:
        """The file to lock around a refresh; None if the token never changes."""

    def load(self) -> Token: ...

    def prepare(self) -> None:
        """Make sure that `save` can work: a token that is refreshed and cannot be kept is lost."""

    def save(self, token: Token, was: Token) -> Token:
        """Keep what `was` has become. Gives what the store now holds: another program may have been faster."""


class KeyStore:
    """An API key: it neither ends nor changes."""

    label = "API key"
    lock: Path | None = None

    def __init__(self, key: Secret) -> None:
        self._token = parse_token({"api_key": key.reveal()}, "the API key", "api_key")

    def load(self) -> Token:
        return self._token

    def prepare(self) -> None:
        pass

    def save(self, token: Token, was: Token) -> Token:
        raise CredentialFault("an API key cannot be refreshed.")


class _FileStore:
    """A JSON file. `save` changes the fields of the token and leaves all others."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def label(self) -> str:
        return str(self.path)

    @property
    def lock(self) -> Path | None:
        return lock_beside(self.path)

    def load(self) -> Token:
        return self._parse(self._document())

    def prepare(self) -> None:
        try:
            check_replaceable(self.path)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def save(self, token: Token, was: Token) -> Token:
        document = self._document()
        stored = self._parse(document)
        if outran(stored, was, token):
            return stored
        try:
            replace_file(self.path, jsonio.pretty(renewed(document, token)) + b"\n")
        except OSError as error:
            raise unwritable(self.path, error) from None
        return token

    def _document(self) -> Document:
        return read_document(self.path)

    def _parse(self, document: Document) -> Token:
        return parse_token(document, str(self.path))


class OwnStore(_FileStore):
    """Our own file: private, or it is not read."""

    def write(self, document: Document) -> None:
        """Write a new login, in place of any before it."""
        try:
            make_private_folder(self.path.parent)
            check_replaceable(self.path)
            replace_file(self.path, jsonio.pretty(document) + b"\n")
        except OSError as error:
            raise unwritable(self.path, error) from None

    def _document(self) -> Document:
        return read_document(self.path, private=True)


class IdeStore(_FileStore):
    """The Kiro IDE's token file, with the client registration beside it and the profile that the IDE chose."""

    def __init__(self, path: Path, profile: Path) -> None:
        super().__init__(path)
        self._profile = profile

    @property
    def label(self) -> str:
        return f"Kiro IDE ({self.path})"

    def _parse(self, document: Document) -> Token:
        registration = self._registration(pick(document, "clientIdHash"))
        arn = pick(document, "profileArn") or self._chosen_profile()
        return parse_token({**registration, **document, "profileArn": arn}, str(self.path))

    def _registration(self, client: str) -> Document:
        if not client:
            return {}
        if not _HASH.fullmatch(client):
            raise CredentialFault(f"{self.path}: clientIdHash is not the name of a registration.")
        found = _optional(self.path.resolve().with_name(f"{client}.json"))
        names = ("clientId", "clientSecret")
        return {name: found[name] for name in names if name in found} | {"client_expires_at": found.get("expiresAt")}

    def _chosen_profile(self) -> str:
        arn = pick(_optional(self._profile), "arn", "profileArn")
        return arn if region_of_arn(arn) else ""


# --- what stores have in common


def outran(stored: Token, was: Token, token: Token) -> bool:
    """Tell whether the login was renewed or replaced by another program while we refreshed it."""
    if stored.refresh != was.refresh:
        return True  # a refresh token of its own, perhaps of another account: not ours to overwrite
    return stored.access != was.access and (stored.expires_at or 0) > (token.expires_at or 0)


def read_document(path: Path, *, private: bool = False) -> Document:
    """The object in a file; one that must be `private` is not read if others could."""
    try:
        with path.open("rb") as file:
            if private and os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                raise CredentialFault(f"{path} can be read by others. Run `chmod 600 {path}`.")
            data = file.read(_LARGEST + 1)
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        document = jsonio.decode(data) if len(data) <= _LARGEST else None
    except jsonio.JsonError:
        document = None  # the reason may quote the content
    if not isinstance(document, dict):
        raise CredentialFault(f"{path} is not a JSON object. Run `dragoman auth login kiro`.")
    return document


def unreadable(path: Path, error: OSError) -> CredentialFault:
    if isinstance(error, FileNotFoundError):
        return CredentialFault(f"there is no {path}. Run `dragoman auth login kiro`.")
    return CredentialFault(f"cannot read {path}: {error.strerror or error}.")


def _optional(path: Path) -> Document:
    try:
        return read_document(path)
    except CredentialFault:
        return {}


# --- kiro-cli's SQLite store. Rows are read and written back under their own key; SQLite makes the write atomic


# `odic` is how the program spells it.
_KEYS: dict[str, Kind] = {
    "kirocli:social:token": "social",
    "kirocli:odic:token": "idc",
    "kirocli:oidc:token": "idc",
    "codewhisperer:odic:token": "idc",
}
_PROFILE = "api.codewhisperer.profile"
_BUSY = 5.0  # seconds to wait for the program to finish its own write


class CliStore:
    """`load` takes the login that lives longest: one that was left behind is not renewed any more."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def label(self) -> str:
        return f"kiro-cli ({self.path})"

    @property
    def lock(self) -> Path | None:
        return lock_beside(self.path)

    def load(self) -> Token:
        with self._reading() as database:
            rows = {key: self._row(database, "auth_kv", key) for key in _KEYS}
            found, faults = self._logins(database, {key: row for key, row in rows.items() if row})
        if not found:
            none = CredentialFault(f"{self.path} holds no login. Run `kiro-cli login` or `dragoman auth login kiro`.")
            raise faults[0] if faults else none
        return max(found, key=lambda token: token.expires_at or 0)

    def prepare(self) -> None:
        try:
            left = left_ahead(self.path)
            with self._writing() as database:
                for each in left:
                    for key in _KEYS:
                        if each.replaces(self._text(database, key)):
                            self._update(database, key, each.data)
            for each in left:
                each.path.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None

    def save(self, token: Token, was: Token) -> Token:
        with self._writing() as database:
            row = self._row(database, "auth_kv", token.slot)
            if not row:
                raise CredentialFault(f"the login in {self.path} was ended by another program.")
            stored = self._token(database, token.slot, row)
            if outran(stored, was, token):
                return stored
            value = jsonio.encode(renewed(row, token))
            ahead = self._write_ahead(self._text(database, token.slot), value)  # a commit waits for the disk, twice
            self._update(database, token.slot, value)
        if ahead is not None:
            ahead.unlink(missing_ok=True)
        return token

    def _write_ahead(self, old: bytes, new: bytes) -> Path | None:
        try:
            return write_ahead(self.path, old, new)
        except OSError:  # the database may still be written
            return None

    def _logins(
        self, database: sqlite3.Connection, rows: dict[str, Document]
    ) -> tuple[list[Token], list[CredentialFault]]:
        found, faults = [], []
        for key, row in rows.items():
            try:
                found.append(self._token(database, key, row))
            except CredentialFault as fault:  # one bad row does not spoil the others
                faults.append(fault)
        return found, faults

    def _token(self, database: sqlite3.Connection, key: str, row: Document) -> Token:
        registration = self._row(database, "auth_kv", key.removesuffix("token") + "device-registration")
        arn = pick(self._row(database, "state", _PROFILE), "arn", "profileArn", "profile_arn")
        names = ("client_id", "client_secret", "clientId", "clientSecret", "region")
        known: Document = {name: registration[name] for name in names if name in registration}
        known["client_expires_at"] = registration.get("client_secret_expires_at")
        if region_of_arn(arn):
            known["profile_arn"] = arn
        return parse_token(
            known | {name: value for name, value in row.items() if value}, str(self.path), _KEYS[key], key
        )

    def _text(self, database: sqlite3.Connection, key: str) -> bytes:
        row = database.execute("SELECT value FROM auth_kv WHERE key = ?", (key,)).fetchone()
        return row[0].encode() if row and isinstance(row[0], str) else bytes(row[0] or b"") if row else b""

    def _update(self, database: sqlite3.Connection, key: str, value: bytes) -> None:
        database.execute("UPDATE auth_kv SET value = ? WHERE key = ?", (value.decode(), key))

    def _row(self, database: sqlite3.Connection, table: str, key: str) -> Document:
        """A row's JSON object; empty for none, and for a table that this version of the program does not have."""
        query = {"auth_kv": "SELECT value FROM auth_kv WHERE key = ?", "state": "SELECT value FROM state WHERE key = ?"}
        try:
            row = database.execute(query[table], (key,)).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return {}
            raise
        try:
            value = jsonio.decode(row[0]) if row and isinstance(row[0], (str, bytes)) else None
        except jsonio.JsonError:
            return {}
        return value if isinstance(value, dict) else {}

    # --- connections: one for each piece of work, since it comes from any thread and about once an hour

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise CredentialFault(f"there is no {self.path}. Run `dragoman auth login kiro`.")
        try:
            with closing(self._open()) as database:
                yield database
        except sqlite3.Error as error:
            raise CredentialFault(f"cannot read {self.path}: {error}.") from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._connect("mode=rw")) as database:
                database.execute("PRAGMA synchronous = FULL")  # on disk before anyone uses the token
                database.execute("BEGIN IMMEDIATE")
                try:
                    yield database
                except BaseException:
                    database.execute("ROLLBACK")
                    raise
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise unwritable(self.path, str(error)) from None

    def _open(self) -> sqlite3.Connection:
        try:
            return self._readable("mode=ro")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise
        try:
            return self._readable("mode=rw")  # what a process left half done when it was killed is taken back
        except sqlite3.OperationalError:
            if _journal(self.path).exists():
                raise
        return self._connect("immutable=1")  # a write-ahead log on a read-only mount cannot be opened otherwise

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
        return sqlite3.connect(uri, uri=True, timeout=_BUSY, isolation_level=None)


def _journal(path: Path) -> Path:
    """Where SQLite keeps what a write has not finished replacing."""
    path = path.resolve()
    return path.with_name(f"{path.name}-journal")
