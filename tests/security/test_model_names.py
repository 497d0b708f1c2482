"""S10: a model's name never makes a path lead elsewhere."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

import dragoman.dialects as registry
from dragoman.dialects.base import Call
from dragoman.errors import ClientFault, MalformedRequest
from dragoman.simulator import running_simulator
from dragoman.wire.http import HttpRequest, name_problem
from tests.gateway.house import chat, house, messages, upstream

BAD = (
    *("..", ".", "a/..", "../a", "a/../b", "./a", "..;x", "%2e%2e", "%2E.", "a%2f..%2fb", "%252e%252e"),
    *("a\\..\\b", "a\\b", "a//b", "/a", "a/", "a?b", "a#b", "a%3Fb", "a%00b", "a\nb", "a\x7fb", "a%0d%0ab"),
)
GOOD = (
    *("anthropic.claude-3-5-sonnet-20241022-v2:0", "accounts/fireworks/models/x", "publishers/google/models/y@001"),
    *("arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.meta.llama3", "a..b", "...", "v1.5", "größe", "a b"),
    *("deepseek/deepseek-r1:free", "claude-opus-4[1m]", "50%", ""),
)
NAMED_IN_PATHS = ("bedrock", "bedrock.invoke", "gemini")


@pytest.mark.parametrize("name", BAD)
def test_s10_such_a_name_is_a_problem(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize("name", GOOD)
def test_ordinary_names_are_none(name: str) -> None:
    assert name_problem(name) == ""


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("dialect", NAMED_IN_PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_s10_no_binding_writes_such_a_path(dialect: str, stream: bool, name: str) -> None:
    binding = registry.get(dialect).binding
    for operation in ("generate", "count"):
        with pytest.raises(MalformedRequest) as refused:
            binding.wrap(Call(operation, name, stream, {}))
        assert refused.value.at == "model"


@pytest.mark.parametrize(
    "path", ["/model/{}/converse", "/model/{}/converse-stream", "/v1beta/models/{}:generateContent"]
)
@pytest.mark.parametrize("name", ["..", "a/..", "a/../b", "a\\b", "a?b", "a\nb"])
def test_s10_a_client_whose_path_has_such_a_name_gets_400(path: str, name: str, tmp_path: Path) -> None:
    with running_simulator("anthropic") as simulator:
        with house(upstream("one", "anthropic", simulator.url), tmp_path) as home:
            status, _, body = home.ask(path.format(quote(name, safe="")), {})
            assert (status, b"model" in body) == (400, True), body
        assert simulator.total == 0


@pytest.mark.parametrize("dialect", ["bedrock", "gemini"])
@pytest.mark.parametrize("model", ["b/..", "b/.", "b/x/../y", "b/%2e%2e", "b/x\\y", "b/x?y", "b/x//y"])
def test_s10_a_name_in_a_body_is_refused_before_anything_is_sent(dialect: str, model: str, tmp_path: Path) -> None:
    """S10: `b/..` became `POST /model/../converse`."""
    with running_simulator(dialect) as simulator:
        with house(upstream("b", dialect, simulator.url), tmp_path) as home:
            for path, body in (
                ("/v1/messages", messages(model)),
                ("/v1/messages", messages(model, stream=True)),
                ("/v1/chat/completions", chat(model)),
                ("/v1/responses", {"model": model, "input": "hello"}),
                ("/v1/messages/count_tokens", messages(model)),
            ):
                status, _, answer = home.ask(path, body)
                assert (status, b"model" in answer) == (400, True), answer
            assert home.running.gateway.breaker.describe() == []
        assert simulator.total == 0


@pytest.mark.parametrize("name", ["resp_..", "..", "%2e%2e", "a%2f..", "a?b=1", "a.b"])
def test_s10_no_id_of_a_stored_answer_leads_elsewhere(name: str) -> None:
    binding = registry.get("responses").binding
    for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel")):
        path = f"/v1/responses/{name}{end}"
        with pytest.raises(ClientFault) as refused:
            binding.match(HttpRequest(method, path))
        assert refused.value.fault.status == 404


def test_s10_a_key_in_the_query_of_a_stored_answer_is_not_passed_on() -> None:
    binding = registry.get("responses").binding
    call = binding.match(HttpRequest("GET", "/v1/responses/resp_1", "stream=true&key=secret&%6bey=secret"))
    assert call is not None and binding.wrap(call).query == "stream=true"
