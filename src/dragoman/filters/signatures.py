"""Carry signatures of one model family through clients of another family, marked with their origin. Pure.

The response filter writes a foreign signature into the client's own signature field, with a mark:
`dragoman1.<family>.<kind>.<base64url>`. When the client sends it back, `CarrySignatures.forward` restores the original.
Reasoning without a signature gets an empty marked one, so that an upstream that needs its reasoning back can get it.

If the client's dialect has signatures only on reasoning, the signature of a call moves to an empty reasoning block
before the call, and the signature of a text to an empty reasoning block between the text and the next block. Such a
mark ends with a fourth part, the owner: the call's id in base64url, or nothing for a text.

See docs/decisions/signatures.md#d50.
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
_BASE64_PREFIX = base64.b64encode(_PREFIX[:9].encode()).decode()  # how a mark begins if the client's field holds base64
_NAMES = {"signature": "a signature", "redacted": "redacted reasoning", "encrypted": "encrypted reasoning"}
_SIGNABLE = (Text, Reasoning, ToolCall)
_PLAIN, _WITH_OWNER = 2, 3  # dots after the prefix

_IDLE: EventKinds = frozenset({Reasoning, ev.SignatureAdded})
_WHILE_UNSIGNED: EventKinds = _IDLE | {ev.BlockEnded}
_ALL_CONTENT: EventKinds = (
    _WHILE_UNSIGNED | BLOCK_STARTS | {ev.TextDelta, ev.ArgumentsDelta, ev.CitationAdded, ev.Stopped}
)


class MarkedSignature(Struct, frozen=True):
    """A foreign signature; `owner` is None if it belongs to its reasoning block, "" for a text, else a call's id."""

    signature: Signature
    owner: str | None = None


def mark_signature(signature: Signature, owner: str | None = None) -> str:
    """Return the marked form of a foreign signature, which names its family."""
    text = f"{_PREFIX}{signature.family}.{signature.kind}.{_encode(signature.data)}"
    return text if owner is None else f"{text}.{_encode(owner)}"


def unmark_signature(text: str) -> MarkedSignature | None:
    """Read a marked signature, in base64 or not; None if it has no mark of ours."""
    if text.startswith(_BASE64_PREFIX):
        text = _decode(text) or ""
    if not text.startswith(_PREFIX) or text.count(".") - 1 not in (_PLAIN, _WITH_OWNER):
        return None
    family, kind, *encoded = text.removeprefix(_PREFIX).split(".")
    decoded = [_decode(each) for each in encoded]
    if not family or kind not in _NAMES or decoded[0] is None or decoded[-1] is None:
        return None
    signature = Signature(family, decoded[0], kind)  # type: ignore[arg-type]
    return MarkedSignature(signature, decoded[1] if len(decoded) > 1 else None)


def _encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).decode().rstrip("=")


def _decode(text: str) -> str | None:
    decoded = text.replace("+", "-").replace("/", "_").rstrip("=")
    try:
        return base64.b64decode(decoded + "=" * (-len(decoded) % 4), b"-_", validate=True).decode(
            "utf-8", "surrogatepass"
        )
    except (binascii.Error, ValueError):
        return None


class CarrySignatures(Filter):
    """Mark foreign signatures in the reply, and restore those that the client sends back."""

    name = "carry_signatures"
    applies_to: Features = frozenset({"signatures"})

    def __init__(self, client: Capabilities, client_family: str, upstream: Capabilities) -> None:
        moves_to_reasoning = "signed_content" in upstream.traits and "signed_content" not in client.traits
        maker = _MoveToReasoning if moves_to_reasoning else _MarkSignatures
        self.make_response_filter = partial(maker, client, client_family)

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        restore = _RestoreSignatures(notes)
        messages = tuple(map(restore.message, conversation.messages))
        restore.end()
        if all(map(is_, messages, conversation.messages)):
            return conversation, None
        return structs.replace(conversation, messages=messages), None


def _has_signature(message: Message) -> bool:
    for block in message.blocks:  # noqa: SIM110  # a generator for each message would be slower
        if isinstance(block, _SIGNABLE) and block.signature is not None:
            return True
    return False


class _RestoreSignatures:
    """Restores marked signatures to the blocks they belong to."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        # By the id of the call that follows: its signature, and the place where the signature was.
        self._pending: dict[str, tuple[Signature, str]] = {}

    def message(self, message: Message) -> Message:
        if not self._pending and not _has_signature(message):
            return message
        blocks: list[Block] = []
        for block in message.blocks:
            self._block(block, blocks)
        return message if tuple(blocks) == message.blocks else structs.replace(message, blocks=tuple(blocks))

    def end(self) -> None:
        for signature, at in self._pending.values():
            self._notes.dropped(
                "signature.no_call",
                at,
                f"the call that {_NAMES[signature.kind]} of {signature.family} belongs to is missing",
            )

    def _block(self, block: Block, blocks: list[Block]) -> None:
        signature: Signature | None = getattr(block, "signature", None)
        unmarked = unmark_signature(signature.data) if signature is not None else None
        if isinstance(block, ToolCall) and block.id in self._pending:
            blocks.append(structs.replace(block, signature=self._pending.pop(block.id)[0]))
        elif unmarked is None:
            blocks.append(block)
        elif isinstance(block, Reasoning) and unmarked.owner is not None:
            if block.text:
                blocks.append(structs.replace(block, signature=None))
            self._attach(unmarked.signature, unmarked.owner, block.at.path, blocks)
        elif isinstance(block, Reasoning):
            own = unmarked.signature if unmarked.signature.data else None
            blocks.append(structs.replace(block, family=unmarked.signature.family, signature=own))
        else:
            blocks.append(structs.replace(block, signature=unmarked.signature))

    def _attach(self, signature: Signature, owner: str, at: str, blocks: list[Block]) -> None:
        if owner:
            self._pending[owner] = (signature, at)
        elif blocks and isinstance(text := blocks[-1], Text) and text.signature is None:
            blocks[-1] = structs.replace(text, signature=signature)
        else:
            blocks.append(Text("", signature=signature))


class _MarkSignatures(Struct, ResponseFilter, eq=False):
    """Marks foreign signatures for a client."""

    _client: Capabilities
    _family: str
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _IDLE
    _unsigned: dict[int, str] = {}  # open foreign reasoning without a signature so far -> its family
    _reasoning: dict[int, bool] = {}  # a set of keys; an empty dict is smaller than an empty set

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        marked = tuple(self._mark(event))
        self.reads = _WHILE_UNSIGNED if self._unsigned else _IDLE
        return marked

    def _mark(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.BlockStarted(key, Reasoning(family=family)):
                self._reasoning[key] = True
                if self._is_foreign(family):
                    self._unsigned[key] = family
                yield event
            case ev.SignatureAdded(key, signature) if self._is_foreign(signature.family) or not self._has_slot(key):
                yield from self._signature_added(key, signature)
            case ev.SignatureAdded(key):
                self._unsigned.pop(key, None)
                yield event
            case ev.BlockEnded(key) if key in self._unsigned:
                family = self._unsigned.pop(key)
                if "signature_slot" in self._client.traits:
                    yield self._marked(key, Signature(family, ""))
                yield event
            case _:
                yield event

    def _is_foreign(self, family: str) -> bool:
        return bool(family) and family != self._family and family not in self._client.signatures

    def _has_slot(self, key: int) -> bool:
        return key in self._reasoning or "signed_content" in self._client.traits

    def _marked(self, key: int, signature: Signature, owner: str | None = None) -> ev.SignatureAdded:
        text = mark_signature(signature, owner)
        if "signature_bytes" in self._client.traits:
            text = base64.b64encode(text.encode()).decode()
        return ev.SignatureAdded(key, Signature(self._family, text))

    def _signature_added(self, key: int, signature: Signature) -> Iterable[ev.Event]:
        slot = key in self._unsigned if key in self._reasoning else "signed_content" in self._client.traits
        if "signature_slot" in self._client.traits and slot:
            self._unsigned.pop(key, None)
            yield self._marked(key, signature)
        else:
            self._drop(signature)

    def _drop(self, signature: Signature) -> None:
        self._notes.dropped(
            "signature.no_place",
            "",
            f"the client's dialect has no field for {_NAMES[signature.kind]} of {signature.family}",
        )


class _MoveToReasoning(_MarkSignatures, eq=False):
    """Moves signatures of texts and calls to reasoning blocks, for a client with signatures only on reasoning.

    A call is buffered until its end, since its signature must come before it. The signature of a text, which streams,
    comes before the next block. Without a next block it is dropped: clients do not expect a reply to end with
    reasoning. An empty text that only has a signature is left out.
    """

    reads: EventKinds | None = _ALL_CONTENT
    _buffered: dict[int, list[ev.Event]] = {}  # events of calls, and of texts that are still empty
    _texts: dict[int, ev.BlockStarted] = {}
    _waiting: dict[int, list[Signature]] = {}  # of texts, by choice

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        return None if key in self._buffered else NO_WATCH

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        return self._mark(event)

    def _mark(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.BlockStarted(key, ToolCall()):
                self._buffered[key] = [event]
            case ev.BlockStarted(key, Text(text="")):
                self._buffered[key] = [event]
                self._texts[key] = event
            case ev.TextDelta(key) | ev.CitationAdded(key) if key in self._texts:
                yield from (*self._begin(key), event)
            case ev.SignatureAdded(key, signature) if key in self._texts:
                self._keys.budget.reserve(ev.text_size(signature.data))
                self._waiting.setdefault(self._texts[key].choice, []).append(signature)
            case ev.SignatureAdded(key) | ev.ArgumentsDelta(key) if key in self._buffered:
                self._keys.budget.reserve(ev.event_size(event))
                self._buffered[key].append(event)
            case ev.BlockEnded(key) if key in self._texts:
                yield from self._text_ended(key, event)
            case ev.BlockEnded(key) if key in self._buffered:
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
        """Send the start of a text, once it has content."""
        if self._buffered.pop(key, None):
            yield from (*self._before(self._texts[key].choice), self._texts[key])

    def _text_ended(self, key: int, end: ev.BlockEnded) -> Iterable[ev.Event]:
        text = self._texts[key]
        if key not in self._buffered or not self._waiting.get(text.choice):
            yield from (*self._begin(key), end)
        self._buffered.pop(key, None)
        del self._texts[key]

    def _call_ended(self, key: int, end: ev.BlockEnded) -> Iterable[ev.Event]:
        start, *rest = self._buffered.pop(key)
        self._keys.budget.release(sum(map(ev.event_size, rest)))
        assert isinstance(start, ev.BlockStarted) and isinstance(start.block, ToolCall)
        yield from self._before(start.choice)
        for event in rest:
            if isinstance(event, ev.SignatureAdded):
                yield from self._carrier(event.signature, start.block.id, start.choice)
        yield from (start, *(event for event in rest if not isinstance(event, ev.SignatureAdded)), end)

    def _before(self, choice: int) -> Iterable[ev.Event]:
        """Yield the signatures of texts that wait for a next block."""
        for signature in self._waiting.pop(choice, ()):
            yield from self._carrier(signature, "", choice)

    def _carrier(self, signature: Signature, owner: str, choice: int) -> Iterable[ev.Event]:
        if "signature_slot" not in self._client.traits:
            self._drop(signature)
            return
        key = self._keys.fresh()
        yield ev.BlockStarted(key, Reasoning("", self._family), choice)
        yield self._marked(key, signature, owner)
        yield ev.BlockEnded(key)
