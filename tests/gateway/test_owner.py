"""S9: kept answers belong to the key that was proven, however a request sends it."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from dragoman.gateway.auth import KeyCheck, sign
from dragoman.simulator import running_simulator
from dragoman.wire.http import HttpRequest
from tests.gateway.house import KEY, House, house, upstream

PATH = "/v1/responses"


def aws(home: House, body: bytes, shift: int = 0, path: str = PATH, method: str = "POST") -> dict[str, str]:
    """The headers of a signed request; each second has another signature."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() + shift))
    host = home.url.removeprefix("http://")
    headers = {"host": host, "x-amz-date": moment, "x-amz-content-sha256": hashlib.sha256(body).hexdigest()}
    request = HttpRequest(method, path, headers=tuple(headers.items()), body=body)
    covered = tuple(sorted(headers))
    signature = sign(request, KEY.encode(), moment, "eu-west-1", "bedrock", covered)
    scope = f"AKIDANY/{moment[:8]}/eu-west-1/bedrock/aws4_request"
    claim = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={';'.join(covered)}, Signature={signature}"
    return headers | {"authorization": claim}


def ways(home: House, body: bytes) -> list[dict[str, str]]:
    return [
        {"x-api-key": KEY},
        {"x-goog-api-key": KEY},
        {"authorization": f"Bearer {KEY}"},
        {"authorization": f"bearer  {KEY}"},
        {"authorization": "Bearer of-another-service", "x-api-key": KEY},
        {"x-api-key": "of-another-service", "authorization": f"Bearer {KEY}"},
        aws(home, body),
        aws(home, body, shift=-60),
    ]


def asked(
    home: House, body: bytes, headers: dict[str, str], path: str = PATH, method: str = "POST"
) -> tuple[int, bytes]:
    given = {name.replace("-", "_"): value for name, value in headers.items()}
    status, _, answer = home.ask(path, body, method=method, key=None, **given)
    return status, answer


def test_s9_an_answer_is_found_again_however_the_key_is_sent(tmp_path: Path) -> None:
    """S9: the owner was the text of the header, so that a signed request never found an answer."""
    with running_simulator("openai") as simulator, house(upstream("one", "openai", simulator.url), tmp_path) as home:
        first = json.dumps({"model": "m", "input": "hello"}).encode()
        made = [asked(home, first, headers) for headers in ways(home, first)]
        assert [status for status, _ in made] == [200] * len(made)
        for _, answer in made:
            answer_id = json.loads(answer)["id"]
            body = json.dumps({"model": "m", "input": "go on", "previous_response_id": answer_id}).encode()
            for headers in ways(home, body):
                status, told = asked(home, body, headers)
                assert status == 200, told
            path = f"{PATH}/{answer_id}"
            signed = aws(home, b"", path=path, method="GET")
            assert asked(home, b"", signed, path, "GET")[0] == 200


def test_s9_owners_of_two_keys_differ_and_do_not_show_the_key() -> None:
    one, two = KeyCheck("key-one").owner, KeyCheck("key-two").owner
    assert one != two and "key" not in one


@pytest.mark.parametrize("key", ["wrong", ""])
def test_who_proves_no_key_owns_nothing(key: str, tmp_path: Path) -> None:
    with running_simulator("openai") as simulator, house(upstream("one", "openai", simulator.url), tmp_path) as home:
        body = json.dumps({"model": "m", "input": "hello"}).encode()
        assert asked(home, body, {"x-api-key": key})[0] == 401
