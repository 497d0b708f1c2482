"""Who made an answer is remembered within bounds, and only its own client may ask about it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman.dialects.base import Call
from dragoman.errors import ClientFault
from dragoman.gateway.access_log import Record
from dragoman.gateway.app import Gateway
from dragoman.gateway.context import RequestContext
from dragoman.gateway.memory import Holder, Holders, Memory
from dragoman.gateway.stored import StoredAnswer
from dragoman.http.exchange import Owner
from dragoman.wire.http import HttpRequest
from tests.gateway.house import KEY, configured, upstream

RESPONSES = registry.get("responses")


def test_the_number_is_bounded_and_the_oldest_goes_first() -> None:
    holders, holder = Holders(most=2), Holder("me", "one", "http://one", "key")
    for name in ("a", "b", "a", "c", ""):
        holders.remember(name, holder)
    assert [holders.find(name) for name in ("a", "b", "c", "")] == [holder, None, holder, None]
    assert len(holders) == 2


@pytest.mark.parametrize("key", ["mine", "theirs"])
def test_l15_an_answer_of_another_key_is_not_found(key: str) -> None:
    """Also where a single upstream would be asked for an id that is not known."""
    request = HttpRequest("GET", "/v1/responses/resp_1")
    holders = Holders()
    holders.remember("resp_1", Holder(Owner("mine"), "one", "http://one", "c"))
    backend: Any = SimpleNamespace(name="one", dialect=RESPONSES, credential=lambda name: name)
    services: Any = SimpleNamespace(memory=Memory(), holders=holders)
    fleet: Any = SimpleNamespace(backends=(backend,))
    exchange: Any = SimpleNamespace(request=request, owner=Owner(key))
    call = Call("stored", "", False, None, {"id": "resp_1", "action": "read", "query": ""})
    context = RequestContext(services, fleet, exchange, RESPONSES, call, Record("r", "GET", "/"))
    stored = StoredAnswer(context)
    if key == "mine":
        found: Any = stored._holder(Owner(key))
        assert found == (backend, ["c"])
    else:
        with pytest.raises(ClientFault) as refused:
            stored._holder(Owner(key))
        assert refused.value.fault.status == 404


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/responses", 426), ("/openai/v1/responses", 426), ("/v1/models", 400)]
)
@pytest.mark.parametrize("extension", [True, False])
def test_l33_under_asgi_a_websocket_offer_is_refused_as_well_as_the_server_can(
    extension: bool, path: str, status: int, tmp_path: Path
) -> None:
    gateway = Gateway(configured(upstream("one", "responses", "http://127.0.0.1:1")), key=KEY, state=tmp_path)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    extensions: dict[str, Any] = {"websocket.http.response": {}} if extension else {}
    scope = {"type": "websocket", "path": path, "headers": [], "extensions": extensions}
    asyncio.run(gateway(scope, receive, send))
    if not extension:
        assert sent == [{"type": "websocket.close", "code": 1000}]
        return
    assert sent[0]["status"] == status
    assert json.loads(sent[1]["body"])["error"]["type"] == "invalid_request_error"
