"""The response store: earlier responses, so that a request can continue one by its id (`previous_response_id`).

Only responses of upstreams of another family are stored: an upstream of the client's family stores its responses
itself, and gets their ids. The store maps the owner (the proven key) and the response id to the conversation and the
response, in the memory of this process, bounded in number, bytes and age.

`continued_plan` plans a request together with the conversation that it continues. It is pure, and the job process
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

MAX_RESPONSES = 1000
MAX_STORED_BYTES = 64 * 1024 * 1024
MAX_AGE = 6 * 3600.0  # seconds
LARGE_CONVERSATION = 1024 * 1024  # bytes of JSON above which only the job process reads a conversation again
_ENTRY, _VALUE = 1024, 64  # bytes of an entry with its id, and of a value without its text
_NO_ITEMS: Mapping[str, Sequence[Block]] = {}
_LOCATION = "previous_response_id"


# --- the conversation that a request continues


class PickledConversation(Struct, frozen=True):
    """A large conversation as pickled bytes. Only the job process reads it, because that takes long."""

    request: bytes
    blocks: tuple[Block, ...]  # of the response

    def read(self) -> Conversation:
        """Return the conversation with the response as its last message."""
        return whole_conversation(pickle.loads(self.request), self.blocks)


StoredConversation: TypeAlias = Conversation | PickledConversation


class FoundResponses(Struct, frozen=True):
    """Earlier responses that other processes of the gateway have sent, each by its id (`shared_responses`)."""

    conversations: Mapping[str, StoredConversation] = {}
    bodies: Mapping[str, bytes] = {}  # the responses as they were sent
    items: Mapping[str, Sequence[Block]] = {}
    holders: Mapping[str, ResponseHolder] = {}
    size: int = 0  # bytes that were received


NOTHING_FOUND = FoundResponses()


def whole_conversation(request: Conversation, blocks: tuple[Block, ...]) -> Conversation:
    """Return a request and the blocks of its response as one conversation, without tools and sampling settings."""
    messages = (*request.messages, Message("assistant", blocks)) if blocks else request.messages
    return Conversation(
        request.model, tuple(map(with_earlier_place, messages)), tuple(map(with_earlier_place, request.system))
    )


def with_earlier_place(node: N) -> N:
    """Return the node of an earlier response with its place in a later request: `previous_response_id`."""
    children = {
        name: tuple(map(with_earlier_place, nodes))
        for name in ("blocks", "content")
        if (nodes := getattr(node, name, ()))
    }
    return structs.replace(node, at=Location(_LOCATION, is_absent=node.at.is_absent), **children)


def item_references(client: Dialect, request: Conversation) -> tuple[str, ...]:
    """Return the ids of items of earlier responses that a request refers to."""
    if client.continuation is None:
        return ()
    ids: dict[str, None] = {}

    def find(item_id: str) -> None:
        ids[item_id] = None

    client.continuation.resolve_references(request, find)
    return tuple(ids)


def continued_plan(
    client: Dialect,
    upstream: Dialect,
    request: Conversation,
    *,
    model: str,
    settings: TranslationSettings,
    earlier: StoredConversation | None,
    find: FindItem,
) -> tuple[Plan, Conversation | None]:
    """Return a plan that includes the continued conversation, and the conversation if its response is to be stored.

    `earlier` is the stored conversation that the request continues; `find` returns the blocks of a stored item.
    Raises ClientFault.
    """
    if request.is_job:  # The client reads a job again from its service, by the numbers of the service's own frames.
        settings = structs.replace(settings, repair=False, think_tags=False, raw_tools="off")
    continuation = client.continuation
    if continuation is None:
        return plan(client, upstream, request, model=model, settings=settings), None
    is_same_family = client.codec.family == upstream.codec.family
    previous = request.previous_id
    conversation = continuation.resolve_references(request, find)
    if earlier is not None:
        conversation = continuation.continue_conversation(
            earlier.read() if isinstance(earlier, PickledConversation) else earlier, conversation
        )
    if conversation is not request:
        settings = structs.replace(settings, repair=True)  # The client's bytes lack the earlier messages.
    fitted = plan(client, upstream, conversation, model=model, settings=settings)
    if previous is not None:  # The response repeats it.
        fitted = structs.replace(fitted, original=structs.replace(conversation, previous_id=previous))
    # A service of the same family stores the response itself; `server_state` refers to messages that only it has.
    if (
        (is_same_family and not settings.repair)
        or conversation.server_state
        or not continuation.may_store(conversation)
    ):
        return fitted, None
    return fitted, conversation


# --- stored responses


class SavedResponse(Struct, frozen=True):
    """The parts of a response that are stored with its bytes."""

    id: str  # as the client got it
    blocks: tuple[Block, ...]
    items: Mapping[str, Sequence[Block]]  # the output items by id


class _Stored(Struct, frozen=True, gc=False):
    conversation: StoredConversation
    response: bytes  # as it was sent to the client; empty if unknown
    items: Mapping[str, Sequence[Block]]
    size: int
    until: float  # when it expires


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
        self._entries: OrderedDict[tuple[str, str], _Stored] = OrderedDict()
        self._items: dict[tuple[str, str], tuple[str, str]] = {}  # (owner, item id) -> (owner, response id)
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """The approximate number of stored bytes."""
        return self._bytes

    def keep(
        self,
        owner: str,
        response_id: str,
        conversation: StoredConversation,
        response: bytes = b"",
        items: Mapping[str, Sequence[Block]] = _NO_ITEMS,
    ) -> None:
        """Store a response with its conversation, unless it alone exceeds the limit; remove the oldest if necessary.

        `response` is the body that the client got; `items` are its output items by id.
        """
        if isinstance(conversation, PickledConversation):
            conversation_size = len(conversation.request)
        else:
            data = jsonio.encode(conversation)
            conversation_size = _memory(data)
            if is_large(data, LARGE_CONVERSATION):
                conversation = PickledConversation(pickle.dumps(conversation), ())
                conversation_size = len(conversation.request)
        size = _ENTRY * (1 + len(items)) + conversation_size + len(response) + _memory(response)
        self.forget(owner, response_id)
        if size > self._most_bytes:
            return
        self._entries[owner, response_id] = _Stored(conversation, response, items, size, self._now() + self._oldest)
        self._items |= {(owner, item_id): (owner, response_id) for item_id in items}
        self._bytes += size
        self._tidy()

    def find_conversation(self, owner: str, response_id: str) -> StoredConversation | None:
        """Return the conversation up to and including a response; None if it is unknown or expired."""
        self._tidy()
        stored = self._entries.get((owner, response_id))
        return None if stored is None else stored.conversation

    def response(self, owner: str, response_id: str) -> bytes | None:
        """Return a stored response as it was sent; empty if only its conversation is stored, None if unknown."""
        self._tidy()
        stored = self._entries.get((owner, response_id))
        return None if stored is None else stored.response

    def has_item(self, owner: str, item_id: str) -> bool:
        """Return whether an output item of a stored response has this id."""
        self._tidy()
        return (owner, item_id) in self._items

    def item(self, owner: str, item_id: str, found: FoundResponses = NOTHING_FOUND) -> Sequence[Block] | None:
        """Return the blocks of an output item of a stored response; None if it is unknown."""
        self._tidy()
        place = self._items.get((owner, item_id))
        if place is None:
            return found.items.get(item_id)
        return [with_earlier_place(block) for block in self._entries[place].items[item_id]]

    def _tidy(self) -> None:
        """Remove expired responses, and the oldest ones while a limit is exceeded."""
        now = self._now()
        while self._entries:
            first = next(iter(self._entries))
            is_within_limits = len(self._entries) <= self._most and self._bytes <= self._most_bytes
            if is_within_limits and self._entries[first].until > now:
                return
            self.forget(*first)

    def forget(self, owner: str, response_id: str) -> None:
        """Remove a response if it is stored."""
        place = (owner, response_id)
        stored = self._entries.pop(place, None)
        if stored is None:
            return
        self._bytes -= stored.size
        for item_id in stored.items:
            if self._items.get((owner, item_id)) == place:
                del self._items[owner, item_id]

    # --- for the gateway

    def plan(
        self,
        owner: Owner,
        client: Dialect,
        upstream: Dialect,
        request: Conversation,
        *,
        model: str,
        settings: TranslationSettings,
        found: FoundResponses = NOTHING_FOUND,
    ) -> tuple[Plan, ResponseSaver | None]:
        """Plan a request with the conversation it continues; return a saver if its response is to be stored.

        `found` is what other processes store. Raises ClientFault.
        """
        continued, conversation = continued_plan(
            client,
            upstream,
            request,
            model=model,
            settings=settings,
            earlier=self.earlier(owner, request, found),
            find=lambda item_id: self.item(owner, item_id, found),
        )
        return continued, None if conversation is None else self.saver(owner, client, conversation)

    def earlier(
        self, owner: str, request: Conversation, found: FoundResponses = NOTHING_FOUND
    ) -> StoredConversation | None:
        """Return the stored conversation that a request continues, if any."""
        previous = request.previous_id
        if previous is None:
            return None
        return self.find_conversation(owner, previous) or found.conversations.get(previous)

    def items(
        self, owner: str, item_ids: Iterable[str], found: FoundResponses = NOTHING_FOUND
    ) -> dict[str, Sequence[Block]]:
        """Return the blocks of those items that are known, by id."""
        return {each: blocks for each in item_ids if (blocks := self.item(owner, each, found)) is not None}

    def saver(self, owner: str, client: Dialect, request: Conversation | bytes) -> ResponseSaver | None:
        """Return the saver for the response to a request; `request` may be pickled bytes."""
        continuation = client.continuation
        return None if continuation is None else ResponseSaver(self, owner, request, continuation)


def _memory(data: bytes) -> int:
    """Estimate the memory of values from their JSON. Python may keep text that is not ASCII twice, once as UTF-8."""
    return (len(data) if data.isascii() else 2 * len(data)) + _VALUE * count_values(data)


# --- saving one response


class _ResponseId(Struct, gc=False):
    id: str = ""


_decode_id = jsonio.typed_decoder(_ResponseId)


def saved_response(continuation: Continuation, reply: Reply, response: bytes) -> SavedResponse:
    """Return the parts of a response to store, from the reply and from the body that the client gets."""
    try:
        items = continuation.parse_items(response)
    except DragomanError:  # Only the service itself can read one of the items.
        items = _NO_ITEMS
    response_id = _decode_id(response).id if response else ""
    return SavedResponse(response_id or reply.id, reply.choices[0].blocks if reply.choices else (), items)


class ResponseSaver(Struct, frozen=True):
    """Stores the response to one request. `conversation` is the request, or its pickled bytes."""

    store: ResponseStore
    owner: str
    conversation: Conversation | bytes
    continuation: Continuation

    def keep(self, saved: SavedResponse, response: bytes) -> None:
        """Store the response; `response` is the body that the client got."""
        blocks, request = saved.blocks, self.conversation
        conversation: StoredConversation
        if isinstance(request, bytes):
            conversation = PickledConversation(request, blocks)
        else:
            conversation = whole_conversation(request, blocks)
        self.store.keep(self.owner, saved.id, conversation, response, saved.items)

    def encoder(
        self, plan: Plan, environment: Environment = SYSTEM_ENVIRONMENT, budget: ResponseBudget | None = None
    ) -> Encoder:
        """Return an encoder of the client's dialect that stores the response it writes."""
        return _SavingEncoder(plan.client.codec.encoder(plan.original, environment, budget), self, budget)


class _SavingEncoder(Encoder):
    """Assembles the response and stores it at its end. A response over a limit is sent, but not stored."""

    def __init__(self, encoder: Encoder, saver: ResponseSaver, budget: ResponseBudget | None = None) -> None:
        self._encoder, self._saver = encoder, saver
        self._budget = None if budget is None else budget.copy()
        self._assembly: ReplyAssembler | None = ReplyAssembler(self._budget)  # None: the response is too large

    def ping(self) -> Payload | None:
        return self._encoder.ping()

    def passes(self, events: Events) -> bool:
        return False  # A service of the same family stores its responses itself.

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
            continuation = self._saver.continuation
            response = continuation.parse_final_response(payloads[-1].data) if payloads else b""
            self._saver.keep(saved_response(continuation, reply, response), response)
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


# --- which upstream stores a response, and which of its credentials created it
#
# A request that continues, reads, deletes or cancels a response must go to the upstream that stores it: no other
# upstream knows its id.


MAX_HOLDERS = 10_000
LONGEST_ID = 512  # characters; the path of a request about a response cannot have a longer id


class ResponseHolder(Struct, frozen=True, gc=False):
    """The upstream that stores one response."""

    owner: str  # the client that got the response
    upstream: str
    address: str  # An upstream of another name with the same address is the same service.
    credential: str


class ResponseHolders:
    """Holders by response id.

    They are in memory only. When there are more than `most`, the oldest is removed.
    """

    def __init__(self, most: int = MAX_HOLDERS) -> None:
        self._most = most
        self._holders: OrderedDict[str, ResponseHolder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def remember(self, response_id: str, holder: ResponseHolder) -> None:
        """Record which upstream stores a response. A missing or very long id is ignored."""
        if not response_id or len(response_id) > LONGEST_ID:
            return
        self._holders[response_id] = holder
        self._holders.move_to_end(response_id)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def find(self, response_id: str) -> ResponseHolder | None:
        """Return the upstream that stores a response; None if it is unknown."""
        return self._holders.get(response_id)
