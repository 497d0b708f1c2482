"""Find the process that listens on a port, by /proc, as far as this user may see it."""

from __future__ import annotations

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
        if b"dragoman" in (process / "cmdline").read_bytes():
            return "another gateway"
        return (process / "comm").read_text().strip()
    except OSError:
        return "a process"
