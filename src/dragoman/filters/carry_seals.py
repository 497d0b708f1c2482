"""carry_seals: a seal travels through a client of another family, marked, and comes home unmarked (D50).

The mark is `dragoman1.<family>.<kind>.<base64url>` in the client's own slot. Reasoning that has no seal gets an empty
one, so that an upstream which wants its reasoning back can have it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from msgspec import structs

from dragoman.model.blocks import Block, Reasoning, Seal
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message
from dragoman.model.events import BlockEnded, BlockStarted, Event, Events, Sealed
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Notes

_PREFIX = "dragoman1."
_KINDS = {"signature", "redacted", "encrypted"}


def mark(seal: Seal) -> str:
    """Write a foreign seal so that its own family can be told again."""
    data = base64.urlsafe_b64encode(seal.data.encode("utf-8", "surrogatepass")).decode().rstrip("=")
    return f"{_PREFIX}{seal.family}.{seal.kind}.{data}"


def unmark(text: str) -> Seal | None:
    """Read a marked seal; None if it is not marked by us."""
    prefix, _, rest = text.partition(".")
    family, kind, data = (*rest.split("."), "", "", "")[:3]
    if f"{prefix}." != _PREFIX or not family or kind not in _KINDS or rest.count(".") != 2:
        return None
    try:
        plain = base64.b64decode(data + "=" * (-len(data) % 4), b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return None
    return Seal(family, plain, kind)  # type: ignore[arg-type]


class CarrySeals:
    name = "carry_seals"

    def __init__(self, client: Capabilities, client_family: str, upstream: Capabilities) -> None:
        self._client = client
        self._family = client_family

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        messages = tuple(map(_unmarked, conversation.messages))
        if any(one is not other for one, other in zip(messages, conversation.messages, strict=True)):
            conversation = structs.replace(conversation, messages=messages)
        return conversation, lambda notes: _Marks(self._client, self._family, notes)


def _unmarked(message: Message) -> Message:
    if not any(isinstance(block, Reasoning) and block.seal is not None for block in message.blocks):
        return message
    blocks = tuple(map(_unmarked_block, message.blocks))
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _unmarked_block(block: Block) -> Block:
    if not isinstance(block, Reasoning) or block.seal is None:
        return block
    seal = unmark(block.seal.data)
    if seal is None:
        return block
    return structs.replace(block, family=seal.family, seal=seal if seal.data else None)


class _Marks:
    reads = frozenset({BlockStarted, Sealed, BlockEnded})

    def __init__(self, client: Capabilities, family: str, notes: Notes) -> None:
        self._client = client
        self._family = family
        self._notes = notes
        self._unsealed: dict[int, str] = {}  # open foreign reasoning without a seal yet -> its family
        self._thoughts: set[int] = set()

    def feed(self, events: Events) -> Events:
        marked = tuple(out for event in events for out in self._mark(event))
        return events if marked == events else marked

    def _mark(self, event: Event) -> Iterable[Event]:
        match event:
            case BlockStarted(key, Reasoning(family=family)):
                self._thoughts.add(key)
                if self._foreign(family):
                    self._unsealed[key] = family
                yield event
            case Sealed(key, seal) if self._foreign(seal.family) or not self._holds(key):
                yield from self._sealed(key, seal)
            case Sealed(key):
                self._unsealed.pop(key, None)
                yield event
            case BlockEnded(key) if key in self._unsealed:
                family = self._unsealed.pop(key)
                if self._client.seal_slot:
                    yield Sealed(key, Seal(self._family, mark(Seal(family, ""))))
                yield event
            case _:
                yield event

    def _foreign(self, family: str) -> bool:
        return bool(family) and family != self._family and family not in self._client.seals

    def _holds(self, key: int) -> bool:
        return key in self._thoughts or self._client.sealed_words

    def _sealed(self, key: int, seal: Seal) -> Iterable[Event]:
        if self._client.seal_slot and key in self._unsealed:
            del self._unsealed[key]
            yield Sealed(key, Seal(self._family, mark(seal)))
        else:
            self._notes.dropped(
                "seal.no_place", "", f"a {seal.kind} of {seal.family} has no place in the client's dialect"
            )
