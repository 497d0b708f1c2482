"""What a transport does not tell of its socket: unsent bytes, and whether a client that closed its side still reads."""

from __future__ import annotations

import asyncio
import os
import socket
import sys

if sys.platform != "win32":
    from fcntl import ioctl
    from termios import TIOCOUTQ

_TCP_CLOSE = 7  # the state of a connection that was reset


def unsent(transport: asyncio.Transport) -> int:
    """Return how many bytes the client has not taken yet, as far as the system tells."""
    left = transport.get_write_buffer_size()
    if sys.platform != "win32":
        try:
            raw = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        except OSError:
            return left
        left += int.from_bytes(raw, sys.byteorder)
    return left


def probe(transport: asyncio.Transport) -> None:
    """Send one urgent byte, to which the system of a client that has closed its socket answers with a reset.

    A client that only closed its sending side still waits for its answer; both look the same until something is sent.
    Urgent data is no part of the stream: whoever reads the answer does not see it. It must be sent once only, since a
    second urgent byte would make the first one ordinary. Where it cannot be sent, the next write tells.
    """
    if sys.platform == "win32":
        return
    try:
        with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as copy:
            copy.send(b"\n", socket.MSG_OOB | socket.MSG_DONTWAIT)
    except (OSError, AttributeError):
        return


def is_reset(transport: asyncio.Transport) -> bool:
    """Whether the client has answered with a reset, which nobody sees while nothing is read."""
    try:
        asked = transport.get_extra_info("socket")
        if sys.platform == "linux":  # the error itself is reported once only, perhaps to a write before this
            return bool(asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)
        else:  # noqa: RET505  for the type checker, which knows the platform
            return bool(asked.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    except (OSError, AttributeError):
        return False
