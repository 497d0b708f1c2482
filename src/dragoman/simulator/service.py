"""A simulated service of any registered dialect: the dialect's codec parses the request and renders the reply.

No I/O: `server` reads requests and writes the responses. Kiro has a service of its own (`simulator.kiro`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Protocol

from msgspec import structs

import dragoman.dialects as registry
from dragoman.dialects.base import ApiRequest, Dialect, Environment, ListedModel
from dragoman.dialects.kiro.request import estimate_input_tokens
from dragoman.dialects.rulebook import Severity
from dragoman.errors import DragomanError, Fault
from dragoman.model import events as ev
from dragoman.model.assemble import assemble_reply
from dragoman.model.blocks import Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Stop, ToolSpec, Usage
from dragoman.simulator.model import ModelPrompt, PromptTool, output_tokens, respond
from dragoman.simulator.response import (
    BodyPiece,
    Pause,
    Response,
    apply_pace,
    header_text,
    scripted_headers,
    split_text,
    whole_response,
)
from dragoman.simulator.script import (
    ExceptionPart,
    FramePart,
    ReasoningPart,
    Script,
    ScriptPart,
    ScriptPlayer,
    ScriptTurn,
    TextPart,
    ToolCallPart,
    WaitPart,
    exception_for,
    make_fault,
)
from dragoman.wire import jsonio
from dragoman.wire.eventstream import EventStreamDecoder
from dragoman.wire.frame import Payload
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json
from dragoman.wire.ndjson import NDJSON, NdjsonDecoder

_NOW = 1_767_225_600  # a fixed time, because replies are deterministic
_KEY_HEADERS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
_JSON = (("content-type", "application/json"),)
_MODEL = "sim-model"
# The prefixes of reply ids and call ids by family, as clients expect them.
_PREFIXES = {"anthropic": ("msg_", "toolu_"), "openai": ("chatcmpl-", "call_")}
# The content type of a stream by its framing; all other framings are server-sent events.
_STREAM_TYPES: dict[type, str] = {EventStreamDecoder: "application/vnd.amazon.eventstream", NdjsonDecoder: NDJSON}
_ERRORS: tuple[Severity, ...] = ("error",)


class SimulatedService(Protocol):
    """A service that the server calls with each request. It keeps its own state, and does no I/O and no waiting."""

    max_body: int

    def handle(self, request: HttpRequest) -> Response:
        """Return the response to a request."""

    def too_large(self, request: HttpRequest) -> Response:
        """Return the response to a request whose body exceeds `max_body` and was not read."""


class DialectService:
    """The simulated service of a dialect of the registry. Breaches of the severities `refuses` are refused."""

    def __init__(
        self,
        dialect: Dialect,
        script: Script,
        *,
        refuses: Collection[Severity] = _ERRORS,
        max_body: int = 32 * 1024 * 1024,
    ) -> None:
        self._dialect = dialect
        self._script = script
        self._player = ScriptPlayer(script)
        self._refuses = refuses
        self.max_body = max_body

    def handle(self, request: HttpRequest) -> Response:
        try:
            return self._respond(request)
        except DragomanError as error:
            return self._refuse(error.fault)

    def too_large(self, request: HttpRequest) -> Response:
        return self._refuse(Fault("too_large", f"The request exceeds {self.max_body} bytes.", 413))

    def _respond(self, request: HttpRequest) -> Response:
        if not self._is_authorized(request):
            return self._refuse(Fault("auth", "The API key is missing or not valid.", 401))
        call = self._dialect.binding.match(request)
        if call is None:
            if request.method == "GET" and request.path.endswith("/models"):
                return self._models()
            return self._refuse(Fault("not_found", f"Nothing answers {request.method} {request.path}.", 404))
        match call.operation:
            case "generate":
                return self._generate(call, request.body)
            case "count":
                return self._count(call)
            case "models":
                return self._models()
            case "stored" | "relay":  # A binding matches no relayed endpoint.
                return self._refuse(Fault("not_found", f"Nothing is kept under {call.hints['id']}.", 404))

    def _models(self) -> Response:
        """Return the list of models, in the dialect's form or, if it has none, in OpenAI's."""
        shape = self._dialect.listing or registry.get("openai").listing
        assert shape is not None
        entry = shape.entry(ListedModel(_MODEL, created=_NOW))
        known: Json = {name: value for name, value in entry.items() if value is not None}
        return whole_response(200, _JSON, jsonio.encode(shape.render_list([known])))

    def _is_authorized(self, request: HttpRequest) -> bool:
        keys = [request.header(name) for name in _KEY_HEADERS if request.header(name)]
        accepted = self._script.tokens.access
        return any(accepted is None or key in accepted or key.partition(" ")[2] in accepted for key in keys)

    def _count(self, call: ApiRequest) -> Response:
        counts = self._dialect.counts
        if counts is None:
            return self._refuse(Fault("not_found", "This service counts no tokens.", 404))
        conversation = self._dialect.codec.parse_request(call)
        return whole_response(200, _JSON, counts.render_count(read_prompt(conversation).input_tokens, False))

    def _generate(self, call: ApiRequest, body: bytes) -> Response:
        codec = self._dialect.codec
        first = next((breach for breach in codec.breaches(call) if breach.severity in self._refuses), None)
        if first is not None:
            fault = Fault("invalid", f"{first.at}: {first.detail}" if first.at else first.detail, 400, at=first.at)
            return self._refuse(fault, first.rule)
        conversation = codec.parse_request(call)
        turn = self._player.next()
        if turn.status != 200:
            return self._scripted_refusal(turn)
        return self._perform(conversation, turn, _deterministic_environment(body))

    def _perform(self, conversation: Conversation, turn: ScriptTurn, environment: Environment) -> Response:
        events_and_waits = _reply_events(conversation, turn, environment, self._dialect)
        if conversation.stream:
            frames = _frames(events_and_waits, self._dialect, conversation, environment)
            kind = _STREAM_TYPES.get(type(self._dialect.binding.frame_decoder()), "text/event-stream; charset=utf-8")
            headers = (("content-type", kind), ("cache-control", "no-cache"))
            return Response(200, headers, apply_pace(frames, turn, turn.cut))
        waits, events = [], []
        for each in events_and_waits:
            if isinstance(each, WaitPart):
                waits.append(Pause(each.seconds))
            elif not isinstance(each, FramePart):
                events.append(each)
        try:
            reply = assemble_reply(events)
        except DragomanError as error:  # a failure inside a scripted stream is an error response for a whole reply
            return self._refuse(error.fault)
        rendered = self._dialect.codec.render_reply(reply, conversation, environment)
        return Response(200, _JSON, apply_pace([*waits, rendered], turn, turn.cut), len(rendered))

    def _refuse(self, fault: Fault, rule: str = "") -> Response:
        refused = self._dialect.binding.error_response(fault, self._dialect.codec.render_fault(fault))
        headers = (*refused.headers, ("x-dragoman-rule", header_text(rule))) if rule else refused.headers
        return whole_response(refused.status, headers, refused.body, f"{rule} {fault.message}".strip())

    def _scripted_refusal(self, refuse: ScriptTurn) -> Response:
        name = refuse.type or exception_for(refuse.status)
        response = self._refuse(make_fault(name, refuse.message, refuse.status, refuse.retry_after))
        more = scripted_headers(refuse)
        unchanged = tuple((name, value) for name, value in response.headers if name not in more)
        headers = (*unchanged, *more.items())
        return Response(refuse.status, headers, response.pieces, response.length, f"script: {refuse.status}")


def _deterministic_environment(body: bytes) -> Environment:
    """Return an environment whose ids depend on the body: equal for equal requests, different for each turn."""
    seed, number = hashlib.sha256(body).hexdigest()[:16], itertools.count()
    return Environment(new_id=lambda prefix: f"{prefix}{seed}{next(number):08x}", now=lambda: _NOW)


# --- the prompt of the embedded model


def read_prompt(conversation: Conversation) -> ModelPrompt:
    """Return the parts of a conversation that the embedded model uses."""
    last = next((message for message in reversed(conversation.messages) if message.role != "system"), None)
    blocks = last.blocks if last is not None and last.role == "user" else ()
    choice = conversation.tool_choice
    tools = tuple(PromptTool(tool.name, tool.schema) for tool in conversation.tools if isinstance(tool, ToolSpec))
    if choice.names:
        tools = tuple(tool for tool in tools if tool.name in choice.names)
    return ModelPrompt(
        text="\n\n".join(block.text for block in blocks if isinstance(block, Text)),
        results=tuple(
            "\n".join(part.text for part in block.content if isinstance(part, Text))
            for block in blocks
            if isinstance(block, ToolResult)
        ),
        tools=() if choice.mode == "none" else tools,
        must_call=choice.mode in ("any", "one"),
        parallel=choice.parallel is not False,
        thinks=conversation.thinking.mode in ("on", "adaptive", "between_tools")
        or conversation.thinking.effort not in ("", "none"),
        output=conversation.output.schema or {"type": "object"} if conversation.output.kind != "text" else None,
        max_tokens=conversation.max_tokens,
        stop=conversation.stop,
        # Each message costs some tokens besides its text.
        input_tokens=estimate_input_tokens(conversation) + 4 * len(conversation.messages),
    )


# --- the reply


def _reply_events(
    conversation: Conversation, turn: ScriptTurn, environment: Environment, dialect: Dialect
) -> Iterator[ev.Event | WaitPart | FramePart]:
    """Yield a turn as the events of one stream, with the waits and raw frames of the script between them."""
    capabilities = dialect.codec.capabilities(conversation.model)
    prompt = read_prompt(conversation)
    output = respond(prompt, turn.parts)
    parts = (
        output.parts
        if "reasoning" in capabilities.traits
        else tuple(part for part in output.parts if not isinstance(part, ReasoningPart))
    )
    family = dialect.codec.family if dialect.codec.family in capabilities.signatures else ""
    input_count = prompt.input_tokens if turn.input_tokens is None else turn.input_tokens
    output_count = output_tokens(parts) if turn.output_tokens is None else turn.output_tokens
    reply_prefix, call_prefix = _PREFIXES.get(dialect.codec.family, ("sim-", "call_"))
    yield ev.Started(environment.new_id(reply_prefix), conversation.model, Usage(input=input_count))
    keys = itertools.count()
    free_text_tools = {tool.name for tool in conversation.tools if isinstance(tool, ToolSpec) and tool.schema is None}
    for choice in range(max(conversation.choices, 1)):
        # Dialects that sign content sign only the first call of a reply.
        unsigned = "signed_content" in capabilities.traits
        for part in parts:
            if isinstance(part, ExceptionPart):
                yield ev.Failed(make_fault(part.type, part.message))
                return
            signer = family if unsigned or not isinstance(part, ToolCallPart) else ""
            unsigned = unsigned and not isinstance(part, ToolCallPart)
            if isinstance(part, ToolCallPart) and part.name in free_text_tools:
                part = structs.replace(part, arguments=_as_free_text(part.arguments), form="text")  # noqa: PLW2901
            yield from _part_events(
                part, next(keys), choice, turn.chunk, signer, lambda: environment.new_id(call_prefix)
            )
        yield ev.Stopped(Stop(turn.stop or output.stop, turn.sequence or output.sequence), choice)
    yield ev.UsageReported(Usage(input=input_count, output=output_count * max(conversation.choices, 1)))
    yield ev.FINISHED


def _as_free_text(arguments: str) -> str:
    """Return a script's arguments as free text: the string, if they are an object with only one string."""
    texts = list((jsonio.decode_object(arguments) or {}).values())
    return texts[0] if len(texts) == 1 and isinstance(texts[0], str) else arguments


def _part_events(
    part: ScriptPart, key: int, choice: int, chunk: int, family: str, new_call_id: Callable[[], str]
) -> Iterator[ev.Event | WaitPart | FramePart]:
    match part:
        case TextPart(text):
            yield ev.BlockStarted(key, Text(""), choice)
            yield from (ev.TextDelta(key, piece) for piece in split_text(text, chunk))
        case ReasoningPart(text):
            yield ev.BlockStarted(key, Reasoning("", family), choice)
            yield from (ev.ReasoningDelta(key, piece) for piece in split_text(text, chunk))
            yield from _signed(key, family, text)
        case ToolCallPart():
            yield ev.BlockStarted(key, ToolCall(part.id or new_call_id(), part.name, form=part.form), choice)
            yield from (ev.ArgumentsDelta(key, piece) for piece in split_text(part.arguments, chunk))
            yield from _signed(key, family, part.name + part.arguments)
        case WaitPart() | FramePart():
            yield part
            return
        case ExceptionPart():
            return
    yield ev.BlockEnded(key)


def _signed(key: int, family: str, text: str) -> Iterator[ev.Event]:
    if family:
        yield ev.SignatureAdded(
            key, Signature(family, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
        )


def _frames(
    parts: Iterable[ev.Event | WaitPart | FramePart],
    dialect: Dialect,
    conversation: Conversation,
    environment: Environment,
) -> Iterator[BodyPiece]:
    encoder, frame = dialect.codec.encoder(conversation, environment), dialect.binding.encode_frame
    for each in parts:
        match each:
            case WaitPart(seconds):
                yield Pause(seconds)
            case FramePart(event, data):
                yield frame(Payload(event.encode(), jsonio.encode(data)))
            case event:
                yield from (frame(payload) for payload in encoder.feed((event,)))
