"""A request body to a conversation and back."""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.base import Call
from dragoman.dialects.openai.messages import MessageParser, lead, render_messages
from dragoman.dialects.openai.parts import JsonObject, extra_of, own_fields, wire_fields
from dragoman.dialects.openai.responses_body import Oddities, chat_body, is_responses_body
from dragoman.dialects.openai.settings import MAX_TOKENS_FIELDS, OpenaiSettings
from dragoman.dialects.openai.tools import parse_choice, parse_tools, render_choice, render_tools
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import SHAPES, to_keep
from dragoman.model.conversation import Conversation, Output, Thinking, canonical
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

KNOBS = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")
# Known fields that only Chat understands: null there is as good as absent.
_NULLABLE = (
    "audio", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata",
    "modalities", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "service_tier", "store", "stream_options", "tool_choice", "top_logprobs", "user", "verbosity",
    "web_search_options",
)  # fmt: skip
_USER_FIELDS = ("user", "safety_identifier")


def parse_request(call: Call, settings: OpenaiSettings) -> Conversation:
    """Raises MalformedRequest, naming the place."""
    odd: Oddities = []
    body = call.body
    if isinstance(body, dict) and is_responses_body(body):
        body = chat_body(body, odd)
    fields = Fields(body)
    parser = MessageParser(settings)
    system, messages = lead(parser.messages(fields.objects("messages")))
    kept: JsonObject = {}
    max_tokens = _max_tokens(fields, settings, kept)
    user = _user(fields, kept)
    tool_choice, unknown = parse_choice(fields, odd)
    kept |= unknown
    if fields.peek("functions") and not fields.peek("tools"):
        kept["~older"] = True  # its client reads `function_call` and knows no `tool_calls`
    tools = parse_tools(fields, odd)
    if odd:
        kept[SHAPES] = [list(each) for each in odd]
    conversation = Conversation(
        model=call.model,
        messages=tuple(messages),
        system=tuple(system),
        tools=tools,
        tool_choice=tool_choice,
        output=_output(fields, kept),
        thinking=_thinking(fields),
        max_tokens=max_tokens,
        stop=_stop(fields),
        knobs=_knobs(fields, settings),
        choices=_choices(fields),
        stream=call.stream,
        user=user,
    )
    rest = {name: value for name, value in fields.rest().items() if value is not None or name not in _NULLABLE}
    return canonical(structs.replace(conversation, extra=extra_of({**to_keep(rest), **kept})))


def _max_tokens(fields: Fields, settings: OpenaiSettings, kept: JsonObject) -> int | None:
    for name in MAX_TOKENS_FIELDS:
        if fields.peek(name) is None:
            continue
        if name != settings.max_tokens_field:
            kept["~max_tokens"] = name
        value = fields.integer(name)
        if value < 0:
            fields.fail(name, "expected a count of tokens")
        return value
    return None


def _user(fields: Fields, kept: JsonObject) -> str:
    for name in _USER_FIELDS:
        if user := fields.text(name, "") if fields.peek(name) is not None else "":
            if name != "user":
                kept["~user"] = name
            return user
    return ""


def _thinking(fields: Fields) -> Thinking:
    effort = fields.text("reasoning_effort", "")
    return Thinking("off") if effort == "none" else Thinking(effort=effort)


def _stop(fields: Fields) -> tuple[str, ...]:
    if isinstance(fields.peek("stop"), str):
        return (fields.text("stop"),)
    return fields.strings("stop", ())


def _knobs(fields: Fields, settings: OpenaiSettings) -> dict[str, float]:
    given = {name: fields.number(name, None) for name in (*KNOBS, *settings.more_knobs)}
    return {name: value for name, value in given.items() if value is not None}


def _choices(fields: Fields) -> int:
    choices = fields.integer("n", 1)
    if choices < 1:
        fields.fail("n", "expected 1 or more")
    return choices


def _output(fields: Fields, kept: JsonObject) -> Output:
    given = fields.any("response_format")
    if given is None:
        return Output()
    form = Fields(given, "response_format")
    match form.any("type"):
        case "text":
            return Output(extra=extra_of(to_keep(form.rest())))
        case "json_object":
            return Output("json", extra=extra_of(to_keep(form.rest())))
        case "json_schema":
            return _schema(form)
        case str():
            kept["response_format"] = given
            return Output()
        case _:
            raise form.blame("expected one of text, json_object, json_schema", at=form.path("type"))


def _schema(form: Fields) -> Output:
    inner = form.child("json_schema")
    schema = inner.any("schema")
    if schema is not None and not isinstance(schema, dict):
        inner.fail("schema", f"expected an object, got {describe(schema)}")
    name, strict = inner.text("name", ""), inner.flag("strict", None)
    inside, rest = inner.rest(), to_keep(form.rest())
    return Output("schema", name, schema, strict, extra_of({**rest, "json_schema": inside} if inside else rest))


# --- canonical to wire


def render_request(conversation: Conversation, settings: OpenaiSettings) -> Call:
    """Raises Unrepresentable for what Chat cannot say."""
    if conversation.previous is not None:
        raise Unrepresentable("Chat has no previous response to go on from", at="previous_response_id")
    spelt = own_fields(conversation.extra)
    body: dict[str, Json] = {"messages": render_messages(conversation.system, conversation.messages, settings)}
    if conversation.tools:
        body["tools"] = render_tools(conversation.tools)
    body |= render_choice(conversation)
    body |= _render_output(conversation.output)
    body |= _render_thinking(conversation.thinking)
    if conversation.max_tokens is not None:
        body[str(spelt.get("~max_tokens", settings.max_tokens_field))] = conversation.max_tokens
    if conversation.stop:
        body["stop"] = list(conversation.stop)
    body |= conversation.knobs
    if conversation.choices != 1:
        body["n"] = conversation.choices
    if conversation.user:
        body[str(spelt.get("~user", "user"))] = conversation.user
    body = {**wire_fields(conversation.extra), **body}
    return Call("generate", conversation.model, conversation.stream, body)


def _render_output(output: Output) -> JsonObject:
    fields = wire_fields(output.extra)
    match output.kind:
        case "text":
            return {"response_format": {"type": "text", **fields}} if fields else {}
        case "json":
            return {"response_format": {"type": "json_object", **fields}}
        case "schema":
            inside = fields.pop("json_schema", {})
            inner: JsonObject = {"name": output.name} if output.name else {}
            if output.schema is not None:
                inner["schema"] = dict(output.schema)
            if output.strict is not None:
                inner["strict"] = output.strict
            inner |= inside if isinstance(inside, dict) else {}
            return {"response_format": {"type": "json_schema", "json_schema": inner, **fields}}


def _render_thinking(thinking: Thinking) -> JsonObject:
    if thinking.mode not in {"default", "off"} or thinking.budget is not None or thinking.show is not None:
        raise Unrepresentable("Chat can be told an effort of thinking, or none, and nothing else", at="thinking")
    if thinking.mode == "off":
        if thinking.effort:
            raise Unrepresentable("Chat cannot be told both an effort and no thinking", at="thinking")
        return {"reasoning_effort": "none"}
    return {"reasoning_effort": thinking.effort} if thinking.effort else {}
