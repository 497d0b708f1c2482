"""The route inventory is frozen: what is answered, by which plane, and that nothing else is."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.gateway import admin
from tests.gateway.front import served
from tests.gateway.house import House
from tests.security.parrot import Parrot
from tests.security.routes import ABSENT, ADMIN, DATA, METHODS, OPEN, STORED
from tests.security.test_network import _Asked

SOURCE = Path(registry.__file__).parent
# Every text in a binding that could be, or begin, a path. A new one is a new route: add it to routes.py first.
PATHS = {
    "anthropic": {"/v1", "/v1/messages", "/v1/messages/count_tokens", "/v1/models"},
    "openai": {"/chat/completions", "/models", "/v1"},
    "responses": {
        "/responses",
        "/responses/input_tokens",
        r"/responses/([A-Za-z0-9_-]{1,512})(?:/(cancel|input_items))?\Z",
        "/models",
        "/v1",
    },
    "gemini": {
        r"/v\d+(?:alpha|beta)?\d*",
        "/v1",
        "/v1beta",
        "/models",
        "/models/",
        "/(.+):(",
        r")/?\Z",
        r")/models(?:/(.+?))?/?\Z",
    },
    "bedrock": {
        "/model/",
        r"/model/(.*)/(converse|converse-stream|count-tokens)/?\Z",
        r"/model/(.*)/(invoke|invoke-with-response-stream|count-tokens)/?\Z",
    },
    "ollama": {"/api/chat", "/api/tags"},
    "kiro": {"/generateAssistantResponse", "/ListAvailableModels"},  # and `/` with its x-amz-target
}


def paths_in(name: str) -> set[str]:
    found: set[str] = set()
    for path in [*(SOURCE / name).glob("binding.py"), *(SOURCE / name).glob("invoke.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"\)?/|\(?:?/", node.value):
                found.add(node.value)
    return found - {"/"}


def test_route_inventory_every_dialect_has_a_route_that_is_written_down() -> None:
    matched = {dialect for method, path, body in DATA for dialect in names_of(method, path, body)}
    assert matched == set(registry.names())


def names_of(method: str, path: str, body: Any) -> list[str]:
    from dragoman.wire.http import HttpRequest
    from dragoman.wire.jsonio import encode

    request = HttpRequest(
        method,
        path,
        headers=(("anthropic-version", "2023-06-01"),) if "anthropic" in path else (),
        body=encode(body) if body else b"",
    )
    return [name for name in registry.names() if registry.get(name).binding.match(request) is not None]


@pytest.mark.parametrize(("method", "path", "body"), DATA, ids=lambda value: value if isinstance(value, str) else "")
def test_route_inventory_what_is_written_down_is_answered_with_the_key_and_only_with_it(
    home: House, method: str, path: str, body: Any
) -> None:
    assert home.ask(path, body, method=method)[0] == 200
    assert home.ask(path, body, method=method, key=None)[0] in (401, 403)


@pytest.mark.parametrize(("method", "path"), STORED)
def test_route_inventory_responses_of_others_are_not_found_and_need_the_key(
    home: House, bird: Parrot, method: str, path: str
) -> None:
    before = len(bird.requests)
    assert home.ask(path, method=method)[0] == 404
    assert home.ask(path, method=method, key=None)[0] in (401, 403)
    assert len(bird.requests) == before


def test_route_inventory_nothing_else_is(home: House, bird: Parrot) -> None:
    before = len(bird.requests)
    for path in ABSENT:
        for method in METHODS:
            status = home.ask(path, b"{}" if method in ("POST", "PUT", "PATCH") else None, method=method)[0]
            assert status in (400, 404, 405), (method, path)
    assert len(bird.requests) == before


def test_route_inventory_other_methods_of_known_paths_are_not(home: House, bird: Parrot) -> None:
    before = len(bird.requests)
    answered = {(method, path) for method, path, _ in DATA}
    for _, path, body in DATA:
        for method in METHODS:
            if (method, path) not in answered:
                assert home.ask(path, body, method=method)[0] in (400, 404, 405), (method, path)
    assert len(bird.requests) == before


def test_route_inventory_only_probes_are_open_and_they_tell_nothing(home: House) -> None:
    for method, path in OPEN:
        status, headers, body = home.ask(path, method=method, key=None)
        assert status == 200 and body in (b"", b"ok\n", b"ready\n")
        assert set(headers) <= {"content-type", "content-length", "date", "connection"}


def test_route_inventory_the_admin_plane_is_five_routes() -> None:
    plane = admin.Admin(_Asked(), ours=True)
    answered = set()
    for method in METHODS:
        for path in (*(path for _, path in ADMIN), *ABSENT, *(path for _, path, _ in DATA)):
            head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
            if served(plane.answer, head).startswith(b"HTTP/1.1 200"):
                answered.add((method, path))
    assert answered == ADMIN


@pytest.mark.parametrize("name", sorted(PATHS))
def test_route_inventory_no_binding_names_a_new_path(name: str) -> None:
    assert paths_in(name) == PATHS[name]


def test_route_inventory_every_binding_is_looked_at() -> None:
    assert {path.parent.name for path in SOURCE.glob("*/binding.py")} == set(PATHS)
