"""Every fault of the catalogue with its pairs of dialects: the client gets the reply or an error that says so, in time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import anthropic
import boto3
import openai
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from msgspec import Struct, structs

from dragoman.gateway import backend
from dragoman.gateway.config import Server
from dragoman.gateway.upstream_config import TimeoutSettings
from dragoman.http import exchange, framing
from dragoman.http.client import response
from dragoman.simulator.faults import parse_fault
from dragoman.upstream.kiro import credential
from tests.faults.catalogue import ROWS
from tests.faults.checks import EXPECTED_TEXT
from tests.faults.client_faults import gateway_behind_proxy
from tests.faults.conftest import ALL_PROBES
from tests.faults.row import FaultRow
from tests.faults.runner import UPSTREAMS, Case, Pair, covering_pairs
from tests.gateway.harness import KEY

CASES = [
    pytest.param(row, pair, id=f"{row.number}-{pair.client}-{pair.upstream}")
    for row in ROWS.values()
    for pair in row.cases(whole=ALL_PROBES)
]


def _upstream_of(row: FaultRow) -> list[str]:
    """The upstreams of a row in a run over WebSocket: all of its pairs, or one."""
    upstreams = list(dict.fromkeys(pair.upstream for pair in row.pairs or covering_pairs()))
    return upstreams if ALL_PROBES else [upstreams[row.number % len(upstreams)]]


OVER_WEBSOCKET = [
    pytest.param(row, Pair("responses", upstream), id=f"{row.number}-websocket-{upstream}")
    for row in ROWS.values()
    if row.runs_over_websocket
    for upstream in _upstream_of(row)
]


@pytest.mark.parametrize(("row", "pair"), CASES)
def test_fault(row: FaultRow, pair: Pair, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    _check_fault(row, Case(pair, tmp_path, ALL_PROBES), record_property)


@pytest.mark.parametrize(("row", "pair"), OVER_WEBSOCKET)
def test_fault_over_websocket(
    row: FaultRow, pair: Pair, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    _check_fault(row, Case(pair, tmp_path, ALL_PROBES, over_websocket=True), record_property)


def _check_fault(row: FaultRow, case: Case, record_property: Callable[[str, object], None]) -> None:
    try:
        row.run(case)
    finally:
        record_property("fault", row.number)
        record_property("probes", max(case.probes, 1))
        record_property("problems", [kind for kind, _ in case.problems])
    assert not case.problems, "\n".join(f"{kind} {detail}" for kind, detail in case.problems)


# --- the defaults of docs/reliability.md#timeouts, which the faults above scale down


def _default(of: type[Struct], name: str) -> object:
    return next(field.default for field in structs.fields(of) if field.name == name)


DEFAULTS = {
    "DNS": (response.HttpTimeouts().dns, TimeoutSettings().dns, 3.0),
    "connect": (response.HttpTimeouts().connect, TimeoutSettings().connect, 5.0),
    "TLS": (response.HttpTimeouts().tls, TimeoutSettings().tls, 5.0),
    "request write": (response.HttpTimeouts().write, TimeoutSettings().write, 30.0),
    "first byte": (response.HttpTimeouts().head, TimeoutSettings().first_byte, 300.0),
    "idle": (response.HttpTimeouts().idle, TimeoutSettings().idle, 120.0),
    "idle of long-thinking models": (TimeoutSettings().long_idle, 900.0),
    "total": (response.HttpTimeouts().total, TimeoutSettings().total, 3600.0),
    "client write stall": (exchange.STALL_SECONDS, 60.0),
    "header read": (framing.HEAD_SECONDS, 10.0),
    "keep-alive idle": (framing.IDLE_SECONDS, 75.0),
    "token refresh": (credential._TIMEOUT, backend._REFRESH_SECONDS, 15.0),
    "ping": (_default(Server, "ping"), 15.0),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_is_the_value_of_the_rule(name: str) -> None:
    *found, wanted = DEFAULTS[name]
    assert found == [wanted] * len(found)


def test_every_fault_of_the_catalogue_has_a_row() -> None:
    """54 does not apply (a half-close counts as a disconnect); 63-66 are about a ledger that does not exist."""
    assert {*range(1, 54), *range(55, 63), *range(67, 72)} <= set(ROWS)


# --- official clients raise for a stream that breaks, and never return an incomplete reply

MESSAGES: Any = [{"role": "user", "content": "hello"}]


def by_anthropic(url: str) -> str:
    with (
        anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0) as client,
        client.messages.stream(model="m0", max_tokens=100, messages=MESSAGES) as stream,
    ):
        return stream.get_final_text()


def by_openai(url: str) -> str:
    with (
        openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client,
        client.chat.completions.stream(model="m0", messages=MESSAGES) as stream,
    ):
        return stream.get_final_completion().choices[0].message.content or ""


def by_openai_responses(url: str) -> str:
    with (
        openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0) as client,
        client.responses.stream(model="m0", input="hello") as stream,
    ):
        return stream.get_final_response().output_text


@cache
def _boto3(url: str) -> Any:
    keys = {"aws_access_key_id": "anybody", "aws_secret_access_key": KEY, "region_name": "us-east-1"}
    config = Config(retries={"max_attempts": 0}, read_timeout=60)
    return boto3.client("bedrock-runtime", endpoint_url=url, config=config, **keys)


def by_boto3(url: str) -> str:
    messages = [{"role": "user", "content": [{"text": "hello"}]}]
    client = _boto3(url)
    try:
        with closing(client.converse_stream(modelId="m0", messages=messages)["stream"]) as stream:
            deltas = [event["contentBlockDelta"]["delta"] for event in stream if "contentBlockDelta" in event]
        return "".join(delta.get("text", "") for delta in deltas)
    finally:
        client.close()


READERS: dict[str, Callable[[str], str]] = {
    "anthropic": by_anthropic,
    "openai": by_openai,
    "responses": by_openai_responses,
    "bedrock": by_boto3,
}
RAISED = (anthropic.APIError, openai.APIError, EventStreamError, ClientError, RuntimeError)


@pytest.mark.parametrize("upstream", UPSTREAMS[::2] if ALL_PROBES else ["kiro"])
@pytest.mark.parametrize("client", READERS)
def test_a_stream_that_breaks_is_an_exception_of_the_official_client(
    client: str, upstream: str, tmp_path: Path
) -> None:
    read = READERS[client]
    case = Case(Pair(client, upstream), tmp_path, whole=False)
    script = f'then = "last"\n[pace]\nchunk = 9\n[[turn]]\ntext = """{EXPECTED_TEXT}"""\n'
    with gateway_behind_proxy(case, script=script) as (harness, proxy, _):
        assert read(harness.url) == EXPECTED_TEXT
        for how in ("close", "reset"):
            proxy.faults = (parse_fault(f"cut:text=line,how={how}"),)
            with pytest.raises(RAISED):
                read(harness.url)
