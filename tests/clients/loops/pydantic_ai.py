"""A pydantic-ai agent over each provider it has: `python -m tests.clients.loops.pydantic_ai PROVIDER HOW...`."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import asyncio
import sys
from typing import Any

from tests.clients.loops.common import KEY, MODEL, PROMPT, URL, copy


def anthropic() -> Any:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel(MODEL, provider=AnthropicProvider(api_key=KEY, base_url=URL))


def chat() -> Any:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel(MODEL, provider=OpenAIProvider(api_key=KEY, base_url=f"{URL}/v1"))


def responses() -> Any:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIResponsesModel(MODEL, provider=OpenAIProvider(api_key=KEY, base_url=f"{URL}/v1"))


def bedrock() -> Any:
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    provider = BedrockProvider(
        region_name="us-east-1", base_url=URL, aws_access_key_id="anybody", aws_secret_access_key=KEY
    )
    return BedrockConverseModel(MODEL, provider=provider)


def google() -> Any:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(MODEL, provider=GoogleProvider(api_key=KEY, base_url=URL))


async def main(provider: str, hows: list[str]) -> None:
    from pydantic_ai import Agent

    providers = {"anthropic": anthropic, "chat": chat, "responses": responses, "bedrock": bedrock, "google": google}
    agent = Agent(providers[provider](), tools=[copy])

    async def read(_: Any, events: Any) -> None:  # with an event handler, the agent streams
        async for _event in events:
            pass

    for how in hows:
        run = await agent.run(PROMPT, event_stream_handler=read if how == "stream" else None)
        print(run.output)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
