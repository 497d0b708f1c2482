"""L32: the default `sim kiro` refuses what documents 000, 002 and 003 saw refused, and takes what they saw taken."""

from __future__ import annotations

import http.client
from typing import Any, get_args

import pytest

import dragoman
from dragoman.simulator import running_simulator
from dragoman.simulator.kiro.rules import first_refusal
from dragoman.simulator.kiro.verdict import Profile
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests.unit.simulator.kiro_cases import assistant, body, called, result, spec, use, user

MOCK_ARN = "arn:aws:codewhisperer:us-east-1:699475941385:profile/test"  # document 000, mock token storage
MOCK_TOKEN = "test_access_token"

SEEN_REFUSED: list[tuple[str, Any]] = [
    ("000: an empty result text", called(result(text=""))),
    ("000: a result without content", called(result(content=[]))),
    ("000: a result whose content is missing", called({"toolUseId": "t1", "status": "success"})),
    ("000: a result without its call's id", called(result(id_=""))),
    ("000: a status that is none", called(result(status="maybe"))),
    ("002: history that ends with a user turn", body(history=[user(), assistant(), user()])),
    ("002: history of one user turn", body(history=[user()])),
    ("002: a current message of the assistant", body(assistant())),
    ("002: a call without input", called(uses=[{"toolUseId": "t1", "name": "get_weather"}])),
    ("002: a call whose input is null", called(uses=[use(input=None)])),
    ("002: a call whose input is text", called(uses=[use(input="{}")])),
    ("002: a schema that is null", body(user(tools=[{"toolSpecification": {"name": "f", "description": "d", "inputSchema": {"json": None}}}]))),
    ("002: an inputSchema that is null", body(user(tools=[{"toolSpecification": {"name": "f", "description": "d", "inputSchema": None}}]))),
    ("003: u, u, a, u", body(history=[user(), user(), assistant(), user()])),
    ("003: u, u, a", body(history=[user(), user(), assistant()])),
    ("003: u, a, a", body(history=[user(), assistant(), assistant()])),
    ("003: a, u", body(history=[assistant(), user()])),
]  # fmt: skip

TAKEN: list[tuple[str, Any]] = [
    ("000: a result", called()),
    ("000: an error result", called(result(status="error"))),
    ("002: results beside their sentence", called(content="Tool results provided.")),
    ("002: no history", body()),
    ("003: placeholders", body(history=[user(), assistant(), user(), assistant("Hi!"), user(), assistant()])),
    ("002: a tool", body(user(tools=[spec()]))),
]


def ask(url: str, payload: Any, arn: str = MOCK_ARN) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    headers = {"content-type": "application/json", "authorization": f"Bearer {MOCK_TOKEN}"}
    connection.request("POST", "/generateAssistantResponse", jsonio.encode({**payload, "profileArn": arn}), headers)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, jsonio.decode(data) if answer.status != 200 else None


@pytest.mark.parametrize(("name", "payload"), SEEN_REFUSED, ids=[name for name, _ in SEEN_REFUSED])
def test_l32_the_default_simulator_refuses_what_the_documents_saw_refused(name: str, payload: Any) -> None:
    with running_simulator("kiro") as simulator:
        status, answer = ask(simulator.url, payload)
    assert status == 400, name
    assert answer["message"]
    headers = (("content-type", "application/json"), ("authorization", "Bearer x"))
    for profile in ("observed", "paranoid"):
        asked = HttpRequest("POST", "/generateAssistantResponse", headers=headers, body=jsonio.encode(payload))
        assert first_refusal(asked, profile) is not None


@pytest.mark.parametrize(("name", "payload"), TAKEN, ids=[name for name, _ in TAKEN])
@pytest.mark.parametrize("profile", get_args(Profile))
def test_l32_the_mock_token_of_document_000_works_with_every_profile(name: str, payload: Any, profile: str) -> None:
    with running_simulator("kiro", profile=profile) as simulator:
        assert ask(simulator.url, payload) == (200, None), name


@pytest.mark.parametrize("arn", ["", "test", "arn:aws:codewhisperer:us-east-1:699475941385:profile/", "arn:aws:s3:::x"])
def test_what_is_no_arn_of_a_profile_is_refused_still(arn: str) -> None:
    with running_simulator("kiro") as simulator:
        assert ask(simulator.url, body(), arn)[0] == 400


@pytest.mark.parametrize("words", ["x", "x" * 6_300], ids=["short", "30 KB"])
def test_what_dragoman_makes_of_the_turns_of_document_003_is_taken(words: str) -> None:
    turns = [{"role": role, "content": words} for role in ("user", "user", "assistant", "user", "user")]
    asked = {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": turns}
    done = dragoman.translate_request(asked, source="anthropic", target="kiro")
    kinds = [next(iter(entry)) for entry in done.body["conversationState"]["history"]]
    assert kinds == ["userInputMessage", "assistantResponseMessage"] * 3
    with running_simulator("kiro") as simulator:
        assert ask(simulator.url, done.body)[0] == 200
