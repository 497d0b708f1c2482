"""Conversations with tool calls, which `raw-tools learn` renders with a chat template to see how it writes calls. Pure.

Every name, key and value in them is unique, so that it can be found in the rendered text.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.filters.raw_tools.schemas import json_type
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

PROBE_TEXT = "Contentprobe"
PROBE_REASONING = "Reasoningprobe"
USER = "Userprobe"

Form: TypeAlias = Literal["object", "string"]  # the form in which a template expects the arguments
IdStyle: TypeAlias = Literal["plain", "kimi"]


class ProbeCall(Struct, frozen=True):
    """One tool call of a probe."""

    name: str
    arguments: dict[str, Json]


class Variant(Struct, frozen=True):
    """How a probe passes its calls to the template."""

    form: Form
    ids: IdStyle


# In the order in which they are tried. Most templates expect arguments as an object, and short ids.
VARIANTS: tuple[Variant, ...] = (
    Variant("object", "plain"),
    Variant("string", "plain"),
    Variant("object", "kimi"),
    Variant("string", "kimi"),
)

FIRST = ProbeCall("probe_alpha", {"key_aa": "text_aa", "key_ab": "text_ab"})
SECOND = ProbeCall("probe_beta", {"key_ba": "text_ba", "key_bb": "text_bb"})
TYPES = ProbeCall(
    "probe_gamma",
    {
        "key_s": "text_s",
        "key_i": 4217,
        "key_f": 0.5,
        "key_t": True,
        "key_n": None,
        "key_o": {"inner_key": "inner_text"},
        "key_l": [11, "item_text"],
    },
)
EMPTY = ProbeCall("probe_delta", {})

# The probes from which the markers are found.
PROBES: dict[str, tuple[ProbeCall, ...]] = {
    "one": (FIRST,),
    "two": (FIRST, SECOND),
    "types": (TYPES,),
    "empty": (EMPTY,),
}


def call_id(number: int, call: ProbeCall, style: IdStyle) -> str:
    """Return the id of a call: nine letters and digits, as Mistral requires, or Kimi's form."""
    return f"functions.{call.name}:{number}" if style == "kimi" else f"idprobe{number:02d}"


def probe_messages(
    calls: Sequence[ProbeCall], variant: Variant, *, content: str = "", reasoning: str = "", results: bool = False
) -> list[Json]:
    """Return a conversation of a question and a reply with these calls; with `results`, also their results."""
    question: dict[str, Json] = {"role": "user", "content": USER}
    reply: dict[str, Json] = {"role": "assistant", "content": content}
    if reasoning:
        reply["reasoning_content"] = reasoning
    if calls:
        reply["tool_calls"] = [_call_json(number, call, variant) for number, call in enumerate(calls)]
    messages: list[Json] = [question, reply]
    if results:
        for number, call in enumerate(calls):
            id_ = call_id(number, call, variant.ids)
            messages.append({"role": "tool", "tool_call_id": id_, "name": call.name, "content": "Resultprobe"})
    return messages


def _call_json(number: int, call: ProbeCall, variant: Variant) -> Json:
    arguments: Json = call.arguments if variant.form == "object" else jsonio.encode_like_python(call.arguments)
    function: Json = {"name": call.name, "arguments": arguments}
    return {"id": call_id(number, call, variant.ids), "type": "function", "function": function}


def declare_tools(calls: Iterable[ProbeCall]) -> list[Json]:
    """Return OpenAI declarations of the tools that these calls need."""
    by_name = {call.name: call for call in calls}
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "A probe.",
                "parameters": schema_of(call.arguments),
            },
        }
        for name, call in by_name.items()
    ]


def schema_of(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return a schema that declares the types of these arguments."""
    properties: dict[str, Json] = {key: {**_schema(value), "description": "p"} for key, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(arguments)}


def _schema(value: Json) -> dict[str, Json]:
    if isinstance(value, dict) and value:
        return {"type": "object", "properties": {key: _schema(each) for key, each in value.items()}}
    if isinstance(value, list) and value:
        return {"type": "array", "items": _schema(value[0])}
    return {"type": json_type(value)}


# --- calls to verify a table with

_NAMES = ("get_weather", "search", "read_file", "write-file", "mcp__server__run")
_KEYS = ("path", "city", "query", "max_results", "deep_option", "text", "flag")
_VALUES: tuple[Json, ...] = (
    "Hanoi",
    "two words",
    "a line\nand another",
    "quotes \" and ' and \\",
    "Zürich, 東京",
    "x < y > z & {brace} [bracket]",
    "https://example.com/?q=1#top",
    "12",
    "true",
    7,
    -3,
    2.5,
    True,
    False,
    None,
    {"unit": "celsius", "days": [1, 2, 3], "nested": {"deep": "yes"}},
    ["a", "b c"],
    [{"id": 1}, {"id": 2}],
    [],
    {},
)


def generate_calls(count: int, seed: int = 16) -> list[tuple[ProbeCall, ...]]:
    """Return sets of calls, one to three in each, the same for the same seed."""
    rng = random.Random(seed)
    return [
        tuple(_call(name, rng) for name in rng.sample(_NAMES, 1 + number % 3))  # each name once: it has one schema
        for number in range(count)
    ]


def _call(name: str, rng: random.Random) -> ProbeCall:
    keys = rng.sample(_KEYS, rng.randint(0, 4))
    return ProbeCall(name, {key: rng.choice(_VALUES) for key in keys})
