"""Start a gateway with several worker processes, and find out which worker has served a request."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dragoman.gateway import admin
from dragoman.gateway.server_workers import socket_of
from dragoman.gateway.sibling_workers import sibling_path
from tests.gateway.harness import KEY, TIMEOUT, wait_until

_PROCESS = slice(len("req_") + 12, len("req_") + 24)  # the part of a request id that belongs to the process


class WorkerResponse:
    """The response to a request, and the worker that served it."""

    def __init__(self, gateway: WorkerGateway, response: http.client.HTTPResponse) -> None:
        self.status, self._body = response.status, response.read()
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._gateway = gateway

    @property
    def json(self) -> Any:
        return json.loads(self._body)

    @property
    def id(self) -> str:
        """The id of the response, whole or streamed."""
        if self.headers["content-type"].startswith("text/event-stream"):
            return str(json.loads(self._body.split(b"data: ")[1].split(b"\n")[0])["response"]["id"])
        return str(self.json["id"])

    @property
    def code(self) -> str:
        """The code of the error."""
        return str(self.json["error"]["code"])

    @property
    def worker(self) -> int:
        return self._gateway.worker_of(self.headers["x-request-id"])


class WorkerGateway:
    """A running gateway with several workers."""

    def __init__(self, process: subprocess.Popen[str], url: str, socket: Path, workers: int, log: Path) -> None:
        self.process, self.url, self.socket, self._log = process, url, socket, log
        self.numbers = range(1, workers + 1)
        self.state = log.parent / ".local/state/dragoman"
        self._workers: dict[str, int] = {}  # by the part of a request id that belongs to the process

    @property
    def log(self) -> str:
        return self._log.read_text()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=TIMEOUT)

    def request(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        key: str = KEY,
        connection: http.client.HTTPConnection | None = None,
    ) -> WorkerResponse:
        """Send a request, over a connection of its own unless one is given."""
        used = connection or self.connect()
        try:
            used.request(method, path, None if body is None else json.dumps(body), {"x-api-key": key})
            return WorkerResponse(self, used.getresponse())
        finally:
            if connection is None:
                used.close()

    def ask(self, text: str = "hello", model: str = "chat/m", *, key: str = KEY, **more: Any) -> WorkerResponse:
        """Send a request of the Responses API."""
        return self.request("/v1/responses", {"model": model, "input": text, **more}, key=key)

    def worker_of(self, request_id: str) -> int:
        """Return the number of the worker that has served a request."""
        process = request_id[_PROCESS]

        def is_found() -> bool:
            for number in self.numbers:
                if json.loads(self.admin(number, f"/requests?id={request_id}")):
                    self._workers[process] = number
            return process in self._workers

        if process not in self._workers:
            wait_until(is_found)  # A record is kept after the response was sent.
        return self._workers[process]

    def admin(self, number: int, what: str, method: str = "GET") -> bytes:
        """Send a request to the admin socket of a worker."""
        return admin.send_admin_request(socket_of(self.socket, number), what, method, TIMEOUT)

    def message(self, number: int, name: str, message: Any) -> tuple[int, bytes]:
        """Send a message to a worker, as its siblings do. Return the status and the response."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(str(socket_of(self.socket, number)))
            body = json.dumps(message).encode()
            head = f"POST {sibling_path(name)} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            response = http.client.HTTPResponse(connection, method="POST")
            response.begin()
            return response.status, response.read()

    def pid(self, number: int) -> int:
        return int(json.loads(self.admin(number, "/status"))["pid"])

    def cooldowns(self, number: int) -> list[Any]:
        return list(json.loads(self.admin(number, "/cooldowns")))

    def kinds(self) -> list[list[str]]:
        """Return the kinds of the cooldowns of each worker."""
        return [[row["kind"] for row in self.cooldowns(number)] for number in self.numbers]


@contextmanager
def start_workers(text: str, workers: int) -> Iterator[WorkerGateway]:
    """Run a gateway with this configuration. Its folder has a short path, because those of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="dgm") as name:
        folder = Path(name)
        config, log, path = folder / "config.toml", folder / "log", folder / "run/admin.sock"
        server = f'[server]\nkey = "{KEY}"\nport = 0\ndrain = 2\nadmin_socket = "{path}"\n'
        config.write_text(f"allow_literal_secrets = true\n{server}{text}")
        config.chmod(0o600)
        environ = {"PATH": os.environ.get("PATH", ""), "HOME": name}
        command = [sys.executable, "-m", "dragoman", "serve", "--config", str(config), "--quiet"]
        with (
            log.open("wb") as stderr,
            subprocess.Popen(
                [*command, "--workers", str(workers)], env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True
            ) as process,
        ):
            assert process.stdout is not None
            try:
                url = process.stdout.readline().strip()
                assert url, log.read_text()
                yield WorkerGateway(process, url, path, workers, log)
            finally:
                process.terminate()
                process.wait(TIMEOUT)
