"""Token stores: an API key, Dragoman's own login files, and the token file of the Kiro IDE. Does file I/O.

A store reads a token, and writes a refreshed one to the same place in the same format. `logins` opens stores; the
credential in `credential` uses them. The store of kiro-cli is in `cli_store`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from dragoman.upstream.credentials import CredentialFault, MissingCredential, SecretText
from dragoman.upstream.kiro.atomic_files import check_replaceable, find_pending, lock_path, replace_file, write_error
from dragoman.upstream.kiro.token import Document, Token, first_text, parse_token, region_of_arn, update_document
from dragoman.upstream.private_files import make_private_folder, sync_folder
from dragoman.wire import jsonio

_MAX_SIZE = 1024 * 1024
_HASH = re.compile(r"[A-Za-z0-9_-]{1,128}")  # it becomes a file name, so it must not contain a path


class TokenStore(Protocol):
    """A place that holds one token. All methods may block, and raise CredentialFault."""

    @property
    def label(self) -> str:
        """The name of the store in messages."""

    @property
    def lock(self) -> Path | None:
        """The file to lock around a refresh; None if the token never changes."""

    def load(self) -> Token:
        """Read the token."""

    def version(self) -> object:
        """Return a value that differs after the store has changed, without reading it."""

    def prepare(self) -> None:
        """Check that `save` can write: a refreshed token that cannot be written is lost."""

    def save(self, token: Token, previous: Token) -> Token:
        """Write the refreshed `token` in place of `previous`, and return the token that the store holds now.

        That is another token if another program changed the login during the refresh.
        """


class ApiKeyStore:
    """An API key, which does not expire and does not change."""

    label = "API key"
    lock: Path | None = None

    def __init__(self, key: SecretText) -> None:
        self._token = parse_token({"api_key": key.reveal()}, "the API key", "api_key")

    def load(self) -> Token:
        """Return the key as a token."""
        return self._token

    def version(self) -> object:
        """Return None: the key never changes."""
        return None

    def prepare(self) -> None:
        """Do nothing: a key is not refreshed."""

    def save(self, token: Token, previous: Token) -> Token:
        """Raise CredentialFault: a key is not refreshed."""
        raise CredentialFault("an API key cannot be refreshed.")


class _FileStore:
    """A JSON file. `save` changes the fields of the token and no others."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def label(self) -> str:
        return str(self.path)

    @property
    def lock(self) -> Path | None:
        return lock_path(self.path)

    def load(self) -> Token:
        return self._parse(self._document())

    def version(self) -> object:
        return version_of(self.path)

    def prepare(self) -> None:
        try:
            check_replaceable(self.path)
        except OSError as error:
            raise write_error(self.path, error) from None

    def save(self, token: Token, previous: Token) -> Token:
        document = self._document()
        stored = self._parse(document)
        if is_superseded(stored, previous, token):
            return stored
        try:
            replace_file(self.path, jsonio.encode_pretty(update_document(document, token)) + b"\n")
        except OSError as error:
            raise write_error(self.path, error) from None
        return token

    def _document(self) -> Document:
        return read_document(self.path)

    def _parse(self, document: Document) -> Token:
        return parse_token(document, str(self.path))


class OwnStore(_FileStore):
    """A login file of Dragoman. A file that other users can read is refused."""

    def write(self, document: Document) -> None:
        """Write a new login; it replaces an existing one."""
        try:
            make_private_folder(self.path.parent)
            check_replaceable(self.path)
            replace_file(self.path, jsonio.encode_pretty(document) + b"\n")
        except OSError as error:
            raise write_error(self.path, error) from None

    def remove(self) -> None:
        """Remove the login, and what a process that was killed while it wrote left of it."""
        try:
            for pending in find_pending(self.path):
                pending.path.unlink(missing_ok=True)
            self.path.unlink()
        except OSError as error:
            raise CredentialFault(f"cannot remove {self.path}: {error.strerror or error}.") from None
        sync_folder(self.path.parent)

    def _document(self) -> Document:
        return read_document(self.path, private=True)


class IdeStore(_FileStore):
    """The token file of the Kiro IDE, with the client registration in the same folder and the IDE's profile."""

    def __init__(self, path: Path, profile: Path) -> None:
        super().__init__(path)
        self._profile = profile

    @property
    def label(self) -> str:
        return f"Kiro IDE ({self.path})"

    def version(self) -> object:
        return version_of(self.path), version_of(self._profile)

    def _parse(self, document: Document) -> Token:
        registration = self._registration(first_text(document, "clientIdHash"))
        arn = first_text(document, "profileArn") or self._chosen_profile()
        return parse_token({**registration, **document, "profileArn": arn}, str(self.path))

    def _registration(self, client: str) -> Document:
        if not client:
            return {}
        if not _HASH.fullmatch(client):
            raise CredentialFault(
                f"{self.path}: clientIdHash is not the name of a client registration. Log in again in the Kiro IDE."
            )
        data = _optional(self.path.resolve().with_name(f"{client}.json"))
        names = ("clientId", "clientSecret")
        return {name: data[name] for name in names if name in data} | {"client_expires_at": data.get("expiresAt")}

    def _chosen_profile(self) -> str:
        arn = first_text(_optional(self._profile), "arn", "profileArn")
        return arn if region_of_arn(arn) else ""


# --- functions that all stores use


def version_of(path: Path) -> tuple[int, int, int] | None:
    """Return the time, size and number of a file, which change when it is written or replaced; None without one."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def is_superseded(stored: Token, previous: Token, token: Token) -> bool:
    """Return whether another program renewed or replaced the login during the refresh."""
    if stored.refresh != previous.refresh:
        return True  # another refresh token, perhaps of another account, must not be overwritten
    return stored.access != previous.access and (stored.expires_at or 0) > (token.expires_at or 0)


def read_document(path: Path, *, private: bool = False) -> Document:
    """Return the JSON object in a file; a `private` file that other users can read is refused.

    Raises CredentialFault.
    """
    try:
        with path.open("rb") as file:
            if private and os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o077:
                raise MissingCredential(f"other users can read {path}. Run `chmod 600 {path}`.")
            data = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise read_error(path, error) from None
    document = jsonio.decode_object(data) if len(data) <= _MAX_SIZE else None
    if document is None:  # the reason is left out: it may quote a secret
        raise CredentialFault(f"{path} is not a JSON object. Run `dragoman auth login kiro`.")
    return document


def read_error(path: Path, error: OSError) -> CredentialFault:
    """Return the fault for a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return MissingCredential(f"{path} does not exist. Run `dragoman auth login kiro`.")
    return CredentialFault(f"cannot read {path}: {error.strerror or error}.")


def _optional(path: Path) -> Document:
    try:
        return read_document(path)
    except CredentialFault:
        return {}
