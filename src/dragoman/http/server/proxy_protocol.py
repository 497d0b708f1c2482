"""The PROXY protocol, versions 1 and 2: a proxy's first bytes on a connection name the client behind it.

The specification is HAProxy's proxy-protocol.txt. The header is read only on connections of trusted proxies, and is
required there. Otherwise a client could send a header of its own and claim any address.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from msgspec import Struct

from dragoman.http.addresses import limit_key, normalize_address
from dragoman.http.framing import BAD_REQUEST
from dragoman.http.server.connection import ServerConnection
from dragoman.http.server.serving import ConnectionRegistry

_V1, _V1_LONGEST = b"PROXY ", 107
_V2, _V2_HEAD = b"\r\n\r\n\x00\r\nQUIT\n", 16
_LOCAL, _PROXY = 0x20, 0x21  # version and command
_ADDRESSES = {0x11: (socket.AF_INET, 4), 0x21: (socket.AF_INET6, 16)}  # TCP over IPv4 and IPv6


class BadProxyHeader(ValueError):
    """The bytes are not a header of the PROXY protocol."""


class ProxyHeader(Struct, frozen=True):
    """A parsed header. `client` is empty if it names no client, as in a health check; `size` is its length in bytes."""

    client: str
    size: int


def parse_proxy_header(data: bytes) -> ProxyHeader | None:
    """Parse the header at the start of a connection; None if more bytes are needed. Raises BadProxyHeader."""
    if data.startswith(_V2):
        return _parse_v2(data)
    if data.startswith(_V1):
        return _parse_v1(data)
    if _V2.startswith(data) or _V1.startswith(data):
        return None
    raise BadProxyHeader


def _parse_v1(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\r\n", 0, _V1_LONGEST)
    if end < 0:
        if len(data) >= _V1_LONGEST:
            raise BadProxyHeader
        return None
    words = data[:end].decode("latin-1").split(" ")
    if words[1] == "UNKNOWN":
        return ProxyHeader("", end + 2)
    client = normalize_address(words[2]) if len(words) == 6 and words[1] in ("TCP4", "TCP6") else ""
    if not client:
        raise BadProxyHeader
    return ProxyHeader(client, end + 2)


def _parse_v2(data: bytes) -> ProxyHeader | None:
    if len(data) < _V2_HEAD:
        return None
    command, family = data[12], data[13]
    size = _V2_HEAD + int.from_bytes(data[14:16], "big")
    if command not in (_LOCAL, _PROXY):
        raise BadProxyHeader
    if len(data) < size:
        return None
    if command == _LOCAL or family not in _ADDRESSES:
        return ProxyHeader("", size)
    kind, width = _ADDRESSES[family]
    if size < _V2_HEAD + 2 * width + 4:
        raise BadProxyHeader
    return ProxyHeader(normalize_address(socket.inet_ntop(kind, data[_V2_HEAD : _V2_HEAD + width])), size)


class ProxiedConnection(asyncio.Protocol):
    """Reads the header, then passes the connection to a ServerConnection.

    The ServerConnection has the transport from the start, so that the connection is counted, timed and shed like all
    others. Once the header has named a client, the connection counts towards that client's limit.
    """

    def __init__(
        self, connections: ConnectionRegistry, connection: ServerConnection, max_of_peer: Callable[[str], int]
    ) -> None:
        self._connections, self._connection, self._max_of_peer = connections, connection, max_of_peer
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection.connection_made(self._transport)

    def data_received(self, data: bytes) -> None:
        self._connections.mark_received(self._connection)
        self._data += data
        try:
            header = parse_proxy_header(self._data)
        except BadProxyHeader:
            self._refuse()
            return
        if header is not None:
            self._hand_over(header)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def _refuse(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(BAD_REQUEST)
            self._transport.close()

    def _hand_over(self, header: ProxyHeader) -> None:
        transport, connection, rest = self._transport, self._connection, self._data[header.size :]
        if transport is None or transport.is_closing():
            return
        client, peer = header.client, limit_key(header.client)
        if client and peer != connection.peer and not self._connections.make_room(peer, self._max_of_peer(client)):
            connection.abort()
            return
        if client:
            connection.client = client
            self._connections.move_to_peer(connection, peer)
        transport.set_protocol(connection)
        if rest:
            connection.data_received(rest)
