"""The rules of Bedrock Converse for requests, which `dragoman check` and the simulator run. Pure.

The checks read raw JSON and share no code with the codec. The table also has the rules of streams, which
stream_rules.py checks; shapes.py has the published shape of a request. The detail of a breach repeats the service's own
message where that is known, so that the simulator can refuse with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.bedrock.nodes import Vendor
from dragoman.dialects.bedrock.shapes import REQUEST
from dragoman.dialects.kit.shapes import find_mismatches
from dragoman.dialects.kit.values import LocatedObject, Object, members, objects
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

RULES = Rulebook.parse(
    "bedrock",
    """
body.object | documented | error | the body must be an object
type | documented | error | a member must have its documented type
union | documented | error | a union must have exactly one member
field.unknown | observed | error | the service must know every member
field.required | documented | error | required members must be set
enum | documented | error | a value must be one of those that the service knows
pattern | documented | error | a string must match its pattern
length | documented | error | the length of a string or a list must be within its limits
range | documented | error | a number must be in its range
messages.required | observed | error | there must be at least one message
messages.first | observed | error | a conversation must start with the user
messages.alternate | observed | advice | roles must alternate; several models accept consecutive messages of one role
messages.last | observed | advice | the last message must be the user's, for a model without prefill
content.empty | observed | error | a message must have content
text.blank | observed | advice | a text must not be blank; some models accept a blank one
tools.duplicate | observed | error | tool names must be unique
tools.schema | observed | error | an input schema must be of type object
tool_choice.no_tools | observed | error | a request with a tool choice must have tools
tool_choice.name | observed | error | the chosen tool must be declared
tool_config.required | observed | error | a conversation with tool blocks must declare tools
thinking.budget | observed | error | the budget must be at least 1024
thinking.limit | observed | advice | maxTokens must be greater than the budget, except for interleaved thinking
thinking.forced_tool | observed | error | a tool must not be forced while thinking is enabled
output.schema | documented | error | the output schema must be a JSON object in a string
output.closed | observed | error | objects of the output schema must set additionalProperties to false
tool_use.input | observed | error | a call's input must be an object
tool_use.duplicate | observed | error | the ids of the calls in a message must be unique
tool_use.unanswered | observed | error | the next message must start with the results of the calls
tool_result.duplicate | observed | error | a call must have one result
tool_result.count | observed | error | there may be at most as many results as calls in the message before
tool_result.orphan | observed | error | a result must belong to a call of the message before
tool_result.apart | observed | error | a message with results must not have other content, for some models
reasoning.refused | observed | error | a request to DeepSeek must not have reasoning
reasoning.unsigned | observed | error | reasoning in a request to Claude must have its signature
reasoning.signed | inferred | advice | reasoning in a request to other vendors must not have a signature
document.text | documented | advice | a message with a document must have a text
document.name | documented | error | a document name may have only letters, digits, single spaces, - ( ) and [ ]
document.duplicate | observed | error | document names must be unique
cache.ttl_order | observed | error | a cache point of 1h must not come after one of 5m
cache.document | inferred | advice | a cache point must not follow a document other than PDF
cache.count | observed | error | there may be at most 4 cache points
stream.json | documented | error | a payload must be JSON
stream.object | documented | error | a payload must be an object
stream.after_end | inferred | advice | nothing may follow the end of the stream
stream.no_stop | documented | error | a stream must end with messageStop, or with an exception
stream.no_metadata | observed | advice | metadata must come after messageStop
stream.exception | documented | advice | an exception must be one of those in the service's model
stream.exception_message | documented | advice | an exception must have a message
stream.start_once | documented | error | messageStart must come once
stream.role | documented | error | messageStart must have the role assistant
stream.no_start | documented | error | messageStart must come first
stream.index | documented | error | contentBlockIndex must be a whole number, 0 or more
stream.union | documented | error | start and delta must have exactly one member
stream.block_start | documented | error | the start of a tool call must have toolUseId and name
stream.index_reused | documented | error | a block must start once
stream.interleaved | inferred | advice | a block must stop before the next one starts
stream.late_block | inferred | advice | a block must not come after messageStop
stream.no_block_start | documented | error | the block of a tool call must start with contentBlockStart
stream.delta_kind | documented | error | a block may have only deltas of its kind
stream.delta_value | documented | error | a delta must have a string
stream.no_block | documented | error | a block must be open when it stops
stream.input_json | observed | error | the input of a tool call must be a JSON object
stream.input_cut | observed | advice | the input of a tool call must be complete, except after a limit
stream.stop_once | documented | error | messageStop must come once
stream.open_block | documented | error | blocks must stop before messageStop
stream.open_cut | observed | advice | blocks must stop before messageStop, except after a limit
stream.stop_reason | documented | advice | stopReason must be one of those in the service's model
stream.metadata_early | inferred | advice | metadata must come after messageStop
stream.usage | documented | advice | usage must have inputTokens, outputTokens and totalTokens
""",
)
breach = RULES.breach
MAX_CACHE_POINTS = 4
_NAME = re.compile(r"[a-zA-Z0-9_ ()\[\]-]+\Z")
_RULE_OF_MISMATCH = {"unknown": "field.unknown", "missing": "field.required"}  # other rules have the name of the flaw
_SCHEMA_MAPS = frozenset({"properties", "$defs", "definitions", "patternProperties"})


def breaches(call: ApiRequest, vendor: Vendor) -> Sequence[Breach]:
    """Return every rule of the service that the request breaks, with its place."""
    body = call.body
    if not isinstance(body, dict):
        return [breach("body.object", "", "the body must be an object")]
    breaches = [
        breach(_RULE_OF_MISMATCH.get(mismatch.kind, mismatch.kind), mismatch.at, mismatch.detail)
        for mismatch in find_mismatches(body, REQUEST)
        if mismatch.kind != "null"
    ]
    breaches += [*_tools(body), *_thinking(body, vendor), *_output(body)]
    for block, at in objects(body.get("system"), "system"):
        breaches += _blank(block, at)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        if ":prompt/" not in call.model:
            breaches.append(breach("messages.required", "messages", "there must be at least one message"))
        return breaches
    for message, at in objects(messages, "messages"):
        breaches += _content(message, at, vendor)
    breaches += [
        *check_order(messages, vendor),
        *_tool_config(body, messages),
        *_documents(messages),
        *_cache(body, messages),
    ]
    return breaches


# --- tools


def _config(body: Object) -> Object:
    return members(body.get("toolConfig"))


def _vendor_fields(body: Object) -> Object:
    return members(body.get("additionalModelRequestFields"))


def _tools(body: Object) -> Iterator[Breach]:
    config = _config(body)
    names: set[str] = set()
    for tool, at in objects(config.get("tools"), "toolConfig.tools"):
        spec = tool.get("toolSpec")
        if not isinstance(spec, dict):
            continue
        name, schema = spec.get("name"), spec.get("inputSchema")
        if isinstance(name, str):
            if name in names:
                yield breach("tools.duplicate", f"{at}.toolSpec.name", f"the tool name {name} is used twice")
            names.add(name)
        inner = schema.get("json") if isinstance(schema, dict) else None
        if not isinstance(inner, dict) or inner.get("type") != "object":
            detail = "The value at inputSchema.json.type must be one of the following: object."
            yield breach("tools.schema", f"{at}.toolSpec.inputSchema", detail)
    yield from _choice(config, _vendor_fields(body), names)


def _choice(config: Object, vendor_fields: Object, names: set[str]) -> Iterator[Breach]:
    choice = config.get("toolChoice")
    has_choice = choice is not None or vendor_fields.get("tool_choice") is not None
    if has_choice and not config.get("tools"):
        detail = "tool_choice.type: Field required (there are no tools to choose from)"
        yield breach("tool_choice.no_tools", "toolConfig.toolChoice", detail)
    tool = choice.get("tool") if isinstance(choice, dict) else None
    if isinstance(tool, dict) and names and str(tool.get("name")) not in names:
        yield breach("tool_choice.name", "toolConfig.toolChoice.tool.name", "there is no tool of this name")


def _tool_config(body: Object, messages: Json) -> Iterator[Breach]:
    has_tool_blocks = any(
        "toolUse" in block or "toolResult" in block
        for message, at in objects(messages, "messages")
        for block, _ in objects(message.get("content"), at)
    )
    if has_tool_blocks and not _config(body).get("tools"):
        detail = "The toolConfig field must be defined when using toolUse and toolResult content blocks."
        yield breach("tool_config.required", "toolConfig", detail)


# --- settings


def _thinking(body: Object, vendor: Vendor) -> Iterator[Breach]:
    thinking = _vendor_fields(body).get("thinking")
    if not vendor.claude_fields or not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return
    at = "additionalModelRequestFields.thinking.budget_tokens"
    config = body.get("inferenceConfig")
    limit = config.get("maxTokens") if isinstance(config, dict) else None
    budget = thinking.get("budget_tokens")
    if type(budget) is not int or budget < 1024:
        yield breach("thinking.budget", at, "budget_tokens must be at least 1024")
    elif type(limit) is int and budget >= limit:
        yield breach("thinking.limit", at, "maxTokens must be greater than thinking.budget_tokens")
    choice = _config(body).get("toolChoice")
    if isinstance(choice, dict) and choice.keys() & {"any", "tool"}:
        detail = "Thinking may not be enabled when tool_choice forces tool use."
        yield breach("thinking.forced_tool", "toolConfig.toolChoice", detail)


def _output(body: Object) -> Iterator[Breach]:
    """Check that the output schema is JSON and allows no additional properties."""
    at = "outputConfig.textFormat.structure.jsonSchema.schema"
    value: Json = body
    for name in at.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, str):
        return
    try:
        schema = jsonio.decode(value)
    except jsonio.JsonError:
        yield breach("output.schema", at, "the schema must be a JSON object in a string")
        return
    if _has_open_objects(schema):
        yield breach("output.closed", at, "For 'object' type, 'additionalProperties' must be explicitly set to false")


def _has_open_objects(schema: Json) -> bool:
    """Return whether an object of the schema allows additional properties."""
    if isinstance(schema, list):
        return any(map(_has_open_objects, schema))
    if not isinstance(schema, dict):
        return False
    if (schema.get("type") == "object" or "properties" in schema) and schema.get("additionalProperties") is not False:
        return True
    return any(
        any(map(_has_open_objects, value.values()))
        if name in _SCHEMA_MAPS and isinstance(value, dict)
        else _has_open_objects(value)
        for name, value in schema.items()
        if name not in ("enum", "const", "default", "examples", "required")
    )


def _blank(block: Object, at: str) -> Iterator[Breach]:
    text = block.get("text")
    if isinstance(text, str) and not text.strip():
        yield breach("text.blank", f"{at}.text", "text content blocks must contain non-whitespace text")


# --- content


def _content(message: Object, at: str, vendor: Vendor) -> Iterator[Breach]:
    content = message.get("content")
    if content == []:
        detail = "The content field in the Message object is empty. Add a ContentBlock object to the content field."
        yield breach("content.empty", f"{at}.content", detail)
    results = others = False
    for block, place in objects(content, f"{at}.content"):
        results, others = results or "toolResult" in block, others or not block.keys() & {"toolResult", "cachePoint"}
        yield from _block(block, place, vendor)
    if vendor.separate_results and results and others:
        detail = "Conversation blocks and tool result blocks cannot be provided in the same turn."
        yield breach("tool_result.apart", f"{at}.content", detail)


def _block(block: Object, at: str, vendor: Vendor) -> Iterator[Breach]:
    yield from _blank(block, at)
    use = block.get("toolUse")
    if isinstance(use, dict) and not isinstance(use.get("input"), dict):
        detail = "The format of the value is invalid. Provide a json object for the field and try again."
        yield breach("tool_use.input", f"{at}.toolUse.input", detail)
    for part, place in objects(members(block.get("toolResult")).get("content"), f"{at}.toolResult.content"):
        yield from _blank(part, place)
    reasoning = block.get("reasoningContent")
    if isinstance(reasoning, dict):
        yield from _reasoning(reasoning, f"{at}.reasoningContent", vendor)


def _reasoning(reasoning: Object, at: str, vendor: Vendor) -> Iterator[Breach]:
    text = reasoning.get("reasoningText")
    is_signed = "redactedContent" in reasoning or (isinstance(text, dict) and bool(text.get("signature")))
    if vendor.reasoning == "none":
        yield breach("reasoning.refused", at, "This model doesn't support the reasoningContent field.")
    elif vendor.reasoning == "signed" and not is_signed:
        yield breach("reasoning.unsigned", f"{at}.reasoningText.signature", "thinking.signature: Field required")
    elif vendor.reasoning == "unsigned" and is_signed:
        detail = "This model doesn't support the reasoningContent.reasoningText.signature field."
        yield breach("reasoning.signed", at, detail)


# --- documents and cache points


def _documents(messages: Json) -> Iterator[Breach]:
    names: set[str] = set()
    for message, at in objects(messages, "messages"):
        blocks = list(objects(message.get("content"), f"{at}.content"))
        parts = [
            part
            for block, place in blocks
            if isinstance(result := block.get("toolResult"), dict)
            for part in objects(result.get("content"), f"{place}.toolResult.content")
        ]
        own = [(document, place) for block, place in blocks if isinstance(document := block.get("document"), dict)]
        inner = [(document, place) for part, place in parts if isinstance(document := part.get("document"), dict)]
        for document, place in (*own, *inner):
            yield from _document(document, f"{place}.document", names)
        if own and not any("text" in block for block, _ in blocks):
            yield breach(
                "document.text", f"{at}.content", "A text block must accompany a document in the same message."
            )


def _document(document: Object, at: str, names: set[str]) -> Iterator[Breach]:
    name = document.get("name")
    if not isinstance(name, str):
        return
    if not _NAME.match(name) or "  " in name:
        detail = (
            "The document file name can only contain alphanumeric characters, whitespace characters, hyphens, "
            "parentheses, and square brackets. The name can't contain more than one consecutive whitespace character."
        )
        yield breach("document.name", f"{at}.name", detail)
    if name in names:
        yield breach("document.duplicate", f"{at}.name", f"Documents must have unique names; {name} is used twice.")
    names.add(name)


def _cache(body: Object, messages: Json) -> Iterator[Breach]:
    """Check the cache points in the order tools, system, messages."""
    lists = [(_config(body).get("tools"), "toolConfig.tools"), (body.get("system"), "system")]
    lists += [(message.get("content"), f"{at}.content") for message, at in objects(messages, "messages")]
    count, has_short = 0, False
    for items, at in lists:
        before: Object = {}
        for block, place in objects(items, at):
            point = block.get("cachePoint")
            if isinstance(point, dict):
                count += 1
                if point.get("ttl") == "1h" and has_short:
                    detail = "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
                    yield breach("cache.ttl_order", place, detail)
                has_short = has_short or point.get("ttl") != "1h"
                document = before.get("document")
                if isinstance(document, dict) and document.get("format") != "pdf":
                    yield breach("cache.document", place, "A cachePoint may not follow a document other than PDF.")
            before = block
    if count > MAX_CACHE_POINTS:
        detail = f"A maximum of {MAX_CACHE_POINTS} blocks with cache_control may be provided. Found {count}."
        yield breach("cache.count", "", detail)


# --- the order of turns, and the results of calls


def check_order(messages: Json, vendor: Vendor) -> Iterator[Breach]:
    """Check the roles of the turns, and that calls and results match."""
    turns = list(objects(messages, "messages"))
    if turns and turns[0][0].get("role") != "user":
        detail = "A conversation must start with a user message. Try again with one that does."
        yield breach("messages.first", turns[0][1], detail)
    for (before, _), (after, at) in pairwise(turns):
        if before.get("role") == after.get("role"):
            detail = "A conversation must alternate between user and assistant roles."
            yield breach("messages.alternate", at, detail)
    yield from _pairing(turns)
    if turns and turns[-1][0].get("role") == "assistant" and not vendor.prefill:
        detail = "This model doesn't support a prefilled answer: the conversation must end with a user message."
        yield breach("messages.last", turns[-1][1], detail)


def _pairing(turns: list[LocatedObject]) -> Iterator[Breach]:
    """Check that each call has one result at the start of the next message, and that each result has a call."""
    waiting: list[Json] = []
    for message, at in turns:
        results = _ids(message, "toolResult")
        yield from _duplicates(results, "toolResult", at)
        if len(results) > len(waiting):
            detail = "The number of toolResult blocks exceeds the number of toolUse blocks of previous turn."
            yield breach("tool_result.count", f"{at}.content", detail)
        elif any(call_id not in waiting for call_id in results):
            yield breach(
                "tool_result.orphan", f"{at}.content", "unexpected `tool_use_id` found in `tool_result` blocks"
            )
        leading = _leading_results(message)
        missing = [call_id for call_id in waiting if call_id not in leading]
        if missing:
            yield _unanswered(missing, at)
        waiting = _ids(message, "toolUse")
        yield from _duplicates(waiting, "toolUse", at)
    if waiting:
        yield _unanswered(waiting, "messages")


def _unanswered(missing: list[Json], at: str) -> Breach:
    names = ", ".join(str(each) for each in missing)
    detail = f"Did not find {len(missing)} tool_result block(s) at the beginning of this message, for the ids: {names}"
    return breach("tool_use.unanswered", at, detail)


def _duplicates(ids: list[Json], member: str, at: str) -> Iterator[Breach]:
    twice = {str(each) for each in ids if ids.count(each) > 1}
    if twice:
        detail = f"The {member} blocks at {at}.content contain duplicate Ids: {', '.join(sorted(twice))}"
        rule = "tool_use.duplicate" if member == "toolUse" else "tool_result.duplicate"
        yield breach(rule, f"{at}.content", detail)


def _ids(message: Object, member: str) -> list[Json]:
    """Return the ids of the calls or results of the client's own tools.

    Tools that the service runs have a type, or a result in the same assistant message.
    """
    service_results = _members(message, "toolResult") if message.get("role") == "assistant" else []
    return [
        use.get("toolUseId")
        for use in _members(message, member)
        if use.get("type") is None
        and use.get("toolUseId") not in [result.get("toolUseId") for result in service_results]
    ]


def _members(message: Object, member: str) -> list[Object]:
    blocks = objects(message.get("content"), "")
    return [value for block, _ in blocks if isinstance(value := block.get(member), dict)]


def _leading_results(message: Object) -> list[Json]:
    """Return the ids of the results at the start of a message."""
    ids: list[Json] = []
    for block, _ in objects(message.get("content"), ""):
        result = block.get("toolResult")
        if isinstance(result, dict):
            ids.append(result.get("toolUseId"))
        elif "cachePoint" not in block:
            break
    return ids
