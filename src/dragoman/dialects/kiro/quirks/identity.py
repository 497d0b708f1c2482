"""Who is asked, and in which conversation: the service's own names for both, and what it cannot be told."""

from __future__ import annotations

import re
from functools import partial
from typing import ClassVar

from msgspec import structs

from dragoman.dialects.kiro.models import PATTERN, name_of
from dragoman.dialects.kiro.request import conversation_id, first_words
from dragoman.dialects.kiro.turns import FAMILY, IDENTITY, own_fields
from dragoman.errors import UnknownModel
from dragoman.model.blocks import Extra, ToolCall
from dragoman.model.conversation import Conversation, Message, Stop, Why
from dragoman.model.events import (
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Event,
    Events,
    Started,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.model.facts import Facts
from dragoman.model.filter import Back, Filter, MakeBack
from dragoman.model.notes import Notes

_SESSION = re.compile(r"session[\W_]*(?:id[\W_]*)?([0-9a-fA-F][0-9a-fA-F-]{15,})")


class NameModel(Filter):
    """The model under the service's name (facts 1.8). The answer gives the client's own name back."""

    name = "kiro.name_model"
    before = "fold_system"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        asked = conversation.model
        named = name_of(asked)
        if named.strip() and not PATTERN.fullmatch(named):
            raise UnknownModel("no model of this service has such a name", at="model")
        if named == asked:
            return conversation, None
        notes.renamed("kiro.model", "model", f"{asked!r} is {named!r} here")
        return structs.replace(conversation, model=named), partial(_Renamed, named, asked)


class _Renamed(Back):
    reads = frozenset({Started})

    def __init__(self, named: str, asked: str, _notes: Notes, _keys: BlockKeys) -> None:
        self._named = named
        self._asked = asked

    def feed(self, events: Events) -> Events:
        if events and isinstance(events[0], Started) and events[0].model == self._named:
            return (structs.replace(events[0], model=self._asked), *events[1:])
        return events


class NameConversation(Filter):
    """A conversation id that all its turns share: made of the client's session, else of the first user turn (D17)."""

    name = "kiro.name_conversation"
    before = "fold_system"

    def __init__(self, fixed: str) -> None:
        self._fixed = fixed

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        fields = own_fields(conversation.extra)
        user = conversation.user
        named_already = "conversationId" in fields or bool(self._fixed)
        if user and named_already:
            notes.dropped("user.dropped", "user", "the target takes no user id, and the conversation has its id")
        elif user:
            notes.changed("kiro.conversation_id", "user", "there is no user id here; it names the conversation instead")
        if "conversationId" not in fields:
            named = self._fixed or conversation_id(_seed(user, conversation.messages))
            extra = conversation.extra
            spelling = extra.spelling if extra is not None else frozenset[str]()
            fields = {**fields, "conversationId": named}
            conversation = structs.replace(
                conversation, extra=Extra(FAMILY, fields, spelling.union(IDENTITY.intersection(fields)))
            )
        return (structs.replace(conversation, user="") if user else conversation), None


def _seed(user: str, messages: tuple[Message, ...]) -> str:
    """The session if the user id holds one, as some clients write it; else the user and their first words."""
    session = _SESSION.search(user)
    return session[1] if session else f"{user}\0{first_words(messages)}"


class OnlyStream(Filter):
    """Every answer is a stream; a client that wants it whole gets it gathered."""

    name = "kiro.only_stream"
    before = "fold_system"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if not conversation.stream:
            notes.changed("kiro.stream", "stream", "the service only streams; the answer is gathered into one")
            conversation = structs.replace(conversation, stream=True)
        return conversation, None


class NoLength(Filter):
    """The length of an answer cannot be limited."""

    name = "kiro.no_length"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if conversation.max_tokens is None:
            return conversation, None
        notes.dropped("kiro.max_tokens", "max_tokens", "it is not sent: the length of an answer cannot be limited")
        return structs.replace(conversation, max_tokens=None), None


class ToldEnd(Filter):
    """A stream has no end of its own: one that ends without a word about its context may have been cut (D7), and
    however it ends, its counts come from the text alone (D15). A call that got no end was cut, whatever came after it.
    """

    name = "kiro.told_end"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        return conversation, _End


class _End(Back):
    reads: ClassVar[frozenset[type[Event]]] = frozenset({Started, UsageReported, Stopped, BlockStarted, BlockEnded})

    def __init__(self, notes: Notes, _keys: BlockKeys) -> None:
        self._notes = notes
        self._silent = False  # no figure of the service has come, neither counts nor a percentage
        self._calls: dict[int, str] = {}  # open ones, and what they call

    def feed(self, events: Events) -> Events:
        for event in events:
            if type(event) in self.reads:
                self._take(event)
        return events

    def _take(self, event: Event) -> None:
        match event:
            case Started(usage=usage):
                self._silent = usage is not None and usage.estimated
            case UsageReported():
                self._silent = False
            case BlockStarted(key, ToolCall(name=name)):
                self._calls[key] = name
            case BlockEnded(key, complete):
                name = self._calls.pop(key, "")
                if name and not complete:
                    told = f"the call of {name} got no end: it counts as cut off, whatever its arguments look like"
                    self._notes.changed("kiro.stream.open_call", "", told)
            case Stopped(Stop(why)) if self._silent:
                meant = "the end is taken as meant, " if why is Why.END else ""
                self._notes.added("kiro.stream.no_usage", "", f"no context usage came: {meant}the counts are estimates")
            case _:
                pass


class KeepOnce(Filter):
    """Drops a piece of text that equals the one before it. Off by default, since real answers do repeat themselves."""

    name = "kiro.keep_once"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        return conversation, _Once


class _Once(Back):
    def __init__(self, notes: Notes, _keys: BlockKeys) -> None:
        self._notes = notes
        self._last: Event | None = None

    def feed(self, events: Events) -> Events:
        kept = tuple(event for event in events if self._fresh(event))
        return events if len(kept) == len(events) else kept

    def _fresh(self, event: Event) -> bool:
        repeated = isinstance(event, TextDelta) and event == self._last
        if repeated:
            self._notes.dropped("kiro.stream.repeated", "", "the same piece of text came twice in a row")
        self._last = event
        return not repeated
