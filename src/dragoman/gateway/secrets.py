"""Secrets, the private files that hold them, and the folders where those are.

A secret is named by reference, found when it is first needed, and never shown:

env:NAME             a variable of the environment
file:PATH            the text of a file
keyring:SERVICE/NAME an entry of the system's keyring (the optional package `keyring`)
cmd:COMMAND          what a command prints; it is run without a shell
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import shlex
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from dragoman.gateway.layers import ConfigError, Origin, Problem
from dragoman.upstream import private_files

# --- private files, and the gateway's own key, which is created on first run


KEY_PREFIX = "dgm_"
_SHORTEST_KEY = 16
_FEWEST_CHARACTERS = 8  # different ones
_PLACEHOLDER = ("changeme", "change-me", "your-", "placeholder", "example", "dummy", "xxxx", "sk-...", "replace")
_EXTRA = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PART = ".dragoman-part"  # how the name of a file ends while it is written
_ABANDONED = 60.0  # seconds; the process that wrote an older part was killed


class _Taken(Exception):
    """The file is there already."""


def gateway_key(configured: ConfiguredSecret | None, key_file: Path) -> ConfiguredSecret:
    """Return the key that clients must send: the configured one, else a generated one. Raises ConfigError."""
    if configured is None:
        return load_or_create_key(key_file)
    value = configured.reveal()
    plain_value = len(set(value)) < _FEWEST_CHARACTERS or value.isdecimal()  # such as aaaa… or 12345…
    if len(value) < _SHORTEST_KEY or value.lower().startswith(_PLACEHOLDER) or plain_value:
        hint = (
            "leave server.key out, and one is made; or: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
        raise ConfigError([Problem("server.key", f"{configured.shown} is too short, or a placeholder", hint)])
    return configured


def load_or_create_key(path: Path) -> ConfiguredSecret:
    """The key in this file; the first to ask makes it. Raises ConfigError if the file cannot be had, or trusted."""
    try:
        if not path.exists():
            make_private_folder(path.parent)
            with suppress(_Taken):  # another process was first: its key is the key
                write_private(path, f"{KEY_PREFIX}{secrets.token_urlsafe(32)}\n".encode(), replace=False)
        return literal_secret(read_private(path).decode())
    except OSError as error:
        raise _refused(path, (error.strerror or str(error)).lower(), "is the folder yours, and writable?") from None
    except (BadReference, UnicodeDecodeError):
        raise _refused(path, "it holds no key", "remove it, and a new one is made") from None


def make_private_folder(folder: Path) -> None:
    """Create the folder, or make it private. Raises ConfigError if it belongs to another user."""
    private_files.make_private_folder(folder)
    if hasattr(os, "geteuid") and folder.stat().st_uid != os.geteuid():
        raise _refused(folder, "this folder is another user's", "XDG_STATE_HOME and XDG_RUNTIME_DIR say which to use")


def read_private(path: Path) -> bytes:
    """The file's content. Raises ConfigError if others may read it, OSError if it is a link or cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | _EXTRA)
    with os.fdopen(descriptor, "rb") as file:
        if hasattr(os, "geteuid"):
            found = os.fstat(descriptor)
            if found.st_mode & _OTHERS:
                raise _refused(path, "others may read or change it", f"chmod 600 {path}; if it may be known, remove it")
            if found.st_uid != os.geteuid():
                raise _refused(path, "this file is another user's", "remove it, and a new one is made")
        return file.read()


def write_private(path: Path, data: bytes, *, replace: bool = True) -> None:
    """Write the file atomically; other users cannot read it at any moment. Its folder must exist."""
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
    """Remove what processes that were killed while they wrote have left here."""
    for part in folder.glob(f".*{_PART}"):
        with suppress(OSError):  # another process was faster, or it is not ours
            if time.time() - part.lstat().st_mtime >= older_than:
                part.unlink()


def _place_new(part: Path, path: Path) -> None:
    """Give the file its name unless the name is taken: renaming would silently replace a key just handed out."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise _Taken from None
    except OSError:  # a file system without links
        if path.exists():
            raise _Taken from None
        part.replace(path)


def _refused(path: Path, why: str, hint: str) -> ConfigError:
    return ConfigError([Problem("", why, hint, Origin("file", str(path)))])


# --- Where files live: the XDG base directories, for us


_OURS = "dragoman"


class AppFolders(Struct, frozen=True):
    """Folders of our own. Nothing here is created by asking."""

    home: Path
    config: Path
    state: Path
    runtime: Path

    @property
    def config_file(self) -> Path:
        return self.config / "config.toml"

    @property
    def key_file(self) -> Path:
        """The gateway key that is minted on first run."""
        return self.state / "key"

    @property
    def admin_socket(self) -> Path:
        return self.runtime / "admin.sock"


def app_folders(environ: Mapping[str, str]) -> AppFolders:
    """The folders for this environment. An XDG variable that is no absolute path does not count, as XDG demands."""
    home = Path(environ.get("HOME") or Path.home())
    config = _folder(environ, "XDG_CONFIG_HOME") or home / ".config"
    state = (_folder(environ, "XDG_STATE_HOME") or home / ".local" / "state") / _OURS
    runtime = _folder(environ, "XDG_RUNTIME_DIR")
    # Without a runtime folder: under our own state. A shared one such as /tmp is no place for a socket of power.
    return AppFolders(home, config / _OURS, state, runtime / _OURS if runtime else state / "run")


def expand_path(text: str, folder: Path, home: Path) -> Path:
    """A path as a person writes it in a file of that folder: `~` is their home, a relative one begins at the file."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return folder / text


def _folder(environ: Mapping[str, str], name: str) -> Path | None:
    found = Path(environ.get(name, ""))
    return found if found.is_absolute() else None


COMMAND_TIMEOUT = 10.0
MASK = "***"
_LONGEST = 64 * 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
REMEDY = (
    'write a reference: "env:NAME", "file:PATH", "keyring:SERVICE/NAME" or "cmd:COMMAND"; '
    "allow_literal_secrets = true takes it as it is"
)


class SecretUnavailable(ConfigError):
    """A reference that leads to nothing now."""


class BadReference(ValueError):
    """A reference that can lead to nothing ever; its text says why."""


class ReferenceContext(Struct, frozen=True):
    """What a reference is read against: the environment, and the folder relative paths begin at."""

    environ: Mapping[str, str]
    folder: Path
    home: Path
    timeout: float = COMMAND_TIMEOUT


class ConfiguredSecret:
    """A secret that is not shown by accident: only `reveal()` returns it. It is read at the first use and cached."""

    __slots__ = ("_find", "_key", "_lock", "_value", "shown")

    def __init__(self, shown: str, find: Callable[[], str], key: object = None) -> None:
        self.shown = shown  # the reference, or a mask
        self._find = find
        self._key = (shown, key)
        self._lock = threading.Lock()
        self._value: str | None = None

    @property
    def revealed(self) -> str | None:
        """The value if it was needed so far, for those who must keep it out of logs."""
        return self._value

    def reveal(self) -> str:
        """The value. Raises SecretUnavailable, naming the reference, if there is none. May block: see `cmd:`."""
        with self._lock:
            if self._value is None:
                self._value = self._find()
            return self._value

    def refresh(self) -> bool:
        """Read the secret again, because a file or a command may have changed. Return whether it differs."""
        found = self._find()
        with self._lock:
            changed = self._value is None or _Hidden(self._value) != _Hidden(found)
            self._value = found
            return changed

    def __repr__(self) -> str:
        return f"Secret({self.shown})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfiguredSecret) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self.shown)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written down")


def plain_value(text: str) -> ConfiguredSecret:
    """A value that is none, where one may stand: it is shown."""
    return ConfiguredSecret(text, lambda: text)


def literal_secret(text: str) -> ConfiguredSecret:
    """A secret that stands in clear in the configuration. Raises BadReference if it is no usable text."""
    value = _clean(text)
    return ConfiguredSecret(MASK, lambda: value, _Hidden(value))


def parse_reference(text: str, around: ReferenceContext) -> ConfiguredSecret | None:
    """The secret a reference names; None if the text is none. Raises BadReference for one that cannot be right."""
    scheme, found, rest = text.partition(":")
    if not found or scheme not in _FINDERS:
        return None
    rest = rest.strip()
    _check(scheme, rest)
    shown = show_reference(text)

    def find() -> str:
        try:
            return _clean(_FINDERS[scheme](rest, around))
        except BadReference as error:
            raise SecretUnavailable([Problem("", f"{shown}: {error}")]) from None

    return ConfiguredSecret(shown, find, (_Hidden(rest), around.folder))


def show_reference(text: str) -> str:
    """What may be shown of a secret's setting: a reference is none, but a command's arguments may hold one."""
    scheme, found, rest = text.partition(":")
    if not found or scheme not in _FINDERS:
        return MASK
    if scheme != "cmd":
        return text
    program, _, arguments = rest.strip().partition(" ")
    return f"cmd:{program} {MASK}" if arguments else f"cmd:{program}"


class _Hidden:
    """Compares, and is not seen."""

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
        raise BadReference("it is empty")
    if _CONTROL.search(text):
        raise BadReference("it has more than one line, or control characters")
    if not text.isascii():  # it goes into a header
        raise BadReference("it has characters that no key has")
    return text


# --- each scheme: what it may say, and how it is found


_FORMS = {
    "env": (r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable, as in env:MOONSHOT_API_KEY"),
    "file": (r"[^\0]+", "a path, as in file:~/.secrets/moonshot"),
    "keyring": (r"(?s:.+)/[^/]+", "SERVICE/NAME, as in keyring:dragoman/moonshot"),
    "cmd": (r"[^\0]+", "a command, as in cmd:pass show moonshot"),
}


def _check(scheme: str, rest: str) -> None:
    pattern, expected = _FORMS[scheme]
    if not re.fullmatch(pattern, rest):
        raise BadReference(f"{scheme}: expected {expected}")
    if scheme == "cmd":
        try:
            shlex.split(rest)
        except ValueError as error:
            raise BadReference(f"cmd: {str(error).lower()}") from None


def _from_environment(name: str, around: ReferenceContext) -> str:
    if name not in around.environ:
        raise BadReference("the variable is not set")
    return around.environ[name]


def _from_file(path: str, around: ReferenceContext) -> str:
    try:
        with expand_path(path, around.folder, around.home).open("rb") as file:
            if _is_loose(file.fileno()):
                raise BadReference("others can read it: chmod 600, or chmod 640 if it is yours by its group")
            data = file.read(_LONGEST + 1)
    except OSError as error:
        raise BadReference((error.strerror or str(error)).lower()) from None
    return _decoded(data)


def _is_loose(handle: int) -> bool:
    """Return whether other users can read a file.

    On a read-only file system (a secret of a container) the mode cannot be changed, so it is accepted.
    """
    found = os.fstat(handle)
    if not hasattr(os, "geteuid") or not stat.S_ISREG(found.st_mode):
        return False
    group = stat.S_IRWXG if found.st_uid == os.geteuid() else stat.S_IWGRP
    return bool(found.st_mode & (stat.S_IRWXO | group)) and not os.fstatvfs(handle).f_flag & os.ST_RDONLY


def _from_keyring(entry: str, around: ReferenceContext) -> str:
    service, _, name = entry.rpartition("/")
    try:
        keyring = import_module("keyring")
    except ImportError:
        raise BadReference("the package keyring is not installed (pip install keyring)") from None
    try:
        found = keyring.get_password(service, name)
    except Exception as error:  # noqa: BLE001  # its backends raise what they like
        raise BadReference(f"the keyring does not answer: {type(error).__name__}") from None
    if found is None:
        raise BadReference("the keyring has no such entry")
    return str(found)


def _from_command(command: str, around: ReferenceContext) -> str:
    words = shlex.split(command)
    if words[0].startswith("~/"):
        words[0] = str(expand_path(words[0], around.folder, around.home))
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may say what it should not
            env=dict(around.environ),
            cwd=around.folder if around.folder.is_dir() else None,
            start_new_session=True,
        )
    except OSError as error:
        raise BadReference((error.strerror or str(error)).lower()) from None
    with process:
        try:
            said, _ = process.communicate(timeout=around.timeout)
        except subprocess.TimeoutExpired:
            raise BadReference(f"no answer within {around.timeout:g} s") from None
        finally:
            _end(process)
    if process.returncode:
        raise BadReference(f"exit status {process.returncode}")
    return _decoded(said)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command with whatever it started, which might keep our pipe open for ever."""
    if process.returncode is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _decoded(data: bytes) -> str:
    if len(data) > _LONGEST:
        raise BadReference(f"it is longer than {_LONGEST} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadReference("it is no UTF-8 text") from None


_FINDERS: dict[str, Callable[[str, ReferenceContext], str]] = {
    "env": _from_environment,
    "file": _from_file,
    "keyring": _from_keyring,
    "cmd": _from_command,
}
