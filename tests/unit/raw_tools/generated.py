"""Generated tools and calls: schemas, arguments that satisfy them, and texts around them."""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.render_json import CallToWrite
from tests.unit.raw_tools.samples import end

Schema: TypeAlias = dict[str, Json]
Typed: TypeAlias = tuple[Schema, SearchStrategy[Any]]  # a schema and the values that satisfy it

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCXYZ"
_IDENTIFIER = st.tuples(st.text(_LETTERS + "_", min_size=1, max_size=3), st.text(_LETTERS + "_019", max_size=8)).map(
    "".join
)
_HYPHENS = st.tuples(st.text(_LETTERS, min_size=1, max_size=6), st.sampled_from(["-x", "_y-z", "-9", ""])).map("".join)
_NAMES = ["bash", "read_file", "get_weather", "mcp__git_hub__list_prs", "write", "f"]
_KEYS = ["command", "path", "content", "from", "type", "name", "arguments", "id", "x"]
# What readers of values get wrong: other types' spellings, white space at the ends, tags, escapes, other scripts.
_TEXTS = [
    "", " ", "\n", "null", "None", "true", "False", "7", "-1.50", '{"a": 1}', '["x"]', "{'a': True}", " blank ends ",
    "a file\nwith its last line end\n", "\n\nfirst lines empty", "\ttab", "a < b && c > d", "<div class=\"x\">", "</p>", "<",
    "</", "<|", "[", "]", "&lt;b&gt; &amp;", '"', "'", "it's", '"""', "\\", "\\n", "\\u00e9", "é", "日本 😀", "```json\n{}\n```",
    "</think>", "<think>", "a=1, b=(2)", "):", "; {", "f(x)",
]  # fmt: skip
# And markers of all formats: inside a JSON string they are text.
MARKERS = [
    "<|tool_call_end|>", "<|tool_calls_section_end|>", "<tool_call>", "</tool_call>", "<｜tool▁call▁end｜>",
    end("｜DSML｜parameter"), end("parameter"), "<function=f>", end("function"), end("invoke"), "</arg_value>",
    "<|close|>argument<|sep|>", "[TOOL_CALLS]", "[ARGS]", "<|call|>", "<|end|>", "<|python_tag|>", "<|python_end|>",
    "</function_calls>", '<|"|>', "<tool_call|>", "<escape>", "]<]minimax[>[", "</tool_calls>", "</TOOLCALL>",
    "<|END_ACTION|>", "<|tools_suffix|>", "functools[",
]  # fmt: skip
_WORDS = st.text(_LETTERS, max_size=8).map("so ".__add__)  # reads as nothing but a string

texts = st.text(max_size=12) | st.lists(st.sampled_from([*_TEXTS, *MARKERS]), min_size=1, max_size=3).map("".join)
_integers = st.integers(-(10**6), 10**18)
_numbers = _integers | st.floats(allow_nan=False, allow_infinity=False, width=32)

_LEAVES: list[Typed] = [
    ({"type": "string"}, texts),
    ({"type": "string", "description": "A file."}, texts),
    ({"type": "integer"}, _integers),
    ({"type": "number"}, _numbers),
    ({"type": "boolean"}, st.booleans()),
    ({"type": ["string", "null"]}, st.none() | _WORDS),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, _WORDS | _integers),
    ({"enum": ["so one", "so two"]}, st.sampled_from(["so one", "so two"])),
    ({}, _WORDS),  # markup says nothing about the type of 7, and nor does this schema: a string (docs/raw_tools.md)
]


@st.composite
def _typed(draw: st.DrawFn, keys: SearchStrategy[str], depth: int) -> tuple[Schema, Any]:
    """A schema and one value of it."""
    kind = draw(st.integers(0, 5 if depth else 3))
    if kind == 4:
        items: Typed = draw(st.sampled_from(_LEAVES))
        return {"type": "array", "items": items[0]}, draw(st.lists(items[1], max_size=3))
    if kind == 5:
        return draw(_object(keys, depth - 1))
    schema, values = draw(st.sampled_from(_LEAVES))
    return schema, draw(values)


@st.composite
def _object(draw: st.DrawFn, keys: SearchStrategy[str], depth: int) -> tuple[Schema, dict[str, Any]]:
    """An object's schema and a value; a property that is not required may be missing."""
    names = draw(st.lists(keys, max_size=4, unique=True))
    properties: dict[str, Json] = {}
    value: dict[str, Any] = {}
    required: list[Json] = []
    for name in names:
        schema, each = draw(_typed(keys, depth))
        properties[name] = schema
        if draw(st.integers(0, 4)):
            value[name] = each
            if draw(st.booleans()):
                required.append(name)
    return {"type": "object", "properties": properties, "required": required}, value


@st.composite
def calls(draw: st.DrawFn, *, identifiers: bool = True, hyphens: bool = True) -> list[CallToWrite]:
    """One to three calls of as many tools. `identifiers`: keys are Python names; else they are any word."""
    names = st.sampled_from(_NAMES) | (_HYPHENS if hyphens else _IDENTIFIER)
    keys = st.sampled_from(_KEYS) | (_IDENTIFIER if identifiers else _HYPHENS)
    written = []
    for number, name in enumerate(draw(st.lists(names, min_size=1, max_size=3, unique=True))):
        schema, value = draw(_object(keys, 2))
        written.append(CallToWrite(name, value, schema, index=number))
    return written


# Prose that neither opens a quotation nor leaves one open, and ends a line, so that a tag may follow.
before_calls = st.sampled_from(
    [
        "",
        "I will look.\n",
        "Sure!\n\n",
        "It's `a < b`.\n\n",
        "日本語です。\n",
        "The token <|tool_use|> is odd.\n",
        "1. one\n2. two\n\n",
    ]
)
after_calls = st.sampled_from(["", "\nThat is all.", "\n\nAnd `more` text: a < b.", "\n\n- a list\n"])
