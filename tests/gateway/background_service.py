"""A fake Responses service with background jobs, as OpenAI's has; it records every request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TEXT = ("The ", "work ", "is ", "done.")


def response(job: str, status: str, text: str = "") -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    return {
        "id": job,
        "object": "response",
        "created_at": 1,
        "status": status,
        "background": True,
        "error": None,
        "incomplete_details": None,
        "model": "gpt-5",
        "output": [item] if text else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if text else None,
    }


def events(job: str) -> list[dict[str, Any]]:
    """Return all stream events of a job, with sequence numbers."""
    item = {"type": "message", "id": "msg_1", "status": "in_progress", "role": "assistant", "content": []}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    rows: list[dict[str, Any]] = [
        {"type": "response.created", "response": response(job, "queued")},
        {"type": "response.queued", "response": response(job, "queued")},
        {"type": "response.in_progress", "response": response(job, "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **where, "part": part},
        *({"type": "response.output_text.delta", **where, "delta": text, "logprobs": []} for text in TEXT),
        {"type": "response.output_text.done", **where, "text": "".join(TEXT), "logprobs": []},
        {"type": "response.content_part.done", **where, "part": {**part, "text": "".join(TEXT)}},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": response(job, "completed", "".join(TEXT))["output"][0],
        },
        {"type": "response.completed", "response": response(job, "completed", "".join(TEXT))},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(rows)]


class BackgroundService:
    """The state of the service.

    `failures` lists what the next POSTs get instead of a response: a status, `reset`, `garbage` or `unknown`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.requests: list[tuple[str, str, str, str]] = []  # method, path, query, key
        self.bodies: list[Any] = []
        self.jobs: dict[str, str] = {}  # id -> status
        self.failures: list[str | int] = []
        self.retry_after = ""  # seconds; sent with every refusal
        self.reads: bytes | None = None  # the response to every GET
        self.cut_after: int | None = None  # sequence number of the last event before a stream is cut

    def count(self, method: str) -> int:
        return sum(request[0] == method for request in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: BackgroundService

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _record(self) -> tuple[str, str]:
        parts = urlsplit(self.path)
        key = self.headers.get("authorization", "").removeprefix("Bearer ")
        self.service.requests.append((self.command, parts.path, parts.query, key))
        return parts.path, parts.query

    def _send(self, body: Any, status: int = 200) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        if status >= 400 and self.service.retry_after:
            self.send_header("retry-after", self.service.retry_after)
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, job: str, after: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        cut, self.service.cut_after = self.service.cut_after, None
        for event in events(job)[after:]:
            self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            if event["sequence_number"] == cut:
                break
        self.close_connection = True

    def do_POST(self) -> None:
        path, _ = self._record()
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if path.endswith("/cancel"):
            job = path.split("/")[-2]
            self.service.jobs[job] = "cancelled"
            self._send(response(job, "cancelled"))
            return
        self.service.bodies.append(body)
        failure = self.service.failures.pop(0) if self.service.failures else None
        if failure == "reset":
            self.close_connection = True
            return
        if failure == "garbage":
            self._send(b"<html>")
            return
        if failure == "unknown":
            error = {"message": "not found", "type": "invalid_request_error", "code": "previous_response_not_found"}
            self._send({"error": error}, 400)
            return
        if isinstance(failure, int):
            self._send({"error": {"message": "no", "type": "server_error"}}, failure)
            return
        job = f"resp_{self.service.name}_{len(self.service.jobs)}"
        self.service.jobs[job] = "queued"
        if body.get("stream"):
            self._stream(job, 0)
        else:
            self._send(
                response(
                    job, "queued" if body.get("background") else "completed", "" if body.get("background") else "ok"
                )
            )

    def do_GET(self) -> None:
        path, query = self._record()
        job = path.split("/")[3]
        parameters = parse_qs(query)
        if self.service.reads is not None:
            self._send(self.service.reads)
        elif job not in self.service.jobs:
            self._send(
                {"error": {"message": f"Response with id '{job}' not found.", "type": "invalid_request_error"}}, 404
            )
        elif path.endswith("/input_items"):
            self._send({"object": "list", "data": [], "has_more": False, "first_id": None, "last_id": None})
        elif parameters.get("stream") == ["true"]:
            self._stream(job, int(parameters.get("starting_after", ["-1"])[0]) + 1)
        elif self.service.jobs[job] == "failed":
            error = {"code": "server_error", "message": "it broke"}
            self._send({**response(job, "failed"), "error": error})
        else:
            status = self.service.jobs[job]
            self._send(response(job, status, "".join(TEXT) if status == "completed" else ""))

    def do_DELETE(self) -> None:
        path, _ = self._record()
        job = path.split("/")[3]
        del self.service.jobs[job]
        self._send({"id": job, "object": "response", "deleted": True})


@contextmanager
def running_service(name: str) -> Iterator[BackgroundService]:
    service = BackgroundService(name)
    handler = type("Handler", (_Handler,), {"service": service})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
