"""The rules of Anthropic's API for requests, which `dragoman check` runs; independent of the codec. Pure.

The table also has the rules of streams, which stream_rules.py checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kit.values import LocatedObject, Object, objects
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.jsonio import Json

# --- The rules: the service refuses requests that break them; its SDKs fail on streams that break them


RULES = Rulebook.parse(
    "anthropic",
    """
body.object | documented | error | the body must be an object
max_tokens.required | observed | error | max_tokens must be set
max_tokens.range | documented | error | max_tokens must be a whole number, 0 or more
temperature.range | observed | advice | temperature must be from 0 to 1; DeepSeek's endpoint accepts up to 2
top_p.range | observed | advice | top_p must be from 0 to 1
stop_sequences.blank | observed | error | each stop sequence must be a string that is not blank
output_config.effort | documented | advice | effort must be one of low, medium, high, xhigh, max
thinking.type | documented | advice | the type of thinking must be enabled, disabled, adaptive or between_tools
thinking.budget_required | observed | error | enabled thinking must have a budget
thinking.budget_least | observed | error | the budget must be at least 1024
thinking.budget_limit | observed | advice | the budget must be less than max_tokens, except for interleaved thinking
thinking.forced_tool | observed | error | a tool cannot be forced while thinking is enabled
thinking.signature | observed | advice | a thinking block must have its signature; other services send none
thinking.opening | observed | advice | a tool loop must begin with its thinking; newer models accept one without
tools.duplicate | observed | error | tool names must be unique
tools.name | observed | error | a tool name must have 1 to 128 letters, digits, _ and -
tools.schema | observed | error | input_schema must be a schema whose type is "object"
tools.deferred_cache | observed | error | a deferred tool must not have cache_control
tool_choice.type | documented | error | the type of tool_choice must be auto, any, tool or none
tool_choice.no_tools | observed | error | tool_choice must come with tools
tool_choice.name | observed | error | the chosen tool must be declared in tools
tool_choice.parallel | documented | advice | the type none must not have disable_parallel_tool_use
system.text | documented | error | a system prompt must contain only text blocks
messages.required | observed | error | a request must have at least one message
messages.limit | documented | error | a request may have at most 100,000 messages
messages.role | documented | error | a role must be user, assistant or system
messages.empty | observed | error | a message must have content, except a last assistant message
messages.trailing_space | observed | error | a last assistant message must not end with white space
block.type | documented | error | a block must have a type
text.empty | observed | error | a text must not be empty
text.blank | observed | advice | a text must not be only white space; next to a call it is accepted
cache.blank_text | observed | error | an empty text must not have cache_control
cache.thinking | observed | error | thinking must not have cache_control
cache.count | observed | error | a request may have at most 4 blocks with cache_control
tool_use.id_required | documented | error | a tool_use must have an id
tool_use.id_charset | observed | error | an id may have only letters, digits, _ and -
tool_use.name | observed | error | a tool_use name must have 1 to 128 letters, digits, _ and -
tool_use.input | observed | error | a tool_use input must be an object
tool_use.duplicate | observed | error | the ids of a turn's tool_use blocks must be unique
tool_use.unanswered | observed | error | each tool_use must have a tool_result in the next turn
tool_result.id_required | documented | error | a tool_result must have a tool_use_id
tool_result.id_charset | observed | error | an id may have only letters, digits, _ and -
tool_result.duplicate | observed | error | a tool_use must have only one tool_result
tool_result.orphan | observed | error | the message before a tool_result must have its tool_use
stream.json | observed | error | the data of a frame must be a JSON object
stream.event_name | observed | error | the event name must equal the type: the SDKs skip other frames
stream.after_end | documented | advice | nothing may follow message_stop or an error
stream.first | observed | error | message_start must come first
stream.unfinished | observed | error | a stream must end with message_stop, or with an error
stream.object | observed | error | message, usage, delta and content_block must be objects
stream.start_once | observed | error | message_start must come only once
stream.message | observed | error | message_start must have a message of the role assistant with content []
stream.message_fields | documented | advice | the message must have an id and a model
stream.delta_once | documented | advice | message_delta must come only once
stream.stop_reason | observed | error | message_delta must have a stop_reason
stream.usage | documented | advice | the counts of usage must be whole numbers
stream.no_delta | observed | error | message_delta must come before message_stop
stream.error | documented | advice | an error must have a type and a message
stream.open_block | documented | advice | blocks must stop before message_delta
stream.never_stopped | observed | error | blocks must stop before message_stop: clients act on the stop of a block
stream.index | observed | error | the index of blocks must count from 0
stream.interleaved | documented | advice | a block must stop before the next one starts
stream.late_block | documented | advice | no block may come after message_delta
stream.block_start | observed | error | content_block must have the fields of its type
stream.input_at_start | documented | advice | a tool_use block must start with input {}; the input comes in deltas
stream.no_block | observed | error | a delta or a stop must belong to an open block
stream.delta_type | documented | error | a delta must have a type
stream.delta_kind | observed | error | the type of a delta must match the type of its block
stream.delta_value | observed | error | a delta must have its text
stream.input_json | observed | error | the input of a tool must be a JSON object
stream.input_cut | observed | advice | the input of a tool must be complete; a limit may cut it
""",
)


MAX_MESSAGES = 100_000
MAX_CACHE_MARKS = 4
MIN_BUDGET = 1024
_ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_ROLES = ("user", "assistant", "system")
_CHOICES = ("auto", "any", "tool", "none")
_THINKING = ("enabled", "disabled", "adaptive", "between_tools")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


def breaches(call: ApiRequest) -> Sequence[Breach]:
    """Return every rule of the service that the request breaks, with its place."""
    body = call.body
    if not isinstance(body, dict):
        return [RULES.breach("body.object", "", "the body must be an object")]
    breaches = [*_top(call, body), *_tools(body), *_thinking(body), *_system(body)]
    messages = body.get("messages")
    continues = _continues(body)
    if continues and messages == []:
        return breaches  # The service continues the turn that paused.
    if not isinstance(messages, list) or not messages:
        breaches.append(RULES.breach("messages.required", "messages", "a request must have at least one message"))
        return breaches
    if len(messages) > MAX_MESSAGES:
        breaches.append(
            RULES.breach("messages.limit", "messages", f"a request may have at most {MAX_MESSAGES} messages")
        )
    for index, message in enumerate(messages):
        breaches.extend(_message(message, f"messages[{index}]", last=index == len(messages) - 1))
    breaches.extend(_pairing(messages, continues=continues))
    breaches.extend(_opening(body, messages))
    breaches.extend(_cache_marks(body))
    return breaches


def _continues(body: Object) -> bool:
    thread = body.get("thread")
    return isinstance(thread, dict) and thread.get("type") == "continue"


def _as_blocks(content: Json) -> Json:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# --- settings


def _top(call: ApiRequest, body: Object) -> Iterator[Breach]:
    limit = body.get("max_tokens")
    if call.operation == "generate" and limit is None:
        yield RULES.breach("max_tokens.required", "max_tokens", "it must be set")
    elif limit is not None and (type(limit) is not int or limit < 0):
        yield RULES.breach("max_tokens.range", "max_tokens", "it must be a whole number, 0 or more")
    for name, rule in (("temperature", "temperature.range"), ("top_p", "top_p.range")):
        value = body.get(name)
        if value is not None and (type(value) not in (int, float) or not 0 <= value <= 1):  # type: ignore[operator]
            yield RULES.breach(rule, name, "it must be a number from 0 to 1")
    stops = body.get("stop_sequences")
    if stops is not None and not (
        isinstance(stops, list) and all(isinstance(each, str) and each.strip() for each in stops)
    ):
        yield RULES.breach("stop_sequences.blank", "stop_sequences", "each must be a string that is not blank")


def _thinking(body: Object) -> Iterator[Breach]:
    config = body.get("output_config")
    effort = config.get("effort") if isinstance(config, dict) else None
    if effort is not None and effort not in _EFFORTS:
        yield RULES.breach("output_config.effort", "output_config.effort", f"it must be one of {', '.join(_EFFORTS)}")
    thinking = body.get("thinking")
    if thinking is None:
        return
    if not isinstance(thinking, dict) or thinking.get("type") not in _THINKING:
        yield RULES.breach("thinking.type", "thinking.type", f"it must be one of {', '.join(_THINKING)}")
        return
    if thinking["type"] == "enabled":
        yield from _budget(thinking.get("budget_tokens"), body.get("max_tokens"))
    choice = body.get("tool_choice")
    forced = isinstance(choice, dict) and choice.get("type") in ("any", "tool")
    if forced and thinking["type"] == "enabled":
        yield RULES.breach(
            "thinking.forced_tool", "tool_choice.type", "a tool cannot be forced while thinking is enabled"
        )


def _budget(budget: Json, limit: Json) -> Iterator[Breach]:
    at = "thinking.budget_tokens"
    if type(budget) is not int:
        yield RULES.breach("thinking.budget_required", at, "it must be set when thinking is enabled")
    elif budget < MIN_BUDGET:
        yield RULES.breach("thinking.budget_least", at, f"it must be at least {MIN_BUDGET}")
    elif type(limit) is int and budget >= limit:
        yield RULES.breach("thinking.budget_limit", at, "it must be less than max_tokens")


def _tools(body: Object) -> Iterator[Breach]:
    names: set[str] = set()
    for tool, at in objects(body.get("tools"), "tools"):
        name = tool.get("name")
        if isinstance(name, str):
            if name in names:
                yield RULES.breach("tools.duplicate", f"{at}.name", f"the name {name} is used twice")
            names.add(name)
        if tool.get("type") in (None, "custom"):
            yield from _custom_tool(tool, at)
        if tool.get("defer_loading") and tool.get("cache_control"):
            yield RULES.breach(
                "tools.deferred_cache", f"{at}.cache_control", "a deferred tool must not have cache_control"
            )
    if not _declares_later(body):
        yield from _tool_choice(body.get("tool_choice"), names, bool(body.get("tools")))


def _declares_later(body: Object) -> bool:
    """Return whether tools may be declared elsewhere: by MCP servers, in a message, or in a stored thread."""
    if body.get("mcp_servers") or _continues(body):
        return True
    messages = body.get("messages")
    return any(
        block.get("type") == "tool_addition"
        for message, _ in objects(messages, "")
        for block, _ in objects(message.get("content"), "")
    )


def _custom_tool(tool: Object, at: str) -> Iterator[Breach]:
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not _NAME.match(name):
        yield RULES.breach("tools.name", f"{at}.name", "a tool name must consist of 1 to 128 letters, digits, _ or -")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        yield RULES.breach("tools.schema", f"{at}.input_schema", 'it must be a schema whose type is "object"')


def _tool_choice(choice: Json, names: set[str], any_tools: bool) -> Iterator[Breach]:
    if choice is None:
        return
    if not isinstance(choice, dict) or choice.get("type") not in _CHOICES:
        yield RULES.breach("tool_choice.type", "tool_choice.type", f"it must be one of {', '.join(_CHOICES)}")
        return
    if not any_tools:
        yield RULES.breach(
            "tool_choice.no_tools", "tool_choice", "tool_choice is set, but the request has no tools; remove it"
        )
    elif choice["type"] == "tool" and str(choice.get("name")) not in names:
        yield RULES.breach("tool_choice.name", "tool_choice.name", "tools does not declare this tool")
    if choice["type"] == "none" and "disable_parallel_tool_use" in choice:
        detail = "disable_parallel_tool_use has no effect with the type none; remove it"
        yield RULES.breach("tool_choice.parallel", "tool_choice", detail)


# --- content


def _system(body: Object) -> Iterator[Breach]:
    for block, at in objects(_as_blocks(body.get("system") or []), "system"):
        if block.get("type") != "text":
            yield RULES.breach("system.text", at, "a system prompt must contain only text blocks")
        else:
            yield from _text(block, at)


def _message(message: Json, at: str, last: bool) -> Iterator[Breach]:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        yield RULES.breach("messages.role", f"{at}.role", f"it must be one of {', '.join(_ROLES)}")
        return
    assistant = message["role"] == "assistant"
    raw = message.get("content")
    content = [] if raw == "" and last and assistant else _as_blocks(raw)
    if not isinstance(content, list) or (not content and not (last and assistant)):
        yield RULES.breach("messages.empty", f"{at}.content", "a message must have content")
        return
    for block, place in objects(content, f"{at}.content"):
        yield from _block(block, place)
    end = content[-1] if content else None
    text = end.get("text") if isinstance(end, dict) and end.get("type") == "text" else None
    if last and assistant and isinstance(text, str) and text != text.rstrip():
        yield RULES.breach(
            "messages.trailing_space", f"{at}.content", "a last assistant message must not end with white space"
        )


def _block(block: Object, at: str) -> Iterator[Breach]:
    match block.get("type"):
        case "text":
            yield from _text(block, at)
        case "tool_use":
            yield from _tool_use(block, at)
        case "tool_result":
            yield from _tool_result(block, at)
        case "thinking" | "redacted_thinking" as kind:
            if block.get("cache_control"):
                yield RULES.breach("cache.thinking", f"{at}.cache_control", "thinking must not have cache_control")
            if kind == "thinking" and not block.get("signature"):
                yield RULES.breach(
                    "thinking.signature",
                    f"{at}.signature",
                    "a thinking block must have its signature; send it as it was received, or leave the block out",
                )
        case str():
            pass  # Other types are not checked.
        case _:
            yield RULES.breach("block.type", f"{at}.type", "a block must have a type")


def _text(block: Object, at: str) -> Iterator[Breach]:
    text = block.get("text")
    if not isinstance(text, str) or not text:
        yield RULES.breach("text.empty", f"{at}.text", "the text must not be empty")
    elif not text.strip():
        yield RULES.breach("text.blank", f"{at}.text", "the text must not be only white space")
    if (not isinstance(text, str) or not text.strip()) and block.get("cache_control"):
        yield RULES.breach("cache.blank_text", f"{at}.cache_control", "an empty text must not have cache_control")


def _tool_use(block: Object, at: str) -> Iterator[Breach]:
    yield from _identifier(block, at, "id", "tool_use")
    name = block.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        yield RULES.breach(
            "tool_use.name", f"{at}.name", "a tool name must consist of 1 to 128 letters, digits, _ or -"
        )
    if not isinstance(block.get("input"), dict):
        yield RULES.breach("tool_use.input", f"{at}.input", "it must be an object")


def _tool_result(block: Object, at: str) -> Iterator[Breach]:
    yield from _identifier(block, at, "tool_use_id", "tool_result")
    for part, place in objects(block.get("content"), f"{at}.content"):
        if part.get("type") == "text" and part.get("text") == "":
            yield RULES.breach("text.empty", f"{place}.text", "the text must not be empty")


def _identifier(block: Object, at: str, field: str, owner: str) -> Iterator[Breach]:
    value = block.get(field)
    if not isinstance(value, str) or not value:
        rule = "tool_use.id_required" if owner == "tool_use" else "tool_result.id_required"
        yield RULES.breach(rule, f"{at}.{field}", "it must be set")
    elif not _ID.match(value):
        rule = "tool_use.id_charset" if owner == "tool_use" else "tool_result.id_charset"
        yield RULES.breach(rule, f"{at}.{field}", "it may have only letters, digits, _ and -")


# --- the order of messages


class _Turn:
    """Consecutive messages of one role, which the service treats as one."""

    def __init__(self, role: Json, at: str) -> None:
        self.role = role
        self.at = at
        self.blocks: list[LocatedObject] = []

    def ids(self, kind: str, field: str) -> Iterator[tuple[Json, str]]:
        return ((block.get(field), at) for block, at in self.blocks if block.get("type") == kind)


def _turns(messages: Iterable[Json]) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") == "system":
            continue
        if not turns or turns[-1].role != message.get("role"):
            turns.append(_Turn(message.get("role"), f"messages[{index}]"))
        turns[-1].blocks.extend(objects(_as_blocks(message.get("content")), f"messages[{index}].content"))
    return turns


def _pairing(messages: Iterable[Json], *, continues: bool) -> Iterator[Breach]:
    """Check that each call has one result in the next turn, and each result a call in the turn before it.

    If the first turn continues a thread, the service stores the turn before it, and its calls are unknown.
    """
    waiting: list[Json] = []
    before = ""
    for index, turn in enumerate(_turns(messages)):
        answered: list[Json] = []
        is_continued = continues and index == 0
        for call_id, at in turn.ids("tool_result", "tool_use_id"):
            if call_id in answered:
                yield RULES.breach("tool_result.duplicate", at, "this tool_use already has a tool_result")
            elif turn.role != "user" or (call_id not in waiting and not is_continued):
                yield RULES.breach(
                    "tool_result.orphan", at, "the message before this tool_result has no tool_use with this id"
                )
            answered.append(call_id)
        if any(call_id not in answered for call_id in waiting):
            yield RULES.breach(
                "tool_use.unanswered", before, "each tool_use must have a tool_result in the next message"
            )
        waiting, before = [], turn.at
        for call_id, at in turn.ids("tool_use", "id"):
            if call_id in waiting:
                yield RULES.breach(
                    "tool_use.duplicate", at, "two tool_use blocks of this turn have the same id; ids must be unique"
                )
            waiting.append(call_id)
    if waiting:
        yield RULES.breach("tool_use.unanswered", before, "each tool_use must have a tool_result in the next message")


def _opening(body: Object, messages: Iterable[Json]) -> Iterator[Breach]:
    """Check that the current tool loop begins with thinking, if thinking is enabled."""
    thinking = body.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") != "enabled":
        return
    loop: list[_Turn] = []  # assistant turns since the last user turn without results
    last: list[_Turn] = []  # the loop of the last turn that calls a tool
    for turn in _turns(messages):
        if turn.role == "assistant":
            loop.append(turn)
            last = loop if any(turn.ids("tool_use", "id")) else last
        elif turn.role == "user" and not any(turn.ids("tool_result", "tool_use_id")):
            loop = []
    first = last[0].blocks[0][0].get("type") if last else "thinking"
    if first not in ("thinking", "redacted_thinking"):
        yield RULES.breach("thinking.opening", last[0].at, "the last turn that calls a tool must begin with thinking")


def _cache_marks(body: Object) -> Iterator[Breach]:
    count = _marks(body.get("tools")) + _marks(body.get("system"))
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        count += _marks(message.get("content")) if isinstance(message, dict) else 0
    if count > MAX_CACHE_MARKS:
        yield RULES.breach("cache.count", "", f"{count} blocks have cache_control; at most {MAX_CACHE_MARKS} may")


def _marks(blocks: Json) -> int:
    return sum(bool(block.get("cache_control")) + _marks(block.get("content")) for block, _ in objects(blocks, ""))
