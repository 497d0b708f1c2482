"""Gemini clients at the gateway: routes, keys, array streams, model lists, and errors inside streams."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator.server import running_simulator
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    StreamClient,
    fixed_response_server,
    gateway_with_simulator,
    start_gateway,
    upstream_config,
)

BODY: Any = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}


@pytest.fixture(scope="module", params=["gemini", "anthropic"])
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayHarness]:
    with running_simulator(request.param) as simulator:
        text = upstream_config("u", request.param, simulator.url, 'models = ["m", "maker/m"]')
        with start_gateway(text, Path(tmp_path_factory.mktemp("state"))) as running:
            yield running


def text_of(response: Any) -> str:
    return "".join(part.get("text", "") for part in response["candidates"][0]["content"]["parts"])


@pytest.mark.parametrize(
    "path", ["/v1beta/models/m", "/v1/models/m", "/v1beta/models/maker%2Fm", "/v1beta/models/maker/m"]
)
def test_every_form_of_the_path_is_served(harness: GatewayHarness, path: str) -> None:
    status, _, body = harness.request(f"{path}:generateContent", BODY, key=None, x_goog_api_key=KEY)
    assert status == 200 and text_of(json.loads(body))


def test_a_stream_is_sse_or_one_array_as_requested(harness: GatewayHarness) -> None:
    path = "/v1beta/models/m:streamGenerateContent"
    status, headers, events = harness.request(f"{path}?alt=sse", BODY)
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    frames = [json.loads(frame.removeprefix("data: ")) for frame in events.decode().split("\n\n") if frame]
    status, headers, array = harness.request(path, BODY)
    assert (status, headers["content-type"]) == (200, "application/json")
    assert "".join(map(text_of, json.loads(array))) == "".join(map(text_of, frames)) != ""
    assert json.loads(array)[-1]["candidates"][0]["finishReason"] == "STOP"


@pytest.mark.parametrize("path", ["/v1beta/models/m:generateContent", "/v1/models/m:generateContent"])
def test_a_key_in_the_query_is_accepted_and_not_logged(harness: GatewayHarness, path: str) -> None:
    """Google's own examples send the key so."""
    assert harness.request(f"{path}?alt=json&key={KEY}", BODY, key=None)[0] == 200
    assert harness.request(f"/v1beta/models?key={KEY}", method="GET", key=None)[0] == 200
    assert KEY not in harness.text


@pytest.mark.parametrize("query", ["key=", "key=wrong", f"KEY={KEY}", f"akey={KEY}"])
def test_a_wrong_key_in_the_query_is_refused(harness: GatewayHarness, query: str) -> None:
    status, _, body = harness.request(f"/v1beta/models/m:generateContent?{query}", BODY, key=None)
    assert (status, json.loads(body)["error"]["status"]) == (401, "UNAUTHENTICATED")
    for place in ("x-api-key", "x-goog-api-key", "bearer token"):
        assert place in json.loads(body)["error"]["message"]


def test_models_are_listed_in_geminis_format(harness: GatewayHarness) -> None:
    for path in ("/v1beta/models", "/v1/models"):
        _, _, body = harness.request(path, method="GET", key=None, x_goog_api_key=KEY)
        assert "models/m" in [model["name"] for model in json.loads(body)["models"]]
    _, _, body = harness.request("/v1beta/models/m", method="GET", key=None, x_goog_api_key=KEY)
    assert json.loads(body)["name"] == "models/m"
    status, _, body = harness.request("/v1beta/models/none", method="GET", key=None, x_goog_api_key=KEY)
    assert (status, json.loads(body)["error"]["status"]) == (404, "NOT_FOUND")
    _, _, body = harness.request("/v1/models", method="GET")
    assert "data" in json.loads(body)


def test_tokens_are_counted(harness: GatewayHarness) -> None:
    _, _, body = harness.request("/v1beta/models/m:countTokens", BODY)
    assert json.loads(body)["totalTokens"] > 0


SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def call_tool_by_messages(harness: GatewayHarness) -> None:
    body: Any = {
        "model": "m",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": "call get_weather"}],
        "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
    }
    content = json.loads(harness.request("/v1/messages", body)[2])["content"]
    used = next(block for block in content if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": used["id"], "content": "sunny"}
    body["messages"] += [{"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    assert harness.request("/v1/messages", body)[0] == 200


def call_tool_by_chat(harness: GatewayHarness) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    body: Any = {"model": "m", "messages": [{"role": "user", "content": "call get_weather"}], "tools": [tool]}
    message = json.loads(harness.request("/v1/chat/completions", body)[2])["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    body["messages"] += [message, result]
    assert harness.request("/v1/chat/completions", body)[0] == 200


def call_tool_by_responses(harness: GatewayHarness) -> None:
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
    messages: list[Any] = [{"role": "user", "content": "call get_weather"}]
    body: Any = {
        "model": "m",
        "input": messages,
        "tools": [tool],
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    output = json.loads(harness.request("/v1/responses", body)[2])["output"]
    called = next(item for item in output if item["type"] == "function_call")
    body["input"] = [
        *messages,
        *output,
        {"type": "function_call_output", "call_id": called["call_id"], "output": "sunny"},
    ]
    assert harness.request("/v1/responses", body)[0] == 200


@pytest.mark.parametrize("loop", [call_tool_by_messages, call_tool_by_chat, call_tool_by_responses])
def test_a_client_of_another_dialect_returns_the_signature_to_gemini(loop: Any, tmp_path: Path) -> None:
    with (
        running_simulator("gemini") as simulator,
        start_gateway(upstream_config("u", "gemini", simulator.url, 'models = ["m"]'), tmp_path) as harness,
    ):
        loop(harness)
        first, second = simulator.requests
        sent: Any = second.json
        parts = [part for content in sent["contents"] for part in content["parts"]]
        (call,) = [part for part in parts if "functionCall" in part]
        assert len(call["thoughtSignature"]) == 64, "the simulator's own, not the one for calls of other origin"
        assert first.status == second.status == 200


# --- plain SSE readers and Google's SDKs both see an error inside a stream

PATH = "/v1beta/models/claude-sonnet-4.5:streamGenerateContent"
ASK: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
BROKEN = 'then = "last"\n[[turn]]\ntext = "Begin. two three four five six seven"\nchunk = 6\ncut = { event = 6, how = "close" }'
ERROR = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE", "details": [{"@type": "x", "a": 1}]}}
FRAME = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "Begin."}]}, "index": 0}],
    "modelVersion": "m",
    "responseId": "r",
}


def gemini_stream(error: bytes) -> bytes:
    body = b"data: " + json.dumps(FRAME).encode() + b"\r\n\r\n" + error
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


@contextmanager
def gateway_with_failing_stream(dialect: str, tmp_path: Path) -> Iterator[GatewayHarness]:
    with gateway_with_simulator(BROKEN, tmp_path, dialect, server__hold=0) as (harness, _):
        yield harness


def plain_events(reply: bytes) -> list[Any]:
    """Return the events that a plain SSE reader sees; it ignores lines other than `data:`."""
    events, data = [], []
    for line in reply.decode().replace("\r\n", "\n").split("\n"):
        if line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            events.append(json.loads("\n".join(data)))
            data = []
    return events


@pytest.mark.parametrize("dialect", ["anthropic", "openai", "responses", "gemini", "bedrock", "kiro"])
def test_a_plain_reader_of_events_sees_the_error(dialect: str, tmp_path: Path) -> None:
    """Regression: the error was a bare line of JSON, which such a reader ignores, so the stream seemed complete."""
    with gateway_with_failing_stream(dialect, tmp_path) as harness:
        _, _, reply = harness.request(f"{PATH}?alt=sse", ASK)
        events = plain_events(reply)
        assert "error" in events[-1] and events[-1]["error"]["code"] >= 500
        assert all("error" not in event for event in events[:-1])


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\r\n"])
def test_a_bare_error_of_a_gemini_upstream_is_reported_too(indent: int | None, end: bytes, tmp_path: Path) -> None:
    raw = gemini_stream(json.dumps(ERROR, indent=indent).encode() + end)
    with (
        fixed_response_server(raw) as url,
        start_gateway(upstream_config("one", "gemini", url), tmp_path, server__hold=0) as harness,
    ):
        _, _, reply = harness.request(f"{PATH}?alt=sse", ASK)
        first, last = plain_events(reply)
        assert first["candidates"][0]["content"]["parts"] == [{"text": "Begin."}]
        assert last == ERROR  # the complete error


def test_a_stream_as_an_array_has_the_error_as_its_last_element(tmp_path: Path) -> None:
    with gateway_with_failing_stream("anthropic", tmp_path) as harness:
        _, _, reply = harness.request(PATH, ASK)
        assert "error" in json.loads(reply)[-1]


def test_googles_python_sdk_raises(tmp_path: Path) -> None:
    genai = pytest.importorskip("google.genai", reason="google-genai is not installed")
    for dialect in ("anthropic", "gemini"):
        with gateway_with_failing_stream(dialect, tmp_path) as harness:
            client = genai.Client(api_key=KEY, http_options=genai.types.HttpOptions(base_url=harness.url))
            texts: list[str] = []
            with pytest.raises(genai.errors.ServerError) as failed:
                for chunk in client.models.generate_content_stream(model="m", contents="hello"):
                    texts.append(chunk.text or "")
            assert "".join(texts).startswith("Begin.") and failed.value.code >= 500


@pytest.mark.parametrize("dialect", ["anthropic", "gemini"])
def test_the_bare_error_is_a_chunk_of_its_own(dialect: str, tmp_path: Path) -> None:
    """Google's JavaScript SDK parses each chunk that it reads, and detects an error this way."""
    with (
        gateway_with_failing_stream(dialect, tmp_path) as harness,
        StreamClient(harness, f"{PATH}?alt=sse", ASK) as client,
    ):
        body = client.read_all().partition(b"\r\n\r\n")[2]
        pieces = []
        while body and not body.startswith(b"0\r\n"):
            size, _, body = body.partition(b"\r\n")
            pieces.append(body[: int(size, 16)])
            body = body[int(size, 16) + 2 :]
        assert "error" in json.loads(pieces[-1])
        assert not pieces[-1].endswith(b"\n\n")  # so it remains in the buffer if the chunks are joined in transit


# The JavaScript SDK raises for a chunk that is an error, splits events at blank lines, and raises if bytes remain in
# its buffer at the end.
_SDK_READER = """
const response = await fetch(process.argv[1], {method: 'POST', body: process.argv[2],
  headers: {'x-goog-api-key': process.argv[3], 'content-type': 'application/json'}});
const decoder = new TextDecoder();
let buffer = '', events = 0;
for await (const piece of response.body) {
  const text = decoder.decode(piece, {stream: true});
  try { const parsed = JSON.parse(text); if (parsed.error) { console.log('raised', parsed.error.code); process.exit(0); } } catch {}
  buffer += text;
  for (let at; (at = buffer.indexOf('\\n\\n')) >= 0; buffer = buffer.slice(at + 2)) events += 1;
}
console.log(buffer.trim() ? 'left over' : 'ended well', events);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_reader_like_googles_javascript_sdk_raises(tmp_path: Path) -> None:
    with gateway_with_failing_stream("anthropic", tmp_path) as harness:
        arguments = [f"{harness.url}{PATH}?alt=sse", json.dumps(ASK), KEY]
        command = ["node", "--input-type=module", "-e", _SDK_READER, *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert ran.stdout.startswith("raised 5"), ran.stdout
