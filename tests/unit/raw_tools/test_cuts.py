"""The answer never depends on the cut: documents of every format, good and broken, cut at random.

`make laws-long` reads ten thousand documents of each format (EXAMPLES=N: N of them); DRAGOMAN_FUZZ=N does so anywhere.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
from typing import Any

import pytest
from hypothesis import settings

from dragoman.filters import raw_tools
from tests.unit.raw_tools.documents import broken, document_of, kimi_document
from tests.unit.raw_tools.renderers import RENDER
from tests.unit.raw_tools.samples import REASONING, TEXT, TOOLS, Said_, outputs, random_cut

_IS_LONG = settings.get_current_profile_name() == "long"
DOCUMENTS = int(os.environ.get("DRAGOMAN_FUZZ") or (settings().max_examples if _IS_LONG else 60))  # of each format
ROUNDS = 10 if _IS_LONG else 1  # a round is one test, so that the rounds share the processors
every_round = pytest.mark.parametrize("seed", range(ROUNDS))
every_table = pytest.mark.parametrize("table", RENDER)


def _same_under_every_cut(document: str, rng: random.Random, **options: Any) -> None:
    whole = outputs([document], **options)
    for pieces in (list(document), *(random_cut(document, rng) for _ in range(5))):
        assert outputs(pieces, **options) == whole, (options, pieces)


@every_round
@every_table
def test_the_answer_never_depends_on_the_cut(table: str, seed: int) -> None:
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
            choice=rng.choice(["auto", "auto", "auto", *raw_tools.NAMES]),
            tools=rng.choice([TOOLS, TOOLS, TOOLS[:1], ()]),
            mode=rng.choice(["live", "live", "buffered"]),
        )


def _modules() -> list[Any]:
    package = "dragoman.filters.raw_tools"
    return [importlib.import_module(f"{package}.{each.name}") for each in pkgutil.iter_modules(raw_tools.__path__)]


@every_round
@every_table
def test_nor_do_the_limits(table: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with limits so small that nearly every document runs into them."""
    for module in _modules():
        for name, limit in (("LIMIT", 12), ("_WINDOW", 12 + 64), ("HELD_LIMIT", 40)):
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
def test_nor_a_change_of_carrier_in_mid_section(table: str, seed: int) -> None:
    rng = random.Random(f"{table} {seed}")
    for _ in range(DOCUMENTS // ROUNDS // 3):
        document = document_of(table, rng)
        at = rng.randint(0, len(document))
        halves: list[Said_] = [(REASONING, document[:at]), (TEXT, document[at:])]
        whole = outputs(halves)
        for _ in range(4):
            pieces = [(carrier, piece) for carrier, half in halves for piece in random_cut(half, rng)]
            assert outputs(pieces) == whole, pieces


@pytest.mark.parametrize(
    "document",
    [
        "<|tool_call>call:t{,<|tool_call_section_begin|><|tool_call>call:k{n:",
        "<|tool_call>call:k{<\n<|tool_call_se",
        f"<|tool_call>call:t{{,{'x' * 300}<|tool_calls_section_begin|>",
        "<|python_start|>[f(1 2<|tool_calls_section_begin|> and so on",
    ],
)
def test_nor_where_a_call_turns_out_to_be_none(document: str) -> None:
    for choice in ("auto", "gemma4", "llama4_pythonic"):
        for call_id in ("", "call_1"):
            _same_under_every_cut(document, random.Random(1), choice=choice, native=call_id)
