"""Several workers act as one gateway: earlier responses are found by each of them, and cooldowns apply in all."""

from __future__ import annotations

import http.client
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.gateway import admin
from dragoman.gateway.response_store import PickledConversation
from dragoman.gateway.server_workers import socket_of
from dragoman.gateway.sibling_workers import sibling_path
from dragoman.simulator import Simulator, parse_script, running_simulator
from tests.gateway.background_service import BackgroundService, running_service
from tests.gateway.harness import TIMEOUT, TOOL_SCHEMA, upstream_config, wait_for_refusal, wait_until
from tests.gateway.test_accounts import Accounts
from tests.gateway.worker_harness import WorkerGateway, WorkerResponse, start_workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs SO_REUSEPORT")
TOOLS: Any = [{"type": "function", "name": "get_weather", "description": "The weather", "parameters": TOOL_SCHEMA}]
QUESTION = 'Call get_weather {"city": "Paris"}'
LONG = "word " * 300_000  # more than 1 MiB
KEYS = 'key = ["first-secret-of-it", "second-secret-of-it", "third-secret-of-it"]'


@pytest.fixture(scope="module")
def chat() -> Iterator[Simulator]:
    with running_simulator("openai", profile="strict") as simulator:
        yield simulator


@pytest.fixture(scope="module")
def service() -> Iterator[BackgroundService]:
    with running_service("one") as service:
        yield service


@pytest.fixture(scope="module")
def gateway(chat: Simulator, service: BackgroundService) -> Iterator[WorkerGateway]:
    text = upstream_config("chat", "openai", chat.url)
    text += f'[upstreams.one]\ndialect = "responses"\nbase_url = "{service.url}"\n{KEYS}\n'
    with start_workers(text, 2) as running:
        yield running


def elsewhere(first: WorkerResponse, again: Callable[[], WorkerResponse]) -> WorkerResponse:
    """Repeat a request until another worker has served it than the one of `first`; return its response."""
    while (reply := again()).worker == first.worker:
        pass
    return reply


def sent_roles(chat: Simulator) -> list[Any]:
    """Return the roles of the messages of the last request that the upstream got."""
    body: Any = chat.requests[-1].json
    return [message["role"] for message in body["messages"]]


# --- earlier responses


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("workers", [2, 4])
def test_every_response_is_continued_by_any_worker(chat: Simulator, workers: int, stream: bool) -> None:
    """Regression: it was found in 9 of 20 requests."""
    with start_workers(upstream_config("chat", "openai", chat.url), workers) as gateway:
        first = [gateway.ask(f"say {number}", stream=stream) for number in range(20)]
        assert [reply.status for reply in first] == [200] * 20
        later = []
        for reply in first:
            later.append(gateway.ask("go on", previous_response_id=reply.id, stream=stream))
            assert sent_roles(chat) == ["user", "assistant", "user"]
        assert [reply.status for reply in later] == [200] * 20
        assert any(one.worker != other.worker for one, other in zip(first, later, strict=True))


def test_a_conversation_moves_from_worker_to_worker(gateway: WorkerGateway, chat: Simulator) -> None:
    reply = gateway.ask("0")
    for number in range(1, 6):
        previous = reply
        reply = elsewhere(previous, lambda: gateway.ask(f"{number}", previous_response_id=previous.id))  # noqa: B023
        assert reply.status == 200
    sent: Any = chat.requests[-1].json
    texts = [message["content"] for message in sent["messages"] if message["role"] == "user"]
    assert texts == ["0", "1", "2", "3", "4", "5"]


def test_items_are_found_by_another_worker(gateway: WorkerGateway, chat: Simulator) -> None:
    first = gateway.ask(QUESTION, tools=TOOLS)
    [call] = [item for item in first.json["output"] if item["type"] == "function_call"]
    items = [
        {"role": "user", "content": QUESTION},
        *({"type": "item_reference", "id": item["id"]} for item in first.json["output"]),
        {"type": "function_call_output", "call_id": call["call_id"], "output": "18 degrees"},
    ]
    body = {"model": "chat/m", "input": items, "tools": TOOLS}
    last = elsewhere(first, lambda: gateway.request("/v1/responses", body))
    assert last.status == 200 and "18 degrees" in json.dumps(last.json["output"])
    assert sent_roles(chat) == ["user", "assistant", "tool"]


def test_items_of_two_workers_are_found_by_one_request(gateway: WorkerGateway, chat: Simulator) -> None:
    one = gateway.ask("say one")
    other = elsewhere(one, lambda: gateway.ask("say other"))
    items = [{"role": "user", "content": "x"}]
    items += [{"type": "item_reference", "id": reply.json["output"][0]["id"]} for reply in (one, other)]
    body = {"model": "chat/m", "input": [*items, {"role": "user", "content": "y"}]}
    assert elsewhere(one, lambda: gateway.request("/v1/responses", body)).status == 200
    assert elsewhere(other, lambda: gateway.request("/v1/responses", body)).status == 200


def test_a_large_conversation_is_continued_by_another_worker(gateway: WorkerGateway, chat: Simulator) -> None:
    first = gateway.ask(LONG)
    assert first.status == 200
    again = elsewhere(first, lambda: gateway.ask("go on", previous_response_id=first.id))
    assert again.status == 200 and sent_roles(chat) == ["user", "assistant", "user"]
    sent: Any = chat.requests[-1].json
    assert sent["messages"][0]["content"] == LONG
    third = elsewhere(again, lambda: gateway.ask(f"and {LONG}", previous_response_id=again.id))  # both are large
    assert third.status == 200 and len(chat.requests[-1].body) > 2 * len(LONG)
    wait_until(
        lambda: not any(json.loads(gateway.admin(each, "/status"))["in_flight_bytes"] for each in gateway.numbers)
    )


@pytest.mark.parametrize("text", ["first words", LONG], ids=["small", "large"])
def test_a_retry_and_a_report_have_the_whole_conversation(text: str) -> None:
    turns = ['parts = [{ text = "well" }]', "status = 503", 'status = 400\nmessage = "no"']
    script = parse_script('then = "last"\n' + "".join(f"[[turn]]\n{turn}\n" for turn in turns))
    with (
        running_simulator("openai", script=script) as chat,
        start_workers(upstream_config("chat", "openai", chat.url), 2) as gateway,
    ):
        first = gateway.ask(text)
        with connected_to(gateway, first.worker) as connection:
            body = {"model": "chat/m", "input": "go on", "previous_response_id": first.id}
            refused = gateway.request("/v1/responses", body, connection=connection)
        _, sent, again = [each for each in chat.requests if each.method == "POST"]
        assert sent.body == again.body and sent_roles(chat) == ["user", "assistant", "user"]
        report = wait_for_refusal(gateway.state, refused.headers["x-request-id"], TIMEOUT)
        assert report is not None and text[:1000] in report.sent.body


@pytest.mark.parametrize("text", ["short", LONG], ids=["small", "large"])
def test_a_response_is_read_and_deleted_by_any_worker(gateway: WorkerGateway, text: str) -> None:
    first = gateway.ask(text)
    path = f"/v1/responses/{first.id}"
    for _ in range(3):
        read = elsewhere(first, lambda: gateway.request(path, method="GET"))
        assert (read.status, read.json) == (200, first.json)
    cancelled = elsewhere(first, lambda: gateway.request(f"{path}/cancel"))
    assert cancelled.status == 400 and "background" in cancelled.json["error"]["message"]
    while (deleted := gateway.request(path, method="DELETE")).worker == first.worker:
        assert deleted.json["deleted"]
        first = gateway.ask(text)
        path = f"/v1/responses/{first.id}"
    assert (deleted.status, deleted.json["deleted"]) == (200, True)
    for worker in gateway.numbers:
        while (gone := gateway.ask("go on", previous_response_id=first.id)).worker != worker:
            pass
        assert (gone.status, gone.code) == (400, "previous_response_not_found")


def test_requests_about_a_job_go_to_its_upstream_with_its_key_from_any_worker(
    gateway: WorkerGateway, service: BackgroundService
) -> None:
    """An upstream stores the response: any worker asks it, with the credential that created it."""
    for _ in range(3):
        started = gateway.ask("work", "one/gpt-5", background=True)
        key = service.requests[-1][3]
        path = f"/v1/responses/{started.id}"
        assert elsewhere(started, lambda: gateway.request(path, method="GET")).status == 200  # noqa: B023
        service.jobs[started.id] = "completed"
        follow_up = {"previous_response_id": started.id}
        assert elsewhere(started, lambda: gateway.ask("go on", "one/gpt-5", **follow_up)).status == 200  # noqa: B023
        assert elsewhere(started, lambda: gateway.request(f"{path}/cancel")).json["status"] == "cancelled"  # noqa: B023
        assert {used for method, at, _, used in service.requests if started.id in at} == {key}
        assert service.requests[-1][3] == service.requests[-2][3] == key


def test_a_response_that_an_upstream_holds_is_refused_for_another_upstream_by_any_worker(
    gateway: WorkerGateway, chat: Simulator
) -> None:
    started = gateway.ask("x", "one/gpt-5")
    refused = elsewhere(started, lambda: gateway.ask("y", previous_response_id=started.id))
    assert (refused.status, refused.code) == (400, "previous_response_not_found")


def test_another_owner_gets_nothing(gateway: WorkerGateway, service: BackgroundService) -> None:
    stored, held = gateway.ask("a secret"), gateway.ask("x", "one/gpt-5")
    item = stored.json["output"][0]["id"]
    for with_bodies in (False, True):
        wanted = {"responses": [stored.id, held.id], "items": [item], "with_bodies": with_bodies}
        mine = [gateway.message(number, "find", {"owner": "gateway", **wanted}) for number in gateway.numbers]
        theirs = [gateway.message(number, "find", {"owner": "key_of_another", **wanted}) for number in gateway.numbers]
        assert [status for status, _ in mine + theirs] == [200] * 4
        assert b"a secret" in b"".join(reply for _, reply in mine)
        found = [pickle.loads(reply) for _, reply in theirs if reply]
        assert not any(each.conversations or each.bodies or each.items for each in found)
        # It is known to be held, so that no upstream is asked for it; nothing else is known.
        [(response_id, holder)] = [row for each in found for row in each.holders.items()]
        assert (response_id, holder.owner, holder.upstream, holder.address, holder.credential) == (
            held.id, "", "", "", "",
        )  # fmt: skip
    for number in gateway.numbers:
        gateway.message(number, "forget", {"owner": "key_of_another", "response": stored.id})
    assert elsewhere(stored, lambda: gateway.request(f"/v1/responses/{stored.id}", method="GET")).status == 200


def test_another_key_gets_nothing_from_any_worker(chat: Simulator, service: BackgroundService, tmp_path: Path) -> None:
    accounts = Accounts(tmp_path / "store")
    (ann, _), (bob, _) = accounts.create("ann"), accounts.create("bob")
    text = f"[store]\nurl = 'sqlite:{accounts.folder}'\n" + upstream_config("chat", "openai", chat.url)
    text += upstream_config("one", "responses", service.url)
    text += upstream_config("two", "responses", service.url)  # The only one would be asked for an unknown id.
    with start_workers(text, 2) as gateway:
        for model in ("chat/m", "one/gpt-5"):  # stored by a worker, and held by an upstream
            first = gateway.ask("a secret", model, key=ann)
            path, before = f"/v1/responses/{first.id}", len(service.requests)
            for method, where in (("GET", path), ("DELETE", path), ("POST", f"{path}/cancel")):
                refused = elsewhere(first, lambda: gateway.request(where, method=method, key=bob))  # noqa: B023
                assert (refused.status, refused.code) == (404, "response_not_found")
            follow_up = {"previous_response_id": first.id}
            refused = elsewhere(first, lambda: gateway.ask("go on", model, key=bob, **follow_up))  # noqa: B023
            assert (refused.status, refused.code) == (400, "previous_response_not_found")
            assert len(service.requests) == before  # the upstream would have answered
            assert elsewhere(first, lambda: gateway.ask("go on", model, key=ann, **follow_up)).status == 200  # noqa: B023


def test_a_response_about_a_large_conversation_is_its_bytes(gateway: WorkerGateway) -> None:
    """They are not read on the way: only the job process of large requests does."""
    first = gateway.ask(LONG)
    _, reply = gateway.message(first.worker, "find", {"owner": "gateway", "responses": [first.id]})
    [conversation] = pickle.loads(reply).conversations.values()
    assert isinstance(conversation, PickledConversation)


@pytest.mark.parametrize("message", [b"", b"[", b'{"owner": 1}', b"\xff", b"[1]"], ids=["0", "1", "2", "3", "4"])
@pytest.mark.parametrize("name", ["find", "forget", "cooldowns"])
def test_a_message_that_is_no_message_is_refused(gateway: WorkerGateway, name: str, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_of(gateway.socket, 1)))
        head = f"POST {sibling_path(name)} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(message)}\r\n\r\n"
        connection.sendall(head.encode() + message)
        response = http.client.HTTPResponse(connection, method="POST")
        response.begin()
        assert response.status == 400
    assert gateway.ask().status == 200


def test_the_sockets_of_workers_are_private_and_the_parent_has_no_routes_for_workers(gateway: WorkerGateway) -> None:
    sockets = [gateway.socket, *(socket_of(gateway.socket, number) for number in gateway.numbers)]
    assert [path.stat().st_mode & 0o777 for path in sockets] == [0o600] * 3
    assert gateway.socket.parent.stat().st_mode & 0o777 == 0o700
    for number in gateway.numbers:
        assert b"/status" in gateway.admin(number, sibling_path("find"))  # GET: the list of routes
    assert admin.send_admin_request(gateway.socket, sibling_path("find"), "POST") == b"GET only\n"


# --- a worker that is gone or does not respond


@contextmanager
def connected_to(gateway: WorkerGateway, other_than: int) -> Iterator[http.client.HTTPConnection]:
    """Give an open connection to another worker than this one."""
    while True:
        connection = gateway.connect()
        if gateway.request("/v1/models", method="GET", connection=connection).worker != other_than:
            break
        connection.close()
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize("text", ["short", LONG], ids=["small", "large"])
def test_a_response_of_a_killed_worker_is_unknown(chat: Simulator, text: str) -> None:
    with start_workers(upstream_config("chat", "openai", chat.url), 2) as gateway:
        first = gateway.ask(text)
        with connected_to(gateway, first.worker) as connection:
            victim = gateway.pid(first.worker)
            os.kill(victim, signal.SIGKILL)
            body = {"model": "chat/m", "input": "go on", "previous_response_id": first.id}
            reply = gateway.request("/v1/responses", body, connection=connection)
            assert (reply.status, reply.code) == (400, "previous_response_not_found")
            wait_until(lambda: is_new(gateway, first.worker, victim))
            reply = gateway.request("/v1/responses", body, connection=connection)
            assert (reply.status, reply.code) == (400, "previous_response_not_found")


def is_new(gateway: WorkerGateway, number: int, before: int) -> bool:
    try:
        return gateway.pid(number) != before
    except OSError:
        return False


def test_a_worker_that_does_not_respond_counts_as_one_without_the_response(chat: Simulator) -> None:
    with start_workers(upstream_config("chat", "openai", chat.url), 2) as gateway:
        first = gateway.ask()
        with connected_to(gateway, first.worker) as connection:
            stopped = gateway.pid(first.worker)
            path = f"/v1/responses/{first.id}"
            os.kill(stopped, signal.SIGSTOP)
            try:
                body = {"model": "chat/m", "input": "go on", "previous_response_id": first.id}
                reply = gateway.request("/v1/responses", body, connection=connection)
                assert (reply.status, reply.code) == (400, "previous_response_not_found")
                # It gets the message later that the response was deleted.
                assert gateway.request(path, method="DELETE", connection=connection).status == 404
            finally:
                os.kill(stopped, signal.SIGCONT)
            wait_until(lambda: gateway.request(path, method="GET", connection=connection).status == 404)
            assert gateway.message(first.worker, "find", {"owner": "gateway", "responses": [first.id]}) == (200, b"")


# --- cooldowns


class FailingService:
    """An upstream that refuses some requests, and then accepts them."""

    def __init__(self, service: BackgroundService) -> None:
        self._service = service
        self.url = service.url

    def fail(self, status: int, times: int) -> None:
        self._service.failures = [status] * times
        self._service.retry_after = "3600" if status < 500 else ""

    @property
    def count(self) -> int:
        return self._service.count("POST")


@pytest.fixture
def failing() -> Iterator[FailingService]:
    with running_service("failing") as service:
        yield FailingService(service)


def ask_failing(gateway: WorkerGateway) -> WorkerResponse:
    return gateway.ask("x", "failing/m", background=True)  # A job is not retried after an error of the server.


@pytest.mark.parametrize(("status", "kind", "workers"), [(401, "auth", 2), (402, "quota", 4)])
def test_a_refused_credential_of_one_worker_is_not_used_by_the_others(
    failing: FailingService, status: int, kind: str, workers: int
) -> None:
    with start_workers(upstream_config("failing", "responses", failing.url), workers) as gateway:
        failing.fail(status, 1)
        ask_failing(gateway)
        wait_until(lambda: gateway.kinds() == [[kind]] * workers)
        served: set[int] = set()
        while len(served) < workers:
            refused = ask_failing(gateway)
            served.add(refused.worker)
            assert refused.status in (401, 429) and "cooldown" in refused.json["error"]["message"]
        assert failing.count == 1
        [row] = json.loads(admin.send_admin_request(gateway.socket, "/cooldowns"))
        assert (row["upstream"], row["kind"]) == ("failing", kind)
        cleared = json.loads(admin.send_admin_request(gateway.socket, "/cooldowns/clear?upstream=failing", "POST"))
        assert cleared == {"cleared": 1} and gateway.kinds() == [[]] * workers
        assert ask_failing(gateway).status == 200
        began = [line for line in gateway.log.splitlines() if '"event":"cooldown"' in line]
        assert len(began) == 1  # the worker where it began logs it


def test_a_breaker_that_opens_and_closes_in_one_worker_does_so_in_all(failing: FailingService) -> None:
    with start_workers(upstream_config("failing", "responses", failing.url), 2) as gateway:
        failing.fail(500, 100)
        wait_until(lambda: ask_failing(gateway).status in (500, 503) and gateway.kinds() == [["server"]] * 2)
        restarted = gateway.pid(1)
        os.kill(restarted, signal.SIGKILL)
        wait_until(lambda: is_new(gateway, 1, restarted))
        wait_until(
            lambda: gateway.kinds() == [["server"]] * 2
        )  # an open breaker is not saved: it has asked the other one
        failing.fail(500, 0)
        wait_until(lambda: ask_failing(gateway).status == 200)
        wait_until(lambda: gateway.kinds() == [[], []])


def test_a_cooldown_cleared_in_one_worker_ends_in_all(failing: FailingService) -> None:
    with start_workers(upstream_config("failing", "responses", failing.url), 2) as gateway:
        failing.fail(401, 1)
        ask_failing(gateway)
        wait_until(lambda: gateway.kinds() == [["auth"]] * 2)
        assert json.loads(gateway.admin(2, "/cooldowns/clear", "POST")) == {"cleared": 1}
        wait_until(lambda: gateway.kinds() == [[], []])


# --- one process


def test_one_process_does_not_load_the_code_for_siblings() -> None:
    code = "import sys, dragoman.gateway.serve; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    of_workers = {"server_workers", "sibling_workers", "worker_sharing", "worker_responses", "shared_cooldowns"}
    assert "dragoman.gateway.shared_responses" in loaded
    assert not {name.rpartition(".")[2] for name in loaded} & of_workers
