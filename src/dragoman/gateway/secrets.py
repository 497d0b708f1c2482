"""Secrets of the configuration, the private files that contain them, and the folders of this application. Does I/O.

The configuration names a secret by a reference. The gateway reads it at the first use and never shows it:

env:NAME             an environment variable
file:PATH            the text of a file
keyring:SERVICE/NAME an entry of the system's keyring (the optional package `keyring`)
cmd:COMMAND          the output of a command, which runs without a shell
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from dragoman.gateway.layers import ConfigError, Origin, Problem
from dragoman.gateway.secret_sources import FINDERS, BadReference, NotSet, ReferenceContext, check_reference
from dragoman.upstream import private_files

# --- private files, and the key of the gateway, which is created on the first run


KEY_PREFIX = "dgm_"
_SHORTEST_KEY = 16
_MIN_CHARACTERS = 8  # distinct characters
_PLACEHOLDER = ("changeme", "change-me", "your-", "placeholder", "example", "dummy", "xxxx", "sk-...", "replace")
_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PART = ".dragoman-part"  # suffix of a temporary file
_ABANDONED = 60.0  # seconds; a process that was killed left an older temporary file


class _AlreadyExists(Exception):
    """The file exists already."""


def gateway_key(configured: ConfiguredSecret | None, key_file: Path) -> ConfiguredSecret:
    """Return the key that clients must send: the configured one, else a generated one.

    Raises ConfigError for a configured key that is easy to guess.
    """
    if configured is None:
        return load_or_create_key(key_file)
    value = configured.reveal()
    is_guessable = len(set(value)) < _MIN_CHARACTERS or value.isdecimal()  # such as aaaa… or 12345…
    if len(value) < _SHORTEST_KEY or value.lower().startswith(_PLACEHOLDER) or is_guessable:
        command = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        hint = f"delete server.key so that a key is created, or create one: {command}"
        raise ConfigError(
            [Problem("server.key", f"{configured.shown} is too short, too simple, or a placeholder", hint)]
        )
    return configured


def load_or_create_key(path: Path) -> ConfiguredSecret:
    """Return the key in this file; create it if the file does not exist.

    Raises ConfigError if the file cannot be read or written, or if other users can read it.
    """
    try:
        if not path.exists():
            make_private_folder(path.parent)
            with suppress(_AlreadyExists):  # Another process created the file first; its key is valid.
                write_private(path, f"{KEY_PREFIX}{secrets.token_urlsafe(32)}\n".encode(), replace=False)
        return literal_secret(read_private(path).decode())
    except OSError as error:
        raise _refused(
            path, (error.strerror or str(error)).lower(), "make sure that this user owns the folder and can write to it"
        ) from None
    except (BadReference, UnicodeDecodeError):
        raise _refused(path, "the file has no key", "delete it so that a new key is created") from None


def make_private_folder(folder: Path) -> None:
    """Create the folder, or make it private. Raises ConfigError if it belongs to another user."""
    private_files.make_private_folder(folder)
    if hasattr(os, "geteuid") and folder.stat().st_uid != os.geteuid():
        raise _refused(
            folder,
            "the folder belongs to another user",
            "set XDG_STATE_HOME and XDG_RUNTIME_DIR to folders of this user",
        )


def read_private(path: Path) -> bytes:
    """Return the content of a private file.

    Raises ConfigError if other users can read it, OSError if it is a symbolic link or cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    with os.fdopen(descriptor, "rb") as file:
        if hasattr(os, "geteuid"):
            status = os.fstat(descriptor)
            if status.st_mode & _GROUP_AND_OTHERS:
                hint = f"run chmod 600 {path}; if another user may have read it, delete it"
                raise _refused(path, "other users can read or change the file", hint)
            if status.st_uid != os.geteuid():
                raise _refused(path, "the file belongs to another user", "delete it so that a new one is created")
        return file.read()


def write_private(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write the file atomically; other users cannot read it at any moment. Its folder must exist.

    Without `replace`, raises _AlreadyExists if the file exists.
    """
    remove_parts(path.parent)
    part = private_files.write_temporary(path, _PART, data)
    try:
        if replace:
            part.replace(path)
        else:
            _place_new(part, path)
    finally:
        part.unlink(missing_ok=True)
    private_files.sync_folder(path.parent)


def remove_parts(folder: Path, older_than: float = _ABANDONED) -> None:
    """Delete temporary files that are at least `older_than` seconds old: their processes were killed while writing."""
    for part in folder.glob(f".*{_PART}"):
        with suppress(OSError):  # Another process deleted it first, or another user owns it.
            if time.time() - part.lstat().st_mtime >= older_than:
                part.unlink()


def _place_new(part: Path, path: Path) -> None:
    """Rename the temporary file unless the target exists.

    `rename` would silently replace a key that another process has just returned, so a hard link is created instead.
    """
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise _AlreadyExists from None
    except OSError:  # The file system has no hard links.
        if path.exists():
            raise _AlreadyExists from None
        part.replace(path)


def _refused(path: Path, why: str, hint: str) -> ConfigError:
    return ConfigError([Problem("", why, hint, Origin("file", str(path)))])


# --- the folders of this application: the XDG base directories


_FOLDER_NAME = "dragoman"


class AppFolders(Struct, frozen=True):
    """The folders of this application. No property creates one."""

    home: Path
    config: Path
    state: Path
    runtime: Path

    @property
    def config_file(self) -> Path:
        """The configuration file of the user."""
        return self.config / "config.toml"

    @property
    def price_file(self) -> Path:
        """The price file of the user."""
        return self.config / "prices.toml"

    @property
    def key_file(self) -> Path:
        """The file of the gateway key, which is created on the first run."""
        return self.state / "key"

    @property
    def admin_socket(self) -> Path:
        """The Unix socket of the admin interface."""
        return self.runtime / "admin.sock"


def app_folders(environ: Mapping[str, str]) -> AppFolders:
    """Return the folders for this environment.

    An XDG variable that is not an absolute path is ignored, as the XDG specification requires.
    """
    home = Path(environ.get("HOME") or Path.home())
    config = _folder(environ, "XDG_CONFIG_HOME") or home / ".config"
    state = (_folder(environ, "XDG_STATE_HOME") or home / ".local" / "state") / _FOLDER_NAME
    runtime = _folder(environ, "XDG_RUNTIME_DIR")
    # Without a runtime folder the socket is in the state folder: others could replace it in a shared one such as /tmp.
    return AppFolders(home, config / _FOLDER_NAME, state, runtime / _FOLDER_NAME if runtime else state / "run")


def _folder(environ: Mapping[str, str], name: str) -> Path | None:
    path = Path(environ.get(name, ""))
    return path if path.is_absolute() else None


# --- secrets and their references


MASK = "***"
_FAILURE_SECONDS = 5.0  # seconds
_SOURCES = {"env": "environment variable {}", "file": "file {}", "keyring": "keyring entry {}", "cmd": "command {}"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
REMEDY = (
    'write a reference: "env:NAME", "file:PATH", "keyring:SERVICE/NAME" or "cmd:COMMAND"; '
    "or set allow_literal_secrets = true to allow a literal value"
)


class SecretUnavailable(ConfigError):
    """The secret of a reference cannot be read now. `reason` is a clause that names its source."""

    def __init__(self, shown: str, why: str, reason: str) -> None:
        super().__init__([Problem("", f"{shown}: {why}")])
        self.reason = reason


class ConfiguredSecret:
    """A secret that is not shown by accident: only `reveal()` returns it. It is read at the first use and cached."""

    __slots__ = ("_failed_at", "_failure", "_find", "_key", "_lock", "_value", "shown")

    def __init__(self, shown: str, find: Callable[[], str], key: object = None) -> None:
        self.shown = shown  # the reference, or a mask
        self._find = find
        self._key = (shown, key)
        self._lock = threading.Lock()
        self._value: str | None = None
        self._failure: SecretUnavailable | None = None  # of the last read
        self._failed_at = 0.0  # of the monotonic clock

    @property
    def problem(self) -> str:
        """Why the value is not known: the last read failed. Empty if it is known, or was not read yet."""
        return self._failure.reason if self._failure is not None and self._value is None else ""

    @property
    def is_slow(self) -> bool:
        """Whether reading it may take seconds, or prompt the user."""
        return self.shown.startswith(("cmd:", "keyring:"))

    @property
    def revealed(self) -> str | None:
        """The value if it was read before, else None. The redactor masks it in logs."""
        return self._value

    def reveal(self) -> str:
        """Return the value. May block while a command runs (`cmd:`).

        Raises SecretUnavailable, which names the reference, if the value cannot be read. A failure of a
        slow source is repeated for a few seconds without another read, because many requests may need it.
        """
        with self._lock:
            if self._value is None:
                is_recent = time.monotonic() - self._failed_at < _FAILURE_SECONDS
                if self._failure is not None and self.is_slow and is_recent:
                    raise self._failure.with_traceback(None)
                self._value = self._read()
            return self._value

    def _read(self) -> str:
        try:
            value = self._find()
        except SecretUnavailable as error:
            self._failure, self._failed_at = error, time.monotonic()
            raise
        self._failure = None
        return value

    def refresh(self) -> bool:
        """Read the secret again, because a file or a command may have changed. Return whether it differs."""
        value = self._read()
        with self._lock:
            changed = self._value is None or _Hidden(self._value) != _Hidden(value)
            self._value = value
            return changed

    def __repr__(self) -> str:
        return f"Secret({self.shown})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfiguredSecret) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self.shown)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def plain_value(text: str) -> ConfiguredSecret:
    """Return a value that is not secret, for a setting that may have a secret; `shown` is the value itself."""
    return ConfiguredSecret(text, lambda: text)


def literal_secret(text: str) -> ConfiguredSecret:
    """Return a secret whose value is in the configuration itself. Raises BadReference for an unusable value."""
    value = _clean(text)
    return ConfiguredSecret(MASK, lambda: value, _Hidden(value))


def parse_reference(text: str, context: ReferenceContext) -> ConfiguredSecret | None:
    """Return the secret that a reference names; None if the text is not a reference. Raises BadReference."""
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in FINDERS:
        return None
    rest = rest.strip()
    check_reference(scheme, rest)
    shown = show_reference(text)

    def find() -> str:
        try:
            return _clean(FINDERS[scheme](rest, context))
        except BadReference as error:
            source = _SOURCES[scheme].format(shown.partition(":")[2])
            reason = f"{source} is not set" if isinstance(error, NotSet) else f"{source}: {error}"
            raise SecretUnavailable(shown, str(error), reason) from None

    return ConfiguredSecret(shown, find, (_Hidden(rest), context.folder))


def show_reference(text: str) -> str:
    """Return the setting of a secret for display: a literal value and the arguments of a command are masked."""
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in FINDERS:
        return MASK
    if scheme != "cmd":
        return text
    program, _, arguments = rest.strip().partition(" ")
    return f"cmd:{program} {MASK}" if arguments else f"cmd:{program}"


class _Hidden:
    """A text that can be compared, in constant time, and is not shown."""

    __slots__ = ("_bytes",)

    def __init__(self, text: str) -> None:
        self._bytes = text.encode(errors="surrogatepass")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hidden) and hmac.compare_digest(self._bytes, other._bytes)

    def __hash__(self) -> int:
        return 0


def _clean(text: str) -> str:
    text = text.strip()
    if not text:
        raise BadReference("the value is empty")
    if _CONTROL.search(text):
        raise BadReference("the value has more than one line, or control characters")
    if not text.isascii():  # The value becomes part of a header.
        raise BadReference("the value has characters that are not ASCII")
    return text
