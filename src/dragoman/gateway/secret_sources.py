"""The sources of secrets that references name: variables, files, keyrings and commands. Does I/O."""

from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import subprocess
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from msgspec import Struct

COMMAND_TIMEOUT = 10.0  # seconds
_MAX_BYTES = 64 * 1024  # of a secret


class BadReference(ValueError):
    """A reference is malformed or its secret is unusable; the text says why."""


class NotSet(BadReference):
    """The environment variable of a reference does not exist."""


class ReferenceContext(Struct, frozen=True):
    """The environment that references are resolved in, and the folder that relative paths start at."""

    environ: Mapping[str, str]
    folder: Path
    home: Path
    timeout: float = COMMAND_TIMEOUT


def expand_path(text: str, folder: Path, home: Path) -> Path:
    """Return a path of a configuration file in `folder`: `~` is `home`, and a relative path starts at `folder`."""
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return folder / text


_FORMS = {
    "env": (r"[A-Za-z_][A-Za-z0-9_]*", "the name of a variable, as in env:MOONSHOT_API_KEY"),
    "file": (r"[^\0]+", "a path, as in file:~/.secrets/moonshot"),
    "keyring": (r"(?s:.+)/[^/]+", "SERVICE/NAME, as in keyring:dragoman/moonshot"),
    "cmd": (r"[^\0]+", "a command, as in cmd:pass show moonshot"),
}


def check_reference(scheme: str, rest: str) -> None:
    """Check the form of a reference. Raises BadReference."""
    pattern, expected = _FORMS[scheme]
    if not re.fullmatch(pattern, rest):
        raise BadReference(f"{scheme}: expected {expected}")
    if scheme == "cmd":
        try:
            shlex.split(rest)
        except ValueError as error:
            raise BadReference(f"cmd: {str(error).lower()}") from None


def _from_environment(name: str, context: ReferenceContext) -> str:
    if name not in context.environ:
        raise NotSet("the environment variable is not set")
    return context.environ[name]


def _from_file(path: str, context: ReferenceContext) -> str:
    try:
        with expand_path(path, context.folder, context.home).open("rb") as file:
            if _is_readable_by_others(file.fileno()):
                raise BadReference(
                    "other users can read the file; run chmod 600, or chmod 640 if this user has it by its group"
                )
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadReference((error.strerror or str(error)).lower()) from None
    return _decoded(data)


def _is_readable_by_others(handle: int) -> bool:
    """Return whether other users can read a file.

    On a read-only file system (a secret of a container) the mode cannot be changed, so it is accepted.
    """
    status = os.fstat(handle)
    if not hasattr(os, "geteuid") or not stat.S_ISREG(status.st_mode):
        return False
    group = stat.S_IRWXG if status.st_uid == os.geteuid() else stat.S_IWGRP
    return bool(status.st_mode & (stat.S_IRWXO | group)) and not os.fstatvfs(handle).f_flag & os.ST_RDONLY


def _from_keyring(entry: str, context: ReferenceContext) -> str:
    service, _, name = entry.rpartition("/")
    try:
        keyring = import_module("keyring")
    except ImportError:
        raise BadReference("the package keyring is not installed (pip install keyring)") from None
    try:
        password = keyring.get_password(service, name)
    except Exception as error:  # noqa: BLE001  # The backends raise exceptions of any type.
        raise BadReference(f"the keyring cannot be read: {type(error).__name__}") from None
    if password is None:
        raise BadReference("the keyring has no such entry; add it with `keyring set SERVICE NAME`")
    return str(password)


def _from_command(command: str, context: ReferenceContext) -> str:
    words = shlex.split(command)
    if words[0].startswith("~/"):
        words[0] = str(expand_path(words[0], context.folder, context.home))
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # It may contain secrets.
            env=dict(context.environ),
            cwd=context.folder if context.folder.is_dir() else None,
            start_new_session=True,
        )
    except OSError as error:
        raise BadReference((error.strerror or str(error)).lower()) from None
    with process:
        try:
            output, _ = process.communicate(timeout=context.timeout)
        except subprocess.TimeoutExpired:
            message = f"the command did not end within {context.timeout:g} s; it must not wait for input"
            raise BadReference(message) from None
        finally:
            _end(process)
    if process.returncode:
        raise BadReference(f"the command ended with status {process.returncode}; run it in a shell to see why")
    return _decoded(output)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and its children, which could keep the pipe open."""
    if process.returncode is None:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _decoded(data: bytes) -> str:
    if len(data) > _MAX_BYTES:
        raise BadReference(f"the value is longer than {_MAX_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadReference("the value is not UTF-8 text") from None


FINDERS: dict[str, Callable[[str, ReferenceContext], str]] = {
    "env": _from_environment,
    "file": _from_file,
    "keyring": _from_keyring,
    "cmd": _from_command,
}
