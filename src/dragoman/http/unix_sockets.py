"""Addresses for Unix sockets whose paths are longer than the system allows. Opens the folder of such a socket.

The admin interface listens at Unix sockets, and the HTTP client connects to them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MAX_BYTES = 103  # macOS and BSD allow 103 bytes, Linux 107
_DESCRIPTORS = Path("/proc/self/fd")  # Linux names each open folder here


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Provide an address to bind or connect a Unix socket at this path; it is valid inside the `with` block.

    The address is the path itself if it is short enough. On Linux a longer one is reached through the descriptor of its
    folder. Raises OSError if the folder cannot be opened, or if the path is too long and the system has no such names.
    """
    if len(os.fsencode(path)) <= _MAX_BYTES:
        yield str(path)
        return
    name = path.name
    if not _DESCRIPTORS.is_dir() or len(os.fsencode(name)) > _MAX_BYTES - 32:
        raise OSError(errno.ENAMETOOLONG, f"the path of a Unix socket may have {_MAX_BYTES} bytes", str(path))
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield str(_DESCRIPTORS / str(folder) / name)
    finally:
        os.close(folder)
