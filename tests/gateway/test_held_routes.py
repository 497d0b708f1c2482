"""L2, L15: a request that names what a service stores goes only to the upstream that stores it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator import running_simulator
from tests.gateway.house import KEY, House, house, messages, upstream
from tests.gateway.jobs import Service, running_service

HELD_ROUTE = '[[routes]]\nmatch = "both"\nupstream = "one"\nmodel = "{0}"\nfallbacks = ["two/{0}"]\n'
STORED: list[Any] = [
    {"previous_response_id": "resp_x"},
    {"conversation": "conv_1"},
    {"input": [{"type": "item_reference", "id": "msg_x"}]},
    {"prompt": {"id": "pmpt_1"}},
]


@pytest.fixture
def services() -> Iterator[tuple[Service, Service]]:
    with running_service("one") as one, running_service("two") as two:
        yield one, two


@pytest.fixture
def both(services: tuple[Service, Service], tmp_path: Path) -> Iterator[House]:
    one, two = services
    limits = "limits = { breaker = false }"
    text = upstream("one", "responses", one.url, limits) + upstream("two", "responses", two.url, limits)
    with house(text + HELD_ROUTE.format("m"), tmp_path) as running:
        yield running


def ask(both: House, **more: Any) -> tuple[int, dict[str, str], bytes]:
    return both.ask("/v1/responses", {"model": "both", "input": "x", **more})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("more", STORED, ids=["previous", "conversation", "item", "prompt"])
def test_l2_what_a_service_stores_is_not_sent_to_the_next_target(
    both: House, services: tuple[Service, Service], more: Any, stream: bool
) -> None:
    one, two = services
    one.trouble = [503] * 5
    status, _, _ = ask(both, **more, stream=stream)
    assert status == 503
    assert one.bodies and not two.bodies


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_l2_a_response_is_continued_by_the_target_that_made_it(
    both: House, services: tuple[Service, Service], stream: bool
) -> None:
    one, two = services
    one.trouble = [503] * 3
    _, _, body = ask(both, stream=stream)
    made = next(iter(two.jobs))
    assert made.encode() in body
    one.trouble, one.bodies[:] = [], []
    status, headers, _ = ask(both, previous_response_id=made)
    assert (status, headers["dragoman-upstream"]) == (200, "two")
    assert not one.bodies and two.bodies[-1]["previous_response_id"] == made


def test_l2_a_target_that_does_not_have_the_response_is_asked_before_the_next(
    both: House, services: tuple[Service, Service]
) -> None:
    """The gateway has forgotten who made it, for example after a restart."""
    one, two = services
    one.trouble = ["unknown"]
    status, headers, _ = ask(both, previous_response_id="resp_old")
    assert (status, headers["dragoman-upstream"]) == (200, "two")
    one.trouble, two.trouble = ["unknown"], ["unknown"]
    status, _, body = ask(both, previous_response_id="resp_old")
    assert (status, json.loads(body)["error"]["code"]) == (400, "previous_response_not_found")


def test_l2_a_response_that_no_target_of_the_route_holds_is_refused(services: Any, tmp_path: Path) -> None:
    one, two = services
    text = upstream("one", "responses", one.url) + upstream("two", "responses", two.url)
    with house(text, tmp_path) as both:
        _, _, body = both.ask("/v1/responses", {"model": "one/m", "input": "x"})
        more = {"previous_response_id": json.loads(body)["id"]}
        status, _, body = both.ask("/v1/responses", {"model": "two/m", "input": "x", **more})
        assert (status, json.loads(body)["error"]["code"]) == (400, "previous_response_not_found")
        assert not two.bodies


def test_l2_two_names_of_one_service_continue_each_other(services: Any, tmp_path: Path) -> None:
    one, _ = services
    text = upstream("one", "responses", one.url) + upstream("again", "responses", one.url)
    with house(text, tmp_path) as both:
        _, _, body = both.ask("/v1/responses", {"model": "one/m", "input": "x"})
        more = {"previous_response_id": json.loads(body)["id"]}
        assert both.ask("/v1/responses", {"model": "again/m", "input": "x", **more})[0] == 200


def test_s9_a_credential_beside_the_key_tells_no_clients_apart(both: House, services: tuple[Service, Service]) -> None:
    """S9: a response belongs to the key that was proven; other headers of a client prove nothing."""
    one, two = services
    asked = {"model": "both", "input": "x"}
    _, _, body = both.ask("/v1/responses", asked, authorization="Bearer of-ann")
    more = {**asked, "previous_response_id": json.loads(body)["id"]}
    assert both.ask("/v1/responses", more, authorization="Bearer of-bob")[0] == 200
    assert len(one.bodies) == 2 and not two.bodies


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_l2_a_thread_is_continued_with_the_credential_that_began_it(stream: bool, tmp_path: Path) -> None:
    """Keys of several accounts: a thread belongs to one of them."""
    with running_simulator("anthropic", profile="strict") as one, running_simulator("anthropic") as two:
        keys = 'key = ["first-secret-of-it", "second-secret-of-it", "third-secret-of-it"]'
        text = f'[upstreams.one]\ndialect = "anthropic"\nbase_url = "{one.url}"\n{keys}\n'
        text += upstream("two", "anthropic", two.url) + HELD_ROUTE.format("claude-sonnet-4-5")
        with house(text, tmp_path) as both:
            for number in range(3):
                begin = messages("both", f"question {number}", thread={"type": "create"}, stream=stream)
                _, _, body = both.ask("/v1/messages", begin)
                answer = body.partition(b'"id":"')[2].partition(b'"')[0].decode()
                thread = {"type": "continue", "previous_message_id": answer}
                assert both.ask("/v1/messages", messages("both", thread=thread, stream=stream))[0] == 200
                first, second = one.requests[-2:]
                assert first.request.header("x-api-key") == second.request.header("x-api-key") != KEY
        assert not two.requests


@pytest.mark.parametrize("body", [b"<html>", b"", b'{"id": '], ids=["page", "empty", "half"])
def test_l15_what_is_not_json_about_a_stored_response_is_a_502(services: Any, tmp_path: Path, body: bytes) -> None:
    one, _ = services
    with house(upstream("one", "responses", one.url), tmp_path) as both:
        one.reads = body
        status, _, told = both.ask("/v1/responses/resp_old", method="GET")
        assert status == 502 and "resp_old" in json.loads(told)["error"]["message"]


def test_l15_with_repair_a_response_is_deleted_here_and_by_the_upstream(services: Any, tmp_path: Path) -> None:
    one, _ = services
    with house(upstream("one", "responses", one.url, "translation = { repair = true }"), tmp_path) as both:
        _, _, body = both.ask("/v1/responses", {"model": "m", "input": "x"})
        answer = json.loads(body)["id"]
        assert both.ask(f"/v1/responses/{answer}/input_items", method="GET")[0] == 200
        assert both.ask(f"/v1/responses/{answer}", method="DELETE")[0] == 200
        assert not one.jobs and one.count("DELETE") == 1
        assert both.ask(f"/v1/responses/{answer}", method="GET")[0] == 404
