"""The proxy of docs/library.md, started as the page says, serves Anthropic's SDK: replies, streams, tools, errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest

from dragoman.simulator import parse_script, running_simulator
from tests.docs.pages import ROOT, TIMEOUT, blocks

TOOL: Any = {
    "name": "weather",
    "description": "Return the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PARTS = 'parts = [{ text = "Begin." }, { text = "Middle." }, { text = "End." }]'


@contextmanager
def proxy(upstream: str, folder: Path) -> Iterator[anthropic.Anthropic]:
    """Run the proxy of the page in front of an upstream; yield a client of it."""
    [code] = [block.text for block in blocks(ROOT / "docs" / "library.md") if block.heading == "A proxy with httpx"]
    (folder / "proxy.py").write_text(code, encoding="utf-8")
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "UPSTREAM": upstream, "UPSTREAM_KEY": "any"}
    command = [sys.executable, "-m", "uvicorn", "proxy:app", "--port", "0", "--no-access-log"]
    with subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []
            while not (found := re.search(r"running on (http://\S+)", lines[-1] if lines else "")):
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            with anthropic.Anthropic(base_url=found[1], api_key="any", max_retries=0, timeout=TIMEOUT) as client:
                yield client
        finally:
            process.kill()


def request(text: str = "Hello there.", **more: Any) -> dict[str, Any]:
    return {"model": "claude", "max_tokens": 99, "messages": [{"role": "user", "content": text}], **more}


def test_replies_streams_and_tool_calls(tmp_path: Path) -> None:
    script = parse_script("""
then = "last"
[[turn]]
text = "A whole reply."
[[turn]]
parts = [{ text = "Let me look." }, { tool = "weather", arguments = { city = "Oslo" } }]
""")
    with running_simulator("openai", script=script) as simulator, proxy(simulator.url, tmp_path) as client:
        whole = client.messages.create(**request())
        assert [block.text for block in whole.content if block.type == "text"] == ["A whole reply."]
        with client.messages.stream(**request(tools=[TOOL])) as stream:
            text, call = stream.get_final_message().content
        assert (text.type, call.type) == ("text", "tool_use")
        assert (getattr(call, "name", ""), getattr(call, "input", None)) == ("weather", {"city": "Oslo"})
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            client.messages.create(**{**request(), "max_tokens": "many"})
    assert simulator.total == 2  # The last request was refused by the proxy.


def test_errors_of_the_upstream(tmp_path: Path) -> None:
    script = parse_script(f"""
then = "last"
[[turn]]
status = 429
retry_after = 7
[[turn]]
cut = {{ event = 2, how = "reset" }}
{PARTS}
[[turn]]
text = "Hello."
""")
    with running_simulator("openai", script=script) as simulator, proxy(simulator.url, tmp_path) as client:
        with pytest.raises(anthropic.RateLimitError) as refused:
            client.messages.create(**request())
        assert refused.value.response.headers["retry-after"] == "7"
        with (
            pytest.raises(anthropic.APIStatusError, match="the connection to the upstream broke"),
            client.messages.stream(**request()) as stream,
        ):
            stream.until_done()
        assert client.messages.create(**request()).content[0].type == "text"


def test_an_upstream_that_cannot_be_reached(tmp_path: Path) -> None:
    with running_simulator("openai") as simulator:
        url = simulator.url
    with proxy(url, tmp_path) as client:
        for stream in (False, True):
            with pytest.raises(anthropic.InternalServerError, match="the upstream cannot be reached") as refused:
                client.messages.create(**request(), stream=stream)
            assert refused.value.status_code == 502
