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
        self._answered: set[str] = set()
        self._waiting: defaultdict[str, deque[str]] = defaultdict(deque)  # ids by name; under "" are all of them

    def called(self, call_id: str, name: str) -> str:
        """Return the id of a call: its own, else one that is made for it."""
        call_id = call_id or self._make()
        self._names[call_id] = name
        self._answered.discard(call_id)
        for names in {name, ""}:
            self._waiting[names].append(call_id)
        return call_id

    def answered(self, call_id: str, name: str) -> str:
        """Return the id that a result answers: its own, else that of the first call of its name without a result.

        Without a name it is the first of all calls; where no call waits it is one that no call has.
        """
        waiting = self._waiting[name]
        while not call_id and waiting:
            first = waiting.popleft()
            call_id = "" if first in self._answered else first
        call_id = call_id or self._make()
        self._answered.add(call_id)
        return call_id

    def name_of(self, call_id: str) -> str:
        """Return the name of a call; empty if there is none."""
        return self._names.get(call_id, "")

    def _make(self) -> str:
        self._made += 1
        while (made := f"{self._prefix}{self._made}") in self._names:  # somebody's own
            self._made += 1
        return made
