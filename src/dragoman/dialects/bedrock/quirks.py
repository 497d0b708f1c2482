"""Filters that only this dialect needs; the codec returns them from `quirks`. Pure.

A filter's `before` names the shared filter that must run after it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import TypeVar

from msgspec import structs

from dragoman.dialects.bedrock.blocks import json_of_part
from dragoman.dialects.bedrock.nodes import AS_JSON, EXTRAS, FORMATS, S3, Vendor
from dragoman.dialects.kit.values import NO_PARAMETERS, with_object_schema
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, CacheBreakpoint, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, MessageFilter, Notes
from dragoman.model.parts import missing_media_line

# --- media: the service reads some formats, only S3 addresses, and documents that have a name and a text

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


class FitBedrockMedia(Filter):
    """Refuses unsupported media in the last user turn, and replaces it by a line of text in earlier turns.

    See docs/decisions/content.md#d9.
    """

    name = "bedrock.fit_media"
    applies_to: Features = frozenset({"media"})
    before = "pair_tools"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        last = max((i for i, message in enumerate(conversation.messages) if message.role == "user"), default=-1)
        return _each_media(conversation, notes, lambda media, turn: _media(media, turn == last, notes)), None


def _each_media(
    conversation: Conversation, notes: Notes, fit: Callable[[Media, int | None], Media | Text | None]
) -> Conversation:
    """Replace each media block by what `fit` returns for it; None removes it.

    `fit` also gets the index of the message, or None for media in a tool result.
    """
    before = len(notes)

    def fit_blocks(block: Block, turn: int | None) -> Iterator[Block]:
        if isinstance(block, ToolResult) and any(isinstance(part, Media) for part in block.content):
            yield structs.replace(
                block, content=tuple(each for part in block.content for each in fit_blocks(part, None))
            )
        elif not isinstance(block, Media):
            yield block
        elif (replacement := fit(block, turn)) is not None:
            yield replacement

    messages = tuple(
        structs.replace(message, blocks=tuple(each for block in message.blocks for each in fit_blocks(block, turn)))
        for turn, message in enumerate(conversation.messages)
    )
    return conversation if len(notes) == before else structs.replace(conversation, messages=messages)


def _media(media: Media, last: bool, notes: Notes) -> Media | Text | None:
    media = _known_type(media, notes)
    if media.form == "text" and not media.data.strip():
        notes.changed("bedrock.media.blank", media.at.path, "removed a document without content")
        return None
    if media.form == "url" and not media.data.startswith(S3):
        return _replaced(media, f"{media.kind} by an address other than {S3}", last, notes)
    if media.mime not in FORMATS[media.kind] or not media.data:
        return _replaced(media, f"{media.kind} of type {media.mime or 'unknown'}", last, notes)
    return media


def _known_type(media: Media, notes: Notes) -> Media:
    """Return the media with the usual name of its type, if the service knows that type."""
    bare_type = media.mime.partition(";")[0].strip().lower()
    mime = _ALIASES.get(bare_type, bare_type)
    if media.form == "text" and mime not in FORMATS["document"]:
        mime = "text/plain"
    if mime == media.mime or mime not in FORMATS[media.kind]:
        return media
    notes.changed("bedrock.media.type", media.at.path, f"{media.mime or 'no type'} is sent as {mime}")
    return structs.replace(media, mime=mime)


def _replaced(media: Media, what: str, last: bool, notes: Notes) -> Text:
    """Return a line of text for media of an earlier turn. Raises Unrepresentable in the last turn."""
    if last:
        raise Unrepresentable(f"Bedrock does not accept {what}", at=media.at.path)
    notes.dropped("media.replaced", media.at.path, f"Bedrock does not accept {what}; a line of text replaces it")
    return Text(missing_media_line(media), cache=media.cache, at=media.at)


class NameDocuments(Filter):
    """Gives every document a unique name that the service accepts."""

    name = "bedrock.name_documents"
    applies_to: Features = frozenset({"media"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        used_names: set[str] = set()
        return _each_media(conversation, notes, lambda media, _: _named(media, used_names, notes)), None


def _named(media: Media, used_names: set[str], notes: Notes) -> Media:
    if media.kind != "document":
        return media
    # Only letters, digits, single spaces and - ( ) [ ] _ are allowed.
    clean = re.sub(r"[^a-zA-Z0-9 ()\[\]_-]", "-", re.sub(r"\s+", " ", media.name)).strip()
    clean = clean[:LONGEST_NAME].rstrip() or "document"
    number, name = 1, clean
    while name in used_names:
        number += 1
        suffix = f" ({number})"
        name = clean[: LONGEST_NAME - len(suffix)].rstrip() + suffix
    used_names.add(name)
    if name == media.name:
        return media
    notes.renamed("bedrock.document.name", media.at.path, f"the document {media.name!r} is sent as {name!r}")
    return structs.replace(media, name=name)


class AddTextToDocuments(MessageFilter):
    """Adds a text to a message that has a document and no text."""

    name = "bedrock.accompany_documents"
    applies_to: Features = frozenset({"media"})

    def message(self, message: Message, notes: Notes) -> Message:
        documents = any(isinstance(block, Media) and block.kind == "document" for block in message.blocks)
        if not documents or any(isinstance(block, Text) for block in message.blocks):
            return message
        notes.added(
            "bedrock.document.text", message.at.path, f"a document needs a text in its message; added {_FILLER!r}"
        )
        return structs.replace(message, blocks=(*message.blocks, Text(_FILLER, at=message.at)))


# --- cache points, the user id and the output schema

MAX_USER_LENGTH = 256
_ILLEGAL_IN_USER = re.compile(r"[^a-zA-Z0-9\s:_@$#=/+,.-]")
N = TypeVar("N", ToolSpec | Opaque, Text, Block)


class FitCachePoints(Filter):
    """Moves or drops cache points that the service refuses, in the order tools, system, messages.

    The service refuses a cache point inside a tool result, one after a document other than PDF, one of 1h after one
    of 5m, and, for some models, one among the tools.
    """

    name = "bedrock.settle_cache"
    applies_to: Features = frozenset({"marks"})

    def __init__(self, tools: bool) -> None:
        self._tools = tools  # whether the model accepts cache points among its tools

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        walk = _Walk(notes)
        tools = tuple(walk.node(tool) if self._tools else walk.without(tool) for tool in conversation.tools)
        system = tuple(map(walk.node, conversation.system))
        messages = tuple(
            structs.replace(message, blocks=tuple(map(walk.block, message.blocks))) for message in conversation.messages
        )
        if len(notes) == before:
            return conversation, None
        return structs.replace(conversation, tools=tools, system=system, messages=messages), None


class _Walk:
    """Visits the nodes of a conversation in order, and records each change as a note."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._has_short = False  # whether a cache point of 5m came before

    def without(self, tool: ToolSpec | Opaque) -> ToolSpec | Opaque:
        if tool.cache is None:
            return tool
        self._notes.dropped("bedrock.cache.tools", tool.at.path, "the model accepts no cache point among its tools")
        return structs.replace(tool, cache=None)

    def block(self, block: Block) -> Block:
        if isinstance(block, Reasoning):
            return block
        if isinstance(block, ToolResult):
            block = self._result(block)
        if isinstance(block, Media) and block.cache and block.kind == "document" and block.mime != "application/pdf":
            self._notes.dropped(
                "bedrock.cache.document",
                block.at.path,
                "the service accepts no cache point after a document other than PDF",
            )
            return structs.replace(block, cache=None)
        return self.node(block)

    def _result(self, result: ToolResult) -> ToolResult:
        marks = [part.cache for part in result.content if part.cache is not None]
        if not marks:
            return result
        self._notes.changed(
            "bedrock.cache.moved", result.at.path, "moved a cache point from inside a tool result to after it"
        )
        content = tuple(part if part.cache is None else structs.replace(part, cache=None) for part in result.content)
        return structs.replace(result, content=content, cache=result.cache or marks[-1])

    def node(self, node: N) -> N:
        cache: CacheBreakpoint | None = getattr(node, "cache", None)
        if cache is None:
            return node
        if cache.ttl == "1h" and self._has_short:
            self._notes.changed(
                "bedrock.cache.ttl", node.at.path, "a cache point of 1h may not follow one of 5m; sent as 5m"
            )
            return structs.replace(node, cache=structs.replace(cache, ttl="5m"))
        self._has_short = self._has_short or cache.ttl == "5m"
        return node


class FitUserAndOutput(Filter):
    """Removes characters from the user id that requestMetadata refuses, and the strict flag from the output schema."""

    name = "bedrock.fit_words"
    applies_to: Features = frozenset({"output", "user"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        output = conversation.output
        if output.strict is not None:
            notes.changed(
                "bedrock.output.strict",
                "output",
                "Bedrock has no strict flag for an output schema; it always enforces the schema",
            )
            conversation = structs.replace(conversation, output=structs.replace(output, strict=None))
        user = _legal_user(conversation.user)
        if user != conversation.user:
            notes.renamed("bedrock.user", "user", f"{conversation.user!r} is sent as {user!r}")
            conversation = structs.replace(conversation, user=user)
        return conversation, None


def _legal_user(user: str) -> str:
    """Return the user id if it is legal, else a cleaned prefix and eight characters of its hash.

    docs/decisions/content.md#d4 does the same for names.
    """
    if len(user) <= MAX_USER_LENGTH and not _ILLEGAL_IN_USER.search(user):
        return user
    digest = sha256(user.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_ILLEGAL_IN_USER.sub('_', user)[: MAX_USER_LENGTH - 9]}_{digest}"


# --- reasoning


class FitBedrockReasoning(MessageFilter):
    """Removes reasoning that the model does not accept in a request, and text next to redacted reasoning."""

    name = "bedrock.own_reasoning"
    applies_to: Features = frozenset({"reasoning"})
    before = "pair_tools"  # which handles messages that have become empty

    def __init__(self, vendor: Vendor) -> None:
        self._accepts = vendor.reasoning

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if not isinstance(block, Reasoning):
            return (block,)
        reason = self._refusal(block)
        if reason:
            notes.dropped("bedrock.reasoning.refused", block.at.path, reason)
            return ()
        if block.signature is not None and block.signature.kind == "redacted" and block.text:
            notes.dropped("bedrock.reasoning.redacted", block.at.path, "Bedrock has no text next to redacted reasoning")
            return (structs.replace(block, text=""),)
        return (block,)

    def _refusal(self, block: Reasoning) -> str:
        if self._accepts == "none":
            return "the model accepts no reasoning in a request"
        if self._accepts == "unsigned" and block.signature is not None:
            return "the model accepts no signed reasoning: another model made it"
        if block.signature is not None and block.signature.kind == "encrypted":
            return "Bedrock has no encrypted reasoning"
        return ""


# --- tools: the service wants them declared if history uses them, and a schema of type object

_STUB = "Used earlier in this conversation; not available now."
_NO_OUTPUT = "(no output)"
_SEPARATOR = "."


def _blocks(conversation: Conversation) -> Iterator[Block]:
    return (block for message in conversation.messages for block in message.blocks)


class DropUnusedTools(Filter):
    """Removes the tools of a request whose tool choice is `none`, which the service lacks, unless history uses them."""

    name = "bedrock.no_choice"
    applies_to: Features = frozenset({"chosen"})
    before = "fit_limits"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if conversation.tool_choice.mode != "none" or not conversation.tools:
            return conversation, None
        if any(isinstance(block, ToolCall | ToolResult) for block in _blocks(conversation)):
            return conversation, None
        notes.changed(
            "bedrock.tools.none", "tool_choice", "tool choice is none, which bedrock lacks; removed the tools"
        )
        return structs.replace(conversation, tools=(), tool_choice=ToolChoice()), None


class DeclareUsedTools(Filter):
    """Makes tool schemas objects, and declares the tools that history uses if the request declares none."""

    name = "bedrock.settle_tools"
    applies_to: Features = frozenset({"tools", "calls"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        tools = tuple(with_object_schema(tool, "bedrock.tools.schema", notes) for tool in conversation.tools) or tuple(
            _stubs(conversation, notes)
        )
        return conversation if len(notes) == before else structs.replace(conversation, tools=tools), None


def _stubs(conversation: Conversation, notes: Notes) -> Iterator[ToolSpec]:
    """Yield a declaration of each tool that history calls, in the order of the first calls."""
    calls = [block for block in _blocks(conversation) if isinstance(block, ToolCall)]
    for name in dict.fromkeys(call.name for call in calls):
        notes.added("bedrock.tools.stub", "tools", f"declared {name}, because the history calls it")
        yield ToolSpec(name, _STUB, NO_PARAMETERS)


class FitBedrockResults(Filter):
    """Fills empty results, and moves results into a separate message for models that accept nothing next to them.

    A part that the client sent as JSON becomes text for models that misread JSON, or if its text is no longer JSON.
    """

    name = "bedrock.settle_results"
    applies_to: Features = frozenset({"results"})

    def __init__(self, apart: bool, json: bool) -> None:
        self._apart = apart  # whether results need a separate message
        self._json = json  # whether the model reads JSON parts

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        messages: list[Message] = []
        for message in conversation.messages:
            blocks = tuple(self._block(block, notes) for block in message.blocks)
            fitted = message if blocks == message.blocks else structs.replace(message, blocks=blocks)
            messages.extend(_split(fitted, notes) if self._apart else (fitted,))
        if tuple(messages) == conversation.messages:
            return conversation, None
        return structs.replace(conversation, messages=tuple(messages)), None

    def _block(self, block: Block, notes: Notes) -> Block:
        if not isinstance(block, ToolResult):
            return block
        if not block.content:
            notes.changed(
                "bedrock.result.empty", block.at.path, f"a tool result without content is sent as {_NO_OUTPUT!r}"
            )
            return structs.replace(block, content=(Text(_NO_OUTPUT, at=block.at),))
        content = tuple(self._part(part) for part in block.content)
        return block if content == block.content else structs.replace(block, content=content)

    def _part(self, part: Text | Media | Opaque) -> Text | Media | Opaque:
        is_json = isinstance(part, Text) and AS_JSON in EXTRAS.own_fields(part.extra)
        if not is_json or (self._json and json_of_part(part) is not None):
            return part
        fields = {name: value for name, value in EXTRAS.own_fields(part.extra).items() if name != AS_JSON}
        return structs.replace(part, extra=EXTRAS.extra_of(fields))


def _split(message: Message, notes: Notes) -> Iterator[Message]:
    """Yield the tool results as one message, and the rest of the message after a short assistant message."""
    results = tuple(block for block in message.blocks if isinstance(block, ToolResult))
    rest = tuple(block for block in message.blocks if not isinstance(block, ToolResult))
    if not results or not rest:
        yield message
        return
    detail = (
        f"the model accepts only tool results in their message; added an assistant message {_SEPARATOR!r} after them"
    )
    notes.added("bedrock.result.apart", message.at.path, detail)
    yield structs.replace(message, blocks=results)
    yield Message("assistant", (Text(_SEPARATOR, at=message.at),), at=message.at)
    yield structs.replace(message, blocks=rest)
