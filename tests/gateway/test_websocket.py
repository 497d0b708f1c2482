"""Responses over WebSocket: messages in, events out, one session for each connection."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from wsproto.events import Ping

from dragoman.gateway import websocket
from dragoman.gateway.admission import KeyCheck
from dragoman.http.exchange import HttpExchange
from dragoman.simulator import Simulator, running_simulator
from tests.gateway.endless_upstream import EndlessUpstream
from tests.gateway.harness import (
    MODEL,
    TIMEOUT,
    GatewayHarness,
    gated_server,
    gateway_with_simulator,
    sse_response,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.websocket_client import Refused, WebSocketClient

EVERY_UPSTREAM = ("anthropic", "openai", "bedrock", "responses", "gemini", "kiro")
TOOL = {"type": "function", "name": "get", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


def body_of(simulator: Simulator, number: int = -1) -> Any:
    return json.loads(simulator.requests[number].request.body)


def output_text(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def session(harness: GatewayHarness, **more: Any) -> WebSocketClient:
    return WebSocketClient(harness.url, **more)


@pytest.mark.parametrize("upstream", EVERY_UPSTREAM)
def test_a_message_is_answered_by_events(tmp_path: Path, upstream: str) -> None:
    with gateway_with_simulator("", tmp_path, upstream) as (harness, simulator), session(harness) as client:
        client.send(model=MODEL, input="hello", store=False)
        events = client.events()
        assert events[0]["type"] == "response.created"
        assert events[-1]["type"] == "response.completed"
        assert "hello" in output_text(events)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert simulator.total == 1
        client.send_close()
        assert client.wait_closed() == 1000
        lines = harness.log_lines(2)
    assert {(line["operation"], line["status"]) for line in lines} == {("generate", 200), ("websocket", 101)}


@pytest.mark.parametrize("upstream", EVERY_UPSTREAM)
def test_a_warm_up_asks_no_upstream_and_a_session_continues_by_the_last_id(tmp_path: Path, upstream: str) -> None:
    script = '[[turn]]\ntext = "first"\n[[turn]]\ntext = "second"\n'
    with gateway_with_simulator(script, tmp_path, upstream) as (harness, simulator), session(harness) as client:
        client.send(model=MODEL, input=[], store=False, generate=False)
        warm = client.events()
        assert [event["type"] for event in warm] == ["response.created", "response.completed"]
        assert (simulator.total, warm[-1]["response"]["output"]) == (0, [])
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one"}]}
        client.send(model=MODEL, input=[item], store=False, previous_response_id=warm[-1]["response"]["id"])
        first = client.events()
        assert output_text(first) == "first"
        more = {**item, "content": [{"type": "input_text", "text": "two"}]}
        client.send(model=MODEL, input=[more], store=False, previous_response_id=first[-1]["response"]["id"])
        assert output_text(client.events()) == "second"
        sent = json.dumps(body_of(simulator))
    assert simulator.total == 2
    assert all(word in sent for word in ("one", "first", "two"))
    assert "previous_response_id" not in sent


def test_an_unknown_id_is_an_error_with_its_code(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, simulator), session(harness) as client:
        client.send(model=MODEL, input="x", previous_response_id="resp_of_another_connection")
        (error,) = client.events()
        assert error["type"] == "error"
        assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
        client.send(model=MODEL, input="again")
        assert "again" in output_text(client.events())
        assert simulator.total == 1


def test_a_tool_loop_sends_only_the_result(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{tool = "get", arguments = {city = "Rome"}}]\n[[turn]]\ntext = "sunny"\n'
    with gateway_with_simulator(script, tmp_path) as (harness, simulator), session(harness) as client:
        client.send(model=MODEL, input="weather?", tools=[TOOL], store=False)
        response = client.events()[-1]["response"]
        (call,) = [item for item in response["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "20 degrees"}
        client.send(model=MODEL, input=[result], tools=[TOOL], store=False, previous_response_id=response["id"])
        assert output_text(client.events()) == "sunny"
        messages = body_of(simulator)["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"][0]["input"] == {"city": "Rome"}


@pytest.mark.parametrize("text", ["not JSON", "[]", '{"type": "other"}', "{}"])
def test_a_message_of_another_form_is_an_error_and_the_session_goes_on(tmp_path: Path, text: str) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _), session(harness) as client:
        client.send_text(text)
        (error,) = client.events()
        assert (error["type"], error["status"]) == ("error", 400)
        client.send(model=MODEL, input="hello")
        assert client.events()[-1]["type"] == "response.completed"


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


@pytest.mark.parametrize("warm", [False, True])
def test_a_session_can_continue_a_response_that_the_gateway_stores(tmp_path: Path, warm: bool) -> None:
    """The session then knows only the items after it, and refers to it for the others."""
    with gateway_with_simulator("", tmp_path) as (harness, simulator), session(harness) as client:
        _, _, body = harness.request("/v1/responses", {"model": MODEL, "input": "first"})
        previous = json.loads(body)["id"]
        if warm:
            client.send(model=MODEL, input=[], generate=False, previous_response_id=previous)
            previous = client.events()[-1]["response"]["id"]
        for text in ("second", "third"):
            client.send(model=MODEL, input=[user(text)], store=False, previous_response_id=previous)
            previous = client.events()[-1]["response"]["id"]
        sent = json.dumps(body_of(simulator)["messages"])
    assert simulator.total == 3
    assert [sent.count(f'"{text}"') for text in ("first", "second", "third")] == [1, 1, 1]


def test_a_warm_up_does_not_hide_that_an_id_is_unknown(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, simulator), session(harness) as client:
        client.send(model=MODEL, input=[], generate=False, previous_response_id="resp_unknown")
        warm = client.events()[-1]["response"]["id"]
        client.send(model=MODEL, input=[user("x")], previous_response_id=warm)
        (error,) = client.events()
        assert (error["error"]["code"], simulator.total) == ("previous_response_not_found", 0)


def test_what_sessions_remember_is_bounded_over_all_of_them(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _), ExitStack() as stack:
        memory = harness.running.gateway._services.session_memory
        memory._most = 50_000
        clients = [stack.enter_context(session(harness)) for _ in range(3)]
        text, ids = "x" * 20_000, []
        for client in clients:
            client.send(model=MODEL, input=text, store=False)
            ids.append(client.events()[-1]["response"]["id"])
        assert memory.size <= 50_000
        codes = []
        for client, previous in reversed([*zip(clients, ids, strict=True)]):
            client.send(model=MODEL, input=[user("more")], store=False, previous_response_id=previous)
            last = client.events()[-1]
            codes.append(last["error"]["code"] if last["type"] == "error" else last["type"])
        assert codes == ["response.completed", "response.completed", "previous_response_not_found"]
        for client in clients:
            client.send_close()
        wait_until(lambda: memory.size == 0)


def test_errors_of_upstreams_have_their_status_and_retry_after(tmp_path: Path) -> None:
    script = '[[turn]]\nstatus = 429\nmessage = "too fast"\nretry_after = 7\ntimes = 99\n'
    with gateway_with_simulator(script, tmp_path) as (harness, _), session(harness) as client:
        client.send(model=MODEL, input="hello")
        (error,) = client.events()
    assert (error["status"], error["headers"]["retry-after"]) == (429, "7")
    assert error["error"]["message"]


def test_a_wrong_key_and_a_setting_refuse_the_handshake(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _):
        with pytest.raises(Refused) as refused:
            session(harness, key="wrong")
        assert refused.value.status == 401
        with pytest.raises(Refused) as refused:
            session(harness, path="/v1/messages")
        assert refused.value.status == 400
        with pytest.raises(Refused) as refused:
            session(harness, headers=(("origin", "https://evil.example"),))
        assert refused.value.status == 403
    with gateway_with_simulator("", tmp_path, server__websockets=False) as (harness, _):
        with pytest.raises(Refused) as refused:
            session(harness)
        assert refused.value.status == 426


def test_a_handshake_of_another_version_or_form_is_refused(tmp_path: Path) -> None:
    key = base64.b64encode(b"0123456789abcdef").decode()
    good = {"upgrade": "websocket", "connection": "Upgrade", "sec_websocket_version": "13", "sec_websocket_key": key}
    with gateway_with_simulator("", tmp_path) as (harness, _):
        for change in ({"sec_websocket_version": "8"}, {"sec_websocket_key": "short"}, {"sec_websocket_key": "a" * 24}):
            status, headers, body = harness.request("/v1/responses", method="GET", **{**good, **change})
            assert (status, headers["sec-websocket-version"]) == (426, "13")
            assert b"WebSocket handshake" in body


def test_compression_is_declined_and_a_compressed_frame_ends_the_session(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _), session(harness) as client:
        assert client.extensions == []
        client.socket.sendall(b"\xc1\x80\0\0\0\0")  # a text frame with the bit of a compressed message
        assert client.wait_closed() == 1002


def test_binary_frames_and_long_messages_end_the_session(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path, server__max_body=4096) as (harness, simulator):
        with session(harness) as client:
            client.send_bytes(b"x")
            assert client.wait_closed() == 1003
        with session(harness) as client:
            client.send(model=MODEL, input="x" * 5000)
            assert client.wait_closed() == 1009
        with session(harness) as client:
            client.socket.sendall(b"\xff\xff\xff\xff")
            assert client.wait_closed() == 1002
        assert simulator.total == 0


def test_the_limit_of_a_message_counts_bytes_over_all_its_fragments(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path, server__max_body=4096) as (harness, simulator):
        with session(harness) as client:
            client.send_fragments("\u20ac" * 1500, 100)  # 4500 bytes
            assert client.wait_closed() == 1009
        with session(harness) as client:
            text = json.dumps({"type": "response.create", "model": MODEL, "input": "fragments"})
            client.send_fragments(text, 1, empty=True)
            assert "fragments" in output_text(client.events())
        assert simulator.total == 1


def test_a_client_that_is_still_sending_gets_the_close_code(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path, server__max_body=4096) as (harness, _), session(harness) as client:
        client.send_text("x" * 600_000)
        assert client.wait_closed() == 1009


def test_text_that_is_not_utf_8_ends_the_session(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _), session(harness) as client:
        client.socket.sendall(b"\x81\x82\0\0\0\0\xc3\x28")
        assert client.wait_closed() == 1007


def test_an_input_of_another_form_is_an_error_that_names_it(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, simulator), session(harness) as client:
        for value in (7, {"type": "message"}):
            client.send(model=MODEL, input=value)
            (error,) = client.events()
            assert error["status"] == 400
            assert "input" in error["error"]["message"]
        client.send_text('{"type": "response.create", "input": ' + "[" * 200_000)
        assert client.events()[0]["status"] == 400
        assert simulator.total == 0


def test_a_session_ends_after_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "SESSION_SECONDS", 0.2)
    with gateway_with_simulator("", tmp_path) as (harness, _), session(harness) as client:
        assert client.wait_closed() == 1001
        wait_until(lambda: harness.running.gateway.in_flight == 0)


def test_messages_release_their_memory(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _), session(harness) as client:
        budget = harness.running.gateway.memory_budget
        for _ in range(20):
            client.send(model=MODEL, input=[], store=False, generate=False, metadata={"a": "x" * 1000})
            assert client.events()[-1]["type"] == "response.completed"
            client.send_text("x" * 1000)
            assert client.events()[-1]["type"] == "error"
        assert (budget.bytes, budget.small_bytes) == (0, 0)


def test_a_flood_of_pings_by_a_client_that_does_not_read_is_not_read_on(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _), session(harness) as client:
        (exchange,) = harness.running.gateway._live
        assert isinstance(exchange, HttpExchange)
        ping = client.frame(Ping(b"x" * 125)) * 500
        rest = b""

        def flood() -> bool:
            nonlocal rest
            with contextlib.suppress(BlockingIOError):
                while True:
                    rest = rest or ping
                    rest = rest[client.socket.send(rest) :]
            return exchange.paused and not exchange.connection.is_reading

        client.socket.setblocking(False)
        wait_until(flood)
        client.socket.settimeout(TIMEOUT)
        assert harness.request("/v1/models", method="GET")[0] == 200
        sender = threading.Thread(target=client.socket.sendall, args=[rest])
        sender.start()
        while sender.is_alive():
            assert client._read()
        client.send(model=MODEL, input="after the flood")
        assert "after the flood" in output_text(client.events())


def test_each_message_is_checked_against_the_current_key(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, simulator), session(harness) as client:
        client.send(model=MODEL, input="one")
        assert client.events()[-1]["type"] == "response.completed"
        gateway = harness.running.gateway
        gateway._admission.configure(gateway._config.server, KeyCheck("another key"))
        client.send(model=MODEL, input="two")
        (error,) = client.events()
        assert (error["status"], error["headers"], simulator.total) == (401, {"x-should-retry": "false"}, 1)


def test_one_message_may_wait_and_no_more(tmp_path: Path) -> None:
    with gated_server(*reversed(sse_response(b"[DONE]"))) as (url, gate):
        config = upstream_config("one", "openai", url)
        with start_gateway(config, tmp_path) as harness, session(harness) as client:
            for _ in range(3):
                client.send(model=MODEL, input="hello")
            assert client.wait_closed() == 1008
            gate.set()
            wait_until(lambda: harness.running.gateway.in_flight == 0)


# --- queues: messages with a stream_id


def test_queues_do_not_wait_for_each_other_and_can_continue_one_response(tmp_path: Path) -> None:
    head, body = sse_response(
        b'{"choices":[{"index":0,"delta":{"content":"late"},"finish_reason":"stop"}]}',
        b"[DONE]",
    )
    with (
        gated_server(body, head) as (slow_url, gate),
        running_simulator("openai") as simulator,
        start_gateway(
            upstream_config("slow", "openai", slow_url)
            + upstream_config("one", "openai", simulator.url)
            + '[[routes]]\nmatch = "slow"\nupstream = "slow"\n[default]\nupstream = "one"\n',
            tmp_path,
        ) as harness,
        session(harness) as client,
    ):
        client.send(model=MODEL, input="first", store=False)
        first = client.events()[-1]["response"]["id"]
        client.send(model="slow", input="x", store=False, stream_id="a")
        wait_until(lambda: harness.running.gateway.in_flight == 2)
        for name in ("b", "c"):
            more = {"previous_response_id": first, "stream_id": name, "store": False}
            client.send(model=MODEL, input=[user(f"from {name}")], **more)
        events = [*client.events(), *client.events()]
        assert {event["stream_id"] for event in events} == {"b", "c"}
        for name in ("b", "c"):
            own = [event for event in events if event["stream_id"] == name]
            assert [event["sequence_number"] for event in own] == list(range(len(own)))
            assert f"from {name}" in output_text(own)
        assert all("first" in request.body.decode() for request in simulator.requests)
        gate.set()
        late = client.events()
        assert {event["stream_id"] for event in late} == {"a"} and output_text(late) == "late"
        client.send(model=7, input="x", stream_id="d")
        (error,) = client.events()
        assert (error["type"], error["status"], error["stream_id"]) == ("error", 400, "d")


@pytest.mark.parametrize("stream_id", ["", "a b", "x" * 257, 7])
def test_a_stream_id_of_another_form_is_an_error(tmp_path: Path, stream_id: Any) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, simulator), session(harness) as client:
        client.send(model=MODEL, input="x", stream_id=stream_id)
        (error,) = client.events()
        assert (error["status"], "stream_id" in error["error"]["message"], simulator.total) == (400, True, 0)


def test_too_many_queues_end_the_session(tmp_path: Path) -> None:
    with gated_server(*reversed(sse_response(b"[DONE]"))) as (url, gate):
        config = upstream_config("one", "openai", url)
        with start_gateway(config, tmp_path) as harness, session(harness) as client:
            for number in range(websocket.MAX_QUEUES + 1):
                client.send(model=MODEL, input="x", stream_id=str(number))
            assert client.wait_closed() == 1008
            gate.set()
            wait_until(lambda: harness.running.gateway.in_flight == 0)
            assert harness.running.gateway.memory_budget.bytes == 0


def test_steering_is_refused_with_its_input(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _), session(harness) as client:
        steer = {"previous_response_id": "resp_1", "input": [user("stop")]}
        client.send_text(json.dumps({"type": "response.steer", **steer}))
        failed = client.event()
        assert failed is not None and (failed["type"], failed["steer"]) == ("response.steer.failed", steer)
        assert failed["error"]["code"] == "steering_not_supported"
        client.send(model=MODEL, input="hello")
        assert client.events()[-1]["type"] == "response.completed"


def test_a_silent_session_gets_pings(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path, server__ping=0.05) as (harness, _), session(harness) as client:
        while client.pings < 3:
            assert client._read()
        client.send(model=MODEL, input="hello")
        assert client.events()[-1]["type"] == "response.completed"


def test_a_client_that_leaves_cancels_its_upstream(tmp_path: Path) -> None:
    with (
        gated_server(*reversed(sse_response(b"[DONE]"))) as (url, _),
        start_gateway(upstream_config("one", "openai", url), tmp_path) as harness,
    ):
        gateway = harness.running.gateway
        with session(harness) as client:
            client.send(model=MODEL, input="hello")
            wait_until(lambda: gateway.in_flight == 2)
        wait_until(lambda: gateway.in_flight == 0)
        assert gateway.memory_budget.bytes == 0
        outcomes = {line["operation"]: line["outcome"] for line in harness.log_lines(2)}
    assert outcomes == {"generate": "gone", "websocket": "gone"}


# --- load: many sessions, slow readers, a gateway that stops


def test_256_sessions_are_open_at_once(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"server__limits__peer_connections": 512, "more": "limits.concurrency = 256"}
    with gateway_with_simulator("", tmp_path, **limits) as (harness, simulator), ExitStack() as stack:
        clients = [stack.enter_context(session(harness)) for _ in range(256)]
        gateway = harness.running.gateway
        assert gateway.in_flight == 256
        for turn in range(2):
            for number, client in enumerate(clients):
                client.send(model=MODEL, input=f"session {number} turn {turn}", store=False)
            for number, client in enumerate(clients):
                assert f"session {number} turn {turn}" in output_text(client.events())
        assert simulator.total == 512
        for client in clients:
            client.send_close()
        wait_until(lambda: gateway.in_flight == 0)
        assert gateway.memory_budget.bytes == 0


def endless_texts() -> Iterator[dict[str, Any] | None]:
    while True:
        yield {"choices": [{"index": 0, "delta": {"content": "a" * 4096}}]}


def test_a_slow_reader_stops_its_upstream_only(tmp_path: Path) -> None:
    """How much socket buffers hold differs from machine to machine, so the upstream never ends."""
    endless = EndlessUpstream(endless_texts)
    with (
        running_simulator("openai") as simulator,
        start_gateway(
            upstream_config("endless", "openai", endless.url)
            + upstream_config("one", "openai", simulator.url)
            + '[[routes]]\nmatch = "endless"\nupstream = "endless"\n[default]\nupstream = "one"\n',
            tmp_path,
        ) as harness,
        session(harness) as other,
    ):

        def stands_still() -> bool:
            """Whether nothing was read from the endless upstream while another session got responses."""
            before = endless.sent
            for _ in range(20):
                other.send(model=MODEL, input="hello", store=False)
                assert other.events()[-1]["type"] == "response.completed"
            return endless.sent == before > 0

        with session(harness, receive_buffer=65536) as slow:
            slow.send(model="endless", input="x", store=False)
            wait_until(lambda: any(each.paused for each in [*harness.running.gateway._live]))
            wait_until(stands_still)
            taken = endless.sent
            assert not endless.left.is_set()
            while endless.sent == taken:
                assert slow._read()
        wait_until(endless.left.is_set)
    endless.close()


def test_a_gateway_that_stops_lets_a_response_end_and_closes_idle_sessions(tmp_path: Path) -> None:
    head, body = sse_response(
        b'{"choices":[{"index":0,"delta":{"content":"late"}}]}',
        b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
        b"[DONE]",
    )
    with gated_server(body, head) as (url, gate), ExitStack() as stack:
        harness = stack.enter_context(start_gateway(upstream_config("one", "openai", url), tmp_path, server__drain=30))
        busy, idle = stack.enter_context(session(harness)), stack.enter_context(session(harness))
        busy.send(model=MODEL, input="x", store=False)
        wait_until(lambda: harness.running.gateway.in_flight == 3)
        harness.running.stop()
        assert idle.wait_closed() == 1001
        gate.set()
        assert busy.events()[-1]["type"] == "response.completed"
        assert busy.wait_closed() == 1001


def test_a_gateway_that_is_stopping_begins_no_session(tmp_path: Path) -> None:
    with gateway_with_simulator("", tmp_path) as (harness, _):
        harness.running.gateway.draining = True
        with session(harness) as client:
            assert client.wait_closed() == 1001


def test_a_response_that_does_not_end_in_time_is_cut_with_a_close_frame(tmp_path: Path) -> None:
    with gated_server(*reversed(sse_response(b"[DONE]"))) as (url, gate), ExitStack() as stack:
        harness = stack.enter_context(start_gateway(upstream_config("one", "openai", url), tmp_path, server__drain=0.1))
        client = stack.enter_context(session(harness))
        client.send(model=MODEL, input="x", store=False)
        wait_until(lambda: harness.running.gateway.in_flight == 2)
        harness.running.stop()
        assert client.wait_closed() == 1001
        gate.set()
