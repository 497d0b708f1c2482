"""A whole reply, both ways, and the stop reasons that whole and streamed replies share."""

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
    JsonObject,
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
from dragoman.wire.jsonio import Json

_WORDS = {
    StopReason.END: "stop",
    StopReason.TOOL: "tool_calls",
    StopReason.LENGTH: "length",
    StopReason.SEQUENCE: "stop",
    StopReason.REFUSAL: "content_filter",
    StopReason.CONTEXT: "length",
    StopReason.PAUSE: "stop",
}
_ENVELOPE = ("id", "object", "created", "model", "choices", "usage", "error", "obfuscation")
MESSAGE_SLOT = "message"  # an opaque block that holds fields of the message itself

# --- wire to canonical


def parse_reply(settings: OpenaiSettings, body: bytes, asked: Conversation) -> Reply:
    """Raises UpstreamFault for an error that came as a success, UpstreamViolation for what is no reply."""
    return read_reply(body, lambda fields: _reply(fields, asked, settings))


def _reply(fields: Fields, asked: Conversation, settings: OpenaiSettings) -> Reply:
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
    timed: JsonObject = {"created": created} if type(created) is int and created else {}
    return Reply(
        fields.text("id", ""),
        fields.text("model", ""),
        tuple(_choice(entry, asked, settings, sources) for _, entry in choices),
        usage or parse_usage(embedded_usage(fields.peek("x_groq"), (entry.peek("usage") for entry in entries))),
        extra=EXTRAS.extra_of(envelope_fields(fields.rest()) | timed),
    )


def envelope_fields(rest: JsonObject) -> JsonObject:
    """What a reply or a first chunk says beside what every one says; nulls say nothing."""
    return to_extra_names({name: value for name, value in rest.items() if name not in _ENVELOPE and value is not None})


def telling(fields: JsonObject) -> JsonObject:
    """What says something: services fill replies with nulls and empty lists."""
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _cite(blocks: list[Block], citations: list[Opaque]) -> list[Block]:
    """Put the sources of a message on its last text; without a text they stay as a field of the message."""
    texts = [at for at, block in enumerate(blocks) if isinstance(block, Text) and not is_refusal(block)]
    if texts:
        text = blocks[texts[-1]]
        assert isinstance(text, Text)
        blocks[texts[-1]] = structs.replace(text, citations=(*text.citations, *citations))
        return blocks
    told: list[Json] = [each.data for each in citations if each.data is not None]
    if told:
        extra = EXTRAS.extra_of({"~slot": MESSAGE_SLOT})
        blocks.append(Opaque(FAMILY, {"annotations": told}, "annotations", extra=extra))
    return blocks


def _choice(fields: Fields, asked: Conversation, settings: OpenaiSettings, sources: list[Opaque]) -> Choice:
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
    if rest := telling(message.rest()):
        blocks.append(Opaque(FAMILY, rest, "message fields", extra=EXTRAS.extra_of({"~slot": MESSAGE_SLOT})))
    refused = any(EXTRAS.own_fields(block.extra).get("refusal") is True for block in blocks)
    stop = parse_stop("stop" if word.lower() in NO_STOP_WORDS else word, fields.rest(), asked.stop, refused=refused)
    return Choice(tuple(block for block in blocks if not (isinstance(block, Text) and not block.text)), stop)


def _message(fields: Fields) -> Fields:
    """The message of a choice without fields that say nothing; one that only says why it stopped needs none."""
    message = fields.any("message")
    if is_empty_value(message) and fields.peek("finish_reason"):
        message = {}
    if isinstance(message, dict):
        message = {name: value for name, value in message.items() if value not in ("", [], {})}
    return Fields(message, fields.path("message"), fields.blame)


def parse_images(images: Json, at: str) -> list[Block]:
    """Pictures in an answer, as OpenRouter has them; their own `index` is for streams."""
    parts = images if isinstance(images, list) else [images]
    plain = [{k: v for k, v in part.items() if k != "index"} if isinstance(part, dict) else part for part in parts]
    return parse_content(plain, at)


def parse_stop(word: str, rest: JsonObject, sequences: Collection[str], *, refused: bool = False) -> Stop:
    """Why it stopped. `rest` is the other fields of the choice; two upstreams name the stop sequence among them."""
    known = find_stop_reason(word)
    why = known or StopReason.END
    spelt = "finish_reason" if known is None else "~finish_reason"
    extra: JsonObject = {} if word in _WORDS.values() else {spelt: word}
    if why is StopReason.SEQUENCE and not any(map(rest.get, ("stop_reason", "matched_stop"))):
        why = StopReason.END  # no sequence is named
    if word == "function_call":
        extra = {"~older": True}
    beside = telling({name: value for name, value in rest.items() if name not in _CHOICE})
    sequence = None
    if why is StopReason.END and not extra:
        if isinstance(beside.get("stop_reason"), str):  # vLLM
            why, sequence = StopReason.SEQUENCE, str(beside.pop("stop_reason"))
        elif isinstance(matched := beside.get("matched_stop"), str) and matched in sequences:  # SGLang
            why, sequence = StopReason.SEQUENCE, matched
        elif refused:
            why, extra = StopReason.REFUSAL, {"~finish_reason": word}
    if beside:
        extra["choice"] = beside
    return Stop(why, sequence, EXTRAS.extra_of(extra))


_CHOICE = frozenset({"index", "message", "delta", "finish_reason", "usage"})

# --- canonical to wire


def render_reply(settings: OpenaiSettings, reply: Reply, asked: Conversation, environment: Environment) -> bytes:
    extra = EXTRAS.wire_fields(reply.extra)
    created = extra.pop("created", None)
    body: JsonObject = {
        "id": reply.id or environment.new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": environment.now() if created is None else created,
        "model": reply.model or asked.model,
        "choices": [
            _render_choice(choice, index, settings, is_legacy_form(asked.extra))
            for index, choice in enumerate(reply.choices)
        ],
    }
    if reply.usage is not None:
        body["usage"] = render_usage(reply.usage)
    return jsonio.encode({**body, **extra})


def render_stop(stop: Stop, *, is_legacy: bool = False) -> JsonObject:
    """The fields of a choice that say why it stopped; `older`: its call was told as a `function_call`."""
    extra = EXTRAS.own_fields(stop.extra)
    word, kept = extra.get("~finish_reason", extra.get("finish_reason")), extra.get("choice")
    usual = "function_call" if is_legacy and stop.reason is StopReason.TOOL else _WORDS[stop.reason]
    fields: JsonObject = {"finish_reason": word if isinstance(word, str) and word else usual}
    if stop.sequence is not None:
        fields["stop_reason"] = stop.sequence
    return fields | (kept if isinstance(kept, dict) else {})


def _render_choice(choice: Choice, index: int, settings: OpenaiSettings, is_legacy: bool) -> Json:
    call = next((each for each in choice.blocks if is_function_call(each)), None) if is_legacy else None
    message = _render_message([each for each in choice.blocks if each is not call], settings)
    if isinstance(call, ToolCall):
        message["function_call"] = render_legacy_call(structs.replace(call, arguments=call.arguments or "{}"))
    stop = render_stop(choice.stop, is_legacy=call is not None)
    return {"index": index, "message": message, "logprobs": None, **stop}


def is_function_call(block: Block) -> bool:
    """Whether `function_call` can tell it."""
    return isinstance(block, ToolCall) and block.form == "json"


def _render_message(blocks: Sequence[Block], settings: OpenaiSettings) -> JsonObject:
    """One message of whatever came, in the one order Chat has; texts join with nothing.

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
                _place(block, own, reasoning, calls, parts)
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


def _place(
    block: Opaque, own: JsonObject, reasoning: list[Reasoning | Opaque], calls: list[Json], parts: list[Json]
) -> None:
    """Put what only Chat knows back where it was."""
    match EXTRAS.own_fields(block.extra).get("~slot"), block.data:
        case "message", dict() as fields:
            own |= fields
        case "tool_calls", data:
            calls.append(data)
        case "reasoning_details" | "thinking_blocks", _:
            reasoning.append(block)
        case _, data:
            parts.append(data)


# --- token counts: Chat's prompt_tokens include what came from and went to the cache; ours do not

_PROMPT, _COMPLETION = "prompt_tokens_details", "completion_tokens_details"


# Names of one figure at the services that speak Chat, in the details of the prompt and beside the totals. A figure
# that has a second name is only spelt differently: no other dialect loses anything without it.
_READ = ("cached_tokens", "cache_read_input_tokens")
_READ_BESIDE = (
    "cached_tokens",  # Moonshot
    "prompt_cache_hit_tokens",  # DeepSeek
    "num_cached_tokens",  # Mistral
    "cache_read_input_tokens",
)
_WRITE = ("cache_write_tokens", "cache_creation_input_tokens", "cache_creation_tokens")  # OpenRouter, DashScope
_WRITE_BESIDE = ("cache_creation_input_tokens",)
_SECOND_NAMES = (*_READ_BESIDE, *_WRITE_BESIDE, "prompt_cache_miss_tokens")
_TOTALS = ("prompt_tokens", "completion_tokens", "total_tokens")


def parse_usage(told: Json) -> Usage | None:
    """Read the counts of a reply or a chunk; None where there are none."""
    if not isinstance(told, dict):
        return None
    before, after = members(told.get(_PROMPT)), members(told.get(_COMPLETION))
    prompt, completion, total = (parse_token_count(told.get(name)) for name in _TOTALS)
    read = first_token_count(*map(before.get, _READ), *map(told.get, _READ_BESIDE))
    write = first_token_count(*map(before.get, _WRITE), *map(told.get, _WRITE_BESIDE))
    # SGLang's figure stands beside the totals. Perplexity's deep research counts thoughts that it does not tell.
    thought = parse_token_count(told.get("reasoning_tokens"))
    reasoning = first_token_count(after.get("reasoning_tokens"), thought if thought <= completion else 0)
    usage = inclusive_usage(prompt, completion, read, write, reasoning, total=total)
    return structs.replace(usage, extra=_kept(told, usage))


def embedded_usage(groq: Json, usages: Iterable[Json]) -> Json:
    """Counts that stand elsewhere: Groq's `x_groq.usage`, Moonshot's `choices[].usage`."""
    return members(groq).get("usage") or next((usage for usage in usages if usage), None)


def _kept(told: JsonObject, usage: Usage) -> Extra | None:
    """What a service tells beside the counts that every dialect has; of a second name for one of them, the name."""
    before, after = members(told.get(_PROMPT)), members(told.get(_COMPLETION))
    rest = {name: value for name, value in told.items() if name not in {*_TOTALS, *_SECOND_NAMES}}
    rest[_PROMPT] = nonzero({name: value for name, value in before.items() if name not in {*_READ, *_WRITE}})
    rest[_COMPLETION] = nonzero({name: value for name, value in after.items() if name != "reasoning_tokens"})
    figures = {
        "prompt_cache_miss_tokens": usage.input + usage.cache_write,
        **dict.fromkeys(_READ_BESIDE, usage.cache_read),
        **dict.fromkeys(_WRITE_BESIDE, usage.cache_write),
    }
    again: JsonObject = {name: figures[name] for name in _SECOND_NAMES if told.get(name)}
    extra = EXTRAS.extra_of({**to_extra_names(nonzero(rest)), **nonzero(again)})
    return None if extra is None else structs.replace(extra, spelling=extra.spelling | again.keys())


def render_usage(usage: Usage) -> JsonObject:
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


# --- errors where only Chat Completions have them; all others are those of the service (openai_errors.py)


def stop_fault(word: str, choice: JsonObject) -> Fault | None:
    """Return the fault of a choice that stopped because something failed; None for one that only stopped.

    `word` is its finish_reason, `choice` its other fields: OpenRouter tells what happened in `error`.
    """
    if choice.get("error"):
        return fault_of({"error": choice["error"]}, None)
    kind = failure_kind(word)
    if kind is None:
        return None
    named = "" if word == "error" else f" ({word})"
    status = 502 if kind == "server" else status_of(Fault(kind, ""))
    return Fault(kind, f"the upstream stopped because of an error{named}", status, code="" if word == "error" else word)
