"""Remove the addresses of sponsors from package-lock.json: a lock names no host, and `npm ci` does not need them."""

from __future__ import annotations

import json
from pathlib import Path

LOCK = Path(__file__).parent / "package-lock.json"

if __name__ == "__main__":
    written = json.loads(LOCK.read_text(encoding="utf-8"))
    for package in written["packages"].values():
        package.pop("funding", None)
    LOCK.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
