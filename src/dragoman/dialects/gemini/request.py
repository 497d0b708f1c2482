"""Parse and render Gemini requests: the body of generateContent. Pure; the codec calls it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import structs

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.gemini.blocks import (
    CALL_ID_PREFIX,
    EXTRAS,
    FAMILY,
    parse_part,
    read_object,
    render_part,
    snake_to_camel,
    take_object,
)
from dragoman.dialects.gemini.tools import json_schema, parse_choice, parse_tools, render_choice, render_tools
from dragoman.dialects.kit.settings import guard_depth, take_choices, take_max_tokens, take_sampling, take_stops
from dragoman.dialects.kit.values import ToolCallIds
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.blocks import Block, Extra, Location, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import (
    Conversation,
    Message,
    Output,
    Role,
    ServerState,
    Thinking,
    to_canonical,
    to_extra_names,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

_BODY = snake_to_camel("systemInstruction", "toolConfig", "generationConfig", "safetySettings", "cachedContent")
_NOT_CACHED = (
    "cachedContent is stored by Google, and this upstream does not have it. Send its system instruction, tools and"
    " contents in the request."
)
_ROLES: dict[str, Role] = {
    "": "user",
    "user": "user",
    "function": "user",
    "tool": "user",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
}

# --- reading


@guard_depth(MalformedRequest)
def parse_request(call: ApiRequest) -> Conversation:
    """Parse a request. Raises MalformedRequest with the JSON path of the invalid field."""
    fields = read_object(call.body, "", MalformedRequest, _BODY)
    fields.any("model")
    extra_fields: dict[str, Json] = {}
    settings, unknown_settings = _settings(call, fields)
    messages = tuple(_turns(_messages(fields.any("contents"))))
    system = _system(fields.any("systemInstruction"), extra_fields)
    spelling = frozenset(extra_fields)
    tools = parse_tools(fields)
    choice = parse_choice(fields, extra_fields)
    if unknown_settings:
        extra_fields["generationConfig"] = unknown_settings
    hints = {name: value for name, value in call.hints.items() if value}
    server_state = (
        (ServerState("cachedContent", "cachedContent", _NOT_CACHED, has_turns=True),)
        if fields.peek("cachedContent")
        else ()
    )
    conversation = structs.replace(
        settings,
        messages=messages,
        system=system,
        tools=tools,
        tool_choice=choice,
        hints=Extra(FAMILY, hints, frozenset(hints)) if hints else None,
        server_state=server_state,
        extra=EXTRAS.extra_of({**to_extra_names(fields.rest()), **extra_fields}, spelling),
    )
    return to_canonical(conversation)


def _messages(value: Json) -> Iterable[Message]:
    pairs = ToolCallIds(CALL_ID_PREFIX)
    items = value if isinstance(value, list) else [] if value is None else [value]
    at = "contents[{}]" if isinstance(value, list) else "contents"
    for index, item in enumerate(items):
        yield _message(item, at.format(index), pairs)


def _message(item: Json, at: str, pairs: ToolCallIds) -> Message:
    if isinstance(item, str):
        return Message("user", (Text(item, at=Location(at)),), at=Location(at))
    fields = Fields(item, at)
    word = fields.text("role", "") or ""
    role = _ROLES.get(word.lower())
    if role is None:
        fields.fail("role", f"the role of a content must be user or model, not {jsonio.quote(word).decode()}")
    blocks = _parts(fields, pairs)
    if role == "user" and any(isinstance(block, ToolCall) for block in blocks):
        fields.fail("parts", "only a content of the model may have a functionCall")
    if role != "user" and any(isinstance(block, ToolResult) for block in blocks):
        fields.fail("parts", "only a content of the user may have a functionResponse")
    return Message(role, blocks, extra=EXTRAS.extra(fields), at=Location(at))


def _parts(fields: Fields, pairs: ToolCallIds) -> tuple[Block, ...]:
    value = fields.any("parts")
    items = value if isinstance(value, list) else [] if value is None else [value]
    path = fields.path("parts")
    return tuple(parse_part(item, f"{path}[{index}]", fields.blame, pairs) for index, item in enumerate(items))


def _turns(messages: Iterable[Message]) -> Iterable[Message]:
    """Merge consecutive contents of the model into one turn: the SDK's chats record each chunk of a reply as one."""
    turn: Message | None = None
    for message in messages:
        if turn and turn.role == message.role == "assistant" and not (turn.extra or message.extra):
            turn = structs.replace(turn, blocks=_joined(turn.blocks, message.blocks))
            continue
        if turn:
            yield turn
        turn = message
    if turn:
        yield turn


def _joined(before: tuple[Block, ...], after: tuple[Block, ...]) -> tuple[Block, ...]:
    """Join two lists of blocks; a text (or thought) at the end of the first continues in the second."""
    if not before or not after:
        return before or after
    match before[-1], after[0]:
        case Text(signature=None, extra=None) as one, Text(signature=None, extra=None) as other:
            pass
        case Reasoning(signature=None, extra=None) as one, Reasoning(extra=None) as other:
            pass
        case _:
            return before + after
    piece: Block = structs.replace(one, text=one.text + other.text, signature=other.signature)
    return (*before[:-1], piece, *after[1:])


def _system(value: Json, extra_fields: dict[str, Json]) -> tuple[Text, ...]:
    if value is None:
        return ()
    if isinstance(value, str | list):
        value = {"parts": value}
    fields = Fields(value, "systemInstruction")
    texts = tuple(map(_system_text, _parts(fields, ToolCallIds(CALL_ID_PREFIX))))
    if rest := fields.rest():
        extra_fields["systemInstruction"] = rest
    return texts


def _system_text(block: Block) -> Text:
    """Return the block as a text, because a system prompt is a list of texts.

    A block of another kind becomes an empty text with the part in its `extra`.
    """
    if isinstance(block, Text):
        return block
    if isinstance(block, ToolResult | ToolCall):
        raise MalformedRequest(
            "systemInstruction must not contain functionCall or functionResponse parts", at=block.at.path
        )
    return Text("", extra=EXTRAS.extra_of({"part": render_part(block)}), at=block.at)


# --- rendering


@guard_depth(Unrepresentable)
def render_request(conversation: Conversation) -> ApiRequest:
    """Return a conversation as a request. Raises Unrepresentable for content that filters should have removed."""
    if conversation.previous_id is not None:
        raise Unrepresentable(
            "Gemini cannot continue a stored response; send the whole conversation without previous_response_id",
            at="previous_response_id",
        )
    if conversation.user:
        raise Unrepresentable("Gemini has no field for a user id", at="user")
    body: dict[str, Json] = {}
    if conversation.system:
        parts = [_render_system(text) for text in conversation.system]
        body["systemInstruction"] = {"parts": parts}
    body["contents"] = _render_contents(conversation.messages)
    if conversation.tools:
        body["tools"] = render_tools(conversation.tools)
    body |= render_choice(conversation.tool_choice)
    body |= render_settings(conversation)
    return ApiRequest("generate", conversation.model, conversation.stream, EXTRAS.with_extra(body, conversation.extra))


def _render_system(text: Text) -> Json:
    part = EXTRAS.own_fields(text.extra).get("part")
    return dict(part) if not text.text and isinstance(part, dict) else render_part(text)


def _render_contents(messages: Sequence[Message]) -> list[Json]:
    contents: list[Json] = []
    calls: dict[str, ToolCall] = {}
    for message in messages:
        if message.role == "system":
            raise Unrepresentable("Gemini accepts a system prompt only before the first turn", at=message.at.path)
        calls |= {block.id: block for block in message.blocks if isinstance(block, ToolCall)}
        parts: list[Json] = [
            render_part(block, called=calls.get(block.call_id) if isinstance(block, ToolResult) else None)
            for block in message.blocks
        ]
        role = "model" if message.role == "assistant" else "user"
        contents.append(EXTRAS.with_extra({"role": role, "parts": parts}, message.extra))
    return contents


# --- `generationConfig`

SAMPLING_FIELDS = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
CONFIG = snake_to_camel(
    *SAMPLING_FIELDS.values(),
    "maxOutputTokens",
    "stopSequences",
    "candidateCount",
    "responseMimeType",
    "responseSchema",
    "responseJsonSchema",
    "thinkingConfig",
)
_THINKING = snake_to_camel("includeThoughts", "thinkingBudget", "thinkingLevel")
_LEVELS = ("minimal", "low", "medium", "high")
_JSON = "application/json"
_SHAPE = "~schema"  # the original schema, as an OpenAPI schema
_DYNAMIC = -1  # the thinkingBudget with which the model decides by itself


def _settings(call: ApiRequest, fields: Fields) -> tuple[Conversation, dict[str, Json]]:
    """Return the settings of a request as a conversation without messages, and the fields that no other family has."""
    config = take_object(fields, "generationConfig", CONFIG) or Fields({}, "generationConfig")
    settings = Conversation(
        call.model,
        (),
        sampling=take_sampling(config, SAMPLING_FIELDS),
        max_tokens=take_max_tokens(config, "maxOutputTokens"),
        stop=take_stops(config, "stopSequences"),
        choices=take_choices(config, "candidateCount"),
        output=_output(config),
        stream=call.stream,
    )
    thinking, thoughts = _thinking(config)
    unknown = config.rest() | ({"thinkingConfig": thoughts} if thoughts else {})
    return structs.replace(settings, thinking=thinking), unknown


def _output(config: Fields) -> Output:
    """Take the requested output format; an unknown one stays among the unknown fields."""
    mime = config.peek("responseMimeType")
    if mime is not None and not isinstance(mime, str):
        config.text("responseMimeType")
    if mime not in (None, "", "text/plain", _JSON):
        return Output()
    newer, older = config.peek("responseJsonSchema"), config.peek("responseSchema")
    config.any("responseMimeType")
    if mime != _JSON:
        return Output()
    schema = newer
    shape: dict[str, Json] = {}
    if newer is None and older is not None:
        schema, shape = json_schema(older), {_SHAPE: older}
        config.any("responseSchema")
    if schema is None:
        config.any("responseJsonSchema")
        config.any("responseSchema")
        return Output("json")
    if not isinstance(schema, dict):
        name = "responseSchema" if shape else "responseJsonSchema"
        config.fail(name, f"expected an object, got {describe(schema)}")
    config.any("responseJsonSchema")
    return Output("schema", schema=schema, extra=EXTRAS.extra_of(shape))


def _thinking(config: Fields) -> tuple[Thinking, dict[str, Json]]:
    thinking = take_object(config, "thinkingConfig", _THINKING)
    if thinking is None:
        return Thinking(), {}
    budget, level = thinking.integer("thinkingBudget", None), thinking.text("thinkingLevel", "")
    show = thinking.flag("includeThoughts", None)
    rest = thinking.rest()
    effort = level.lower()
    if effort and effort not in _LEVELS:
        rest["thinkingLevel"], effort = level, ""
    if budget is None:
        return Thinking("default", effort, None, show), rest
    if budget > 0:
        return Thinking("on", effort, budget, show), rest
    if budget not in (0, _DYNAMIC):
        thinking.fail("thinkingBudget", "expected -1 (dynamic), 0 (off) or a number of tokens")
    return Thinking("adaptive" if budget else "off", effort, None, show), rest


# --- rendering


def render_settings(conversation: Conversation) -> dict[str, Json]:
    """Return the settings as `generationConfig`; no field if there are none. Raises Unrepresentable."""
    config: dict[str, Json] = {}
    for name, value in conversation.sampling.items():
        if name not in SAMPLING_FIELDS:
            raise Unrepresentable(f"Gemini has no setting {name}; leave it out", at=name)
        config[SAMPLING_FIELDS[name]] = value
    if conversation.max_tokens is not None:
        config["maxOutputTokens"] = conversation.max_tokens
    if conversation.stop:
        config["stopSequences"] = list(conversation.stop)
    if conversation.choices != 1:
        config["candidateCount"] = conversation.choices
    config |= _render_output(conversation.output)
    if thinking := _render_thinking(conversation.thinking):
        config["thinkingConfig"] = thinking
    return {"generationConfig": config} if config else {}


def _render_output(output: Output) -> dict[str, Json]:
    if output.name or output.strict is not None:
        raise Unrepresentable("Gemini has no fields for the name and the strict flag of an output schema", at="output")
    if output.kind == "text":
        return {}
    body: dict[str, Json] = {"responseMimeType": _JSON}
    if output.kind == "schema":
        shape = EXTRAS.own_fields(output.extra).get(_SHAPE)
        if shape is not None and json_schema(shape) == output.schema:
            body["responseSchema"] = shape
        else:
            body["responseJsonSchema"] = {**(output.schema or {})}
    return EXTRAS.with_extra(body, output.extra)


def _render_thinking(thinking: Thinking) -> dict[str, Json]:
    body: dict[str, Json] = {}
    if thinking.show is not None:
        body["includeThoughts"] = thinking.show
    if thinking.effort:
        body["thinkingLevel"] = thinking.effort.upper()
    match thinking.mode:
        case "default" if thinking.budget is None:
            pass
        case "off" if thinking.budget is None:
            body["thinkingBudget"] = 0
        case "adaptive" if thinking.budget is None:
            body["thinkingBudget"] = _DYNAMIC
        case "on" if thinking.budget:
            body["thinkingBudget"] = thinking.budget
        case _:
            raise Unrepresentable(
                "thinking that is on needs a budget in Gemini; other modes must not have one", at="thinking"
            )
    return body
