"""Which result answers which call, where neither need have an id."""

from __future__ import annotations

from collections import defaultdict, deque

_MADE = "call_gemini_{}"


class Pairs:
    """Ids for the calls of one request, in their order, and the call that each result answers."""

    def __init__(self) -> None:
        self._made = 0
        self._names: dict[str, str] = {}  # by id
        self._waiting: dict[int, str] = {}  # ids of calls without a result, by place
        self._by_id: defaultdict[str, deque[int]] = defaultdict(deque)  # places, of calls that may have a result by now
        self._by_name: defaultdict[str, deque[int]] = defaultdict(deque)
        self._calls = 0

    def called(self, call_id: str, name: str) -> str:
        """The id of a call: its own, else one made from its place among those without."""
        call_id = call_id or self._make()
        self._names[call_id] = name
        self._waiting[self._calls] = call_id
        self._by_id[call_id].append(self._calls)
        self._by_name[name].append(self._calls)
        self._calls += 1
        return call_id

    def answered(self, call_id: str, name: str) -> str:
        """The id of the call that a result answers: that of its own id, else the first of its name that waits."""
        if call_id in self._names:
            self._take(self._by_id[call_id])
            return call_id
        return self._take(self._by_name[name]) or call_id or self._make()

    def name_of(self, call_id: str) -> str:
        return self._names.get(call_id, "")

    def _take(self, places: deque[int]) -> str:
        """The id of the first of these calls that waits, which it does no longer."""
        while places:
            call_id = self._waiting.pop(places.popleft(), "")
            if call_id:
                return call_id
        return ""

    def _make(self) -> str:
        self._made += 1
        while (made := _MADE.format(self._made)) in self._names:  # somebody else's
            self._made += 1
        return made
