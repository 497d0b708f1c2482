"""An answer says the same however it is cut, and as a whole reply the same as in a stream, to every client."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from dragoman.wire.jsonio import Json
from tests.unit.raw_tools.renderers import RENDER, CallToWrite
from tests.unit.raw_tools.through import CLIENTS, Delta, Seen, asked, cut, native, replied, sse, streamed, whole

_FRAGMENTS = (
    "<|tool_call_begin|>",
    "<|tool_calls_section_end|>",
    "</think>",
    "<think>",
    "<tool_call>",
    "</tool_call>",
    '<｜DSML｜invoke name="bash">',
    "</｜DSML｜parameter>",
    "[TOOL_CALLS]",
    "<|end|>",
    "<|channel|>final<|message|>",
    "<|open|>response<|sep|>",
    "<|tool_call",
    "```\n",
    "\n```\n",
    "<pre>\n",
    "</pre>",
    *'`"„“{',
    "> ",
    "| ",
    "\n",
    "\n\n",
    " ",
    "I look. ",
    "text",
    "Ok:",
    "bash:0<|tool_call_argument_begin|>",
    "<|im_end|>",
)
_VALUES = ("ls", "a\nb\n", "</parameter>x", '"q"', "ü")
_KEYS = {"bash": "command", "read": "path"}
# A stream keeps what came of a call that is cut off or broken, a whole reply leaves it out or wraps it (D3, D7).
_DIFFERS = {"raw_tools.cut_off", "raw_tools.broken_arguments", "arguments.not_json"}


def document(rng: random.Random) -> str:
    return "".join(_call(rng) if rng.random() < 0.35 else rng.choice(_FRAGMENTS) for _ in range(rng.randint(1, 7)))


def _call(rng: random.Random) -> str:
    name = rng.choice(("bash", "read", "now", "other"))
    key = _KEYS.get(name, "x")
    schema: dict[str, Json] = {"type": "object", "properties": {key: {"type": "string"}}}
    arguments: dict[str, Json] = {} if name == "now" else {key: rng.choice(_VALUES)}
    return RENDER[rng.choice(list(RENDER))]((CallToWrite(name, arguments, schema),))


def answer(rng: random.Random) -> list[Delta]:
    deltas: list[Delta] = []
    if rng.random() < 0.4:
        deltas.append({"reasoning_content": document(rng)})
    if rng.random() < 0.85:
        deltas.append({"content": document(rng)})
    if rng.random() < 0.3:
        deltas.insert(rng.randint(0, len(deltas)), native())
    return deltas


def said(seen: Seen) -> tuple[list[tuple[str, str]], str, str, str]:
    calls = [(block[1], _settled(block[2])) for block in seen.blocks if block[0] == "call"]
    return calls, seen.said(), seen.said("reasoning"), seen.finish


def _settled(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


@given(st.integers(0, 2**32), st.sampled_from(CLIENTS), st.sampled_from(("live", "buffered")), st.booleans())
def test_the_cut_and_the_form_of_an_answer_do_not_matter(seed: int, client: str, mode: str, think_tags: bool) -> None:
    rng = random.Random(seed)
    deltas = answer(rng)
    finish = rng.choice(("stop", "length"))
    options = {"raw_tools_mode": mode, "think_tags": think_tags}
    request = asked(client)
    first, *others = (
        streamed(client, sse(cut(deltas, size), finish), request, **options)
        for size in (1, rng.randint(2, 30), 100_000)
    )
    for other in others:
        assert (said(other), other.rules) == (said(first), first.rules)
    if any("tool_calls" in delta for delta in deltas) or first.rules & _DIFFERS:
        return  # a whole reply shows a native call before its text is read
    assert said(replied(client, whole(deltas, finish), request, **options)) == said(first)
