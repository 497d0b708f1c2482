"""The response store: earlier responses, so that a request can continue one by its id (`previous_response_id`).

Only responses of upstreams of another family are stored: an upstream of the client's family stores its responses
itself, and gets their ids. The store maps the owner (the proven key) and the response id to the conversation and the
response, in the memory of this process, bounded in number, bytes and age.

`continued_plan` plans a request together with the conversation that it continues. It is pure, and the worker process
calls it for large requests. `ResponseSaver` stores one response when it is complete.
"""

from __future__ import annotations

import pickle
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from msgspec import Struct, structs

from dragoman.dialects.base import SYSTEM_ENVIRONMENT, Continuation, Dialect, Encoder, Environment
from dragoman.errors import DragomanError, ResponseTooLarge
from dragoman.gateway.limits import Overloaded, count_values, is_large
from dragoman.http.exchange import Owner
from dragoman.model.assemble import ReplyAssembler
from dragoman.model.blocks import Block, Location, Node
from dragoman.model.conversation import Conversation, Message, Reply
from dragoman.model.events import Events, Failed, Finished, ResponseBudget
from dragoman.translate import Plan, TranslationSettings, plan
from dragoman.wire import jsonio
from dragoman.wire.frame import Payload

N = TypeVar("N", bound=Node)
FindItem: TypeAlias = Callable[[str], Sequence[Block] | None]

MAX_RESPONSES = 1000  # answers
MAX_STORED_BYTES = 64 * 1024 * 1024
MAX_AGE = 6 * 3600.0  # seconds
LARGE_CONVERSATION = 1024 * 1024  # bytes of JSON above which only the worker process reads a conversation again
_ENTRY, _VALUE = 1024, 64  # bytes of an entry with its id, and of a value beside its text
_NO_ITEMS: Mapping[str, Sequence[Block]] = {}
_WHERE = "previous_response_id"


# --- what a request continues


class PickledConversation(Struct, frozen=True):
    """A large conversation as bytes: only the worker process takes the time to read it."""

    request: bytes
    blocks: tuple[Block, ...]  # of the answer

    def read(self) -> Conversation:
        return whole_conversation(pickle.loads(self.request), self.blocks)


StoredConversation: TypeAlias = Conversation | PickledConversation


def whole_conversation(asked: Conversation, blocks: tuple[Block, ...]) -> Conversation:
    """The question and the answer, without what only says how to answer."""
    messages = (*asked.messages, Message("assistant", blocks)) if blocks else asked.messages
    return Conversation(asked.model, tuple(map(as_earlier, messages)), tuple(map(as_earlier, asked.system)))


def as_earlier(node: N) -> N:
    """The same as a later request has it, which says no more of it than an id."""
    inside = {
        name: tuple(map(as_earlier, nodes)) for name in ("blocks", "content") if (nodes := getattr(node, name, ()))
    }
    return structs.replace(node, at=Location(_WHERE, is_absent=node.at.is_absent), **inside)


def item_references(client: Dialect, asked: Conversation) -> tuple[str, ...]:
    """The ids of items of earlier answers that a request refers to."""
    if client.continuation is None:
        return ()
    found: dict[str, None] = {}

    def find(item_id: str) -> None:
        found[item_id] = None

    client.continuation.resolve_references(asked, find)
    return tuple(found)


def continued_plan(
    client: Dialect,
    upstream: Dialect,
    asked: Conversation,
    *,
    model: str,
    settings: TranslationSettings,
    earlier: StoredConversation | None,
    find: FindItem,
) -> tuple[Plan, Conversation | None]:
    """Return a plan that includes the continued conversation, and the conversation if its response is to be stored.

    Raises ClientFault.
    """
    if asked.is_job:  # a job is read again from the service that runs it, by the numbers of its own frames
        settings = structs.replace(settings, repair=False, think_tags=False, raw_tools="off")
    continuation = client.continuation
    if continuation is None:
        return plan(client, upstream, asked, model=model, settings=settings), None
    is_same_family = client.codec.family == upstream.codec.family
    previous, given = asked.previous_id, asked
    asked = continuation.resolve_references(asked, find)
    if earlier is not None:
        asked = continuation.continue_conversation(
            earlier.read() if isinstance(earlier, PickledConversation) else earlier, asked
        )
    if asked is not given:
        settings = structs.replace(settings, repair=True)  # the client's own bytes say less
    made = plan(client, upstream, asked, model=model, settings=settings)
    if previous is not None:  # The response repeats it.
        made = structs.replace(made, original=structs.replace(asked, previous_id=previous))
    # What a service holds of this conversation is not known here, so an answer to it is not kept here either.
    if (is_same_family and not settings.repair) or asked.server_state or not continuation.may_store(asked):
        return made, None
    return made, asked


# --- what is kept


class SavedResponse(Struct, frozen=True):
    """What is kept of an answer beside the response itself."""

    id: str  # that the client was given
    blocks: tuple[Block, ...]
    items: Mapping[str, Sequence[Block]]


class _Stored(Struct, frozen=True, gc=False):
    conversation: StoredConversation
    response: bytes  # as it was sent to the client; empty if unknown
    items: Mapping[str, Sequence[Block]]
    size: int
    until: float


class ResponseStore:
    """Earlier responses by owner and id; the oldest is removed first."""

    def __init__(
        self,
        *,
        most: int = MAX_RESPONSES,
        most_bytes: int = MAX_STORED_BYTES,
        oldest: float = MAX_AGE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._most_bytes, self._oldest, self._now = most, most_bytes, oldest, now
        self._kept: OrderedDict[tuple[str, str], _Stored] = OrderedDict()
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
        said: StoredConversation,
        response: bytes = b"",
        items: Mapping[str, Sequence[Block]] = _NO_ITEMS,
    ) -> None:
        if isinstance(said, PickledConversation):
            asked = len(said.request)
        else:
            data = jsonio.encode(said)
            asked = _memory(data)
            if is_large(data, LARGE_CONVERSATION):
                said = PickledConversation(pickle.dumps(said), ())
                asked = len(said.request)
        size = _ENTRY * (1 + len(items)) + asked + len(response) + _memory(response)
        self.forget(owner, answer_id)
        if size > self._most_bytes:
            return
        self._kept[owner, answer_id] = _Stored(said, response, items, size, self._now() + self._oldest)
        self._items |= {(owner, item_id): (owner, answer_id) for item_id in items}
        self._bytes += size
        self._tidy()

    def find_conversation(self, owner: str, answer_id: str) -> StoredConversation | None:
        self._tidy()
        kept = self._kept.get((owner, answer_id))
        return None if kept is None else kept.conversation

    def response(self, owner: str, answer_id: str) -> bytes | None:
        """Return a stored response as it was sent; empty if only its conversation is stored, None if unknown."""
        self._tidy()
        kept = self._kept.get((owner, answer_id))
        return None if kept is None else kept.response

    def item(self, owner: str, item_id: str) -> Sequence[Block] | None:
        """What an output item of a kept answer says."""
        self._tidy()
        place = self._items.get((owner, item_id))
        return None if place is None else [as_earlier(block) for block in self._kept[place].items[item_id]]

    def _tidy(self) -> None:
        now = self._now()
        while self._kept:
            first = next(iter(self._kept))
            within = len(self._kept) <= self._most and self._bytes <= self._most_bytes
            if within and self._kept[first].until > now:
                return
            self.forget(*first)

    def forget(self, owner: str, answer_id: str) -> None:
        place = (owner, answer_id)
        kept = self._kept.pop(place, None)
        if kept is None:
            return
        self._bytes -= kept.size
        for item_id in kept.items:
            if self._items.get((owner, item_id)) == place:
                del self._items[owner, item_id]

    # --- for the gateway

    def plan(
        self,
        owner: Owner,
        client: Dialect,
        upstream: Dialect,
        asked: Conversation,
        *,
        model: str,
        settings: TranslationSettings,
    ) -> tuple[Plan, ResponseSaver | None]:
        """Plan a request with what it continues; give the store of its answer, if it is kept. Raises ClientFault."""
        made, said = continued_plan(
            client,
            upstream,
            asked,
            model=model,
            settings=settings,
            earlier=self.earlier(owner, asked),
            find=lambda item_id: self.item(owner, item_id),
        )
        return made, None if said is None else self.saver(owner, client, said)

    def earlier(self, owner: str, asked: Conversation) -> StoredConversation | None:
        """What the conversation continues, if it is known here."""
        return None if asked.previous_id is None else self.find_conversation(owner, asked.previous_id)

    def saver(self, owner: str, client: Dialect, asked: Conversation | bytes) -> ResponseSaver | None:
        """Where the answer to a request is kept. `asked` is the conversation, or its pickled bytes."""
        continuation = client.continuation
        return None if continuation is None else ResponseSaver(self, owner, asked, continuation)


def _memory(data: bytes) -> int:
    """Bytes that values take, from their JSON. A text that is not ASCII is there twice, once as UTF-8."""
    return (len(data) if data.isascii() else 2 * len(data)) + _VALUE * count_values(data)


# --- keeping one answer


class _Identified(Struct, gc=False):
    id: str = ""


_identified = jsonio.typed_decoder(_Identified)


def saved_response(continuation: Continuation, reply: Reply, response: bytes) -> SavedResponse:
    """What is kept of an answer, from the reply and the response as the client gets it."""
    try:
        items = continuation.parse_items(response)
    except DragomanError:  # an item that only its own service can read
        items = _NO_ITEMS
    answer_id = _identified(response).id if response else ""
    return SavedResponse(answer_id or reply.id, reply.choices[0].blocks if reply.choices else (), items)


class ResponseSaver(Struct, frozen=True):
    """Keeps the answer to one request. `asked` is the conversation, or its pickled bytes."""

    store: ResponseStore
    owner: str
    conversation: Conversation | bytes
    continuation: Continuation

    def keep(self, answer: SavedResponse, response: bytes) -> None:
        blocks, asked = answer.blocks, self.conversation
        said = PickledConversation(asked, blocks) if isinstance(asked, bytes) else whole_conversation(asked, blocks)
        self.store.keep(self.owner, answer.id, said, response, answer.items)

    def encoder(
        self, made: Plan, environment: Environment = SYSTEM_ENVIRONMENT, budget: ResponseBudget | None = None
    ) -> Encoder:
        """An encoder of the client's dialect that keeps what it writes."""
        return _KeepingEncoder(made.client.codec.encoder(made.original, environment, budget), self, budget)


class _KeepingEncoder(Encoder):
    """Assembles what the client gets and keeps it at its end. An answer over a limit is sent, and not kept."""

    def __init__(self, encoder: Encoder, store: ResponseSaver, budget: ResponseBudget | None = None) -> None:
        self._encoder, self._store = encoder, store
        self._budget = None if budget is None else budget.copy()
        self._assembly: ReplyAssembler | None = ReplyAssembler(self._budget)  # None: the answer is too large to be kept

    def ping(self) -> Payload | None:
        return self._encoder.ping()

    def passes(self, events: Events) -> bool:
        return False  # answers of the same family are kept by their own service

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
            continuation = self._store.continuation
            response = continuation.parse_final_response(payloads[-1].data) if payloads else b""
            self._store.keep(saved_response(continuation, reply, response), response)
        return payloads

    def _assemble(self, events: Events) -> None:
        try:
            if self._assembly is not None:
                for event in events:
                    self._assembly.add(event)
        except (ResponseTooLarge, Overloaded):
            self._assembly = None
            if self._budget is not None:
                self._budget.close()


# --- which upstream holds an answer, and which of its credentials made it
#
# A request that continues, reads, deletes or cancels an answer must reach the upstream that holds it: no other one
# knows its id.


MAX_HOLDERS = 10_000
_LONGEST_ID = 512  # characters: no request about an answer can have a longer one in its path


class ResponseHolder(Struct, frozen=True, gc=False):
    """The upstream that holds one answer."""

    owner: str  # who got the answer
    upstream: str
    address: str  # of the upstream: another one with the same address is the same service
    credential: str


class ResponseHolders:
    """Holders by the id of the answer.

    They are in memory only. When there are more than `most`, the oldest is removed.
    """

    def __init__(self, most: int = MAX_HOLDERS) -> None:
        self._most = most
        self._holders: OrderedDict[str, ResponseHolder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def remember(self, answer_id: str, holder: ResponseHolder) -> None:
        if not answer_id or len(answer_id) > _LONGEST_ID:
            return
        self._holders[answer_id] = holder
        self._holders.move_to_end(answer_id)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def find(self, answer_id: str) -> ResponseHolder | None:
        return self._holders.get(answer_id)
