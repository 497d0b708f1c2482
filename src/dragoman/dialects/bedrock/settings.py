"""The settings of a request, both directions: inferenceConfig, outputConfig, and what a vendor takes besides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dragoman.dialects.bedrock.models import Vendor
from dragoman.dialects.bedrock.nodes import with_extra
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Extra, Where, to_keep
from dragoman.model.conversation import Conversation, Output, Thinking, ToolChoice
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FREE = "additionalModelRequestFields"
KNOBS = ("temperature", "top_p", "top_k")
USER = "user_id"

_MODES = {"auto": "auto", "any": "any", "none": "none", "tool": "one"}
_CHOICES = {mode: name for name, mode in _MODES.items()}
_THINKING = {"enabled": "on", "disabled": "off", "adaptive": "adaptive"}
_THINKING_TYPES = {mode: name for name, mode in _THINKING.items()}
_DISPLAYS = {"summarized": True, "omitted": False}


class Settings:
    """What a request's body says about the answer, read once; `rest` is what of it we do not know."""

    def __init__(self, fields: Fields, vendor: Vendor) -> None:
        self._vendor = vendor
        self.rest: dict[str, Json] = {}
        free = fields.peek(FREE)
        self._free: dict[str, Json] = _copied(free) if isinstance(free, dict) else {}
        if isinstance(free, dict) or free is None:
            fields.any(FREE)
        self.knobs: dict[str, float] = {}
        self.max_tokens, self.stop = self._inference(fields)
        output = fields.maybe_child("outputConfig")
        self.output = self._output(output) if output else Output()
        effort = self._effort(output)
        self._keep("outputConfig", output)
        self.thinking = self._thinking(effort)
        self.user = self._user(fields)
        self._tool_choice = self._free.pop("tool_choice", None) if vendor.claude_fields else None

    def leftovers(self) -> dict[str, Json]:
        """All that was read and not understood, under the names it came with."""
        return self.rest | ({FREE: self._free} if self._free else {})

    def _keep(self, name: str, fields: Fields | None) -> None:
        if fields is not None and (rest := fields.rest()):
            self.rest[name] = rest

    def _inference(self, fields: Fields) -> tuple[int | None, tuple[str, ...]]:
        limit: int | None = None
        stops: tuple[str, ...] = ()
        if config := fields.maybe_child("inferenceConfig"):
            limit, stops = config.integer("maxTokens", None), config.strings("stopSequences", ())
            for knob, name in (("temperature", "temperature"), ("top_p", "topP")):
                if (value := config.number(name, None)) is not None:
                    self.knobs[knob] = value
            self._keep("inferenceConfig", config)
        fields.any("inferenceConfig")
        top_k = _taken(self._free, self._vendor.top_k, (int, float))
        if isinstance(top_k, int | float):
            self.knobs["top_k"] = top_k
        return limit, stops

    def _output(self, config: Fields) -> Output:
        """The schema asked for; a form of an unknown type stays among the unknown fields."""
        form = config.peek("textFormat")
        if not isinstance(form, dict) or form.get("type") != "json_schema":
            return Output()
        inner = config.child("textFormat")
        inner.any("type")
        structure = inner.child("structure")
        schema = structure.child("jsonSchema")
        said = _schema(schema)
        name, kept = schema.text("name", ""), schema.rest()
        more = structure.rest() | ({"jsonSchema": kept} if kept else {})
        rest = to_keep(inner.rest()) | ({"structure": more} if more else {})
        return Output("schema", name, said, extra=Extra("bedrock", rest) if rest else None)

    def _effort(self, output: Fields | None) -> str:
        where = self._vendor.effort
        if where[:1] == ("outputConfig",):
            return output.text(where[1], "") if output else ""
        said = _taken(self._free, where[1:], (str,)) if where else None
        return said if isinstance(said, str) else ""

    def _thinking(self, effort: str) -> Thinking:
        said = self._free.get("thinking")
        if not self._vendor.claude_fields or not isinstance(said, dict):
            return Thinking(effort=effort)
        mode, budget, display = _THINKING.get(str(said.get("type"))), said.get("budget_tokens"), said.get("display")
        known = {"type", "budget_tokens", "display"} >= said.keys()
        if mode is None or not known or type(budget) not in (int, type(None)) or display not in (None, *_DISPLAYS):
            return Thinking(effort=effort)
        if budget is not None and mode != "on":
            return Thinking(effort=effort)
        del self._free["thinking"]
        show = _DISPLAYS[display] if isinstance(display, str) else None
        return Thinking(mode, effort, budget if isinstance(budget, int) else None, show)  # type: ignore[arg-type]

    def _user(self, fields: Fields) -> str:
        metadata = fields.maybe_child("requestMetadata")
        fields.any("requestMetadata")
        if metadata is None:
            return ""
        user = metadata.text(USER, "") if isinstance(metadata.peek(USER), str) else ""
        self._keep("requestMetadata", metadata)
        return user

    def tool_choice(self, said: Fields | None) -> ToolChoice:
        """toolChoice, and what it has no word for: `none`, and whether calls may be parallel."""
        mode, names = "auto", tuple[str, ...]()
        at = Where("additionalModelRequestFields.tool_choice")
        if said is not None:
            at = Where(said.at)
            mode, names = _choice(said)
        more = self._tool_choice
        if not isinstance(more, dict):
            if more is not None:
                self._free["tool_choice"] = more
            return ToolChoice(mode, names, at=at)  # type: ignore[arg-type]  # _MODES has them all
        rest = {**more}
        kind, alone = rest.pop("type", None), rest.pop("disable_parallel_tool_use", None)
        name = rest.pop("name", None)
        fits = isinstance(kind, str) and kind in _MODES and type(alone) in (bool, type(None)) and not rest
        fits = fits and (kind == "tool") == (isinstance(name, str) and bool(name))
        if not fits:
            self._free["tool_choice"] = more
            return ToolChoice(mode, names, at=at)  # type: ignore[arg-type]
        if mode == "auto":
            mode, names = _MODES[str(kind)], (str(name),) if name else ()
        parallel = None if alone is None else not alone
        return ToolChoice(mode, names, parallel, at)  # type: ignore[arg-type]


def _copied(value: Mapping[str, Json]) -> dict[str, Json]:
    """A copy of an object and of the objects in it, so that taking from it changes nothing of the client's."""
    return {name: {**each} if isinstance(each, dict) else each for name, each in value.items()}


def _taken(free: dict[str, Json], path: tuple[str, ...], kinds: tuple[type, ...]) -> Json:
    """Take the value at a path of one or two names, if it is of one of these kinds; an emptied object goes too."""
    if not path:
        return None
    *outer, name = path
    place = free if not outer else free.get(outer[0])
    if not isinstance(place, dict) or type(place.get(name)) not in kinds:
        return None
    value = place.pop(name)
    if outer and not place:
        del free[outer[0]]
    return value


def _schema(fields: Fields) -> dict[str, Json]:
    """The schema is a text that holds one."""
    text = fields.text("schema")
    try:
        value = jsonio.decode(text)
    except jsonio.JsonError as error:
        fields.fail("schema", f"not JSON: {error}")
    if not isinstance(value, dict):
        fields.fail("schema", "expected the text of a JSON object")
    return value


def _choice(said: Fields) -> tuple[str, tuple[str, ...]]:
    for name in ("auto", "any"):
        if said.peek(name) is not None:
            said.child(name)
            return name, ()
    if said.peek("tool") is not None:
        name = said.child("tool").text("name")
        if not name:
            said.fail("tool", "expected a name that is not empty")
        return "one", (name,)
    return "auto", ()


# --- rendering


def render_settings(conversation: Conversation, vendor: Vendor) -> dict[str, Json]:
    """All settings but toolConfig. Raises Unrepresentable for what has no place here."""
    body: dict[str, Json] = {}
    free: dict[str, Json] = {}
    config = _render_inference(conversation, vendor, free)
    if config:
        body["inferenceConfig"] = config
    output = _render_output(conversation.output)
    effort = conversation.thinking.effort
    if effort:
        if not vendor.effort:
            raise Unrepresentable("the effort of thinking has no place here", at="reasoning_effort")
        (output if vendor.effort[0] == "outputConfig" else free)[vendor.effort[1]] = effort
    if output:
        body["outputConfig"] = output
    if conversation.thinking.mode != "default":
        free["thinking"] = _render_thinking(conversation.thinking, vendor)
    if more := _render_free_choice(conversation.tool_choice, vendor):
        free["tool_choice"] = more
    if free:
        body[FREE] = free
    if conversation.user:
        body["requestMetadata"] = {USER: conversation.user}
    return body


def _render_inference(conversation: Conversation, vendor: Vendor, free: dict[str, Json]) -> dict[str, Json]:
    config: dict[str, Json] = {}
    if conversation.max_tokens is not None:
        config["maxTokens"] = conversation.max_tokens
    for knob, value in conversation.knobs.items():
        if knob in ("temperature", "top_p"):
            config["temperature" if knob == "temperature" else "topP"] = value
        elif knob == "top_k" and vendor.top_k:
            *outer, name = vendor.top_k
            place: dict[str, Json] = free.setdefault(outer[0], {}) if outer else free  # type: ignore[assignment]
            place[name] = value
        else:
            raise Unrepresentable("there is no such knob here", at=knob)
    if conversation.stop:
        config["stopSequences"] = list(conversation.stop)
    return config


def _render_output(output: Output) -> dict[str, Json]:
    if output.kind == "text":
        return {}
    if output.kind == "json":
        raise Unrepresentable("JSON without a schema cannot be asked for here", at="response_format")
    if output.strict is not None:
        raise Unrepresentable("an output schema has no strict flag here", at="response_format")
    schema: dict[str, Json] = {"schema": jsonio.encode({**(output.schema or {})}).decode()}
    if output.name:
        schema["name"] = output.name
    form: dict[str, Json] = {"type": "json_schema", "structure": {"jsonSchema": schema}}
    return {"textFormat": with_extra(form, output.extra)}


def _render_thinking(thinking: Thinking, vendor: Vendor) -> Json:
    if not vendor.claude_fields or thinking.mode not in _THINKING_TYPES:
        raise Unrepresentable(f"thinking {thinking.mode!r} has no place here", at="thinking")
    body: dict[str, Json] = {"type": _THINKING_TYPES[thinking.mode]}
    if thinking.budget is not None:
        if thinking.mode != "on":
            raise Unrepresentable("only thinking that is on has a budget here", at="thinking")
        body["budget_tokens"] = thinking.budget
    if thinking.show is not None:
        body["display"] = "summarized" if thinking.show else "omitted"
    return body


def _render_free_choice(choice: ToolChoice, vendor: Vendor) -> Json:
    """What toolChoice has no word for, in the words of the one vendor that has."""
    if choice.mode != "none" and choice.parallel is None:
        return None
    if not vendor.claude_fields:
        raise Unrepresentable(f"tool choice {choice.mode!r} with a flag has no place here", at="tool_choice")
    body: dict[str, Json] = {"type": _CHOICES[choice.mode]}
    if choice.names:
        body["name"] = choice.names[0]
    if choice.parallel is not None:
        body["disable_parallel_tool_use"] = not choice.parallel
    return body


def render_choice(choice: ToolChoice, forced: Sequence[str] = ("any", "one")) -> dict[str, Json]:
    """toolChoice, if there is something to say in it."""
    if (choice.mode == "one") != (len(choice.names) == 1) or (choice.names and choice.mode != "one"):
        raise Unrepresentable("a choice among some of the tools cannot be said here", at="tool_choice")
    if choice.mode not in forced:
        return {}
    return {"toolChoice": {"tool": {"name": choice.names[0]}} if choice.mode == "one" else {"any": {}}}
