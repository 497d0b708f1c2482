"""A request as the service takes it: its names, its size, its images, its characters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

from msgspec import structs

from dragoman.dialects.kiro.faults import context_full_fault
from dragoman.dialects.kiro.image_size import parse_image_size
from dragoman.dialects.kiro.models import MODEL_ID_PATTERN, normalize_model_name
from dragoman.dialects.kiro.request import (
    FAMILY,
    IDENTITY,
    conversation_id,
    estimate_input_tokens,
    estimate_message_tokens,
    own_fields,
)
from dragoman.dialects.kit.values import base64_bytes
from dragoman.errors import UnknownModel, Unrepresentable
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Extra, Media, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Stop, StopReason, ToolSpec
from dragoman.model.filter import (
    NO_FEATURES,
    Action,
    EventKinds,
    Facts,
    Features,
    Filter,
    Inventory,
    MakeResponseFilter,
    Notes,
    ResponseFilter,
)
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json, ObjectText, Raw

_SESSION = re.compile(r"session[\W_]*(?:id[\W_]*)?([0-9a-fA-F][0-9a-fA-F-]{15,})")


class IdentifyRequest(Filter):
    """What the service knows a request by, in its own words: the model's name, the conversation's id, a stream.

    The model has the service's name (docs/dialects/kiro.md#models); the answer gives the client's own name back. All
    turns of a conversation share an id, made of the client's session, else of the first user turn
    (docs/decisions/kiro.md#d17). Every answer is a stream; a client that wants it whole gets it gathered.
    """

    name = "kiro.name_request"
    before = "fold_system"

    def __init__(self, conversation_id: str) -> None:
        self._fixed = conversation_id

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        asked, user = conversation.model, conversation.user
        if not conversation.stream:
            notes.changed("kiro.stream", "stream", "the service only streams; the answer is gathered into one")
        named = normalize_model_name(asked)
        if named.strip() and not MODEL_ID_PATTERN.fullmatch(named):
            raise UnknownModel("no model of this service has such a name", at="model")
        if named != asked:
            notes.renamed("kiro.model", "model", f"{asked!r} is {named!r} here")
        extra, fields = conversation.extra, own_fields(conversation.extra)
        if user and ("conversationId" in fields or self._fixed):
            notes.dropped("user.dropped", "user", "the target takes no user id, and the conversation has its id")
        elif user:
            notes.changed("kiro.conversation_id", "user", "there is no user id here; it names the conversation instead")
        if "conversationId" not in fields:
            session = _SESSION.search(user)  # some clients write it into the user id
            made = conversation_id(session[1]) if session else conversation_id(f"{user}\0", conversation.messages)
            fields = {**fields, "conversationId": self._fixed or made}
            spelling = extra.spelling if extra is not None else frozenset[str]()
            extra = Extra(FAMILY, fields, spelling.union(IDENTITY.intersection(fields)))
        conversation = structs.replace(conversation, model=named, extra=extra, stream=True, user="")
        return conversation, partial(_Renamed, named, asked) if named != asked else None


class _Renamed(ResponseFilter):
    reads: EventKinds = frozenset({ev.Started})

    def __init__(self, named: str, asked: str, _notes: Notes, _keys: ev.BlockKeys) -> None:
        self._named = named
        self._asked = asked

    def take(self, event: ev.Event) -> ev.Events:
        if isinstance(event, ev.Started) and event.model == self._named:
            return (structs.replace(event, model=self._asked),)
        return (event,)


class DropMaxTokens(Filter):
    """The length of an answer cannot be limited."""

    name = "kiro.no_length"
    applies_to: Features = frozenset({"length"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if conversation.max_tokens is None:
            return conversation, None
        notes.dropped("kiro.max_tokens", "max_tokens", "it is not sent: the length of an answer cannot be limited")
        return structs.replace(conversation, max_tokens=None), None


class _End(ResponseFilter):
    def __init__(self, notes: Notes, _keys: ev.BlockKeys) -> None:
        self.reads = _IDLE
        self._notes = notes
        self._silent = False  # no figure of the service has come, neither counts nor a percentage
        self._calls: dict[int, str] = {}  # open ones, and what they call

    def take(self, event: ev.Event) -> ev.Events:
        match event:
            case ev.Started(usage=usage):
                self._silent = usage is not None and usage.estimated
            case ev.UsageReported():
                self._silent = False
            case ev.BlockStarted(key, ToolCall(name=name)):
                self._calls[key], self.reads = name, _IN_CALL
            case ev.BlockEnded(key, complete) if key in self._calls:
                name = self._calls.pop(key)
                self.reads = _IN_CALL if self._calls else _IDLE
                if name and not complete:
                    told = f"the call of {name} got no end: it counts as cut off, whatever its arguments look like"
                    self._notes.changed("kiro.stream.open_call", "", told)
            case ev.Stopped(Stop(why)) if self._silent:
                meant = "the end is taken as meant, " if why is StopReason.END else ""
                self._notes.added("kiro.stream.no_usage", "", f"no context usage came: {meant}the counts are estimates")
            case _:
                pass
        return (event,)


_IDLE: EventKinds = frozenset({ev.Started, ev.UsageReported, ev.Stopped, ToolCall})
_IN_CALL: EventKinds = _IDLE | {ev.BlockEnded}


class ReportMissingEnd(Filter):
    """A stream has no end of its own: one that ends without a word about its context may have been cut
    (docs/decisions/answers.md#d7), and however it ends, its counts come from the text alone
    (docs/decisions/kiro.md#d15). A call that got no end was cut, whatever came after it.
    """

    name = "kiro.told_end"
    applies_to = NO_FEATURES
    answers = _End


class _Once(ResponseFilter):
    def __init__(self, notes: Notes, _keys: ev.BlockKeys) -> None:
        self._notes = notes
        self._last: ev.Event | None = None

    def take(self, event: ev.Event) -> ev.Events:
        repeated = isinstance(event, ev.TextDelta) and event == self._last
        self._last = event
        if repeated:
            self._notes.dropped("kiro.stream.repeated", "", "the same piece of text came twice in a row")
        return () if repeated else (event,)


class DropRepeatedText(Filter):
    """Drops a piece of text that equals the one before it. Off by default, since real answers do repeat themselves."""

    name = "kiro.keep_once"
    applies_to = NO_FEATURES
    answers = _Once


# --- Size: what is too long for the model is refused so that clients compact, or loses its oldest exchanges
# (docs/decisions/kiro.md#d10)


MOST_TOKENS = 300_000  # of one request, whatever the model's window (rule 43 of docs/dialects/kiro.md)
_KEPT = (
    3 / 4
)  # trimming by size leaves so much of what is allowed, so that it happens seldom: caches stay warm in between


class FitSize(Filter):
    """`oversize` says what happens to a conversation that is too long; `history_limit` counts its entries as well."""

    name = "kiro.fit_size"
    before = "fold_system"

    def __init__(self, window: int, oversize: str, history_limit: int | None, merges: bool) -> None:
        self._limit = min(window, MOST_TOKENS)
        self._trims = oversize == "trim"
        self._most_entries = history_limit
        self._merges = merges

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        asked = conversation.messages
        limit = self._limit
        if self._most_entries is not None:
            conversation = _with(conversation, _trimmed(asked, self._entries(asked), self._most_entries))
        counted = len(asked) - len(conversation.messages)
        size = estimate_input_tokens(conversation, facts.inventory(conversation))
        if size > limit and self._trims:
            tokens = _tokens(conversation.messages)
            around = size - tokens[0]
            conversation = _with(conversation, _trimmed(conversation.messages, tokens, int(limit * _KEPT) - around))
            size = estimate_input_tokens(conversation, facts.inventory(conversation))
        if size > limit:
            fault = context_full_fault(size, limit)
            raise Unrepresentable(fault.message, fault=fault)
        trimmed = len(asked) - counted - len(conversation.messages)
        limits = {f"history_limit is {self._most_entries}": counted}
        limits[f"the service takes no more than {limit} tokens"] = trimmed
        for why, gone in limits.items():
            if gone:
                notes.dropped("kiro.history.trimmed", "messages", f"the oldest {gone} messages are left out: {why}")
        return structs.replace(conversation, estimated_tokens=size), None

    def _entries(self, messages: Sequence[Message]) -> list[int]:
        """How many entries history has, placeholders included, if it begins at each of these messages."""
        adjacent = -1 if self._merges else 1
        entries: list[int] = []
        turns, after = 0, ""
        for message in reversed(messages):
            if message.role != "system":
                turns += 1 + (message.role == "assistant" and not after)  # the last turn is a question
                turns += adjacent if message.role == after else 0
                after = message.role
            entries.append(max(turns - 1 + (after == "assistant"), 0))
        return [*reversed(entries)] or [0]


def _with(conversation: Conversation, messages: tuple[Message, ...]) -> Conversation:
    return (
        conversation
        if messages is conversation.messages
        else structs.replace(conversation, messages=messages, estimated_tokens=None)
    )


def _tokens(messages: Sequence[Message]) -> list[int]:
    """How many tokens are left without what stands before each of these messages, system messages excepted."""
    sizes = [*map(estimate_message_tokens, messages)]
    going = (0 if message.role == "system" else size for message, size in zip(messages, sizes, strict=True))
    whole = sum(sizes)
    return [whole - gone for gone in accumulate(going, initial=0)]


def _trimmed(messages: tuple[Message, ...], left: Sequence[int], most: int) -> tuple[Message, ...]:
    """Drop whole exchanges, oldest first, until it fits or only the last is left. System messages stay."""
    if left[0] <= most:
        return messages
    cuts = [index for index, message in enumerate(messages) if index and _opens(message)]
    if not cuts:
        return messages
    cut = next((index for index in cuts if left[index] <= most), cuts[-1])
    return (*[message for message in messages[:cut] if message.role == "system"], *messages[cut:])


def _opens(message: Message) -> bool:
    """Whether an exchange begins here: with the user, and not with the answer to a call."""
    return message.role == "user" and not any(isinstance(block, ToolResult) for block in message.blocks)


# --- Images within what the service bears (rules 35 to 39 of docs/dialects/kiro.md). None is resized, none is fetched
# (docs/decisions/content.md#d9)


FORMATS = ("image/png", "image/jpeg", "image/gif", "image/webp")
LONGEST_BASE64 = 5_242_880
MOST_IN_TURN = 10
MANY = 20  # above this number in one request …
LONGEST_EDGE = 2000  # … no edge may be longer, in pixels
LINE = "[image left out: {}]"


class FitImages(Filter):
    """What cannot be sent is refused in the last turn; in earlier ones a line of text stands for it.

    See docs/decisions/content.md#d9.
    """

    name = "kiro.fit_images"
    applies_to: Features = frozenset({"media"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        many = sum(isinstance(block, Media) for message in conversation.messages for block in message.blocks) > MANY
        last = len(conversation.messages) - 1
        messages = tuple(
            [
                structs.replace(message, blocks=tuple(_image_blocks(message, index == last, many, notes)))
                if any(isinstance(block, Media) for block in message.blocks)
                else message
                for index, message in enumerate(conversation.messages)
            ]
        )
        return (conversation if len(notes) == before else structs.replace(conversation, messages=messages)), None


def _image_blocks(message: Message, last: bool, many: bool, notes: Notes) -> Iterator[Block]:
    images = [block for block in message.blocks if isinstance(block, Media)]
    too_many = len(images) - MOST_IN_TURN
    for block in message.blocks:
        if not isinstance(block, Media):
            yield block
            continue
        image = _plain_image(block, notes)
        problem = _problem(image, many)
        if too_many > 0:  # the newest stay
            too_many -= 1
            problem = problem or f"more than {MOST_IN_TURN} images in one turn"
        if message.role != "user":
            problem = problem or "the model's own turns hold no images"
        if not problem:
            yield image
        elif last:
            raise Unrepresentable(f"the image cannot be sent: {problem}", at=block.at.path)
        else:
            notes.dropped(
                "kiro.image.replaced", block.at.path, f"an old image cannot be sent: {problem}; a line stands for it"
            )
            yield Text(LINE.format(problem), at=block.at)


def _plain_image(image: Media, notes: Notes) -> Media:
    """The image with its format by its right name, and without a name of its own."""
    mime = image.mime.lower()
    mime = "image/jpeg" if mime == "image/jpg" else mime
    if (mime, "") == (image.mime, image.name):
        return image
    action: Action = "dropped" if image.name else "changed"
    notes.add("kiro.image.format", action, image.at.path, f"the image is sent as {mime}, without a name")
    return structs.replace(image, mime=mime, name="")


def _problem(image: Media, many: bool) -> str:
    if image.mime not in FORMATS:
        return f"{image.mime or 'no format'} is not one of {', '.join(FORMATS)}"
    if len(image.data) > LONGEST_BASE64:
        return f"image exceeds 5 MB maximum: {len(image.data)} bytes > {LONGEST_BASE64} bytes"
    data = base64_bytes(image.data)
    if data is None:
        return "it is no base64"
    if not data:
        return "it is empty"
    edge = max(parse_image_size(data), default=0) if many else 0
    if edge > LONGEST_EDGE:
        return f"an edge of {edge} pixels, and more than {MANY} images in the request"
    return ""


# --- Half characters: a lone surrogate makes the service refuse the whole body as no JSON (rule 34 of
# docs/dialects/kiro.md)


REPLACEMENT = "\ufffd"
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
N = TypeVar("N", Text, ToolCall, ToolResult, ToolSpec)


class ReplaceSurrogates(Filter):
    """Each lone surrogate becomes U+FFFD. A thought is no longer what was sealed, then."""

    name = "kiro.whole_characters"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if jsonio.is_encodable(conversation.tools) and _are_whole(facts.inventory(conversation)):
            return conversation, None
        messages = tuple([_whole_message(message) for message in conversation.messages])
        tools = tuple([_whole_tool(tool) if isinstance(tool, ToolSpec) else tool for tool in conversation.tools])
        if messages == conversation.messages and tools == conversation.tools:
            return conversation, None
        places = [new.at.path for new, old in zip(messages, conversation.messages, strict=True) if new != old]
        notes.changed(
            "kiro.text.surrogate", next(iter(places), "tools"), "half a character became the replacement character"
        )
        return structs.replace(conversation, messages=messages, tools=tools), None


def _are_whole(held: Inventory) -> bool:
    suspects = [text for text in held.words if not text.isascii()]
    suspects += [thought.text for thought in held.thoughts]
    return all(map(_is_whole, suspects)) and not any(map(_has_halves, [call.arguments for call in held.calls]))


def _whole_message(message: Message) -> Message:
    blocks = tuple([_whole_block(block) for block in message.blocks])
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _whole_block(block: Block) -> Block:
    match block:
        case Text(text):
            return _replaced(block, text=_whole(text))
        case Reasoning(text) if not _is_whole(text):
            return structs.replace(block, text=_whole(text), signature=None)
        case ToolCall(arguments=arguments):
            return _replaced(block, arguments=_arguments(arguments))
        case ToolResult(content=content):
            return _replaced(block, content=tuple([_whole_block(part) for part in content]))
        case _:
            return block


def _whole_tool(tool: ToolSpec) -> ToolSpec:
    return _replaced(
        tool, description=_whole(tool.description), schema=_value({**tool.schema}) if tool.schema else tool.schema
    )


def _replaced(node: N, **changes: object) -> N:
    """The node with these fields, or itself if they are as they were."""
    return (
        node
        if all(getattr(node, name) == value for name, value in changes.items())
        else structs.replace(node, **changes)
    )


def _whole(text: str) -> str:
    return text if _is_whole(text) else _LONE.sub(REPLACEMENT, text)


def _is_whole(text: str) -> bool:
    """Whether there is no half character in it; the text keeps its bytes for the next writer."""
    if type(text) is ObjectText:
        return True
    try:
        Raw(text)
    except UnicodeEncodeError:
        return False
    return True


def _has_halves(arguments: str) -> bool:
    """Whether there may be half a character in it, plainly or escaped."""
    if isinstance(arguments, jsonio.ObjectText):
        return False
    return not _is_whole(arguments) or _ESCAPED.search(arguments) is not None


def _arguments(arguments: str) -> str:
    if not _has_halves(arguments):
        return arguments
    try:
        value = jsonio.decode(arguments)
    except jsonio.JsonError:
        return _whole(arguments)
    whole = _value(value)
    return arguments if whole == value else jsonio.encode(whole).decode()


def _value(value: Json) -> Json:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, list):
        return [_value(each) for each in value]
    if isinstance(value, dict):
        return {_whole(name): _value(each) for name, each in value.items()}
    return value
