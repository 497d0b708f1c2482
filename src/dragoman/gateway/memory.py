"""What was said in earlier answers, for clients that go on from one by its id alone (`previous_response_id`).

Only answers of other families are kept: what an upstream of the client's own family answered it keeps itself, and its
id is handed on. Kept is what the client was told and what it had asked, by the id it was given, for the key it came
with; in memory only, within bounds of count, bytes and age. A codec that has no `continued` costs one look at it.
"""

from __future__ import annotations

import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, structs

from dragoman.dialects.base import Continuation, Dialect, Encoder, World
from dragoman.errors import AnswerTooLarge, DragomanError
from dragoman.gateway.continuing import (
    Pickled,
    Said,
    all_said,
    as_earlier,
    continued_plan,
)
from dragoman.gateway.limits import Overloaded, count_values, is_large
from dragoman.http.exchange import Owner
from dragoman.model.assemble import Assembly
from dragoman.model.blocks import Block
from dragoman.model.conversation import Conversation, Reply
from dragoman.model.events import Budget, Events, Failed, Finished
from dragoman.translate import Plan, Settings
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload

Told: TypeAlias = Callable[["Answered", bytes], None]  # an answer, and the response as the client gets it

MOST = 1000  # answers
MOST_BYTES = 64 * 1024 * 1024
OLDEST = 6 * 3600.0  # seconds
LARGE = 1024 * 1024  # bytes of JSON above which only the worker process reads a conversation again
_ENTRY, _VALUE = 1024, 64  # bytes of an entry with its id, and of a value beside its text
_NO_ITEMS: Mapping[str, Sequence[Block]] = {}


class Answered(Struct, frozen=True):
    """What is kept of an answer beside the response itself."""

    id: str  # that the client was given
    blocks: tuple[Block, ...]
    items: Mapping[str, Sequence[Block]]


class _Kept(Struct, frozen=True, gc=False):
    said: Said
    response: bytes  # as the client was told it; empty if unknown
    items: Mapping[str, Sequence[Block]]
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
        self._items: dict[tuple[str, str], tuple[str, str]] = {}  # owner and id of an item -> of its answer
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes that are kept, about."""
        return self._bytes

    def keep(
        self,
        owner: str,
        answer_id: str,
        said: Said,
        response: bytes = b"",
        items: Mapping[str, Sequence[Block]] = _NO_ITEMS,
    ) -> None:
        if isinstance(said, Pickled):
            asked = said.size
        else:
            data = jsonio.encode(said)
            asked = _memory(data)
            if is_large(data, LARGE):
                said = Pickled(pickle.dumps(said), ())
                asked = said.size
        size = _ENTRY * (1 + len(items)) + asked + len(response) + _memory(response)
        self.forget(owner, answer_id)
        if size > self._most_bytes:
            return
        self._kept[owner, answer_id] = _Kept(said, response, items, size, self._now() + self._oldest)
        self._items |= {(owner, item_id): (owner, answer_id) for item_id in items}
        self._bytes += size
        self._tidy()

    def recall(self, owner: str, answer_id: str) -> Said | None:
        self._tidy()
        kept = self._kept.get((owner, answer_id))
        return None if kept is None else kept.said

    def response(self, owner: str, answer_id: str) -> bytes | None:
        """A kept answer as the client was told it; empty if only what it said is known, None if nothing is."""
        self._tidy()
        kept = self._kept.get((owner, answer_id))
        return None if kept is None else kept.response

    def item(self, owner: str, item_id: str) -> Sequence[Block] | None:
        """What an output item of a kept answer says."""
        self._tidy()
        place = self._items.get((owner, item_id))
        return None if place is None else [as_earlier(block) for block in self._kept[place].items[item_id]]

    def forget(self, owner: str, answer_id: str) -> None:
        self._forget((owner, answer_id))

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
        if kept is None:
            return
        self._bytes -= kept.size
        for item_id in kept.items:
            if self._items.get((place[0], item_id)) == place:
                del self._items[place[0], item_id]

    # --- for the gateway

    def plan(
        self,
        owner: Owner,
        client: Dialect,
        upstream: Dialect,
        asked: Conversation,
        *,
        model: str,
        settings: Settings,
    ) -> Plan:
        """A plan in which what the client goes on from is told, and whose answer is kept. Raises ClientFault."""
        made, said = continued_plan(
            client,
            upstream,
            asked,
            model=model,
            settings=settings,
            earlier=self.earlier(owner, asked),
            find=lambda item_id: self.item(owner, item_id),
        )
        return made if said is None else self.listening(made, owner, said)

    def earlier(self, owner: str, asked: Conversation) -> Said | None:
        """What the conversation continues, if it is known here."""
        return None if asked.previous is None else self.recall(owner, asked.previous)

    def listening(self, made: Plan, owner: str, asked: Conversation | bytes) -> Plan:
        """The plan, with its answer stored when it is sent; `asked` is the conversation, or its pickled bytes."""

        def told(answer: Answered, response: bytes) -> None:
            blocks = answer.blocks
            said = Pickled(asked, blocks) if isinstance(asked, bytes) else all_said(asked, blocks)
            self.keep(owner, answer.id, said, response, answer.items)

        return listened(made, told)


def _memory(data: bytes) -> int:
    """Bytes that values take, from their JSON. A text that is not ASCII is there twice, once as UTF-8."""
    return (len(data) if data.isascii() else 2 * len(data)) + _VALUE * count_values(data)


def listened(made: Plan, told: Told) -> Plan:
    """The plan, with `told` called when its answer is complete."""
    client = made.client
    return made if client.continuation is None else _with_codec(made, _Heard(client.codec, client.continuation, told))


def unheard(made: Plan) -> Plan:
    """The plan without that callback, so that it can be sent to another process."""
    codec = made.client.codec
    return _with_codec(made, codec.codec) if isinstance(codec, _Heard) else made


def tell(made: Plan, answer: Answered, response: bytes) -> None:
    """Tell who listens to this plan of an answer that another process has read."""
    codec = made.client.codec
    if isinstance(codec, _Heard):
        codec.told(answer, response)


def _with_codec(made: Plan, codec: Any) -> Plan:
    return structs.replace(made, client=structs.replace(made.client, codec=codec))


def _answered(continuation: Continuation, answer_id: str, reply: Reply, response: bytes) -> Answered:
    try:
        items = continuation.items_of(response)
    except DragomanError:  # an item that only its own service can read
        items = _NO_ITEMS
    return Answered(answer_id, reply.choices[0].blocks if reply.choices else (), items)


def is_stored(made: Plan) -> bool:
    """Whether the answer to this plan is stored, so that the question is held until then."""
    return isinstance(made.client.codec, _Heard)


class _Heard:
    """A codec that is listened to as it tells the client its answer; in all else it is that codec."""

    def __init__(self, codec: Any, continuation: Continuation, told: Told) -> None:
        self.codec, self._continuation = codec, continuation
        self.told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self.codec, name)

    def render_reply(self, reply: Reply, asked: Conversation, world: World) -> bytes:
        ids = _Ids(self._continuation.answer_ids, reply.id)
        raw: bytes = self.codec.render_reply(reply, asked, ids.noted(world))
        self.told(_answered(self._continuation, ids.given, reply, raw), raw)
        return raw

    def encoder(self, asked: Conversation, world: World, budget: Budget | None = None) -> Encoder:
        ids = _Ids(self._continuation.answer_ids, "")
        encoder = self.codec.encoder(asked, ids.noted(world), budget)
        return _HeardEncoder(encoder, ids, self._continuation, self.told, budget)


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


class _HeardEncoder(Encoder):
    def __init__(
        self, encoder: Encoder, ids: _Ids, continuation: Continuation, told: Told, budget: Budget | None = None
    ) -> None:
        self._encoder, self._ids, self._continuation, self._told = encoder, ids, continuation, told
        self._budget = None if budget is None else budget.copy()
        self._assembly: Assembly | None = Assembly(self._budget)  # None: the answer is too large to be stored

    def ping(self) -> Payload | None:
        return self._encoder.ping()

    def passes(self, events: Events) -> bool:
        return False  # only the words of other families are listened to

    def feed(self, events: Events) -> Iterable[Payload]:
        if events and isinstance(events[-1], Failed):
            return self._encoder.feed(events)
        self._assemble(events)
        payloads = list(self._encoder.feed(events))
        if events and isinstance(events[-1], Finished) and self._assembly is not None:
            try:
                reply = self._assembly.reply()
            except DragomanError:
                return payloads
            response = self._continuation.response_in(payloads[-1].data) if payloads else b""
            self._told(_answered(self._continuation, self._ids.given or reply.id, reply, response), response)
        return payloads

    def _assemble(self, events: Events) -> None:
        """Keep what the client gets. An answer over a limit is sent, and not stored."""
        try:
            if self._assembly is not None:
                for event in events:
                    self._assembly.add(event)
        except (AnswerTooLarge, Overloaded):
            self._assembly = None
            if self._budget is not None:
                self._budget.close()
