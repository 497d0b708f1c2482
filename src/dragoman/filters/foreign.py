"""Fields that a family keeps beside the model (`Extra`) and that another has too, and what is said of all others."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TypeVar

from msgspec import Struct, structs

from dragoman.errors import MalformedRequest, Unrepresentable
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
from dragoman.wire.jsonio import Json

NO_FIELDS: Mapping[str, str] = {}


class SharedFields(Struct, frozen=True):
    """Fields of a family that the other side has too: its own name by the family's."""

    family: str
    options: Mapping[str, str]
    media: Mapping[str, str]
    tools: Mapping[str, str]
    answers: Mapping[str, str]

    def of(self, extra: Extra, fields: Mapping[str, str]) -> Mapping[str, str]:
        return fields if extra.family == self.family else NO_FIELDS


def find_shared_fields(family: str, giver: Capabilities, taker: Capabilities) -> SharedFields:
    def both(place: FieldScope) -> dict[str, str]:
        taken = taker.shared_fields.get(place, NO_FIELDS)
        return {own: taken[name] for name, own in giver.shared_fields.get(place, NO_FIELDS).items() if name in taken}

    return SharedFields(family, both("request"), both("media"), both("tool"), both("answer"))


def field_path(name: str, at: str) -> str:
    """Where a field stands, of a node that stands there."""
    if name.startswith(PARENT_PREFIX):
        at = at.rpartition(".")[0]
    name = wire_name(name)
    return f"{at}.{name}" if at else name


def lost_field_text(name: str, family: str) -> str:
    return f"the other side has no {wire_name(name)} as {family} has it"


# --- drop_foreign: what only another family understands is left out, each with its note; nothing else is lost
# (docs/decisions/content.md#d9).
#
# Known content the target cannot carry is refused in the last user turn and replaced by a line of text in earlier
# ones, so that no old image bricks a conversation. In tool results it is never refused, and unknown content becomes
# text: what a tool gave must not end the loop that called it.


S = TypeVar("S", bound=Struct)


class DropForeign(Filter):
    name = "drop_foreign"
    applies_to: Features = frozenset(
        {"extras", "signatures", "citations", "media", "reasoning", "opaque", "opaque_tools", "chosen"}
    )

    def __init__(self, client: Capabilities, client_family: str, upstream: Capabilities, upstream_family: str) -> None:
        self._carried = find_shared_fields(client_family, client, upstream)
        self._client = client
        self._upstream = upstream
        self._family = upstream_family
        self.answers = partial(_Answer, client, client_family, find_shared_fields(upstream_family, upstream, client))

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        fitted = _Request(self._upstream, self._family, self._carried, notes, self._client).fit(conversation, facts)
        return (conversation if fitted == conversation else fitted), None


def _decoded(data: str) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None


def _is_plain(message: Message) -> bool:
    """Whether it holds nothing that only one family understands, and nothing that some targets cannot carry."""
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


class _Request:
    def __init__(
        self, target: Capabilities, family: str, fields: SharedFields, notes: Notes, client: Capabilities
    ) -> None:
        self._client = client
        self._target = target
        self._family = family
        self._carried = fields
        self._notes = notes
        self._at_home = family == fields.family
        self._shared: set[str] = set()  # places of fields that several nodes carry, once noted

    def fit(self, conversation: Conversation, facts: Facts) -> Conversation:
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
            output=self._bare(conversation.output, "output"),
            extra=self._extra(conversation.extra, "", self._carried.options),
            hints=self._extra(conversation.hints, "headers"),
        )

    def _messages(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        last = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        fitted = [self._message(message, index == last) for index, message in enumerate(messages)]
        return tuple(
            one
            for one, was in zip(fitted, messages, strict=True)
            if one.blocks or not was.blocks or one.role != "system"  # between turns nobody misses an empty one
        )

    def _extra(self, extra: Extra | None, at: str, names: Mapping[str, str] = NO_FIELDS) -> Extra | None:
        """Keep the family's own fields, and those that it has by another name; note every other, except those that only
        say how something was spelt."""
        if extra is None or extra.family == self._family:
            return extra
        names = self._carried.of(extra, names)
        kept: dict[str, Json] = {}
        for name, value in extra.fields.items():
            own = names.get(name)
            need = self._target.option_needs.get(own, "") if own else ""
            if own and (not need or extra.fields.get(need) is True):
                kept |= {own: value, need: True} if need else {own: value}
            elif name not in extra.spelling:
                self._lost(extra.family, name, field_path(name, at))
        return Extra(self._family, kept) if kept else None

    def _lost(self, family: str, name: str, place: str) -> None:
        if name.startswith(PARENT_PREFIX):
            if place in self._shared:
                return
            self._shared.add(place)
        self._notes.dropped("foreign.field", place, lost_field_text(name, family))

    def _bare(self, node: S, at: str, names: Mapping[str, str] = NO_FIELDS) -> S:
        """The node without another family's fields."""
        extra: Extra | None = getattr(node, "extra", None)
        kept = self._extra(extra, at, names)
        return node if kept is extra else structs.replace(node, extra=kept)

    def _message(self, message: Message, last: bool) -> Message:
        if _is_plain(message):
            return message
        blocks = tuple([kept for block in message.blocks for kept in self._block(block, last, message.role)])
        message = self._bare(message, message.at.path)
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
                return (self._bare(structs.replace(block, content=content), block.at.path),)
            case ToolCall():
                return (self._bare(self._unsealed(block), block.at.path),)

    def _part(self, part: Text | Media | Opaque) -> Iterable[Text | Media | Opaque]:
        """A part of a tool result. Media that cannot be read is left to simplify_results."""
        match part:
            case Text():
                return (self._text(part),)
            case Media():
                return self._fitted([part], "user")
            case Opaque() if part.family == self._family or part.kind == UNREADABLE:
                return (part,)
            case Opaque():
                return self._fitted(opaque_as_parts(part, self._notes), "user")

    def _fitted(self, parts: Iterable[Text | Media], role: Role) -> list[Text | Media]:
        """Texts, and media that stood in a part. Services take no media in what a model said."""
        fit = self._replaced if role == "assistant" else partial(self._media, last=False, role=role)
        return [each for part in parts for each in self._named(fit(part) if isinstance(part, Media) else part)]

    def _named(self, media: Media | Text) -> list[Text | Media]:
        """The media, and its name as a text before it where the target has no names for such media."""
        if isinstance(media, Text) or not media.name or media.kind in self._target.named_media:
            return [media]
        if self._at_home and "home_names" in self._target.traits:
            return [media]
        self._notes.changed("media.name", media.at.path, f"the name of the {media.kind} stands before it as text")
        return [Text(media.name, at=media.at), structs.replace(media, name="")]

    def _text(self, text: Text) -> Text:
        if text.citations:
            kept = tuple(
                each for each in text.citations if each.family == self._family and "citations" in self._target.traits
            )
            if kept != text.citations:
                self._notes.dropped("foreign.citation", text.at.path, "the target has no citations of this kind")
                text = structs.replace(text, citations=kept)
        return self._bare(self._unsealed(text), text.at.path)

    def _unsealed(self, node: S) -> S:
        signature = getattr(node, "signature", None)
        ours = signature is not None and (
            signature.family == self._family or signature.family in self._target.signatures
        )
        if signature is None or (ours and "signed_content" in self._target.traits):
            return node
        self._notes.dropped(
            "foreign.seal",
            node.at.path,  # type: ignore[attr-defined]
            f"a {signature.kind} of {signature.family} means nothing to the target",
        )
        return structs.replace(node, signature=None)

    def _opaque(self, block: Opaque, role: Role) -> Iterable[Block]:
        if block.family == self._family:
            return (block,)
        if block.is_redundant:
            return ()
        words = server_tool_text(block) or part_text(block.data, block.family)
        if (words.found and words.text.strip()) or words.media:
            return self._fitted(opaque_as_parts(block, self._notes, words=words), role)
        kind = block.kind or "a block"
        self._notes.dropped("foreign.block", block.at.path, f"{kind} of {block.family} cannot be told to the target")
        return ()

    def _reasoning(self, block: Reasoning) -> Iterable[Reasoning]:
        signature, target = block.signature, self._target
        ours = (
            block.family == self._family
            if signature is None
            else signature.family in {self._family, *target.signatures}
        )
        if not ("reasoning" in target.traits and ours):
            self._notes.dropped(
                "foreign.reasoning",
                block.at.path,
                f"reasoning of {block.family or 'unknown origin'} is not the target's own",
            )
            return ()
        if "signed_reasoning" in target.traits and signature is None:
            self._notes.dropped(
                "reasoning.unsealed", block.at.path, "the target takes its reasoning back only with its signature"
            )
            return ()
        if signature is not None:  # accepted as its own
            block = structs.replace(
                block, family=self._family, signature=structs.replace(signature, family=self._family)
            )
        return (self._bare(block, block.at.path),)

    def _media(self, block: Media, last: bool, role: Role) -> Media | Text:
        if self._takes(block, role):
            return self._bare(block, block.at.path, self._carried.media)
        if block.form == "base64" and block.mime.startswith("text/") and (words := _decoded(block.data)) is not None:
            block = structs.replace(block, mime="text/plain", form="text", data=words)
            if self._takes(block, role):
                self._notes.changed("media.as_text", block.at.path, "a text document is given as text")
                return self._bare(block, block.at.path, self._carried.media)
        if block.form == "text":
            self._notes.changed("media.as_text", block.at.path, "a text document is given as text")
            self._extra(block.extra, block.at.path)
            title = f"{block.name}\n" if block.name else ""
            return Text(title + block.data, cache=block.cache, at=block.at)
        if last:
            what = f"{block.kind} ({block.mime or 'of unknown type'}) given as {block.form}"
            raise Unrepresentable(f"the target takes no {what}", at=block.at.path)
        return self._replaced(block)

    def _replaced(self, block: Media) -> Text:
        self._notes.dropped(
            "media.replaced",
            block.at.path,
            f"the target takes no {block.kind} given as {block.form}; a line of text stands for it",
        )
        return Text(missing_media_line(block), cache=block.cache, at=block.at)

    def _takes(self, block: Media, role: Role) -> bool:
        if role not in self._target.media_roles and not self._at_home:  # there the service itself may say so
            return False
        types = self._target.media_types.get(block.kind)
        if self._is_held(block):
            return False
        if self._at_home and (block.kind, block.form) in self._target.own_family_media:
            return True
        return (block.kind, block.form) in self._target.media and (
            block.form != "base64" or types is None or block.mime in types
        )

    def _is_held(self, block: Media) -> bool:
        """Whether only the client's service can read it: its file by an id, or an address of its own."""
        if block.form == "file":
            return self._client.files != self._target.files
        own = block.form == "url" and block.data.startswith(self._client.own_url_prefixes)
        return own and not block.data.startswith(self._target.own_url_prefixes)

    def _tool(self, tool: ToolSpec | Opaque) -> ToolSpec | Opaque | None:
        if isinstance(tool, ToolSpec):
            return self._bare(tool, tool.at.path, self._carried.tools)
        if tool.family == self._family:
            return tool
        self._notes.dropped(
            "foreign.tool", tool.at.path, f"the tool {tool.kind or ''} runs only at {tool.family}".replace("  ", " ")
        )
        return None

    def _choice(self, conversation: Conversation, tools: tuple[ToolSpec | Opaque, ...]) -> ToolChoice:
        """A choice of tools that are gone is no choice. One of a tool that never was is a mistake, as for services."""
        choice = conversation.tool_choice
        if choice.names and conversation.tools:
            declared = set(map(tool_name, conversation.tools))
            unknown = [name for name in choice.names if name not in declared]
            if unknown and None not in declared:
                raise MalformedRequest(f"there is no tool {unknown[0]!r} among the tools", at=choice.at.path)
        if len(tools) == len(conversation.tools):
            return choice
        named = {tool.name for tool in tools if isinstance(tool, ToolSpec)}
        names = tuple(name for name in choice.names if name in named)
        if (names == choice.names and tools) or choice == ToolChoice():
            return choice
        self._notes.dropped("tools.choice", choice.at.path, "it named tools that the target does not have")
        return structs.replace(choice, names=names, mode=choice.mode if names and tools else "auto")


_KEEPING: EventKinds = BLOCK_STARTS | {ev.Started, ev.Stopped, ev.UsageReported, ev.CitationAdded, ev.OpaqueEvent}
_DROPPING: EventKinds = _KEEPING | {ev.TextDelta, ev.ReasoningDelta, ev.SignatureAdded, ev.BlockEnded}


class _Answer(Struct, ResponseFilter, eq=False):
    """The answer half: what the client's family does not know is left out, once noted per kind."""

    _client: Capabilities
    _family: str
    _carried: SharedFields
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _KEEPING
    _dropped: dict[int, bool] = {}  # sets, small while they are empty
    _said: dict[tuple[str, str], bool] = {}

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
                self.reads = _DROPPING if self._dropped else _KEEPING
                return ()
            case ev.Started() if event.extra is not None:
                return (self._bare(event, self._carried.answers),)
            case ev.Stopped(stop) if stop.extra is not None:
                bare = self._bare(stop)
                return (event if bare is stop else structs.replace(event, stop=bare),)
            case ev.UsageReported(usage) if usage.extra is not None:
                bare_usage = self._bare(usage)
                return (event if bare_usage is usage else ev.UsageReported(bare_usage),)
            case ev.CitationAdded(_, citation):
                cites = not self._client.traits.isdisjoint({"citations", "cites"})
                if cites and citation.family == self._family:
                    return (event,)
                if cites and citation.source is not None:
                    self._say("citation.mapped", citation.family, _MAPPED, "changed")
                    return (event,)
                self._say("foreign.citation", citation.family, "its citations have no place in the client's dialect")
                return ()
            case ev.OpaqueEvent(family, kind) if family != self._family:
                self._say(
                    "foreign.event", kind, f"events of {family} named {kind} have no place in the client's dialect"
                )
                return ()
            case _:
                return (event,)

    def _block(self, event: ev.BlockStarted) -> ev.Events:
        block = event.block
        if isinstance(block, Opaque):
            foreign, kind = block.family != self._family, block.kind
        elif isinstance(block, Media):
            known = (block.kind, block.form) in self._client.media and "no_answer_media" not in self._client.traits
            foreign, kind = not known, block.kind
        else:
            foreign, kind = isinstance(block, Reasoning) and "reasoning" not in self._client.traits, "reasoning"
        if foreign:
            self._dropped[event.key], self.reads = True, _DROPPING
            self._notes.dropped(
                "foreign.block", "", f"a block of the answer ({kind}) has no place in the client's dialect"
            )
            return ()
        bare = self._bare(block)
        return (event if bare is block else structs.replace(event, block=bare),)

    def _bare(self, node: S, names: Mapping[str, str] = NO_FIELDS) -> S:
        extra: Extra | None = getattr(node, "extra", None)
        if extra is None or extra.family == self._family:
            return node
        names = names if extra.family == self._carried.family else NO_FIELDS
        kept = {names[name]: value for name, value in extra.fields.items() if name in names}
        for name in extra.fields:
            if name not in names and name not in extra.spelling:
                self._say("foreign.field", name, lost_field_text(name, extra.family))
        return structs.replace(node, extra=Extra(self._family, kept) if kept else None)

    def _say(self, rule: str, what: str, detail: str, action: Action = "dropped") -> None:
        what = what[:_LONGEST_KIND]
        if (rule, what) not in self._said:
            if len(self._said) < MAX_RESPONSE_NOTES:
                self._said[rule, what] = True
            self._notes.add(rule, action, "", detail)


_LONGEST_KIND = 200  # characters that tell two kinds of events or fields apart
_MAPPED = (
    "its citations are written in the form of the client's dialect, which has no more than address, title and quote"
)
