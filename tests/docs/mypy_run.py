"""Run `mypy --strict` on programs that use the installed package, as their authors would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def check_types(*files: Path) -> str:
    """Return what mypy reports about the files; empty if they pass."""
    folder = files[0].parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
            *("--cache-dir", str(folder / "mypy_cache"), *(file.name for file in files)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300.0,
        check=False,
    )
    return done.stdout + done.stderr
