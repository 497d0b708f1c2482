"""LiteLLM as a library: `python -m tests.clients.loops.litellm PROVIDER HOW...`."""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import json
import sys
from typing import Any

from tests.clients.loops.common import KEY, MODEL, PROMPT, SCHEMA, URL, copy


def main(provider: str, how: str) -> str:
    import litellm

    tools = [{"type": "function", "function": {"name": "copy", "description": "Copy a file", "parameters": SCHEMA}}]
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    base = URL if provider == "anthropic" else f"{URL}/v1"
    while True:
        response = litellm.completion(
            model=f"{provider}/{MODEL}",
            api_base=base,
            api_key=KEY,
            messages=messages,
            tools=tools,
            stream=how == "stream",
            max_tokens=500,
            num_retries=0,
        )
        if how == "stream":
            response = litellm.stream_chunk_builder(list(response), messages=messages)
        message = response.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = copy(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    for how in sys.argv[2:]:
        print(main(sys.argv[1], how))
