"""Facts about a socket that its transport does not report: unsent bytes, and whether the client still reads."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import sys

from dragoman.http.addresses import is_loopback

if sys.platform != "win32":
    from fcntl import ioctl
    from termios import TIOCOUTQ

_DEFER_SECONDS = 10  # as long as a head may take
_TCP_CLOSE = 7  # the state of a connection that was reset


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes the client has not taken yet, as far as the system reports it."""
    left = transport.get_write_buffer_size()
    if sys.platform != "win32":
        try:
            raw = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        except OSError:
            return left
        left += int.from_bytes(raw, sys.byteorder)
    return left


def probe(transport: asyncio.Transport) -> bool:
    """Send one urgent byte, to which the system of a client that has closed its socket answers with a reset.

    A client that only closed its sending side still waits for its answer; both look the same until something is sent.
    Urgent data is no part of the stream: who reads the answer does not see it, on Linux. On other systems some programs
    do. So it is sent to clients on this machine only, if that is Linux. Return whether it was.
    """
    if sys.platform != "linux":
        return False
    try:
        asked = transport.get_extra_info("socket")
        if not is_loopback(asked.getpeername()[0]):
            return False
        with socket.socket(fileno=os.dup(asked.fileno())) as copy:
            copy.send(b"\n", socket.MSG_OOB | socket.MSG_DONTWAIT)
    except (OSError, AttributeError):
        return False
    return True


def is_reset(transport: asyncio.Transport) -> bool:
    """Return whether the client has reset the connection, which is not noticed while reading is paused."""
    try:
        asked = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_INFO"):  # the error itself is reported once only, perhaps to a write before this
            return bool(asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)
        else:  # noqa: RET505  for the type checker, which knows the platform
            return bool(asked.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    except (OSError, AttributeError):
        return False


def abort_with_reset(transport: asyncio.Transport) -> None:
    """Close a connection such that its client sees a reset."""
    linger = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()


def defer_accept(listening: socket.socket) -> None:
    """Have connections accepted only when their first bytes are here, where the system can do that.

    A flood of connections that say nothing then stays in the system's queue and takes no room here.
    """
    if hasattr(socket, "TCP_DEFER_ACCEPT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_SECONDS)


def defers_accept(listening: socket.socket) -> bool:
    """Whether a connection that is accepted without bytes was silent for a while already."""
    if not hasattr(socket, "TCP_DEFER_ACCEPT") or listening.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT) > 0


def is_readable(transport: asyncio.Transport) -> bool:
    """Whether there is something to read, or the end."""
    if sys.platform == "win32":
        return False
    pending = select.poll()
    try:
        pending.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(pending.poll(0))
    except (OSError, ValueError, AttributeError):
        return False
