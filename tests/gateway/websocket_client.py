"""A WebSocket client over a plain socket, for tests of Responses over WebSocket."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.extensions import PerMessageDeflate

from tests.gateway.harness import KEY, TIMEOUT


class Refused(Exception):
    """The handshake was refused."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body.decode()}")
        self.status, self.body = status, body


class WebSocketClient:
    """One session. `events` reads until a response ends; everything the server sends is kept."""

    def __init__(
        self,
        url: str,
        *,
        key: str = KEY,
        path: str = "/v1/responses",
        headers: tuple[tuple[str, str], ...] = (),
        receive_buffer: int | None = None,
    ) -> None:
        place = urlsplit(url)
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect((place.hostname or "", place.port or 0))
        self._websocket = WSConnection(ConnectionType.CLIENT)
        self.pings = 0
        self.close_code: int | None = None
        self._texts: list[str] = []
        self._part = ""
        authorized = ((b"authorization", f"Bearer {key}".encode()), *((n.encode(), v.encode()) for n, v in headers))
        self._send(Request(place.netloc, path, extra_headers=[*authorized], extensions=[PerMessageDeflate()]))
        self._accepted = False
        self.extensions: list[Any] = []  # that the server accepted
        self._rejected: RejectConnection | None = None
        self._rejection = b""
        try:
            while not self._accepted:
                self._read()
        except Refused:
            self.socket.close()
            raise

    def __enter__(self) -> WebSocketClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def frame(self, event: Any) -> bytes:
        """The bytes of an event."""
        return self._websocket.send(event)

    def _send(self, event: Any) -> None:
        self.socket.sendall(self.frame(event))

    def _read(self) -> bool:
        data = self.socket.recv(65536)
        self._websocket.receive_data(data or None)
        for event in self._websocket.events():
            match event:
                case AcceptConnection(extensions=extensions):
                    self._accepted, self.extensions = True, list(extensions)
                case RejectConnection():
                    self._rejected = event
                case RejectData(data=more, body_finished=is_last):
                    self._rejection += more
                    if is_last and self._rejected is not None:
                        raise Refused(self._rejected.status_code, self._rejection)
                case TextMessage(data=text, message_finished=is_last):
                    self._part += text
                    if is_last:
                        self._texts.append(self._part)
                        self._part = ""
                case Ping():
                    self.pings += 1
                    self._send(event.response())
                case CloseConnection(code=code):
                    self.close_code = code
                case _:
                    pass
        return bool(data)

    def send(self, **fields: Any) -> None:
        self._send(TextMessage(json.dumps({"type": "response.create", **fields})))

    def send_text(self, text: str) -> None:
        self._send(TextMessage(text))

    def send_fragments(self, text: str, size: int, *, empty: bool = False) -> None:
        """Send a message in fragments of `size` characters; with `empty`, an empty one follows each."""
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        parts = [each for part in parts for each in ((part, "") if empty else (part,))]
        frames = [self.frame(TextMessage(part, message_finished=False)) for part in parts]
        self.socket.sendall(b"".join([*frames, self.frame(TextMessage(""))]))

    def send_bytes(self, data: bytes) -> None:
        self._send(BytesMessage(data))

    def send_close(self) -> None:
        self._send(CloseConnection(1000))

    def event(self) -> dict[str, Any] | None:
        """The next event; None if the server closed."""
        while not self._texts:
            if self.close_code is not None or not self._read():
                return None
        found: dict[str, Any] = json.loads(self._texts.pop(0))
        return found

    def events(self) -> list[dict[str, Any]]:
        """All events up to the end of one response, an error, or the end of the session."""
        found: list[dict[str, Any]] = []
        while (event := self.event()) is not None:
            found.append(event)
            if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                break
        return found

    def wait_closed(self) -> int | None:
        while self.close_code is None and self._read():
            pass
        return self.close_code
