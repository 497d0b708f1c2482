"""The answer never depends on the cut: documents from a grammar of good and broken sections, cut at random.

`--hypothesis-profile=long` or DRAGOMAN_FUZZ=10000 makes it ten thousand documents.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import settings

from dragoman.filters.raw_tools import NAMES, call, engine, markup, readers, wrapped
from tests.unit.raw_tools.documents import broken, kimi_document
from tests.unit.raw_tools.samples import REASONING, TEXT, TOOLS, Said_, outputs, random_cut

ROUNDS = 10
LONG = os.environ.get("DRAGOMAN_FUZZ", "10000" if settings.get_current_profile_name() == "long" else "1500")
DOCUMENTS = int(LONG) // ROUNDS


def _same_under_every_cut(document: str, rng: random.Random, **options: Any) -> None:
    whole = outputs([document], **options)
    for cut in (list(document), *(random_cut(document, rng) for _ in range(5))):
        assert outputs(cut, **options) == whole, cut


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_the_answer_never_depends_on_the_cut(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(DOCUMENTS):
        document = rng.choice((kimi_document, broken, broken))(rng)
        choice = rng.choice(["auto", "auto", "auto", *NAMES])
        tools = rng.choice([TOOLS, TOOLS, TOOLS[:1], ()])
        _same_under_every_cut(document, rng, choice=choice, tools=tools, mode=rng.choice(["live", "live", "buffered"]))


@pytest.mark.parametrize("seed", range(4))
def test_nor_do_the_limits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with limits so small that nearly every document runs into them."""
    for module in (engine, readers, wrapped, markup):
        monkeypatch.setattr(module, "LIMIT", 12)
    monkeypatch.setattr(engine, "_WINDOW", 12 + 64)
    for module in (engine, call, markup):
        monkeypatch.setattr(module, "HELD_LIMIT", 40)
    rng = random.Random(seed)
    for _ in range(DOCUMENTS // 3):
        _same_under_every_cut(broken(rng), rng, mode=rng.choice(["live", "buffered"]), tools=rng.choice([TOOLS, ()]))


def test_nor_a_change_of_carrier_in_mid_section() -> None:
    rng = random.Random(5)
    for _ in range(DOCUMENTS // 2):
        document = rng.choice((kimi_document, broken))(rng)
        at = rng.randint(0, len(document))
        halves: list[Said_] = [(REASONING, document[:at]), (TEXT, document[at:])]
        whole = outputs(halves)
        for _ in range(4):
            pieces = [(carrier, piece) for carrier, half in halves for piece in random_cut(half, rng)]
            assert outputs(pieces) == whole
