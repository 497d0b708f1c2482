"""Processes under test: pinned to cores, each with its own log, measured through /proc. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from contextlib import suppress
from functools import partial
from pathlib import Path

GATEWAY, LOAD = 0, 1
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_TICK = 1 / os.sysconf("SC_CLK_TCK")
CORES = sorted(os.sched_getaffinity(0))


def core(number: int) -> set[int]:
    """Return the core of this number; on a machine with fewer cores, all of them."""
    return {CORES[number]} if len(CORES) > number else set(CORES)


def cores(number: int) -> set[int]:
    """Return the first `number` cores."""
    return set(CORES[:number])


class Process:
    """A program and its child processes, in their own process group."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str], on: set[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._running = subprocess.Popen(
                command,
                cwd=folder,
                env={**_clean(), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(_pin, on),  # noqa: PLW1509  safe here: there is only one thread
            )

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        return self._running.poll() is None

    @property
    def pids(self) -> list[int]:
        """The process and its descendants."""
        parents: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError, IndexError):
                    parents.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
        found = [self._running.pid]
        for pid in found:
            found += parents.get(pid, [])
        return found

    def cpu(self) -> float:
        """Return the seconds of user and system time of the program and its descendants, also of ended ones."""
        return sum(self.cpus().values())

    def cpus(self) -> dict[int, float]:
        """Return the CPU seconds by process id."""
        seconds = {}
        for pid in self.pids:
            with suppress(OSError, IndexError):
                seconds[pid] = cpu_of(pid)
        return seconds

    def memory(self) -> float:
        """Return the memory in MB; shared pages count in proportion (PSS)."""
        total = 0
        for pid in self.pids:
            with suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    total += int(line.split()[1]) if line.startswith("Pss:") else 0
        return total / 1024

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-300:]

    def stop(self) -> None:
        """Stop the process group: SIGTERM, then SIGKILL after three seconds."""
        with suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._running.wait(3)
        with suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()


def _pin(on: set[int]) -> None:
    """Pin this process to the cores, and let the kernel kill it when its parent ends."""
    os.sched_setaffinity(0, on)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def cpu_of(pid: int) -> float:
    """Return the seconds of user and system time of a process, including its ended children."""
    return sum(map(int, _stat(pid)[11:15])) * _TICK


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; the name before it may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _clean() -> dict[str, str]:
    """Return an environment without proxies, keys or tracing that could change the measurement."""
    names = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "SSL_CERT_FILE")
    return {name: os.environ[name] for name in names if name in os.environ}
