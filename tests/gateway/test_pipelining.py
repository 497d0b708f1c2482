"""S16: requests that come before the answer to the one before them wait for their turn; none is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dragoman.http.framing import MOST_PIPELINED
from dragoman.simulator import Simulator
from tests.gateway.front import LOOPS, Client, on_loop, question
from tests.gateway.house import House, behind, house, upstream, wait_until

MANY = 300


@pytest.fixture(params=LOOPS)
def home(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, simulator: Simulator, tmp_path: Path
) -> Iterator[House]:
    with on_loop(request.param, monkeypatch), house(upstream("one", "anthropic", simulator.url), tmp_path) as one:
        yield one


def sent(client: Client, raw: bytes) -> threading.Thread:
    """Send it beside: the gateway does not read all of it at once."""

    def send() -> None:
        with suppress(OSError):
            client.send(raw)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_s16_every_pipelined_request_is_answered_in_its_order(home: House) -> None:
    """S16: those beyond 17 vanished without an answer."""
    with Client(home) as client:
        sending = sent(client, b"".join(question(f"number {number}!") for number in range(MANY)))
        for number in range(MANY):
            status, headers, body = client.answer()
            assert (status, "connection" in headers) == (200, False)
            assert f"number {number}!".encode() in body
        sending.join(10)
        client.send(question("and one more"))
        assert b"and one more" in client.answer()[2]
    assert len(home.lines(MANY + 1)) == MANY + 1


def test_s16_the_last_of_many_that_half_closes_is_answered_too(home: House) -> None:
    with Client(home) as client:
        sending = sent(client, b"".join(question(f"number {number}!") for number in range(60)))
        sending.join(10)
        client.end()
        for number in range(60):
            assert f"number {number}!".encode() in client.answer()[2]
        assert client.file.read() == b""


def test_s16_bodies_that_are_large_wait_as_well(home: House) -> None:
    texts = [f"{number}" * 150_000 for number in range(8)]
    with Client(home) as client:
        sending = sent(client, b"".join(question(text) for text in texts))
        for text in texts:
            assert text[:50].encode() in client.answer()[2]
        sending.join(10)


def test_s16_while_the_first_is_answered_no_more_is_read_than_fits(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Begin " }, { wait = 1.0 }, { text = "end." }]\n[[turn]]\ntext = "Second."'
    with (
        behind(f'then = "last"\n{script}', tmp_path, "openai") as (home, _),
        Client(home, first=question(stream=True)) as client,
    ):
        client.head()
        sending = sent(client, question(filler="x" * 100) * 2000)
        [connection] = home.running.gateway._live
        held = connection.connection  # type: ignore[attr-defined]
        wait_until(lambda: held._held or held._queue)
        wait_until(lambda: not held.reading)
        assert MOST_PIPELINED <= len(held._queue) < MOST_PIPELINED + 100
        assert len(held._held) <= 1024 * 1024
        client.socket.close()
        sending.join(10)
