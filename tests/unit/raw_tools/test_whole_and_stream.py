"""A reply says the same however it is cut, and as a whole reply the same as in a stream, to every client."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.filters import raw_tools
from dragoman.filters.raw_tools import DeclaredTools, Engine
from dragoman.filters.raw_tools.outputs import Arguments, CallStarted, EngineNote, EngineOutput, TextOutput
from dragoman.filters.raw_tools.readers import BUFFER_LIMIT, LIMIT
from dragoman.wire.jsonio import Json
from tests.hypothesis_profile import IS_LONG_RUN
from tests.unit.raw_tools.client_view import (
    CLIENTS,
    ClientView,
    Delta,
    client_request,
    cut,
    native,
    sse,
    view_reply,
    view_stream,
    whole_reply,
)
from tests.unit.raw_tools.documents import broken, document_of, kimi_document, prose_and_calls
from tests.unit.raw_tools.renderers import AT_START, BY_NAME_ONLY, RENDER, CallToWrite
from tests.unit.raw_tools.samples import (
    AB,
    CB,
    CE,
    REASONING,
    SB,
    SE,
    TEXT,
    TOOLS,
    ChannelText,
    merge_adjacent,
    outputs,
    random_cut,
    tool,
)

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
# A stream keeps what came of a call that is cut off or broken, a whole reply leaves it out or wraps it
# (docs/decisions/content.md#d3, docs/decisions/responses.md#d7).
_DIFFERS = {"raw_tools.cut_off", "raw_tools.broken_arguments", "arguments.not_json"}


def document(rng: random.Random) -> str:
    return "".join(_call(rng) if rng.random() < 0.35 else rng.choice(_FRAGMENTS) for _ in range(rng.randint(1, 7)))


def _call(rng: random.Random) -> str:
    name = rng.choice(("bash", "read", "now", "other"))
    key = _KEYS.get(name, "x")
    schema: dict[str, Json] = {"type": "object", "properties": {key: {"type": "string"}}}
    arguments: dict[str, Json] = {} if name == "now" else {key: rng.choice(_VALUES)}
    return RENDER[rng.choice(list(RENDER))]((CallToWrite(name, arguments, schema),))


def random_reply(rng: random.Random) -> list[Delta]:
    deltas: list[Delta] = []
    if rng.random() < 0.4:
        deltas.append({"reasoning_content": document(rng)})
    if rng.random() < 0.85:
        deltas.append({"content": document(rng)})
    if rng.random() < 0.3:
        deltas.insert(rng.randint(0, len(deltas)), native())
    return deltas


def content_of(seen: ClientView) -> tuple[list[tuple[str, str]], str, str, str]:
    calls = [(block[1], _settled(block[2])) for block in seen.blocks if block[0] == "call"]
    return calls, seen.content(), seen.content("reasoning"), seen.finish


def _settled(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return arguments


@given(st.integers(0, 2**32), st.sampled_from(CLIENTS), st.sampled_from(("live", "buffered")), st.booleans())
def test_the_cut_and_the_form_of_a_reply_do_not_matter(seed: int, client: str, mode: str, think_tags: bool) -> None:
    rng = random.Random(seed)
    deltas = random_reply(rng)
    finish = rng.choice(("stop", "length"))
    options = {"raw_tools_mode": mode, "think_tags": think_tags}
    request = client_request(client)
    first, *others = (
        view_stream(client, sse(cut(deltas, size), finish), request, **options)
        for size in (1, rng.randint(2, 30), 100_000)
    )
    for other in others:
        assert (content_of(other), other.rules) == (content_of(first), first.rules)
    if any("tool_calls" in delta for delta in deltas) or first.rules & _DIFFERS:
        return  # a whole reply shows a native call before its text is read
    assert content_of(view_reply(client, whole_reply(deltas, finish), request, **options)) == content_of(first)


# --- The reply never depends on the cut: documents of every format, good and broken, cut at random
#
# `make laws-long` reads ten thousand documents of each format (EXAMPLES=N: N of them); DRAGOMAN_FUZZ=N does so
# anywhere.

_IS_LONG = settings.get_current_profile_name() == "long"
DOCUMENTS = int(os.environ.get("DRAGOMAN_FUZZ") or (settings().max_examples if _IS_LONG else 60))  # of each format
ROUNDS = 10 if _IS_LONG else 1  # a round is one test, so that the rounds share the processors
every_round = pytest.mark.parametrize("seed", range(ROUNDS))
every_table = pytest.mark.parametrize("table", RENDER)


def _same_under_every_cut(document: str, rng: random.Random, **options: Any) -> None:
    whole_reply = outputs([document], **options)
    for pieces in (list(document), *(random_cut(document, rng) for _ in range(5))):
        assert outputs(pieces, **options) == whole_reply, (options, pieces)


@every_round
@every_table
def test_the_reply_never_depends_on_the_cut(table: str, seed: int) -> None:
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS):
        _same_under_every_cut(
            document_of(table, rng),
            rng,
            choice=rng.choice(["auto", "auto", table]),
            tools=rng.choice([TOOLS, TOOLS, TOOLS[:1], ()]),
            mode=rng.choice(["live", "live", "buffered"]),
            native=rng.choice(["", "", "", "call_1"]),
            muted=rng.random() < 0.1,
            trailing_text=rng.random() < 0.9,
            think_tags=rng.random() < 0.3,
        )


@every_round
def test_documents_of_mixed_formats(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10 * DOCUMENTS // ROUNDS):
        _same_under_every_cut(
            rng.choice((kimi_document, broken, broken))(rng),
            rng,
            choice=rng.choice(["auto", "auto", "auto", *raw_tools.FORMAT_NAMES]),
            tools=rng.choice([TOOLS, TOOLS, TOOLS[:1], ()]),
            mode=rng.choice(["live", "live", "buffered"]),
        )


def _modules() -> list[Any]:
    package = "dragoman.filters.raw_tools"
    return [importlib.import_module(f"{package}.{each.name}") for each in pkgutil.iter_modules(raw_tools.__path__)]


@every_round
@every_table
def test_limits_do_not_make_a_reply_depend_on_the_cut(table: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with limits so small that nearly every document runs into them."""
    for module in _modules():
        for name, limit in (("LIMIT", 12), ("_WINDOW", 12 + 64), ("BUFFER_LIMIT", 40)):
            if name in vars(module):
                monkeypatch.setattr(module, name, limit)
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS // 3):
        _same_under_every_cut(
            document_of(table, rng),
            rng,
            choice=rng.choice(["auto", table]),
            mode=rng.choice(["live", "buffered"]),
            tools=rng.choice([TOOLS, ()]),
        )


@every_round
@every_table
def test_a_change_from_reasoning_to_text_in_a_section_does_not_depend_on_the_cut(table: str, seed: int) -> None:
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS // 3):
        document = document_of(table, rng)
        at = rng.randint(0, len(document))
        halves: list[ChannelText] = [(REASONING, document[:at]), (TEXT, document[at:])]
        whole_reply = outputs(halves)
        for _ in range(4):
            pieces = [(channel, piece) for channel, half in halves for piece in random_cut(half, rng)]
            assert outputs(pieces) == whole_reply, pieces


@pytest.mark.parametrize(
    "document",
    [
        "<|tool_call>call:t{,<|tool_call_section_begin|><|tool_call>call:k{n:",
        "<|tool_call>call:k{<\n<|tool_call_se",
        f"<|tool_call>call:t{{,{'x' * 300}<|tool_calls_section_begin|>",
        "<|python_start|>[f(1 2<|tool_calls_section_begin|> and so on",
    ],
)
def test_text_that_turns_out_to_be_no_call_does_not_depend_on_the_cut(document: str) -> None:
    for choice in ("auto", "gemma4", "llama4_pythonic"):
        for call_id in ("", "call_1"):
            _same_under_every_cut(document, random.Random(1), choice=choice, native=call_id)


# --- Laws that hold for every document: nothing is taken back, nothing is invented, nothing is lost, little is held

_IN_AUTO = [table for table in RENDER if table not in BY_NAME_ONLY]
every_table_of_auto = pytest.mark.parametrize("table", _IN_AUTO)
WRITE = tool("write", "content")


def text_of(emitted: Sequence[EngineOutput]) -> str:
    return "".join(output.text for output in emitted if isinstance(output, TextOutput))


def begins(whole_reply: Sequence[EngineOutput], part: Sequence[EngineOutput]) -> bool:
    """Whether the outputs begin with these, the last of which may have grown."""
    if not part:
        return True
    *sure, last = part
    if list(whole_reply[: len(sure)]) != sure or len(whole_reply) < len(part):
        return False
    grown = whole_reply[len(sure)]
    match last, grown:
        case TextOutput(text, channel), TextOutput(more, same):
            return channel is same and more.startswith(text)
        case Arguments(text), Arguments(more):
            return more.startswith(text)
        case _:
            return last == grown


@every_round
@every_table
def test_what_came_out_is_never_taken_back(table: str, seed: int) -> None:
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS // 3):
        document = document_of(table, rng)
        choice = rng.choice(["auto", table])
        whole_reply = outputs([document], choice)
        engine, so_far = Engine(choice, DeclaredTools(TOOLS)), []
        for piece in random_cut(document, rng):
            so_far += engine.feed(piece)
            assert begins(whole_reply, merge_adjacent(so_far)), (choice, document, piece)


@every_round
@every_table
def test_text_that_comes_out_is_text_that_came_in(table: str, seed: int) -> None:
    """Nothing is invented, nothing changes its place; without a call or a note nothing changes at all."""
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS):
        document = document_of(table, rng)
        emitted = outputs([document])
        rest = iter(document)
        assert all(char in rest for char in text_of(emitted)), document
        if not any(isinstance(output, CallStarted | EngineNote) for output in emitted):
            assert text_of(emitted) == document


@every_round
@every_table_of_auto
def test_prose_comes_back_byte_for_byte(table: str, seed: int) -> None:
    """Every paragraph comes out, in order, with the white space around it; every call is recovered."""
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS // 2):
        pieces = prose_and_calls(table, rng)
        if table in AT_START:
            pieces = pieces[1:3]
        document = "\n\n".join(text for _, text in pieces)
        emitted = outputs(random_cut(document, rng))
        assert text_of(emitted) == "\n\n".join("" if is_call else text for is_call, text in pieces), document
        calls = sum(isinstance(output, CallStarted) for output in emitted)
        assert calls == sum(is_call for is_call, _ in pieces), document


# --- what is held


@every_table
def test_a_long_argument_is_not_buffered(table: str) -> None:
    """A string streams: no format needs to see its end first."""
    opening, _, _ = RENDER[table]([CallToWrite("write", {"content": "HERE"}, {})]).partition("HERE")
    engine = Engine(table, DeclaredTools([WRITE]))
    engine.feed(opening)
    view_stream = 0
    for _ in range(20_000):
        view_stream += sum(len(each.text) for each in engine.feed("some words ") if isinstance(each, Arguments))
    assert view_stream > 200_000
    assert engine.peak < 2 * LIMIT


@every_table_of_auto
def test_text_with_half_markers_is_not_buffered(table: str) -> None:
    example = RENDER[table]([CallToWrite("bash", {"command": "ls"}, {})])
    engine = Engine("auto", DeclaredTools(TOOLS))
    text = "Some words " + example[: len(example) // 4]
    for _ in range(2_000 if IS_LONG_RUN else 500):
        engine.feed(text + " and others, ")
    assert engine.peak <= BUFFER_LIMIT + 4 * LIMIT
    engine = Engine("auto", DeclaredTools(TOOLS))
    for _ in range(20_000 if IS_LONG_RUN else 2_000):
        engine.feed("a < b [c] `d` and ")
    assert engine.peak < LIMIT


_OPEN = ("```\n", "> ", "    ", "`", '"', "So. ")
# Every format, and every way to quote with a sixth of them: the limit does not depend on the pair.
_QUOTED = [(table, before) for table in _IN_AUTO for before in _OPEN]
_SOME_QUOTED = [(table, _OPEN[at % len(_OPEN)]) for at, table in enumerate(_IN_AUTO)]


@pytest.mark.parametrize(("table", "before"), _QUOTED if IS_LONG_RUN else _SOME_QUOTED)
def test_a_quotation_that_never_closes_is_buffered_up_to_the_limit(table: str, before: str) -> None:
    example = RENDER[table]([CallToWrite("bash", {"command": "ls"}, {})])
    engine = Engine("auto", DeclaredTools(TOOLS))
    engine.feed(before + example)
    for _ in range(BUFFER_LIMIT // 10_000 * 3 // 2):
        engine.feed("some words " * 1_000)
    engine.close()
    assert engine.peak <= BUFFER_LIMIT + 16 * LIMIT


# --- Document 001's accumulate-then-parse, with its slips corrected, says the same of every well-formed document

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def accumulate_then_parse(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """All text, then all calls. Strings of arguments are masked first, so that splitting is as simple as in 001."""
    strings: list[str] = []

    def mask(found: re.Match[str]) -> str:
        strings.append(found[0])
        return f"\0{len(strings) - 1}\0"

    def unmask(masked: str) -> str:
        return re.sub("\0(\\d+)\0", lambda found: strings[int(found[1])], masked)

    shown, calls = [], []
    rest, after_section = text, False
    while True:
        before, begins, rest = rest.partition(SB)
        if before.strip() or not after_section:
            shown.append(before)
        if not begins:
            break
        masked = _STRING.sub(mask, rest)
        accumulated, _, masked_rest = masked.partition(SE)
        rest, after_section = unmask(masked_rest), True
        for part in accumulated.split(CE):
            header, has_arguments, arguments = part.replace(CB, "").partition(AB)
            if has_arguments:
                name, _, number = header.strip().rpartition(":")
                name = name.strip().removeprefix("functions.")
                calls.append((f"functions.{name}:{number}", name, unmask(arguments).strip()))
    return "".join(shown), calls


@pytest.mark.parametrize("mode", ["live", "buffered"])
@pytest.mark.parametrize("seed", range(10))
def test_streaming_says_what_accumulating_and_parsing_says(seed: int, mode: str) -> None:
    rng = random.Random(1000 + seed)
    for _ in range(60):
        document = kimi_document(rng)
        text, calls = accumulate_then_parse(document)
        for pieces in ([document], list(document), random_cut(document, rng)):
            emitted = outputs(pieces, "kimi", mode=mode)  # type: ignore[arg-type]
            names = [(output.id, output.name) for output in emitted if isinstance(output, CallStarted)]
            arguments = [output.text for output in emitted if isinstance(output, Arguments)]
            assert [(*name, argument) for name, argument in zip(names, arguments, strict=True)] == calls
            assert "".join(output.text for output in emitted if isinstance(output, TextOutput)) == text


def test_the_oracle_itself_knows_a_call() -> None:
    assert accumulate_then_parse(f'a{SB}{CB} functions.x:1 {AB} {{"k": "{CE}"}} {CE}{SE} b') == (
        "a b",
        [("functions.x:1", "x", f'{{"k": "{CE}"}}')],
    )
