"""Parse and render whole replies of Chat Completions; also stop reasons, token counts and errors of streams. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import structs

from dragoman.dialects.base import Environment
from dragoman.dialects.kit.openai_errors import fault_of, find_fault, status_of
from dragoman.dialects.kit.openai_requests import arguments_text, read_reply
from dragoman.dialects.kit.values import drop_empty as nonzero
from dragoman.dialects.kit.values import members
from dragoman.dialects.openai.blocks import (
    EXTRAS,
    FAMILY,
    SOURCE_FIELDS,
    OpenaiSettings,
    is_empty_value,
    is_legacy_form,
    is_refusal,
    parse_annotations,
    parse_content,
    parse_sources,
    render_annotations,
    render_part,
)
from dragoman.dialects.openai.messages import parse_assistant_blocks, render_reasoning, take_function_call
from dragoman.dialects.openai.tools import render_call, render_legacy_call
from dragoman.errors import Fault, MissingField, UpstreamFault
from dragoman.model.blocks import Block, Extra, Location, Media, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import (
    NO_STOP_WORDS,
    Choice,
    Conversation,
    Reply,
    Stop,
    StopReason,
    Usage,
    failure_kind,
    find_stop_reason,
    first_token_count,
    inclusive_usage,
    parse_token_count,
    to_extra_names,
)
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json, JsonObject

_FINISH_REASONS = {
    StopReason.END: "stop",
    StopReason.TOOL: "tool_calls",
    StopReason.LENGTH: "length",
    StopReason.SEQUENCE: "stop",
    StopReason.REFUSAL: "content_filter",
    StopReason.CONTEXT: "length",
    StopReason.PAUSE: "stop",
}
_ENVELOPE = ("id", "object", "created", "model", "choices", "usage", "error", "obfuscation")
MESSAGE_SLOT = "message"  # marks an opaque block whose data are fields of the message

# --- wire to canonical


def parse_reply(settings: OpenaiSettings, body: bytes, request: Conversation) -> Reply:
    """Parse a reply. Raises UpstreamFault for an error with a success status, UpstreamViolation for an invalid body."""
    return read_reply(body, lambda fields: _reply(fields, request, settings))


def _reply(fields: Fields, request: Conversation, settings: OpenaiSettings) -> Reply:
    if (fault := find_fault(fields.rest())) is not None:
        raise UpstreamFault(fault.message, fault=fault)
    fields.blame = MissingField
    entries = fields.children("choices")
    if not entries:
        fields.fail("choices", "expected at least one choice")
    choices = [(entry.integer("index", position), entry) for position, entry in enumerate(entries)]
    choices.sort(key=lambda pair: pair[0])
    usage = parse_usage(fields.any("usage"))
    sources = parse_sources(*map(fields.peek, SOURCE_FIELDS))
    created = fields.any("created")
    creation: JsonObject = {"created": created} if type(created) is int and created else {}
    return Reply(
        fields.text("id", ""),
        fields.text("model", ""),
        tuple(_choice(entry, request, settings, sources) for _, entry in choices),
        usage or parse_usage(embedded_usage(fields.peek("x_groq"), (entry.peek("usage") for entry in entries))),
        extra=EXTRAS.extra_of(envelope_fields(fields.rest()) | creation),
    )


def envelope_fields(rest: JsonObject) -> JsonObject:
    """Return the fields of a reply or a first chunk that are not part of every one, without nulls."""
    return to_extra_names({name: value for name, value in rest.items() if name not in _ENVELOPE and value is not None})


def without_empty(fields: JsonObject) -> JsonObject:
    """Return the fields that are not null, [] or {}: services fill replies with empty fields."""
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _cite(blocks: list[Block], citations: list[Opaque]) -> list[Block]:
    """Attach the sources of a message to its last text; without a text they become a field of the message."""
    texts = [at for at, block in enumerate(blocks) if isinstance(block, Text) and not is_refusal(block)]
    if texts:
        text = blocks[texts[-1]]
        assert isinstance(text, Text)
        blocks[texts[-1]] = structs.replace(text, citations=(*text.citations, *citations))
        return blocks
    annotations: list[Json] = [each.data for each in citations if each.data is not None]
    if annotations:
        extra = EXTRAS.extra_of({"~slot": MESSAGE_SLOT})
        blocks.append(Opaque(FAMILY, {"annotations": annotations}, "annotations", extra=extra))
    return blocks


def _choice(fields: Fields, request: Conversation, settings: OpenaiSettings, sources: list[Opaque]) -> Choice:
    word = fields.text("finish_reason", "")
    if (fault := stop_fault(word, fields.rest())) is not None:
        raise UpstreamFault(fault.message, fault=fault)
    message = _message(fields)
    message.any("role")
    blocks = parse_assistant_blocks(message, settings)
    if images := message.any("images"):
        blocks += parse_images(images, message.path("images"))
    if call := take_function_call(message):
        name, arguments = call.identifier("name"), arguments_text(call.any("arguments"))
        blocks.append(ToolCall("", name, arguments, at=Location(call.at)))
    blocks = _cite(blocks, [*parse_annotations(message.any("annotations")), *sources])
    if rest := without_empty(message.rest()):
        blocks.append(Opaque(FAMILY, rest, "message fields", extra=EXTRAS.extra_of({"~slot": MESSAGE_SLOT})))
    refused = any(EXTRAS.own_fields(block.extra).get("refusal") is True for block in blocks)
    stop = parse_stop("stop" if word.lower() in NO_STOP_WORDS else word, fields.rest(), request.stop, refused=refused)
    return Choice(tuple(block for block in blocks if not (isinstance(block, Text) and not block.text)), stop)


def _message(fields: Fields) -> Fields:
    """Return the message of a choice without empty fields. It may be missing if there is a finish_reason."""
    message = fields.any("message")
    if is_empty_value(message) and fields.peek("finish_reason"):
        message = {}
    if isinstance(message, dict):
        message = {name: value for name, value in message.items() if value not in ("", [], {})}
    return Fields(message, fields.path("message"), fields.blame)


def parse_images(images: Json, at: str) -> list[Block]:
    """Read the images of a reply, as OpenRouter sends them. Their `index` has a meaning only in streams."""
    parts = images if isinstance(images, list) else [images]
    plain = [{k: v for k, v in part.items() if k != "index"} if isinstance(part, dict) else part for part in parts]
    return parse_content(plain, at)


def parse_stop(word: str, rest: JsonObject, sequences: Collection[str], *, refused: bool = False) -> Stop:
    """Return the stop of a choice. `word` is its finish_reason, `rest` its other fields.

    vLLM and SGLang name the stop sequence in `rest`; `sequences` are those of the request.
    """
    known = find_stop_reason(word)
    reason = known or StopReason.END
    name = "finish_reason" if known is None else "~finish_reason"
    extra: JsonObject = {} if word in _FINISH_REASONS.values() else {name: word}
    if reason is StopReason.SEQUENCE and not any(map(rest.get, ("stop_reason", "matched_stop"))):
        reason = StopReason.END  # no sequence is named
    if word == "function_call":
        extra = {"~older": True}
    unknown = without_empty({name: value for name, value in rest.items() if name not in _CHOICE_FIELDS})
    sequence = None
    if reason is StopReason.END and not extra:
        if isinstance(unknown.get("stop_reason"), str):  # vLLM
            reason, sequence = StopReason.SEQUENCE, str(unknown.pop("stop_reason"))
        elif isinstance(matched := unknown.get("matched_stop"), str) and matched in sequences:  # SGLang
            reason, sequence = StopReason.SEQUENCE, matched
        elif refused:
            reason, extra = StopReason.REFUSAL, {"~finish_reason": word}
    if unknown:
        extra["choice"] = unknown
    return Stop(reason, sequence, EXTRAS.extra_of(extra))


_CHOICE_FIELDS = frozenset({"index", "message", "delta", "finish_reason", "usage"})

# --- canonical to wire


def render_reply(settings: OpenaiSettings, reply: Reply, request: Conversation, environment: Environment) -> bytes:
    """Write a reply as a JSON body. `request` is the client's conversation."""
    extra = EXTRAS.wire_fields(reply.extra)
    created = extra.pop("created", None)
    body: JsonObject = {
        "id": reply.id or environment.new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": environment.now() if created is None else created,
        "model": reply.model or request.model,
        "choices": [
            _render_choice(choice, index, settings, is_legacy_form(request.extra))
            for index, choice in enumerate(reply.choices)
        ],
    }
    if reply.usage is not None:
        body["usage"] = render_usage(reply.usage)
    return jsonio.encode({**body, **extra})


def render_stop(stop: Stop, *, is_legacy: bool = False) -> JsonObject:
    """Return the fields of a choice for its stop. `is_legacy`: its call was written as a `function_call`."""
    extra = EXTRAS.own_fields(stop.extra)
    word, unknown = extra.get("~finish_reason", extra.get("finish_reason")), extra.get("choice")
    default = "function_call" if is_legacy and stop.reason is StopReason.TOOL else _FINISH_REASONS[stop.reason]
    fields: JsonObject = {"finish_reason": word if isinstance(word, str) and word else default}
    if stop.sequence is not None:
        fields["stop_reason"] = stop.sequence
    return fields | (unknown if isinstance(unknown, dict) else {})


def _render_choice(choice: Choice, index: int, settings: OpenaiSettings, is_legacy: bool) -> Json:
    call = next((each for each in choice.blocks if is_function_call(each)), None) if is_legacy else None
    message = _render_message([each for each in choice.blocks if each is not call], settings)
    if isinstance(call, ToolCall):
        message["function_call"] = render_legacy_call(structs.replace(call, arguments=call.arguments or "{}"))
    stop = render_stop(choice.stop, is_legacy=call is not None)
    return {"index": index, "message": message, "logprobs": None, **stop}


def is_function_call(block: Block) -> bool:
    """Return whether a block is a call that fits into a legacy `function_call`."""
    return isinstance(block, ToolCall) and block.form == "json"


def _render_message(blocks: Sequence[Block], settings: OpenaiSettings) -> JsonObject:
    """Write all blocks of a choice as one message. Texts are joined without a separator.

    See docs/decisions/content.md#d1.
    """
    texts: dict[bool, str] = {}
    reasoning: list[Reasoning | Opaque] = []
    calls: list[Json] = []
    images: list[Json] = []
    parts: list[Json] = []
    annotations: list[Json] = []
    own: JsonObject = {}
    for block in blocks:
        match block:
            case Text():
                refused = is_refusal(block)
                texts[refused] = texts.get(refused, "") + block.text
                annotations += render_annotations(block.citations)
            case Reasoning():
                reasoning.append(block)
            case ToolCall():
                calls.append(render_call(structs.replace(block, signature=None, cache=None)))
            case Media():
                part = render_part(structs.replace(block, cache=None))
                images.append({**part, "index": len(images)} if isinstance(part, dict) else part)
            case Opaque():
                _restore(block, own, reasoning, calls, parts)
            case _:
                pass  # a ToolResult is no part of a reply
    content: Json = texts.get(False)
    if parts and content:
        parts.insert(0, {"type": "text", "text": content})
    message: JsonObject = {"role": "assistant", "content": parts or content, "refusal": texts.get(True)}
    message |= render_reasoning(reasoning, settings)
    if annotations:
        message["annotations"] = annotations
    if images:
        message["images"] = images
    if calls:
        message["tool_calls"] = calls
    return message | own


def _restore(
    block: Opaque, own: JsonObject, reasoning: list[Reasoning | Opaque], calls: list[Json], parts: list[Json]
) -> None:
    """Put an opaque block into the field that it was read from."""
    match EXTRAS.own_fields(block.extra).get("~slot"), block.data:
        case "message", dict() as fields:
            own |= fields
        case "tool_calls", data:
            calls.append(data)
        case "reasoning_details" | "thinking_blocks", _:
            reasoning.append(block)
        case _, data:
            parts.append(data)


# --- token counts: Chat's prompt_tokens include tokens read from and written to the cache; `Usage.input` does not

_PROMPT, _COMPLETION = "prompt_tokens_details", "completion_tokens_details"


# The names of one count at different services, in prompt_tokens_details (_READ, _WRITE) and at the top level of usage
# (_TOP_READ, _TOP_WRITE). A second name for a count is spelling only: a dialect without it loses nothing.
_READ = ("cached_tokens", "cache_read_input_tokens")
_TOP_READ = (
    "cached_tokens",  # Moonshot
    "prompt_cache_hit_tokens",  # DeepSeek
    "num_cached_tokens",  # Mistral
    "cache_read_input_tokens",
)
_WRITE = ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens")  # OpenRouter, DashScope
_TOP_WRITE = ("cache_creation_input_tokens",)
_SECOND_NAMES = (*_TOP_READ, *_TOP_WRITE, "prompt_cache_miss_tokens")
_TOTALS = ("prompt_tokens", "completion_tokens", "total_tokens")


def parse_usage(counts: Json) -> Usage | None:
    """Return the token counts of a reply or a chunk; None if `counts` is not an object."""
    if not isinstance(counts, dict):
        return None
    before, after = members(counts.get(_PROMPT)), members(counts.get(_COMPLETION))
    prompt, completion, total = (parse_token_count(counts.get(name)) for name in _TOTALS)
    read = first_token_count(*map(before.get, _READ), *map(counts.get, _TOP_READ))
    write = first_token_count(*map(before.get, _WRITE), *map(counts.get, _TOP_WRITE))
    # SGLang sends reasoning_tokens at the top level. So does Perplexity's deep research, but its count includes
    # reasoning that is not part of the completion.
    at_top = parse_token_count(counts.get("reasoning_tokens"))
    reasoning = first_token_count(after.get("reasoning_tokens"), at_top if at_top <= completion else 0)
    usage = inclusive_usage(prompt, completion, read, write, reasoning, total=total)
    return structs.replace(usage, extra=_usage_extra(counts, usage))


def embedded_usage(groq: Json, usages: Iterable[Json]) -> Json:
    """Return counts from another place than `usage`: Groq's `x_groq.usage`, Moonshot's `choices[].usage`."""
    return members(groq).get("usage") or next((usage for usage in usages if usage), None)


def _usage_extra(counts: JsonObject, usage: Usage) -> Extra | None:
    """Return the counts that only some services report, and the second names under which a count was reported."""
    before, after = members(counts.get(_PROMPT)), members(counts.get(_COMPLETION))
    rest = {name: value for name, value in counts.items() if name not in {*_TOTALS, *_SECOND_NAMES}}
    rest[_PROMPT] = nonzero({name: value for name, value in before.items() if name not in {*_READ, *_WRITE}})
    rest[_COMPLETION] = nonzero({name: value for name, value in after.items() if name != "reasoning_tokens"})
    figures = {
        "prompt_cache_miss_tokens": usage.input + usage.cache_write,
        **dict.fromkeys(_TOP_READ, usage.cache_read),
        **dict.fromkeys(_TOP_WRITE, usage.cache_write),
    }
    repeated: JsonObject = {name: figures[name] for name in _SECOND_NAMES if counts.get(name)}
    extra = EXTRAS.extra_of({**to_extra_names(nonzero(rest)), **nonzero(repeated)})
    return None if extra is None else structs.replace(extra, spelling=extra.spelling | repeated.keys())


def render_usage(usage: Usage) -> JsonObject:
    """Write token counts as a `usage` object."""
    prompt = usage.input + usage.cache_read + usage.cache_write
    extra = EXTRAS.wire_fields(usage.extra)
    before: JsonObject = {"cached_tokens": usage.cache_read, **members(extra.pop(_PROMPT, None))}
    if usage.cache_write:
        before["cache_write_tokens"] = usage.cache_write
    return {
        "prompt_tokens": prompt,
        "completion_tokens": usage.output,
        "total_tokens": prompt + usage.output,
        _PROMPT: before,
        _COMPLETION: {"reasoning_tokens": usage.reasoning, **members(extra.pop(_COMPLETION, None))},
        **extra,
    }


# --- errors in a choice, which only Chat Completions have; openai_errors.py reads all others


def stop_fault(word: str, choice: JsonObject) -> Fault | None:
    """Return the fault of a choice that stopped because of a failure; None for a normal stop.

    `word` is its finish_reason, `choice` its other fields. OpenRouter reports the failure in `error`.
    """
    if choice.get("error"):
        return fault_of({"error": choice["error"]}, None)
    kind = failure_kind(word)
    if kind is None:
        return None
    named = "" if word == "error" else f" ({word})"
    status = 502 if kind == "server" else status_of(Fault(kind, ""))
    return Fault(kind, f"the upstream stopped because of an error{named}", status, code="" if word == "error" else word)
