"""A fresh clone of this repository in an empty environment, in which `make demo` was run as the README says."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients.install import ROOT, WHEELS

_README = ROOT / "README.md"
_LONGEST = 300  # seconds for `make demo`


class FreshClone:
    """The folder of the clone, what `make demo` printed in it, and how the README puts `dragoman` on PATH."""

    def __init__(self, folder: Path, shown: str) -> None:
        self.folder, self.shown = folder, shown
        [self.configuration] = re.findall(r"```toml\n(.*?)```", _README.read_text(), re.DOTALL)
        [self._on_path] = re.findall(r"^(export PATH=\S+)", _README.read_text(), re.MULTILINE)

    def command(self, *words: str) -> list[str]:
        """Return a command that runs `dragoman`, found as the README says from the folder of the clone."""
        script = f'cd {self.folder} && {self._on_path} && cd - >/dev/null && exec dragoman "$@"'
        return ["sh", "-c", script, "sh", *words]


def make_fresh_clone(place: Path) -> FreshClone:
    """Clone the repository into a folder, and run `make demo` there; once for all processes that want the same one."""
    with (place / "clone.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder, printed = place / "clone", place / "clone.txt"
        if not printed.exists():
            _copy_tracked_files(folder)
            shown = _make_demo(folder)
            printed.write_text(shown)
        return FreshClone(folder, printed.read_text())


def _copy_tracked_files(folder: Path) -> None:
    """Copy what a clone has, with the content that the files of the work tree have now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def _make_demo(folder: Path) -> str:
    with tempfile.TemporaryDirectory() as home:
        # The wheels were downloaded before, because tests download nothing.
        offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELS), "PYTHON": sys.executable}
        done = subprocess.run(
            ["make", "demo"],
            cwd=folder,
            env={"HOME": home, "PATH": os.environ["PATH"], **offline},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LONGEST,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    return done.stdout
