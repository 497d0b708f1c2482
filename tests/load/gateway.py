"""A gateway process, and its memory, CPU time, files and tasks as the system reports them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.gateway.harness import KEY

ROOT = Path(__file__).parents[2]
# `dragoman serve`, which on SIGUSR2 also writes the number of tasks in its event loop.
_LAUNCH = """
import asyncio, pathlib, signal, sys
file = pathlib.Path(sys.argv.pop(1))
def write_count(*_):
    part = file.with_suffix(".part")
    part.write_text(str(len(asyncio.all_tasks())))
    part.replace(file)
signal.signal(signal.SIGUSR2, write_count)
exec(sys.argv.pop(1))
from dragoman.cli import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Measurement:
    memory: int  # bytes in RAM
    cpu: float  # seconds
    files: int
    tasks: int


class Gateway:
    def __init__(self, process: subprocess.Popen[str], port: int, folder: Path) -> None:
        self.process, self.port, self.folder = process, port, folder
        self.url = f"http://127.0.0.1:{port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def memory(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def peak(self) -> int:
        """Return the most memory in bytes since `forget_peak`."""
        return peak_memory(self.process.pid)

    def children(self) -> list[int]:
        """Return the process ids of its running children."""
        pid, found = str(self.process.pid), []
        for status in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if status.read_text().rpartition(")")[2].split()[1] == pid:
                    found.append(int(status.parent.name))
        return found

    def forget_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def pooled(self, ports: Collection[int]) -> int:
        """Return how many of its files are connections to these upstream ports."""
        table = Path(f"/proc/{self.process.pid}/net/tcp").read_text().splitlines()[1:]
        remote = [int(line.split()[2].partition(":")[2], 16) for line in table if line.split()[3] == "01"]
        return sum(1 for port in remote if port in ports)

    def tasks(self) -> int:
        path = self.folder / "tasks"
        path.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR2)
        until = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < until, "the gateway's loop is stuck"
            time.sleep(0.005)
        return int(path.read_text())

    def measure(self, ports: Collection[int] = ()) -> Measurement:
        """Measure the process; `files` is without keep-alive connections to these ports."""
        return Measurement(self.memory(), self.cpu(), self.files() - self.pooled(ports), self.tasks())

    def at_rest(self, ports: Collection[int], files: int, tasks: int, seconds: float) -> Measurement:
        """Wait until there are no more than these files and tasks, or until the time is over; return the measurement."""
        until = time.monotonic() + seconds
        while True:
            found = self.measure(ports)
            if (found.files <= files and found.tasks <= tasks) or time.monotonic() > until:
                return found
            time.sleep(0.05)


def peak_memory(pid: int) -> int:
    """Return the peak memory of a process in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def configuration(ports: Mapping[str, int], settings: str = "", more: str = "") -> str:
    """Return a configuration with an upstream for each dialect; the model with the name of the dialect goes there."""
    text = f'allow_literal_secrets = true\n[server]\nkey = "{KEY}"\nport = 0\n{settings}\n'
    for dialect, port in ports.items():
        text += f"""
[upstreams.{dialect}]
dialect = "{dialect}"
base_url = "http://127.0.0.1:{port}"
key = "the-upstream-secret"
limits.concurrency = 1024
{more}
[[routes]]
match = "to-{dialect}"
upstream = "{dialect}"
model = "claude-sonnet-4.5"
"""
    return text


@contextmanager
def start_gateway_process(folder: Path, text: str, first: str = "", *, log: bool = True) -> Iterator[Gateway]:
    """Run a gateway with this configuration.

    With `log` its log is appended to the file `log` in the folder; otherwise it is a pipe that is never read. `first` is
    Python code that runs before the gateway.
    """
    config = folder / "config.toml"
    config.write_text(text)
    config.chmod(0o600)
    places = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")
    variables = {"PATH": os.environ.get("PATH", ""), **dict.fromkeys(places, str(folder))}
    launched = [sys.executable, "-c", _LAUNCH, str(folder / "tasks"), first]
    command = [*launched, "serve", "--config", str(config), "--quiet"]
    with ExitStack() as stack:
        stderr: int | IO[bytes] = stack.enter_context((folder / "log").open("ab")) if log else subprocess.PIPE
        process = stack.enter_context(
            subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=stderr, text=True)
        )
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, (folder / "log").read_text()
            yield Gateway(process, int(url.rpartition(":")[2]), folder)
        finally:
            process.kill()


@contextmanager
def start_process(module: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run a test module as a process; it ends when its standard input closes."""
    command = [sys.executable, "-m", module, *words]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def start_and_read(module: str, *words: str) -> Iterator[Any]:
    """Start a process; give its first line, parsed as JSON: its port, or the port of each dialect."""
    with start_process(module, *words) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())


@contextmanager
def start_upstreams(seconds: float) -> Iterator[dict[str, int]]:
    """Start the cheap upstream; give the port of each dialect."""
    with start_and_read("tests.load.upstream", str(seconds)) as ports:
        yield ports
