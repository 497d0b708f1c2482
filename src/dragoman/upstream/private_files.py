"""Private files and folders: readable by their owner only, written completely, and durable after a power failure.

Commands that only read the configuration import this module, so it imports neither asyncio nor the HTTP client.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Create the folder; make an existing one of this user private. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if os.name == "posix" and status.st_uid == os.geteuid() and status.st_mode & 0o077:
        path.chmod(0o700)
    for folder in missing:
        sync_folder(folder.parent)


def write_temporary(path: Path, end: str, data: bytes, lineage: str = "") -> Path:
    """Write a private file in the same folder, under a name that ends with `end`. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{lineage}", suffix=end)  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable, on systems that can open a folder."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
