"""Token stores: each reads a token, and writes a refreshed one to the same place in the same format. Does file I/O."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Protocol

from dragoman.upstream.credentials import CredentialFault, SecretText
from dragoman.upstream.kiro.atomic_files import check_replaceable, lock_path, replace_file, write_error
from dragoman.upstream.kiro.token import Document, Token, first_text, parse_token, region_of_arn, update_document
from dragoman.upstream.private_files import make_private_folder
from dragoman.wire import jsonio

_LARGEST = 1024 * 1024
_HASH = re.compile(r"[A-Za-z0-9_-]{1,128}")  # it becomes a file's name


class TokenStore(Protocol):
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


class ApiKeyStore:
    """An API key: it neither ends nor changes."""

    label = "API key"
    lock: Path | None = None

    def __init__(self, key: SecretText) -> None:
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
        return lock_path(self.path)

    def load(self) -> Token:
        return self._parse(self._document())

    def prepare(self) -> None:
        try:
            check_replaceable(self.path)
        except OSError as error:
            raise write_error(self.path, error) from None

    def save(self, token: Token, was: Token) -> Token:
        document = self._document()
        stored = self._parse(document)
        if is_superseded(stored, was, token):
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
    """Our own file: private, or it is not read."""

    def write(self, document: Document) -> None:
        """Write a new login, in place of any before it."""
        try:
            make_private_folder(self.path.parent)
            check_replaceable(self.path)
            replace_file(self.path, jsonio.encode_pretty(document) + b"\n")
        except OSError as error:
            raise write_error(self.path, error) from None

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
        registration = self._registration(first_text(document, "clientIdHash"))
        arn = first_text(document, "profileArn") or self._chosen_profile()
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
        arn = first_text(_optional(self._profile), "arn", "profileArn")
        return arn if region_of_arn(arn) else ""


# --- what stores have in common


def is_superseded(stored: Token, was: Token, token: Token) -> bool:
    """Return whether another program renewed or replaced the login during the refresh."""
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
        raise read_error(path, error) from None
    document = jsonio.decode_object(data) if len(data) <= _LARGEST else None
    if document is None:  # the reason may quote the content
        raise CredentialFault(f"{path} is not a JSON object. Run `dragoman auth login kiro`.")
    return document


def read_error(path: Path, error: OSError) -> CredentialFault:
    if isinstance(error, FileNotFoundError):
        return CredentialFault(f"there is no {path}. Run `dragoman auth login kiro`.")
    return CredentialFault(f"cannot read {path}: {error.strerror or error}.")


def _optional(path: Path) -> Document:
    try:
        return read_document(path)
    except CredentialFault:
        return {}
