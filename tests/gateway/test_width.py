"""Every command respects the width of its terminal: in a terminal of 40 or 80 columns no sentence runs over the edge."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from dragoman.cli.layout import display_width
from tests.gateway.test_commands import SIMULATED, UserHome, home

__all__ = ["home"]

_MODEL = "模型-🙂-with-a-name-of-many-characters"
_KEYED = '[upstreams.keyed]\npreset = "moonshot"\nkey = "env:NO_SUCH_KEY"\nbase_url = "http://127.0.0.1:9"\n'
_WITH_GATEWAY = (
    "status", "log", "log --notes", "explain", "explain last", "top --once", "models", "cooldown", "reload",
    "keys create a-name --limit 5requests/min", "keys list", "usage --by day,key,model,upstream", "explain no-such-id",
)  # fmt: skip
_ALONE = (
    "", "demo --brief", "no-such-command",
    "config check", "doctor --offline", "dialects", "raw-tools list", "check --dialect kiro --rules", "auth list", "auth logout",
    "prices list --model claude-*", "prices check", "models --offline", "init --print", "serve --port 1 --host 192.0.2.1",
    "sim kiro --limit x=1", "run no-such-client", "run --upstream no-such claude", "status --port 9", "reload --port 9",
)  # fmt: skip
# What is to be copied or read by programs is not wrapped: examples of raw tool calls, TOML.
_LITERAL = ("raw-tools list", "init --print")


def screen(home: UserHome, columns: int, words: str, **more: str) -> list[str]:
    """Run a command in a terminal of this width, and return the lines that it prints, without styles."""
    terminal, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    usual = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", "DRAGOMAN_CONFIG": str(home.path / "c.toml")}
    environ = home.environ({**usual, **more})
    command = [sys.executable, "-m", "dragoman", *words.split()]
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environ, start_new_session=True):
        os.close(child)
        written = b"".join(_read(terminal))
    return written.decode().replace("\r\n", "\n").split("\n")


def _read(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # the child has ended
        while data := os.read(terminal, 65536):
            yield data
    os.close(terminal)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)  # "$(cat FILE)" is one word
    except ValueError:
        return line.split()


def too_long(lines: list[str], columns: int) -> list[str]:
    """Return the lines that are too long though they could have been wrapped: that are more than one word."""
    texts = (re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip("\\ ") for line in lines)
    return [
        text for text in texts if display_width(text) > columns and len(_words(text)) > 1 + text.startswith("    -")
    ]


@pytest.mark.parametrize("columns", [40, 80])
def test_no_command_writes_over_the_edge(columns: int, home: UserHome) -> None:
    home.write(
        "c.toml", f'{SIMULATED}{_KEYED}[store]\n[[routes]]\nmatch = "{_MODEL}"\nupstream = "sim"\nmodel = "auto"\n'
    )
    with ThreadPoolExecutor(4) as pool:
        with home.serving("--config", str(home.path / "c.toml")) as served:
            assert served.say("Hello", _MODEL)[0] == 200
            assert served.say("Hello", "keyed/kimi-k2.5")[0] == 500
            shown = dict(
                zip(_WITH_GATEWAY, pool.map(lambda words: screen(home, columns, words), _WITH_GATEWAY), strict=True)
            )
        shown |= dict(zip(_ALONE, pool.map(lambda words: screen(home, columns, words), _ALONE), strict=True))
    assert _MODEL in "".join(shown["models"]) and "NO_SUCH_KEY" in "".join(shown["status"])
    assert not [words for words, lines in shown.items() if "Traceback" in "".join(lines)]
    wide = {
        words: lines for words, found in shown.items() if words not in _LITERAL and (lines := too_long(found, columns))
    }
    assert not wide, "\n".join(f"{words}: {line}" for words, lines in wide.items() for line in lines)


def test_colours_are_for_terminals_and_not_for_those_who_refuse_them(home: UserHome) -> None:
    home.write("c.toml", SIMULATED)
    assert "\x1b[" in "".join(screen(home, 80, "doctor --offline"))
    assert "\x1b[" not in home.run("doctor", "--offline").stdout
    for refusal in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert "\x1b[" not in "".join(screen(home, 80, "doctor --offline", **refusal))
