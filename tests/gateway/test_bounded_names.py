"""Bounds for names and messages from clients and upstreams, and the owners of stored responses."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from dragoman.dialects.kiro.models import normalize_model_name
from dragoman.dialects.kiro.quirks.request import _SESSION
from dragoman.errors import Fault
from dragoman.gateway import redaction
from dragoman.gateway.aws_signatures import sign
from dragoman.gateway.redaction import Redactor, mask_keys
from dragoman.simulator import running_simulator
from dragoman.wire.http import HttpRequest
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    anthropic_body,
    gated_server,
    openai_body,
    start_gateway,
    upstream_config,
)
from tests.growth import Work, check_linear_growth

LONGEST = 2048


def request_for_model(path: str, model: str, stream: bool) -> object:
    return anthropic_body(model, stream=stream) if path == "/v1/messages" else openai_body(model, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
def test_a_too_long_model_name_is_refused_and_not_stored(path: str, stream: bool, tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        with start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness:
            status, _, body = harness.request(path, request_for_model(path, "m" * (LONGEST + 1), stream))
            assert (status, b"2048" in body, len(body) < 1000) == (400, True, True), body
            [line] = harness.log_lines()
            assert (line["dialect"], line.get("model", "")) == ("anthropic" if "messages" in path else "openai", "")
            assert harness.request(path, request_for_model(path, "m" * LONGEST, stream))[0] == 200
        assert simulator.total == 1


@pytest.mark.parametrize("suffix", ["-thinking", "-latest", "-20250101", "[1m]"])
def test_a_name_with_very_many_suffixes_is_read_in_linear_time(suffix: str) -> None:
    def work(count: int) -> Work:
        name = "claude" + suffix * count
        return lambda: normalize_model_name.__wrapped__(name)

    check_linear_growth(work, 1000)


def test_a_user_id_is_searched_once_for_a_session() -> None:
    check_linear_growth(lambda count: lambda: _SESSION.search("session" + "_" * count), 2000)


@pytest.mark.parametrize(
    ("user", "session"),
    [
        ("user_ab_account__session_0123456789abcdef", "0123456789abcdef"),
        ('{"session_id": "0123-4567-89ab-cdef"}', "0123-4567-89ab-cdef"),
        ("session: id: 0123456789abcdef", "0123456789abcdef"),
        ("sessionid0123456789abcdef", "0123456789abcdef"),
    ],
)
def test_a_session_is_found_in_every_form_of_user_id(user: str, session: str) -> None:
    found = _SESSION.search(user)
    assert found is not None and found[1] == session


def test_a_user_id_of_a_hundred_thousand_characters_is_forwarded_quickly(tmp_path: Path) -> None:
    """Regression: the search blocked the event loop for minutes."""
    with (
        running_simulator("kiro") as simulator,
        start_gateway(upstream_config("one", "kiro", simulator.url), tmp_path) as harness,
    ):
        user = json.dumps("session" + "_" * 100_000)
        body = anthropic_body("claude-sonnet-4", metadata={"user_id": user})
        assert harness.request("/v1/messages", body)[0] == 200


# --- error messages of an upstream


SECRET = "the-upstream-secret"
LONG = "bearer " * (2 * 1024 * 1024 // 7)


def error_body(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "server_error", "code": "c" * 100_000}}).encode()


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_very_long_error_is_cut_before_it_is_searched_for_secrets(
    path: str, stream: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors in whole responses and in streams have no size limit of their own, unlike refusals."""
    checks: list[int] = []

    def searched(text: str) -> str:
        checks.append(len(text))
        return mask_keys(text)

    monkeypatch.setattr(redaction, "mask_keys", searched)
    data = error_body(LONG + SECRET)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\nconnection: close\r\n\r\n"
    kind = b"text/event-stream" if stream else b"application/json"
    body = b"data: " + data + b"\n\n" if stream else data
    with gated_server(body, head % kind) as (url, gate):
        gate.set()
        with start_gateway(upstream_config("one", "openai", url), tmp_path, explain=False) as harness:
            _, _, answered = harness.request(path, request_for_model(path, "m", stream))
            assert b"bearer bearer" in answered
            assert len(answered) < 4 * redaction.MAX_MESSAGE_LENGTH
            assert SECRET.encode() not in answered
            [line] = harness.log_lines()
            assert len(line["error"]) < 2 * redaction.MAX_MESSAGE_LENGTH
            harness.running.gateway.status()
    assert max(checks) <= 2 * redaction.MAX_MESSAGE_LENGTH


@pytest.mark.parametrize(
    "before", range(redaction.MAX_MESSAGE_LENGTH - len(SECRET) - 2, redaction.MAX_MESSAGE_LENGTH + 2)
)
def test_truncation_shows_no_part_of_a_secret(before: int) -> None:
    redactor = Redactor(lambda: (SECRET,))
    for text in ("x" * before + SECRET + "y" * 100, "x " * (before // 2) + SECRET + " y" * 100):
        answered = redactor.message(text)
        assert len(answered) <= redaction.MAX_MESSAGE_LENGTH + 1
        assert not any(SECRET[:size] in answered for size in range(4, len(SECRET)))


def test_details_are_not_truncated_to_invalid_json() -> None:
    fault = Redactor().fault(Fault("server", "m", 500, details=json.dumps(["x" * redaction.MAX_MESSAGE_LENGTH])))
    assert fault.details == ""


# --- a stored response belongs to the key, whichever way a request sends it

PATH = "/v1/responses"


def aws(harness: GatewayHarness, body: bytes, shift: int = 0, path: str = PATH, method: str = "POST") -> dict[str, str]:
    """Return the headers of a signed request; the signature changes every second."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + shift))
    host = harness.url.removeprefix("http://")
    headers = {"host": host, "x-amz-date": moment, "x-amz-content-sha256": hashlib.sha256(body).hexdigest()}
    request = HttpRequest(method, path, headers=tuple(headers.items()), body=body)
    covered = tuple(sorted(headers))
    signature = sign(request, KEY.encode(), moment, "eu-west-1", "bedrock", covered)
    scope = f"AKIDANY/{moment[:8]}/eu-west-1/bedrock/aws4_request"
    claim = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={';'.join(covered)}, Signature={signature}"
    return headers | {"authorization": claim}


def key_headers(harness: GatewayHarness, body: bytes) -> list[dict[str, str]]:
    return [
        {"x-api-key": KEY},
        {"x-goog-api-key": KEY},
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY}"},
        {"authorization": "Bearer of-another-service", "x-api-key": KEY},
        {"x-api-key": "of-another-service", "authorization": f"Bearer {KEY}"},
        aws(harness, body),
        aws(harness, body, shift=-60),
    ]


def send(
    harness: GatewayHarness, body: bytes, headers: dict[str, str], path: str = PATH, method: str = "POST"
) -> tuple[int, bytes]:
    named_headers = {name.replace("-", "_"): value for name, value in headers.items()}
    status, _, response = harness.request(path, body, method=method, key=None, **named_headers)
    return status, response


def test_a_stored_response_is_found_with_every_form_of_the_key(tmp_path: Path) -> None:
    """Regression: the owner was the header text, so a signed request never found its stored response."""
    with (
        running_simulator("openai") as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness,
    ):
        first = json.dumps({"model": "m", "input": "hello"}).encode()
        responses = [send(harness, first, headers) for headers in key_headers(harness, first)]
        assert [status for status, _ in responses] == [200] * len(responses)
        for _, response in responses:
            response_id = json.loads(response)["id"]
            body = json.dumps({"model": "m", "input": "go on", "previous_response_id": response_id}).encode()
            for headers in key_headers(harness, body):
                status, answered = send(harness, body, headers)
                assert status == 200, answered
            path = f"{PATH}/{response_id}"
            signed = aws(harness, b"", path=path, method="GET")
            assert send(harness, b"", signed, path, "GET")[0] == 200


@pytest.mark.parametrize("key", ["wrong", ""])
def test_a_request_without_the_key_owns_no_response(key: str, tmp_path: Path) -> None:
    with (
        running_simulator("openai") as simulator,
        start_gateway(upstream_config("one", "openai", simulator.url), tmp_path) as harness,
    ):
        body = json.dumps({"model": "m", "input": "hello"}).encode()
        assert send(harness, body, {"x-api-key": key})[0] == 401
