"""The table's shape: a fault, how it is caused and what must come of it, with the pairs of dialects that it is run for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.faults.runner import Case, Pair, covering_pairs


@dataclass(frozen=True)
class FaultRow:
    number: int  # of the catalogue: tests/faults/catalogue.py
    name: str
    outcome: str
    run: Callable[[Case], None]
    pairs: Sequence[Pair] = ()
    quick: int = 1  # pairs of a short run; 0: none

    def cases(self, *, whole: bool) -> list[Pair]:
        pairs = list(self.pairs or covering_pairs())
        if whole:
            return pairs
        return [pairs[(self.number + at * 5) % len(pairs)] for at in range(min(self.quick, len(pairs)))]
