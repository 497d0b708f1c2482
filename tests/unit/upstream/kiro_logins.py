"""What the tests of Kiro logins share: a plain fetch, a scripted one, stores with a token in them."""

from __future__ import annotations

import asyncio
import http.client
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dragoman.simulator import Script, parse_script
from dragoman.upstream.credentials import Fetch
from dragoman.upstream.kiro.credential import KiroCredential
from dragoman.upstream.kiro.stores import OwnStore
from dragoman.upstream.kiro.token import Endpoints, render_time
from dragoman.wire.http import HttpRequest, HttpResponse

NOW = 1_800_000_000.0
ARN = "arn:aws:codewhisperer:eu-central-1:123456789012:profile/ABCDEFGHIJKL"
CHAT = HttpRequest("POST", "/generateAssistantResponse", body=b'{"conversationState":{}}')
SECRETS = ("access-1", "refresh-1", "client-secret-1")


async def fetch(base_url: str, request: HttpRequest) -> HttpResponse:
    return await asyncio.to_thread(_fetch, base_url, request)


def _fetch(base_url: str, request: HttpRequest) -> HttpResponse:
    connection = http.client.HTTPConnection(urlsplit(base_url).netloc, timeout=60)
    try:
        target = request.path + (f"?{request.query}" if request.query else "")
        connection.request(request.method, target, request.body, dict(request.headers))
        response = connection.getresponse()
        headers = tuple((name.lower(), value) for name, value in response.getheaders())
        return HttpResponse(response.status, headers, response.read())
    finally:
        connection.close()


class SignInService:
    """A sign-in service in memory: answers by a function and keeps what it was asked."""

    def __init__(self, respond: Callable[[HttpRequest], HttpResponse | Exception], delay: float = 0.0) -> None:
        self.calls: list[tuple[str, HttpRequest]] = []
        self._respond = respond
        self._delay = delay

    async def fetch(self, base_url: str, request: HttpRequest) -> HttpResponse:
        self.calls.append((base_url, request))
        await asyncio.sleep(self._delay)
        response = self._respond(request)
        if isinstance(response, Exception):
            raise response
        return response


def json_response(body: Any, status: int = 200, **headers: str) -> HttpResponse:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return HttpResponse(status, named, json.dumps(body).encode())


def grant_tokens(**more: Any) -> Callable[[HttpRequest], HttpResponse]:
    """Responses with access-2, access-3, … and no refresh token unless `more` has one."""
    count = iter(range(2, 1000))
    return lambda _: json_response({"accessToken": f"access-{next(count)}", "expiresIn": 3600} | more)


def document(**changed: Any) -> dict[str, Any]:
    """An expired social login, in our own spelling."""
    return {
        "type": "kiro",
        "auth_method": "social",
        "access_token": "access-1",
        "refresh_token": "refresh-1",
        "expires_at": render_time(NOW - 60),
        "region": "us-east-1",
    } | changed


IDC = {"auth_method": "idc", "client_id": "client-1", "client_secret": "client-secret-1"}


def write_store(folder: Path, **changed: Any) -> OwnStore:
    path = folder / "default.json"
    path.write_text(json.dumps(document(**changed)))
    path.chmod(0o600)
    return OwnStore(path)


def credential(store: Any, using: Fetch, **more: Any) -> KiroCredential:
    settings: dict[str, Any] = {"now": lambda: NOW, "profile": "never"}
    return KiroCredential(store, using, **(settings | more))


def endpoints_of(simulator: Any) -> Endpoints:
    return Endpoints.everything_at(simulator.url)


def token_script(**settings: Any) -> Script:
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    return parse_script(f"[tokens]\n{lines}")


def cli_database(path: Path, **rows: dict[str, Any]) -> Path:
    """A store as kiro-cli makes it; double underscores in names stand for colons, single ones for themselves."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE auth_kv (key TEXT PRIMARY KEY, value TEXT)")
    database.execute("CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB)")
    for name, value in rows.items():
        key = name.replace("__", ":").replace("device_registration", "device-registration")
        database.execute("INSERT INTO auth_kv VALUES (?, ?)", (key, json.dumps(value)))
    database.commit()
    database.close()
    return path
