"""A connection goes on after a big request, whether somebody read its body or not (Claude Code sends 85 kB and more)."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path

import pytest

from dragoman.simulator import running_simulator
from tests.gateway.house import KEY, house, messages, upstream


@pytest.mark.parametrize("key", [KEY, "wrong"])
def test_another_request_is_answered_on_the_connection_of_a_big_one(tmp_path: Path, key: str) -> None:
    with running_simulator("openai") as simulator, house(upstream("o", "openai", simulator.url), tmp_path) as home:
        host, _, port = home.url.removeprefix("http://").partition(":")
        statuses = []
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            for given in (key, KEY, KEY):
                body = json.dumps(messages(text="long " * 20_000))
                head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\nx-api-key: {given}\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall((head + body).encode())  # in one piece: it is there before anybody asks for it
                response = http.client.HTTPResponse(connection)
                response.begin()
                response.read()
                statuses.append(response.status)
    assert statuses == [200 if key == KEY else 401, 200, 200]
