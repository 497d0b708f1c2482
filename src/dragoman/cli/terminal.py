"""Shared by the commands: styled and safe terminal output, reading of FILE arguments, errors with an exit status."""

from __future__ import annotations

import os
import re
import shutil
import sys
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from dragoman.cli.layout import fold, table
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# Control characters and marks that change the direction of text; not the joiners that scripts and emoji need.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_SILENT = 1.0  # seconds before a notice says what takes so long
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


class Paint:
    """Styles text for a terminal; text for other streams, or with NO_COLOR, stays plain."""

    def __init__(self, stream: TextIO | None) -> None:  # a service may have no standard output
        self.is_terminal = stream is not None and stream.isatty()
        self._on = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def __call__(self, text: str, *styles: str) -> str:
        if not self._on or not styles or not text:
            return text
        codes = ";".join(_STYLES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"


def replace_unencodable(stream: TextIO | None) -> None:
    """Make a stream write `?` for a character that its encoding lacks, instead of raising an error."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="replace")


def width(most: int = 120) -> int:
    """Return the number of columns to use, at most `most`."""
    return min(shutil.get_terminal_size((100, 24)).columns, most)


def columns_of(stream: TextIO | None) -> int | None:
    """Return how many columns a stream has: None if it is no terminal, so that its lines are not wrapped."""
    if stream is None or not stream.isatty():
        return None
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # it has no size, or is no file
        return None


def say(text: str, stream: TextIO | None = None, *, rest: str = "  ") -> None:
    """Print lines of text, wrapped at words on a terminal; `rest` begins each further line of a line."""
    stream = sys.stdout if stream is None else stream
    columns = columns_of(stream)
    for line in text.split("\n"):
        print("\n".join(fold(line, columns, rest=rest)), file=stream, flush=stream is sys.stderr)


def table_lines(rows: Sequence[Sequence[str]], paint: Paint, right: Collection[int] = ()) -> Iterator[str]:
    """Yield the lines of a table on standard output, whose first row is its head (see `layout.table`)."""
    for number, line in table(rows, columns_of(sys.stdout), right):
        yield line if number else paint(line, "dim")


def plain(text: object) -> str:
    """Return untrusted text with its lines, and with control characters replaced by spaces."""
    return _CONTROL.sub(" ", str(text))


def one_line(text: object, longest: int = 300) -> str:
    """Return untrusted text on one line, cut at `longest`, with unprintable characters replaced by spaces."""
    plain = "".join(char if char.isprintable() else " " for char in str(text))
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


# --- files and errors


CHUNK = 64 * 1024
EXIT_BAD_CONFIG, EXIT_NOT_RUNNING, EXIT_LOGIN_NEEDED = 3, 4, 5  # exit statuses


class CommandError(Exception):
    """Ends a command: the text is the sentence to print, `status` the exit status."""

    def __init__(self, why: object, status: int = 1) -> None:
        super().__init__(str(why))
        self.status = status


def read_input(name: str) -> bytes:
    """Return the bytes of a file, or of standard input for `-`. Raises CommandError."""
    return b"".join(read_chunks(name))


def read_chunks(name: str) -> Iterator[bytes]:
    """Yield the bytes of a file, or of standard input for `-`, as they arrive. Raises CommandError."""
    try:
        if name == "-":
            while chunk := os.read(
                sys.stdin.fileno(), CHUNK
            ):  # returns what has arrived, without waiting for a full chunk
                yield chunk
        else:
            with Path(name).open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
    except OSError as error:
        raise CommandError(f"{name}: {error.strerror or error}") from None


def print_error(sentence: object, status: int, cause: object = "") -> int:
    """Print the cause, if any, and the sentence to standard error; return `status`."""
    if cause:
        say(plain(cause), sys.stderr)
    print_notice(sentence)
    return status


def print_notice(sentence: object) -> None:
    """Print a message to standard error, prefixed with `dragoman:`."""
    say(f"dragoman: {plain(sentence)}", sys.stderr)


@contextmanager
def notice_if_slow(what: str) -> Iterator[None]:
    """Print a notice about the work inside if it takes longer than a second."""
    from threading import Timer  # few commands need it

    timer = Timer(_SILENT, print_notice, (f"{what} …",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def named_values(option: str, texts: Sequence[str]) -> dict[str, Json]:
    """Parse the NAME=VALUE texts of a repeated option; a value that is not JSON is a string. Raises CommandError."""
    values: dict[str, Json] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise CommandError(f"{option} {text}: expected NAME=VALUE.", 2)
        try:
            values[name] = jsonio.decode(value)
        except jsonio.JsonError:
            values[name] = value
    return values


def port_number(text: str) -> int:
    """Parse a port number, as a `type` for argparse."""
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"a port must be a number from 0 to 65535, not {text!r}")
    return int(text)
