"""`generationConfig`, both directions."""

from __future__ import annotations

from dragoman.dialects.gemini.nodes import child, extra_of, names, own_fields, with_extra
from dragoman.dialects.gemini.schema import json_schema
from dragoman.errors import Unrepresentable
from dragoman.model.conversation import Conversation, Output, Thinking
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

KNOBS = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "seed": "seed",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
CONFIG = names(
    *KNOBS.values(),
    "maxOutputTokens",
    "stopSequences",
    "candidateCount",
    "responseMimeType",
    "responseSchema",
    "responseJsonSchema",
    "thinkingConfig",
)
_THINKING = names("includeThoughts", "thinkingBudget", "thinkingLevel")
_LEVELS = ("minimal", "low", "medium", "high")
_JSON = "application/json"
_SHAPE = "~schema"  # the schema as it came, in OpenAPI's spelling
_DYNAMIC = -1


class Settings:
    """What a request's configuration says; `left` is what no other family knows of it."""

    def __init__(self, fields: Fields) -> None:
        config = child(fields, "generationConfig", CONFIG) or Fields({}, "generationConfig")
        values = {name: config.number(said, None) for name, said in KNOBS.items()}
        self.knobs: dict[str, float] = {name: value for name, value in values.items() if value is not None}
        self.max_tokens = config.integer("maxOutputTokens", None)
        if self.max_tokens is not None and self.max_tokens < 0:
            config.fail("maxOutputTokens", "expected a count of tokens")
        stop = config.peek("stopSequences")
        self.stop = (config.text("stopSequences"),) if isinstance(stop, str) else config.strings("stopSequences", ())
        self.choices = config.integer("candidateCount", 1)
        if self.choices < 1:
            config.fail("candidateCount", "expected 1 or more")
        self.output = _output(config)
        self.thinking, thoughts = _thinking(config)
        self.left = config.rest()
        if thoughts:
            self.left["thinkingConfig"] = thoughts


def _output(config: Fields) -> Output:
    """The form asked for; one that we do not know stays among the unknown fields."""
    mime = config.peek("responseMimeType")
    if mime is not None and not isinstance(mime, str):
        config.text("responseMimeType")
    if mime not in (None, "", "text/plain", _JSON):
        return Output()
    given, older = config.peek("responseJsonSchema"), config.peek("responseSchema")
    config.any("responseMimeType")
    if mime != _JSON:
        return Output()
    schema = given
    kept: dict[str, Json] = {}
    if given is None and older is not None:
        schema, kept = json_schema(older), {_SHAPE: older}
        config.any("responseSchema")
    if schema is None:
        config.any("responseJsonSchema")
        config.any("responseSchema")
        return Output("json")
    if not isinstance(schema, dict):
        config.fail("responseSchema" if kept else "responseJsonSchema", "expected an object")
    config.any("responseJsonSchema")
    return Output("schema", schema=schema, extra=extra_of(kept))


def _thinking(config: Fields) -> tuple[Thinking, dict[str, Json]]:
    thinking = child(config, "thinkingConfig", _THINKING)
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
        thinking.fail("thinkingBudget", "expected -1, 0 or more")
    return Thinking("adaptive" if budget else "off", effort, None, show), rest


# --- rendering


def render_settings(conversation: Conversation) -> dict[str, Json]:
    config: dict[str, Json] = {}
    for name, value in conversation.knobs.items():
        if name not in KNOBS:
            raise Unrepresentable("there is no such knob here", at=name)
        config[KNOBS[name]] = value
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
        raise Unrepresentable("an output schema has neither name nor strict flag here", at="output")
    if output.kind == "text":
        return {}
    body: dict[str, Json] = {"responseMimeType": _JSON}
    if output.kind == "schema":
        shape = own_fields(output.extra).get(_SHAPE)
        if shape is not None and json_schema(shape) == output.schema:
            body["responseSchema"] = shape
        else:
            body["responseJsonSchema"] = {**(output.schema or {})}
    return with_extra(body, output.extra)


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
            raise Unrepresentable("thinking is on by a budget, or by itself here", at="thinking")
    return body
