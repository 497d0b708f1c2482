"""What both servers are to whoever runs them, and what they agree on."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from dragoman.gateway.guard import LONGEST_HEAD, LONGEST_TARGET
from dragoman.gateway.server.roster import Member, Roster

HEAD_SECONDS = 10.0
IDLE_SECONDS = 75.0
SWEEP_SECONDS = 0.25
HEAD_BYTES = LONGEST_HEAD + LONGEST_TARGET  # of an unfinished head; a finished one is counted exactly, by the guard
MOST_PIPELINED = 16  # requests that wait for the answer to the one before them


class Carried(Member, Protocol):
    """A connection, as the loop and a proxy in front of it see it."""

    def connection_made(self, transport: asyncio.Transport, /) -> None: ...
    def data_received(self, data: bytes, /) -> None: ...
    def connection_lost(self, exc: Exception | None, /) -> None: ...

    def name_client(self, address: str) -> None:
        """A trusted proxy has named the client behind it."""


class Carrier(Protocol):
    """One server's connections."""

    @property
    def roster(self) -> Roster[Any]:
        """Its connections."""

    def protocol(self, client: str = "") -> Carried:
        """For a new connection from this address."""

    def sweep(self, now: float) -> None:
        """End what is overdue; called `SWEEP_SECONDS` apart."""

    def quiet(self) -> None:
        """Keep no connection for another request."""

    def abort(self) -> None:
        """Let go of every connection."""


def plain_refusal(status: int, phrase: str) -> bytes:
    """An answer to what is no request, so that nobody knows in whose words to refuse it."""
    body = f"{phrase}\n".encode()
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"connection: close\r\n\r\n" + body


BAD_REQUEST = plain_refusal(400, "Bad Request")
TOO_SLOW = plain_refusal(408, "Request Timeout")
TARGET_TOO_LONG = plain_refusal(414, "URI Too Long")
HEAD_TOO_LONG = plain_refusal(431, "Request Header Fields Too Large")
