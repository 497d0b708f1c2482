"""Remove the addresses of sponsors from the given package-lock.json files: a lock names no host, and `npm ci` does not need them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    for lock in map(Path, sys.argv[1:]):
        written = json.loads(lock.read_text(encoding="utf-8"))
        for package in written["packages"].values():
            package.pop("funding", None)
        lock.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
