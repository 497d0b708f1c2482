"""S8: every route is guarded, those for probes and the admin port too."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.gateway import admin
from dragoman.gateway.admission import Guard
from dragoman.gateway.serve import running_gateway
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json
from tests.gateway.front import served
from tests.gateway.house import KEY, House, configured, house, messages
from tests.security.routes import ADMIN, OPEN


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house("", tmp_path_factory.mktemp("state")) as one:
        yield one


@pytest.mark.parametrize(("method", "path"), OPEN)
def test_s8_probes_pass_the_guard(home: House, method: str, path: str) -> None:
    """S8: they skipped it, so a web page could tell whether a gateway runs."""
    assert home.ask(path, method=method, key=None)[0] == 200
    assert home.ask(path, method=method, key=None, host="evil.test")[0] == 421
    assert home.ask(path, method=method, key=None, origin="https://evil.test")[0] == 403
    for site in ("cross-site", "same-site", "Cross-Site"):
        assert home.ask(path, method=method, key=None, sec_fetch_site=site)[0] == 403
        assert home.ask(path, method=method, key=None, sec_fetch_site=site, origin="http://localhost")[0] == 403


def test_s8_what_a_browser_says_of_the_site_counts_whatever_the_origin(home: House) -> None:
    for origin in ("http://localhost:3000", "http://127.0.0.1:8787", ""):
        assert home.ask("/v1/messages", messages(), sec_fetch_site="cross-site", origin=origin)[0] == 403
    assert home.ask("/v1/models", method="GET", sec_fetch_site="same-origin")[0] == 200


def asked(host: str, **headers: str) -> HttpRequest:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpRequest("GET", "/healthz", headers=(("host", host), *given.items()))


@pytest.mark.parametrize("bound", ["0.0.0.0", "::", "10.1.2.3"])
def test_s8_beyond_loopback_an_origin_is_ours_only_if_it_is_the_host_itself(bound: str) -> None:
    """S8: any IP-literal Origin passed."""
    guard = Guard(bound, ["gateway.internal"])
    for host in ("10.9.9.9:8787", "[2001:db8::1]:8787", "gateway.internal"):
        assert guard.refusal(asked(host)) is None  # operators probe by address
        assert guard.refusal(asked(host, origin=f"http://{host}")) is None
    foreign = [
        "http://10.6.6.6",
        "http://[2001:db8::6]",
        "http://10.9.9.9:3000",
        "http://0.0.0.0",
        "http://[::]",
        "null",
    ]
    for origin in foreign:
        fault = guard.refusal(asked("10.9.9.9:8787", origin=origin))
        assert fault is not None and fault.status == 403, origin
    assert guard.refusal(asked("10.9.9.9:8787", origin="http://gateway.internal")) is None
    cross = guard.refusal(asked("10.9.9.9:8787", origin="http://10.9.9.9:8787", sec_fetch_site="cross-site"))
    assert cross is not None and cross.status == 403


class Asked:
    """What the admin plane asks."""

    key = KEY
    cleared = 0

    def status(self) -> dict[str, Json]:
        return {"state": "ready"}

    def metrics(self) -> bytes:
        return b"a_metric 1\n"

    def cooldowns(self) -> list[Json]:
        return []

    def clear(self, upstream: str) -> dict[str, Json]:
        self.cleared += 1
        return {"cleared": 1}


@pytest.mark.parametrize(
    "given", ["", "x-api-key: wrong", "authorization: Bearer wrong", f"authorization: Basic {KEY}"]
)
def test_s8_the_admin_port_needs_the_key_on_every_route(given: str) -> None:
    """S8: it had none."""
    asked = Asked()
    port, private = admin.Admin(asked, ours=False), admin.Admin(asked, ours=True)
    lines = f"host: localhost\r\n{given}\r\n" if given else "host: localhost\r\n"
    for method, path in [*ADMIN, ("GET", "/nothing")]:
        answer = served(port.answer, f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 401 ") and b"metric 1" not in answer and b"ready" not in answer
    assert asked.cleared == 0
    assert served(private.answer, f"GET /status HTTP/1.1\r\n{lines}\r\n".encode()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("given", [f"x-api-key: {KEY}", f"Authorization: Bearer {KEY}"])
def test_s8_with_the_key_it_answers(given: str) -> None:
    port = admin.Admin(Asked(), ours=False)
    for path in ("/status", "/metrics", "/cooldowns", "/healthz"):
        head = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{given}\r\n\r\n"
        assert served(port.answer, head.encode()).startswith(b"HTTP/1.1 200 ")


def test_s8_the_admin_port_of_a_running_gateway_asks_for_its_key(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    config = configured("", server__admin_socket=str(tmp_path / "s"), server__admin_port=number)
    with running_gateway(config, state=tmp_path, key=KEY, admin_socket=True):
        for line, status in ((b"", b"401"), (f"authorization: Bearer {KEY}\r\n".encode(), b"200")):
            with socket.create_connection(("127.0.0.1", number), 5) as asking:
                asking.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n" + line + b"\r\n")
                assert asking.recv(100).split()[1] == status
