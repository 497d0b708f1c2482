"""refuse_held: a request that names what only the client's service holds is refused before anything is sent.

It runs first. A service of the same dialect takes it as it is; a gateway that keeps answers of its own resolves what it
knows before this runs.
"""

from __future__ import annotations

from dragoman.errors import Fault, Unrepresentable
from dragoman.model.conversation import Conversation, Held
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes


class RefuseHeld(Filter):
    name = "refuse_held"
    concerns: Features = frozenset({"held"})

    def __init__(self, takes: frozenset[str]) -> None:
        self._takes = takes

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        """Raises Unrepresentable."""
        for held in conversation.held:
            if held.name not in self._takes:
                raise refusal_of(held)
        return conversation, None


def refusal_of(held: Held) -> Unrepresentable:
    """The error for a request whose target does not hold what the request names."""
    message = f"{held.at}: {held.why}"
    fault = Fault("invalid", message, 400, at=held.at, code=held.code, details=held.details)
    return Unrepresentable(message, fault=fault)
