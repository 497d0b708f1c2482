"""Say why a server cannot listen, and find the process that has its port, by /proc, as far as this user may see it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

_LISTENING = "0A"  # state of a socket in /proc/net/tcp


def find_listener(port: int) -> str:
    """Return `NAME (pid N)` of the process that listens on a port; empty if it is another user's, or without /proc."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return ""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            with os.scandir(process / "fd") as entries:
                if any(_target(entry) in wanted for entry in entries):
                    return f"{_name(process)} (pid {process.name})"
        except OSError:  # another user's process, or it has ended
            continue
    return ""


def _inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, rows):
            if len(fields) > 9 and fields[3] == _LISTENING and fields[1].endswith(f":{port:04X}"):
                yield fields[9]


def _target(entry: os.DirEntry[str]) -> str:
    try:
        return os.readlink(entry.path)  # noqa: PTH115  no path: `socket:[N]`
    except OSError:
        return ""


def _name(process: Path) -> str:
    try:
        command = (process / "cmdline").read_bytes()
        if b"dragoman" in command:
            return "a simulator" if b"\0sim\0" in command else "another gateway"
        return (process / "comm").read_text().strip()
    except OSError:
        return "a process"


def explain_listen_error(host: str, port: int, error: OSError, other: str = "") -> str:
    """Return why a server cannot listen, and what to do. `other` is what it opens beside the port."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    match error.errno:
        case errno.EADDRINUSE:
            process = find_listener(port) or "another process"
            return f"{address} is in use by {process}. Stop it, or choose another port: --port 0 picks a free one."
        case errno.EACCES | errno.EPERM if port < 1024:
            return f"cannot listen on {address}: ports below 1024 need privileges. Choose another with --port."
        case errno.EADDRNOTAVAIL:
            return (
                f"cannot listen on {address}: this machine has no such address. Use --host 127.0.0.1 for local clients."
            )
        case _:
            return f"cannot listen on {address}{f', or on {other}' if other else ''}: {error.strerror or error}."
