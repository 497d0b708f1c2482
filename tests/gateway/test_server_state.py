"""State stored by a service, used through the gateway with the official SDK: jobs, stored responses, item references."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from dragoman.simulator import Simulator, running_simulator
from tests.gateway.background_service import TEXT, BackgroundService, events, running_service
from tests.gateway.harness import KEY, TOOL_SCHEMA, GatewayHarness, anthropic_body, start_gateway, upstream_config

TOOLS: Any = [{"type": "function", "name": "get_weather", "description": "The weather", "parameters": TOOL_SCHEMA}]
QUESTION = 'Call get_weather {"city": "Paris"}'
ROUTE = '[[routes]]\nmatch = "to-{0}"\nupstream = "{0}"\nmodel = "gpt-5"\n'


@pytest.fixture
def one() -> Iterator[BackgroundService]:
    with running_service("one") as service:
        yield service


@pytest.fixture
def two() -> Iterator[BackgroundService]:
    with running_service("two") as service:
        yield service


@pytest.fixture
def chat() -> Iterator[Simulator]:
    with running_simulator("openai", profile="strict") as simulator:
        yield simulator


@pytest.fixture
def harness(
    one: BackgroundService, two: BackgroundService, chat: Simulator, tmp_path: Path
) -> Iterator[GatewayHarness]:
    text = upstream_config("one", "responses", one.url) + upstream_config(
        "two", "responses", two.url, "translation = { repair = true }"
    )
    text += upstream_config("chat", "openai", chat.url) + "".join(map(ROUTE.format, ("one", "two", "chat")))
    with start_gateway(text, tmp_path) as running:
        yield running


@pytest.fixture
def client(harness: GatewayHarness) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key=KEY, base_url=f"{harness.url}/v1", max_retries=0) as client:
        yield client


# --- background jobs


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_job_is_started_once_and_later_requests_go_to_its_upstream(
    client: openai.OpenAI, one: BackgroundService, two: BackgroundService, name: str
) -> None:
    service, other = (one, two) if name == "one" else (two, one)
    started = client.responses.create(model=f"to-{name}", input="work", background=True, max_output_tokens=5)
    assert started.status == "queued" and started.id in service.jobs
    assert service.count("POST") == 1 and service.bodies[0]["background"] is True
    assert client.responses.retrieve(started.id).status == "queued"
    service.jobs[started.id] = "completed"
    done = client.responses.retrieve(started.id, include=["reasoning.encrypted_content"])
    assert (done.status, done.output_text) == ("completed", "".join(TEXT))
    assert client.responses.input_items.list(started.id, limit=3).data == []
    assert client.responses.cancel(started.id).status == "cancelled"
    client.responses.delete(started.id)
    path = f"/v1/responses/{started.id}"
    assert [(method, where) for method, where, _, _ in service.requests] == [
        ("POST", "/v1/responses"),
        ("GET", path),
        ("GET", path),
        ("GET", f"{path}/input_items"),
        ("POST", f"{path}/cancel"),
        ("DELETE", path),
    ]
    assert "include" in service.requests[2][2] and "limit=3" in service.requests[3][2]
    assert not other.requests


def test_a_failed_job_is_returned_unchanged(client: openai.OpenAI, one: BackgroundService) -> None:
    started = client.responses.create(model="to-one", input="work", background=True)
    one.jobs[started.id] = "failed"
    read = client.responses.retrieve(started.id)
    assert read.status == "failed" and read.error is not None and read.error.message == "it broke"


@pytest.mark.parametrize("name", ["one", "two"])
def test_the_stream_of_a_job_resumes_where_it_broke(
    client: openai.OpenAI, one: BackgroundService, two: BackgroundService, name: str
) -> None:
    service = one if name == "one" else two
    service.cut_after = 5
    seen: list[Any] = []
    for event in client.responses.create(model=f"to-{name}", input="work", background=True, stream=True):
        seen.append(event)
    assert seen[-1].type == "error" and "before its last event" in seen[-1].message
    seen.pop()
    assert [event.sequence_number for event in seen] == [0, 1, 2, 3, 4, 5]
    job = seen[0].response.id
    assert seen[0].response.status == "queued"
    for event in client.responses.retrieve(job, stream=True, starting_after=5):
        seen.append(event)
    assert [event.type for event in seen] == [event["type"] for event in events(job)]
    assert seen[-1].response.output_text == "".join(TEXT)
    assert [method for method, *_ in service.requests] == ["POST", "GET"]


def test_a_resumed_stream_that_breaks_ends_with_an_error(client: openai.OpenAI, one: BackgroundService) -> None:
    job = client.responses.create(model="to-one", input="work", background=True).id
    one.cut_after = 3
    seen = list(client.responses.retrieve(job, stream=True))
    assert [event.type for event in seen[-2:]] == ["response.output_item.added", "error"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("failure", ["reset", "garbage", 500, 502, 504])
def test_a_failure_that_may_have_started_the_job_is_not_retried(
    harness: GatewayHarness, one: BackgroundService, failure: Any, stream: bool
) -> None:
    one.failures = [failure]
    status, _, body = harness.request(
        "/v1/responses", {"model": "to-one", "input": "x", "background": True, "stream": stream}
    )
    assert one.count("POST") == 1
    assert status >= 500 or (stream and b"response.failed" in body) or b'"error"' in body


@pytest.mark.parametrize("failure", [429, 503])
def test_a_refusal_that_started_nothing_is_retried(
    harness: GatewayHarness, one: BackgroundService, failure: int
) -> None:
    one.failures = [failure]
    status, _, body = harness.request("/v1/responses", {"model": "to-one", "input": "x", "background": True})
    assert (status, json.loads(body)["status"]) == (200, "queued")
    assert one.count("POST") == 2 and len(one.jobs) == 1


def test_a_job_for_another_dialect_is_refused_before_anything_is_sent(client: openai.OpenAI, chat: Simulator) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="to-chat", input="x", background=True, stream=stream)
        assert refused.value.param == "background"
    assert chat.total == 0


# --- which upstream has a stored response


def test_an_unknown_id_is_a_404_if_several_upstreams_might_have_it(
    harness: GatewayHarness, one: BackgroundService, two: BackgroundService
) -> None:
    for method, path in (
        ("GET", "resp_x"),
        ("DELETE", "resp_x"),
        ("POST", "resp_x/cancel"),
        ("GET", "resp_x/input_items"),
    ):
        status, _, body = harness.request(f"/v1/responses/{path}", method=method)
        error = json.loads(body)["error"]
        assert (status, error["type"], error["code"]) == (404, "invalid_request_error", "response_not_found")
    assert not one.requests and not two.requests


def test_an_unknown_id_goes_to_the_only_upstream_that_might_have_it(one: BackgroundService, tmp_path: Path) -> None:
    one.jobs["resp_old"] = "completed"
    keys = 'key = ["first-secret-of-it", "second-secret-of-it"]'
    text = f'[upstreams.one]\ndialect = "responses"\nbase_url = "{one.url}"\n{keys}\n'
    with start_gateway(text, tmp_path) as harness:
        status, headers, body = harness.request("/v1/responses/resp_old", method="GET")
        assert (status, json.loads(body)["status"], headers["dragoman-upstream"]) == (200, "completed", "one")
        status, _, body = harness.request("/v1/responses/resp_none", method="GET")
        assert (status, json.loads(body)["error"]["message"]) == (404, "Response with id 'resp_none' not found.")
        assert {key for *_, key in one.requests[-2:]} == {"first-secret-of-it", "second-secret-of-it"}


def test_requests_about_a_response_use_the_key_that_created_it(one: BackgroundService, tmp_path: Path) -> None:
    keys = 'key = ["first-secret-of-it", "second-secret-of-it", "third-secret-of-it"]'
    text = f'[upstreams.one]\ndialect = "responses"\nbase_url = "{one.url}"\n{keys}\n'
    with start_gateway(text, tmp_path) as harness:
        for _ in range(4):
            _, _, body = harness.request("/v1/responses", {"model": "m", "input": "x"})
            response = json.loads(body)["id"]
            key = one.requests[-1][3]
            harness.request("/v1/responses", {"model": "m", "input": "y", "previous_response_id": response})
            harness.request(f"/v1/responses/{response}", method="GET")
            assert [each[3] for each in one.requests[-2:]] == [key, key]


@pytest.mark.parametrize("path", ["..%2f..%2fv1%2ffiles", "a/b/c", "resp_1/rate", "%00", "x" * 600])
def test_no_other_path_of_the_upstream_can_be_reached(
    harness: GatewayHarness, one: BackgroundService, two: BackgroundService, path: str
) -> None:
    assert harness.request(f"/v1/responses/{path}", method="GET")[0] in (400, 404)
    assert not one.requests and not two.requests


# --- stored by the gateway


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_response_stored_by_the_gateway_is_read_and_deleted_there(
    client: openai.OpenAI, chat: Simulator, stream: bool
) -> None:
    if stream:
        with client.responses.stream(model="to-chat", input="hello") as opened:
            response: Any = opened.get_final_response()
    else:
        response = client.responses.create(model="to-chat", input="hello")
    again = client.responses.retrieve(response.id)
    assert again.output_text == response.output_text and again.usage == response.usage
    assert [item.id for item in again.output] == [item.id for item in response.output]
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(response.id)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.retrieve(response.id, stream=True)
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model="to-chat", input="go on", previous_response_id=response.id)
    assert chat.total == 1


# --- references to items


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_items_of_a_response_stored_by_the_gateway_are_found_by_id(
    client: openai.OpenAI, chat: Simulator, stream: bool
) -> None:
    parameters: Any = {"model": "to-chat", "tools": TOOLS}
    if stream:
        with client.responses.stream(**parameters, input=QUESTION) as opened:
            first: Any = opened.get_final_response()
    else:
        first = client.responses.create(**parameters, input=QUESTION)
    [call] = [item for item in first.output if item.type == "function_call"]
    items: Any = [
        {"role": "user", "content": QUESTION},
        *({"type": "item_reference", "id": item.id} for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"},
    ]
    last = client.responses.create(**parameters, input=items)
    assert "18 degrees" in last.output_text
    sent: Any = chat.requests[-1].json
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city":"Paris"}' or json.loads(
        sent["messages"][1]["tool_calls"][0]["function"]["arguments"]
    ) == {"city": "Paris"}


def test_an_unknown_item_is_refused_and_named(client: openai.OpenAI, chat: Simulator) -> None:
    items: Any = [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_lost"}]
    with pytest.raises(openai.BadRequestError, match="msg_lost") as refused:
        client.responses.create(model="to-chat", input=items)
    assert refused.value.param == "input[1]"
    assert chat.total == 0


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize(
    "more",
    [{"previous_response_id": "resp_0"}, {"conversation": "conv_1"}, {"conversation": {"id": "conv_1"}}],
    ids=["previous", "conversation", "object"],
)
def test_in_the_same_dialect_results_stay_results(
    client: openai.OpenAI, one: BackgroundService, two: BackgroundService, name: str, more: Any
) -> None:
    output: Any = [{"type": "function_call_output", "call_id": "call_1", "output": "18 degrees"}]
    client.responses.create(model=f"to-{name}", input=output, **more)
    service = one if name == "one" else two
    assert service.bodies[-1]["input"] == output
    assert more.items() <= service.bodies[-1].items()


def test_a_response_to_history_stored_upstream_is_not_stored_by_the_gateway(
    client: openai.OpenAI, two: BackgroundService
) -> None:
    """With `repair` the gateway also stores responses of the same dialect, but never half of a conversation."""
    first = client.responses.create(model="to-two", input="x", previous_response_id="resp_theirs")
    client.responses.create(model="to-two", input="y", previous_response_id=first.id)
    assert two.bodies[-1]["previous_response_id"] == first.id


# --- WebSockets


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses/", "/responses"])
@pytest.mark.parametrize("offer", ["websocket", "WebSocket"])
def test_a_websocket_upgrade_is_answered_with_use_http(harness: GatewayHarness, path: str, offer: str) -> None:
    headers = {"upgrade": offer, "connection": "Upgrade", "sec_websocket_version": "13"}
    status, response_headers, body = harness.request(path, method="GET", **headers)
    error = json.loads(body)["error"]
    assert (status, error["type"], response_headers["upgrade"]) == (426, "invalid_request_error", "HTTP/1.1")


@pytest.mark.parametrize(
    ("method", "path", "offer"),
    [("GET", "/v1/responses", "h2c"), ("GET", "/v1/models", "websocket"), ("POST", "/v1/responses", "websocket")],
)
def test_other_upgrades_are_refused_as_before(harness: GatewayHarness, method: str, path: str, offer: str) -> None:
    assert harness.request(path, method=method, upgrade=offer, connection="Upgrade")[0] == 400


# --- a request with a stored id goes only to the upstream that stores it

ROUTE_WITH_FALLBACK = '[[routes]]\nmatch = "both"\nupstream = "one"\nmodel = "{0}"\nfallbacks = ["two/{0}"]\n'
STORED: list[Any] = [
    {"previous_response_id": "resp_x"},
    {"conversation": "conv_1"},
    {"input": [{"type": "item_reference", "id": "msg_x"}]},
    {"prompt": {"id": "pmpt_1"}},
]


@pytest.fixture
def services() -> Iterator[tuple[BackgroundService, BackgroundService]]:
    with running_service("one") as one, running_service("two") as two:
        yield one, two


@pytest.fixture
def both(services: tuple[BackgroundService, BackgroundService], tmp_path: Path) -> Iterator[GatewayHarness]:
    one, two = services
    limits = "limits = { breaker = false }"
    text = upstream_config("one", "responses", one.url, limits) + upstream_config("two", "responses", two.url, limits)
    with start_gateway(text + ROUTE_WITH_FALLBACK.format("m"), tmp_path) as running:
        yield running


def ask(both: GatewayHarness, **more: Any) -> tuple[int, dict[str, str], bytes]:
    return both.request("/v1/responses", {"model": "both", "input": "x", **more})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("more", STORED, ids=["previous", "conversation", "item", "prompt"])
def test_a_request_with_a_stored_id_has_no_fallback(
    both: GatewayHarness, services: tuple[BackgroundService, BackgroundService], more: Any, stream: bool
) -> None:
    one, two = services
    one.failures = [503] * 5
    status, _, _ = ask(both, **more, stream=stream)
    assert status == 503
    assert one.bodies and not two.bodies


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_response_is_continued_by_the_target_that_created_it(
    both: GatewayHarness, services: tuple[BackgroundService, BackgroundService], stream: bool
) -> None:
    one, two = services
    one.failures = [503] * 3
    _, _, body = ask(both, stream=stream)
    response_id = next(iter(two.jobs))
    assert response_id.encode() in body
    one.failures, one.bodies[:] = [], []
    status, headers, _ = ask(both, previous_response_id=response_id)
    assert (status, headers["dragoman-upstream"]) == (200, "two")
    assert not one.bodies and two.bodies[-1]["previous_response_id"] == response_id


def test_the_next_target_is_tried_if_the_first_lacks_the_response(
    both: GatewayHarness, services: tuple[BackgroundService, BackgroundService]
) -> None:
    """The gateway does not know the upstream of the response, for example after a restart."""
    one, two = services
    one.failures = ["unknown"]
    status, headers, _ = ask(both, previous_response_id="resp_old")
    assert (status, headers["dragoman-upstream"]) == (200, "two")
    one.failures, two.failures = ["unknown"], ["unknown"]
    status, _, body = ask(both, previous_response_id="resp_old")
    assert (status, json.loads(body)["error"]["code"]) == (400, "previous_response_not_found")


def test_a_response_that_no_target_of_the_route_holds_is_refused(services: Any, tmp_path: Path) -> None:
    one, two = services
    text = upstream_config("one", "responses", one.url) + upstream_config("two", "responses", two.url)
    with start_gateway(text, tmp_path) as both:
        _, _, body = both.request("/v1/responses", {"model": "one/m", "input": "x"})
        more = {"previous_response_id": json.loads(body)["id"]}
        status, _, body = both.request("/v1/responses", {"model": "two/m", "input": "x", **more})
        assert (status, json.loads(body)["error"]["code"]) == (400, "previous_response_not_found")
        assert not two.bodies


def test_two_names_of_one_service_continue_each_other(services: Any, tmp_path: Path) -> None:
    one, _ = services
    text = upstream_config("one", "responses", one.url) + upstream_config("again", "responses", one.url)
    with start_gateway(text, tmp_path) as both:
        _, _, body = both.request("/v1/responses", {"model": "one/m", "input": "x"})
        more = {"previous_response_id": json.loads(body)["id"]}
        assert both.request("/v1/responses", {"model": "again/m", "input": "x", **more})[0] == 200


def test_other_credentials_of_a_client_do_not_change_the_owner(
    both: GatewayHarness, services: tuple[BackgroundService, BackgroundService]
) -> None:
    """A response belongs to the verified key; other headers of a client are ignored."""
    one, two = services
    parameters = {"model": "both", "input": "x"}
    _, _, body = both.request("/v1/responses", parameters, authorization="Bearer of-ann")
    more = {**parameters, "previous_response_id": json.loads(body)["id"]}
    assert both.request("/v1/responses", more, authorization="Bearer of-bob")[0] == 200
    assert len(one.bodies) == 2 and not two.bodies


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_conversation_continues_with_the_credential_that_started_it(stream: bool, tmp_path: Path) -> None:
    """Each key is another account, and a conversation belongs to one account."""
    with running_simulator("anthropic", profile="strict") as one, running_simulator("anthropic") as two:
        keys = 'key = ["first-secret-of-it", "second-secret-of-it", "third-secret-of-it"]'
        text = f'[upstreams.one]\ndialect = "anthropic"\nbase_url = "{one.url}"\n{keys}\n'
        text += upstream_config("two", "anthropic", two.url) + ROUTE_WITH_FALLBACK.format("claude-sonnet-4-5")
        with start_gateway(text, tmp_path) as both:
            for number in range(3):
                begin = anthropic_body("both", f"question {number}", thread={"type": "create"}, stream=stream)
                _, _, body = both.request("/v1/messages", begin)
                response = body.partition(b'"id":"')[2].partition(b'"')[0].decode()
                thread = {"type": "continue", "previous_message_id": response}
                assert both.request("/v1/messages", anthropic_body("both", thread=thread, stream=stream))[0] == 200
                first, second = one.requests[-2:]
                assert first.request.header("x-api-key") == second.request.header("x-api-key") != KEY
        assert not two.requests


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"id": '], ids=["page", "empty", "half"])
def test_an_invalid_body_for_a_stored_response_is_a_502(services: Any, tmp_path: Path, body: bytes) -> None:
    one, _ = services
    with start_gateway(upstream_config("one", "responses", one.url), tmp_path) as both:
        one.reads = body
        status, _, opened = both.request("/v1/responses/resp_old", method="GET")
        assert status == 502 and "resp_old" in json.loads(opened)["error"]["message"]


def test_with_repair_a_response_is_deleted_in_the_gateway_and_upstream(services: Any, tmp_path: Path) -> None:
    one, _ = services
    with start_gateway(
        upstream_config("one", "responses", one.url, "translation = { repair = true }"), tmp_path
    ) as both:
        _, _, body = both.request("/v1/responses", {"model": "m", "input": "x"})
        response = json.loads(body)["id"]
        assert both.request(f"/v1/responses/{response}/input_items", method="GET")[0] == 200
        assert both.request(f"/v1/responses/{response}", method="DELETE")[0] == 200
        assert not one.jobs and one.count("DELETE") == 1
        assert both.request(f"/v1/responses/{response}", method="GET")[0] == 404
