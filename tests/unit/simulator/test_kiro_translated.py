"""For every refusal rule, the client request that comes nearest to breaking it: its translation passes, or our own clear
error says why not (rules 36-38, 42-45, 48, 49). Then whole exchanges over HTTP, against the paranoid profile."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

import dragoman
from dragoman.errors import ClientFault
from dragoman.simulator.kiro.rules import refusals
from dragoman.simulator.server import running_simulator
from dragoman.wire.http import HttpRequest

MODEL = "claude-sonnet-4-5"
TOOL = {
    "name": "read",
    "description": "Read.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
OWN_ERROR = {36, 37, 38, 42, 43, 44, 45, 48, 49}


def user(content: Any = "go") -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any = "done") -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def use(id_: str = "t1", name: str = "read", arguments: Any = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": {} if arguments is None else arguments}


def result(id_: str = "t1", content: Any = "ok", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": content, **more}


def image(media: str = "image/png", **source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source or {"type": "base64", "media_type": media, "data": PNG}}


def ask(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 99, "messages": list(messages), **more}


def tool(**changed: Any) -> dict[str, Any]:
    return {**TOOL, **changed}


def schema(**keywords: Any) -> dict[str, Any]:
    return ask(
        user(), tools=[tool(input_schema={"type": "object", "properties": {"a": {"type": "string"}}, **keywords})]
    )


LOOP = (user(), assistant([use()]), user([result()]))
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": ""}
NEAREST: dict[int, dict[str, Any]] = {
    1: ask(user("a"), user("b"), assistant("c"), assistant("d"), user("e"), user("f")),
    2: ask(assistant("hi"), user("x")),
    3: ask(user([result("t9", "left over")]), assistant(), user()),
    4: ask(user("a"), assistant("b"), user("c"), user("d")),
    5: ask(user("a"), assistant("{")),
    6: ask(user("   "), assistant("b"), user("c")),
    7: ask(*LOOP, tools=[TOOL]),
    8: ask(user(), assistant(), user([result("nobody", "orphan")])),
    9: ask(user(), assistant([use("t1"), use("t2")]), user([result("t2")]), tools=[TOOL]),
    10: ask(
        user(),
        assistant([use("t1"), use("t2")]),
        user([result("t1")]),
        assistant("aside"),
        user([result("t2")]),
        tools=[TOOL],
    ),
    11: ask(user(), assistant([use()]), user([result(), result()]), tools=[TOOL]),
    12: ask(user(), assistant([use(), use()]), user([result(), result()]), tools=[TOOL]),
    13: ask(user(), assistant([use(name="grep")]), user([result()]), tools=[TOOL]),
    14: ask(*LOOP),
    15: ask(user(), tools=[tool(name="files.read all"), tool(name="n" * 90)]),
    16: ask(user(), assistant([use("call_x|fc_y")]), user([result("call_x|fc_y")]), tools=[TOOL]),
    17: ask(user(), tools=[tool(description="")]),
    18: ask(user(), tools=[tool(description="é" * 10_241)]),
    19: ask(user(), tools=[tool(input_schema={"type": "string"})]),
    20: schema(required=None),
    21: schema(required=[]),
    22: schema(additionalProperties=False),
    23: schema(**{"$schema": "http://json-schema.org/draft-07/schema#"}),
    24: schema(properties={"a": {"type": "object", "properties": {}}}),
    25: ask(
        user(),
        tools=[tool(input_schema={"anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]})],
    ),
    26: schema(properties={"a": {"type": "string", "pattern": "x", "format": "uri", "minLength": 1, "const": "x"}}),
    27: ask(user(), tools=[tool(cache_control={"type": "ephemeral"})]),
    28: ask(user(), assistant([use(arguments='{"path": 1}')]), user([result()]), tools=[TOOL]),
    29: ask(user(), system=None, tools=None, stop_sequences=None),
    30: ask(user(), temperature=0.5, top_p=0.9, unheard_of={"a": 1}, context_management={}),
    31: ask(user()),
    32: ask(user(), assistant([use()]), user([result(content=[])]), tools=[TOOL]),
    33: ask(user(), assistant([use()]), user([result(status="failed")]), tools=[TOOL]),
    34: ask(user("half \ud83d a character")),
    35: ask(user([image("image/jpg"), {"type": "text", "text": "see"}])),
    36: ask(user([image(type="url", url="https://example.org/a.png")])),
    37: ask(user([image(type="base64", media_type="image/png", data=PNG + "A" * 5_300_000)])),
    38: ask(user([image()] * 11)),
    39: ask(user([image(type="base64", media_type="image/png", data={"type": "Buffer", "data": [1, 2]})])),
    40: ask(user(), assistant([THOUGHT, {"type": "text", "text": "b"}]), user("c")),
    41: ask(*LOOP, tools=[TOOL], thinking={"type": "enabled", "budget_tokens": 50}),
    42: ask(user("word " * 400_000)),
    43: ask(*[each for _ in range(40) for each in (user("word " * 20_000), assistant())], user()),
    44: ask(user("x" * 33_000_000)),
    45: ask(user(), tools=[tool(name=f"t{index}") for index in range(137)]),
    46: ask(*[each for index in range(150) for each in (user(f"q{index}"), assistant())], user()),
    47: ask(user(), stream=True),
    48: ask(user(), model="no such model"),
    49: ask(user()),
    50: ask(user(), metadata={"user_id": json.dumps({"session_id": "x" * 500 + " ümlaut"})}),
    51: ask(user(), assistant("x" * 100_001), user()),
}


def test_every_rule_has_its_nearest_request() -> None:
    assert sorted(NEAREST) == list(range(1, 52))


@pytest.mark.parametrize("rule", sorted(NEAREST))
def test_the_nearest_client_request_passes(rule: int) -> None:
    try:
        done = dragoman.translate_request(NEAREST[rule], source="anthropic", target="kiro")
    except ClientFault as error:
        assert rule in OWN_ERROR | {39}, (
            f"rule {rule}: {error}"
        )  # 39 breaks its own dialect: a 400 of ours, naming the place
        assert error.at or error.fault.kind == "context_full"
        return
    headers = tuple(done.headers.items())
    request = HttpRequest("POST", done.path, headers=headers, body=done.raw)
    assert [str(refusal) for refusal in refusals(request, "paranoid")] == []


def post(url: str, done: dragoman.Translated) -> tuple[int, bytes]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.request("POST", done.path, done.raw, {**done.headers, "authorization": "Bearer token"})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body


WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CLIENTS: dict[str, dict[str, Any]] = {
    "anthropic": {
        "model": MODEL,
        "max_tokens": 99,
        "system": "Be brief.",
        "tools": [{"name": "get_weather", "input_schema": WEATHER}],
        "messages": [{"role": "user", "content": 'Call get_weather {"city": "Paris"}'}],
    },
    "openai": {
        "model": MODEL,
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Call get_weather please"},
        ],
    },
}


def reply_parts(client: str, body: dict[str, Any]) -> tuple[str, list[tuple[str, str, Any]], Any]:
    """A whole reply's text, calls, and the message to echo."""
    if client == "anthropic":
        text = "".join(block.get("text", "") for block in body["content"])
        calls = [
            (block["id"], block["name"], block["input"]) for block in body["content"] if block["type"] == "tool_use"
        ]
        return text, calls, {"role": "assistant", "content": body["content"]}
    message = body["choices"][0]["message"]
    calls = [
        (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
        for c in message.get("tool_calls") or ()
    ]
    return message.get("content") or "", calls, message


def answered(client: str, id_: str, text: str) -> dict[str, Any]:
    if client == "anthropic":
        return {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": id_, "content": [{"type": "text", "text": text}]}],
        }
    return {"role": "tool", "tool_call_id": id_, "content": [{"type": "text", "text": text}]}


@pytest.mark.parametrize("client", sorted(CLIENTS))
def test_a_whole_tool_loop_over_http_with_no_refusal(client: str) -> None:
    """Client dialect, Kiro on the wire, client dialect: the call arrives, its result is quoted in the response."""
    body = CLIENTS[client]
    with running_simulator(dialect="kiro", profile="paranoid") as sim:
        done = dragoman.translate_request(body, source=client, target="kiro")
        status, data = post(sim.url, done)
        assert status == 200, data
        reply = dragoman.translate_reply(data, source="kiro", target=client, request=done)
        _, ((id_, name, arguments),), echo = reply_parts(client, reply.body)
        assert name == "get_weather"
        assert isinstance(arguments["city"], str)

        more = {**body, "messages": [*body["messages"], echo, answered(client, id_, "18 degrees")]}
        again = dragoman.translate_request(more, source=client, target="kiro")
        status, data = post(sim.url, again)
        assert status == 200, data
        stream = dragoman.stream_translator(source="kiro", target=client, request=again)
        out = b"".join(stream.feed(data[at : at + 7]) for at in range(0, len(data), 7)) + stream.close()
        assert stream.error is None
        whole = dragoman.translate_reply(data, source="kiro", target=client, request=again)
        text, calls, _ = reply_parts(client, whole.body)
        assert ("18 degrees" in text, calls) == (True, [])
        assert out.endswith((b'event: message_stop\ndata: {"type":"message_stop"}\n\n', b"data: [DONE]\n\n"))
        assert len(sim.requests) == 2
