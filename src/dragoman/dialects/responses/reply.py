"""A whole response, both ways, and what whole and streamed ones share: the envelope and the reason to stop."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from dragoman.dialects.base import Environment
from dragoman.dialects.kit.openai_errors import CODES, KINDS, RETRY_DELAY, fault_of
from dragoman.dialects.kit.openai_requests import read_reply
from dragoman.dialects.kit.values import drop_empty
from dragoman.dialects.responses.blocks import (
    EXTRAS,
    FAMILY,
    JsonObject,
    is_refusal,
    object_of,
    parse_content,
    parse_reasoning,
    render_part,
    render_reasoning_text,
    text_of,
)
from dragoman.dialects.responses.items import INSTRUCTIONS, parse_call, render_call, take_message_fields
from dragoman.dialects.responses.request import render_settings
from dragoman.dialects.responses.tools import (
    TOOL_SEARCH,
    TOOL_SEARCH_CALL,
    ToolNameResolver,
    has_client_search,
    namespace_fields,
    namespaces,
    render_choice,
    render_tools,
)
from dragoman.errors import DragomanError, ErrorKind, Fault, MissingField, UpstreamFault
from dragoman.model.blocks import Block, Extra, Location, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import (
    Choice,
    Conversation,
    Reply,
    Stop,
    StopReason,
    Usage,
    find_stop_reason,
    inclusive_usage,
    parent_fields,
    parse_token_count,
    to_extra_names,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_REASONS = {"max_output_tokens": StopReason.LENGTH, "content_filter": StopReason.REFUSAL}
_INCOMPLETE = {
    StopReason.LENGTH: "max_output_tokens",
    StopReason.CONTEXT: "max_output_tokens",
    StopReason.REFUSAL: "content_filter",
}
_FAILED = ("failed", "cancelled")
UNFINISHED = ("queued", "in_progress")  # of a response that runs in the background
_ENVELOPE = frozenset({"id", "object", "model", "output", "usage", "status", "error", "incomplete_details"})
# What a response repeats of its request, and other words about itself that are nothing to anybody else.
_REPEATED = frozenset(
    {"background", "completed_at", "conversation", "created_at", "frequency_penalty", "instructions"}
    | {"max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "presence_penalty", "prompt"}
    | {"previous_response_id", "prompt_cache_key", "prompt_cache_retention", "reasoning", "safety_identifier"}
    | {"service_tier", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation"}
    | {"user", "output_text", "billing"}
)
_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    TOOL_SEARCH_CALL: "tsc_",
}

# --- wire to canonical


def parse_reply(body: bytes, asked: Conversation) -> Reply:
    """Raises UpstreamFault for a failed response, UpstreamViolation for what is none."""
    return read_reply(body, lambda fields: _reply(fields, asked))


def _reply(fields: Fields, asked: Conversation) -> Reply:
    failed = failure_of(fields.rest())
    status = fields.peek("status")
    if failed is None and status in (_FAILED if asked.is_job else (*_FAILED, *UNFINISHED)):
        failed = failure_of({"error": {"message": f"the response has the status {status}"}})
    if failed is not None:
        raise UpstreamFault(failed.message, fault=failed)
    fields.blame = MissingField
    tools = ToolNameResolver(asked.tools)
    blocks = [block for item in fields.children("output") for block in parse_item(item, tools)]
    unfinished = EXTRAS.extra_of({"~status": status}) if status in UNFINISHED else None
    stop = Stop(StopReason.END, extra=unfinished) if unfinished else parse_stop(fields, blocks)
    return Reply(
        fields.text("id", ""),
        fields.text("model", ""),
        (Choice(tuple(blocks), stop),),
        parse_usage(fields.any("usage")),
        extra=envelope_extra(fields.rest()),
    )


def parse_final_response(data: bytes) -> bytes:
    """The whole response that the last frame of a stream holds; empty if there is none."""
    frame = object_of(jsonio.decode(data)) if data else {}
    return jsonio.encode(frame["response"]) if "response" in frame else b""


def parse_items(response: bytes) -> dict[str, Sequence[Block]]:
    """What each output item says, by its id."""
    told = Fields(jsonio.decode(response)) if response else Fields({})
    items = told.children("output", [])
    tools = ToolNameResolver(())
    return {item_id: parse_item(item, tools) for item in items if (item_id := text_of(item.peek("id")))}


def envelope_extra(rest: JsonObject) -> Extra | None:
    """What a response says about itself beside what every one says; nulls say nothing."""
    told = {name: value for name, value in rest.items() if name not in _ENVELOPE and value is not None}
    extra = EXTRAS.extra_of(to_extra_names(told))
    return None if extra is None else structs.replace(extra, spelling=extra.spelling | (_REPEATED & told.keys()))


def parse_item(fields: Fields, tools: ToolNameResolver) -> list[Block]:
    """The blocks of one output item."""
    match fields.text("type"):
        case "message":
            fields.any("role")
            content = fields.any("content")
            blocks = parse_content(content, fields.path("content"), take_message_fields(fields))
            return [block for block in blocks if not (isinstance(block, Text) and not block.text)]
        case "reasoning":
            return [parse_reasoning(fields)]
        case "function_call" | "custom_tool_call" as kind:
            return [tools.resolve_call(parse_call(Fields({"type": kind, **fields.rest()}, fields.at, fields.blame)))]
        case kind:
            return [Opaque(FAMILY, {"type": kind, **fields.rest()}, kind, at=Location(fields.at))]


def parse_stop(fields: Fields, blocks: Sequence[Block]) -> Stop:
    """Why it stopped: what it says, and for one that says no more than that it is complete, its content."""
    details = fields.any("incomplete_details")
    reason = object_of(details).get("reason")
    if fields.any("status") == "incomplete" or reason is not None:
        known = isinstance(reason, str) and reason in _REASONS
        extra: JsonObject = {} if known or reason is None else {"incomplete_details": details}
        why = _REASONS[str(reason)] if known else find_stop_reason(str(reason))
        return Stop(why if why in _INCOMPLETE else StopReason.LENGTH, extra=EXTRAS.extra_of(extra))
    if any(isinstance(block, ToolCall) for block in blocks):
        return Stop(StopReason.TOOL)
    if any(isinstance(block, Text) and is_refusal(block) for block in blocks):
        return Stop(StopReason.REFUSAL, extra=EXTRAS.extra_of({"~status": "completed"}))
    return Stop(StopReason.END)


# --- canonical to wire


def render_reply(reply: Reply, asked: Conversation, environment: Environment) -> bytes:
    choice = reply.choices[0] if reply.choices else Choice((), Stop(StopReason.END))
    envelope = Envelope(reply.id, reply.model, EXTRAS.wire_fields(reply.extra), asked, environment)
    writer = ItemWriter(asked, environment)
    output = [item for block in choice.blocks if (item := writer.item(block)) is not None]
    return jsonio.encode(envelope.ended(choice.stop, output, reply.usage))


class Envelope:
    """The response object: the same id, time and model each time it is told, and what the request asked for."""

    def __init__(
        self, given: str, model: str, extra: JsonObject, asked: Conversation, environment: Environment
    ) -> None:
        created = extra.pop("created_at", None)
        self.id = given if given.startswith("resp") else environment.new_id("resp_")
        self.head: JsonObject = {
            "id": self.id,
            "object": "response",
            "created_at": environment.now() if created is None else created,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model or asked.model,
            **_repeated(asked),
            "output": [],
            "usage": None,
            **extra,
        }

    def ended(self, stop: Stop, output: Sequence[Json], usage: Usage | None) -> JsonObject:
        own = EXTRAS.own_fields(stop.extra)
        if own.get("~status") in UNFINISHED:
            return {**self.head, "status": own["~status"], "output": list(output)}
        details: Json = own.get("incomplete_details")
        if details is None and stop.reason in _INCOMPLETE and own.get("~status") != "completed":
            details = {"reason": _INCOMPLETE[stop.reason]}
        status = "completed" if details is None else "incomplete"
        told = render_usage(usage or Usage())
        return {**self.head, "status": status, "incomplete_details": details, "output": list(output), "usage": told}

    def failed(self, error: JsonObject, output: Sequence[Json]) -> JsonObject:
        return {**self.head, "status": "failed", "error": error, "output": list(output)}


def _repeated(asked: Conversation) -> JsonObject:
    """What a response repeats of its request. What the request cannot have said is left at its default."""
    usual: JsonObject = {
        "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
        "previous_response_id": asked.previous_id, "reasoning": {"effort": None, "summary": None}, "store": True,
        "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "top_p": None, "truncation": "disabled", "user": None,
    }  # fmt: skip
    try:
        said = render_settings(asked) | render_choice(asked) | {"tools": render_tools(asked.tools)}
    except DragomanError:  # asked in other words than ours
        said = {}
    said |= {name: value for name, value in EXTRAS.wire_fields(asked.extra).items() if name in usual}
    if asked.system and EXTRAS.own_fields(asked.system[0].extra).get(INSTRUCTIONS):
        said["instructions"] = asked.system[0].text
    return usual | said


class ItemWriter:
    """Output items, each with an id of its own, calls under the names the client knows."""

    def __init__(self, asked: Conversation, environment: Environment) -> None:
        self._world = environment
        self._namespaces = namespaces(asked.tools)
        self._runs_search = has_client_search(asked.tools)
        self._used: set[str] = set()

    def id_for(self, block: Block, kind: str) -> str:
        own = EXTRAS.own_fields(block.extra)
        given = text_of(own.get("~id") or object_of(own.get("~message")).get("id"))
        if not given or given in self._used:
            given = self._world.new_id(_PREFIXES.get(kind, "item_"))
        self._used.add(given)
        return given

    def item(self, block: Block) -> JsonObject | None:
        """A finished item; None for what is no part of an answer."""
        match block:
            case Text():
                head = self.message(block)
                return {**head, "status": "completed", "content": [output_part(block)]}
            case Reasoning():
                return self.reasoning(block, self.id_for(block, "reasoning"))
            case ToolCall() if self.is_search(block):
                return {**self.search(block), "status": "completed"}
            case ToolCall():
                return {**self.call(block), "status": "completed"}
            case Opaque():
                return object_of(block.data)
            case _:
                return None

    def message(self, text: Text) -> JsonObject:
        own = EXTRAS.own_fields(text.extra)
        item: JsonObject = {"id": self.id_for(text, "message"), "type": "message", "status": "in_progress"}
        item |= {"role": "assistant", "content": []}
        return {**item, **parent_fields(own)}

    def reasoning(self, block: Reasoning, item_id: str) -> JsonObject:
        sealed: JsonObject = {} if block.signature is None else {"encrypted_content": block.signature.data}
        return {
            "id": item_id,
            "type": "reasoning",
            **render_reasoning_text(block),
            **sealed,
            **EXTRAS.wire_fields(block.extra),
        }

    def is_search(self, call: ToolCall) -> bool:
        """Whether it calls the client's search for tools, which waits for an item of its own type."""
        return self._runs_search and call.name == TOOL_SEARCH and call.form == "json"

    def search(self, call: ToolCall) -> JsonObject:
        """A tool_search_call: its arguments are an object, not text."""
        item: JsonObject = {"id": self.id_for(call, TOOL_SEARCH_CALL), "type": TOOL_SEARCH_CALL, "call_id": call.id}
        arguments = jsonio.decode_object(call.arguments or "{}")
        return {**item, "execution": "client", "arguments": call.arguments if arguments is None else arguments}

    def call(self, call: ToolCall) -> JsonObject:
        """The call, its namespace told apart from its name again."""
        own = dict(EXTRAS.own_fields(call.extra))
        if call.name in self._namespaces:
            own |= namespace_fields(*self._namespaces[call.name])
        own["~id"] = self.id_for(call, "custom_tool_call" if call.form == "text" else "function_call")
        return render_call(structs.replace(call, signature=None, cache=None, extra=EXTRAS.extra_of(own)))


def output_part(text: Text) -> Json:
    part = render_part(structs.replace(text, signature=None, cache=None), "output_text")
    return {"logprobs": [], **part} if isinstance(part, dict) and part["type"] == "output_text" else part


# --- token counts: `input_tokens` include what came from and went to the cache; ours do not

_INPUT, _OUTPUT = "input_tokens_details", "output_tokens_details"
_TOTALS = ("input_tokens", "output_tokens", "total_tokens")
_CACHES = ("cached_tokens", "cache_write_tokens")


def parse_usage(told: Json) -> Usage | None:
    """Read the counts of a response; None where there are none."""
    if not isinstance(told, dict):
        return None
    before, after = object_of(told.get(_INPUT)), object_of(told.get(_OUTPUT))
    given, answered, total = (parse_token_count(told.get(name)) for name in _TOTALS)
    read, write = parse_token_count(before.get("cached_tokens")), parse_token_count(before.get("cache_write_tokens"))
    rest = {name: value for name, value in told.items() if name not in _TOTALS}
    rest[_INPUT] = drop_empty({name: value for name, value in before.items() if name not in _CACHES})
    rest[_OUTPUT] = drop_empty({name: value for name, value in after.items() if name != "reasoning_tokens"})
    extra = EXTRAS.extra_of(to_extra_names(drop_empty(rest)))
    thought = parse_token_count(after.get("reasoning_tokens"))
    return inclusive_usage(given, answered, read, write, thought, total=total, extra=extra)


def render_usage(usage: Usage) -> JsonObject:
    """All counts with their details: Codex gives the turn up if one of them is missing."""
    given = usage.input + usage.cache_read + usage.cache_write
    extra = EXTRAS.wire_fields(usage.extra)
    before = {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write}
    return {
        "input_tokens": given,
        _INPUT: {**before, **object_of(extra.pop(_INPUT, None))},
        "output_tokens": usage.output,
        _OUTPUT: {"reasoning_tokens": usage.reasoning, **object_of(extra.pop(_OUTPUT, None))},
        "total_tokens": given + usage.output,
        **extra,
    }


# --- errors where only Responses have them: those that failed, and what Codex acts on. Others are the service's

# The code of a response that failed.
_CODES: dict[ErrorKind, str] = {
    **CODES,
    "invalid": "invalid_prompt",
    "permission": "permission_denied",
    "too_large": "invalid_prompt",
    "timeout": "server_error",
    "server": "server_error",
}


def failure_of(response: JsonObject) -> Fault | None:
    """The fault of a response that failed, or of an error that came as a success; None if there is none."""
    error = response.get("error")
    if not error and response.get("object") != "error":
        return None
    return fault_of({"error": error} if error else response, None)


def render_failure(fault: Fault) -> JsonObject:
    """The error of a response that failed, in the codes that Codex acts on; it reads the wait from the words."""
    code = _CODES[fault.kind]
    if KINDS.get(fault.code) == fault.kind and fault.code != "invalid_request_error":
        code = fault.code
    message = fault.message
    if fault.kind == "rate_limit" and fault.retry_after is not None and not RETRY_DELAY.search(message):
        message = f"{message} (try again in {fault.retry_after:g}s)"
    return object_of({"code": code, "message": message})
