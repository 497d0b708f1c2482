"""Parse and render requests of the Responses API, with server state and continued responses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kit.openai_requests import (
    effort_from_thinking,
    parse_schema,
    render_schema,
    take_user,
    thinking_from_effort,
)
from dragoman.dialects.kit.settings import guard_depth, take_max_tokens, take_sampling
from dragoman.dialects.responses.blocks import API_NAME, EXTRAS, FAMILY, object_of, text_of
from dragoman.dialects.responses.items import INSTRUCTIONS, ITEM_REFERENCE, ItemParser, render_items
from dragoman.dialects.responses.tools import (
    is_added,
    name_tools,
    parse_choice,
    parse_tools,
    render_choice,
    render_tools,
    with_added_tools,
)
from dragoman.dialects.responses.web_search import request_fields
from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.model.blocks import Block, Location, Opaque, Text
from dragoman.model.conversation import (
    Conversation,
    Message,
    Output,
    ServerState,
    Thinking,
    to_canonical,
    to_extra_names,
)
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json, JsonObject

SAMPLING_FIELDS = {"temperature": "temperature", "top_p": "top_p"}
_MAX_TOKENS = "max_output_tokens"


@guard_depth(MalformedRequest)
def parse_request(call: ApiRequest) -> Conversation:
    """Parse a request body into a conversation. Raises MalformedRequest with the path of the wrong field."""
    fields = Fields(call.body)
    extra_fields: JsonObject = {}
    instructions = fields.text("instructions", "")
    turns = ItemParser().parse(fields.any("input", []))
    tools, messages = name_tools(with_added_tools(parse_tools(fields), turns), turns)
    choice, choice_fields = parse_choice(fields, tools)
    extra_fields |= choice_fields
    continues = fields.peek("previous_response_id") is not None
    conversation = Conversation(
        model=call.model,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        output=_output(fields, extra_fields),
        thinking=_thinking(fields, extra_fields),
        max_tokens=take_max_tokens(fields, _MAX_TOKENS),
        sampling=take_sampling(fields, SAMPLING_FIELDS),
        stream=call.stream,
        previous_id=fields.identifier("previous_response_id")
        if continues
        else fields.text("previous_response_id", None),
        user=take_user(fields, extra_fields),
        server_state=tuple(_server_state(fields, messages)),
    )
    extra_fields |= to_extra_names({name: value for name, value in fields.rest().items() if value is not None})
    conversation = to_canonical(structs.replace(conversation, extra=EXTRAS.extra_of(extra_fields)))
    if not instructions:
        return conversation
    first = Text(instructions, extra=EXTRAS.extra_of({INSTRUCTIONS: True}), at=Location("instructions"))
    return structs.replace(conversation, system=(first, *conversation.system))


def _thinking(fields: Fields, extra_fields: JsonObject) -> Thinking:
    inner = fields.maybe_child("reasoning")
    if inner is None:
        fields.any("reasoning")
        return Thinking()
    effort = inner.text("effort", "")
    _keep(extra_fields, "reasoning", inner)
    return thinking_from_effort(effort)


def _keep(extra_fields: JsonObject, prefix: str, inner: Fields) -> None:
    """Keep the unread fields of an inner object, by their path."""
    extra_fields |= {f"{prefix}.{name}": value for name, value in inner.rest().items() if value is not None}


def _output(fields: Fields, extra_fields: JsonObject) -> Output:
    text = fields.maybe_child("text")
    if text is None:
        fields.any("text")
        return Output()
    form = text.maybe_child("format")
    kind = "text" if form is None else form.text("type")
    if form is None or kind not in ("text", "json_object", "json_schema"):
        _keep(extra_fields, "text", text)
        if form is not None:
            extra_fields["text.format"] = {"type": kind, **form.rest()}
        return Output()
    text.any("format")
    _keep(extra_fields, "text", text)
    if kind != "json_schema":
        return Output("text" if kind == "text" else "json", extra=EXTRAS.extra(form))
    output = parse_schema(form)
    rest = {key: value for key, value in form.rest().items() if value is not None}
    return structs.replace(output, extra=EXTRAS.extra_of(to_extra_names(rest)))


# --- server state that a request names: earlier responses, conversations, items, templates, background jobs

_NOT_FOUND_CODE = "previous_response_not_found"  # on this code clients send the whole conversation
_SEND_WHOLE = "Send the whole conversation as `input` instead."
_NO_ITEM = "the item {} is unknown, and this upstream cannot look it up. Send the item itself instead."
_NO_COMPACTION = "the target cannot compact a conversation; leave this out, or send a summary as text"
SERVER_STATE_NAMES = frozenset(
    {"previous_response_id", "conversation", ITEM_REFERENCE, "prompt", "background", "context_management"}
)


def _server_state(fields: Fields, messages: Iterable[Message]) -> Iterator[ServerState]:
    """Yield the server state that a request names. Raises MalformedRequest for an empty id."""
    if (previous := fields.peek("previous_response_id")) is not None:
        reason = (
            f"the response {text_of(previous)!r} is unknown. The gateway stores responses of upstreams of other"
            f" dialects for a limited time, unless `store` is false. {_SEND_WHOLE}"
        )
        name = "previous_response_id"
        yield ServerState(name, name, reason, has_turns=True, reply_id=text_of(previous), code=_NOT_FOUND_CODE)
    if (value := fields.peek("conversation")) is not None:
        if not (isinstance(value, dict) or (isinstance(value, str) and value)):
            fields.fail("conversation", f"expected an id or an object with one, got {describe(value)}")
        name = value if isinstance(value, str) else Fields(value, "conversation").identifier("id")
        reason = f"the conversation {name!r} is stored by another service, not by this upstream. {_SEND_WHOLE}"
        yield ServerState("conversation", "conversation", reason, has_turns=True, code=_NOT_FOUND_CODE)
    if fields.peek("prompt") is not None:
        reason = (
            "the prompt template is stored by another service, not by this upstream."
            " Send its text as `instructions` and `input` instead."
        )
        yield ServerState("prompt", "prompt", reason, is_stored=True)
    if fields.peek("background") is True:
        reason = (
            "only a Responses upstream can run a response in the background. Send the request without `background`."
        )
        yield ServerState("background", "background", reason, is_job=True)
    management = fields.peek("context_management")
    for index, entry in enumerate(management if isinstance(management, list) else ()):
        if object_of(entry).get("type") == "compaction":
            yield ServerState("context_management", f"context_management[{index}]", _NO_COMPACTION)
    for at, item_id in references(messages):
        yield ServerState(ITEM_REFERENCE, at, _NO_ITEM.format(repr(item_id)), has_turns=True)


def references(messages: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """Yield the path and the id of each reference to an item that the service stores."""
    for message in messages:
        for block in message.blocks:
            if isinstance(block, Opaque) and block.family == FAMILY and block.kind == ITEM_REFERENCE:
                yield block.at.path, text_of(object_of(block.data).get("id"))


# --- continuation


def may_store(request: Conversation) -> bool:
    """Return whether the client allows its response to be stored."""
    return EXTRAS.own_fields(request.extra).get("store") is not False


def continue_conversation(earlier: Conversation, now: Conversation) -> Conversation:
    """Return one conversation of the earlier turns and the new request.

    Instructions apply to one response only, so the earlier ones are left out.
    """
    instructions = tuple(filter(_is_instructions, now.system))
    system = tuple(text for text in now.system if not _is_instructions(text))
    earlier_system = tuple(text for text in earlier.system if not _is_instructions(text))
    between = (Message("system", system),) if system else ()
    messages = (*earlier.messages, *between, *now.messages)
    # The earlier system texts come before the first turn, each in its own message.
    offered = with_added_tools([tool for tool in now.tools if not is_added(tool)], messages)
    tools, messages = name_tools(offered, messages)
    server_state = tuple(each for each in now.server_state if each.name != "previous_response_id")
    joined = to_canonical(
        structs.replace(
            now, system=earlier_system, messages=messages, tools=tools, previous_id=None, server_state=server_state
        )
    )
    return structs.replace(joined, system=(*instructions, *joined.system))


def resolve_references(request: Conversation, find: Callable[[str], Sequence[Block] | None]) -> Conversation:
    """Replace references with the items that `find` returns for their ids."""
    known = {at: blocks for at, item_id in references(request.messages) if (blocks := find(item_id)) is not None}
    if not known:
        return request
    messages = tuple(
        structs.replace(
            message, blocks=tuple(each for block in message.blocks for each in known.get(block.at.path, (block,)))
        )
        for message in request.messages
    )
    server_state = tuple(each for each in request.server_state if each.at not in known)
    return to_canonical(structs.replace(request, messages=messages, server_state=server_state))


def _is_instructions(text: Text) -> bool:
    return EXTRAS.own_fields(text.extra).get(INSTRUCTIONS) is True


# --- canonical to wire


def render_request(conversation: Conversation) -> ApiRequest:
    """Write a conversation as a request body. Raises Unrepresentable for content that Responses cannot express."""
    if conversation.stop:
        raise Unrepresentable("Responses does not support stop sequences", at="stop")
    if conversation.choices != 1:
        raise Unrepresentable("Responses returns one reply per request: set n to 1", at="n")
    system = conversation.system
    body: JsonObject = {}
    if system and _is_instructions(system[0]):
        body["instructions"], system = system[0].text, system[1:]
    body["input"] = render_items(system, conversation.messages, conversation.tools)
    if tools := render_tools(conversation.tools):
        body["tools"] = tools
    body |= render_choice(conversation)
    body |= render_settings(conversation)
    body |= request_fields(conversation.tools, EXTRAS.own_fields(conversation.extra))
    if conversation.previous_id is not None:
        body["previous_response_id"] = conversation.previous_id
    return ApiRequest(
        "generate", conversation.model, conversation.stream, {**EXTRAS.wire_fields(conversation.extra), **body}
    )


def render_settings(conversation: Conversation) -> JsonObject:
    """Return the settings of a request, without the tools. A response repeats them."""
    extra_fields = EXTRAS.own_fields(conversation.extra)
    body: JsonObject = {}
    if text := _nested(extra_fields, "text") | _render_output(conversation.output):
        body["text"] = text
    effort = effort_from_thinking(conversation.thinking, API_NAME)
    if reasoning := ({"effort": effort} if effort else {}) | _nested(extra_fields, "reasoning"):
        body["reasoning"] = reasoning
    if conversation.max_tokens is not None:
        body[_MAX_TOKENS] = conversation.max_tokens
    body |= conversation.sampling
    if conversation.user:
        body[str(EXTRAS.own_fields(conversation.extra).get("~user", "user"))] = conversation.user
    return body


def _nested(extra_fields: Mapping[str, Json], prefix: str) -> JsonObject:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in extra_fields.items() if name.startswith(start)}


def _render_output(output: Output) -> JsonObject:
    fields = EXTRAS.wire_fields(output.extra)
    match output.kind:
        case "text":
            return {"format": {"type": "text", **fields}} if fields else {}
        case "json":
            return {"format": {"type": "json_object", **fields}}
        case "schema":
            return {"format": {"type": "json_schema", **render_schema(output), **fields}}
