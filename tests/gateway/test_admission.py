"""Admission of requests: keys and signatures, hosts and origins, sizes and paths, and the error responses."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec import structs

from dragoman.errors import NotAuthorised
from dragoman.gateway.admission import HeadCheck, KeyCheck
from dragoman.simulator import Simulator
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    anthropic_body,
    check_key,
    openai_body,
    start_gateway,
    upstream_config,
)


@pytest.fixture(scope="module")
def harness(simulator: Simulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHarness]:
    text = upstream_config("one", "anthropic", simulator.url, 'models = ["m", "claude-sonnet-4-5", "x-*"]')
    text += upstream_config("two", "anthropic", simulator.url, 'models = ["other"]')
    with start_gateway(text, tmp_path_factory.mktemp("state"), server__max_body=100_000) as running:
        yield running


# --- the key


@pytest.mark.parametrize(
    "headers", [{"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {KEY} "}]
)
def test_the_key_is_accepted_in_each_supported_header(harness: GatewayHarness, headers: dict[str, str]) -> None:
    assert harness.request("/v1/messages", anthropic_body(), key=None, **headers)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-api-key": ""},
        {"x-api-key": KEY[:-1]},
        {"x-api-key": KEY + "x"},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"authorization": "Bearer "},
        {"authorization": "AWS4-HMAC-SHA256 Credential=a/b"},
        {"cookie": KEY},
    ],
)
def test_every_request_without_the_key_gets_the_same_error(
    harness: GatewayHarness, simulator: Simulator, headers: dict[str, str]
) -> None:
    before = simulator.total
    status, response_headers, body = harness.request(f"/v1/messages?key={KEY}", anthropic_body(), key=None, **headers)
    assert (status, json.loads(body)["error"]["type"]) == (401, "authentication_error")
    assert response_headers["x-request-id"].startswith("req_")
    assert simulator.total == before
    assert (
        json.loads(harness.request("/v1/chat/completions", openai_body(), key=None)[2])["error"]["code"]
        == "invalid_api_key"
    )
    assert KEY not in harness.text


def signed(body: bytes = b"{}", secret: str = KEY, path: str = "/model/a%3A0/converse?b=2&a=1") -> HttpRequest:
    draft = AWSRequest("POST", f"http://127.0.0.1:8787{path}", {"content-type": "application/json"}, body)
    SigV4Auth(Credentials("anybody", secret, "token"), "bedrock", "eu-west-3").add_auth(draft)
    headers = {"host": "127.0.0.1:8787"} | {name.lower(): value for name, value in draft.headers.items()}
    plain, _, query = path.partition("?")
    return HttpRequest("POST", plain, query, tuple(headers.items()), body)


@pytest.mark.parametrize(
    "path", ["/model/a%3A0/converse?b=2&a=1", "/model/a:0/invoke", "/", "/model/x%2Fy/converse?a="]
)
def test_a_signature_made_with_the_key_is_accepted(path: str) -> None:
    check_key(KeyCheck(KEY), signed(path=path))


@pytest.mark.parametrize(
    "change",
    [
        {"body": b"{ }"},
        {"path": "/model/a%3A1/converse"},
        {"query": "a=1"},
        {"method": "PUT"},
    ],
)
def test_a_signature_covers_the_whole_request(change: dict[str, Any]) -> None:
    with pytest.raises(NotAuthorised):
        check_key(KeyCheck(KEY), structs.replace(signed(), **change))


def test_a_signature_with_another_key_or_an_old_date_is_refused() -> None:
    with pytest.raises(NotAuthorised):
        check_key(KeyCheck(KEY), signed(secret="another"))
    with pytest.raises(NotAuthorised, match="clock"):
        check_key(KeyCheck(KEY, now=lambda: time.time() + 3600), signed())


def test_a_signature_with_a_future_date_is_refused() -> None:
    with pytest.raises(NotAuthorised, match="clock"):
        check_key(KeyCheck(KEY, now=lambda: time.time() - 3600), signed())


@pytest.mark.parametrize("key", ["", "x-api-key: wrong\r\n", "authorization: Bearer wrong\r\n"])
def test_a_wrong_key_is_refused_before_the_body_is_read(harness: GatewayHarness, key: str) -> None:
    host, port = harness.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\n{key}content-length: 90000\r\n\r\n"
        client.sendall(head.encode())  # the head only, no byte of the body
        assert client.recv(65536).startswith(b"HTTP/1.1 401 ")


def test_a_gateway_requires_a_key() -> None:
    with pytest.raises(ValueError, match="key"):
        KeyCheck("")


# --- hosts and origins


def request_to(host: str | None = "127.0.0.1:8787", **headers: str) -> HttpRequest:
    all_headers = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return HttpRequest("POST", "/v1/messages", headers=(*((("host", host),) if host is not None else ()), *all_headers))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8787", "127.8.8.8", "[::1]:80", "my.box:80"])
def test_loopback_and_configured_hosts_are_accepted(host: str) -> None:
    assert HeadCheck("127.0.0.1", ["my.box"]).refusal(request_to(host)) is None


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.test", 421),
        ("127.0.0.1.evil.test", 421),
        ("10.0.0.1", 421),
        ("x/v1?#", 400),
        ("", 400),
        (None, 400),
        ("a b", 400),
        ("localhost:99999999", 400),
    ],
)
def test_other_hosts_are_refused(host: str | None, status: int) -> None:
    fault = HeadCheck("127.0.0.1").refusal(request_to(host))
    assert fault is not None and fault.status == status


def test_beyond_loopback_every_ip_address_is_accepted_but_no_host_name() -> None:
    guard = HeadCheck("0.0.0.0")
    assert guard.refusal(request_to("10.0.0.1:8787")) is None
    assert guard.refusal(request_to("evil.test")) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.test"},
        {"origin": "null"},
        {"origin": "http://[bad"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_foreign_origins_are_refused(headers: dict[str, str]) -> None:
    fault = HeadCheck("127.0.0.1").refusal(request_to(**headers))
    assert fault is not None and fault.status == 403


def test_a_loopback_origin_is_accepted() -> None:
    assert HeadCheck("127.0.0.1").refusal(request_to(origin="http://localhost:3000")) is None


def test_two_hosts_unknown_encodings_and_long_heads_are_refused() -> None:
    guard = HeadCheck("127.0.0.1")
    doubled = HttpRequest("POST", "/", headers=(("host", "localhost"), ("host", "localhost")))
    many = HttpRequest("POST", "/", headers=(("host", "localhost"), *((f"x-{number}", "") for number in range(200))))
    statuses = [
        fault.status
        for each in (doubled, request_to(transfer_encoding="gzip, chunked"), request_to(content_encoding="gzip"), many)
        if (fault := guard.refusal(each))
    ]
    assert statuses == [400, 400, 415, 431]
    long = HttpRequest("POST", "/" + "x" * 9000, headers=(("host", "localhost"),))
    fault = guard.refusal(long)
    assert fault is not None and fault.status == 414


@pytest.mark.parametrize(
    ("target", "version", "headers", "status"),
    [
        ("/v1/messages", "1.1", {"transfer_encoding": "chunked", "content_length": "5"}, 400),
        ("/v1/messages", "1.0", {"transfer_encoding": "chunked"}, 400),
        ("/v1/messages", "1.1", {"transfer_encoding": "xchunked"}, 400),
        ("/v1/messages", "2.0", {}, 505),
        ("/v1/messages", "0.9", {}, 505),
        ("/v1/messages", "1.1", {"upgrade": "h2c"}, 400),
        ("/v1/messages", "1.1", {"expect": "the-moon"}, 417),
        ("/v1/mess\x7fages", "1.1", {}, 400),
        ("/v1/mess ages", "1.1", {}, 400),
        ("/v1/mess\xe4ges", "1.1", {}, 400),
        ("/v1/messages#x", "1.1", {}, 400),
        ("http://evil.test/v1/messages", "1.1", {}, 400),
        ("*", "1.1", {}, 400),
        ("/" + "x" * 9000, "1.1", {}, 414),
        ("/v1/messages", "1.1", {"transfer_encoding": "Chunked", "expect": "100-Continue"}, None),
        ("/v1/messages", "1.0", {"content_length": "5", "content_encoding": "identity"}, None),
    ],
)
def test_malformed_heads_are_refused_under_every_http_server(
    target: str, version: str, headers: dict[str, str], status: int | None
) -> None:
    """Both HTTP parsers reject some of these themselves; another ASGI server may not."""
    fault = HeadCheck("127.0.0.1").refusal(request_to(**headers), target=target, version=version)
    assert (fault and fault.status) == status


@pytest.mark.parametrize("host", ["localhost.", "LocalHost.:8787", "127.0.0.1.", "my.box."])
def test_a_host_with_a_trailing_dot_is_the_same_host(host: str) -> None:
    assert HeadCheck("127.0.0.1", ["my.box"]).refusal(request_to(host)) is None


def test_the_gateway_checks_the_head_first(harness: GatewayHarness) -> None:
    status, headers, body = harness.request("/v1/messages", anthropic_body(), host="evil.test")
    assert (status, json.loads(body)["type"]) == (421, "error")
    assert "access-control-allow-origin" not in headers
    assert harness.request("/v1/messages", anthropic_body(), origin="https://evil.test")[0] == 403


# --- paths and sizes


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("POST", "/v1/nothing", 404, None),
        ("POST", "/", 404, None),
        ("POST", "/v1/responses/x", 404, None),
        ("GET", "/v1/messages", 405, "POST"),
        ("DELETE", "/v1/chat/completions", 405, "POST"),
        ("POST", "/v1/models", 405, "GET"),
        ("GET", "/model/x/converse", 405, "POST"),
    ],
)
def test_an_unknown_route_gets_an_error_in_a_matching_dialect(
    harness: GatewayHarness, method: str, path: str, status: int, allow: str | None
) -> None:
    found, headers, body = harness.request(path, method=method)
    assert (found, headers.get("allow")) == (status, allow)
    error = json.loads(body)
    assert ("message" in error) if path.startswith("/model") else error["error"]["message"]
    if path == "/v1/nothing":
        _, _, body = harness.request(path, method=method, anthropic_version="2023-06-01")
        assert json.loads(body)["type"] == "error"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/model/m/converse"])
def test_a_body_that_is_too_long_is_refused_in_the_dialect(harness: GatewayHarness, path: str) -> None:
    status, _, body = harness.request(path, b"x" * 150_000)
    assert status == 413
    assert b"100000 bytes" in body
    assert harness.request("/v1/messages", anthropic_body())[0] == 200


def test_a_body_far_over_the_limit_is_not_read(harness: GatewayHarness) -> None:
    host, _, port = harness.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        head = f"POST /v1/messages HTTP/1.1\r\nhost: {host}\r\nx-api-key: {KEY}\r\ncontent-length: 99999999999\r\n\r\n"
        client.sendall(head.encode())
        assert client.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"[" * 90_000, b'{"model": 1, "messages": 3}'])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/model/m/converse"])
def test_an_invalid_body_is_a_400_of_the_dialect(harness: GatewayHarness, path: str, body: bytes) -> None:
    status, _, response = harness.request(path, body)
    assert status == 400
    json.loads(response)


def test_a_deeply_nested_body_is_refused(harness: GatewayHarness) -> None:
    deep: Any = anthropic_body()
    deep["tools"] = [{"name": "t", "input_schema": json.loads("[" * 900 + "]" * 900)}]
    status, _, _ = harness.request("/v1/messages", json.dumps(deep).encode())
    assert status in (200, 400)
    assert '"outcome":"bug"' not in harness.text


def test_an_unknown_model_is_a_404_with_similar_names_patterns_and_remedies(harness: GatewayHarness) -> None:
    status, _, body = harness.request("/v1/messages", anthropic_body("claude-sonnet-4-6"))
    assert status == 404
    message = json.loads(body)["error"]["message"]
    for words in ("claude-sonnet-4-5", "x-*", "UPSTREAM/MODEL (upstreams: one, two)", "[default]", "dragoman models"):
        assert words in message


@pytest.mark.parametrize(
    ("path", "client", "hint"),
    [
        ("/v1/v1/messages", "anthropic", "; check the base URL, which must end before /v1/messages"),
        ("/anthropic/v1/messages", "anthropic", "; check the base URL, which must end before /v1/messages"),
        ("/a/model/m/converse", "bedrock", "; check the base URL, which must end before /model/m/converse"),
        ("/v1/nothing", "openai", "; check the base URL"),
        ("/" * 5000, "openai", "; check the base URL"),
    ],
)
def test_an_unknown_path_is_not_an_unknown_model(harness: GatewayHarness, path: str, client: str, hint: str) -> None:
    status, headers, body = harness.request(path, anthropic_body())
    error = json.loads(body)
    assert (status, "model" in body.decode().replace("/model/", "")) == (404, False)
    message = error["message"] if client == "bedrock" else error["error"]["message"]
    assert message == f"there is no endpoint POST {path}{hint}"
    if client == "openai":
        assert error["error"]["code"] == "unknown_url"
    elif client == "anthropic":
        assert error["error"]["type"] == "not_found_error"
    else:
        assert headers["x-amzn-errortype"] == "ResourceNotFoundException"


def test_probes_need_no_key_and_return_one_word(harness: GatewayHarness) -> None:
    for path, word in (("/healthz", b"ok\n"), ("/readyz", b"ready\n")):
        status, _, body = harness.request(path, method="GET", key=None)
        assert (status, body) == (200, word)
        assert harness.request(path, method="HEAD", key=None)[0] == 200
    assert harness.request("/metrics", method="GET")[0] == 404
    assert harness.request("/status", method="GET")[0] == 404


def test_no_log_line_contains_a_secret(harness: GatewayHarness) -> None:
    harness.request(f"/v1/messages/{KEY}", anthropic_body(), authorization="Bearer the-upstream-secret")
    harness.log_lines()
    assert KEY not in harness.text and "the-upstream-secret" not in harness.text
