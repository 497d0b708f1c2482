"""Which result answers which call, where neither need have an id."""

from __future__ import annotations

from collections import defaultdict, deque


class Pairs:
    """Ids for the calls of one request, in their order, and the call that each result answers.

    A call without an id gets one of its place among those without, so that a request and the same request some turns
    later have the same ids.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix  # of ids that are made here
        self._made = 0
        self._names: dict[str, str] = {}  # of calls, by their ids
        self._waiting: dict[int, str] = {}  # ids of calls without a result, by place
        self._by_id: defaultdict[str, deque[int]] = defaultdict(deque)  # places, of calls that may have a result by now
        self._by_name: defaultdict[str, deque[int]] = defaultdict(deque)  # the same; under "" are all of them
        self._calls = 0

    def called(self, call_id: str, name: str) -> str:
        """Return the id of a call: its own, else one that is made for it."""
        call_id = call_id or self._make()
        self._names[call_id] = name
        self._waiting[self._calls] = call_id
        self._by_id[call_id].append(self._calls)
        for names in {name, ""}:
            self._by_name[names].append(self._calls)
        self._calls += 1
        return call_id

    def answered(self, call_id: str, name: str) -> str:
        """Return the id that a result answers: its own if a call has it, else that of the first call of its name that
        waits, or of all calls if it has no name. Where no call waits it is its own, or one that no call has."""
        if call_id in self._names:
            self._take(self._by_id[call_id])
            return call_id
        return self._take(self._by_name[name]) or call_id or self._make()

    def name_of(self, call_id: str) -> str:
        """Return the name of a call; empty if there is none."""
        return self._names.get(call_id, "")

    def _take(self, places: deque[int]) -> str:
        """Return the id of the first of these calls that waits, which it does no longer."""
        while places:
            if call_id := self._waiting.pop(places.popleft(), ""):
                return call_id
        return ""

    def _make(self) -> str:
        self._made += 1
        while (made := f"{self._prefix}{self._made}") in self._names:  # a call of the request has it
            self._made += 1
        return made
