"""Tests of accounts in a running gateway: client keys in every dialect, limits, refusals, the ledger, revocation."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dragoman.accounts import management
from dragoman.accounts.book import AccountBook
from dragoman.accounts.keys import aws_secret
from dragoman.accounts.limit_text import parse_limit
from dragoman.dialects.anthropic.encoder import parse_usage
from dragoman.gateway.accounting import one_hour_cache_writes
from dragoman.model.conversation import Usage
from dragoman.simulator import Simulator, parse_script, running_simulator
from dragoman.store.interface import ClientKey, LedgerRow, Store, UsageQuery
from dragoman.store.sqlite.engine import SqliteStore
from dragoman.wire.jsonio import Json
from tests.gateway.harness import (
    KEY,
    GatewayHarness,
    StreamClient,
    anthropic_body,
    start_gateway,
    upstream_config,
    wait_until,
)
from tests.gateway.socket_client import SocketClient, converse_body, raw, signed_request
from tests.gateway.websocket_client import WebSocketClient

T = TypeVar("T")
MODEL = "claude-sonnet-4.5"


class Accounts:
    """The store of a gateway under test, as a process of its own would use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, task: Callable[[Store], Awaitable[T]]) -> T:
        async def work() -> T:
            store = SqliteStore(self.folder)
            await store.open()
            try:
                return await task(store)
            finally:
                await store.close()

        return asyncio.run(work())

    def create(self, name: str = "one", *limits: str, **options: Any) -> tuple[str, ClientKey]:
        parsed = [parse_limit("", limit) for limit in limits]
        return self.run(lambda store: management.add_key(store, name, limits=parsed, **options))

    def rows(self, least: int = 1) -> list[LedgerRow]:
        """Return the ended rows of the ledger, oldest first; wait for `least` of them."""
        found: list[LedgerRow] = []

        def enough() -> bool:
            found[:] = [row for row in self.run(lambda store: store.requests()) if row.state == "ended"]
            return len(found) >= least

        wait_until(enough)
        return found[::-1]


@contextmanager
def gateway_with_accounts(
    folder: Path, script: str = "", dialect: str = "kiro", settings: str = ""
) -> Iterator[tuple[GatewayHarness, Accounts, Simulator]]:
    with running_simulator(dialect, script=parse_script(script) if script else None) as simulator:
        text = f"[store]\nurl = 'sqlite:{folder / 'store'}'\n{settings}\n" + upstream_config(
            "one", dialect, simulator.url
        )
        with start_gateway(text, folder) as harness:
            yield harness, Accounts(folder / "store"), simulator


def ask(harness: GatewayHarness, key: str, text: str = "hello", **more: Any) -> tuple[int, dict[str, str], Any]:
    status, headers, body = harness.request("/v1/messages", anthropic_body(MODEL, text, **more), key=key)
    return status, headers, json.loads(body)


def book_of(harness: GatewayHarness) -> AccountBook:
    accounting = harness.running.gateway.accounting
    assert accounting is not None
    return accounting.book


# --- keys


def test_a_client_key_works_and_an_unknown_one_does_not(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, _):
        text, key = accounts.create("laptop", owner="ada")
        assert ask(harness, text)[0] == 200
        assert ask(harness, KEY)[0] == 200
        assert ask(harness, text[:-1] + ("A" if text[-1] != "A" else "B"))[0] == 401
        [first, second] = accounts.rows(2)
    assert (first.key, first.owner, second.key) == (key.id, "ada", "gateway")
    assert first.outcome == "ok" and first.input_tokens > 0 and first.output_tokens > 0
    assert (first.model, first.upstream, first.dialect, first.upstream_dialect) == (MODEL, "one", "anthropic", "kiro")
    assert harness.log_lines(3)[0]["key"] == key.id


HEADERS: dict[str, Callable[[str], dict[str, str]]] = {
    "x-api-key": lambda key: {"x-api-key": key},
    "bearer": lambda key: {"authorization": f"Bearer {key}"},
    "x-goog-api-key": lambda key: {"x-goog-api-key": key},
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_client_key_is_accepted_in_each_header(header: str, tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, _):
        text, _ = accounts.create()
        body = anthropic_body(MODEL, "hello")
        assert harness.request("/v1/messages", body, key=None, **HEADERS[header](text))[0] == 200


def test_an_aws_client_signs_with_the_secret_of_its_key(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, _):
        _, key = accounts.create("boto3")
        _, other = accounts.create("other")
        path = f"/model/{MODEL}/converse"
        for secret, signer, expected in (
            (aws_secret(KEY, key), key.id, 200),
            (aws_secret(KEY, key), other.id, 403),
            (KEY, key.id, 403),  # the gateway's own key does not sign for the id of a client key
            (KEY, "anybody", 200),
        ):
            request = signed_request(converse_body(), secret=secret, signer=signer, path=path)
            with SocketClient(harness, first=b"".join(raw(request))) as client:
                assert client.read_response()[0] == expected
        assert [row.key for row in accounts.rows(2)] == [key.id, "gateway"]


def test_a_revoked_key_is_refused_at_once_and_an_expired_one_says_so(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, _):
        text, _ = accounts.create("one")
        assert ask(harness, text)[0] == 200
        accounts.run(lambda store: management.revoke_key(store, "one"))
        wait_until(lambda: ask(harness, text)[0] == 401)
        status, headers, body = ask(harness, text)
        assert status == 401 and "one of this gateway was revoked" in body["error"]["message"]
        assert headers["x-should-retry"] == "false"
        short, _ = accounts.create("short", expires_at=time.time() + 0.2)
        wait_until(lambda: ask(harness, short)[0] == 401)
        assert "expired at" in ask(harness, short)[2]["error"]["message"]


def test_a_rotated_key_keeps_its_limits_and_the_old_secret_works_during_the_grace(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, _):
        old, key = accounts.create("one", "requests/day=3")
        assert ask(harness, old)[0] == 200
        new, _ = accounts.run(lambda store: management.replace_secret(store, "one", 3600.0))
        wait_until(lambda: ask(harness, new)[0] in (200, 429))
        assert ask(harness, old)[0] == 200
        assert ask(harness, new)[0] == 429
        assert {row.key for row in accounts.rows(3)} == {key.id}
        assert aws_secret(KEY, key) != aws_secret(KEY, accounts.run(lambda store: management.find_key(store, "one")))


def test_a_key_may_ask_only_for_its_models_and_upstreams(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, simulator):
        text, _ = accounts.create("one", models=("claude-haiku-*",))
        status, _, body = ask(harness, text)
        assert status == 403 and "may not ask for the model" in body["error"]["message"]
        other, _ = accounts.create("two", upstreams=("another",))
        status, _, body = ask(harness, other)
        assert status == 403 and "may not use the upstream one" in body["error"]["message"]
        assert simulator.total == 0
        _, _, listed = harness.request("/v1/models", method="GET", key=text)
        names = [model["id"] for model in json.loads(listed)["data"]]
        assert names and all(name.startswith("claude-haiku-") for name in names)
        assert json.loads(harness.request("/v1/models", method="GET", key=other)[2])["data"] == []


# --- limits


def test_a_limit_of_requests_refuses_the_next_one_with_the_headers_of_the_family(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, simulator):
        text, _ = accounts.create("one", "requests/minute=2")
        remaining = [ask(harness, text)[1]["anthropic-ratelimit-requests-remaining"] for _ in range(2)]
        assert remaining == ["1", "0"]
        status, headers, body = ask(harness, text)
        assert (status, body["error"]["type"]) == (429, "rate_limit_error")
        assert "the key one may use 2 requests a minute" in body["error"]["message"]
        assert 1 <= int(headers["retry-after"]) <= 60
        assert headers["anthropic-ratelimit-requests-limit"] == "2"
        status, headers, _ = harness.request(
            "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}, key=text
        )
        assert status == 429 and headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert simulator.total == 2


@pytest.mark.parametrize(
    ("limit", "words"), [("tokens/day=1", "1 tokens a day"), ("requests/month=0", "0 requests a month")]
)
def test_a_used_up_budget_is_a_quota_error_that_is_not_retried(limit: str, words: str, tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, simulator):
        text, _ = accounts.create("one", limit)
        status, headers, body = ask(harness, text)
        assert (status, body["error"]["type"], headers["x-should-retry"]) == (429, "billing_error", "false")
        assert words in body["error"]["message"] and "renews at" in body["error"]["message"]
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        status, _, response = harness.request("/v1/chat/completions", chat, key=text)
        assert (status, json.loads(response)["error"]["code"]) == (429, "insufficient_quota")
        assert simulator.total == 0
        rows = accounts.rows(2)
    assert {row.outcome for row in rows} == {"refused"} and not any(row.tokens or row.attempts for row in rows)


def test_limits_of_an_owner_and_of_all_count_for_each_key(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, _):
        one, _ = accounts.create("one", owner="ada")
        two, _ = accounts.create("two", owner="ada")
        three, _ = accounts.create("three")
        for scope, limit in (("owner:ada", "requests/day=2"), ("all", "requests/day=3")):
            parsed = [parse_limit(scope, limit)]
            accounts.run(lambda store, scope=scope, parsed=parsed: management.set_limits(store, scope, parsed))  # type: ignore[misc]
        wait_until(lambda: bool(book_of(harness).gateway.shares))
        assert [ask(harness, key)[0] for key in (one, two)] == [200, 200]
        status, _, body = ask(harness, one)
        assert status == 429 and "the owner ada may use 2 requests a day" in body["error"]["message"]
        assert ask(harness, three)[0] == 200
        for key in (three, KEY):
            status, _, body = ask(harness, key)
            assert status == 429 and "all keys of this gateway together" in body["error"]["message"]


def test_concurrency_counts_running_requests_only(tmp_path: Path) -> None:
    script = 'then = "repeat"\n[[turn]]\nparts = [{ text = "Well" }, { wait = 30 }, { text = "done" }]'
    with gateway_with_accounts(tmp_path, script) as (harness, accounts, _):
        text, _ = accounts.create("one", "concurrency=1")
        body = anthropic_body(MODEL, "hello", stream=True)
        with StreamClient(harness, "/v1/messages", body, key=text) as client:
            client.read_until(b"Well")
            status, headers, response = ask(harness, text)
            assert status == 429 and "1 requests at once" in response["error"]["message"]
            assert int(headers["retry-after"]) >= 1
        wait_until(lambda: any(row.outcome == "gone" for row in accounts.rows(2)))
        with StreamClient(harness, "/v1/messages", body, key=text) as client:
            client.read_until(b"Well")


# --- the ledger


def test_a_client_that_leaves_pays_for_what_it_got(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "One two three four" }, { wait = 30 }, { text = "done" }]'
    with gateway_with_accounts(tmp_path, script) as (harness, accounts, _):
        text, _ = accounts.create("one", "tokens/day=1M")
        body = anthropic_body(MODEL, "a question " * 100, stream=True)
        with StreamClient(harness, "/v1/messages", body, key=text) as client:
            client.read_until(b"One")
        [row] = accounts.rows()
    assert row.outcome == "gone" and row.estimated
    assert row.input_tokens >= 200 and row.output_tokens >= 1


def test_a_long_request_has_an_open_row_with_its_reservation(tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Well" }, { wait = 30 }, { text = "done" }]'
    with gateway_with_accounts(tmp_path, script) as (harness, accounts, _):
        text, key = accounts.create("one", "tokens/day=1M")
        body = anthropic_body(MODEL, "hello", stream=True, max_tokens=500)
        with StreamClient(harness, "/v1/messages", body, key=text) as client:
            client.read_until(b"Well")
            opened: list[LedgerRow] = []

            def is_open() -> bool:
                opened[:] = [row for row in accounts.run(lambda store: store.requests()) if row.state == "open"]
                return bool(opened)

            wait_until(is_open)
            assert opened[0].key == key.id and 500 <= opened[0].reserved_tokens < 600
            used, held = accounts.run(lambda store: store.used((f"key:{key.id}", "tokens", "day")))
            assert used == 0 and held >= 500


def test_sums_of_the_ledger_are_what_clients_used(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path) as (harness, accounts, _):
        text, key = accounts.create("one", "tokens/day=1M", "requests/month=100")
        for _ in range(5):
            assert ask(harness, text)[0] == 200
        rows = accounts.rows(5)
        limit = f"key:{key.id}"
        assert accounts.run(lambda store: store.used((limit, "tokens", "day")))[0] == sum(row.tokens for row in rows)
        assert accounts.run(lambda store: store.used((limit, "requests", "month")))[0] == 5
        [sums] = accounts.run(lambda store: store.usage(UsageQuery(by=("key", "model"))))
        assert sums.group == (key.id, MODEL) and sums.requests == 5
        assert accounts.run(lambda store: store.check()) == []


def test_another_key_gets_nothing_of_a_stored_response(tmp_path: Path) -> None:
    with gateway_with_accounts(tmp_path, dialect="openai") as (harness, accounts, _):
        one, _ = accounts.create("one")
        two, _ = accounts.create("two")
        response = json.loads(harness.request("/v1/responses", {"model": "m", "input": "hello"}, key=one)[2])
        path, follow = (
            f"/v1/responses/{response['id']}",
            {"model": "m", "input": "on", "previous_response_id": response["id"]},
        )
        assert harness.request(path, method="GET", key=one)[0] == 200
        assert harness.request("/v1/responses", follow, key=one)[0] == 200
        for other in (two, KEY):
            assert harness.request(path, method="GET", key=other)[0] == 404
            assert harness.request(path, method="DELETE", key=other)[0] == 404
            assert harness.request("/v1/responses", follow, key=other)[0] in (400, 404)
        assert harness.request(path, method="GET", key=one)[0] == 200


PRICES = """
[[prices]]
upstream = "one"
models = ["m"]
input = "2"
output = "10"
source = "the test"
seen = 2026-11-18
"""


def test_the_cost_of_a_request_is_in_the_ledger_and_counts_against_a_budget(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    settings = f"[prices]\nfile = '{tmp_path / 'prices.toml'}'"
    with gateway_with_accounts(tmp_path, dialect="openai", settings=settings) as (harness, accounts, simulator):
        text, key = accounts.create("one", "cost/month=0.01")
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
        status, _, response = harness.request("/v1/chat/completions", body, key=text)
        assert status == 200, response
        [row] = accounts.rows()
        assert row.cost == 1000 * (2 * row.input_tokens + 10 * row.output_tokens) > 0
        assert len(row.price_version) == 12
        assert accounts.run(lambda store: store.used((f"key:{key.id}", "cost", "month")))[0] == row.cost
        assert harness.log_lines()[0]["cost_nanodollars"] == row.cost
        expensive = {**body, "max_tokens": 100_000}  # a reply of 4,096 tokens is expected: 4.096 cents
        status, _, response = harness.request("/v1/chat/completions", expensive, key=text)
        assert status == 429 and "may use 0.01 dollars a month" in json.loads(response)["error"]["message"]
        other = {**body, "model": "another"}
        status, _, response = harness.request("/v1/chat/completions", other, key=text)
        assert status == 403 and "is not known: add it to a price file" in json.loads(response)["error"]["message"]
        assert simulator.total == 1
        assert harness.request("/v1/chat/completions", other, key=KEY)[0] == 200
        assert accounts.rows(4)[-1].cost is None


def test_cache_writes_that_are_kept_for_an_hour_are_known() -> None:
    created: Json = {"ephemeral_5m_input_tokens": 4, "ephemeral_1h_input_tokens": 6}
    usage = parse_usage({"input_tokens": 1, "output_tokens": 2, "cache_creation": created})
    assert usage is not None and usage.cache_write == 10 and one_hour_cache_writes(usage) == 6
    assert one_hour_cache_writes(Usage(1, 2, cache_write=5)) == 0


# --- revocation of running streams


@pytest.mark.parametrize("setting", ["finish", "end"])
def test_running_streams_of_a_revoked_key_end_or_finish(setting: str, tmp_path: Path) -> None:
    script = '[[turn]]\nparts = [{ text = "Well" }, { wait = 2 }, { text = "done" }]'
    settings = f"[accounts]\nrevoked_streams = '{setting}'"
    with gateway_with_accounts(tmp_path, script, settings=settings) as (harness, accounts, _):
        text, _ = accounts.create("one")
        body = anthropic_body(MODEL, "hello", stream=True)
        with StreamClient(harness, "/v1/messages", body, key=text) as client:
            client.read_until(b"Well")
            accounts.run(lambda store: management.revoke_key(store, "one"))
            response = client.read_all()
        [row] = accounts.rows()
    if setting == "finish":
        assert b"message_stop" in response and b"done" in response and row.outcome == "ok"
    else:
        assert b"was revoked" in response and b"done" not in response and row.outcome == "cut"


@pytest.mark.parametrize("setting", ["finish", "end"])
def test_a_session_of_a_revoked_key_ends_or_answers_nothing_more(setting: str, tmp_path: Path) -> None:
    settings = f"[accounts]\nrevoked_streams = '{setting}'"
    with gateway_with_accounts(tmp_path, settings=settings) as (harness, accounts, simulator):
        text, key = accounts.create("one", "concurrency=1")
        with WebSocketClient(harness.url, key=text) as client:
            client.send(model=MODEL, input="hello", store=False)
            assert client.events()[-1]["type"] == "response.completed"
            accounts.run(lambda store: management.revoke_key(store, "one"))
            wait_until(lambda: '"event":"key_revoked"' in harness.text)
            if setting == "end":
                assert client.wait_closed() == 1001
            else:
                client.send(model=MODEL, input="more", store=False)
                (error,) = client.events()
                assert (error["status"], "was revoked" in error["error"]["message"]) == (401, True)
        assert (simulator.total, accounts.rows()[0].key) == (1, key.id)


# --- without the store


def test_a_store_that_cannot_be_opened_stops_client_keys_and_not_the_gateways_own(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with running_simulator("kiro") as simulator:
        text = f"[store]\nurl = 'sqlite:{tmp_path / 'store'}'\n" + upstream_config("one", "kiro", simulator.url)
        with start_gateway(text, tmp_path) as harness:
            assert ask(harness, KEY)[0] == 200
            status, _, body = ask(harness, "dg_aaaaaaaaaaaaa_" + "A" * 43)
            assert status in (503, 529) and "store of keys" in body["error"]["message"]
            assert '"event":"store"' in harness.text
