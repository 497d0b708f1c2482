"""A service with the endpoints other than chat, which records what it receives: OpenAI's, Gemini's and Ollama's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

SPEECH = bytes(range(256)) * 400
VECTOR = [0.25, -0.5, 1.0]
_LIST = {"object": "list", "usage": {"prompt_tokens": 7, "total_tokens": 7}}


class Received(NamedTuple):
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


class RelayService:
    """The requests that arrived; `refuse` is the status of the next responses, `cut` ends streams in the middle."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[Received] = []
        self.refuse = 0
        self.cut = False


def _respond(path: str, body: bytes) -> Any:
    end = path.rpartition("/")[2].rpartition(":")[2]
    responses: dict[str, Any] = {
        "embeddings": {**_LIST, "data": [{"object": "embedding", "index": 0, "embedding": VECTOR}], "model": "e"},
        "rerank": {"results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 9}},
        "moderations": {"id": "m", "model": "mod", "results": [{"flagged": False, "categories": {}}]},
        "generations": {"created": 1, "data": [{"b64_json": "aGk="}], "usage": {"input_tokens": 3, "output_tokens": 4}},
        "edits": {"created": 1, "data": [{"b64_json": "aGk="}]},
        "transcriptions": {"text": "hello"},
        "embedContent": {"embedding": {"values": VECTOR}},
        "batchEmbedContents": {"embeddings": [{"values": VECTOR}]},
        "embed": {"model": "e", "embeddings": [VECTOR], "prompt_eval_count": 5},
    }
    return responses.get(end)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: RelayService

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        parts, service = urlsplit(self.path), self.service
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        service.received.append(Received(parts.path, parts.query, headers, body))
        if service.refuse:
            self._send("application/json", b'{"error":{"message":"not now","type":"server_error"}}', service.refuse)
        elif parts.path.endswith("/audio/speech"):
            self._stream("audio/mpeg", [SPEECH[:1000], SPEECH[1000:]])
        elif parts.path.endswith("/completions") or parts.path.endswith("/generate"):
            self._stream("text/event-stream", list(completion_events()))
        elif (response := _respond(parts.path, body)) is not None:
            self._send("application/json", json.dumps(response).encode(), 200)
        else:
            self._send("application/json", b'{"error":{"message":"no such endpoint"}}', 404)

    def _send(self, kind: str, body: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, kind: str, pieces: list[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces[:1] if self.service.cut else pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        if self.service.cut:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")


def completion_events() -> Iterator[bytes]:
    """Yield the events of a legacy completion."""
    for text in ("one ", "two"):
        choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": None}
        yield _event({"id": "c", "object": "text_completion", "created": 1, "model": "t", "choices": [choice]})
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    yield _event({"id": "c", "object": "text_completion", "created": 1, "model": "t", "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(data: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(data).encode()


@contextmanager
def running_relay_service() -> Iterator[RelayService]:
    service = RelayService()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"service": service}))
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
