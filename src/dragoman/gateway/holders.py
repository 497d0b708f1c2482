"""Remember which upstream holds an answer, and which of its credentials made it.

A request that continues, reads, deletes or cancels an answer must reach the upstream that holds it: no other one knows
its id.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

MOST_ANSWERS = 10_000
_LONGEST_ID = 512  # characters: no request about an answer can have a longer one in its path


class Holder(Struct, frozen=True, gc=False):
    """The upstream that holds one answer."""

    owner: str  # who got the answer
    upstream: str
    address: str  # of the upstream: another one with the same address is the same service
    credential: str


class Holders:
    """Holders by the id of the answer.

    They are in memory only. When there are more than `most`, the oldest is removed.
    """

    def __init__(self, most: int = MOST_ANSWERS) -> None:
        self._most = most
        self._holders: OrderedDict[str, Holder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def remember(self, answer_id: str, holder: Holder) -> None:
        if not answer_id or len(answer_id) > _LONGEST_ID:
            return
        self._holders[answer_id] = holder
        self._holders.move_to_end(answer_id)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def find(self, answer_id: str) -> Holder | None:
        return self._holders.get(answer_id)
