"""Parse and render whole responses of the Responses API; also stop reasons and errors of streams. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from dragoman.dialects.base import Environment
from dragoman.dialects.kit.openai_errors import CODES, KINDS, RETRY_DELAY, fault_of
from dragoman.dialects.kit.openai_requests import read_reply
from dragoman.dialects.kit.values import drop_empty, items
from dragoman.dialects.responses import web_search
from dragoman.dialects.responses.blocks import (
    EXTRAS,
    FAMILY,
    is_refusal,
    object_of,
    parse_content,
    parse_reasoning,
    render_part,
    render_reasoning_text,
    text_of,
)
from dragoman.dialects.responses.items import INSTRUCTIONS, parse_call, render_call, render_summary, take_message_fields
from dragoman.dialects.responses.request import render_settings
from dragoman.dialects.responses.tools import (
    TOOL_SEARCH,
    TOOL_SEARCH_CALL,
    TOOL_SEARCH_OUTPUT,
    ToolNameResolver,
    has_client_search,
    namespace_fields,
    namespaces,
    render_choice,
    render_search,
    render_tools,
    with_search_effects,
)
from dragoman.errors import DragomanError, ErrorKind, Fault, MissingField, UpstreamFault
from dragoman.model.blocks import (
    Block,
    Extra,
    FoundTools,
    Location,
    Opaque,
    Reasoning,
    Summary,
    Text,
    ToolCall,
    ToolSearch,
    WebResults,
    WebSearch,
)
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
from dragoman.wire.jsonio import Json, JsonObject

_REASONS = {"max_output_tokens": StopReason.LENGTH, "content_filter": StopReason.REFUSAL}
_INCOMPLETE = {
    StopReason.LENGTH: "max_output_tokens",
    StopReason.CONTEXT: "max_output_tokens",
    StopReason.REFUSAL: "content_filter",
}
_FAILED = ("failed", "cancelled")
UNFINISHED = ("queued", "in_progress")  # the statuses of a response that runs in the background
_ENVELOPE = frozenset({"id", "object", "model", "output", "usage", "status", "error", "incomplete_details"})
# Fields that repeat the request or describe the response, which no other dialect needs.
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
    "compaction": "cmp_",
    TOOL_SEARCH_CALL: "tsc_",
    TOOL_SEARCH_OUTPUT: "tso_",
}

# --- wire to canonical


def parse_reply(body: bytes, request: Conversation) -> Reply:
    """Parse a response. Raises UpstreamFault for a failed one, UpstreamViolation for an invalid body."""
    return read_reply(body, lambda fields: _reply(fields, request))


def _reply(fields: Fields, request: Conversation) -> Reply:
    failed = failure_of(fields.rest())
    status = fields.peek("status")
    if failed is None and status in (_FAILED if request.is_job else (*_FAILED, *UNFINISHED)):
        failed = failure_of({"error": {"message": f"the response has the status {status}"}})
    if failed is not None:
        raise UpstreamFault(failed.message, fault=failed)
    fields.blame = MissingField
    tools = ToolNameResolver(request.tools)
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
    """Return the whole response in the last frame of a stream; b"" if there is none."""
    frame = object_of(jsonio.decode(data)) if data else {}
    return jsonio.encode(frame["response"]) if "response" in frame else b""


def parse_items(response: bytes) -> dict[str, Sequence[Block]]:
    """Return the blocks of each output item of a response, by the item's id."""
    fields = Fields(jsonio.decode(response)) if response else Fields({})
    items = fields.children("output", [])
    tools = ToolNameResolver(())
    return {item_id: parse_item(item, tools) for item in items if (item_id := text_of(item.peek("id")))}


def envelope_extra(rest: JsonObject) -> Extra | None:
    """Return the fields of a response that are not part of every one, without nulls."""
    fields = {name: value for name, value in rest.items() if name not in _ENVELOPE and value is not None}
    extra = EXTRAS.extra_of(to_extra_names(fields))
    return None if extra is None else structs.replace(extra, spelling=extra.spelling | (_REPEATED & fields.keys()))


def parse_item(fields: Fields, tools: ToolNameResolver) -> list[Block]:
    """Return the blocks of one output item."""
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
            item = Opaque(FAMILY, {"type": kind, **fields.rest()}, kind, at=Location(fields.at))
            return [with_search_effects(item, tools)]


def parse_stop(fields: Fields, blocks: Sequence[Block]) -> Stop:
    """Return the stop of a response: its stated reason, or for a complete one the reason that its blocks imply."""
    details = fields.any("incomplete_details")
    reason = object_of(details).get("reason")
    if fields.any("status") == "incomplete" or reason is not None:
        known = isinstance(reason, str) and reason in _REASONS
        extra: JsonObject = {} if known or reason is None else {"incomplete_details": details}
        stop = _REASONS[str(reason)] if known else find_stop_reason(str(reason))
        return Stop(stop if stop in _INCOMPLETE else StopReason.LENGTH, extra=EXTRAS.extra_of(extra))
    if any(isinstance(block, ToolCall) for block in blocks):
        return Stop(StopReason.TOOL)
    if any(isinstance(block, Text) and is_refusal(block) for block in blocks):
        return Stop(StopReason.REFUSAL, extra=EXTRAS.extra_of({"~status": "completed"}))
    return Stop(StopReason.END)


# --- canonical to wire


def render_reply(reply: Reply, request: Conversation, environment: Environment) -> bytes:
    """Write a reply as a JSON body. `request` is the client's conversation."""
    choice = reply.choices[0] if reply.choices else Choice((), Stop(StopReason.END))
    envelope = Envelope(reply.id, reply.model, EXTRAS.wire_fields(reply.extra), request, environment)
    writer = ItemWriter(request, environment)
    writer.results = {
        effect.id: effect
        for block in choice.blocks
        if isinstance(block, Opaque)
        for effect in block.effects
        if isinstance(effect, WebResults)
    }
    output = [item for block in choice.blocks if (item := writer.item(block)) is not None]
    return jsonio.encode(envelope.render_ended(choice.stop, output, reply.usage))


class Envelope:
    """Writes the response object, always with the same id, time and model, and with the settings of the request."""

    def __init__(
        self, response_id: str, model: str, extra: JsonObject, request: Conversation, environment: Environment
    ) -> None:
        created = extra.pop("created_at", None)
        self.id = response_id if response_id.startswith("resp") else environment.new_id("resp_")
        self.head: JsonObject = {
            "id": self.id,
            "object": "response",
            "created_at": environment.now() if created is None else created,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model or request.model,
            **_repeated_fields(request),
            "output": [],
            "usage": None,
            **extra,
        }

    def render_ended(self, stop: Stop, output: Sequence[Json], usage: Usage | None) -> JsonObject:
        """Return the object of a response that has ended, or that still runs in the background."""
        own = EXTRAS.own_fields(stop.extra)
        if own.get("~status") in UNFINISHED:
            return {**self.head, "status": own["~status"], "output": list(output)}
        details: Json = own.get("incomplete_details")
        if details is None and stop.reason in _INCOMPLETE and own.get("~status") != "completed":
            details = {"reason": _INCOMPLETE[stop.reason]}
        status = "completed" if details is None else "incomplete"
        counts = render_usage(usage or Usage())
        return {**self.head, "status": status, "incomplete_details": details, "output": list(output), "usage": counts}

    def render_failed(self, error: JsonObject, output: Sequence[Json]) -> JsonObject:
        """Return the object of a response that has failed."""
        return {**self.head, "status": "failed", "error": error, "output": list(output)}


def _repeated_fields(request: Conversation) -> JsonObject:
    """Return the fields of the request that a response repeats, with defaults for those that it does not have."""
    defaults: JsonObject = {
        "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
        "previous_response_id": request.previous_id, "reasoning": {"effort": None, "summary": None}, "store": True,
        "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "top_p": None, "truncation": "disabled", "user": None,
    }  # fmt: skip
    try:
        repeated = render_settings(request) | render_choice(request) | {"tools": render_tools(request.tools)}
    except DragomanError:  # a request of another dialect that Responses cannot represent
        repeated = {}
    repeated |= {name: value for name, value in EXTRAS.wire_fields(request.extra).items() if name in defaults}
    if request.system and EXTRAS.own_fields(request.system[0].extra).get(INSTRUCTIONS):
        repeated["instructions"] = request.system[0].text
    return defaults | repeated


class ItemWriter:
    """Renders blocks as output items: with unique ids, and calls under the names that the client declared."""

    def __init__(self, request: Conversation, environment: Environment) -> None:
        self._environment = environment
        self._tools = request.tools
        self._namespaces = namespaces(request.tools)
        self._runs_search = has_client_search(request.tools)
        self._used: set[str] = set()
        self.results: dict[str, WebResults] = {}  # of searches of the web, by the id of the search
        self._shows_sources = web_search.SOURCES in items(EXTRAS.own_fields(request.extra).get("include"))

    def id_for(self, block: Block, kind: str) -> str:
        """Return the item id of a block: its own if it is unused, else a new one."""
        own = EXTRAS.own_fields(block.extra)
        item_id = text_of(own.get("~id") or object_of(own.get("~message")).get("id"))
        if not item_id or item_id in self._used:
            item_id = self._environment.new_id(_PREFIXES.get(kind, "item_"))
        self._used.add(item_id)
        return item_id

    def item(self, block: Block) -> JsonObject | None:
        """Return a finished item; None for a block that a response cannot contain."""
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
            case Opaque(effects=(Summary(text), *_)) if not block.data:
                item = render_summary(text)
                return {"id": self.id_for(block, text_of(item["type"])), **item}
            case Opaque(effects=(ToolSearch() | FoundTools(), *_)) if not block.data:
                item = render_search(block, self._tools)
                return {"id": self.id_for(block, text_of(item["type"])), **item}
            case Opaque(effects=(WebSearch() as search, *_)) if not block.data:
                item = self.web_search(search, self.results.get(search.id, WebResults(search.id)))
                return {"id": self.search_id(search), **item}
            case Opaque(effects=(WebResults(), *_)) if not block.data:
                return None  # the item of the search has them
            case Opaque():
                return object_of(block.data)
            case _:
                return None

    def search_id(self, search: WebSearch) -> str:
        """Return the item id of a search of the web."""
        own = web_search.item_id(search.id or self._environment.new_id(""))
        if own in self._used:
            own = web_search.item_id(self._environment.new_id(""))
        self._used.add(own)
        return own

    def web_search(self, search: WebSearch, results: WebResults | None) -> JsonObject:
        """Return the item of a search of the web, without its id; without results it is in progress."""
        return web_search.render_call(search, results, shows_sources=self._shows_sources)

    def message(self, text: Text) -> JsonObject:
        """Return the message item of a text, without content."""
        own = EXTRAS.own_fields(text.extra)
        item: JsonObject = {"id": self.id_for(text, "message"), "type": "message", "status": "in_progress"}
        item |= {"role": "assistant", "content": []}
        return {**item, **parent_fields(own)}

    def reasoning(self, block: Reasoning, item_id: str) -> JsonObject:
        """Return a reasoning item."""
        encrypted: JsonObject = {} if block.signature is None else {"encrypted_content": block.signature.data}
        return {
            "id": item_id,
            "type": "reasoning",
            **render_reasoning_text(block),
            **encrypted,
            **EXTRAS.wire_fields(block.extra),
        }

    def is_search(self, call: ToolCall) -> bool:
        """Return whether a call is one of the client's tool search, which has its own item type."""
        return self._runs_search and call.name == TOOL_SEARCH and call.form == "json"

    def search(self, call: ToolCall) -> JsonObject:
        """Return a tool_search_call. Its arguments are an object, not text."""
        item: JsonObject = {"id": self.id_for(call, TOOL_SEARCH_CALL), "type": TOOL_SEARCH_CALL, "call_id": call.id}
        arguments = jsonio.decode_object(call.arguments or "{}")
        return {**item, "execution": "client", "arguments": call.arguments if arguments is None else arguments}

    def call(self, call: ToolCall) -> JsonObject:
        """Return a call with namespace and name in separate fields."""
        own = dict(EXTRAS.own_fields(call.extra))
        if call.name in self._namespaces:
            own |= namespace_fields(*self._namespaces[call.name])
        own["~id"] = self.id_for(call, "custom_tool_call" if call.form == "text" else "function_call")
        return render_call(structs.replace(call, signature=None, cache=None, extra=EXTRAS.extra_of(own)))


def output_part(text: Text) -> Json:
    """Return a text as an output_text or refusal part."""
    part = render_part(structs.replace(text, signature=None, cache=None), "output_text")
    return {"logprobs": [], **part} if isinstance(part, dict) and part["type"] == "output_text" else part


# --- token counts: `input_tokens` include tokens read from and written to the cache; `Usage.input` does not

_INPUT, _OUTPUT = "input_tokens_details", "output_tokens_details"
_TOTALS = ("input_tokens", "output_tokens", "total_tokens")
_CACHES = ("cached_tokens", "cache_write_tokens")


def parse_usage(counts: Json) -> Usage | None:
    """Return the token counts of a response; None if `counts` is not an object."""
    if not isinstance(counts, dict):
        return None
    before, after = object_of(counts.get(_INPUT)), object_of(counts.get(_OUTPUT))
    prompt, output, total = (parse_token_count(counts.get(name)) for name in _TOTALS)
    read, write = parse_token_count(before.get("cached_tokens")), parse_token_count(before.get("cache_write_tokens"))
    rest = {name: value for name, value in counts.items() if name not in _TOTALS}
    rest[_INPUT] = drop_empty({name: value for name, value in before.items() if name not in _CACHES})
    rest[_OUTPUT] = drop_empty({name: value for name, value in after.items() if name != "reasoning_tokens"})
    extra = EXTRAS.extra_of(to_extra_names(drop_empty(rest)))
    reasoning = parse_token_count(after.get("reasoning_tokens"))
    return inclusive_usage(prompt, output, read, write, reasoning, total=total, extra=extra)


def render_usage(usage: Usage) -> JsonObject:
    """Write all counts with their details: Codex aborts the turn if one of them is missing."""
    prompt = usage.input + usage.cache_read + usage.cache_write
    extra = EXTRAS.wire_fields(usage.extra)
    before = {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write}
    return {
        "input_tokens": prompt,
        _INPUT: {**before, **object_of(extra.pop(_INPUT, None))},
        "output_tokens": usage.output,
        _OUTPUT: {"reasoning_tokens": usage.reasoning, **object_of(extra.pop(_OUTPUT, None))},
        "total_tokens": prompt + usage.output,
        **extra,
    }


# --- errors of failed responses, with the codes that Codex acts on; openai_errors.py reads all others

# The error code of a failed response.
_CODES: dict[ErrorKind, str] = {
    **CODES,
    "invalid": "invalid_prompt",
    "permission": "permission_denied",
    "too_large": "invalid_prompt",
    "timeout": "server_error",
    "server": "server_error",
}


def failure_of(response: JsonObject) -> Fault | None:
    """Return the fault of a failed response, or of an error with a success status; None if there is none."""
    error = response.get("error")
    if not error and response.get("object") != "error":
        return None
    return fault_of({"error": error} if error else response, None)


def render_failure(fault: Fault) -> JsonObject:
    """Write the error of a failed response with a code that Codex acts on. Codex reads the delay from the message."""
    code = _CODES[fault.kind]
    if KINDS.get(fault.code) == fault.kind and fault.code != "invalid_request_error":
        code = fault.code
    message = fault.message
    if fault.kind == "rate_limit" and fault.retry_after is not None and not RETRY_DELAY.search(message):
        message = f"{message} (try again in {fault.retry_after:g}s)"
    return object_of({"code": code, "message": message})
