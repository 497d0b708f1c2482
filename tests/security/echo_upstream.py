"""A hostile upstream: it echoes the credentials it got, sends extra headers, and redirects."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

HOSTILE = {
    "set-cookie": "a=b",
    "access-control-allow-origin": "*",
    "server": "upstream/1",
    "x-powered-by": "upstream",
    "strict-transport-security": "max-age=1",
    "location": "http://169.254.169.254/",
    "refresh": "0; url=http://evil.test/",
    "alt-svc": 'h3=":443"',
    "keep-alive": "timeout=99",
    "x-should-retry": "true",
    "proxy-authenticate": "Basic",
    "trailer": "x-evil",
    "www-authenticate": "Basic",
    "link": "<http://evil.test/>; rel=preload",
}
REPLY = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "fine"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 1, "output_tokens": 1},
}

BEGUN: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**REPLY, "content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Well"}},
]
GOOD: list[dict[str, Any]] = [
    *BEGUN,
    {"type": "content_block_stop", "index": 0},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None},
        "usage": {"output_tokens": 1},
    },
    {"type": "message_stop"},
]


def secret_forms(secret: str) -> set[str]:
    """Return the forms of a secret in a text: plain, in JSON, in a URL, in base64."""
    raw = secret.encode()
    whole = {secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote(secret)}
    encoded = {base64.b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()}
    return whole | encoded | {each.rstrip("=") for each in encoded}


class EchoUpstream:
    """The state of the upstream. `mode`: good, refuse, redirect, or stream (a stream that ends in an error)."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.mode = "good"
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    def respond(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if self.mode == "good" and b'"stream":true' in body:
            return 200, {"content-type": "text/event-stream", **HOSTILE}, _events(GOOD)
        if self.mode == "good" and path.endswith("count_tokens"):
            return 200, {"content-type": "application/json", **HOSTILE}, b'{"input_tokens": 3}'
        if self.mode == "good":
            return 200, {"content-type": "application/json", **HOSTILE}, json.dumps(REPLY).encode()
        if self.mode == "gzip":
            packed = gzip.compress(json.dumps(REPLY).encode() + b" " * 50_000_000)
            return 200, {"content-type": "application/json", "content-encoding": "gzip"}, packed
        if self.mode == "redirect":
            return 307, {"location": f"{self.url}/elsewhere"}, b""
        words = self._words(path, headers, body)
        if self.mode == "stream":
            return 200, {"content-type": "text/event-stream", **HOSTILE}, _stream(path, words)
        fault: dict[str, Any] = {"type": "authentication_error", "message": words, "status": "UNAUTHENTICATED"}
        document = {"type": "error", "error": fault, "message": words}
        if path.endswith(("/token", "/refreshToken")):
            document = {"error": "invalid_grant", "error_description": words}
        return 401, {"content-type": "application/json", "x-echo": words[:500]}, json.dumps(document).encode()

    def _words(self, path: str, headers: dict[str, str], body: bytes) -> str:
        values = [value.partition(" ")[2] or value for name, value in headers.items() if name not in ("host", "accept")]
        if path.endswith(("/token", "/refreshToken")):
            values = [str(value) for value in json.loads(body).values()]
        forms = (form for secret in values for form in (secret, *sorted(secret_forms(secret))))
        return "you said: " + " ".join(forms)


def _stream(path: str, words: str) -> bytes:
    if "chat" in path:
        chunk = {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Well"}, "finish_reason": None}],
        }
        return b"".join(
            b"data: %b\n\n" % json.dumps(each).encode()
            for each in (chunk, {"error": {"message": words, "type": "server_error", "code": None}})
        )
    return _events([*BEGUN, {"type": "error", "error": {"type": "overloaded_error", "message": words}}])


def _events(events: list[dict[str, Any]]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (str(each["type"]).encode(), json.dumps(each).encode()) for each in events
    )


@contextmanager
def run_echo_upstream() -> Iterator[EchoUpstream]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        disable_nagle_algorithm = True  # otherwise each response is delayed by 40 ms

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            echo_upstream.requests.append((self.command, self.path, headers, body))
            status, content_type, written = echo_upstream.respond(self.path.partition("?")[0], headers, body)
            self.send_response_only(status)
            for name, value in content_type.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(written)))
            self.end_headers()
            begun = written.rpartition(b"\n\n")[0].rpartition(b"\n\n")[0] if echo_upstream.mode == "stream" else b""
            if begun:  # so that the error comes after the first byte
                self.wfile.write(begun + b"\n\n")
                time.sleep(0.15)
                written = written[len(begun) + 2 :]
            self.wfile.write(written)

        do_GET = do_POST = do_PUT = do_DELETE = do_CONNECT = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    echo_upstream = EchoUpstream(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield echo_upstream
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
