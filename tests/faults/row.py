"""A row of the catalogue: a fault, the function that causes and checks it, and its pairs of dialects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.faults.runner import Case, Pair, covering_pairs, run_probes


@dataclass(frozen=True)
class FaultRow:
    """One fault of the catalogue."""

    number: int  # its number in tests/faults/catalogue.py
    name: str
    outcome: str
    run: Callable[[Case], None]
    pairs: Sequence[Pair] = ()
    quick: int = 1  # number of pairs in a short run
    has_sessions: bool = False  # it can send its requests over a WebSocket, too

    @property
    def runs_over_websocket(self) -> bool:
        """Whether the row can send its requests over a WebSocket, as all rows that are made by `run_probes` can."""
        return self.has_sessions or self.run.__qualname__.startswith(run_probes.__qualname__)

    def cases(self, *, whole: bool) -> list[Pair]:
        pairs = list(self.pairs or covering_pairs())
        if whole:
            return pairs
        return [pairs[(self.number + at * 5) % len(pairs)] for at in range(min(self.quick, len(pairs)))]
