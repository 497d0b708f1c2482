"""A head is judged each time, whatever was let in before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.errors import ClientFault, NotAuthorised
from dragoman.gateway.admission import Admission
from dragoman.gateway.config import Server
from dragoman.gateway.limits import Account
from dragoman.http.exchange import ANY_PACE, Exchange, Pace
from dragoman.wire.http import Headers, HttpRequest

KEY = "dgm_a-key-for-the-gate-0123456789"
OURS: Headers = (("host", "localhost"), ("x-api-key", KEY), ("content-length", "2"))


class Asking(Exchange[Account]):
    """An exchange that nobody carries."""

    async def body(self, limit: int, pace: Pace = ANY_PACE) -> bytes:
        return b""

    def reserve(self, limit: int) -> None: ...
    def whole(self, status: int, headers: Headers, body: bytes) -> None: ...
    def head(self, status: int, headers: Headers) -> None: ...
    def flush(self) -> None: ...
    def chunk(self, data: bytes) -> None: ...
    def end(self, data: bytes = b"") -> None: ...


def asking(
    headers: Headers, *, path: str = "/v1/messages", method: str = "POST", version: str = "1.1"
) -> Exchange[Account]:
    return Asking(HttpRequest(method, path, headers=headers), target=path, version=version, began=0.0)


def admission() -> Admission:
    return Admission(Server(admin_socket=Path("admin.sock")), KEY)


@pytest.mark.parametrize(
    ("headers", "line"),
    [
        ((("host", "localhost"), ("x-api-key", "another"), ("content-length", "2")), {}),
        (OURS[:1], {}),
        ((*OURS, ("content-length", "2")), {}),
        ((*OURS, ("transfer-encoding", "chunked")), {}),
        ((("host", "elsewhere.example"), *OURS[1:]), {}),
        (OURS, {"version": "2.0"}),
        (OURS, {"method": "TRACE"}),
        (OURS, {"path": "http://localhost/v1/messages"}),
    ],
    ids=["key", "no key", "two lengths", "an encoding", "host", "version", "method", "target"],
)
def test_another_head_is_not_let_in_for_the_sake_of_one_that_was(headers: Headers, line: dict[str, str]) -> None:
    gate = admission()
    assert gate.judge_head(asking(OURS)) is None
    for _ in range(2):  # and a refusal teaches nothing
        with pytest.raises(ClientFault):
            gate.judge_head(asking(headers, **line))


def test_an_encoding_beside_a_length_is_refused_though_each_was_let_in_alone() -> None:
    gate = admission()
    chunked = (*OURS[:2], ("transfer-encoding", "chunked"))
    assert gate.judge_head(asking(chunked)) is None
    assert gate.judge_head(asking(OURS)) is None
    with pytest.raises(ClientFault, match="beside"):
        gate.judge_head(asking((*chunked, OURS[2])))


def test_a_signature_is_judged_each_time() -> None:
    gate = admission()
    signed = asking((("host", "localhost"), ("authorization", "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request")))
    for _ in range(2):
        with pytest.raises(NotAuthorised):
            gate.judge_head(signed)
