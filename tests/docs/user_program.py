"""A program that uses every public name. Tests run it, and check it with `mypy --strict`, outside of the repository."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from typing import Any, Unpack

import dragoman
from dragoman import agent, raw_tools

BODY: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
REPLY = {"id": "1", "model": "m", "choices": [{"index": 0, "message": {"content": "Hello."}, "finish_reason": "stop"}]}


def translate(**options: Unpack[dragoman.Options]) -> dragoman.Translated:
    """Pass options on."""
    return dragoman.translate_request(BODY, source="anthropic", target="openai", **options)


def use_translations() -> None:
    """Translate a request, a reply, a stream and errors."""
    assert {"anthropic", "openai"} <= set(dragoman.dialects()) and dragoman.__version__
    options: dragoman.Options = {"losses": "refuse", "max_tokens_field": "max_tokens", "settings": {}}
    request = translate(**options)
    notes: list[dragoman.Note] = request.notes
    headers: dict[str, str] = request.headers
    assert (request.path, request.stream, notes, headers["accept"]) == (
        *("/v1/chat/completions", False, []),
        "application/json",
    )
    reply = dragoman.translate_reply(REPLY, source="openai", target="anthropic", request=request)
    assert reply.body["content"][0]["text"] == "Hello." and reply.raw
    stream: dragoman.StreamTranslator = dragoman.stream_translator(
        source="openai", target="anthropic", request=translate(repair=True)
    )
    end: bytes = stream.feed(b"") + stream.close(dragoman.Reset("the connection broke"))
    error: dragoman.DragomanError | None = stream.error
    assert isinstance(error, dragoman.TransportError) and b"error" in end
    refused: dragoman.UpstreamFault = dragoman.parse_error(b"{}", status=429, dialect="openai", request=request)
    fault: dragoman.Fault = refused.fault
    rendered: dragoman.RenderedError = dragoman.render_error(refused, dialect="anthropic")
    assert (fault.kind, rendered.status, rendered.headers["content-type"]) == ("rate_limit", 429, "application/json")
    assert rendered.body


def use_errors() -> None:
    """Name every class of error."""
    client = (dragoman.MalformedRequest, dragoman.Unrepresentable, dragoman.UnknownModel)
    client_too = (dragoman.NotAuthorised, dragoman.TooLarge)
    upstream = (dragoman.BadFrame, dragoman.MissingField, dragoman.OutOfOrder)
    upstream_too = (dragoman.ResponseTooLarge, dragoman.Truncated)
    network = (dragoman.ConnectFailed, dragoman.TimedOut, dragoman.Reset)
    assert all(issubclass(each, dragoman.ClientFault) for each in (*client, *client_too))
    assert all(issubclass(each, dragoman.UpstreamViolation) for each in (*upstream, *upstream_too))
    assert all(issubclass(each, dragoman.TransportError) for each in network)
    try:
        dragoman.load_config({"server": {"prot": 1}})
    except dragoman.ConfigError as error:
        assert isinstance(error, dragoman.LocalMisuse)
        assert [problem.at for problem in error.problems] == ["server.prot"]


async def use_gateway() -> None:
    """Start and stop a gateway."""
    config: dragoman.Config = dragoman.load_config({})
    assert config.file is None and config.warnings == ()
    gateway: dragoman.Gateway = dragoman.asgi(config)
    await gateway.start()
    await gateway.reload(dragoman.load_config({"explain": False}))
    status: dict[str, Any] = dict(gateway.status())
    assert status["state"] == "ready" and gateway.metrics() and gateway.key
    await gateway.stop()


def use_raw_tools() -> None:
    """Recover a tool call, and read events."""
    written, log = io.BytesIO(), io.BytesIO()
    writer: raw_tools.Writer = raw_tools.LoggingTransformer(log, written)
    transformer: raw_tools.SSETransformer = raw_tools.ToolCallTransformer(writer, ["bash"], choice="auto", mode="live")
    transformer.transform('{"choices": [{"index": 0, "delta": {"content": "Hello."}}]}')
    transformer.flush()
    assert b"Hello." in written.getvalue() == log.getvalue()
    parser = raw_tools.ToolCallParser(["bash"], used_ids=["call_1"])
    events: list[raw_tools.TransformedEvent] = parser.process("[DONE]") + parser.flush()
    kinds: list[raw_tools.EventType] = [event.type for event in events]
    assert kinds == [raw_tools.EventPassthrough]
    others = (raw_tools.EventContent, raw_tools.EventToolCall, raw_tools.EventFinish, raw_tools.EventUsage)
    assert len({*others}) == 4
    call = raw_tools.ToolCall(0, "call_2", "bash", "{}")
    assert b"bash" in raw_tools.ToolCallEventBuilder().build_tool_call_delta(raw_tools.StreamMetadata("c", "m"), call)


def weather(city: str) -> agent.Text:
    """Return the weather of a city."""
    if not city:
        raise ValueError("no city")
    return agent.Text(f"{city}: sunny")


class Answers:
    """A sender that answers without a network."""

    def __call__(self, request: agent.HttpRequest, timeout: float | None) -> tuple[agent.HttpResponse, Iterator[bytes]]:
        """Answer with a whole reply."""
        body = b'{"id": "1", "model": "m", "choices": [{"message": {"content": "Done."}, "finish_reason": "stop"}]}'
        return agent.HttpResponse(200, (("content-type", "application/json"),)), iter([body])


def use_agent() -> None:
    """Run the tool loop, and read raw responses."""
    watched: list[agent.RunEvent] = []
    sender: agent.Sender = Answers()
    client: agent.Client = agent.DialectClient("openai", sender, "m")
    runner = agent.AgentRunner(client, [weather, agent.as_tool(len_of)], stream=False, watch=watched.append)
    question = agent.Conversation("m", (agent.Message("user", (agent.Text("hi"),)),))
    result: agent.RunResult = runner.run(question)
    usage: agent.Usage = result.usage
    assert (result.status, result.text, usage) == ("done", "Done.", agent.Usage())
    assert isinstance(watched[0], agent.StepStarted) and isinstance(watched[-1], agent.RunEnded)
    others = (agent.TextReceived, agent.ReasoningReceived, agent.ToolStarted, agent.ToolEnded, agent.StepEnded)
    assert all(isinstance(event, (*others, agent.StepStarted, agent.RunEnded)) for event in watched)
    assert callable(agent.HttpSender("http://127.0.0.1:1"))
    tool: agent.Tool = agent.as_tool(weather)
    try:
        tool.call({"city": ""})
    except agent.ToolError as error:
        assert str(error) == "ValueError: no city"
    blocks: tuple[agent.Text | agent.Media, ...] = tool.call({"city": "Oslo"})
    assert blocks == (agent.Text("Oslo: sunny"),)


def len_of(text: str) -> int:
    """Return the length of a text."""
    return len(text)


def use_bedrock() -> None:
    """Read raw responses of Converse."""
    raw = {"output": {"message": {"content": [{"toolUse": {"toolUseId": "t", "name": "weather", "input": {}}}]}}}
    bedrock = agent.BedrockClient("anthropic.claude-sonnet-4-5-20250929-v1:0", region="us-east-1")
    block: agent.ToolUseBlock = bedrock.parse_tool_use(raw)
    step: agent.StepResult = agent.AgentRunner(bedrock, [weather]).step(raw)
    answers: tuple[agent.ToolAnswer, ...] = step.answers
    assert (block["id"], answers[0]["is_error"]) == ("t", True)
    try:
        bedrock.parse_tool_use({})
    except agent.BedrockResponseError as error:
        assert isinstance(error, dragoman.UpstreamViolation)


use_translations()
use_errors()
asyncio.run(use_gateway())
use_raw_tools()
use_agent()
use_bedrock()
print("used")
