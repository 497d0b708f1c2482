"""Google's own SDK does tool loops over the gateway, streamed and whole, whatever dialect the upstream speaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dragoman.simulator.server import Simulator, running_simulator
from tests.gateway.house import KEY, House, house, upstream

genai = pytest.importorskip("google.genai", reason="google-genai is not installed")
UPSTREAMS = ("gemini", "anthropic", "openai")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[House, dict[str, Simulator]]]:
    with ExitStack() as stack:
        simulators = {dialect: stack.enter_context(running_simulator(dialect)) for dialect in UPSTREAMS}
        text = "".join(
            upstream(dialect, dialect, simulator.url, f'models = ["gemini-3-{dialect}"]')
            for dialect, simulator in simulators.items()
        )
        yield stack.enter_context(house(text, Path(tmp_path_factory.mktemp("state")))), simulators


def client(home: House) -> Any:
    return genai.Client(api_key=KEY, http_options=genai.types.HttpOptions(base_url=home.url))


def signatures(dialect: str, body: Any) -> list[str]:
    """The signatures that an upstream was given back, in its own words."""
    if dialect == "gemini":
        parts = [part for content in body["contents"] for part in content["parts"]]
        return [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
    if dialect == "anthropic":
        blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
        return [block["signature"] for block in blocks if block["type"] == "thinking"]
    return [entry["signature"] for message in body["messages"] for entry in message.get("reasoning_details", ())]


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("dialect", UPSTREAMS)
def test_a_tool_loop_runs_and_gives_signatures_back(
    world: tuple[House, dict[str, Simulator]], dialect: str, streamed: bool
) -> None:
    home, simulators = world
    seen = simulators[dialect].requests
    before = len(seen)
    ran: list[str] = []

    def get_weather(city: str) -> str:
        """Tell the weather."""
        ran.append(city)
        return f"sunny in {city}"

    thinking = genai.types.ThinkingConfig(include_thoughts=True, thinking_budget=2048)
    config = genai.types.GenerateContentConfig(
        tools=[get_weather], thinking_config=thinking, max_output_tokens=8192, system_instruction="Be brief."
    )
    asking = client(home)  # it closes when nobody holds it
    chat = asking.chats.create(model=f"gemini-3-{dialect}", config=config)
    question = "Tell me about get_weather."
    if streamed:
        text = "".join(chunk.text or "" for chunk in chat.send_message_stream(question))
    else:
        text = chat.send_message(question).text
    assert len(ran) == 1
    assert f"sunny in {ran[0]}" in text
    asked = seen[before:]
    assert len(asked) == 2, "one call, one answer"
    given_back = signatures(dialect, asked[1].json)
    assert given_back and all(len(each) == 64 for each in given_back), "the simulator's signatures are 64 characters"


def test_counting_listing_and_refusing_are_understood(world: tuple[House, dict[str, Simulator]]) -> None:
    home, _ = world
    asking = client(home)
    assert asking.models.count_tokens(model="gemini-3-openai", contents="hello there").total_tokens > 0
    assert "models/gemini-3-anthropic" in [model.name for model in asking.models.list()]
    bad = genai.types.Content(role="nobody", parts=[genai.types.Part(text="x")])
    with pytest.raises(genai.errors.ClientError, match=r"contents\[0\].role") as refused:
        asking.models.generate_content(model="gemini-3-openai", contents=[bad])
    assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
    stranger = genai.Client(api_key="wrong", http_options=genai.types.HttpOptions(base_url=home.url))
    with pytest.raises(genai.errors.ClientError) as unknown:
        stranger.models.generate_content(model="gemini-3-openai", contents="x")
    assert unknown.value.code == 401
