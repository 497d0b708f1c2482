"""The other dialects' simulators, asked by the official clients: the same model and scripts in another language."""

from __future__ import annotations

import gzip
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import anthropic
import httpx
import openai
import pytest

import dragoman.dialects as registry
from dragoman.errors import LocalMisuse
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.simulator.faults import FAULTS, FaultProxy, ProxyFault, parse_fault
from dragoman.wire.eventstream import EventStreamDecoder, MessageChecksumMismatch, PreludeChecksumMismatch
from tests.faults import response_parsers
from tests.faults.http_client import NoResponse, RawResponse, ResponseTimeout, connect, read_response, request_bytes
from tests.faults.runner import client_request, run_servers

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANTHROPIC_TOOL: Any = {"name": "get_weather", "description": "Tells the weather.", "input_schema": SCHEMA}
OPENAI_TOOL: Any = {"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": SCHEMA}}
HELLO: Any = [{"role": "user", "content": "Good morning"}]
WEATHER: Any = [{"role": "user", "content": 'Call get_weather {"city": "Paris"}'}]


def claude(simulator: Simulator) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=simulator.url, api_key="key", max_retries=0, timeout=60)


def gpt(simulator: Simulator) -> openai.OpenAI:
    return openai.OpenAI(base_url=simulator.url + "/v1", api_key="key", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def claudes() -> Iterator[Simulator]:
    with running_simulator("anthropic") as run_servers:
        yield run_servers


@pytest.fixture(scope="module")
def gpts() -> Iterator[Simulator]:
    with running_simulator("openai") as run_servers:
        yield run_servers


# --- anthropic


def test_an_anthropic_message_whole_and_streamed_is_the_same(claudes: Simulator) -> None:
    before = claudes.total
    with claude(claudes) as client:
        whole = client.messages.create(model="m", max_tokens=99, messages=HELLO)
        with client.messages.stream(model="m", max_tokens=99, messages=HELLO) as stream:
            streamed = stream.get_final_message()
    assert claudes.total == before + 2  # no client tried twice
    assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": "You said: Good morning"}]
    assert streamed.content[0].to_dict()["text"] == "You said: Good morning"
    assert (whole.stop_reason, whole.usage.input_tokens, whole.usage.output_tokens) == ("end_turn", 7, 6)
    assert (streamed.stop_reason, streamed.usage.input_tokens, streamed.usage.output_tokens) == ("end_turn", 7, 6)


def test_an_anthropic_tool_conversation_goes_round(claudes: Simulator) -> None:
    with claude(claudes) as client:
        with client.messages.stream(model="m", max_tokens=999, messages=WEATHER, tools=[ANTHROPIC_TOOL]) as stream:
            first = stream.get_final_message()
        call = first.content[-1]
        assert call.type == "tool_use"
        assert (call.name, call.input, first.stop_reason) == ("get_weather", {"city": "Paris"}, "tool_use")
        turns: Any = [
            *WEATHER,
            {"role": "assistant", "content": [block.to_dict() for block in first.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}]},
        ]
        second = client.messages.create(model="m", max_tokens=999, messages=turns, tools=[ANTHROPIC_TOOL])
    assert second.content[0].to_dict()["text"] == "The tool answered: 21 degrees"


def test_anthropic_thinking_is_signed_when_asked_for(claudes: Simulator) -> None:
    with claude(claudes) as client:
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        response = client.messages.create(model="m", max_tokens=2000, messages=HELLO, thinking=thinking)
    assert [block.type for block in response.content] == ["thinking", "text"]
    assert response.content[0].to_dict()["signature"]


def test_anthropic_tokens_are_counted_as_a_response_reports_them(claudes: Simulator) -> None:
    with claude(claudes) as client:
        counted = client.messages.count_tokens(model="m", messages=HELLO).input_tokens
        assert counted == client.messages.create(model="m", max_tokens=9, messages=HELLO).usage.input_tokens


def test_an_anthropic_request_that_breaks_a_rule_is_refused_by_its_own_error(claudes: Simulator) -> None:
    orphan: Any = [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9", "content": "x"}]}]
    with claude(claudes) as client, pytest.raises(anthropic.BadRequestError):
        client.messages.create(model="m", max_tokens=9, messages=orphan)
    with running_simulator("anthropic", profile="lenient") as lenient, claude(lenient) as client:
        assert client.messages.create(model="m", max_tokens=9, messages=orphan).type == "message"


# --- openai


def test_an_openai_completion_whole_and_streamed_is_the_same(gpts: Simulator) -> None:
    before = gpts.total
    with gpt(gpts) as client:
        whole = client.chat.completions.create(model="m", messages=HELLO)
        options: Any = {"include_usage": True}
        chunks = list(client.chat.completions.create(model="m", messages=HELLO, stream=True, stream_options=options))
    assert gpts.total == before + 2
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == text == "You said: Good morning"
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 6)
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (7, 6)


def test_an_openai_tool_conversation_goes_round(gpts: Simulator) -> None:
    with gpt(gpts) as client:
        first = client.chat.completions.create(model="m", messages=WEATHER, tools=[OPENAI_TOOL])
        message = first.choices[0].message
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        assert first.choices[0].finish_reason == "tool_calls"
        turns: Any = [
            *WEATHER,
            message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"},
        ]
        second = client.chat.completions.create(model="m", messages=turns, tools=[OPENAI_TOOL])
    assert second.choices[0].message.content == "The tool answered: 21 degrees"


def test_an_openai_client_that_wants_a_call_gets_one_and_one_that_wants_none_gets_none(gpts: Simulator) -> None:
    with gpt(gpts) as client:
        must = client.chat.completions.create(model="m", messages=HELLO, tools=[OPENAI_TOOL], tool_choice="required")
        none = client.chat.completions.create(model="m", messages=WEATHER, tools=[OPENAI_TOOL], tool_choice="none")
    assert must.choices[0].finish_reason == "tool_calls"
    assert none.choices[0].finish_reason == "stop"


def test_openai_choices_are_as_many_as_asked_for(gpts: Simulator) -> None:
    with gpt(gpts) as client:
        response = client.chat.completions.create(model="m", messages=HELLO, n=2)
    assert [choice.message.content for choice in response.choices] == ["You said: Good morning"] * 2


def test_openai_structured_output_fits_its_schema(gpts: Simulator) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
    with gpt(gpts) as client:
        response = client.chat.completions.create(model="m", messages=HELLO, response_format=form)
    assert json.loads(response.choices[0].message.content or "") == {"city": "example city"}


# --- shared


@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_a_key_is_needed_and_a_script_may_name_it(dialect: str) -> None:
    with running_simulator(dialect, script=parse_script('[tokens]\naccess = ["right"]')) as simulator:
        for headers, status in (({}, 401), ({"x-api-key": "wrong"}, 401), ({"x-api-key": "right"}, 404)):
            assert httpx.post(f"{simulator.url}/nowhere", headers=headers).status_code == status
        assert httpx.get(f"{simulator.url}/v1/models", headers={"authorization": "Bearer right"}).status_code == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model":1}', b'{"model":"m","messages":3,"max_tokens":"x"}'])
@pytest.mark.parametrize(("dialect", "path"), [("anthropic", "/v1/messages"), ("openai", "/v1/chat/completions")])
def test_nonsense_is_a_refusal(dialect: str, path: str, content: bytes) -> None:
    with running_simulator(dialect) as simulator:
        headers = {"authorization": "Bearer k", "content-type": "application/json"}
        response = httpx.post(simulator.url + path, content=content, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["message"]


def test_statuses_come_in_their_sequence_with_retry_after() -> None:
    script = parse_script('[[turn]]\nstatus = [429, 529, 200]\nretry_after = 0.01\ntext = "at last"')
    with running_simulator("anthropic", script=script) as busy, claude(busy) as client:
        with pytest.raises(anthropic.RateLimitError) as throttled:
            client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert throttled.value.response.headers["retry-after"] == "0.01"
        with pytest.raises(anthropic.APIStatusError) as overloaded:
            client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert overloaded.value.status_code == 529
        response = client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert response.content[0].to_dict()["text"] == "at last"


def test_an_exception_after_output_is_the_dialects_own_error_in_the_stream() -> None:
    script = parse_script('[[turn]]\nparts = [{ text = "Hello" }, { exception = "overloaded", message = "later" }]')
    with (
        running_simulator("anthropic", script=script) as broken,
        claude(broken) as client,
        client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream,
        pytest.raises(anthropic.APIStatusError, match="later"),
    ):
        stream.until_done()


def test_an_exception_in_a_whole_reply_is_an_http_error() -> None:
    script = parse_script('[[turn]]\nparts = [{ text = "Hello" }, { exception = "overloaded", message = "later" }]')
    failure = pytest.raises(openai.APIStatusError, match="later")
    with running_simulator("openai", script=script) as broken, gpt(broken) as client, failure:
        client.chat.completions.create(model="m", messages=HELLO)


@pytest.mark.parametrize("at", ["byte = 40", "event = 2"])
def test_a_cut_stream_fails_in_the_clients_hands(at: str) -> None:
    script = parse_script(f'[[turn]]\ntext = "Hello, how are you?"\ncut = {{ {at}, how = "close" }}')
    failure = pytest.raises((httpx.RemoteProtocolError, openai.APIError))
    with running_simulator("openai", script=script) as cut, gpt(cut) as client, failure:
        list(client.chat.completions.create(model="m", messages=HELLO, stream=True))


def test_a_whole_reply_waits_as_a_stream_does() -> None:
    script = parse_script('[[turn]]\nparts = [{ wait = 0.2 }, { text = "Hello" }]')
    with running_simulator("openai", script=script) as slow, gpt(slow) as client:
        begun = time.monotonic()
        response = client.chat.completions.create(model="m", messages=HELLO)
    assert response.choices[0].message.content == "Hello"
    assert time.monotonic() - begun >= 0.2


def test_a_raw_frame_is_written_between_the_others() -> None:
    script = parse_script('[[turn]]\nparts = [{ event = "ping", data = { type = "ping" } }, { text = "Hello" }]')
    with running_simulator("anthropic", script=script) as odd:
        body = {"model": "m", "max_tokens": 9, "messages": HELLO, "stream": True}
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
        text = httpx.post(f"{odd.url}/v1/messages", json=body, headers=headers).text
        assert 'event: ping\ndata: {"type":"ping"}\n\n' in text


# --- The fault proxy: transparent without faults, and each fault is what its name says; by name, too, and from the
# command line

SCRIPT = 'then = "last"\n[pace]\nchunk = 4\n[[turn]]\ntext = "Größe, and so on"\n'


@contextmanager
def proxied(*faults: ProxyFault, dialect: str = "openai") -> Iterator[FaultProxy]:
    simulator = Simulator(dialect, script=parse_script(SCRIPT))
    with run_servers([simulator]):
        proxy = FaultProxy(simulator.url, faults, dialect=registry.get(dialect))
        with run_servers([proxy]):
            yield proxy


def question(dialect: str = "openai", *, stream: bool = True) -> Any:
    return client_request(dialect, "claude-sonnet-4.5", stream=stream)


def ask(proxy: FaultProxy, dialect: str = "openai", within: float = 5.0, *, stream: bool = True) -> RawResponse:
    with connect(proxy.url, within) as sock:
        sock.sendall(request_bytes(proxy.url, question(dialect, stream=stream), "any-key"))
        return read_response(sock, time.monotonic(), within)


def fetch(*specs: str, dialect: str = "openai", stream: bool = True) -> RawResponse:
    with proxied(*map(parse_fault, specs), dialect=dialect) as proxy:
        return ask(proxy, dialect, stream=stream)


@cache
def plain() -> RawResponse:
    """The response that nothing has spoilt."""
    return fetch()


def frames() -> list[bytes]:
    return [frame.raw for frame in registry.get("openai").binding.frame_decoder().feed(plain().body)]


def test_without_faults_nothing_changes() -> None:
    assert plain().whole and response_parsers.openai(plain().body).text == "Größe, and so on"
    for spec in (
        "slicer:size=1",
        "latency:seconds=0.001",
        "bandwidth:rate=100000",
        "slow_head:delay=0.0001",
        "informed",
    ):
        again = fetch(spec)
        assert (again.status, again.body, again.whole) == (200, plain().body, True), spec


def test_what_is_no_stream_passes_too() -> None:
    whole = fetch(stream=False)
    assert whole.whole and b"Gr" in whole.body and "content-length" in whole.headers


@pytest.mark.parametrize("event", range(3))
def test_a_cut_is_before_the_frame(event: int) -> None:
    for how, whole in (("end", True), ("close", False), ("reset", False)):
        cut = fetch(f"cut:event={event},how={how}")
        assert (cut.body, cut.whole) == (b"".join(frames()[:event]), whole)


def test_a_cut_is_at_a_byte_behind_a_text_and_inside_a_character() -> None:
    assert fetch("cut:byte=100").body == plain().body[:100]
    assert fetch("cut:text=nd s").body.endswith(b"nd s")
    with pytest.raises(UnicodeDecodeError):
        fetch("cut:inside=character").body.decode()


def test_frames_come_twice_not_at_all_and_in_another_order() -> None:
    assert fetch("duplicate:event=1").body == b"".join([*frames()[:2], *frames()[1:]])
    assert fetch("omit:event=1").body == b"".join([frames()[0], *frames()[2:]])
    assert fetch("swap:event=1").body == b"".join([frames()[0], frames()[2], frames()[1], *frames()[3:]])
    assert fetch("garbage:event=1,size=9").body == b"".join([frames()[0], bytes(range(9)), *frames()[1:]])
    assert fetch("insert:event=1,put=: hi").body == b"".join([frames()[0], b": hi", *frames()[1:]])


def test_a_fault_strikes_as_often_as_it_says() -> None:
    with proxied(parse_fault("status:code=503,times=2")) as proxy:
        assert [ask(proxy).status for _ in range(4)] == [503, 503, 200, 200]
        assert (proxy.exchanges, proxy.forwarded) == (4, 2)
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
    broken = fetch(f"corrupt:event=2,{spec}", dialect="bedrock")
    decoder, seen = EventStreamDecoder(), []
    with pytest.raises(error):
        for frame in decoder.feed(broken.body):
            seen.append(frame)
    assert len(seen) == 2


def test_a_replaced_text_keeps_its_checksum() -> None:
    changed = fetch("replace:text=nd s,by=ND S", dialect="bedrock")
    assert b"ND S" in b"".join(frame.data for frame in EventStreamDecoder().feed(changed.body))


def test_connections_are_dropped_reset_or_left_hanging() -> None:
    for spec in ("drop", "drop:reset=true"):
        with pytest.raises(NoResponse):
            fetch(spec)
    with proxied(parse_fault("hang")) as proxy, pytest.raises(ResponseTimeout):
        ask(proxy, within=0.3)
    with proxied(parse_fault("limit_data:after=400,hang=true")) as proxy, pytest.raises(ResponseTimeout):
        ask(proxy, within=0.3)
    assert not fetch("limit_data:after=400").whole


def test_a_kept_connection_is_found_closed() -> None:
    raw = request_bytes("http://x", question(), "any-key")
    with proxied(parse_fault("stale:after=1")) as proxy, connect(proxy.url, 5) as sock:
        sock.sendall(raw)
        assert read_response(sock, time.monotonic(), 5).whole
        sock.sendall(raw)
        with pytest.raises(NoResponse):
            read_response(sock, time.monotonic(), 5)
        assert proxy.forwarded == 1


def test_lengths_lie() -> None:
    assert not fetch("length:by=5").whole
    short = fetch("length:by=-5")
    assert short.whole and int(short.headers["content-length"]) == len(plain().body) - 5
    assert not fetch("no_last_chunk").whole
    assert fetch("both_lengths").headers["content-length"] == "10"
    assert "content-length" not in fetch("until_close").headers


def test_a_response_is_compressed() -> None:
    assert gzip.decompress(fetch("compress").body) == plain().body
    bomb = fetch("compress:bomb=16777216")
    assert len(bomb.body) < 100_000
    assert len(gzip.decompress(bomb.body)) == 16777216 + len(plain().body)


def test_a_client_that_goes_is_noticed() -> None:
    with proxied(parse_fault("latency:first=30")) as proxy:
        with connect(proxy.url, 5) as sock:
            sock.sendall(request_bytes(proxy.url, question(), "any-key"))
            time.sleep(0.1)
            sock.shutdown(socket.SHUT_RDWR)
        until = time.monotonic() + 2
        while not proxy.disconnects:
            assert time.monotonic() < until
            time.sleep(0.01)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_says_what_it_does(name: str) -> None:
    assert FAULTS[name].__doc__


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cutt", "unknown fault 'cutt'"),
        ("cut:evnt=3", "there is no field 'evnt' (did you mean event?)"),
        ("cut:event=x", "event: expected a whole number or nothing, got a string"),
        ("cut:how=soft", "how: 'soft' is not allowed here"),
    ],
)
def test_a_wrong_fault_is_a_sentence(text: str, complaint: str) -> None:
    with pytest.raises(LocalMisuse, match=re.escape(complaint)):
        parse_fault(text)


def test_the_command_line_has_them() -> None:
    command = [sys.executable, "-m", "dragoman", "sim", "openai", "--port", "0", "--quiet", "--fault"]
    with subprocess.Popen([*command, "status:code=418"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with connect(url, 5) as sock:
            sock.sendall(request_bytes(url, question(), "any-key"))
            assert read_response(sock, time.monotonic(), 5).status == 418
        process.terminate()
    done = subprocess.run([*command, "cutt"], capture_output=True, text=True, check=False)
    assert (done.returncode, "unknown fault 'cutt'" in done.stderr) == (2, True)
