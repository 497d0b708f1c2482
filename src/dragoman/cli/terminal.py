"""What several commands do with a terminal, their FILE argument and their complaints."""

from __future__ import annotations

import os
import re
import shutil
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# What a terminal obeys, and what turns the direction of text; not the joiners that scripts and emoji need.
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


class Paint:
    """Styles text for a stream, or leaves it: colours are for terminals, and NO_COLOR ends them."""

    def __init__(self, stream: TextIO | None) -> None:  # a service may have been given none
        shows = stream is not None and stream.isatty()
        self._on = shows and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, *styles: str) -> str:
        if not self._on or not styles or not text:
            return text
        codes = ";".join(_STYLES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"


def replace_unencodable(stream: TextIO | None) -> None:
    """Let a terminal that cannot write a character write another: no command shall fail over an arrow."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")


def width(most: int = 120) -> int:
    """How many columns to use."""
    return min(shutil.get_terminal_size((100, 24)).columns, most)


def plain(text: object) -> str:
    """Text of others, line by line as it is, without what a terminal would obey."""
    return _OBEYED.sub(" ", str(text))


def one_line(text: object, longest: int = 300) -> str:
    """Text of others on one line, without what a terminal would obey."""
    plain = "".join(char if char.isprintable() else " " for char in str(text))
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


# --- files and complaints


CHUNK = 64 * 1024
EXIT_BAD_CONFIG, EXIT_NOT_RUNNING, EXIT_LOGIN_NEEDED = 3, 4, 5  # exit statuses


class CommandError(Exception):
    """Why a command ends, as the sentence to print, and its exit status."""

    def __init__(self, why: object, status: int = 1) -> None:
        super().__init__(str(why))
        self.status = status


def read_input(name: str) -> bytes:
    """All of a file, or of standard input for `-`."""
    return b"".join(read_chunks(name))


def read_chunks(name: str) -> Iterator[bytes]:
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
        raise CommandError(f"{name}: {error.strerror or error}") from None


def print_error(sentence: object, status: int, cause: object = "") -> int:
    """Say on standard error what is wrong, after what caused it, and give the exit status."""
    if cause:
        print(plain(cause), file=sys.stderr)
    print_notice(sentence)
    return status


def print_notice(sentence: object) -> None:
    """Say something to the person, on standard error."""
    print(f"dragoman: {plain(sentence)}", file=sys.stderr)


def named_values(option: str, texts: Sequence[str]) -> dict[str, Json]:
    """Read the NAME=VALUE of an option that may be repeated; a value is JSON, or else a string."""
    found: dict[str, Json] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"{option} {text}: expected NAME=VALUE", 2)
        try:
            found[name] = jsonio.decode(value)
        except jsonio.JsonError:
            found[name] = value
    return found


def port_number(text: str) -> int:
    """A port, for argparse."""
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r}")
    return int(text)
