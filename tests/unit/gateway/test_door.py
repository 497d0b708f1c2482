"""Heads that were let in before are let in, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.errors import ClientFault, NotAuthorised
from dragoman.gateway.auth import Gatekeeper
from dragoman.gateway.door import Door
from dragoman.gateway.exchange import Exchange
from dragoman.gateway.guard import Guard
from dragoman.http.exchange import ANY_PACE, Pace
from dragoman.wire.http import Headers, HttpRequest

KEY = "dgm_a-key-for-the-door-0123456789"
OURS: Headers = (("host", "localhost"), ("x-api-key", KEY), ("content-length", "2"))


class Asking(Exchange):
    """An exchange that nobody carries."""

    async def body(self, limit: int, pace: Pace = ANY_PACE) -> bytes:
        return b""

    def whole(self, status: int, headers: Headers, body: bytes) -> None: ...
    def head(self, status: int, headers: Headers) -> None: ...
    def flush(self) -> None: ...
    def chunk(self, data: bytes) -> None: ...
    def end(self, data: bytes = b"") -> None: ...


def asking(headers: Headers, *, path: str = "/v1/messages", method: str = "POST", version: str = "1.1") -> Exchange:
    return Asking(HttpRequest(method, path, headers=headers), target=path, version=version, began=0.0)


class Watched(Guard):
    """A guard that counts."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1")
        self.looked = 0

    def refusal(self, *args: Any, **kwargs: Any) -> Any:
        self.looked += 1
        return super().refusal(*args, **kwargs)


def test_a_head_is_looked_at_once_whatever_the_length_of_its_body() -> None:
    guard = Watched()
    door = Door(guard, Gatekeeper(KEY))
    for length in ("2", "2", "30", "400"):
        assert door.admits(asking((*OURS[:2], ("content-length", length)))) is None
    assert guard.looked == 1


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
    door = Door(Guard("127.0.0.1"), Gatekeeper(KEY))
    assert door.admits(asking(OURS)) is None
    for _ in range(2):  # and a refusal teaches nothing
        with pytest.raises(ClientFault):
            door.admits(asking(headers, **line))


def test_an_encoding_beside_a_length_is_refused_though_each_was_let_in_alone() -> None:
    door = Door(Guard("127.0.0.1"), Gatekeeper(KEY))
    chunked = (*OURS[:2], ("transfer-encoding", "chunked"))
    assert door.admits(asking(chunked)) is None
    assert door.admits(asking(OURS)) is None
    with pytest.raises(ClientFault, match="beside"):
        door.admits(asking((*chunked, OURS[2])))


def test_a_signature_is_judged_each_time() -> None:
    door = Door(Guard("127.0.0.1"), Gatekeeper(KEY))
    signed = asking((("host", "localhost"), ("authorization", "AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request")))
    for _ in range(2):
        with pytest.raises(NotAuthorised):
            door.admits(signed)


def test_long_heads_and_very_many_are_not_kept() -> None:
    door = Door(Guard("127.0.0.1"), Gatekeeper(KEY))
    for number in range(1000):
        door.admits(asking((*OURS, ("x-trace", str(number)))))
        door.admits(asking((*OURS, ("x-long", f"{number}" + "x" * 5000))))
    assert len(door._known) <= 256
    assert not any("x" * 5000 in str(known) for known in door._known)
