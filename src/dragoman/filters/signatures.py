"""carry_signatures: a seal travels through a client of another family, marked, and comes home unmarked.
The mark is `dragoman1.<family>.<kind>.<base64url>` in the client's own slot. Reasoning that has no seal gets an empty
one, so that an upstream which wants its reasoning back can have it. Where only reasoning has a slot, the seal of a call
rides on an empty thought before it, and that of a text on one between it and what comes next; the mark then ends with
whom it belongs to: the call's id, also in base64url, or nothing for a text.

See docs/decisions/seals.md#d50.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from functools import partial
from operator import is_

from msgspec import Struct, structs

from dragoman.model import events as ev
from dragoman.model.blocks import Block, Reasoning, Signature, Text, ToolCall
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import (
    BLOCK_STARTS,
    NO_WATCH,
    EventKinds,
    Facts,
    Features,
    Filter,
    LaneWatch,
    MakeResponseFilter,
    Notes,
    ResponseFilter,
)

_PREFIX = "dragoman1."
_CODED_PREFIX = base64.b64encode(_PREFIX[:9].encode()).decode()  # how a mark begins that is bytes in base64
_KINDS = {"signature", "redacted", "encrypted"}
_SEALED = (Text, Reasoning, ToolCall)
_PLAIN, _RIDING = 2, 3  # dots behind the prefix

_IDLE: EventKinds = frozenset({Reasoning, ev.SignatureAdded})
_UNSEALED: EventKinds = _IDLE | {ev.BlockEnded}
_OF_WORDS: EventKinds = _UNSEALED | BLOCK_STARTS | {ev.TextDelta, ev.ArgumentsDelta, ev.CitationAdded, ev.Stopped}


class MarkedSignature(Struct, frozen=True):
    """A foreign seal; `owner` is None for that of the reasoning it stands on, "" for a text's, else a call's id."""

    signature: Signature
    owner: str | None = None


def mark_signature(signature: Signature, owner: str | None = None) -> str:
    """Write a foreign seal so that its own family can be told again."""
    text = f"{_PREFIX}{signature.family}.{signature.kind}.{_coded(signature.data)}"
    return text if owner is None else f"{text}.{_coded(owner)}"


def unmark_signature(text: str) -> MarkedSignature | None:
    """Read a marked seal, in base64 or not; None if it is not marked by us."""
    if text.startswith(_CODED_PREFIX):
        text = _decoded(text) or ""
    if not text.startswith(_PREFIX) or text.count(".") - 1 not in (_PLAIN, _RIDING):
        return None
    family, kind, *coded = text.removeprefix(_PREFIX).split(".")
    plain = [_decoded(each) for each in coded]
    if not family or kind not in _KINDS or plain[0] is None or plain[-1] is None:
        return None
    signature = Signature(family, plain[0], kind)  # type: ignore[arg-type]
    return MarkedSignature(signature, plain[1] if len(plain) > 1 else None)


def _coded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _decoded(text: str) -> str | None:
    plain = text.replace("+", "-").replace("/", "_").rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), b"-_", validate=True).decode("utf-8", "surrogatepass")
    except (binascii.Error, ValueError):
        return None


class CarrySignatures(Filter):
    name = "carry_signatures"
    applies_to: Features = frozenset({"signatures"})

    def __init__(self, client: Capabilities, client_family: str, upstream: Capabilities) -> None:
        rides = "signed_content" in upstream.traits and "signed_content" not in client.traits
        self.answers = partial(_Riding if rides else _Marks, client, client_family)

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        home = _Home(notes)
        messages = tuple(map(home.message, conversation.messages))
        home.end()
        if all(map(is_, messages, conversation.messages)):
            return conversation, None
        return structs.replace(conversation, messages=messages), None


def _has_seal(message: Message) -> bool:
    for block in message.blocks:  # noqa: SIM110  # a generator for each message would cost more than the rest
        if isinstance(block, _SEALED) and block.signature is not None:
            return True
    return False


class _Home:
    """Gives seals back to whom they belong."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._riding: dict[
            str, tuple[Signature, str]
        ] = {}  # by the id of the call that is to come; where the seal stood

    def message(self, message: Message) -> Message:
        if not self._riding and not _has_seal(message):
            return message
        blocks: list[Block] = []
        for block in message.blocks:
            self._block(block, blocks)
        return message if tuple(blocks) == message.blocks else structs.replace(message, blocks=tuple(blocks))

    def end(self) -> None:
        for signature, at in self._riding.values():
            self._notes.dropped(
                "seal.no_call", at, f"a {signature.kind} of {signature.family} came without the call it is of"
            )

    def _block(self, block: Block, blocks: list[Block]) -> None:
        signature: Signature | None = getattr(block, "signature", None)
        found = unmark_signature(signature.data) if signature is not None else None
        if isinstance(block, ToolCall) and block.id in self._riding:
            blocks.append(structs.replace(block, signature=self._riding.pop(block.id)[0]))
        elif found is None:
            blocks.append(block)
        elif isinstance(block, Reasoning) and found.owner is not None:
            if block.text:
                blocks.append(structs.replace(block, signature=None))
            self._ride(found.signature, found.owner, block.at.path, blocks)
        elif isinstance(block, Reasoning):
            own = found.signature if found.signature.data else None
            blocks.append(structs.replace(block, family=found.signature.family, signature=own))
        else:
            blocks.append(structs.replace(block, signature=found.signature))

    def _ride(self, signature: Signature, owner: str, at: str, blocks: list[Block]) -> None:
        if owner:
            self._riding[owner] = (signature, at)
        elif blocks and isinstance(text := blocks[-1], Text) and text.signature is None:
            blocks[-1] = structs.replace(text, signature=signature)
        else:
            blocks.append(Text("", signature=signature))


class _Marks(Struct, ResponseFilter, eq=False):
    _client: Capabilities
    _family: str
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _IDLE
    _unsealed: dict[int, str] = {}  # open foreign reasoning without a seal yet -> its family
    _thoughts: dict[int, bool] = {}  # a set of keys, small while it is empty

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        marked = tuple(self._mark(event))
        self.reads = _UNSEALED if self._unsealed else _IDLE
        return marked

    def _mark(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.BlockStarted(key, Reasoning(family=family)):
                self._thoughts[key] = True
                if self._foreign(family):
                    self._unsealed[key] = family
                yield event
            case ev.SignatureAdded(key, signature) if self._foreign(signature.family) or not self._holds(key):
                yield from self._sealed(key, signature)
            case ev.SignatureAdded(key):
                self._unsealed.pop(key, None)
                yield event
            case ev.BlockEnded(key) if key in self._unsealed:
                family = self._unsealed.pop(key)
                if "signature_slot" in self._client.traits:
                    yield self._marked(key, Signature(family, ""))
                yield event
            case _:
                yield event

    def _foreign(self, family: str) -> bool:
        return bool(family) and family != self._family and family not in self._client.signatures

    def _holds(self, key: int) -> bool:
        return key in self._thoughts or "signed_content" in self._client.traits

    def _marked(self, key: int, signature: Signature, owner: str | None = None) -> ev.SignatureAdded:
        text = mark_signature(signature, owner)
        if "signature_bytes" in self._client.traits:
            text = base64.b64encode(text.encode()).decode()
        return ev.SignatureAdded(key, Signature(self._family, text))

    def _sealed(self, key: int, signature: Signature) -> Iterable[ev.Event]:
        slot = key in self._unsealed if key in self._thoughts else "signed_content" in self._client.traits
        if "signature_slot" in self._client.traits and slot:
            self._unsealed.pop(key, None)
            yield self._marked(key, signature)
        else:
            self._drop(signature)

    def _drop(self, signature: Signature) -> None:
        self._notes.dropped(
            "seal.no_place", "", f"a {signature.kind} of {signature.family} has no place in the client's dialect"
        )


class _Riding(_Marks, eq=False):
    """Seals of texts and calls for a client whose reasoning alone has a slot.

    A call waits for its end, since its seal must stand before it. That of a text, which streams, stands before what
    comes next; if nothing does it has no place, for no client expects an answer to end with a thought. An empty text
    that only carries a seal is left out.
    """

    reads: EventKinds | None = _OF_WORDS
    _held: dict[int, list[ev.Event]] = {}  # of calls, and of texts that have said nothing yet
    _texts: dict[int, ev.BlockStarted] = {}
    _waiting: dict[int, list[Signature]] = {}  # of texts, by choice

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        return None if key in self._held else NO_WATCH

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        return self._mark(event)

    def _mark(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.BlockStarted(key, ToolCall()):
                self._held[key] = [event]
            case ev.BlockStarted(key, Text(text="")):
                self._held[key] = [event]
                self._texts[key] = event
            case ev.TextDelta(key) | ev.CitationAdded(key) if key in self._texts:
                yield from (*self._begin(key), event)
            case ev.SignatureAdded(key, signature) if key in self._texts:
                self._keys.budget.reserve(ev.text_size(signature.data))
                self._waiting.setdefault(self._texts[key].choice, []).append(signature)
            case ev.SignatureAdded(key) | ev.ArgumentsDelta(key) if key in self._held:
                self._keys.budget.reserve(ev.event_size(event))
                self._held[key].append(event)
            case ev.BlockEnded(key) if key in self._texts:
                yield from self._text_ended(key, event)
            case ev.BlockEnded(key) if key in self._held:
                yield from self._call_ended(key, event)
            case ev.Stopped(choice=choice):
                for signature in self._waiting.pop(choice, ()):
                    self._drop(signature)
                yield event
            case ev.BlockStarted(choice=choice):
                yield from (*self._before(choice), *super()._mark(event))
            case _:
                yield from super()._mark(event)

    def _begin(self, key: int) -> Iterable[ev.Event]:
        """Let a text begin, once there is something of it."""
        if self._held.pop(key, None):
            yield from (*self._before(self._texts[key].choice), self._texts[key])

    def _text_ended(self, key: int, end: ev.BlockEnded) -> Iterable[ev.Event]:
        text = self._texts[key]
        if key not in self._held or not self._waiting.get(text.choice):
            yield from (*self._begin(key), end)
        self._held.pop(key, None)
        del self._texts[key]

    def _call_ended(self, key: int, end: ev.BlockEnded) -> Iterable[ev.Event]:
        start, *rest = self._held.pop(key)
        self._keys.budget.release(sum(map(ev.event_size, rest)))
        assert isinstance(start, ev.BlockStarted) and isinstance(start.block, ToolCall)
        yield from self._before(start.choice)
        for event in rest:
            if isinstance(event, ev.SignatureAdded):
                yield from self._rider(event.signature, start.block.id, start.choice)
        yield from (start, *(event for event in rest if not isinstance(event, ev.SignatureAdded)), end)

    def _before(self, choice: int) -> Iterable[ev.Event]:
        """The seals of texts that wait for something to come after them."""
        for signature in self._waiting.pop(choice, ()):
            yield from self._rider(signature, "", choice)

    def _rider(self, signature: Signature, owner: str, choice: int) -> Iterable[ev.Event]:
        if "signature_slot" not in self._client.traits:
            self._drop(signature)
            return
        key = self._keys.fresh()
        yield ev.BlockStarted(key, Reasoning("", self._family), choice)
        yield self._marked(key, signature, owner)
        yield ev.BlockEnded(key)
