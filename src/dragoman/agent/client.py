"""Clients of the agent: they send a conversation to an upstream and return the events of its reply.

`DialectClient` works with every dialect and any `Sender`; `BedrockClient` is the one for Bedrock's Converse, and also
reads raw Converse responses. They do blocking I/O through their sender.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import dragoman.dialects as registry
from dragoman.agent.types import BedrockResponseError, ToolUseBlock
from dragoman.dialects.base import SYSTEM_ENVIRONMENT, Dialect, StreamReader
from dragoman.errors import Fault, LocalMisuse, Reset, TransportError, UpstreamFault, UpstreamViolation
from dragoman.filters.calls import as_object
from dragoman.http.addresses import parse_base_url
from dragoman.http.client.blocking import send
from dragoman.http.client.client import HttpTimeouts
from dragoman.model.assemble import reply_events
from dragoman.model.conversation import Conversation
from dragoman.model.events import BlockKeys, DecodedFrame, Events
from dragoman.response_stream import ResponseFilters
from dragoman.translate import plan
from dragoman.wire import jsonio
from dragoman.wire.fields import describe, is_blank
from dragoman.wire.http import HttpRequest, HttpResponse

BodyChunks: TypeAlias = Iterable[bytes]
Sign: TypeAlias = Callable[[HttpRequest], HttpRequest]

_IDLE_TIMEOUT = 300.0  # seconds without a byte


class Sender(Protocol):
    """Sends a request; returns the head of the response, and its body as it arrives. May raise TransportError."""

    def __call__(self, request: HttpRequest, timeout: float | None) -> tuple[HttpResponse, BodyChunks]: ...


class HttpSender:
    """Sends requests to one base URL, each over a new connection."""

    def __init__(self, url: str) -> None:
        parse_base_url(url)  # raises LocalMisuse for a wrong URL
        self._url = url

    def __call__(self, request: HttpRequest, timeout: float | None) -> tuple[HttpResponse, Iterator[bytes]]:
        """Send a request. Raises TransportError, also while the body is read; `timeout` limits each wait (300 s)."""
        seconds = _IDLE_TIMEOUT if timeout is None else timeout
        timeouts = HttpTimeouts(dns=seconds, connect=seconds, tls=seconds, write=seconds, head=seconds, idle=seconds)
        try:
            head, body = send(self._url, request, timeouts=timeouts)
        except UpstreamViolation as error:
            raise Reset(str(error)) from None
        return head, _with_transport_errors(body)


def _with_transport_errors(body: Iterator[bytes]) -> Iterator[bytes]:
    try:
        yield from body
    except UpstreamViolation as error:
        raise Reset(str(error)) from None


class Client(Protocol):
    """Sends conversations to a model."""

    def ask(self, conversation: Conversation, timeout: float | None = None) -> Iterator[Events]:
        """Send a conversation; yield the events of one reply in groups, as they arrive. A failure is the last event."""


class DialectClient:
    """Sends conversations to an upstream of any dialect: plans the request, sends it, reads the response."""

    def __init__(self, dialect: Dialect | str, send: Sender, model: str = "", sign: Sign | None = None) -> None:
        self._dialect = registry.get(dialect) if isinstance(dialect, str) else dialect
        self._send = send
        self._sign = sign
        self._model = model

    def ask(self, conversation: Conversation, timeout: float | None = None) -> Iterator[Events]:
        """Send the conversation. Raises DragomanError before the reply begins; later failures are the event Failed."""
        dialect = self._dialect
        model = self._model or conversation.model
        if not model:
            raise LocalMisuse("no model is set: give `model` to the client or to the conversation")
        planned = plan(dialect, dialect, conversation, model=model)
        request = dialect.binding.wrap(planned.call())
        head, body = self._send(self._sign(request) if self._sign else request, timeout)
        if head.status >= 400:
            whole = HttpResponse(head.status, head.headers, b"".join(body))
            fault = dialect.codec.parse_fault(whole, planned.translated)
            raise UpstreamFault(fault.message, fault=fault)
        keys = BlockKeys()
        response_filters = ResponseFilters(planned, keys)
        if not (planned.translated.stream or "streams_only" in dialect.codec.capabilities(model).traits):
            yield response_filters.feed(
                reply_events(dialect.codec.parse_reply(b"".join(body), planned.translated), keys)
            )
            return
        reader = StreamReader(
            dialect.binding.frame_decoder(), dialect.codec.decoder(planned.translated, SYSTEM_ENVIRONMENT, keys)
        )
        with _closing(body):
            for step in _steps(reader, body):
                yield response_filters.feed(step.events)


def _steps(reader: StreamReader, body: BodyChunks) -> Iterator[DecodedFrame]:
    """Yield the decoded frames of a body, up to its end or up to a transport error."""
    broken: Fault | None = None
    try:
        for chunk in body:
            yield from reader.feed(chunk)
            if reader.is_over:
                return
    except TransportError as error:
        broken = error.fault
    yield from reader.close(broken)


@contextmanager
def _closing(body: BodyChunks) -> Iterator[None]:
    """Close the connection at once if the rest of the body is not read."""
    try:
        yield
    finally:
        if isinstance(body, Generator):
            body.close()


class BedrockClient:
    """A client of Bedrock's Converse. It reads credentials and connects at the first request, not when it is made.

    `model` is a model id or an inference profile. `region`, `profile` and `endpoint_url` default to those of the AWS
    tools. Signing needs `dragoman[bedrock]`, or `AWS_BEARER_TOKEN_BEDROCK`.
    """

    def __init__(
        self, model: str = "", *, region: str = "", profile: str = "", endpoint_url: str = "", sign: Sign | None = None
    ) -> None:
        self._model = model
        self._region = region
        self._profile = profile
        self._url = endpoint_url
        self._sign = sign
        self._client: DialectClient | None = None

    # --- sending

    def ask(self, conversation: Conversation, timeout: float | None = None) -> Iterator[Events]:
        """Send the conversation, for a whole or a streamed reply as `conversation.stream` says."""
        if self._client is None:
            self._client = self._connect()
        return self._client.ask(conversation, timeout)

    def _connect(self) -> DialectClient:
        from dragoman.upstream.sigv4 import AwsCredential, bedrock_endpoint, find_region  # noqa: PLC0415  # an optional extra

        region = self._region or find_region(self._profile)
        url = self._url or bedrock_endpoint(region)
        sign = self._sign or AwsCredential("bedrock", url, region, self._profile).sign_blocking
        return DialectClient("bedrock", HttpSender(url), self._model, sign)

    # --- reading raw responses

    def parse_tool_use(self, response: Mapping[str, Any]) -> ToolUseBlock:
        """Return the first tool call of a raw response. Raises BedrockResponseError with the missing field."""
        for call in tool_uses_in(self._extract_content(response)):
            return call
        raise BedrockResponseError("No tool_use block found in Bedrock response", response)

    def parse_tool_uses(self, response: Mapping[str, Any]) -> list[ToolUseBlock]:
        """Return all tool calls of a raw response. Raises BedrockResponseError."""
        return list(tool_uses_in(self._extract_content(response)))

    def has_tool_use(self, response: Mapping[str, Any]) -> bool:
        """Return whether a raw response has a tool call, valid or not. Raises BedrockResponseError without content."""
        return any(_use_in(block) is not _NO_CALL for block in self._extract_content(response))

    def text_of(self, response: Mapping[str, Any]) -> str:
        """Return the text of a raw response. Raises BedrockResponseError, also for a text that is not a string."""
        texts = []
        for block in self._extract_content(response):
            if isinstance(block, Mapping) and "text" in block:
                if not isinstance(block["text"], str):
                    raise BedrockResponseError("Bedrock response 'text' is not a string", block, "text")
                texts.append(block["text"])
        return "".join(texts)

    def _extract_content(self, response: Mapping[str, Any] | None) -> list[Any]:
        return content_of(response)

    def _validate_tool_use_block(self, block: Mapping[str, Any]) -> ToolUseBlock:
        return validate_call(block)


# --- reading a raw Converse response: every field is checked before it is used


_NO_CALL = object()  # None would be ambiguous: a block may contain a call that is null


def content_of(response: Mapping[str, Any] | None) -> list[Any]:
    """Return the content blocks of a response. Raises BedrockResponseError."""
    place: Any = response
    for name in ("output", "message", "content"):
        if not isinstance(place, Mapping) or name not in place:
            raise BedrockResponseError(f"Bedrock response missing expected path: {name!r}", response)
        place = place[name]
    if not isinstance(place, list):
        raise BedrockResponseError("Bedrock response 'content' is not a list", response)
    return place


def tool_uses_in(blocks: list[Any]) -> Iterator[ToolUseBlock]:
    """Yield the validated calls of content blocks, in Converse's form and in the flat one. Raises BedrockResponseError.

    See docs/decisions/bedrock.md#d30.
    """
    return (validate_call(use) for block in blocks if (use := _use_in(block)) is not _NO_CALL)


def replace_calls(blocks: list[Any], calls: Iterable[ToolUseBlock]) -> list[Any]:
    """Return the blocks with their calls replaced by these, in order, all in Converse's form."""
    remaining = iter(calls)
    return [block if _use_in(block) is _NO_CALL else _block(next(remaining)) for block in blocks]


def _block(call: ToolUseBlock) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": call["id"], "name": call["name"], "input": call["input"]}}


def validate_call(use: Any) -> ToolUseBlock:
    """Return a call with an id, a name and an object of arguments. Raises BedrockResponseError with the wrong field.

    See docs/decisions/content.md#d3.
    """
    if not isinstance(use, Mapping):
        raise BedrockResponseError("Bedrock response 'toolUse' is not an object", {"toolUse": use}, "toolUse")
    for name in ("toolUseId", "name"):
        value = use.get(name)
        if value is not None and not isinstance(value, str):
            problem = f"Bedrock response '{name}' is not a string, but {describe(value)}"
            raise BedrockResponseError(problem, use, name)
        if value is None or is_blank(value):
            raise BedrockResponseError(f"Bedrock response missing required '{name}' field", use, name)
    return ToolUseBlock(id=use["toolUseId"], name=use["name"], input=_object(use))


def _use_in(block: Any) -> Any:
    """Return the call in a block, or _NO_CALL; a tool that the service runs itself is not a call."""
    if not isinstance(block, Mapping):
        return _NO_CALL
    if block.get("type") == "tool_use":
        return block
    use = block.get("toolUse")
    if "toolUse" not in block or (isinstance(use, Mapping) and use.get("type") == "server_tool_use"):
        return _NO_CALL
    return use


def _object(use: Mapping[str, Any]) -> dict[str, Any]:
    value = use.get("input")
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    try:
        text = value if isinstance(value, str) else jsonio.encode(value).decode()
        return arguments_object(text)
    except jsonio.JsonError:
        raise BedrockResponseError("Bedrock response 'input' is not JSON", use, "input") from None


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; others are wrapped in one (docs/decisions/content.md#d3)."""
    decoded = jsonio.decode(as_object(arguments) or "{}")
    assert isinstance(decoded, dict)
    return decoded
