"""Document 001's accumulate-then-parse, with its slips corrected, says the same of every well-formed document."""

from __future__ import annotations

import random
import re

import pytest

from dragoman.filters.raw_tools.outputs import Arguments, CallStarted, Said
from tests.unit.raw_tools.documents import kimi_document
from tests.unit.raw_tools.samples import AB, CB, CE, SB, SE, outputs, random_cut

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
            told = outputs(pieces, "kimi", mode=mode)  # type: ignore[arg-type]
            names = [(output.id, output.name) for output in told if isinstance(output, CallStarted)]
            arguments = [output.text for output in told if isinstance(output, Arguments)]
            assert [(*name, argument) for name, argument in zip(names, arguments, strict=True)] == calls
            assert "".join(output.text for output in told if isinstance(output, Said)) == text


def test_the_oracle_itself_knows_a_call() -> None:
    assert accumulate_then_parse(f'a{SB}{CB} functions.x:1 {AB} {{"k": "{CE}"}} {CE}{SE} b') == (
        "a b",
        [("functions.x:1", "x", f'{{"k": "{CE}"}}')],
    )
