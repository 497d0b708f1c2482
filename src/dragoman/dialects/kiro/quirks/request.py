"""Filters for the request as a whole: names, ids, size, images, surrogates; and for the end of the stream. Pure."""

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
    """Set the model's name, the conversation id and streaming as the service expects them.

    The model gets the service's name (docs/dialects/kiro.md#models), and the response gets the client's name back. All
    requests of a conversation share an id, derived from the client's session, else from the first user turn
    (docs/decisions/kiro.md#d17). Every response is a stream; for a whole reply the events are collected into one.
    """

    name = "kiro.name_request"
    before = "fold_system"

    def __init__(self, conversation_id: str) -> None:
        self._fixed_id = conversation_id

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        requested, user = conversation.model, conversation.user
        if not conversation.stream:
            notes.changed("kiro.stream", "stream", "the service only streams; the events are collected into one reply")
        model = normalize_model_name(requested)
        if model.strip() and not MODEL_ID_PATTERN.fullmatch(model):
            raise UnknownModel("the model's name has characters that Kiro does not allow, or is too long", at="model")
        if model != requested:
            notes.renamed("kiro.model", "model", f"{requested!r} is {model!r} on this service")
        extra, fields = conversation.extra, own_fields(conversation.extra)
        if user and ("conversationId" in fields or self._fixed_id):
            notes.dropped("user.dropped", "user", "the target accepts no user id, and the conversation has an id")
        elif user:
            notes.changed(
                "kiro.conversation_id", "user", "the target accepts no user id; the conversation id is derived from it"
            )
        if "conversationId" not in fields:
            session = _SESSION.search(user)  # some clients write their session id into the user id
            derived = conversation_id(session[1]) if session else conversation_id(f"{user}\0", conversation.messages)
            fields = {**fields, "conversationId": self._fixed_id or derived}
            spelling = extra.spelling if extra is not None else frozenset[str]()
            extra = Extra(FAMILY, fields, spelling.union(IDENTITY.intersection(fields)))
        conversation = structs.replace(conversation, model=model, extra=extra, stream=True, user="")
        return conversation, partial(_RestoreModelName, model, requested) if model != requested else None


class _RestoreModelName(ResponseFilter):
    reads: EventKinds = frozenset({ev.Started})

    def __init__(self, sent: str, requested: str, _notes: Notes, _keys: ev.BlockKeys) -> None:
        self._sent = sent
        self._requested = requested

    def take(self, event: ev.Event) -> ev.Events:
        if isinstance(event, ev.Started) and event.model == self._sent:
            return (structs.replace(event, model=self._requested),)
        return (event,)


class DropMaxTokens(Filter):
    """Drop `max_tokens`: the service has no setting for the length of a reply."""

    name = "kiro.no_length"
    applies_to: Features = frozenset({"length"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if conversation.max_tokens is None:
            return conversation, None
        notes.dropped(
            "kiro.max_tokens", "max_tokens", "max_tokens is not sent: the service cannot limit the length of a reply"
        )
        return structs.replace(conversation, max_tokens=None), None


class _CheckEnd(ResponseFilter):
    def __init__(self, notes: Notes, _keys: ev.BlockKeys) -> None:
        self.reads = _IDLE
        self._notes = notes
        self._lacks_usage = False  # the service has sent neither counts nor a percentage
        self._calls: dict[int, str] = {}  # open calls, and the names of their tools

    def take(self, event: ev.Event) -> ev.Events:
        match event:
            case ev.Started(usage=usage):
                self._lacks_usage = usage is not None and usage.estimated
            case ev.UsageReported():
                self._lacks_usage = False
            case ev.BlockStarted(key, ToolCall(name=name)):
                self._calls[key], self.reads = name, _IN_CALL
            case ev.BlockEnded(key, complete) if key in self._calls:
                name = self._calls.pop(key)
                self.reads = _IN_CALL if self._calls else _IDLE
                if name and not complete:
                    detail = f"the call of {name} has no end: it counts as cut off, even if its arguments look complete"
                    self._notes.changed("kiro.stream.open_call", "", detail)
            case ev.Stopped(Stop(why)) if self._lacks_usage:
                end = "the end counts as complete, " if why is StopReason.END else ""
                detail = f"the stream has no context usage: {end}the counts are estimates"
                self._notes.added("kiro.stream.no_usage", "", detail)
            case _:
                pass
        return (event,)


_IDLE: EventKinds = frozenset({ev.Started, ev.UsageReported, ev.Stopped, ToolCall})
_IN_CALL: EventKinds = _IDLE | {ev.BlockEnded}


class ReportMissingEnd(Filter):
    """Add a note about a stream that may have been cut.

    One without a contextUsageEvent may have been cut (docs/decisions/responses.md#d7), and its counts are estimates
    (docs/decisions/kiro.md#d15). A call without a `stop` was cut, even if other events follow it.
    """

    name = "kiro.told_end"
    applies_to = NO_FEATURES
    make_response_filter = _CheckEnd


class _DropRepeats(ResponseFilter):
    def __init__(self, notes: Notes, _keys: ev.BlockKeys) -> None:
        self._notes = notes
        self._last: ev.Event | None = None

    def take(self, event: ev.Event) -> ev.Events:
        is_repeated = isinstance(event, ev.TextDelta) and event == self._last
        self._last = event
        if is_repeated:
            self._notes.dropped(
                "kiro.stream.repeated",
                "",
                "the service sent the same text delta twice in a row; the second is left out",
            )
        return () if is_repeated else (event,)


class DropRepeatedText(Filter):
    """Drop a text delta that equals the one before it. Off by default, because real replies repeat themselves."""

    name = "kiro.keep_once"
    applies_to = NO_FEATURES
    make_response_filter = _DropRepeats


# --- size: a request that is too long is refused, so that clients compact it, or loses its oldest exchanges
# (docs/decisions/kiro.md#d10)


MAX_TOKENS = 300_000  # of one request, whatever the model's window (rule 43 of docs/dialects/kiro.md)
# Trimming by size leaves this share of the limit, so that it happens seldom: prompt caches stay valid in between.
_TRIMMED_SHARE = 3 / 4


class FitSize(Filter):
    """Refuse or trim (`oversize`) a conversation that is too long; `history_limit` limits the entries of history."""

    name = "kiro.fit_size"
    before = "fold_system"

    def __init__(self, window: int, oversize: str, history_limit: int | None, merges: bool) -> None:
        self._limit = min(window, MAX_TOKENS)
        self._trims = oversize == "trim"
        self._max_entries = history_limit
        self._merges = merges

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        original = conversation.messages
        limit = self._limit
        if self._max_entries is not None:
            conversation = _with(conversation, _trimmed(original, self._entries(original), self._max_entries))
        dropped_by_count = len(original) - len(conversation.messages)
        size = estimate_input_tokens(conversation, facts.inventory(conversation))
        if size > limit and self._trims:
            tokens = _tokens(conversation.messages)
            other_tokens = size - tokens[0]  # of the system text and tools
            room = int(limit * _TRIMMED_SHARE) - other_tokens
            conversation = _with(conversation, _trimmed(conversation.messages, tokens, room))
            size = estimate_input_tokens(conversation, facts.inventory(conversation))
        if size > limit:
            fault = context_full_fault(size, limit)
            raise Unrepresentable(fault.message, fault=fault)
        dropped_by_size = len(original) - dropped_by_count - len(conversation.messages)
        limits = {f"history_limit is {self._max_entries}": dropped_by_count}
        limits[f"the service accepts at most {limit} tokens"] = dropped_by_size
        for why, count in limits.items():
            if count:
                notes.dropped("kiro.history.trimmed", "messages", f"the oldest {count} messages are left out: {why}")
        return structs.replace(conversation, estimated_tokens=size), None

    def _entries(self, messages: Sequence[Message]) -> list[int]:
        """Return, for each message, how many entries history has if it begins there, placeholders included."""
        adjacent = -1 if self._merges else 1
        entries: list[int] = []
        turns, after = 0, ""
        for message in reversed(messages):
            if message.role != "system":
                turns += 1 + (message.role == "assistant" and not after)  # A user turn is added at the end.
                turns += adjacent if message.role == after else 0
                after = message.role
            entries.append(max(turns - 1 + (after == "assistant"), 0))
        return [*reversed(entries)] or [0]


def _with(conversation: Conversation, messages: tuple[Message, ...]) -> Conversation:
    if messages is conversation.messages:
        return conversation
    return structs.replace(conversation, messages=messages, estimated_tokens=None)


def _tokens(messages: Sequence[Message]) -> list[int]:
    """Return, for each message, the tokens that remain if those before it are dropped, except system messages."""
    sizes = [*map(estimate_message_tokens, messages)]
    droppable = (0 if message.role == "system" else size for message, size in zip(messages, sizes, strict=True))
    total = sum(sizes)
    return [total - dropped for dropped in accumulate(droppable, initial=0)]


def _trimmed(messages: tuple[Message, ...], left: Sequence[int], limit: int) -> tuple[Message, ...]:
    """Drop whole exchanges, oldest first, until the rest is within the limit or only the last exchange remains.

    `left` has the size of the rest, by the message that it begins with. System messages stay.
    """
    if left[0] <= limit:
        return messages
    cuts = [index for index, message in enumerate(messages) if index and _starts_exchange(message)]
    if not cuts:
        return messages
    cut = next((index for index in cuts if left[index] <= limit), cuts[-1])
    return (*[message for message in messages[:cut] if message.role == "system"], *messages[cut:])


def _starts_exchange(message: Message) -> bool:
    """Return whether an exchange begins here: with a user turn without tool results."""
    return message.role == "user" and not any(isinstance(block, ToolResult) for block in message.blocks)


# --- images within the limits of the service (rules 35 to 39 of docs/dialects/kiro.md). None is resized or fetched
# (docs/decisions/content.md#d9)


FORMATS = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_BASE64 = 5_242_880
MAX_IN_TURN = 10
MANY = 20  # above this number in one request …
MAX_EDGE = 2000  # … no edge may be longer, in pixels
LINE = "[image left out: {}]"


class FitImages(Filter):
    """Refuse an image that cannot be sent if it is in the last turn; in earlier turns replace it with a line of text.

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
    too_many = len(images) - MAX_IN_TURN
    for block in message.blocks:
        if not isinstance(block, Media):
            yield block
            continue
        image = _plain_image(block, notes)
        problem = _problem(image, many)
        if too_many > 0:  # The newest images stay.
            too_many -= 1
            problem = problem or f"the turn has more than {MAX_IN_TURN} images"
        if message.role != "user":
            problem = problem or "the model's own turns hold no images"
        if not problem:
            yield image
        elif last:
            raise Unrepresentable(f"the image cannot be sent: {problem}", at=block.at.path)
        else:
            detail = f"an old image cannot be sent: {problem}; a line of text replaces it"
            notes.dropped("kiro.image.replaced", block.at.path, detail)
            yield Text(LINE.format(problem), at=block.at)


def _plain_image(image: Media, notes: Notes) -> Media:
    """Return the image with a normalized type and without a file name."""
    mime = image.mime.lower()
    mime = "image/jpeg" if mime == "image/jpg" else mime
    if (mime, "") == (image.mime, image.name):
        return image
    action: Action = "dropped" if image.name else "changed"
    notes.add("kiro.image.format", action, image.at.path, f"the image is sent as {mime}, without a file name")
    return structs.replace(image, mime=mime, name="")


def _problem(image: Media, many: bool) -> str:
    if image.mime not in FORMATS:
        return f"{image.mime or 'no format'} is not one of {', '.join(FORMATS)}"
    if len(image.data) > MAX_BASE64:
        return f"image exceeds 5 MB maximum: {len(image.data)} bytes > {MAX_BASE64} bytes"
    data = base64_bytes(image.data)
    if data is None:
        return "it is not base64"
    if not data:
        return "it is empty"
    edge = max(parse_image_size(data), default=0) if many else 0
    if edge > MAX_EDGE:
        return f"it has an edge of {edge} pixels, and the request has more than {MANY} images"
    return ""


# --- unpaired surrogates, for which the service refuses the whole body (rule 34 of docs/dialects/kiro.md)


REPLACEMENT = "\ufffd"
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")
N = TypeVar("N", Text, ToolCall, ToolResult, ToolSpec)


class ReplaceSurrogates(Filter):
    """Replace each unpaired surrogate by U+FFFD; a thought that changes loses its signature."""

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
        notes.changed("kiro.text.surrogate", next(iter(places), "tools"), "unpaired surrogates are replaced by U+FFFD")
        return structs.replace(conversation, messages=messages, tools=tools), None


def _are_whole(content: Inventory) -> bool:
    suspects = [text for text in content.words if not text.isascii()]
    suspects += [thought.text for thought in content.thoughts]
    return all(map(_is_whole, suspects)) and not any(map(_has_surrogates, [call.arguments for call in content.calls]))


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
    """Return the node with these fields; the node itself if they do not change."""
    is_same = all(getattr(node, name) == value for name, value in changes.items())
    return node if is_same else structs.replace(node, **changes)


def _whole(text: str) -> str:
    return text if _is_whole(text) else _SURROGATE.sub(REPLACEMENT, text)


def _is_whole(text: str) -> bool:
    """Return whether the text has no unpaired surrogate. This also caches its UTF-8 bytes for the next encoder."""
    if type(text) is ObjectText:
        return True
    try:
        Raw(text)
    except UnicodeEncodeError:
        return False
    return True


def _has_surrogates(arguments: str) -> bool:
    """Return whether the arguments may have an unpaired surrogate, as a character or escaped."""
    if isinstance(arguments, jsonio.ObjectText):
        return False
    return not _is_whole(arguments) or _ESCAPED.search(arguments) is not None


def _arguments(arguments: str) -> str:
    if not _has_surrogates(arguments):
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
