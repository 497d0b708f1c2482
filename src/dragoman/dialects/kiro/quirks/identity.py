"""Who is asked, and in which conversation: the service's own names for both, and what it cannot be told."""

from __future__ import annotations

import re
from functools import partial

from msgspec import structs

from dragoman.dialects.kiro.models import PATTERN, name_of
from dragoman.dialects.kiro.request import conversation_id, first_words
from dragoman.dialects.kiro.turns import FAMILY, IDENTITY, own_fields
from dragoman.errors import UnknownModel
from dragoman.model.blocks import Extra, ToolCall
from dragoman.model.conversation import Conversation, Stop, Why
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
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import NEVER, Back, Filter, MakeBack, Reads
from dragoman.model.notes import Notes

_SESSION = re.compile(r"session[\W_]*(?:id[\W_]*)?([0-9a-fA-F][0-9a-fA-F-]{15,})")


class NameRequest(Filter):
    """What the service knows a request by, in its own words: the model's name, the conversation's id, a stream.

    The model has the service's name (facts 1.8); the answer gives the client's own name back. All turns of a
    conversation share an id, made of the client's session, else of the first user turn (D17). Every answer is a stream;
    a client that wants it whole gets it gathered.
    """

    name = "kiro.name_request"
    before = "fold_system"

    def __init__(self, conversation_id: str) -> None:
        self._fixed = conversation_id

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        asked, user = conversation.model, conversation.user
        if not conversation.stream:
            notes.changed("kiro.stream", "stream", "the service only streams; the answer is gathered into one")
        named = name_of(asked)
        if named.strip() and not PATTERN.fullmatch(named):
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
            seed = session[1] if session else f"{user}\0{first_words(conversation.messages)}"
            fields = {**fields, "conversationId": self._fixed or conversation_id(seed)}
            spelling = extra.spelling if extra is not None else frozenset[str]()
            extra = Extra(FAMILY, fields, spelling.union(IDENTITY.intersection(fields)))
        conversation = structs.replace(conversation, model=named, extra=extra, stream=True, user="")
        return conversation, partial(_Renamed, named, asked) if named != asked else None


class _Renamed(Back):
    reads: Reads = frozenset({Started})

    def __init__(self, named: str, asked: str, _notes: Notes, _keys: BlockKeys) -> None:
        self._named = named
        self._asked = asked

    def take(self, event: Event) -> Events:
        if isinstance(event, Started) and event.model == self._named:
            return (structs.replace(event, model=self._asked),)
        return (event,)


class NoLength(Filter):
    """The length of an answer cannot be limited."""

    name = "kiro.no_length"
    concerns: Features = frozenset({"length"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if conversation.max_tokens is None:
            return conversation, None
        notes.dropped("kiro.max_tokens", "max_tokens", "it is not sent: the length of an answer cannot be limited")
        return structs.replace(conversation, max_tokens=None), None


class _End(Back):
    def __init__(self, notes: Notes, _keys: BlockKeys) -> None:
        self.reads = _IDLE
        self._notes = notes
        self._silent = False  # no figure of the service has come, neither counts nor a percentage
        self._calls: dict[int, str] = {}  # open ones, and what they call

    def take(self, event: Event) -> Events:
        match event:
            case Started(usage=usage):
                self._silent = usage is not None and usage.estimated
            case UsageReported():
                self._silent = False
            case BlockStarted(key, ToolCall(name=name)):
                self._calls[key], self.reads = name, _IN_CALL
            case BlockEnded(key, complete) if key in self._calls:
                name = self._calls.pop(key)
                self.reads = _IN_CALL if self._calls else _IDLE
                if name and not complete:
                    told = f"the call of {name} got no end: it counts as cut off, whatever its arguments look like"
                    self._notes.changed("kiro.stream.open_call", "", told)
            case Stopped(Stop(why)) if self._silent:
                meant = "the end is taken as meant, " if why is Why.END else ""
                self._notes.added("kiro.stream.no_usage", "", f"no context usage came: {meant}the counts are estimates")
            case _:
                pass
        return (event,)


_IDLE: Reads = frozenset({Started, UsageReported, Stopped, ToolCall})
_IN_CALL: Reads = _IDLE | {BlockEnded}


class ToldEnd(Filter):
    """A stream has no end of its own: one that ends without a word about its context may have been cut (D7), and
    however it ends, its counts come from the text alone (D15). A call that got no end was cut, whatever came after it.
    """

    name = "kiro.told_end"
    concerns = NEVER
    answers = _End


class _Once(Back):
    def __init__(self, notes: Notes, _keys: BlockKeys) -> None:
        self._notes = notes
        self._last: Event | None = None

    def take(self, event: Event) -> Events:
        repeated = isinstance(event, TextDelta) and event == self._last
        self._last = event
        if repeated:
            self._notes.dropped("kiro.stream.repeated", "", "the same piece of text came twice in a row")
        return () if repeated else (event,)


class KeepOnce(Filter):
    """Drops a piece of text that equals the one before it. Off by default, since real answers do repeat themselves."""

    name = "kiro.keep_once"
    concerns = NEVER
    answers = _Once
