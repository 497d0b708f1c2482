"""A real terminal for tests of commands: tmux, whose screen can be read as text."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.gateway.harness import TIMEOUT, wait_until
from tests.gateway.test_commands import UserHome


@pytest.fixture
def tmux() -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: `make tmux` installs it where apt-get may")


class Terminal:
    """A terminal of this size in a tmux server of its own."""

    def __init__(self, home: UserHome, columns: int, rows: int, shell: str) -> None:
        self._socket = home.path / "tmux"
        self._environ = home.environ({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "SHELL": "/bin/sh", "TZ": "UTC"})
        size = ("-x", str(columns), "-y", str(rows))
        self._run("-f", "/dev/null", "new-session", "-d", "-c", str(home.path), *size, f"env PS1='ready> ' {shell}")

    def _run(self, *words: str) -> str:
        command = ["tmux", "-u", "-S", str(self._socket), *words]
        done = subprocess.run(command, env=self._environ, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        return done.stdout

    def type(self, *keys: str) -> None:
        self._run("send-keys", "--", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._run("resize-window", "-x", str(columns), "-y", str(rows))

    @property
    def screen(self) -> list[str]:
        return self._run("capture-pane", "-p").split("\n")

    @property
    def text(self) -> str:
        """The screen, with lines that the terminal wrapped as one line."""
        return self._run("capture-pane", "-p", "-J")

    def shows(self, text: str) -> bool:
        return any(text in line for line in self.screen)

    def wait_for(self, text: str) -> list[str]:
        wait_until(lambda: self.shows(text))
        return self.screen

    def close(self) -> None:
        """End the terminal, and wait for its processes: a shell writes its history when it ends."""
        session = self._run("display-message", "-p", "#{pane_pid}").strip()
        self._run("kill-server")
        wait_until(lambda: not _processes_of(session))


def _processes_of(session: str) -> list[str]:
    """Return the state of each process of a session that has not ended; empty where there is no /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, its_session = stat.read_text(errors="replace").rpartition(")")[2].split()[:4]
            if its_session == session and state != "Z":
                found.append(state)
    return found


@contextmanager
def terminal(home: UserHome, columns: int, rows: int, shell: str = "sh -i") -> Iterator[Terminal]:
    opened = Terminal(home, columns, rows, shell)
    try:
        yield opened
    finally:
        opened.close()
