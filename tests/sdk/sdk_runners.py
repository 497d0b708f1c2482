"""Run captured responses through the official SDKs, in Python and in TypeScript, without a network."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import httpx2 as httpx  # the version that the SDKs use
import openai

NODE = Path(__file__).parent / "node"
QUESTION: Any = [{"role": "user", "content": "?"}]


@dataclass(frozen=True)
class SdkTask:
    """An HTTP response and the SDK that reads it."""

    sdk: str
    how: str  # stream | whole
    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def all_headers(self) -> dict[str, str]:
        kind = "text/event-stream" if self.how == "stream" and self.status == 200 else "application/json"
        return {"content-type": kind, **self.headers}


Outcome = dict[str, Any]  # text, reasoning, calls, stop, usage; or error, status, message


def run_node(tasks: list[SdkTask]) -> list[Outcome]:
    """Run all tasks in one Node process."""
    lines = [
        json.dumps(
            {
                "sdk": task.sdk,
                "how": task.how,
                "status": task.status,
                "headers": task.all_headers,
                "body": base64.b64encode(task.body).decode(),
            }
        )
        for task in tasks
    ]
    done = subprocess.run(
        ["node", "ask.mjs"],
        cwd=NODE,
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_python(task: SdkTask) -> Outcome:
    try:
        return {"anthropic": _anthropic, "openai": _openai, "responses": _responses}[task.sdk](task)
    except (anthropic.APIError, openai.APIError) as error:
        return {"error": type(error).__name__, "status": getattr(error, "status_code", None), "message": str(error)}


def _client(task: SdkTask) -> httpx.Client:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(task.status, headers=task.all_headers, content=_pieces(task.body))

    return httpx.Client(transport=httpx.MockTransport(respond))


def _pieces(body: bytes) -> Iterator[bytes]:
    for at in range(0, len(body), 97):
        yield body[at : at + 97]


def _anthropic(task: SdkTask) -> Outcome:
    client = anthropic.Anthropic(api_key="x", max_retries=0, http_client=_client(task))
    if task.how == "stream":
        with client.messages.stream(model="m", max_tokens=10, messages=QUESTION) as stream:
            message: Any = stream.get_final_message()
    else:
        message = client.messages.create(model="m", max_tokens=10, messages=QUESTION)
    return {
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "reasoning": "".join(block.thinking for block in message.content if block.type == "thinking"),
        "calls": [[block.id, block.name, block.input] for block in message.content if block.type == "tool_use"],
        "stop": message.stop_reason,
        "usage": [message.usage.input_tokens, message.usage.output_tokens],
    }


def _openai(task: SdkTask) -> Outcome:
    client = openai.OpenAI(api_key="x", max_retries=0, http_client=_client(task))
    if task.how == "stream":
        with client.chat.completions.stream(
            model="m", messages=QUESTION, stream_options={"include_usage": True}
        ) as stream:
            try:
                completion: Any = stream.get_final_completion()
            except openai.LengthFinishReasonError as cut:  # this helper raises for a length stop
                completion = cut.completion
    else:
        completion = client.chat.completions.create(model="m", messages=QUESTION)
    choice = completion.choices[0]
    message = choice.message
    return {
        "text": message.content or "",
        "reasoning": _reasoning(message.model_extra or {}),
        "calls": [_call(call) for call in message.tool_calls or []],
        "stop": choice.finish_reason,
        "usage": [completion.usage.prompt_tokens, completion.usage.completion_tokens] if completion.usage else None,
    }


def _responses(task: SdkTask) -> Outcome:
    client = openai.OpenAI(api_key="x", max_retries=0, http_client=_client(task))
    if task.how == "whole":
        return _responded(client.responses.create(model="m", input="?"))
    last: Any = None
    with client.responses.stream(model="m", input="?") as stream:
        for event in stream:
            if event.type in ("response.completed", "response.incomplete", "response.failed"):
                last = event.response
        if last.status == "completed":  # the helper's final response supports no other status
            last = stream.get_final_response()
    return _responded(last)


def _responded(response: Any) -> Outcome:
    if response.status == "failed":
        return {"error": response.error.code, "status": None, "message": response.error.message}
    calls = [item for item in response.output if item.type in ("function_call", "custom_tool_call")]
    thoughts = [part.text for item in response.output if item.type == "reasoning" for part in item.summary]
    thoughts += [part.text for item in response.output if item.type == "reasoning" for part in item.content or ()]
    reason = response.incomplete_details and response.incomplete_details.reason
    return {
        "text": response.output_text,
        "reasoning": "\n\n".join(thoughts),  # joined parts of one text
        "calls": [
            [item.call_id, item.name, json.loads(item.arguments) if item.type == "function_call" else item.input]
            for item in calls
        ],
        "stop": reason or response.status,
        "usage": [response.usage.input_tokens, response.usage.output_tokens],
    }


def _reasoning(extra: dict[str, Any]) -> str:
    """Return the reasoning from either of the two fields that upstreams use."""
    return str(extra.get("reasoning_content") or extra.get("reasoning") or "")


def _call(call: Any) -> list[Any]:
    if call.type == "custom":
        return [call.id, call.custom.name, call.custom.input]
    try:
        return [call.id, call.function.name, json.loads(call.function.arguments)]
    except ValueError:
        return [call.id, call.function.name, {"unparsed": call.function.arguments}]
