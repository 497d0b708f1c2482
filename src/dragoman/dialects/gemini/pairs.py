"""Which result answers which call, where neither need have an id."""

from __future__ import annotations

from collections.abc import Callable

_MADE = "call_gemini_{}"


class Pairs:
    """Ids for the calls of one request, in their order, and the call that each result answers."""

    def __init__(self) -> None:
        self._made = 0
        self._names: dict[str, str] = {}  # by id
        self._waiting: list[tuple[str, str]] = []  # id and name

    def called(self, call_id: str, name: str) -> str:
        """The id of a call: its own, else one made from its place among those without."""
        call_id = call_id or self._make()
        self._names[call_id] = name
        self._waiting.append((call_id, name))
        return call_id

    def answered(self, call_id: str, name: str) -> str:
        """The id of the call that a result answers: that of its own id, else the first of its name that waits."""
        if call_id in self._names:
            self._take(lambda waiting: waiting[0] == call_id)
            return call_id
        return self._take(lambda waiting: waiting[1] == name) or call_id or self._make()

    def name_of(self, call_id: str) -> str:
        return self._names.get(call_id, "")

    def _take(self, fits: Callable[[tuple[str, str]], bool]) -> str:
        for index, waiting in enumerate(self._waiting):
            if fits(waiting):
                del self._waiting[index]
                return waiting[0]
        return ""

    def _make(self) -> str:
        self._made += 1
        while (made := _MADE.format(self._made)) in self._names:  # somebody else's
            self._made += 1
        return made
