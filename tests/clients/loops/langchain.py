"""A LangChain agent over each provider it has: `python -m tests.clients.loops.langchain PROVIDER HOW...`."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import sys
from typing import Any

from tests.clients.loops.common import KEY, MODEL, PROMPT, URL, copy


def anthropic() -> Any:
    from langchain_anthropic import ChatAnthropic

    return ChatAnthropic(model=MODEL, api_key=KEY, base_url=URL, max_retries=0, max_tokens=500)


def openai(responses: bool) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(model=MODEL, api_key=KEY, base_url=f"{URL}/v1", max_retries=0, use_responses_api=responses)


def bedrock() -> Any:
    from langchain_aws import ChatBedrockConverse

    return ChatBedrockConverse(
        model=MODEL,
        provider="anthropic",
        endpoint_url=URL,
        region_name="us-east-1",
        aws_access_key_id="anybody",
        aws_secret_access_key=KEY,
    )


def main(provider: str, hows: list[str]) -> None:
    from langchain.agents import create_agent

    model = {
        "anthropic": anthropic,
        "chat": lambda: openai(False),
        "responses": lambda: openai(True),
        "bedrock": bedrock,
    }[provider]()
    agent = create_agent(model, tools=[copy])
    body = {"messages": [{"role": "user", "content": PROMPT}]}
    for how in hows:
        if how == "stream":
            print("".join(piece.text for piece, _ in agent.stream(body, stream_mode="messages")))
        else:
            print(agent.invoke(body)["messages"][-1].text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
