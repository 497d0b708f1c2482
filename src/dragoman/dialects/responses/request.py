"""A request body to a conversation and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kit.openai_requests import effort_of, parse_schema, render_schema, take_user, thinking_of
from dragoman.dialects.kit.settings import guard_depth, take_max_tokens, take_sampling
from dragoman.dialects.responses.blocks import API_NAME, EXTRAS, FAMILY, JsonObject, object_of, text_of
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
from dragoman.wire.jsonio import Json

SAMPLING_FIELDS = {"temperature": "temperature", "top_p": "top_p"}
_MAX = "max_output_tokens"


@guard_depth(MalformedRequest)
def parse_request(call: ApiRequest) -> Conversation:
    """Raises MalformedRequest, naming the place."""
    fields = Fields(call.body)
    kept: JsonObject = {}
    instructions = fields.text("instructions", "")
    turns = ItemParser().parse(fields.any("input", []))
    tools, messages = name_tools(with_added_tools(parse_tools(fields), turns), turns)
    choice, odd = parse_choice(fields, tools)
    kept |= odd
    goes_on = fields.peek("previous_response_id") is not None
    conversation = Conversation(
        model=call.model,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        output=_output(fields, kept),
        thinking=_thinking(fields, kept),
        max_tokens=take_max_tokens(fields, _MAX),
        sampling=take_sampling(fields, SAMPLING_FIELDS),
        stream=call.stream,
        previous_id=fields.identifier("previous_response_id") if goes_on else fields.text("previous_response_id", None),
        user=take_user(fields, kept),
        server_state=tuple(_held(fields, messages)),
    )
    kept |= to_extra_names({name: value for name, value in fields.rest().items() if value is not None})
    conversation = to_canonical(structs.replace(conversation, extra=EXTRAS.extra_of(kept)))
    if not instructions:
        return conversation
    first = Text(instructions, extra=EXTRAS.extra_of({INSTRUCTIONS: True}), at=Location("instructions"))
    return structs.replace(conversation, system=(first, *conversation.system))


def _thinking(fields: Fields, kept: JsonObject) -> Thinking:
    inner = fields.maybe_child("reasoning")
    if inner is None:
        fields.any("reasoning")
        return Thinking()
    effort = inner.text("effort", "")
    _keep(kept, "reasoning", inner)
    return thinking_of(effort)


def _keep(kept: JsonObject, prefix: str, inner: Fields) -> None:
    """Fields of an inner object that nobody took, by their path."""
    kept |= {f"{prefix}.{name}": value for name, value in inner.rest().items() if value is not None}


def _output(fields: Fields, kept: JsonObject) -> Output:
    text = fields.maybe_child("text")
    if text is None:
        fields.any("text")
        return Output()
    form = text.maybe_child("format")
    kind = "text" if form is None else form.text("type")
    if form is None or kind not in ("text", "json_object", "json_schema"):
        _keep(kept, "text", text)
        if form is not None:
            kept["text.format"] = {"type": kind, **form.rest()}
        return Output()
    text.any("format")
    _keep(kept, "text", text)
    if kind != "json_schema":
        return Output("text" if kind == "text" else "json", extra=EXTRAS.extra(form))
    output = parse_schema(form)
    rest = {key: value for key, value in form.rest().items() if value is not None}
    return structs.replace(output, extra=EXTRAS.extra_of(to_extra_names(rest)))


# --- what a request names and the service holds: earlier responses, conversations, items, templates, background jobs

_UNKNOWN = "previous_response_not_found"  # on this code clients send the whole conversation
_WHOLE = "Send the whole conversation as `input` instead."
_NO_ITEM = "no item {} is known here, and this upstream cannot look it up. Send the item itself instead."
_NO_COMPACTION = "the target cannot compact a conversation; leave this out, or send a summary as text"
SERVER_STATE_NAMES = frozenset(
    {"previous_response_id", "conversation", ITEM_REFERENCE, "prompt", "background", "context_management"}
)


def _held(fields: Fields, messages: Iterable[Message]) -> Iterator[ServerState]:
    """Raises MalformedRequest for what names nothing."""
    if (previous := fields.peek("previous_response_id")) is not None:
        why = (
            f"no response {text_of(previous)!r} is known here. A gateway keeps the answers of upstreams that do not"
            f" speak Responses for a while, unless `store` is false. {_WHOLE}"
        )
        name = "previous_response_id"
        yield ServerState(name, name, why, has_turns=True, reply_id=text_of(previous), code=_UNKNOWN)
    if (given := fields.peek("conversation")) is not None:
        if not (isinstance(given, dict) or (isinstance(given, str) and given)):
            fields.fail("conversation", f"expected an id or an object with one, got {describe(given)}")
        name = given if isinstance(given, str) else Fields(given, "conversation").identifier("id")
        why = f"the conversation {name!r} is held by the service, and this upstream does not have it. {_WHOLE}"
        yield ServerState("conversation", "conversation", why, has_turns=True, code=_UNKNOWN)
    if fields.peek("prompt") is not None:
        why = (
            "the prompt template is held by the service, and this upstream does not have it."
            " Send its text as `instructions` and `input` instead."
        )
        yield ServerState("prompt", "prompt", why, is_stored=True)
    if fields.peek("background") is True:
        why = "only an upstream that speaks Responses runs a response in the background. Send the request without it."
        yield ServerState("background", "background", why, is_job=True)
    management = fields.peek("context_management")
    for index, entry in enumerate(management if isinstance(management, list) else ()):
        if object_of(entry).get("type") == "compaction":
            yield ServerState("context_management", f"context_management[{index}]", _NO_COMPACTION)
    for at, item_id in references(messages):
        yield ServerState(ITEM_REFERENCE, at, _NO_ITEM.format(repr(item_id)), has_turns=True)


def references(messages: Iterable[Message]) -> Iterator[tuple[str, str]]:
    """Where items are named that the service holds, and their ids."""
    for message in messages:
        for block in message.blocks:
            if isinstance(block, Opaque) and block.family == FAMILY and block.kind == ITEM_REFERENCE:
                yield block.at.path, text_of(object_of(block.data).get("id"))


# --- going on


def may_store(asked: Conversation) -> bool:
    return EXTRAS.own_fields(asked.extra).get("store") is not False


def continue_conversation(earlier: Conversation, now: Conversation) -> Conversation:
    """Both in one. Instructions hold for one answer only, so the earlier ones are not repeated."""
    instructions = tuple(filter(_instructs, now.system))
    system = tuple(text for text in now.system if not _instructs(text))
    said = tuple(text for text in earlier.system if not _instructs(text))
    between = (Message("system", system),) if system else ()
    messages = (*earlier.messages, *between, *now.messages)
    # The earlier system texts stand before the first turn again, each in the message it came in.
    offered = with_added_tools([tool for tool in now.tools if not is_added(tool)], messages)
    tools, messages = name_tools(offered, messages)
    held = tuple(each for each in now.server_state if each.name != "previous_response_id")
    joined = to_canonical(
        structs.replace(now, system=said, messages=messages, tools=tools, previous_id=None, server_state=held)
    )
    return structs.replace(joined, system=(*instructions, *joined.system))


def resolve_references(asked: Conversation, find: Callable[[str], Sequence[Block] | None]) -> Conversation:
    """The same with the items that `find` knows in place of the references to them."""
    known = {at: blocks for at, item_id in references(asked.messages) if (blocks := find(item_id)) is not None}
    if not known:
        return asked
    messages = tuple(
        structs.replace(
            message, blocks=tuple(each for block in message.blocks for each in known.get(block.at.path, (block,)))
        )
        for message in asked.messages
    )
    held = tuple(each for each in asked.server_state if each.at not in known)
    return to_canonical(structs.replace(asked, messages=messages, server_state=held))


def _instructs(text: Text) -> bool:
    return EXTRAS.own_fields(text.extra).get(INSTRUCTIONS) is True


# --- canonical to wire


def render_request(conversation: Conversation) -> ApiRequest:
    """Raises Unrepresentable for what Responses cannot say."""
    if conversation.stop:
        raise Unrepresentable("Responses has no stop sequences", at="stop")
    if conversation.choices != 1:
        raise Unrepresentable("Responses gives one answer", at="n")
    system = conversation.system
    body: JsonObject = {}
    if system and _instructs(system[0]):
        body["instructions"], system = system[0].text, system[1:]
    body["input"] = render_items(system, conversation.messages)
    if tools := render_tools(conversation.tools):
        body["tools"] = tools
    body |= render_choice(conversation)
    body |= render_settings(conversation)
    if conversation.previous_id is not None:
        body["previous_response_id"] = conversation.previous_id
    return ApiRequest(
        "generate", conversation.model, conversation.stream, {**EXTRAS.wire_fields(conversation.extra), **body}
    )


def render_settings(conversation: Conversation) -> JsonObject:
    """All that says how to answer, beside the tools; a response repeats it."""
    kept = EXTRAS.own_fields(conversation.extra)
    body: JsonObject = {}
    if text := _nested(kept, "text") | _render_output(conversation.output):
        body["text"] = text
    effort = effort_of(conversation.thinking, API_NAME)
    if reasoning := ({"effort": effort} if effort else {}) | _nested(kept, "reasoning"):
        body["reasoning"] = reasoning
    if conversation.max_tokens is not None:
        body[_MAX] = conversation.max_tokens
    body |= conversation.sampling
    if conversation.user:
        body[str(EXTRAS.own_fields(conversation.extra).get("~user", "user"))] = conversation.user
    return body


def _nested(kept: Mapping[str, Json], prefix: str) -> JsonObject:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in kept.items() if name.startswith(start)}


def _render_output(output: Output) -> JsonObject:
    fields = EXTRAS.wire_fields(output.extra)
    match output.kind:
        case "text":
            return {"format": {"type": "text", **fields}} if fields else {}
        case "json":
            return {"format": {"type": "json_object", **fields}}
        case "schema":
            return {"format": {"type": "json_schema", **render_schema(output), **fields}}
