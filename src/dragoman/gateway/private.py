"""Files nobody else may read, and the gateway's own key, which is made on first run."""

from __future__ import annotations

import os
import secrets
import stat
import time
from contextlib import suppress
from pathlib import Path

from dragoman.gateway.problems import ConfigError, Origin, Problem
from dragoman.gateway.secrets import BadReference, Secret, literal

KEY_PREFIX = "dgm_"
_SHORTEST_KEY = 16
_FEWEST_CHARACTERS = 8  # different ones
_PLACEHOLDER = ("changeme", "change-me", "your-", "placeholder", "example", "dummy", "xxxx", "sk-...", "replace")
_EXTRA = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_PART = ".dragoman-part"  # how the name of a file ends while it is written
_ABANDONED = 60.0  # seconds after which whoever wrote it was killed


class _Taken(Exception):
    """The file is there already."""


def gateway_key(configured: Secret | None, key_file: Path) -> Secret:
    """The key clients must give: the configured one, else the minted one, made now if need be. Raises ConfigError."""
    if configured is None:
        return minted_key(key_file)
    value = configured.reveal()
    if len(value) < _SHORTEST_KEY or value.lower().startswith(_PLACEHOLDER) or _is_plain(value):
        hint = (
            "leave server.key out, and one is made; or: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
        raise ConfigError([Problem("server.key", f"{configured.shown} is too short, or a placeholder", hint)])
    return configured


def _is_plain(value: str) -> bool:
    """Whether somebody just held down a key, or counted."""
    return len(set(value)) < _FEWEST_CHARACTERS or value.isdecimal()


def minted_key(path: Path) -> Secret:
    """The key in this file; the first to ask makes it. Raises ConfigError if the file cannot be had, or trusted."""
    try:
        if not path.exists():
            make_private_folder(path.parent)
            with suppress(_Taken):  # another process was first: its key is the key
                write_private(path, f"{KEY_PREFIX}{secrets.token_urlsafe(32)}\n".encode(), replace=False)
        return literal(read_private(path).decode())
    except OSError as error:
        raise _refused(path, (error.strerror or str(error)).lower(), "is the folder yours, and writable?") from None
    except (BadReference, UnicodeDecodeError):
        raise _refused(path, "it holds no key", "remove it, and a new one is made") from None


def make_private_folder(folder: Path) -> None:
    """Make the folder, or make it private. Raises ConfigError if it is somebody else's."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in missing:
        _sync_folder(each.parent)
    if not hasattr(os, "geteuid"):
        return
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise _refused(folder, "this folder is another user's", "XDG_STATE_HOME and XDG_RUNTIME_DIR say which to use")
    if found.st_mode & _OTHERS:
        folder.chmod(0o700)


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
    """Write the file whole or not at all, readable by nobody else at any moment. Its folder must be there."""
    remove_parts(path.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}{_PART}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _EXTRA, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            part.replace(path)
        else:
            _place_new(part, path)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


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


def _sync_folder(folder: Path) -> None:
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refused(path: Path, why: str, hint: str) -> ConfigError:
    return ConfigError([Problem("", why, hint, Origin("file", str(path)))])
