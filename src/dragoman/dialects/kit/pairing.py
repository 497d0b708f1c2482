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
        self._ids: set[str] = set()
        self._answered: set[str] = set()
        self._waiting: defaultdict[str, deque[str]] = defaultdict(deque)  # ids by name; under "" are all of them

    def called(self, call_id: str, name: str) -> str:
        """Return the id of a call: its own, else one that is made for it."""
        while not call_id:
            self._made += 1
            made = f"{self._prefix}{self._made}"
            call_id = "" if made in self._ids else made
        self._ids.add(call_id)
        self._answered.discard(call_id)
        for names in {name, ""}:
            self._waiting[names].append(call_id)
        return call_id

    def answered(self, call_id: str, name: str) -> str:
        """Return the id that a result answers: its own, else that of the first call of its name without a result.

        Without a name it is the first of all calls; it is empty where no call waits.
        """
        waiting = self._waiting[name]
        while not call_id and waiting:
            first = waiting.popleft()
            call_id = "" if first in self._answered else first
        self._answered.add(call_id)
        return call_id
