"""A request that continues an earlier answer, planned as the whole conversation. Pure.

What is known of earlier answers is the memory's affair (`memory.py`); this is what is done with it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from msgspec import Struct, structs

from dragoman.dialects.base import Dialect
from dragoman.model.blocks import Block, Node, Where
from dragoman.model.conversation import Conversation, Message
from dragoman.translate import Plan, Settings, plan

N = TypeVar("N", bound=Node)
Find: TypeAlias = Callable[[str], Sequence[Block] | None]
_WHERE = "previous_response_id"


class Pickled(Struct, frozen=True):
    """A large conversation as bytes: only the worker process takes the time to read it."""

    asked: bytes
    blocks: tuple[Block, ...]  # of the answer

    def read(self) -> Conversation:
        return all_said(pickle.loads(self.asked), self.blocks)

    @property
    def size(self) -> int:
        return len(self.asked)


Said: TypeAlias = Conversation | Pickled


def all_said(asked: Conversation, blocks: tuple[Block, ...]) -> Conversation:
    """The question and the answer, without what only says how to answer."""
    messages = (*asked.messages, Message("assistant", blocks)) if blocks else asked.messages
    return Conversation(asked.model, tuple(map(as_earlier, messages)), tuple(map(as_earlier, asked.system)))


def as_earlier(node: N) -> N:
    """The same as a later request has it, which says no more of it than an id."""
    inside = {
        name: tuple(map(as_earlier, nodes)) for name in ("blocks", "content") if (nodes := getattr(node, name, ()))
    }
    return structs.replace(node, at=Where(_WHERE, bare=node.at.bare), **inside)


def references(client: Dialect, asked: Conversation) -> tuple[str, ...]:
    """The ids of items of earlier answers that a request refers to."""
    if client.continuation is None:
        return ()
    found: dict[str, None] = {}

    def find(item_id: str) -> None:
        found[item_id] = None

    client.continuation.resolved(asked, find)
    return tuple(found)


def continued_plan(
    client: Dialect,
    upstream: Dialect,
    asked: Conversation,
    *,
    model: str,
    settings: Settings,
    earlier: Said | None,
    find: Find,
) -> tuple[Plan, Conversation | None]:
    """A plan that includes what the request continues, and the conversation if its answer is to be kept.

    Raises ClientFault.
    """
    if asked.is_job:  # a job is read again from the service that runs it, by the numbers of its own frames
        settings = structs.replace(settings, repair=False, think_tags=False, raw_tools="off")
    continuation = client.continuation
    if continuation is None:
        return plan(client, upstream, asked, model=model, settings=settings), None
    at_home = client.codec.family == upstream.codec.family
    previous, given = asked.previous, asked
    asked = continuation.resolved(asked, find)
    if earlier is not None:
        asked = continuation.continued(earlier.read() if isinstance(earlier, Pickled) else earlier, asked)
    if asked is not given:
        settings = structs.replace(settings, repair=True)  # the client's own bytes say less
    made = plan(client, upstream, asked, model=model, settings=settings)
    if previous is not None:  # an answer tells it again
        made = structs.replace(made, asked=structs.replace(asked, previous=previous))
    # What a service holds of this conversation is not known here, so an answer to it is not kept here either.
    if (at_home and not settings.repair) or asked.held or not continuation.keeps(asked):
        return made, None
    return made, asked
