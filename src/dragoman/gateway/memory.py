"""What was said in earlier answers, for clients that go on from one by its id alone (`previous_response_id`).

Only answers of other families are kept: what an upstream of the client's own family answered it keeps itself, and its
id is handed on. Kept is what the client was told and what it had asked, by the id it was given, for the key it came
with; in memory only, within bounds of count, bytes and age. A codec that has no `continued` costs one look at it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct, structs

from dragoman.dialects.base import Dialect, Encoder, World
from dragoman.errors import ClientFault, DragomanError, Fault
from dragoman.model.assemble import fold
from dragoman.model.blocks import Node, Where
from dragoman.model.conversation import Conversation, Message, Reply
from dragoman.model.events import Event, Events, Failed, Finished
from dragoman.translate import Plan, Settings, plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload
from dragoman.wire.http import HttpRequest

N = TypeVar("N", bound=Node)

MOST = 1000  # answers
MOST_BYTES = 64 * 1024 * 1024
OLDEST = 6 * 3600.0  # seconds
_KEYS = ("authorization", "x-api-key", "api-key")
_WHERE = "previous_response_id"


class Continues(Protocol):
    """What a codec has whose clients may go on from an earlier answer."""

    answer_ids: str  # how the ids of answers begin

    def keeps(self, asked: Conversation) -> bool:
        """Whether the client lets its answer be kept."""

    def continued(self, earlier: Conversation, now: Conversation) -> Conversation:
        """What is asked now, after what was said before, as one conversation."""


class _Kept(Struct, frozen=True, gc=False):
    said: Conversation
    size: int
    until: float


class Memory:
    """Earlier answers by owner and id; the oldest goes first."""

    def __init__(
        self,
        *,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
        oldest: float = OLDEST,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._most_bytes, self._oldest, self._now = most, most_bytes, oldest, now
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes that are kept, as JSON would count them."""
        return self._bytes

    def keep(self, owner: str, answer_id: str, said: Conversation) -> None:
        size = len(jsonio.encode(said))
        self._forget((owner, answer_id))
        if size > self._most_bytes:
            return
        self._kept[owner, answer_id] = _Kept(said, size, self._now() + self._oldest)
        self._bytes += size
        self._tidy()

    def recall(self, owner: str, answer_id: str) -> Conversation | None:
        self._tidy()
        kept = self._kept.get((owner, answer_id))
        return None if kept is None else kept.said

    def _tidy(self) -> None:
        now = self._now()
        while self._kept:
            first = next(iter(self._kept))
            within = len(self._kept) <= self._most and self._bytes <= self._most_bytes
            if within and self._kept[first].until > now:
                return
            self._forget(first)

    def _forget(self, place: tuple[str, str]) -> None:
        kept = self._kept.pop(place, None)
        if kept is not None:
            self._bytes -= kept.size

    # --- for the gateway

    def plan(
        self,
        request: HttpRequest,
        client: Dialect,
        upstream: Dialect,
        asked: Conversation,
        *,
        model: str,
        settings: Settings,
    ) -> Plan:
        """A plan in which what the client goes on from is told, and whose answer is kept. Raises ClientFault."""
        if not hasattr(client.codec, "continued"):
            return plan(client, upstream, asked, model=model, settings=settings)
        codec = cast(Continues, client.codec)
        at_home = client.codec.family == upstream.codec.family
        owner = _owner(request)
        previous = asked.previous
        if previous is not None:
            earlier = self.recall(owner, previous)
            if earlier is not None:
                asked = codec.continued(earlier, asked)
                settings = structs.replace(settings, repair=True)  # the client's own bytes say less
            elif not at_home:
                raise _unknown(previous)
        made = plan(client, upstream, asked, model=model, settings=settings)
        if previous is not None:  # an answer tells it again
            made = structs.replace(made, asked=structs.replace(asked, previous=previous))
        if (at_home and not settings.repair) or not codec.keeps(asked):
            return made
        heard = _Heard(codec, lambda answer_id, reply: self.keep(owner, answer_id, _said(asked, reply)))
        return structs.replace(made, client=structs.replace(client, codec=heard))


def _owner(request: HttpRequest) -> str:
    """Whose answers they are: one key's clients never see another's."""
    key = next((value for name in _KEYS if (value := request.header(name))), "")
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _unknown(answer_id: str) -> ClientFault:
    message = (
        f"{_WHERE}: no response {answer_id!r} is known here. This gateway keeps the answers of other services for a"
        " while, unless `store` is false. Send the whole conversation as `input` instead."
    )
    fault = Fault("invalid", message, 400, at=_WHERE, code="previous_response_not_found")
    return ClientFault(message, fault=fault)


def _said(asked: Conversation, reply: Reply) -> Conversation:
    """All that was said: the question and the answer, without what only says how to answer."""
    blocks = reply.choices[0].blocks if reply.choices else ()
    messages = (*asked.messages, Message("assistant", blocks)) if blocks else asked.messages
    return Conversation(asked.model, tuple(map(_earlier, messages)), tuple(map(_earlier, asked.system)))


def _earlier(node: N) -> N:
    """The same as a later request has it, which says no more of it than an id."""
    inside = {name: tuple(map(_earlier, nodes)) for name in ("blocks", "content") if (nodes := getattr(node, name, ()))}
    return structs.replace(node, at=Where(_WHERE, bare=node.at.bare), **inside)


class _Heard:
    """A codec that is listened to as it tells the client its answer; in all else it is that codec."""

    def __init__(self, codec: Any, told: Callable[[str, Reply], None]) -> None:
        self._codec = codec
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def render_reply(self, reply: Reply, asked: Conversation, world: World) -> bytes:
        ids = _Ids(self._codec.answer_ids, reply.id)
        raw: bytes = self._codec.render_reply(reply, asked, ids.noted(world))
        self._told(ids.given, reply)
        return raw

    def encoder(self, asked: Conversation, world: World) -> Encoder:
        ids = _Ids(self._codec.answer_ids, "")
        return _HeardEncoder(self._codec.encoder(asked, ids.noted(world)), ids, self._told)


class _Ids:
    """Finds out which id the client was given: the answer's own, or the one that was made for it."""

    def __init__(self, prefix: str, given: str) -> None:
        self._prefix = prefix
        self.given = given

    def noted(self, world: World) -> World:
        def new_id(prefix: str) -> str:
            made = world.new_id(prefix)
            if prefix == self._prefix:
                self.given = made
            return made

        return World(new_id, world.now)


class _HeardEncoder:
    def __init__(self, encoder: Encoder, ids: _Ids, told: Callable[[str, Reply], None]) -> None:
        self._encoder, self._ids, self._told = encoder, ids, told
        self._events: list[Event] = []
        self.ping = encoder.ping

    def passes(self, events: Events) -> bool:
        return False  # only the words of other families are listened to

    def feed(self, events: Events) -> Iterable[Payload]:
        payloads = self._encoder.feed(events)
        self._events += events
        if events and isinstance(events[-1], Finished):
            try:
                reply = fold(self._events)
            except DragomanError:
                return payloads
            self._told(self._ids.given or reply.id, reply)
        elif events and isinstance(events[-1], Failed):
            self._events = []
        return payloads
