"""The route inventory (routes.py), the guards of every route, and points 36 to 41 of SECURITY.md."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman._version import __version__
from dragoman.cli import doctor_checks
from dragoman.cli.doctor_checks import CheckContext
from dragoman.gateway import admin
from dragoman.gateway.admission import HeadCheck
from dragoman.gateway.breaker import CircuitBreaker
from dragoman.gateway.response_store import ResponseHolders, ResponseStore
from dragoman.gateway.serve import running_gateway
from dragoman.gateway.worker_sharing import WorkerSharing
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import KEY, GatewayHarness, anthropic_body, parse_config, start_gateway
from tests.gateway.socket_client import serve_bytes
from tests.security.admin_stub import AdminStub
from tests.security.echo_upstream import EchoUpstream
from tests.security.routes import ABSENT, ADMIN, DATA, METHODS, OPEN, STORED

SOURCE = Path(registry.__file__).parent
# Every string in a binding that could be a path or its beginning. A new one is a new route: add it to routes.py first.
PATHS = {
    "anthropic": {"/v1", "/v1/messages", "/v1/messages/count_tokens", "/v1/models"},
    "kit": {"/v1"},  # of both OpenAI APIs
    "openai": {"/chat/completions", "/models"},
    "responses": {
        "/responses",
        "/responses/input_tokens",
        r"/responses/([A-Za-z0-9_-]{1,512})(?:/(cancel|input_items))?\Z",
        "/models",
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


BINDINGS = [path for path in SOURCE.glob("*/*.py") if re.search(r"^class \w+Binding\(", path.read_text(), re.MULTILINE)]


def paths_in(name: str) -> set[str]:
    found: set[str] = set()
    for path in [each for each in BINDINGS if each.parent.name == name]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"\)?/|\(?:?/", node.value):
                found.add(node.value)
    return found - {"/"}


def test_route_inventory_lists_a_route_of_every_dialect() -> None:
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
def test_route_inventory_listed_routes_need_the_key(harness: GatewayHarness, method: str, path: str, body: Any) -> None:
    assert harness.request(path, body, method=method)[0] == 200
    assert harness.request(path, body, method=method, key=None)[0] in (401, 403)


@pytest.mark.parametrize(("method", "path"), STORED)
def test_route_inventory_responses_of_others_are_not_found_and_need_the_key(
    harness: GatewayHarness, echo_upstream: EchoUpstream, method: str, path: str
) -> None:
    before = len(echo_upstream.requests)
    assert harness.request(path, method=method)[0] == 404
    assert harness.request(path, method=method, key=None)[0] in (401, 403)
    assert len(echo_upstream.requests) == before


def test_route_inventory_no_other_path_is_served(harness: GatewayHarness, echo_upstream: EchoUpstream) -> None:
    before = len(echo_upstream.requests)
    for path in ABSENT:
        for method in METHODS:
            status = harness.request(path, b"{}" if method in ("POST", "PUT", "PATCH") else None, method=method)[0]
            assert status in (400, 404, 405), (method, path)
    assert len(echo_upstream.requests) == before


def test_route_inventory_no_other_method_is_served(harness: GatewayHarness, echo_upstream: EchoUpstream) -> None:
    before = len(echo_upstream.requests)
    answered = {(method, path) for method, path, _ in DATA}
    for _, path, body in DATA:
        for method in METHODS:
            if (method, path) not in answered:
                assert harness.request(path, body, method=method)[0] in (400, 404, 405), (method, path)
    assert len(echo_upstream.requests) == before


def test_route_inventory_only_probes_need_no_key_and_they_reveal_nothing(harness: GatewayHarness) -> None:
    for method, path in OPEN:
        status, headers, body = harness.request(path, method=method, key=None)
        assert status == 200 and body in (b"", b"ok\n", b"ready\n")
        assert set(headers) <= {"content-type", "content-length", "date", "connection"}


def test_route_inventory_probes_have_no_other_method(harness: GatewayHarness) -> None:
    for path in {path for _, path in OPEN}:
        for method in METHODS:
            if (method, path) not in OPEN:
                assert harness.request(path, b"{}", method=method)[0] in (400, 404, 405), (method, path)


def test_route_inventory_the_admin_plane_is_twelve_routes() -> None:
    admin_interface = admin.Admin(AdminStub(), is_private=True)
    answered = set()
    for method in METHODS:
        for path in (*(path for _, path in ADMIN), *ABSENT, *(path for _, path, _ in DATA)):
            head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
            if serve_bytes(admin_interface.answer, head).startswith(b"HTTP/1.1 200"):
                answered.add((method, path))
    assert answered == ADMIN


def test_route_inventory_a_worker_has_three_more_routes_on_its_private_socket() -> None:
    services: Any = SimpleNamespace(response_store=ResponseStore(), holders=ResponseHolders())
    routes = WorkerSharing([], services, CircuitBreaker()).routes
    assert set(routes) == {f"/workers/{__version__}/{name}" for name in ("find", "forget", "cooldowns")}
    for path in routes:
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\ncontent-length: 2\r\n\r\n[]".encode()
        for is_private in (True, False):
            response = serve_bytes(admin.Admin(AdminStub(), is_private=is_private).answer, head)
            assert response.startswith((b"HTTP/1.1 401", b"HTTP/1.1 405"))  # one process, and the port
        worker = admin.Admin(AdminStub(), is_private=True, routes=routes)
        assert serve_bytes(worker.answer, head).startswith((b"HTTP/1.1 400", b"HTTP/1.1 503"))  # it has not started yet
        foreign = head.replace(b"host: localhost", b"host: localhost\r\norigin: http://a.example")
        assert serve_bytes(worker.answer, foreign).startswith(b"HTTP/1.1 421")


@pytest.mark.parametrize("name", sorted(PATHS))
def test_route_inventory_no_binding_names_a_new_path(name: str) -> None:
    assert paths_in(name) == PATHS[name]


def test_route_inventory_checks_every_binding() -> None:
    assert {path.parent.name for path in BINDINGS} == set(PATHS)


# --- every route is guarded, also probes and the admin port


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHarness]:
    with start_gateway("", tmp_path_factory.mktemp("state")) as one:
        yield one


@pytest.mark.parametrize(("method", "path"), OPEN)
def test_probes_pass_the_guard(bare: GatewayHarness, method: str, path: str) -> None:
    """Regression: probes skipped the guard, so a web page could detect a gateway."""
    assert bare.request(path, method=method, key=None)[0] == 200
    assert bare.request(path, method=method, key=None, host="evil.test")[0] == 421
    assert bare.request(path, method=method, key=None, origin="https://evil.test")[0] == 403
    for site in ("cross-site", "same-site", "Cross-Site"):
        assert bare.request(path, method=method, key=None, sec_fetch_site=site)[0] == 403
        assert bare.request(path, method=method, key=None, sec_fetch_site=site, origin="http://localhost")[0] == 403


def test_sec_fetch_site_is_checked_for_every_origin(bare: GatewayHarness) -> None:
    for origin in ("http://localhost:3000", "http://127.0.0.1:8787", ""):
        assert bare.request("/v1/messages", anthropic_body(), sec_fetch_site="cross-site", origin=origin)[0] == 403
    assert bare.request("/v1/models", method="GET", sec_fetch_site="same-origin")[0] == 200


def request_to(host: str, **headers: str) -> HttpRequest:
    all_headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest("GET", "/healthz", headers=(("host", host), *all_headers.items()))


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "10.1.2.3"])
def test_beyond_loopback_an_origin_is_accepted_only_if_it_equals_the_host(bound: str) -> None:
    """Regression: every Origin with an IP address passed."""
    guard = HeadCheck(bound, ["gateway.internal"])
    for host in ("10.9.9.9:8787", "[2001:db8::1]:8787", "gateway.internal"):
        assert guard.refusal(request_to(host)) is None  # operators send probes to the address
        assert guard.refusal(request_to(host, origin=f"http://{host}")) is None
    foreign = [
        "http://10.6.6.6",
        "http://[2001:db8::6]",
        "http://10.9.9.9:3000",
        "http://0.0.0.0",
        "http://[::]",
        "null",
    ]
    for origin in foreign:
        fault = guard.refusal(request_to("10.9.9.9:8787", origin=origin))
        assert fault is not None and fault.status == 403, origin
    assert guard.refusal(request_to("10.9.9.9:8787", origin="http://gateway.internal")) is None
    cross = guard.refusal(request_to("10.9.9.9:8787", origin="http://10.9.9.9:8787", sec_fetch_site="cross-site"))
    assert cross is not None and cross.status == 403


@pytest.mark.parametrize(
    "header", ["", "x-api-key: wrong", "authorization: Bearer wrong", f"authorization: Basic {KEY}"]
)
def test_the_admin_port_needs_the_key_on_every_route(header: str) -> None:
    """Regression: the admin port needed no key."""
    request_to = AdminStub()
    port, private = admin.Admin(request_to, is_private=False), admin.Admin(request_to, is_private=True)
    lines = f"host: localhost\r\n{header}\r\n" if header else "host: localhost\r\n"
    for method, path in [*ADMIN, ("GET", "/nothing")]:
        response = serve_bytes(port.answer, f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode())
        assert response.startswith(b"HTTP/1.1 401 ") and b"metric 1" not in response and b"ready" not in response
    assert request_to.changes == 0
    assert serve_bytes(private.answer, f"GET /status HTTP/1.1\r\n{lines}\r\n".encode()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("header", [f"x-api-key: {KEY}", f"Authorization: Bearer {KEY}"])
def test_the_admin_port_answers_with_the_key(header: str) -> None:
    port = admin.Admin(AdminStub(), is_private=False)
    for path in ("/status", "/models", "/metrics", "/cooldowns", "/log", "/requests", "/activity", "/healthz"):
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{header}\r\n\r\n"
        assert serve_bytes(port.answer, head.encode()).startswith(b"HTTP/1.1 200 ")


def test_the_admin_port_of_a_running_gateway_needs_its_key(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    config = parse_config("", server__admin_socket=str(tmp_path / "s"), server__admin_port=number)
    with running_gateway(config, state=tmp_path, key=KEY, admin_socket=True):
        for line, status in ((b"", b"401"), (f"authorization: Bearer {KEY}\r\n".encode(), b"200")):
            with socket.create_connection(("127.0.0.1", number), 5) as asking:
                asking.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n" + line + b"\r\n")
                assert asking.recv(100).split()[1] == status


# --- points 36 to 41: actions of the process, and its dependencies

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "run.lock"
TEMPLATES = (
    "jinja2",
    "mako",
    "chameleon",
    "genshi",
    "django",
    "tornado",
    "chevron",
    "pystache",
    "liquid",
    "markupsafe",
)
POINTS = [1, *range(3, 13), *range(13, 17), *range(18, 32), 34, 37, 38, 40, 41]


@pytest.fixture(scope="module")
def watched(echo_upstream: EchoUpstream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    state = tmp_path_factory.mktemp("state")
    command = [sys.executable, "-m", "tests.security.audited_gateway", echo_upstream.url, str(state)]
    environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | {"HOME": str(state)}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "state": str(state), "upstream": echo_upstream.url.removeprefix("http://")}


def test_point_37_no_request_starts_a_process_loads_code_or_writes_beyond_the_state(watched: dict[str, Any]) -> None:
    network = ("socket.connect", "socket.getaddrinfo")
    acts = [tuple(each) for each in watched["seen"] if each[0] not in network]
    assert [each for each in acts if watched["state"] not in each[1]] == []


def test_point_37_requests_connect_only_to_the_upstream(watched: dict[str, Any]) -> None:
    ports = {watched["place"].partition(":")[2], watched["upstream"].partition(":")[2]}
    calls = [place for event, place in watched["seen"] if event.startswith("socket.")]
    assert len(calls) > 100
    other_addresses = [place for place in calls if "127.0.0.1" not in place or not any(port in place for port in ports)]
    assert other_addresses == []


def test_point_37_no_template_engine_is_loaded(watched: dict[str, Any]) -> None:
    assert set(watched["modules"]).isdisjoint(TEMPLATES)


def test_point_41_the_start_makes_no_connection(watched: dict[str, Any]) -> None:
    assert watched["at_start"] == []


def distributions() -> dict[str, list[str]]:
    """Return the locked runtime distributions with their hashes."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in LOCK.read_text().splitlines():
        if named := re.match(r"([a-z0-9][a-z0-9._-]*)==\S+", line):
            name = named[1]
            found[name] = []
        found.setdefault(name, []).extend(re.findall(r"--hash=sha256:([0-9a-f]{64})\b", line))
    return found


def test_point_38_few_distributions_run_all_locked_by_hash() -> None:
    found = distributions()
    assert 0 < len(found) <= 25
    assert [name for name, hashes in found.items() if not hashes] == []
    assert set(found).isdisjoint(TEMPLATES)
    written = (ROOT / "SECURITY.md").read_text()
    assert [name for name in found if f"`{name}`" not in written] == []  # each is named in the document


def test_point_38_the_wheel_contains_only_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        package = [name for name in names if name.startswith("dragoman/")]
        others = [name for name in names if name not in package]
        changed = [name for name in package if archive.read(name) != (ROOT / "src" / name).read_bytes()]
    assert changed == []
    assert {name.rpartition(".")[2] for name in package} <= {
        "py",
        "typed",
        "toml",
        "json",
        "md",
        "sql",
        "html",
        "css",
        "js",
        "ts",
    }
    assert all(
        re.fullmatch(r"dragoman-[^/]+\.dist-info/(METADATA|WHEEL|RECORD|entry_points\.txt|licenses/LICENSE)", name)
        for name in others
    ), others
    assert not [name for name in names if name.endswith((".pth", ".so", ".pyd", ".pyc", ".exe", ".sh"))]


def test_point_41_the_sources_contain_no_telemetry_and_no_update_check() -> None:
    """Every host in the sources is listed here: services and documents only."""
    hosts = {
        host
        for path in (ROOT / "src").rglob("*.py")
        for host in re.findall(r"https?://([a-z0-9.-]+\.[a-z]{2,})", path.read_text())
    }
    known = re.compile(
        r"(?:.*\.)?(?:anthropic\.com|openai\.com|openrouter\.ai|moonshot\.ai|googleapis\.com|amazonaws\.com|awsapps\.com|kiro\.dev|example\.com|json-schema\.org|microsoftonline\.com)"
    )
    assert sorted(host for host in hosts if not known.fullmatch(host)) == []


def test_point_36_doctor_warns_about_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = CheckContext({"HOME": str(tmp_path)}, None, offline=True)
    for who, expected in ((0, ["warn"]), (1000, [])):
        monkeypatch.setattr(os, "geteuid", lambda who=who: who)
        assert [each.state for each in doctor_checks._user(context) if each.id == "user"] == expected


def test_point_40_security_md_states_every_promise_with_its_tests() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "private security advisory" in text
    rows = {int(row[1]): row[2] for row in re.finditer(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)}
    assert sorted(rows) == sorted([*POINTS, 36])
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    for point, row in rows.items():
        assert f"def test_point_{point}_" in tests, point
        named = re.findall(r"`(tests/[\w/]+\.py)`", row)
        assert named and all((ROOT / name).is_file() for name in named), point
        assert any(f"test_point_{point}_" in (ROOT / name).read_text() for name in named), point
    for page in ("tests/fuzz", "tests/faults"):
        assert page in text and (ROOT / page).is_dir()
