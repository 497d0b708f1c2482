"""`dragoman log`: print the last requests and events of the running gateway, and follow them.

The gateway keeps them in memory and sends them through its admin socket, so this works without a log file.
"""

from __future__ import annotations

import asyncio
import sys
import textwrap
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from msgspec import Struct

from dragoman.cli.layout import count_of, fold
from dragoman.cli.status import add_gateway_options, configured_socket, find_socket, no_gateway
from dragoman.cli.terminal import (
    Paint,
    columns_of,
    one_line,
    plain,
    print_error,
    print_notice,
    replace_unencodable,
    width,
)
from dragoman.gateway.log_filter import FilterError, parse_filter
from dragoman.gateway.records import LoggedRequest, LogLine, epoch_of, event_text, local_time, request_text
from dragoman.wire import jsonio

_DEFAULT_LINES = 20
_RETRY = 0.3  # seconds between two attempts to connect again
_WIDEST = 200
_LEVELS = {"warning": "yellow", "error": "red", "debug": "dim"}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman log`."""
    parser.add_argument("-f", "--follow", action="store_true", help="print further lines as they come, until ctrl-C")
    parser.add_argument(
        "-n",
        dest="lines",
        metavar="N",
        type=_line_count,
        default=_DEFAULT_LINES,
        help=f"how many of the last lines to print first (default: {_DEFAULT_LINES})",
    )
    parser.add_argument(
        "--notes", action="store_true", help="below each request: attempts that failed, and changes by the translation"
    )
    parser.add_argument(
        "filter",
        nargs="*",
        metavar="FILTER",
        help="only requests that match all words, such as 'upstream:kiro status:>=400 -tool:Bash' (docs/inspector.md)",
    )
    add_gateway_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON object per line")


def _line_count(text: str) -> int:
    if not text.isdecimal() or len(text) > 7:
        raise ArgumentTypeError(f"expected a number of lines from 0 to 9999999, not {text!r}")
    return int(text)


def run(arguments: Namespace) -> int:
    """Run `dragoman log`; return the exit status."""
    replace_unencodable(sys.stdout)
    try:
        parse_filter(_filter_of(arguments))
    except FilterError as error:
        return print_error(f"the filter is not valid: {error.show(_filter_of(arguments))}", 2)
    return asyncio.run(_Reader(arguments).run())


def _filter_of(arguments: Namespace) -> str:
    return " ".join(arguments.filter)


class _Reader:
    """Reads the log of one gateway; when it follows, also that of the gateway that is started after it."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._printer = LinePrinter(arguments.json, arguments.notes, Paint(sys.stdout), columns_of(sys.stdout))
        self._cursor = self._instance = ""

    async def run(self) -> int:
        """Print lines until there are no more; when it follows, for ever."""
        place, port = configured_socket(self._arguments.config), self._arguments.port
        socket = find_socket(place, port)
        if not await self._read(socket):
            raise no_gateway(socket)
        while self._arguments.follow:
            print_notice("the connection to the gateway ended; waiting for it to come back (ctrl-C ends).")
            while not await self._read(find_socket(place, port)):
                await asyncio.sleep(_RETRY)
        return 0

    async def _read(self, socket: Path) -> bool:
        """Print the lines of the gateway that listens on this socket. Return whether there was one."""
        from dragoman.gateway import admin

        wanted = _filter_of(self._arguments)
        options = {"details": int(self._arguments.notes), "follow": int(self._arguments.follow), "filter": wanted}
        begin = {"cursor": self._cursor} if self._cursor else {"n": self._arguments.lines}
        is_connected = False
        try:
            async for line in admin.stream_lines(socket, f"/log?{urlencode({**options, **begin})}"):
                is_connected = True
                self._take(line)
        except OSError:
            return is_connected
        return True

    def _take(self, line: bytes) -> None:
        fields = jsonio.decode_object(line) or {}
        match fields.get("control"):
            case None:
                self._printer.print(line, fields)
            case "gateway":
                instance = str(fields.get("instance"))
                if self._instance:
                    again = "is back" if instance == self._instance else "was restarted"
                    print_notice(f"the gateway {again} (pid {fields.get('pid')}).")
                self._instance = instance
            case "missed":
                print_notice(f"lines are missing here: {fields.get('lines')} came faster than they were read.")
            case "cursor":
                self._cursor = str(fields.get("cursor"))
            case _:
                pass


class LinePrinter(Struct, frozen=True):
    """Prints the lines of a log, as JSON or as text."""

    as_json: bool
    notes: bool
    paint: Paint
    columns: int | None = None  # of the terminal, where long lines are wrapped

    def print(self, line: bytes, fields: LogLine) -> None:
        """Print one line of the log, as it came and decoded."""
        if self.as_json:
            print(line.decode(), flush=True)
        else:
            print("\n".join(self.text(line, fields)), flush=True)

    def text(self, line: bytes, fields: LogLine) -> Iterator[str]:
        """Yield the lines of text for one line of the log."""
        when = local_time(epoch_of(str(fields.get("ts"))))
        level = str(fields.get("level"))
        mark = "" if level == "info" else self.paint(f"{level.upper()} ", *filter(None, [_LEVELS.get(level)]))
        if fields.get("event") != "request":
            yield self._folded(f"{self.paint(when, 'dim')} {mark}{one_line(event_text(fields), 2000)}")
            return
        entry = _read_request(line)
        yield self._folded(f"{self.paint(when, 'dim')} {mark}{self._colored(entry)}")
        if self.notes:
            yield from note_lines(entry, width(_WIDEST))

    def _folded(self, line: str) -> str:
        return "\n".join(fold(line, self.columns, rest="  "))

    def _colored(self, entry: LoggedRequest) -> str:
        text = one_line(request_text(entry), 4000)
        style = "green" if entry.status < 400 and entry.outcome == "ok" else "yellow" if entry.status < 500 else "red"
        return self.paint(text[:3], style) + text[3:]


_read_request = jsonio.typed_decoder(LoggedRequest)


def note_lines(entry: LoggedRequest, columns: int) -> Iterator[str]:
    """Yield the attempts of a request that failed, and the changes by its translation, wrapped to `columns` columns."""
    texts = [
        *(
            f"attempt at {each.upstream}{f' ({each.credential})' if each.credential else ''} failed after "
            f"{each.seconds:.1f} s, {each.reason}: {each.error}"
            for each in entry.failures
        ),
        *map(str, entry.changes),
    ]
    more = entry.notes - len(entry.changes)
    if entry.changes and more > 0:
        texts.append(f"{count_of(more, 'more change')} not kept")
    for text in texts:
        yield textwrap.fill(
            plain(one_line(text, 2000)),
            max(columns, 40),
            initial_indent="    ",
            subsequent_indent="      ",
            break_on_hyphens=False,
        )
