"""A request body to a conversation and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from dragoman.dialects.base import Call
from dragoman.dialects.responses.declared import name_tools, with_added
from dragoman.dialects.responses.held import held_by_service, references, without
from dragoman.dialects.responses.items import INSTRUCTIONS, ItemParser, render_items
from dragoman.dialects.responses.nodes import JsonObject, extra_of, object_of, own_fields, wire_fields
from dragoman.dialects.responses.tools import (
    is_added,
    parse_choice,
    parse_tools,
    render_choice,
    render_tools,
)
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Text, Where, to_keep
from dragoman.model.conversation import Conversation, Message, Output, Thinking, canonical
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

KNOBS = ("temperature", "top_p")
_USER_FIELDS = ("user", "safety_identifier")
_MAX = "max_output_tokens"


def parse_request(call: Call) -> Conversation:
    """Raises MalformedRequest, naming the place."""
    fields = Fields(call.body)
    kept: JsonObject = {}
    instructions = fields.text("instructions", "")
    turns = ItemParser().parse(fields.any("input", []))
    tools, messages = name_tools(with_added(parse_tools(fields), turns), turns)
    choice, odd = parse_choice(fields, tools)
    kept |= odd
    conversation = Conversation(
        model=call.model,
        messages=messages,
        tools=tools,
        tool_choice=choice,
        output=_output(fields, kept),
        thinking=_thinking(fields, kept),
        max_tokens=_max_tokens(fields),
        knobs=_knobs(fields),
        stream=call.stream,
        previous=_previous(fields),
        user=_user(fields, kept),
        held=held_by_service(fields, messages),
    )
    kept |= to_keep({name: value for name, value in fields.rest().items() if value is not None})
    conversation = canonical(structs.replace(conversation, extra=extra_of(kept)))
    if not instructions:
        return conversation
    first = Text(instructions, extra=extra_of({INSTRUCTIONS: True}), at=Where("instructions"))
    return structs.replace(conversation, system=(first, *conversation.system))


def _max_tokens(fields: Fields) -> int | None:
    value = fields.integer(_MAX, None)
    if value is not None and value < 0:
        fields.fail(_MAX, "expected a count of tokens")
    return value


def _knobs(fields: Fields) -> dict[str, float]:
    given = {name: fields.number(name, None) for name in KNOBS}
    return {name: value for name, value in given.items() if value is not None}


def _user(fields: Fields, kept: JsonObject) -> str:
    for name in _USER_FIELDS:
        if user := fields.text(name, "") if fields.peek(name) is not None else "":
            if name != "user":
                kept["~user"] = name
            return user
    return ""


def _previous(fields: Fields) -> str | None:
    """The earlier response that the request goes on from."""
    if fields.peek("previous_response_id") is not None:
        return fields.identifier("previous_response_id")
    fields.any("previous_response_id")
    return None


def _thinking(fields: Fields, kept: JsonObject) -> Thinking:
    inner = fields.maybe_child("reasoning")
    if inner is None:
        fields.any("reasoning")
        return Thinking()
    effort = inner.text("effort", "")
    _keep(kept, "reasoning", inner)
    return Thinking("off") if effort == "none" else Thinking(effort=effort)


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
        return Output() if form is None else _odd(kept, {"type": kind, **form.rest()})
    text.any("format")
    _keep(kept, "text", text)
    if kind != "json_schema":
        return Output("text" if kind == "text" else "json", extra=extra_of(to_keep(form.rest())))
    schema = form.any("schema")
    if schema is not None and not isinstance(schema, dict):
        form.fail("schema", f"expected an object, got {describe(schema)}")
    name, strict = form.text("name", ""), form.flag("strict", None)
    rest = {key: value for key, value in form.rest().items() if value is not None}
    return Output("schema", name, schema, strict, extra_of(to_keep(rest)))


def _odd(kept: JsonObject, form: JsonObject) -> Output:
    kept["text.format"] = form
    return Output()


# --- going on


def keeps(asked: Conversation) -> bool:
    return own_fields(asked.extra).get("store") is not False


def continued(earlier: Conversation, now: Conversation) -> Conversation:
    """Both in one. Instructions hold for one answer only, so the earlier ones are not repeated."""
    instructions = tuple(filter(_instructs, now.system))
    system = tuple(text for text in now.system if not _instructs(text))
    said = tuple(text for text in earlier.system if not _instructs(text))
    between = (Message("system", system),) if system else ()
    messages = (*earlier.messages, *between, *now.messages)
    # The earlier system texts stand before the first turn again, each in the message it came in.
    offered = with_added([tool for tool in now.tools if not is_added(tool)], messages)
    tools, messages = name_tools(offered, messages)
    held = without(now.held, "previous_response_id")
    joined = canonical(structs.replace(now, system=said, messages=messages, tools=tools, previous=None, held=held))
    return structs.replace(joined, system=(*instructions, *joined.system))


def resolved(asked: Conversation, find: Callable[[str], Sequence[Block] | None]) -> Conversation:
    """The same with the items that `find` knows in place of the references to them."""
    known = {at: blocks for at, item_id in references(asked.messages) if (blocks := find(item_id)) is not None}
    if not known:
        return asked
    messages = tuple(structs.replace(each, blocks=_replaced(each.blocks, known)) for each in asked.messages)
    held = tuple(each for each in asked.held if each.at not in known)
    return canonical(structs.replace(asked, messages=messages, held=held))


def _replaced(blocks: Sequence[Block], known: Mapping[str, Sequence[Block]]) -> tuple[Block, ...]:
    return tuple(each for block in blocks for each in known.get(block.at.path, (block,)))


def _instructs(text: Text) -> bool:
    return own_fields(text.extra).get(INSTRUCTIONS) is True


# --- canonical to wire


def render_request(conversation: Conversation) -> Call:
    """Raises Unrepresentable for what Responses cannot say."""
    if conversation.stop:
        raise Unrepresentable("Responses has no stop sequences", at="stop")
    if conversation.choices != 1:
        raise Unrepresentable("Responses gives one answer", at="n")
    instructions, system = _led(conversation)
    body: JsonObject = {"instructions": instructions} if instructions else {}
    body["input"] = render_items(system, conversation.messages)
    if tools := render_tools(conversation.tools):
        body["tools"] = tools
    body |= render_choice(conversation)
    body |= render_settings(conversation)
    if conversation.previous is not None:
        body["previous_response_id"] = conversation.previous
    return Call("generate", conversation.model, conversation.stream, {**wire_fields(conversation.extra), **body})


def _led(conversation: Conversation) -> tuple[str, list[Text]]:
    """The instructions, and the system text that stands in the input."""
    system = list(conversation.system)
    if system and _instructs(system[0]):
        return system[0].text, system[1:]
    return "", system


def render_settings(conversation: Conversation) -> JsonObject:
    """All that says how to answer, beside the tools; a response repeats it."""
    kept = own_fields(conversation.extra)
    body: JsonObject = {}
    if text := _nested(kept, "text") | _render_output(conversation.output):
        body["text"] = text
    if reasoning := _render_thinking(conversation.thinking) | _nested(kept, "reasoning"):
        body["reasoning"] = reasoning
    if conversation.max_tokens is not None:
        body[_MAX] = conversation.max_tokens
    body |= conversation.knobs
    if conversation.user:
        body[str(own_fields(conversation.extra).get("~user", "user"))] = conversation.user
    return body


def _nested(kept: Mapping[str, Json], prefix: str) -> JsonObject:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in kept.items() if name.startswith(start)}


def _render_output(output: Output) -> JsonObject:
    fields = wire_fields(output.extra)
    match output.kind:
        case "text":
            return {"format": {"type": "text", **fields}} if fields else {}
        case "json":
            return {"format": {"type": "json_object", **fields}}
        case "schema":
            form: JsonObject = {"type": "json_schema"}
            if output.name:
                form["name"] = output.name
            if output.schema is not None:
                form["schema"] = dict(output.schema)
            if output.strict is not None:
                form["strict"] = output.strict
            return {"format": {**form, **object_of(fields)}}


def _render_thinking(thinking: Thinking) -> JsonObject:
    if thinking.mode not in {"default", "off"} or thinking.budget is not None or thinking.show is not None:
        raise Unrepresentable("Responses can be told an effort of thinking, or none, and nothing else", at="thinking")
    if thinking.mode == "off":
        if thinking.effort:
            raise Unrepresentable("Responses cannot be told both an effort and no thinking", at="thinking")
        return {"effort": "none"}
    return {"effort": thinking.effort} if thinking.effort else {}
