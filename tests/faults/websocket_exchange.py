"""A request over WebSocket as an exchange like any other: the fault suite checks its events like a stream of HTTP."""

from __future__ import annotations

import json
import time

from dragoman.wire.http import HttpRequest
from tests.faults.http_client import NoResponse, RawResponse, ResponseTimeout
from tests.gateway.websocket_client import WebSocketClient


def send_over_websocket(url: str, request: HttpRequest, key: str, within: float) -> RawResponse:
    """Send a request of Responses in a session of its own. Raises ResponseTimeout, NoResponse."""
    began = time.monotonic()
    try:
        with WebSocketClient(url, key=key) as client:
            client.socket.settimeout(within)
            client.send_text(request.body.decode().replace("{", '{"type": "response.create",', 1))
            events = client.events()
            client.send_close()
            client.wait_closed()
    except TimeoutError:
        raise ResponseTimeout(f"no end within {within:.2f} s") from None
    seconds = time.monotonic() - began
    if not events:
        raise NoResponse(f"the session ended without a response: {client.close_code}")
    first = events[0]
    if first["type"] == "error" and "status" in first:
        body = json.dumps({"error": first["error"]}).encode()
        return RawResponse(first["status"], first.get("headers", {}), body, True, seconds)
    frames = [": ping\n\n"] * client.pings
    frames += [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    return RawResponse(200, {}, "".join(frames).encode(), True, seconds)
