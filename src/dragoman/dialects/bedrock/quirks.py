"""Filters that only this dialect needs. A filter's `before` names the shared filter that must run after it."""

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

# --- Media as the service takes it: formats that it knows, S3 but no other addresses, documents with names and
# company


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
    """Fit each media, which None leaves out; with it goes the number of its turn, or None in a tool's result."""
    before = len(notes)

    def fitted(block: Block, turn: int | None) -> Iterator[Block]:
        if isinstance(block, ToolResult) and any(isinstance(part, Media) for part in block.content):
            yield structs.replace(block, content=tuple(each for part in block.content for each in fitted(part, None)))
        elif not isinstance(block, Media):
            yield block
        elif (found := fit(block, turn)) is not None:
            yield found

    messages = tuple(
        structs.replace(message, blocks=tuple(each for block in message.blocks for each in fitted(block, turn)))
        for turn, message in enumerate(conversation.messages)
    )
    return conversation if len(notes) == before else structs.replace(conversation, messages=messages)


def _media(media: Media, last: bool, notes: Notes) -> Media | Text | None:
    media = _known_type(media, notes)
    if media.form == "text" and not media.data.strip():
        notes.changed("bedrock.media.blank", media.at.path, "a document without content was left out")
        return None
    if media.form == "url" and not media.data.startswith(S3):
        return _left_out(media, f"{media.kind} by an address other than {S3}", last, notes)
    if media.mime not in FORMATS[media.kind] or not media.data:
        return _left_out(media, f"{media.kind} of type {media.mime or 'unknown'}", last, notes)
    return media


def _known_type(media: Media, notes: Notes) -> Media:
    said = media.mime.partition(";")[0].strip().lower()
    mime = _ALIASES.get(said, said)
    if media.form == "text" and mime not in FORMATS["document"]:
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
    """Gives every document a unique name that the service accepts."""

    name = "bedrock.name_documents"
    applies_to: Features = frozenset({"media"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        taken: set[str] = set()
        return _each_media(conversation, notes, lambda media, _: _named(media, taken, notes)), None


def _named(media: Media, taken: set[str], notes: Notes) -> Media:
    if media.kind != "document":
        return media
    # Only letters, digits, single spaces and - ( ) [ ] _ are allowed.
    clean = re.sub(r"[^a-zA-Z0-9 ()\[\]_-]", "-", re.sub(r"\s+", " ", media.name)).strip()
    clean = clean[:LONGEST_NAME].rstrip() or "document"
    number, name = 1, clean
    while name in taken:
        number += 1
        suffix = f" ({number})"
        name = clean[: LONGEST_NAME - len(suffix)].rstrip() + suffix
    taken.add(name)
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
        notes.added("bedrock.document.text", message.at.path, f"a document needs a text beside it; {_FILLER!r} is sent")
        return structs.replace(message, blocks=(*message.blocks, Text(_FILLER, at=message.at)))


# --- Cache points, the user and the output schema within what the service takes


MAX_USER_LENGTH = 256
_NO_USER = re.compile(r"[^a-zA-Z0-9\s:_@$#=/+,.-]")
N = TypeVar("N", ToolSpec | Opaque, Text, Block)


class FitCachePoints(Filter):
    """Moves or drops cache points that the service refuses, in the order tools, system, messages.

    Refused are: one inside a result, one after a document other than PDF, and one of 1h after one of 5m.
    """

    name = "bedrock.settle_cache"
    applies_to: Features = frozenset({"marks"})

    def __init__(self, tools: bool) -> None:
        self._tools = tools

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
    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._short = False  # a mark of five minutes has been seen

    def without(self, tool: ToolSpec | Opaque) -> ToolSpec | Opaque:
        if tool.cache is None:
            return tool
        self._notes.dropped("bedrock.cache.tools", tool.at.path, "the model takes no cache mark among its tools")
        return structs.replace(tool, cache=None)

    def block(self, block: Block) -> Block:
        if isinstance(block, Reasoning):
            return block
        if isinstance(block, ToolResult):
            block = self._result(block)
        if isinstance(block, Media) and block.cache and block.kind == "document" and block.mime != "application/pdf":
            self._notes.dropped("bedrock.cache.document", block.at.path, "only after a PDF may a cache mark stand")
            return structs.replace(block, cache=None)
        return self.node(block)

    def _result(self, result: ToolResult) -> ToolResult:
        marks = [part.cache for part in result.content if part.cache is not None]
        if not marks:
            return result
        self._notes.changed("bedrock.cache.moved", result.at.path, "a cache mark in a result now stands after it")
        content = tuple(part if part.cache is None else structs.replace(part, cache=None) for part in result.content)
        return structs.replace(result, content=content, cache=result.cache or marks[-1])

    def node(self, node: N) -> N:
        cache: CacheBreakpoint | None = getattr(node, "cache", None)
        if cache is None:
            return node
        if cache.ttl == "1h" and self._short:
            self._notes.changed("bedrock.cache.ttl", node.at.path, "no mark of 1h may follow one of 5m; it is 5m now")
            return structs.replace(node, cache=structs.replace(cache, ttl="5m"))
        self._short = self._short or cache.ttl == "5m"
        return node


class FitUserAndOutput(Filter):
    """The user's id in the characters of requestMetadata, and an output schema without a strict flag."""

    name = "bedrock.fit_words"
    applies_to: Features = frozenset({"output", "user"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        output = conversation.output
        if output.strict is not None:
            notes.changed(
                "bedrock.output.strict", "output", "an output schema has no strict flag here; it always holds"
            )
            conversation = structs.replace(conversation, output=structs.replace(output, strict=None))
        user = _legal_user(conversation.user)
        if user != conversation.user:
            notes.renamed("bedrock.user", "user", f"{conversation.user!r} is sent as {user!r}")
            conversation = structs.replace(conversation, user=user)
        return conversation, None


def _legal_user(user: str) -> str:
    """The user's id if it is legal, else a cleaned prefix and eight characters of its hash (as
    docs/decisions/content.md#d4 does for names)."""
    if len(user) <= MAX_USER_LENGTH and not _NO_USER.search(user):
        return user
    digest = sha256(user.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_NO_USER.sub('_', user)[: MAX_USER_LENGTH - 9]}_{digest}"


# --- Reasoning as the models behind the service take it back


class FitBedrockReasoning(MessageFilter):
    """Reasoning in the two forms that the service has, as far as the model takes it back."""

    name = "bedrock.own_reasoning"
    applies_to: Features = frozenset({"reasoning"})
    before = "pair_tools"  # what is left of a turn is looked at afterwards

    def __init__(self, vendor: Vendor) -> None:
        self._takes = vendor.reasoning

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if not isinstance(block, Reasoning):
            return (block,)
        reason = self._objection(block)
        if reason:
            notes.dropped("bedrock.reasoning.refused", block.at.path, reason)
            return ()
        if block.signature is not None and block.signature.kind == "redacted" and block.text:
            notes.dropped("bedrock.reasoning.redacted", block.at.path, "redacted reasoning has no text here")
            return (structs.replace(block, text=""),)
        return (block,)

    def _objection(self, block: Reasoning) -> str:
        if self._takes == "none":
            return "the model takes no reasoning back"
        if self._takes == "unsigned" and block.signature is not None:
            return "the model takes no signed reasoning: it is another model's"
        if block.signature is not None and block.signature.kind == "encrypted":
            return "the service has no encrypted reasoning"
        return ""


# --- Tools as the service takes them: declared once history has any, with an object's schema


_STUB = "Used earlier in this conversation; not available now."
_NO_OUTPUT = "(no output)"
_BETWEEN = "."


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
        notes.changed("bedrock.tools.none", "tool_choice", "no tool may be called; none is offered")
        return structs.replace(conversation, tools=(), tool_choice=ToolChoice()), None


class DeclareUsedTools(Filter):
    """Tools whose schema is an object's; stubs where history has tools and the request declares none."""

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
    """The tools that only history names, in the order of their first call."""
    calls = [block for block in _blocks(conversation) if isinstance(block, ToolCall)]
    for name in dict.fromkeys(call.name for call in calls):
        notes.added("bedrock.tools.stub", "tools", f"{name} was called before, so the service wants it declared")
        yield ToolSpec(name, _STUB, NO_PARAMETERS)


class FitBedrockResults(Filter):
    """Fills empty results, and moves results into a turn of their own for models that accept nothing next to them.

    A part that was sent as JSON becomes text for models that misread JSON, or if its text is no longer JSON.
    """

    name = "bedrock.settle_results"
    applies_to: Features = frozenset({"results"})

    def __init__(self, apart: bool, json: bool) -> None:
        self._apart = apart
        self._json = json

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        messages: list[Message] = []
        for message in conversation.messages:
            blocks = tuple(self._block(block, notes) for block in message.blocks)
            settled = message if blocks == message.blocks else structs.replace(message, blocks=blocks)
            messages.extend(_split(settled, notes) if self._apart else (settled,))
        if tuple(messages) == conversation.messages:
            return conversation, None
        return structs.replace(conversation, messages=tuple(messages)), None

    def _block(self, block: Block, notes: Notes) -> Block:
        if not isinstance(block, ToolResult):
            return block
        if not block.content:
            notes.changed("bedrock.result.empty", block.at.path, f"a result without content says {_NO_OUTPUT!r}")
            return structs.replace(block, content=(Text(_NO_OUTPUT, at=block.at),))
        content = tuple(self._part(part) for part in block.content)
        return block if content == block.content else structs.replace(block, content=content)

    def _part(self, part: Text | Media | Opaque) -> Text | Media | Opaque:
        spelt = isinstance(part, Text) and AS_JSON in EXTRAS.own_fields(part.extra)
        if not spelt or (self._json and json_of_part(part) is not None):
            return part
        kept = {name: value for name, value in EXTRAS.own_fields(part.extra).items() if name != AS_JSON}
        return structs.replace(part, extra=EXTRAS.extra_of(kept))


def _split(message: Message, notes: Notes) -> Iterator[Message]:
    results = tuple(block for block in message.blocks if isinstance(block, ToolResult))
    rest = tuple(block for block in message.blocks if not isinstance(block, ToolResult))
    if not results or not rest:
        yield message
        return
    detail = f"the model takes nothing beside tool results; {_BETWEEN!r} stands between them and the rest of the turn"
    notes.added("bedrock.result.apart", message.at.path, detail)
    yield structs.replace(message, blocks=results)
    yield Message("assistant", (Text(_BETWEEN, at=message.at),), at=message.at)
    yield structs.replace(message, blocks=rest)
