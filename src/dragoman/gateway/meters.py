"""What is counted: every request pays for plain numbers, and Prometheus' form is made when somebody reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import accumulate

from msgspec import Struct

from dragoman.gateway.access_log import Outcome, Record

_TOKENS = ("input", "output", "cache_read", "cache_write")  # kinds of them
_MOST_MODELS = 100  # different values of a label
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300.0)


class Spread:
    """How long things took: how many fell between each two bounds."""

    __slots__ = ("_counts", "sum")

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(_SECONDS) + 1)

    def see(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each holds those below it."""
        return list(zip((*map(str, _SECONDS), "+Inf"), accumulate(self._counts), strict=True))


class Tally:
    """What was counted of the requests of one way, as plain numbers: every request pays for them."""

    __slots__ = ("first", "outcomes", "seconds", *_TOKENS)

    def __init__(self) -> None:
        self.outcomes: dict[Outcome, int] = {}
        self.input = self.output = self.cache_read = self.cache_write = 0
        self.seconds, self.first = Spread(), Spread()

    def count(self, record: Record) -> None:
        outcome, usage = record.outcome, record.usage
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        if not record.upstream:
            return
        self.seconds.see(record.total)
        if record.first_byte is not None:
            self.first.see(record.first_byte)
        if usage is not None:
            self.input += usage.input
            self.output += usage.output
            self.cache_read += usage.cache_read
            self.cache_write += usage.cache_write

    @property
    def tokens(self) -> dict[str, int]:
        return {kind: count for kind in _TOKENS if (count := getattr(self, kind))}


class Moment(Struct, frozen=True):
    """What is not counted but so, whenever somebody reads."""

    inflight: int  # requests under way
    held: int  # bytes held for them
    lines: dict[str, int]  # of the log, that were not written, by why not
    resting: list[tuple[str, str, str, str, float]]  # who rests, how, and for how many seconds more
    expiry: dict[tuple[str, str], float]  # of credentials, by upstream and name, in seconds


class Meters:
    """All that is counted. Labels come from closed sets, or are capped."""

    def __init__(self) -> None:
        self.tallies: dict[tuple[str, str, str], Tally] = {}
        self.notes: Counter[str] = Counter()
        self.retries: Counter[tuple[str, str]] = Counter()
        self.plan_cache_hits: Counter[str] = Counter()  # by upstream
        self._models: set[str] = set()

    def request(self, record: Record) -> None:
        model, models = record.used_model, self._models
        if model not in models and len(models) >= _MOST_MODELS:
            model = "other"
        else:
            models.add(model)
        way = (record.dialect or "none", record.upstream or "none", model or "none")
        tally = self.tallies.get(way)
        if tally is None:
            tally = self.tallies[way] = Tally()
        tally.count(record)
        for note in record.notes:
            self.notes[note.rule] += 1
