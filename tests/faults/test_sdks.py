"""The official clients before a stream that breaks: they raise, and never give an answer that nobody finished."""

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

from dragoman.simulator.faults import parse_fault
from tests.faults.conftest import WHOLE
from tests.faults.judging import SAYS
from tests.faults.leaving import scene
from tests.faults.stage import UPSTREAMS, Case, Pair
from tests.gateway.house import KEY

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
    asked = [{"role": "user", "content": [{"text": "hello"}]}]
    client = _boto3(url)
    try:
        with closing(client.converse_stream(modelId="m0", messages=asked)["stream"]) as stream:
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


@pytest.mark.parametrize("upstream", UPSTREAMS[::2] if WHOLE else ["kiro"])
@pytest.mark.parametrize("client", READERS)
def test_a_stream_that_breaks_is_an_exception_of_the_official_client(
    client: str, upstream: str, tmp_path: Path
) -> None:
    read = READERS[client]
    case = Case(Pair(client, upstream), tmp_path, whole=False)
    script = f'then = "last"\n[pace]\nchunk = 9\n[[turn]]\ntext = """{SAYS}"""\n'
    with scene(case, script=script) as (home, proxy, _):
        assert read(home.url) == SAYS
        for how in ("close", "reset"):
            proxy.faults = (parse_fault(f"cut:text=line,how={how}"),)
            with pytest.raises(RAISED):
                read(home.url)
