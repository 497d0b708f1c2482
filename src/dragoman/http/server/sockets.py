"""Facts about a socket that its transport does not report: unsent bytes, and whether the client still reads.

All functions make system calls that do not block.
"""

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

_DEFER_SECONDS = 10  # the time limit for a head (HEAD_SECONDS)
_TCP_CLOSE = 7  # TCP_INFO state of a connection that was reset


def unsent_bytes(transport: asyncio.Transport) -> int:
    """Return how many bytes the client has not received yet, as far as the system reports it."""
    unsent = transport.get_write_buffer_size()
    if sys.platform != "win32":
        try:
            raw = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        except OSError:
            return unsent
        unsent += int.from_bytes(raw, sys.byteorder)
    return unsent


def probe(transport: asyncio.Transport) -> bool:
    """Send one urgent byte to a half-closed client, and return whether it was sent.

    A client that closed its socket and one that only closed its sending side look the same until something is sent;
    then the system of the former responds with a reset. On Linux, urgent data is not part of the stream that the client
    reads; on other systems some programs would read it. So the byte is sent only to clients on the same Linux machine.
    """
    if sys.platform != "linux":
        return False
    try:
        client = transport.get_extra_info("socket")
        if client.family == socket.AF_UNIX or not is_loopback(client.getpeername()[0]):
            return False
        with socket.socket(fileno=os.dup(client.fileno())) as copy:
            copy.send(b"\n", socket.MSG_OOB | socket.MSG_DONTWAIT)
    except (OSError, AttributeError):
        return False
    return True


def is_reset(transport: asyncio.Transport) -> bool:
    """Return whether the client has reset the connection. The transport does not notice while reading is paused."""
    try:
        client = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_INFO"):  # SO_ERROR is reported only once, perhaps to an earlier write
            return bool(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE)
        else:  # noqa: RET505  the type checker needs the branch
            return bool(client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
    except (OSError, AttributeError):
        return False


def abort_with_reset(transport: asyncio.Transport) -> None:
    """Close a connection with a TCP reset."""
    linger = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    transport.abort()


def defer_accept(listening: socket.socket) -> None:
    """Let the system deliver connections only when their first bytes have arrived, where it can.

    A flood of silent connections then stays in the system's queue and uses no memory of this process.
    """
    if hasattr(socket, "TCP_DEFER_ACCEPT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_SECONDS)


def defers_accept(listening: socket.socket) -> bool:
    """Return whether `defer_accept` is on: a connection accepted without bytes has been silent for a while."""
    if not hasattr(socket, "TCP_DEFER_ACCEPT") or listening.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT) > 0


def is_readable(transport: asyncio.Transport) -> bool:
    """Return whether the socket has bytes to read, or has reached its end."""
    if sys.platform == "win32":
        return False
    pending = select.poll()
    try:
        pending.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(pending.poll(0))
    except (OSError, ValueError, AttributeError):
        return False
