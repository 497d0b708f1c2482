"""The embedded model of the simulator: a few fixed rules that give predictable replies. Pure and deterministic.

If the last user turn has tool results, the reply quotes them. If its last paragraph asks to call declared tools, the
reply calls them, with the JSON object after the name, or with arguments that fit the tool's schema. `Say …` is answered
with the text to say, a question about the model with what it can do, and any other turn is repeated. What a client adds
to the user's words, in elements such as `<system-reminder>`, is ignored, and so is what stands before a summary of the
conversation. The reply begins with reasoning if the request enables thinking.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from dragoman.dialects.kit.filters import SchemaReferences
from dragoman.filters.compaction import SUMMARY
from dragoman.model.conversation import StopReason
from dragoman.simulator.script import ReasoningPart, ScriptPart, TextPart, ToolCallPart
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_MAX_CALLS = 8
_LONGEST_QUOTE = 4000  # characters of one tool result
_LONGEST_REPETITION = 400  # characters of the user's turn
_LONGEST_THOUGHT = 60
# What clients add to the user's words: system-reminder, environment_context, user_instructions and others. Each begins
# a line; within one, a client's instructions mention such an element.
_CLIENT_CONTEXT = re.compile(r"^[ \t]*<([a-zA-Z]+[-_][\w-]*)>.*?</\1>", re.DOTALL | re.MULTILINE)
_SAY = re.compile(
    r"(?:please )?(?:say|repeat|(?:reply|answer|respond) with)"
    r"(?: (?:only|just|exactly|this|after me|the words?|the text))*:? +(.+)",
    re.IGNORECASE | re.DOTALL,
)
_ABOUT = re.compile(r"(?:help|(?:what|who|which model) are you|what (?:can|do) you do)\b.{0,20}", re.IGNORECASE)
_ABILITIES = (
    "I am the small built-in model of Dragoman's simulator. I repeat what you say, answer `Say …` with that text, and "
    "call a tool if you ask for it, as in `Use NAME` or `Call NAME {…}`. For real answers, connect an upstream: "
    "`dragoman init`."
)
# A verb of calling, in the sentence of the name. "I use" and "do not use" ask for nothing.
_ASKS_TO_CALL = re.compile(
    r"(?<!\bI )(?<!\bwe )(?<!\bnot )(?<!n't )(?<!\bnever )\b(?:call|use|using|run|invoke|try)\b[^.?!\n]*$",
    re.IGNORECASE,
)


class PromptTool(Struct, frozen=True):
    """A declared tool; without a schema it accepts free text."""

    name: str
    schema: Mapping[str, Json] | None


class ModelPrompt(Struct, frozen=True, kw_only=True):
    """The parts of a request that the model uses, independent of the dialect."""

    text: str = ""  # the last user turn
    results: tuple[str, ...] = ()  # the tool results in it
    tools: tuple[PromptTool, ...] = ()
    must_call: bool = False
    parallel: bool = True
    thinks: bool = False
    output: Mapping[str, Json] | None = None  # a schema that the reply must fit
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    input_tokens: int = 0


class ModelOutput(Struct, frozen=True):
    """The parts of a reply, and its stop reason."""

    parts: tuple[ScriptPart, ...]
    stop: StopReason
    sequence: str | None = None


def respond(prompt: ModelPrompt, scripted: tuple[ScriptPart, ...] | None = None) -> ModelOutput:
    """Return the reply to a prompt: the scripted parts if there are some, otherwise the model's own."""
    if scripted is not None:
        return ModelOutput(
            scripted, StopReason.TOOL if any(isinstance(part, ToolCallPart) for part in scripted) else StopReason.END
        )
    words = _CLIENT_CONTEXT.sub("", prompt.text).rpartition(SUMMARY)[2].strip()
    thought = "A tool has answered." if prompt.results else f"The user says: {_shown(words, _LONGEST_THOUGHT)}"
    reasoning: list[ScriptPart] = [ReasoningPart(thought)] if prompt.thinks else []
    if prompt.results:
        return _text_output(prompt, reasoning, _quote_results(prompt.results))
    calls = _calls(prompt, words)
    if calls:
        names = " and ".join(call.name for call in calls)
        return ModelOutput((*reasoning, TextPart(f"I will call {names}."), *calls), StopReason.TOOL)
    if prompt.output is not None:
        return _text_output(prompt, reasoning, jsonio.encode(example_value(prompt.output)).decode())
    return _text_output(prompt, reasoning, _reply_text(words or prompt.text))


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: four ASCII characters, or one other character, are one token."""
    others = 0 if text.isascii() else sum(character > "\x7f" for character in text)
    return others + -(-(len(text) - others) // 4)


def output_tokens(parts: Sequence[ScriptPart]) -> int:
    """Estimate the tokens of a reply."""
    total = 0
    for part in parts:
        match part:
            case TextPart(text) | ReasoningPart(text):
                total += estimate_tokens(text)
            case ToolCallPart():
                total += estimate_tokens(part.name) + estimate_tokens(part.arguments)
            case _:
                pass
    return total


def _text_output(prompt: ModelPrompt, before: list[ScriptPart], text: str) -> ModelOutput:
    """Return a reply with a text, cut at the first stop sequence and at the token limit."""
    stop, sequence = StopReason.END, None
    stops = [(text.index(each), each) for each in prompt.stop if each and each in text]
    if stops:
        at, sequence = min(stops)
        text, stop = text[:at], StopReason.SEQUENCE
    if prompt.max_tokens is not None and estimate_tokens(text) > prompt.max_tokens:
        text, stop, sequence = text[: 4 * prompt.max_tokens], StopReason.LENGTH, None
    return ModelOutput((*before, *([TextPart(text)] if text else [])), stop, sequence)


def _quote_results(results: tuple[str, ...]) -> str:
    quoted = [_shown(result, _LONGEST_QUOTE) for result in results]
    return f"The tool answered: {quoted[0]}" if len(quoted) == 1 else "The tools answered:\n" + "\n".join(quoted)


def _shown(text: str, limit: int) -> str:
    text = text.strip()
    return text if len(text) <= limit else text[:limit] + " …"


def _reply_text(words: str) -> str:
    last = words.rpartition("\n\n")[2]
    if _ABOUT.fullmatch(last):
        return _ABILITIES
    say_command = _SAY.fullmatch(last)
    if say_command is None:
        return f"You said: {_shown(words, _LONGEST_REPETITION)}"
    return _shown(say_command[1].strip(" \n\"'`").removesuffix("."), _LONGEST_REPETITION) or "Hello."


def _calls(prompt: ModelPrompt, words: str) -> list[ToolCallPart]:
    # Clients put long instructions that name every tool before the question. So only `Call NAME {…}` may be
    # anywhere; other requests for a call are read from the last paragraph.
    named = _written(words, prompt.tools) or _requested(words.rpartition("\n\n")[2], prompt.tools)
    if not named and prompt.must_call and prompt.tools:
        named = [(prompt.tools[0], "")]
    calls = [ToolCallPart(tool.name, _arguments(tool, rest)) for tool, rest in named]
    return calls[: _MAX_CALLS if prompt.parallel else 1]


def _written(text: str, tools: tuple[PromptTool, ...]) -> list[tuple[PromptTool, str]]:
    """Return the tools of each `Call NAME {…}` in a text, with the text after the name."""
    matches = [
        (match.start(), tool, text[match.end() :]) for tool in tools for match in _call_pattern(tool).finditer(text)
    ]
    return [(tool, rest) for _, tool, rest in sorted(matches, key=lambda each: each[0]) if _written_object(rest)]


def _call_pattern(tool: PromptTool) -> re.Pattern[str]:
    return re.compile(rf"\bCall {re.escape(tool.name)}(?=\s*\{{)")


def _requested(text: str, tools: tuple[PromptTool, ...]) -> list[tuple[PromptTool, str]]:
    """Return the tools that a text asks to call, in its order, each with the text after its name.

    The names of tools are often plain words, such as Read. So a verb of calling must come before the name, or
    arguments after it.
    """
    mentions = []
    for tool in tools:
        for match in re.finditer(rf"(?<![\w-]){re.escape(tool.name)}(?![\w-])", text):
            rest = text[match.end() :]
            if _ASKS_TO_CALL.search(text[: match.start()]) or _written_object(rest):
                mentions.append((match.start(), tool, rest))
                break
    return [(tool, rest) for _, tool, rest in sorted(mentions, key=lambda each: each[0])]


def _arguments(tool: PromptTool, rest: str) -> str:
    written = _written_object(rest)
    if written is not None:
        return written
    if tool.schema is None:
        return f"example {tool.name}"
    return jsonio.encode(example_arguments(tool.schema)).decode()


def _written_object(rest: str) -> str | None:
    """Return the text of the JSON object right after a tool's name, or None."""
    lead = re.match(r"[\s`:(]*(?:with\s+)?(?=\{)", rest)
    if lead is None:
        return None
    start = lead.end()
    for end in (match.end() for match in re.finditer(r"\}", rest[start : start + 10_000])):
        text = rest[start : start + end]
        if jsonio.decode_object(text) is not None:
            return text
    return None


# --- a small example value that fits a JSON schema
#
# Supported: types, enum, const, defaults, required, nested objects, arrays, bounds, common formats, local `$ref`, and
# unions (the first branch; `allOf` is merged). For a `pattern`, a few likely texts are tried; if none matches, the
# example does not match it either.


_MAX_DEPTH = 12  # levels of nesting
_LONGEST = 10_000  # characters or items, even if a minimum is higher

_FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT1S",
    "email": "someone@example.com",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uri": "https://example.com/",
    "uri-reference": "/example",
    "url": "https://example.com/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "json-pointer": "/a",
    "regex": ".*",
}
_LIKELY_TEXTS = (
    "example",
    "Example",
    "EXAMPLE",
    "a",
    "A",
    "1",
    "42",
    "a1",
    "a-b",
    "a_b",
    "a.b",
    "/a",
    "a@b.c",
    *_FORMATS.values(),
)


def example_arguments(schema: Mapping[str, Json] | None) -> dict[str, Json]:
    """Return example arguments for a tool with this schema."""
    value = example_value(schema or {})
    return value if isinstance(value, dict) else {}


def example_value(schema: Mapping[str, Json]) -> Json:
    """Return an example value that fits the schema."""
    return _value(SchemaReferences().inline(schema), "value", 0)


def _value(schema: Json, name: str, depth: int) -> Json:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None if isinstance(schema, dict) else name
    node = _resolve_unions(schema)
    if "const" in node:
        return node["const"]
    for keyword in ("enum", "examples"):
        listed = node.get(keyword)
        if isinstance(listed, list) and listed:
            return listed[0]
    if "default" in node and node["default"] is not None:
        return node["default"]
    match _type(node):
        case "object":
            return _object(node, depth)
        case "array":
            return _array(node, name, depth)
        case "string":
            return _string(node, name)
        case "integer" | "number" as kind:
            return _number(node, whole=kind == "integer")
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return name


def _resolve_unions(schema: dict[str, Json]) -> dict[str, Json]:
    """Return the schema with `allOf` and the first branch of each union merged into it."""
    node = dict(schema)
    for _ in range(_MAX_DEPTH):
        branches = _branches(node)
        if not branches:
            break
        for branch in branches:
            node = _merged(node, dict(branch))
    return node


def _object(node: Mapping[str, Json], depth: int) -> Json:
    properties = node.get("properties")
    known = properties if isinstance(properties, dict) else {}
    required = node.get("required")
    required_names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    # Without `required`, an empty object would fit, but all properties make a better example.
    names = required_names or [name for name in known if depth < _MAX_DEPTH // 2]
    return {name: _value(known.get(name, {}), name, depth + 1) for name in names}


def _array(node: Mapping[str, Json], name: str, depth: int) -> Json:
    first = node.get("prefixItems")
    shapes = list(first) if isinstance(first, list) else []
    least, most = _count(node.get("minItems"), 0), _count(node.get("maxItems"), _LONGEST)
    count = min(max(least, 1, len(shapes)), max(most, least))
    items = node.get("items", {})
    values = [_value(shapes[i] if i < len(shapes) else items, name, depth + 1) for i in range(count)]
    return [*values[:1], *map(_varied, values[1:], range(2, count + 1))] if node.get("uniqueItems") else list(values)


def _branches(node: dict[str, Json]) -> list[Mapping[str, Json]]:
    """Remove the unions of a node, and return the branches to merge into it."""
    chosen: list[Mapping[str, Json]] = []
    all_of = node.pop("allOf", None)
    if isinstance(all_of, list):
        chosen += [branch for branch in all_of if isinstance(branch, dict)]
    for keyword in ("anyOf", "oneOf"):
        alternatives = node.pop(keyword, None)
        if isinstance(alternatives, list):
            real = [branch for branch in alternatives if isinstance(branch, dict)]
            chosen += [next((branch for branch in real if branch.get("type") != "null"), real[0])] if real else []
    return chosen


def _merged(base: dict[str, Json], more: dict[str, Json]) -> dict[str, Json]:
    for keyword, value in more.items():
        existing = base.get(keyword)
        if isinstance(existing, dict) and isinstance(value, dict):
            base[keyword] = {**existing, **value}
        elif keyword == "required" and isinstance(existing, list) and isinstance(value, list):
            base[keyword] = [*existing, *(name for name in value if name not in existing)]
        else:
            base[keyword] = value
    return base


def _type(node: Mapping[str, Json]) -> str:
    kind = node.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if isinstance(kind, str):
        return kind
    if "properties" in node or "required" in node:
        return "object"
    return "array" if "items" in node or "prefixItems" in node else ""


def _string(node: Mapping[str, Json], name: str) -> str:
    form, pattern = node.get("format"), node.get("pattern")
    candidates = (
        (_FORMATS[form],) if isinstance(form, str) and form in _FORMATS else (f"example {name}", *_LIKELY_TEXTS)
    )
    text = next((text for text in candidates if _matches(pattern, text)), candidates[0])
    least, most = _count(node.get("minLength"), 0), _count(node.get("maxLength"), _LONGEST)
    return (text + "x" * (least - len(text)))[: max(most, least)]


def _matches(pattern: Json, text: str) -> bool:
    if not isinstance(pattern, str):
        return True
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True


def _number(node: Mapping[str, Json], *, whole: bool) -> Json:
    step = _bound(node, "multipleOf") or (1 if whole else 0)
    low, high = _bound(node, "minimum"), _bound(node, "maximum")
    above, below = _bound(node, "exclusiveMinimum"), _bound(node, "exclusiveMaximum")
    if above is not None and (low is None or above >= low):
        low = above + (step or 0.5)
    if below is not None and (high is None or below <= high):
        high = below - (step or 0.5)
    value = 1 if low is None else max(low, 1) if high is None or high >= 1 else low
    value = value if high is None else min(value, high)
    if step:
        value = math.ceil(value / step) * step if low is not None else math.floor(value / step) * step
    return int(value) if whole or float(value).is_integer() else value


def _bound(node: Mapping[str, Json], keyword: str) -> int | float | None:
    value = node.get(keyword)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(value: Json, default: int) -> int:
    return min(value, _LONGEST) if isinstance(value, int) and not isinstance(value, bool) else default


def _varied(value: Json, number: int) -> Json:
    """Return a value that differs from its neighbours, for arrays with unique items."""
    if isinstance(value, str):
        return f"{value} {number}"
    return value + number if isinstance(value, (int, float)) and not isinstance(value, bool) else value
