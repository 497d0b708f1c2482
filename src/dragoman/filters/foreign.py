"""Drop content that only one model family understands, and translate the extra fields that two families share.

The canonical model keeps a family's own fields in `Extra`. `SharedFields` maps those that the other side has too, often
under another name; all others are dropped with a note.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TypeVar

from msgspec import Struct, structs

from dragoman.errors import MalformedRequest, Unrepresentable
from dragoman.filters.cache_marks import replace_blocks
from dragoman.filters.tool_search import is_carried
from dragoman.filters.web_search import is_carried_search
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Extra, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, FieldScope
from dragoman.model.conversation import (
    PARENT_PREFIX,
    Conversation,
    Message,
    Role,
    ToolChoice,
    ToolSpec,
    tool_name,
    wire_name,
)
from dragoman.model.filter import (
    BLOCK_STARTS,
    MAX_RESPONSE_NOTES,
    NO_WATCH,
    Action,
    EventKinds,
    Facts,
    Features,
    Filter,
    LaneWatch,
    MakeResponseFilter,
    Notes,
    ResponseFilter,
)
from dragoman.model.parts import UNREADABLE, missing_media_line, opaque_as_parts, part_text, server_tool_text
from dragoman.model.search_text import search_text
from dragoman.wire.jsonio import Json

NO_FIELDS: Mapping[str, str] = {}


class SharedFields(Struct, frozen=True):
    """Extra fields of a family that the other side has too: the other side's name by the family's name."""

    family: str
    options: Mapping[str, str]
    media: Mapping[str, str]
    tools: Mapping[str, str]
    responses: Mapping[str, str]

    def of(self, extra: Extra, fields: Mapping[str, str]) -> Mapping[str, str]:
        """Return `fields` if the extra fields are of this family, else an empty mapping."""
        return fields if extra.family == self.family else NO_FIELDS


def find_shared_fields(family: str, source: Capabilities, target: Capabilities) -> SharedFields:
    """Return the extra fields of `source`, whose family is given, that `target` has too."""

    def common(place: FieldScope) -> dict[str, str]:
        names = target.shared_fields.get(place, NO_FIELDS)
        return {own: names[name] for name, own in source.shared_fields.get(place, NO_FIELDS).items() if name in names}

    return SharedFields(family, common("request"), common("media"), common("tool"), common("reply"))


def field_path(name: str, at: str) -> str:
    """Return the path of a field of the node at `at`."""
    if name.startswith(PARENT_PREFIX):
        at = at.rpartition(".")[0]
    name = wire_name(name)
    return f"{at}.{name}" if at else name


def lost_field_text(name: str, family: str, side: str = "the target") -> str:
    """Return the sentence of a note about a dropped field."""
    return f"{side} has no equivalent of the {family} field {wire_name(name)}"


# --- DropForeign


S = TypeVar("S", bound=Struct)


class DropForeign(Filter):
    """Leave out content that only another family understands, with notes (docs/decisions/content.md#d9).

    Known content that the target does not accept is refused in the last user turn, and becomes a line of text in
    earlier turns, so that an old image does not block a conversation. In tool results it is never refused, and unknown
    content becomes text: the output of a tool must not end the tool loop.
    """

    name = "drop_foreign"
    applies_to: Features = frozenset(
        {"extras", "signatures", "citations", "media", "reasoning", "opaque", "opaque_tools", "chosen"}
    )

    def __init__(self, client: Capabilities, client_family: str, upstream: Capabilities, upstream_family: str) -> None:
        self._carried = find_shared_fields(client_family, client, upstream)
        self._client = client
        self._upstream = upstream
        self._family = upstream_family
        self.make_response_filter = partial(
            _ReplyFilter, client, client_family, find_shared_fields(upstream_family, upstream, client)
        )

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        fitted = _FitRequest(self._upstream, self._family, self._carried, notes, self._client).fit(conversation, facts)
        return (conversation if fitted == conversation else fitted), None


def _decoded(data: str) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None


def _is_plain(message: Message) -> bool:
    """Return whether all targets accept the message: no extra fields, only unsigned text, calls and text results."""
    if message.extra is not None:
        return False
    for block in message.blocks:
        if block.extra is not None:
            return False
        if isinstance(block, ToolResult):
            if not all(map(_is_plain_text, block.content)):
                return False
        elif not _is_plain_text(block) and not (isinstance(block, ToolCall) and block.signature is None):
            return False
    return True


def _is_plain_text(block: Block) -> bool:
    return isinstance(block, Text) and block.extra is None and block.signature is None and not block.citations


class _FitRequest:
    """Drops or replaces the foreign content of one request."""

    def __init__(
        self, target: Capabilities, family: str, fields: SharedFields, notes: Notes, client: Capabilities
    ) -> None:
        self._client = client
        self._target = target
        self._family = family
        self._carried = fields
        self._notes = notes
        self._same_family = family == fields.family
        self._noted_parents: set[str] = set()  # paths of parent fields, noted once

    def fit(self, conversation: Conversation, facts: Facts) -> Conversation:
        """Return the conversation without content that the target does not understand."""
        messages = conversation.messages
        if not facts.plain(conversation):
            messages = self._messages(messages)
        tools = tuple(tool for tool in map(self._tool, conversation.tools) if tool is not None)
        return structs.replace(
            conversation,
            messages=messages,
            system=tuple(self._text(text) for text in conversation.system),
            tools=tools,
            tool_choice=self._choice(conversation, tools),
            output=self._strip_fields(conversation.output, "output"),
            extra=self._extra(conversation.extra, "", self._carried.options),
            hints=self._extra(conversation.hints, "headers"),
        )

    def _messages(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        last = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        fitted = [self._message(message, index == last) for index, message in enumerate(messages)]
        return tuple(
            after
            for after, before in zip(fitted, messages, strict=True)
            if after.blocks or not before.blocks or after.role != "system"  # drop system messages that became empty
        )

    def _extra(self, extra: Extra | None, at: str, names: Mapping[str, str] = NO_FIELDS) -> Extra | None:
        """Keep the target's own fields and translate shared ones; note all others, except those of `spelling`."""
        if extra is None or extra.family == self._family:
            return extra
        names = self._carried.of(extra, names)
        fields: dict[str, Json] = {}
        for name, value in extra.fields.items():
            own = names.get(name)
            need = self._target.option_needs.get(own, "") if own else ""
            if own and (not need or extra.fields.get(need) is True):
                fields |= {own: value, need: True} if need else {own: value}
            elif name not in extra.spelling:
                self._lost(extra.family, name, field_path(name, at))
        return Extra(self._family, fields) if fields else None

    def _lost(self, family: str, name: str, place: str) -> None:
        if name.startswith(PARENT_PREFIX):
            if place in self._noted_parents:
                return
            self._noted_parents.add(place)
        self._notes.dropped("foreign.field", place, lost_field_text(name, family))

    def _strip_fields(self, node: S, at: str, names: Mapping[str, str] = NO_FIELDS) -> S:
        """Return the node without another family's extra fields."""
        extra: Extra | None = getattr(node, "extra", None)
        rest = self._extra(extra, at, names)
        return node if rest is extra else structs.replace(node, extra=rest)

    def _message(self, message: Message, last: bool) -> Message:
        if _is_plain(message):
            return message
        blocks = replace_blocks(message.blocks, partial(self._block, last=last, role=message.role), self._notes)
        message = self._strip_fields(message, message.at.path)
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block, last: bool, role: Role) -> Iterable[Block]:
        match block:
            case Text():
                return (self._text(block),)
            case Media():
                return self._named(self._media(block, last, role))
            case Opaque():
                return self._opaque(block, role)
            case Reasoning():
                return self._reasoning(block)
            case ToolResult():
                content = tuple([fitted for part in block.content for fitted in self._part(part)])
                return (self._strip_fields(structs.replace(block, content=content), block.at.path),)
            case ToolCall():
                return (self._strip_fields(self._unsign(block), block.at.path),)

    def _part(self, part: Text | Media | Opaque) -> Iterable[Text | Media | Opaque]:
        """Fit a part of a tool result. `SimplifyResults` handles unreadable media."""
        match part:
            case Text():
                return (self._text(part),)
            case Media():
                return self._fit_parts([part], "user")
            case Opaque() if part.family == self._family or part.kind == UNREADABLE:
                return (part,)
            case Opaque():
                return self._fit_parts(opaque_as_parts(part, self._notes), "user")

    def _fit_parts(self, parts: Iterable[Text | Media], role: Role) -> list[Text | Media]:
        """Return texts as they are, and fit media. No service accepts media in an assistant turn."""
        fit = self._as_line if role == "assistant" else partial(self._media, last=False, role=role)
        return [each for part in parts for each in self._named(fit(part) if isinstance(part, Media) else part)]

    def _named(self, media: Media | Text) -> list[Text | Media]:
        """Return the media; its name becomes a text before it if the target has no names for such media."""
        if isinstance(media, Text) or not media.name or media.kind in self._target.named_media:
            return [media]
        if self._same_family and "same_family_names" in self._target.traits:
            return [media]
        self._notes.changed("media.name", media.at.path, f"the name of the {media.kind} is placed before it as text")
        return [Text(media.name, at=media.at), structs.replace(media, name="")]

    def _text(self, text: Text) -> Text:
        if text.citations:
            citations = tuple(
                each for each in text.citations if each.family == self._family and "citations" in self._target.traits
            )
            if citations != text.citations:
                self._notes.dropped(
                    "foreign.citation", text.at.path, "the target does not support citations of this kind"
                )
                text = structs.replace(text, citations=citations)
        return self._strip_fields(self._unsign(text), text.at.path)

    def _unsign(self, node: S) -> S:
        signature = getattr(node, "signature", None)
        is_own = signature is not None and (
            signature.family == self._family or signature.family in self._target.signatures
        )
        if signature is None or (is_own and "signed_content" in self._target.traits):
            return node
        detail = f"the target cannot read a {signature.kind} of {signature.family}"
        self._notes.dropped("foreign.signature", node.at.path, detail)  # type: ignore[attr-defined]
        return structs.replace(node, signature=None)

    def _opaque(self, block: Opaque, role: Role) -> Iterable[Block]:
        written = search_text(block)  # of a search that no service has made
        if written is None and (block.family == self._family or is_carried(block, self._target)):
            return (block,)
        if block.is_redundant:
            return ()
        readable = written or server_tool_text(block) or part_text(block.data, block.family)
        if (readable.has_content and readable.text.strip()) or readable.media:
            return self._fit_parts(opaque_as_parts(block, self._notes, words=readable), role)
        kind = block.kind or "a block"
        self._notes.dropped(
            "foreign.block", block.at.path, f"{kind} of {block.family} is left out: the target does not support it"
        )
        return ()

    def _reasoning(self, block: Reasoning) -> Iterable[Reasoning]:
        signature, target = block.signature, self._target
        is_own = (
            block.family == self._family
            if signature is None
            else signature.family in {self._family, *target.signatures}
        )
        if not ("reasoning" in target.traits and is_own):
            self._notes.dropped(
                "foreign.reasoning",
                block.at.path,
                f"the target accepts only its own reasoning, not that of {block.family or 'an unknown model family'}",
            )
            return ()
        if "signed_reasoning" in target.traits and signature is None:
            self._notes.dropped(
                "reasoning.unsigned", block.at.path, "the target accepts its reasoning only with a signature"
            )
            return ()
        if signature is not None:  # the target accepts this family's signatures as its own
            block = structs.replace(
                block, family=self._family, signature=structs.replace(signature, family=self._family)
            )
        return (self._strip_fields(block, block.at.path),)

    def _media(self, block: Media, last: bool, role: Role) -> Media | Text:
        if self._takes(block, role):
            return self._strip_fields(block, block.at.path, self._carried.media)
        if block.form == "base64" and block.mime.startswith("text/") and (readable := _decoded(block.data)) is not None:
            block = structs.replace(block, mime="text/plain", form="text", data=readable)
            if self._takes(block, role):
                self._notes.changed("media.as_text", block.at.path, "a text document is given as text")
                return self._strip_fields(block, block.at.path, self._carried.media)
        if block.form == "text":
            self._notes.changed("media.as_text", block.at.path, "a text document is given as text")
            self._extra(block.extra, block.at.path)
            title = f"{block.name}\n" if block.name else ""
            return Text(title + block.data, cache=block.cache, at=block.at)
        if last:
            kind = f"{block.kind} ({block.mime or 'of unknown type'}) given as {block.form}"
            raise Unrepresentable(f"the target does not accept {kind}", at=block.at.path)
        return self._as_line(block)

    def _as_line(self, block: Media) -> Text:
        self._notes.dropped(
            "media.replaced",
            block.at.path,
            f"the target does not accept {block.kind} given as {block.form}; a line of text replaces it",
        )
        return Text(missing_media_line(block), cache=block.cache, at=block.at)

    def _takes(self, block: Media, role: Role) -> bool:
        if role not in self._target.media_roles and not self._same_family:  # the service itself refuses it
            return False
        types = self._target.media_types.get(block.kind)
        if self._is_stored_by_client(block):
            return False
        if self._same_family and (block.kind, block.form) in self._target.own_family_media:
            return True
        return (block.kind, block.form) in self._target.media and (
            block.form != "base64" or types is None or block.mime in types
        )

    def _is_stored_by_client(self, block: Media) -> bool:
        """Return whether only the client's service can read the media: by a file id, or by a URL of its own."""
        if block.form == "file":
            return self._client.files != self._target.files
        own = block.form == "url" and block.data.startswith(self._client.own_url_prefixes)
        return own and not block.data.startswith(self._target.own_url_prefixes)

    def _tool(self, tool: ToolSpec | Opaque) -> ToolSpec | Opaque | None:
        if isinstance(tool, ToolSpec):
            return self._strip_fields(tool, tool.at.path, self._carried.tools)
        if tool.family == self._family or is_carried(tool, self._target) or is_carried_search(tool, self._target):
            return tool
        self._notes.dropped(
            "foreign.tool", tool.at.path, f"the tool {tool.kind or ''} runs only at {tool.family}".replace("  ", " ")
        )
        return None

    def _choice(self, conversation: Conversation, tools: tuple[ToolSpec | Opaque, ...]) -> ToolChoice:
        """Return the tool choice without the dropped tools. Raises MalformedRequest if it names an undeclared tool."""
        choice = conversation.tool_choice
        if choice.names and conversation.tools:
            declared = set(map(tool_name, conversation.tools))
            unknown = [name for name in choice.names if name not in declared]
            if unknown and None not in declared:
                raise MalformedRequest(f"the request does not declare the tool {unknown[0]!r}", at=choice.at.path)
        if len(tools) == len(conversation.tools):
            return choice
        named = {tool.name for tool in tools if isinstance(tool, ToolSpec)}
        names = tuple(name for name in choice.names if name in named)
        if (names == choice.names and tools) or choice == ToolChoice():
            return choice
        self._notes.dropped("tools.choice", choice.at.path, "the tool choice names tools that the target does not have")
        return structs.replace(choice, names=names, mode=choice.mode if names and tools else "auto")


_WHEN_KEEPING: EventKinds = BLOCK_STARTS | {ev.Started, ev.Stopped, ev.UsageReported, ev.CitationAdded, ev.OpaqueEvent}
_WHEN_DROPPING: EventKinds = _WHEN_KEEPING | {ev.TextDelta, ev.ReasoningDelta, ev.SignatureAdded, ev.BlockEnded}


class _ReplyFilter(Struct, ResponseFilter, eq=False):
    """Leaves out content of the reply that the client's family does not know; notes each kind once."""

    _client: Capabilities
    _family: str
    _carried: SharedFields
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _WHEN_KEEPING
    _dropped: dict[int, bool] = {}  # sets; an empty dict is smaller than an empty set
    _noted: dict[tuple[str, str], bool] = {}

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        return None if key in self._dropped else NO_WATCH

    def take(self, event: ev.Event) -> ev.Events:
        match event:
            case ev.BlockStarted(block=(Text() | ToolCall()) as block) if block.extra is None:
                return (event,)
            case ev.BlockStarted():
                return self._block(event)
            case ev.TextDelta(key) | ev.ReasoningDelta(key) | ev.SignatureAdded(key) if key in self._dropped:
                return ()
            case ev.BlockEnded(key) if key in self._dropped:
                del self._dropped[key]
                self.reads = _WHEN_DROPPING if self._dropped else _WHEN_KEEPING
                return ()
            case ev.Started() if event.extra is not None:
                return (self._strip_fields(event, self._carried.responses),)
            case ev.Stopped(stop) if stop.extra is not None:
                bare = self._strip_fields(stop)
                return (event if bare is stop else structs.replace(event, stop=bare),)
            case ev.UsageReported(usage) if usage.extra is not None:
                bare_usage = self._strip_fields(usage)
                return (event if bare_usage is usage else ev.UsageReported(bare_usage),)
            case ev.CitationAdded(_, citation):
                cites = not self._client.traits.isdisjoint({"citations", "cites"})
                if cites and citation.family == self._family:
                    return (event,)
                if cites and citation.source is not None:
                    self._note_once("citation.mapped", citation.family, _MAPPED, "changed")
                    return (event,)
                self._note_once(
                    "foreign.citation", citation.family, "the client's dialect has no field for its citations"
                )
                return ()
            case ev.OpaqueEvent(family, kind) if family != self._family:
                self._note_once("foreign.event", kind, f"the client's dialect has no event for {kind} of {family}")
                return ()
            case _:
                return (event,)

    def _block(self, event: ev.BlockStarted) -> ev.Events:
        block = event.block
        if isinstance(block, Opaque):
            foreign, kind = block.family != self._family, block.kind
        elif isinstance(block, Media):
            known = (block.kind, block.form) in self._client.media and "no_reply_media" not in self._client.traits
            foreign, kind = not known, block.kind
        else:
            foreign, kind = isinstance(block, Reasoning) and "reasoning" not in self._client.traits, "reasoning"
        if foreign:
            self._dropped[event.key], self.reads = True, _WHEN_DROPPING
            if not (isinstance(block, Opaque) and block.is_redundant):
                detail = f"the client's dialect has no block for {kind}; it is left out of the reply"
                self._notes.dropped("foreign.block", "", detail)
            return ()
        bare = self._strip_fields(block)
        return (event if bare is block else structs.replace(event, block=bare),)

    def _strip_fields(self, node: S, names: Mapping[str, str] = NO_FIELDS) -> S:
        extra: Extra | None = getattr(node, "extra", None)
        if extra is None or extra.family == self._family:
            return node
        names = names if extra.family == self._carried.family else NO_FIELDS
        fields = {names[name]: value for name, value in extra.fields.items() if name in names}
        for name in extra.fields:
            if name not in names and name not in extra.spelling:
                self._note_once("foreign.field", name, lost_field_text(name, extra.family, "the client's dialect"))
        return structs.replace(node, extra=Extra(self._family, fields) if fields else None)

    def _note_once(self, rule: str, kind: str, detail: str, action: Action = "dropped") -> None:
        kind = kind[:_LONGEST_KIND]
        if (rule, kind) not in self._noted:
            if len(self._noted) < MAX_RESPONSE_NOTES:
                self._noted[rule, kind] = True
            self._notes.add(rule, action, "", detail)


_LONGEST_KIND = 200  # characters by which two kinds of events or fields differ
_MAPPED = "its citations are written in the client's form, which has only URL, title and quote"
