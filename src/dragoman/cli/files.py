"""What several commands do with their FILE argument and their complaints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from dragoman.cli.terminal import plain

CHUNK = 64 * 1024


class Unreadable(Exception):
    """A file that cannot be read; its text is the sentence to print."""


def read(name: str) -> bytes:
    """All of a file, or of standard input for `-`."""
    return b"".join(chunks(name))


def chunks(name: str) -> Iterator[bytes]:
    """A file piece by piece, as it comes."""
    try:
        if name == "-":
            while chunk := os.read(sys.stdin.fileno(), CHUNK):  # what is there, without waiting for more
                yield chunk
        else:
            with Path(name).open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
    except OSError as error:
        raise Unreadable(f"{name}: {error.strerror or error}") from None


def complain(sentence: object, status: int) -> int:
    """Say what is wrong on standard error and give the exit status."""
    print(f"dragoman: {plain(sentence)}", file=sys.stderr)
    return status
