"""A fake upstream that answers each request with an endless stream."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

EventSource = Callable[[], Iterator[dict[str, Any] | None]]


class EndlessUpstream:
    """An upstream that answers every request with an endless stream, until the gateway closes the connection."""

    def __init__(self, shape: EventSource) -> None:
        self.shape = shape
        self.go = threading.Event()  # no request is answered before it is set
        self.go.set()
        self.requests = self.disconnected = 0
        self.left = threading.Event()  # set when the gateway closes a connection
        self.sent = 0
        self.most = 64 * 1024 * 1024
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._respond, args=(connection,), daemon=True).start()

    def _respond(self, connection: socket.socket) -> None:
        try:
            self._read(connection)
            self.requests += 1
            self.go.wait(60)
            head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            connection.sendall(head.encode())
            for frames in _batches(self.shape()):
                data = b"".join([b"data: " + json.dumps(each).encode() + b"\n\n" for each in frames])
                connection.sendall(b"%x\r\n%b\r\n" % (len(data), data))
                self.sent += len(data)
                if self.sent > self.most:
                    return  # no one stopped the stream in time
        except OSError:
            self.disconnected += 1
            self.left.set()
        finally:
            connection.close()

    def _read(self, connection: socket.socket) -> None:
        got = b""
        while b"\r\n\r\n" not in got:
            got += connection.recv(65536)
        head, _, body = got.partition(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        while len(body) < length:
            body += connection.recv(65536)


def _batches(events: Iterator[dict[str, Any] | None]) -> Iterator[list[dict[str, Any]]]:
    """Group events into batches; None ends a batch early."""
    batch: list[dict[str, Any]] = []
    for each in events:
        if each is not None:
            batch.append(each)
        if batch and (each is None or len(batch) == 50):
            yield batch
            batch = []
    if batch:
        yield batch
