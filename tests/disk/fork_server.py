"""A process that writers are forked from: it has imported all modules and runs no thread, so a writer starts at once.

Each line on its standard input is an order, each line on its standard output a result, both JSON:
{"kind", "folder", "url", "after"}: a writer is killed `after` seconds after its first report, and a new process reads
the files it left. {"race": …}: several writers run at once. {"limit": …}: one writer runs with a file size limit.
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

_TIMEOUT = 30.0  # seconds for the first report


class Child:
    """A forked process and its reports."""

    def __init__(self, work: Callable[[Report], object]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            status = 1
            try:
                work(lambda word: _report(writing, word))
                status = 0
            except BaseException:  # noqa: BLE001  it must not return into the fork server
                _report(writing, f"problem: {traceback.format_exc()}")
            finally:
                os._exit(status)
        os.close(writing)
        self._reading = reading
        self._raw = b""

    def first_word(self) -> None:
        ready, _, _ = select.select([self._reading], [], [], _TIMEOUT)
        assert ready, "it says nothing"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def words(self) -> list[str]:
        """Return all its reports after its end."""
        while piece := os.read(self._reading, 1 << 16):
            self._raw += piece
        os.close(self._reading)
        os.waitpid(self.pid, 0)
        return [json.loads(line) for line in self._raw.splitlines()]


def _report(descriptor: int, word: str) -> None:
    os.write(descriptor, json.dumps(word).encode() + b"\n")  # shorter than the buffer of a pipe, so the write is atomic


def _killed(order: dict[str, Any]) -> dict[str, Any]:
    kind, folder = KINDS[order["kind"]], Path(order["folder"])
    writer = Child(lambda report: kind.write(folder, order["url"], report))
    writer.first_word()
    time.sleep(order["after"])
    writer.kill()
    reports = writer.words()
    found = Child(lambda report: report(kind.read(folder, order["url"]))).words()
    return {"said": reports, "found": found}


def _raced(order: dict[str, Any]) -> dict[str, Any]:
    """Run several writers for a time; `kills`: kill and replace one after another."""
    kind, folder = KINDS[order["kind"]], Path(order["folder"])

    def begin() -> Child:
        child = Child(lambda report: kind.write(folder, order["url"], report))
        child.first_word()
        return child

    children, reports = [begin() for _ in range(order["race"])], []
    for after in order["after"]:
        time.sleep(after)
        if order["kills"]:
            killed = children.pop(0)
            killed.kill()
            reports.append(killed.words())
            children.append(begin())
    for child in children:
        os.kill(child.pid, signal.SIGTERM)
        reports.append(child.words())
    found = Child(lambda report: report(kind.read(folder, order["url"]))).words()
    return {"said": reports, "found": found}


def _limited(order: dict[str, Any]) -> dict[str, Any]:
    """Return the reports of a writer with a file size limit, which acts like a full disk."""
    kind, folder = KINDS[order["kind"]], Path(order["folder"])

    def work(report: Report) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["limit"], order["limit"]))
        kind.write_once(folder, order["url"], report)

    return {"said": Child(work).words()}


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        run = _raced if "race" in order else _limited if "limit" in order else _killed
        print(json.dumps(run(order)), flush=True)


if __name__ == "__main__":
    main()
