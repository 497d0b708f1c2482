"""S13: a client that closes its sending side after a whole request gets its answer; one that closes the socket has left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.front import Client, head, question
from tests.gateway.house import behind, wait_until

# It answers after the end of the request has been noticed, in two steps.
SLOW = 'then = "last"\n[[turn]]\nfirst_delay = 0.3\nparts = [{ text = "Begin " }, { wait = 0.2 }, { text = "end." }]'


@pytest.mark.parametrize("stream", [False, True])
def test_s13_a_client_that_half_closes_gets_its_answer_and_nothing_else(
    tmp_path: Path, loop: str, stream: bool
) -> None:
    """S13: it got none."""
    with behind(SLOW, tmp_path, "openai") as (home, _), Client(home, first=question(stream=stream)) as client:
        client.end()
        status, _, body = client.answer()
        assert status == 200
        assert b"Begin " in body and b"end." in body and (not stream or b"message_stop" in body)
        assert client.file.read() == b""  # then the connection is closed
        assert home.lines()[0]["outcome"] == "ok"


def test_s13_all_requests_before_the_end_are_answered(tmp_path: Path, loop: str) -> None:
    with behind('then = "last"\n[[turn]]\ntext = "Yes."\nfirst_delay = 0.1', tmp_path, "openai") as (home, simulator):
        with Client(home, first=question() + question(stream=True) + question()) as client:
            client.end()
            assert [client.answer()[0] for _ in range(3)] == [200] * 3
            assert client.file.read() == b""
        assert simulator.total == 3


def test_s13_a_refusal_is_heard_too(tmp_path: Path, loop: str) -> None:
    with behind(SLOW, tmp_path, "openai") as (home, _), Client(home, first=question(key="wrong")) as client:
        client.end()
        assert client.answer()[0] == 401


@pytest.mark.parametrize("when", ["before its answer", "in its answer"])
def test_s13_a_client_that_closes_its_socket_has_left(tmp_path: Path, loop: str, when: str) -> None:
    """To the gateway both look alike at first: the end of what is sent."""
    parts = 'parts = [{ text = "Begin." }, { wait = 30.0 }]'
    script = f"[[turn]]\n{'first_delay = 30.0' if when == 'before its answer' else ''}\n{parts}"
    with behind(script, tmp_path, "openai") as (home, simulator):
        with Client(home, first=question(stream=True)) as client:
            wait_until(lambda: simulator.total == 1)
            if when == "in its answer":
                while b"Begin." not in client.file.readline():
                    pass
        assert simulator.requests[0].wait(5.0) == "gone"
        assert home.lines()[0]["outcome"] == "gone"


def test_s13_a_client_that_half_closes_and_then_closes_has_left(tmp_path: Path, loop: str) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin." }, { wait = 0.5 }, { text = "more" }, { wait = 0.5 }, { text = "x" }, { wait = 30.0 }]'
    with behind(script, tmp_path, "openai") as (home, simulator):
        with Client(home, first=question(stream=True)) as client:
            client.end()
            while b"Begin." not in client.file.readline():
                pass
        assert simulator.requests[0].wait(5.0) == "gone"


def test_s13_an_end_within_a_body_is_a_client_that_left(tmp_path: Path, loop: str) -> None:
    with behind(SLOW, tmp_path, "openai") as (home, simulator), Client(home, first=head(500) + b"{") as client:
        client.end()
        assert client.is_closed()
        assert (home.lines()[0]["outcome"], simulator.total) == ("gone", 0)


def test_s13_the_end_of_a_second_request_that_is_not_whole_leaves_the_first_its_answer(
    tmp_path: Path, loop: str
) -> None:
    with (
        behind(SLOW, tmp_path, "openai") as (home, simulator),
        Client(home, first=question() + head(500) + b"{") as client,
    ):
        client.end()
        assert client.answer()[0] == 200
        assert client.file.read() == b""
        assert simulator.total == 1
