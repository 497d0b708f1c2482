"""Install a wheel into an empty environment and check that `dragoman --version` answers there, and quickly.

Usage: check_wheel.py WHEEL LOCK. The lock holds the run-time dependencies with hashes; nothing else is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

LIMIT_MS = 100
RUNS = 5


def main(wheel: Path, lock: Path) -> int:
    version = wheel.name.split("-")[1]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        scripts = Path(folder) / ("Scripts" if os.name == "nt" else "bin")

        def pip(*arguments: str) -> None:
            subprocess.run([scripts / "python", "-m", "pip", *arguments], check=True, cwd=folder)

        pip("install", "--quiet", "--require-hashes", "-r", str(lock))
        pip("install", "--quiet", "--no-index", "--no-deps", str(wheel))
        pip("check")

        command = scripts / "dragoman"
        times = []
        for _ in range(RUNS):
            before = time.perf_counter()
            done = subprocess.run([command, "--version"], check=True, cwd=folder, capture_output=True, text=True)
            times.append((time.perf_counter() - before) * 1000)
            if version not in done.stdout:
                print(f"dragoman --version says {done.stdout!r}, and the wheel is {version}.", file=sys.stderr)
                return 1

    print(f"dragoman --version: {min(times):.0f} ms (best of {RUNS}; limit {LIMIT_MS})")
    if min(times) >= LIMIT_MS:
        print("dragoman --version is too slow: something heavy is imported at start.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()))
