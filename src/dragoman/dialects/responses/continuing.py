"""How a request goes on from an earlier answer by its id (`previous_response_id`, `item_reference`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from dragoman.dialects.responses import reply, request
from dragoman.model.blocks import Block
from dragoman.model.conversation import Conversation


class ResponsesContinuation(Struct, frozen=True):
    """See Continuation."""

    def keeps(self, asked: Conversation) -> bool:
        """Whether the client lets its answer be kept, so that it can go on from it by its id."""
        return request.keeps(asked)

    def continued(self, earlier: Conversation, now: Conversation) -> Conversation:
        """What is asked now, after what was said before."""
        return request.continued(earlier, now)

    def resolved(self, asked: Conversation, find: Callable[[str], Sequence[Block] | None]) -> Conversation:
        """The same with the items that `find` knows in place of the references to them."""
        return request.resolved(asked, find)

    def response_in(self, data: bytes) -> bytes:
        """The whole response that the last frame of a stream holds."""
        return reply.response_in(data)

    def items_of(self, response: bytes) -> Mapping[str, Sequence[Block]]:
        """What each output item of a response says, by the item's id."""
        return reply.items_of(response)
