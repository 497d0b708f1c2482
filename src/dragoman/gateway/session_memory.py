"""The conversations that WebSocket sessions may continue, bounded over all sessions. No I/O.

A session continues one of its last responses by the id, whatever the request says about storing. A conversation that
was continued is forgotten first, since the client most likely goes on from the newer response, then the oldest. The
client of a forgotten one gets the error on which clients send the whole conversation.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

from dragoman.wire.jsonio import Raw

MAX_REMEMBERED_BYTES = 64 * 1024 * 1024
MAX_OF_SESSION = 4  # responses; messages of other streams may continue an earlier one
_ENTRY = 1024  # bytes of an entry beside its items


class StoredTurns(Struct, frozen=True):
    """The items of a conversation up to a response, as JSON text without the brackets.

    `base` is the id of the response before them, if another store has it.
    """

    response_id: str
    items: bytes
    base: Raw | None = None


class SessionMemory:
    """The conversations of all sessions, by session and response."""

    def __init__(self, most: int = MAX_REMEMBERED_BYTES) -> None:
        self._most = most
        self._entries: OrderedDict[tuple[int, str], StoredTurns] = OrderedDict()
        self._of_session: dict[int, list[str]] = {}  # ids of responses, oldest first
        self.size = 0  # bytes

    def keep(self, session: int, turns: StoredTurns) -> None:
        """Remember a conversation, unless it alone exceeds the limit; forget others if necessary."""
        self._forget(session, turns.response_id)
        if _size(turns) > self._most:
            return
        ids = self._of_session.setdefault(session, [])
        if len(ids) >= MAX_OF_SESSION:
            self._forget(session, ids[0])
            ids = self._of_session.setdefault(session, [])
        ids.append(turns.response_id)
        self._entries[session, turns.response_id] = turns
        self.size += _size(turns)
        while self.size > self._most:
            self._forget(*next(iter(self._entries)))

    def find(self, session: int, response_id: object) -> StoredTurns | None:
        """Return the conversation to continue, up to this response; None if it is unknown or forgotten."""
        key = (session, str(response_id))
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key, last=False)
        return found

    def forget_session(self, session: int) -> None:
        """Forget all conversations of a session."""
        for response_id in [*self._of_session.get(session, ())]:
            self._forget(session, response_id)

    def _forget(self, session: int, response_id: str) -> None:
        found = self._entries.pop((session, response_id), None)
        if found is None:
            return
        self.size -= _size(found)
        ids = self._of_session[session]
        ids.remove(response_id)
        if not ids:
            del self._of_session[session]


def _size(turns: StoredTurns) -> int:
    return len(turns.items) + _ENTRY
