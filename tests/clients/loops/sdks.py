"""The official Python SDKs, each with a tool loop by hand: `python -m tests.clients.loops.sdks NAME HOW...`."""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.clients.loops.common import KEY, MODEL, PROMPT, SCHEMA, URL, copy


def anthropic(how: str) -> str:
    import anthropic

    tools: Any = [{"name": "copy", "description": "Copy a file", "input_schema": SCHEMA}]
    messages: Any = [{"role": "user", "content": PROMPT}]
    client = anthropic.Anthropic(api_key=KEY, base_url=URL, max_retries=0)
    while True:
        body: Any = {"model": MODEL, "max_tokens": 500, "messages": messages, "tools": tools}
        if how == "stream":
            with client.messages.stream(**body) as stream:
                response = stream.get_final_message()
        else:
            response = client.messages.create(**body)
        calls = [block for block in response.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in response.content if block.type == "text")
        messages.append({"role": "assistant", "content": response.content})
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": copy(**_arguments(call))} for call in calls
        ]
        messages.append({"role": "user", "content": results})


def _arguments(call: Any) -> dict[str, Any]:
    return dict(call.input)


def chat(how: str) -> str:
    import openai

    tools: Any = [{"type": "function", "function": {"name": "copy", "parameters": SCHEMA}}]
    messages: Any = [{"role": "user", "content": PROMPT}]
    client = openai.OpenAI(api_key=KEY, base_url=f"{URL}/v1", max_retries=0)
    while True:
        body: Any = {"model": MODEL, "messages": messages, "tools": tools}
        if how == "stream":
            with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
                response: Any = stream.get_final_completion()
        else:
            response = client.chat.completions.create(**body)
        message = response.choices[0].message
        if not message.tool_calls:
            return str(message.content)
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls:
            result = copy(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def responses(how: str) -> str:
    import openai

    tools: Any = [{"type": "function", "name": "copy", "parameters": SCHEMA, "strict": False}]
    items: Any = [{"role": "user", "content": PROMPT}]
    client = openai.OpenAI(api_key=KEY, base_url=f"{URL}/v1", max_retries=0)
    while True:
        body: Any = {"model": MODEL, "input": items, "tools": tools, "store": False}
        if how == "stream":
            with client.responses.stream(**body) as stream:
                stream.until_done()
                response: Any = stream.get_final_response()
        else:
            response = client.responses.create(**body)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return str(response.output_text)
        items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        for call in calls:
            result = copy(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})


def boto3(how: str) -> str:
    import boto3

    client = boto3.client(
        "bedrock-runtime",
        region_name="us-east-1",
        endpoint_url=URL,
        aws_access_key_id="anybody",
        aws_secret_access_key=KEY,
    )
    spec = {"name": "copy", "description": "Copy a file", "inputSchema": {"json": SCHEMA}}
    messages: Any = [{"role": "user", "content": [{"text": PROMPT}]}]
    while True:
        body: Any = {"modelId": MODEL, "messages": messages, "toolConfig": {"tools": [{"toolSpec": spec}]}}
        if how == "stream":
            blocks = gathered(client.converse_stream(**body)["stream"])
        else:
            blocks = client.converse(**body)["output"]["message"]["content"]
        calls = [block["toolUse"] for block in blocks if "toolUse" in block]
        if not calls:
            return "".join(block.get("text", "") for block in blocks)
        results = [{"toolUseId": call["toolUseId"], "content": [{"text": copy(**call["input"])}]} for call in calls]
        messages.append({"role": "assistant", "content": blocks})
        messages.append({"role": "user", "content": [{"toolResult": result} for result in results]})


def gathered(stream: Any) -> list[Any]:
    """The blocks of a stream."""
    blocks: dict[int, Any] = {}
    for event in stream:
        if "contentBlockStart" in event:
            start = event["contentBlockStart"]
            blocks[start["contentBlockIndex"]] = {"toolUse": {**start["start"]["toolUse"], "input": ""}}
        elif "contentBlockDelta" in event:
            index, delta = event["contentBlockDelta"]["contentBlockIndex"], event["contentBlockDelta"]["delta"]
            if "text" in delta:
                blocks.setdefault(index, {"text": ""})["text"] += delta["text"]
            elif "toolUse" in delta:
                blocks[index]["toolUse"]["input"] += delta["toolUse"]["input"]
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"])
    return list(blocks.values())


if __name__ == "__main__":
    loop = {"anthropic": anthropic, "chat": chat, "responses": responses, "boto3": boto3}[sys.argv[1]]
    for how in sys.argv[2:]:
        print(loop(how))
