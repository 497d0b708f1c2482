"""Media as the service takes it: formats that it knows, S3 but no other addresses, documents with names and company."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import structs

from dragoman.dialects.bedrock.nodes import FORMATS, S3
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Media, Opaque, Text, ToolResult
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes
from dragoman.model.parts import missing_media_line

_ALIASES = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/x-png": "image/png",
    "application/x-pdf": "application/pdf",
    "text/x-markdown": "text/markdown",
    "application/csv": "text/csv",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
}
LONGEST_NAME = 200
_FILLER = "."


class FitMedia(Filter):
    """What the service cannot take is refused in the last user turn and replaced by a line of text before it (D9)."""

    name = "bedrock.fit_media"
    concerns: Features = frozenset({"media"})
    before = "pair_tools"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        last = max((i for i, message in enumerate(conversation.messages) if message.role == "user"), default=-1)
        messages = tuple(
            _each_block(message, lambda block, index=index: _fitted(block, index == last, notes))  # type: ignore[misc]
            for index, message in enumerate(conversation.messages)
        )
        return (conversation if len(notes) == before else structs.replace(conversation, messages=messages)), None


def _each_block(message: Message, fit: Callable[[Block], Block | None]) -> Message:
    blocks = tuple(kept for block in message.blocks if (kept := fit(block)) is not None)
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _fitted(block: Block, last: bool, notes: Notes) -> Block | None:
    if isinstance(block, Media):
        return _media(block, last, notes)
    if isinstance(block, ToolResult) and any(isinstance(part, Media) for part in block.content):
        content = tuple(kept for part in block.content if (kept := _part(part, notes)) is not None)
        return block if content == block.content else structs.replace(block, content=content)
    return block


def _part(part: Text | Media | Opaque, notes: Notes) -> Text | Media | Opaque | None:
    """A part of a result: what a tool gave is never refused."""
    return _media(part, False, notes) if isinstance(part, Media) else part


def _media(media: Media, last: bool, notes: Notes) -> Media | Text | None:
    media = _known_type(media, notes)
    if media.how == "text" and not media.data.strip():
        notes.changed("bedrock.media.blank", media.at.path, "a document without content was left out")
        return None
    if media.how == "url" and not media.data.startswith(S3):
        return _left_out(media, f"{media.kind} by an address other than {S3}", last, notes)
    if media.mime not in FORMATS[media.kind] or not media.data:
        return _left_out(media, f"{media.kind} of type {media.mime or 'unknown'}", last, notes)
    return media


def _known_type(media: Media, notes: Notes) -> Media:
    said = media.mime.partition(";")[0].strip().lower()
    mime = _ALIASES.get(said, said)
    if media.how == "text" and mime not in FORMATS["document"]:
        mime = "text/plain"
    if mime == media.mime or mime not in FORMATS[media.kind]:
        return media
    notes.changed("bedrock.media.type", media.at.path, f"{media.mime or 'no type'} is sent as {mime}")
    return structs.replace(media, mime=mime)


def _left_out(media: Media, what: str, last: bool, notes: Notes) -> Text:
    if last:
        raise Unrepresentable(f"the service takes no {what}", at=media.at.path)
    notes.dropped("media.replaced", media.at.path, f"the service takes no {what}; a line of text stands for it")
    return Text(missing_media_line(media), cache=media.cache, at=media.at)


class NameDocuments(Filter):
    """Every document has a name that the service allows and that no other has."""

    name = "bedrock.name_documents"
    concerns: Features = frozenset({"media"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        taken: set[str] = set()
        messages = tuple(
            _each_block(message, lambda block: _named(block, taken, notes)) for message in conversation.messages
        )
        return (conversation if len(notes) == before else structs.replace(conversation, messages=messages)), None


def _named(block: Block, taken: set[str], notes: Notes) -> Block:
    if isinstance(block, ToolResult):
        content = tuple(_named(part, taken, notes) for part in block.content)
        return block if content == block.content else structs.replace(block, content=content)
    if not isinstance(block, Media) or block.kind != "document":
        return block
    name = _unique(clean_name(block.name), taken)
    taken.add(name)
    if name == block.name:
        return block
    notes.renamed("bedrock.document.name", block.at.path, f"the document {block.name!r} is sent as {name!r}")
    return structs.replace(block, name=name)


def clean_name(name: str) -> str:
    """The name with only letters, digits, single spaces and - ( ) [ ] _ in it."""
    plain = re.sub(r"[^a-zA-Z0-9 ()\[\]_-]", "-", re.sub(r"\s+", " ", name)).strip()
    return plain[:LONGEST_NAME].rstrip() or "document"


def _unique(name: str, taken: set[str]) -> str:
    number, unique = 1, name
    while unique in taken:
        number += 1
        suffix = f" ({number})"
        unique = name[: LONGEST_NAME - len(suffix)].rstrip() + suffix
    return unique


class AccompanyDocuments(Filter):
    """A message that holds a document holds text as well."""

    name = "bedrock.accompany_documents"
    concerns: Features = frozenset({"media"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        messages = tuple(_accompanied(message, notes) for message in conversation.messages)
        return (conversation if len(notes) == before else structs.replace(conversation, messages=messages)), None


def _accompanied(message: Message, notes: Notes) -> Message:
    documents = any(isinstance(block, Media) and block.kind == "document" for block in message.blocks)
    if not documents or any(isinstance(block, Text) for block in message.blocks):
        return message
    notes.added("bedrock.document.text", message.at.path, f"a document needs a text beside it; {_FILLER!r} is sent")
    return structs.replace(message, blocks=(*message.blocks, Text(_FILLER, at=message.at)))
