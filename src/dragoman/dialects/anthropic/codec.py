"""The language: the parts of this package as one codec, and what it can say."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

from msgspec import UNSET, Struct, structs

from dragoman.dialects.anthropic import encoder, faults, request, rules, stream_rules
from dragoman.dialects.anthropic.blocks import FAMILY
from dragoman.dialects.anthropic.encoder import AnthropicEncoder
from dragoman.dialects.anthropic.faults import status_of
from dragoman.dialects.anthropic.quirks import AskSomething, ObjectSchemas, OwnReasoning
from dragoman.dialects.anthropic.request import MESSAGES, conversation_of
from dragoman.dialects.anthropic.rules import RULES
from dragoman.dialects.anthropic.shapes import RawCall, RawMessage, made_message
from dragoman.dialects.anthropic.stream import AnthropicDecoder
from dragoman.dialects.anthropic.tools import COMPACTION
from dragoman.dialects.base import Call, ExactRequest, Model, Operation, World, in_cache_order
from dragoman.dialects.kit.faults import refusal
from dragoman.errors import DragomanError, Fault, MalformedRequest, MissingField
from dragoman.model.blocks import Where
from dragoman.model.capabilities import Alphabet, Capabilities, reads_results_by_order, traits
from dragoman.model.conversation import Conversation, Message
from dragoman.model.events import BlockKeys, Budget
from dragoman.model.filter import Filter
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.frame import FrameDecoder, Payload
from dragoman.wire.http import HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json
from dragoman.wire.sse import SseDecoder, encode_sse

_MEDIA_TYPES = {
    "image": frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"}),
    "document": frozenset({"application/pdf"}),
}


class AnthropicCodec(Struct, frozen=True):
    """Anthropic Messages.

    The settings: `default_max_tokens` is what a request gets that sets no limit, since this dialect demands one;
    `signed_thinking = false` is for compatible services that sign no thinking and still want it back;
    `threads = false` for those that keep no message threads.
    """

    family: ClassVar[str] = FAMILY
    default_max_tokens: int = 8192
    signed_thinking: bool = True
    threads: bool = True

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(
            traits=traits(
                "no_blank_text",
                "parallel_flag",
                "strict_tools",
                "result_errors",
                "reasoning",
                "seal_slot",
                "one_block",
                "citations",
                "pauses",
                "closed_schemas",
                "budgets",
                "thinking_show",
                "user",
                "zero_tokens",
                when={"results_in_call_order": reads_results_by_order(model), "sealed_reasoning": self.signed_thinking},
            ),
            names=Alphabet("a-zA-Z0-9_-", 128),
            arguments="object",
            result_media=frozenset({"image", "document"}),
            media=frozenset(
                {("image", how) for how in ("base64", "url", "file")}
                | {("document", how) for how in ("base64", "url", "text", "file")}
            ),
            media_types=_MEDIA_TYPES,
            seals=frozenset({FAMILY, "bedrock"}),
            cache_marks=4,
            knobs=frozenset(request.KNOBS),
            knob_ranges=(("temperature", 0.0, 1.0), ("top_p", 0.0, 1.0)),
            output=frozenset({"text", "schema"}),
            efforts=("low", "medium", "high", "xhigh", "max"),
            thinking=frozenset({"default", "off", "on", "adaptive", "between_tools"}),
            least_budget=rules.LEAST_BUDGET,
            user_limit=256,
            holds=frozenset({"thread", COMPACTION}) if self.threads else frozenset({COMPACTION}),
            files=FAMILY,
            max_tokens=self.default_max_tokens,
        )

    def quirks(self, model: str) -> Sequence[Filter]:
        return (AskSomething(), OwnReasoning(), ObjectSchemas())

    parse_request = staticmethod(request.parse_request)
    render_request = staticmethod(request.render_request)
    parse_reply = staticmethod(encoder.parse_reply)
    render_reply = staticmethod(encoder.render_reply)

    def decoder(self, asked: Conversation, world: World, keys: BlockKeys | None = None) -> AnthropicDecoder:
        return AnthropicDecoder(asked, keys)

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> AnthropicEncoder:
        return AnthropicEncoder(asked, world)

    def parse_fault(self, response: HttpResponse, sent: Conversation | None = None) -> Fault:
        return faults.parse_fault(response)

    render_fault = staticmethod(faults.render_fault)
    breaches = staticmethod(rules.breaches)
    stream_breaches = staticmethod(stream_rules.stream_breaches)
    rules = staticmethod(RULES.declared)


# --- Path, headers and framing: POST /v1/messages, server-sent events, anthropic-* headers


VERSION = "2023-06-01"

_PATHS: dict[str, Operation] = {"/v1/messages": "generate", "/v1/messages/count_tokens": "count"}
_MODELS = "/v1/models"
_HINTS = ("anthropic-version", "anthropic-beta")
# The counting endpoint refuses fields that have no bearing on the count.
_COUNTED = frozenset(
    {"messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control", "context_management"}
    | {"mcp_servers", "speed"}
)


class AnthropicBinding(Struct, frozen=True):
    def match(self, request: HttpRequest) -> Call | None:
        path = request.path.rstrip("/")
        if request.method == "GET" and request.header("anthropic-version"):
            if path == _MODELS or path.startswith(_MODELS + "/"):
                return Call("models", path[len(_MODELS) + 1 :], False, None, hints_of(request))
            return None
        operation = _PATHS.get(path) or _PATHS.get(f"/v1{path}")  # some clients' base URLs end with it, some do not
        if request.method != "POST" or operation is None:
            return None
        return _call(Fields.of(request), operation, hints_of(request))

    def unwrap(self, body: Json) -> Call:
        return _call(Fields(body), "generate", {})

    def wrap(self, call: Call) -> HttpRequest:
        headers = [("anthropic-version", call.hints.get("anthropic-version", VERSION))]
        if beta := call.hints.get("anthropic-beta"):
            headers.append(("anthropic-beta", beta))
        if call.operation == "models":
            path = f"{_MODELS}/{call.model}" if call.model else _MODELS
            return HttpRequest("GET", path, headers=(("accept", "application/json"), *headers))
        path = next(path for path, operation in _PATHS.items() if operation == call.operation)
        accept = "text/event-stream" if call.stream and call.operation == "generate" else "application/json"
        head = (("content-type", "application/json"), ("accept", accept), *headers)
        return HttpRequest("POST", path, headers=head, body=_encode(_body(call)))

    def frames(self) -> FrameDecoder:
        return SseDecoder()

    def frame(self, payload: Payload) -> bytes:
        return encode_sse(payload.kind, payload.data)

    def refuse(self, fault: Fault, body: bytes) -> HttpResponse:
        more = [("x-should-retry", "false")] if fault.kind == "quota" else []
        return refusal(fault, status_of(fault), body, *more)


class AnthropicCounts(Struct, frozen=True):
    def parse_count(self, body: bytes) -> int:
        return Fields.parse(body, blame=MissingField).integer("input_tokens")

    def render_count(self, tokens: int, estimated: bool) -> bytes:
        return jsonio.encode({"input_tokens": tokens})


def hints_of(request: HttpRequest) -> dict[str, str]:
    """The headers that matter. The usual version says nothing; a header sent twice is one list."""
    hints: dict[str, str] = {}
    for name, value in request.headers:
        if name in _HINTS and value and (name, value) != ("anthropic-version", VERSION):
            hints[name] = f"{hints[name]},{value}" if name in hints else value
    return hints


def _call(fields: Fields, operation: Operation, hints: dict[str, str]) -> Call:
    model, stream = fields.text("model"), fields.flag("stream", False)
    if not model.strip():
        fields.fail("model", "expected the name of a model")
    return Call(operation, model, stream, fields.rest(), hints)


def _body(call: Call) -> dict[str, Json]:
    body = call.body if isinstance(call.body, dict) else {}
    if call.operation == "count":
        body = {name: value for name, value in body.items() if name in _COUNTED}
        return {"model": call.model, **body}
    stream: dict[str, Json] = {"stream": True} if call.stream else {}
    return {"model": call.model, **in_cache_order({**body, **stream}, ("tools", "system"), "messages")}


def _encode(body: dict[str, Json]) -> bytes:
    try:
        return jsonio.encode(body)
    except jsonio.JsonError as error:
        raise MalformedRequest(str(error)) from None


# --- Requests of the documented shape, read from their bytes into Structs: long histories take less time and memory so.
#
# What the Structs refuse is matched and read by `Fields`. Where both can read a request they give the same
# conversation.


_CALL, _SOON = b'"tool_use"', 65536  # calls make it worth while; where bytes pass, the body is read once more
_DEEP = b"[{"
_MESSAGE_VALUES, _BLOCK_VALUES = 3, 4  # JSON values of a message and of a block, about


class _Request(Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    messages: list[RawMessage]
    stream: bool = False
    system: Any = UNSET
    tools: Any = UNSET
    tool_choice: Any = UNSET
    max_tokens: Any = UNSET
    stop_sequences: Any = UNSET
    temperature: Any = UNSET
    top_p: Any = UNSET
    top_k: Any = UNSET
    thinking: Any = UNSET
    output_config: Any = UNSET
    metadata: Any = UNSET
    service_tier: Any = UNSET
    context_management: Any = UNSET


_OWN = ("model", "messages", "stream")
_read = jsonio.fitting(_Request)


def exact_request(request: HttpRequest) -> ExactRequest | None:
    """Read a request that generates and has the documented shape; None for any other."""
    body = request.body
    generates = request.method == "POST" and _PATHS.get(request.path) == "generate"
    shape = _read(body) if generates and body.find(_CALL, 0, _SOON) >= 0 else None
    if shape is None or not shape.model.strip():
        return None
    rest: dict[str, Json] = {
        name: value for name, value in structs.asdict(shape).items() if name not in _OWN and value is not UNSET
    }
    call = Call("generate", shape.model, shape.stream, rest, hints_of(request))
    try:
        messages = _messages(shape.messages)
        asked = None if messages is None else conversation_of(call, messages)
    except (DragomanError, RecursionError):
        return None  # matching says what is wrong
    if asked is None:
        return None
    blocks = [block for message in shape.messages if isinstance(message.content, list) for block in message.content]
    inputs = [block.input for block in blocks if type(block) is RawCall]
    deep = [jsonio.decode(value) for given in inputs for value in given.values() if memoryview(value)[0] in _DEEP]
    # A list for each level above them: the messages, a message, its content, a block, its input.
    free = structs.replace(call, body={"messages": [[[[deep]]]], **rest})
    values = _MESSAGE_VALUES * len(shape.messages) + _BLOCK_VALUES * len(blocks) + sum(map(len, inputs))
    return ExactRequest(free, asked, values)


def _messages(shapes: list[RawMessage]) -> tuple[Message, ...] | None:
    made = [made_message(shape, Where(MESSAGES, index)) for index, shape in enumerate(shapes)]
    messages = tuple([message for message in made if message is not None])
    return messages if len(messages) == len(made) else None


# --- Which models there are, in Anthropic's shape


class AnthropicListing:
    def entry(self, model: Model) -> dict[str, Json]:
        created = datetime.fromtimestamp(model.since, UTC).isoformat().replace("+00:00", "Z")
        entry: dict[str, Json] = {"type": "model", "id": model.name, "display_name": model.name, "created_at": created}
        return {**entry, "max_input_tokens": model.window, "max_tokens": model.longest_answer}

    def list_of(self, entries: list[Json]) -> Json:
        ids = [entry.get("id") for entry in entries if isinstance(entry, dict)]
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        return {"data": entries, "has_more": False, "first_id": first, "last_id": last}
