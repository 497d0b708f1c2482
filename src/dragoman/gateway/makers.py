"""Which upstream, with which of its credentials, made an answer that it keeps itself: requests about it go there."""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

MOST = 10_000  # answers


class Made(Struct, frozen=True, gc=False):
    owner: str  # whose client asked
    upstream: str
    credential: str


class Makers:
    """By the answer's id, in memory only; the oldest goes first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._made: OrderedDict[str, Made] = OrderedDict()

    def __len__(self) -> int:
        return len(self._made)

    def remember(self, answer_id: str, owner: str, upstream: str, credential: str) -> None:
        if not answer_id:
            return
        self._made[answer_id] = Made(owner, upstream, credential)
        self._made.move_to_end(answer_id)
        while len(self._made) > self._most:
            self._made.popitem(last=False)

    def find(self, answer_id: str) -> Made | None:
        return self._made.get(answer_id)
