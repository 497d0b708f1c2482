"""`dragoman top`: running requests, rates and upstreams of the running gateway, live in the terminal.

The screen is redrawn once a second, each time by one write. Keys: `q` quits, `p` pauses, `s` changes the order of
requests. When it ends, the terminal has what it had before. Without a terminal, or with `--once`, one frame is printed.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import structs

from dragoman.cli.status import add_gateway_options, configured_socket, find_socket, no_gateway
from dragoman.cli.terminal import Paint, replace_unencodable
from dragoman.cli.top_screen import SORT_ORDERS, TopView, render_screen
from dragoman.gateway.activity import ActivitySummary
from dragoman.wire import jsonio

_SECONDS = 1.0
# The alternate screen, without a cursor; long lines are cut, not wrapped.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[?2026l"  # terminals that can show all of a frame at once do so
_CLEAR_LINE = "\x1b[2K"  # before a line: after one that fills the screen, it would remove its last character


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman top`."""
    parser.add_argument("--once", action="store_true", help="print one frame and end")
    add_gateway_options(parser)
    parser.add_argument("--json", action="store_true", help="print the data of one frame as JSON")


def run(arguments: Namespace) -> int:
    """Run `dragoman top`; return the exit status."""
    replace_unencodable(sys.stdout)
    place, port = configured_socket(arguments.config), arguments.port
    is_live = not arguments.json and not arguments.once and _is_screen()
    return asyncio.run(_LiveView(place, port).run() if is_live else _print_once(place, port, as_json=arguments.json))


def _is_screen() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


_read_activity = jsonio.typed_decoder(ActivitySummary)


async def _fetch(socket: Path) -> ActivitySummary | None:
    """Return what the gateway does now; None if no gateway listens on this socket."""
    from dragoman.gateway import admin

    try:
        return _read_activity(await admin.fetch(socket, "/activity"))
    except (OSError, jsonio.JsonError):
        return None


async def _print_once(place: Path, port: int | None, *, as_json: bool) -> int:
    socket = find_socket(place, port)
    data = await _fetch(socket)
    if data is None:
        raise no_gateway(socket)
    if as_json:
        print(jsonio.encode_pretty(data).decode())
    else:
        columns = shutil.get_terminal_size((100, 24)).columns
        print("\n".join(render_screen(data, TopView(), time.time(), columns, None, Paint(sys.stdout))))
    return 0


class _LiveView:
    """The screen, and what the keys do."""

    def __init__(self, place: Path, port: int | None) -> None:
        self._place, self._port = place, port
        self._paint = Paint(sys.stdout)
        self._view = TopView()
        self._data: ActivitySummary | None = None
        self._at = 0.0  # when the data was fetched
        self._changed = asyncio.Event()
        self._is_over = False

    async def run(self) -> int:
        """Draw until a key or a signal ends it."""
        socket = find_socket(self._place, self._port)
        self._data, self._at = await _fetch(socket), time.time()
        if self._data is None:
            raise no_gateway(socket)
        with _raw_screen() as (enter, leave):
            self._watch(enter, leave)
            while not self._is_over:
                self._draw()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _SECONDS)
                if self._changed.is_set():
                    self._changed.clear()
                elif not self._view.is_paused:
                    await self._refresh()
        return 0

    async def _refresh(self) -> None:
        data = await _fetch(find_socket(self._place, self._port))
        if data is None:
            problem = f"no gateway answers since {time.strftime('%H:%M:%S', time.localtime(self._at))}"
            self._view = structs.replace(self._view, problem=problem)
        else:
            self._data, self._at = data, time.time()
            self._view = structs.replace(self._view, problem="")

    def _watch(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        """Handle keys and signals."""
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), self._read_keys)
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._end)

        def suspend() -> None:
            leave()
            os.kill(os.getpid(), signal.SIGSTOP)  # until the shell continues this process
            enter()
            self._changed.set()

        loop.add_signal_handler(signal.SIGTSTP, suspend)

    def _end(self) -> None:
        self._is_over = True
        self._changed.set()

    def _read_keys(self) -> None:
        keys = os.read(sys.stdin.fileno(), 64)
        if not keys:  # The terminal is gone.
            self._end()
        for key in keys.decode("latin-1"):
            self._press(key)

    def _press(self, key: str) -> None:
        view = self._view
        match key:
            case "q" | "Q":
                self._end()
            case "p" | "P" | " ":
                self._view = structs.replace(view, is_paused=not view.is_paused)
            case "s" | "S":
                following = SORT_ORDERS[(SORT_ORDERS.index(view.order) + 1) % len(SORT_ORDERS)]
                self._view = structs.replace(view, order=following)
            case _:
                return
        self._changed.set()

    def _draw(self) -> None:
        assert self._data is not None
        size = shutil.get_terminal_size()
        now = self._at if self._view.is_paused else time.time()
        lines = render_screen(self._data, self._view, now, size.columns, size.lines, self._paint)
        # One write, and the screen is not cleared before it: it does not flicker.
        _write(_BEGIN + "\r\n".join(f"{_CLEAR_LINE}{line}" for line in lines) + _END)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def _raw_screen() -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Use the alternate screen, and read keys without waiting for a line. Give the functions that begin and end it."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def enter() -> None:
        tty.setcbreak(terminal)
        _write(_ENTER)

    def leave() -> None:
        _write(_LEAVE)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)

    enter()
    try:
        yield enter, leave
    finally:
        leave()
