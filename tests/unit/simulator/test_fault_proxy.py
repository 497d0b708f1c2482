"""The fault proxy: transparent without faults, and each fault is what its name says; by name, too, and from the command line."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.errors import LocalMisuse
from dragoman.simulator import Simulator, parse
from dragoman.simulator.faults import FAULTS, Fault, FaultProxy, parse_fault
from dragoman.wire.eventstream import EventStreamDecoder, MessageChecksumMismatch, PreludeChecksumMismatch
from tests.faults import hearing
from tests.faults.listening import Hung, Lost, Told, connect, listen, written
from tests.faults.stage import question as asked
from tests.faults.stage import running

SCRIPT = 'then = "last"\n[pace]\nchunk = 4\n[[turn]]\ntext = "Größe, and so on"\n'


@contextmanager
def proxied(*faults: Fault, dialect: str = "openai") -> Iterator[FaultProxy]:
    simulator = Simulator(dialect, script=parse(SCRIPT))
    with running([simulator]):
        proxy = FaultProxy(simulator.url, faults, dialect=registry.get(dialect))
        with running([proxy]):
            yield proxy


def question(dialect: str = "openai", *, stream: bool = True) -> Any:
    return asked(dialect, "claude-sonnet-4.5", stream=stream)


def ask(proxy: FaultProxy, dialect: str = "openai", within: float = 5.0, *, stream: bool = True) -> Told:
    with connect(proxy.url, within) as sock:
        sock.sendall(written(proxy.url, question(dialect, stream=stream), "any-key"))
        return listen(sock, time.monotonic(), within)


def told(*specs: str, dialect: str = "openai", stream: bool = True) -> Told:
    with proxied(*map(parse_fault, specs), dialect=dialect) as proxy:
        return ask(proxy, dialect, stream=stream)


@cache
def plain() -> Told:
    """The answer that nothing has spoilt."""
    return told()


def frames() -> list[bytes]:
    return [frame.raw for frame in registry.get("openai").binding.frames().feed(plain().body)]


def test_without_faults_nothing_changes() -> None:
    assert plain().whole and hearing.openai(plain().body).text == "Größe, and so on"
    for spec in (
        "slicer:size=1",
        "latency:seconds=0.001",
        "bandwidth:rate=100000",
        "slow_head:delay=0.0001",
        "informed",
    ):
        again = told(spec)
        assert (again.status, again.body, again.whole) == (200, plain().body, True), spec


def test_what_is_no_stream_passes_too() -> None:
    whole = told(stream=False)
    assert whole.whole and b"Gr" in whole.body and "content-length" in whole.headers


@pytest.mark.parametrize("event", range(3))
def test_a_cut_is_before_the_frame(event: int) -> None:
    for how, whole in (("end", True), ("close", False), ("reset", False)):
        cut = told(f"cut:event={event},how={how}")
        assert (cut.body, cut.whole) == (b"".join(frames()[:event]), whole)


def test_a_cut_is_at_a_byte_behind_a_text_and_inside_a_character() -> None:
    assert told("cut:byte=100").body == plain().body[:100]
    assert told("cut:text=nd s").body.endswith(b"nd s")
    with pytest.raises(UnicodeDecodeError):
        told("cut:inside=character").body.decode()


def test_frames_come_twice_not_at_all_and_in_another_order() -> None:
    assert told("duplicate:event=1").body == b"".join([*frames()[:2], *frames()[1:]])
    assert told("omit:event=1").body == b"".join([frames()[0], *frames()[2:]])
    assert told("swap:event=1").body == b"".join([frames()[0], frames()[2], frames()[1], *frames()[3:]])
    assert told("garbage:event=1,size=9").body == b"".join([frames()[0], bytes(range(9)), *frames()[1:]])
    assert told("insert:event=1,put=: hi").body == b"".join([frames()[0], b": hi", *frames()[1:]])


def test_a_fault_strikes_as_often_as_it_says() -> None:
    with proxied(parse_fault("status:code=503,times=2")) as proxy:
        assert [ask(proxy).status for _ in range(4)] == [503, 503, 200, 200]
        assert (proxy.exchanges, proxy.asked) == (4, 2)
    with proxied(parse_fault("script:codes=429+200+500")) as proxy:
        assert [ask(proxy).status for _ in range(4)] == [429, 200, 500, 500]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("what=crc", MessageChecksumMismatch),
        ("what=prelude", PreludeChecksumMismatch),
        ("what=flip", MessageChecksumMismatch),
    ],
)
def test_an_event_stream_gets_a_wrong_checksum(spec: str, error: type[Exception]) -> None:
    broken = told(f"corrupt:event=2,{spec}", dialect="bedrock")
    decoder, seen = EventStreamDecoder(), []
    with pytest.raises(error):
        for frame in decoder.feed(broken.body):
            seen.append(frame)
    assert len(seen) == 2


def test_a_replaced_text_keeps_its_checksum() -> None:
    changed = told("replace:text=nd s,by=ND S", dialect="bedrock")
    assert b"ND S" in b"".join(frame.data for frame in EventStreamDecoder().feed(changed.body))


def test_connections_are_dropped_reset_or_left_hanging() -> None:
    for spec in ("drop", "drop:reset=true"):
        with pytest.raises(Lost):
            told(spec)
    with proxied(parse_fault("hang")) as proxy, pytest.raises(Hung):
        ask(proxy, within=0.3)
    with proxied(parse_fault("limit_data:after=400,hang=true")) as proxy, pytest.raises(Hung):
        ask(proxy, within=0.3)
    assert not told("limit_data:after=400").whole


def test_a_kept_connection_is_found_closed() -> None:
    raw = written("http://x", question(), "any-key")
    with proxied(parse_fault("stale:after=1")) as proxy, connect(proxy.url, 5) as sock:
        sock.sendall(raw)
        assert listen(sock, time.monotonic(), 5).whole
        sock.sendall(raw)
        with pytest.raises(Lost):
            listen(sock, time.monotonic(), 5)
        assert proxy.asked == 1


def test_lengths_lie() -> None:
    assert not told("length:by=5").whole
    short = told("length:by=-5")
    assert short.whole and int(short.headers["content-length"]) == len(plain().body) - 5
    assert not told("no_last_chunk").whole
    assert told("both_lengths").headers["content-length"] == "10"
    assert "content-length" not in told("until_close").headers


def test_an_answer_is_compressed() -> None:
    assert gzip.decompress(told("compress").body) == plain().body
    bomb = told("compress:bomb=16777216")
    assert len(bomb.body) < 100_000
    assert len(gzip.decompress(bomb.body)) == 16777216 + len(plain().body)


def test_a_client_that_goes_is_noticed() -> None:
    with proxied(parse_fault("latency:first=30")) as proxy:
        with connect(proxy.url, 5) as sock:
            sock.sendall(written(proxy.url, question(), "any-key"))
            time.sleep(0.1)
            sock.shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + 2
        while not proxy.left:
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_says_what_it_does(name: str) -> None:
    assert FAULTS[name].__doc__


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cutt", "no fault 'cutt'"),
        ("cut:evnt=3", "unknown field"),
        ("cut:event=x", "Expected"),
        ("cut:how=soft", "Invalid"),
    ],
)
def test_a_wrong_fault_is_a_sentence(text: str, complaint: str) -> None:
    with pytest.raises(LocalMisuse, match=complaint):
        parse_fault(text)


def test_the_command_line_has_them() -> None:
    command = [sys.executable, "-m", "dragoman", "sim", "openai", "--port", "0", "--quiet", "--fault"]
    with subprocess.Popen([*command, "status:code=418"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with connect(url, 5) as sock:
            sock.sendall(written(url, question(), "any-key"))
            assert listen(sock, time.monotonic(), 5).status == 418
        process.terminate()
    done = subprocess.run([*command, "cutt"], capture_output=True, text=True, check=False)
    assert (done.returncode, "no fault 'cutt'" in done.stderr) == (2, True)
