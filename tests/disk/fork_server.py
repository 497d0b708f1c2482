"""A process that writers are forked from: it has imported everything and runs no thread, so that a writer begins at once.

Each line on its standard input is one order, each line on its standard output the outcome, both JSON:
{"kind", "folder", "url", "after"}: a writer runs until `after` seconds past its first word, is killed, and what it
left is read by a fresh process. {"race": …}: several run at once. {"limit": …}: one runs with no room for files.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.disk.state_kinds import KINDS, Report

_PATIENCE = 30.0  # seconds for a first word


class Child:
    """A forked process, and what it says."""

    def __init__(self, work: Callable[[Report], object]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            status = 1
            try:
                work(lambda word: _say(writing, word))
                status = 0
            except BaseException:  # noqa: BLE001  it must not return into the nursery
                _say(writing, f"trouble: {traceback.format_exc()}")
            finally:
                os._exit(status)
        os.close(writing)
        self._reading = reading
        self._raw = b""

    def first_word(self) -> None:
        ready, _, _ = select.select([self._reading], [], [], _PATIENCE)
        assert ready, "it says nothing"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def words(self) -> list[str]:
        """All it said, once it is dead."""
        while piece := os.read(self._reading, 1 << 16):
            self._raw += piece
        os.close(self._reading)
        os.waitpid(self.pid, 0)
        return [json.loads(line) for line in self._raw.splitlines()]


def _say(descriptor: int, word: str) -> None:
    os.write(descriptor, json.dumps(word).encode() + b"\n")  # shorter than a pipe's buffer: whole or not at all


def _killed(order: dict[str, Any]) -> dict[str, Any]:
    kind, folder = KINDS[order["kind"]], Path(order["folder"])
    writer = Child(lambda say: kind.write(folder, order["url"], say))
    writer.first_word()
    time.sleep(order["after"])
    writer.kill()
    said = writer.words()
    found = Child(lambda say: say(kind.read(folder, order["url"]))).words()
    return {"said": said, "found": found}


def _raced(order: dict[str, Any]) -> dict[str, Any]:
    """Several at once for a time; `kills`: one after the other is killed and replaced."""
    kind, folder = KINDS[order["kind"]], Path(order["folder"])

    def begin() -> Child:
        child = Child(lambda say: kind.write(folder, order["url"], say))
        child.first_word()
        return child

    children, said = [begin() for _ in range(order["race"])], []
    for after in order["after"]:
        time.sleep(after)
        if order["kills"]:
            victim = children.pop(0)
            victim.kill()
            said.append(victim.words())
            children.append(begin())
    for child in children:
        os.kill(child.pid, signal.SIGTERM)
        said.append(child.words())
    found = Child(lambda say: say(kind.read(folder, order["url"]))).words()
    return {"said": said, "found": found}


def _limited(order: dict[str, Any]) -> dict[str, Any]:
    """What a writer says when files cannot grow past a size: what a full disk says, too."""
    kind, folder = KINDS[order["kind"]], Path(order["folder"])

    def work(say: Report) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], order["limit"]))
        kind.write_once(folder, order["url"], say)

    return {"said": Child(work).words()}


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        run = _raced if "race" in order else _limited if "limit" in order else _killed
        print(json.dumps(run(order)), flush=True)


if __name__ == "__main__":
    main()
