"""A newcomer's walk in a real terminal (tmux): the commands of the README in their order, with their screens as text.

The screens are compared with `tests/screens/walk`. What differs from run to run (ids, times, ports, the version) is
replaced by text of the same length. `WALK=write` writes the files anew; read the diff before you commit it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman._version import __version__
from tests.gateway.harness import wait_until
from tests.gateway.terminal import Terminal, terminal, tmux
from tests.gateway.test_commands import UserHome

__all__ = ["tmux"]  # fixtures

FOLDER = Path(__file__).parents[1] / "screens/walk"
_ROWS = 120
_PROMPT = "ready> "
_VARYING = (
    (r"req_[0-9a-f]{32}", lambda found: "req_" + "0" * 32),
    (r"\b\d\d-\d\d(?= \d\d:\d\d:\d\d)(?<!\d-\d\d-\d\d)", lambda _: "01-02"),
    (r"\b20\d\d-\d\d-\d\d\b", lambda _: "2026-01-02"),
    (r"\b\d\d:\d\d:\d\d(\.\d+)?", lambda found: re.sub(r"\d", "0", found[0])),
    (r"(?<=127\.0\.0\.1:)\d{5}", lambda _: "12345"),
    (r"(?<=pid )\d+", lambda _: "1234"),
    (r"(?<=up )\d+ \w+ +(?=\d\d:)", lambda _: "N s  "),  # the spaces put the clock at the end of the line
    (r"(?<=time {6})\d+(\.\d+)? ms\b", lambda _: "N ms"),  # aligned at the left
    (r" {2,}\d+(\.\d+)? ms\b", lambda found: "N ms".rjust(len(found[0]))),  # in a column, aligned at the right
    (r"\b\d+(\.\d+)? ?(ms|s|h|min|MB|MiB|KiB|tok/s)\b", lambda found: f"N {found[2]}"),
    (r"\b\d+(\.\d+)?%", lambda _: "N%"),
    (r"\d+\.\d(?= (requests/s|tokens/s|out|errors/min))", lambda _: "N"),
    (r"(?<=ok {11}0 {5}0 {5})\d\.\d", lambda _: "N.N"),
    (r"dgm_[\w-]+", lambda _: "dgm_KEY"),
    (r"\b\d+ bytes", lambda _: "N bytes"),
)


@pytest.fixture
def short_home() -> Iterator[UserHome]:
    """A home whose path is of the same length everywhere: it decides where lines wrap."""
    with tempfile.TemporaryDirectory(prefix="dgm", dir="/tmp") as folder:
        yield UserHome(Path(folder))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Walk:
    """A shell in a terminal, and the screens that its commands left."""

    def __init__(self, home: UserHome, shell: Terminal, columns: int) -> None:
        self._home, self._shell, self._columns = home, shell, columns
        self.screens: dict[str, str] = {}
        self._shell.wait_for(_PROMPT.strip())

    def run(self, name: str, command: str, until: str = "") -> None:
        """Type a command into an empty screen, wait for its end, and take the screen."""
        self._shell.type("clear", "Enter")
        wait_until(lambda: "".join(self._shell.screen).strip() == _PROMPT.strip())
        self._shell.type(command if until else f"{command}; echo do''ne $?", "Enter")
        self._shell.wait_for(until or "done ")
        text = self._shell.text
        if name == "6-log":
            text = _log_lines_unwrapped(text)
        self.screens[f"{name}-{self._columns}.txt"] = self._plain(text)

    def _plain(self, text: str) -> str:
        text = text.replace(str(self._home.path), "~").replace(__version__, "VERSION")
        for pattern, by in _VARYING:
            text = re.sub(pattern, by, text)
        lines = [line.rstrip() for line in text.splitlines()]
        wrapped = [line[at : at + self._columns] for line in lines for at in range(0, len(line) or 1, self._columns)]
        return "\n".join(wrapped).strip("\n") + "\n"


def _log_lines_unwrapped(text: str) -> str:
    """Return the log with each request on one line: its times decide where it wraps. A warning to root is left out."""
    joined = re.sub(r"\n  (?! )", " ", text)
    joined = re.sub(r"(?m)^20.* WARNING root .*\n", "", joined)
    return "\n".join(" ".join(line.split()) if line[:2] == "20" else line for line in joined.split("\n"))


def ask(port: int, key: str) -> None:
    """Send what Claude Code would send: a request with a tool, of which the simulator's dialect must change parts."""
    tool = {"name": "get_weather", "description": "The weather", "input_schema": {"type": "object", "properties": {}}}
    body = {
        "model": "claude-sonnet-4.5",
        "max_tokens": 50,
        "tools": [tool],
        "messages": [{"role": "user", "content": "Say hi"}],
    }
    headers = {"x-api-key": key, "content-type": "application/json", "anthropic-version": "2023-06-01"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        assert json.load(response)["stop_reason"] == "end_turn"


@pytest.mark.usefixtures("tmux")
@pytest.mark.parametrize("columns", [80, 120])
def test_the_walk_shows_the_screens_that_it_showed(short_home: UserHome, columns: int) -> None:
    home = short_home
    port = free_port()
    config = home.path / ".config/dragoman/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[server]\nport = {port}\n")
    shell = f"env PATH={Path(sys.executable).parent}:{os.environ['PATH']} sh -i"
    with terminal(home, columns, _ROWS, shell) as opened:
        walk = Walk(home, opened, columns)
        walk.run("0-help", "dragoman")
        walk.run("0-demo", "dragoman demo --brief")
        walk.run("1-version", "dragoman --version")
        walk.run("2-check", "dragoman config check")
        walk.run("2-not-running", "dragoman status")
        walk.run("3-serve", "dragoman serve 2>log &", until="us-east-1")
        ask(port, home.key_file.read_text().strip())
        walk.run("4-status", "dragoman status")
        walk.run("5-models", "dragoman models")
        walk.run("6-log", "dragoman log --notes")
        walk.run("7-explain", "dragoman explain")
        walk.run("7-last", "dragoman explain last")
        walk.run("8-top", "dragoman top --once")
        config.write_text(f"[server]\nport = {port}\n[log]\nlevel = 'debug'\n")
        walk.run("9-reload", "dragoman reload")
        opened.type("kill %1; wait; echo stop''ped", "Enter")
        opened.wait_for("stopped")
    if os.environ.get("WALK") == "write":
        FOLDER.mkdir(exist_ok=True)
        for name, text in walk.screens.items():
            (FOLDER / name).write_text(text)
    for name, text in walk.screens.items():
        assert text == (FOLDER / name).read_text(), name
