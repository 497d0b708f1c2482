"""Filters of calls: their names and ids, and the form of their arguments.

RenameTools: names and ids that the target allows (docs/decisions/content.md#d4), the way back, and an id for every call
of an answer (docs/decisions/content.md#d5).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import cache, partial
from hashlib import sha256

from msgspec import Struct, structs

from dragoman.errors import Fault
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Extra, Location, Opaque, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities, IdentifierFormat
from dragoman.model.conversation import (
    NATIVE_NAME,
    Choice,
    Conversation,
    Message,
    Reply,
    StopReason,
    ToolChoice,
    ToolSpec,
)
from dragoman.model.filter import (
    NO_FEATURES,
    EventKinds,
    Facts,
    Filter,
    LaneWatch,
    MakeResponseFilter,
    MessageFilter,
    Notes,
    ResponseFilter,
)
from dragoman.wire import jsonio
from dragoman.wire.jsonio import ObjectScanner

_HASH = 8
_NO_NAMES: Mapping[str, str] = {}


def fit_alphabet(text: str, alphabet: IdentifierFormat) -> str:
    """The text itself if the alphabet allows it, else a cleaned prefix and eight characters of its hash.

    A function of the text alone: the same on a call and its result, in every request, whatever stands around it.
    """
    legal, illegal, joint = _rules(alphabet)
    if legal.fullmatch(text):
        return text
    prefix = illegal.sub(joint, text)[: alphabet.limit - _HASH - len(joint)]
    return prefix + joint + _digest(text)[:_HASH]


@cache
def _rules(alphabet: IdentifierFormat) -> tuple[re.Pattern[str], re.Pattern[str], str]:
    characters = alphabet.pattern
    joint = "_" if re.fullmatch(f"[{characters}]", "_") else ""
    return re.compile(f"[{characters}]{{1,{alphabet.limit}}}"), re.compile(f"[^{characters}]"), joint


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


class RenameTools(Filter):
    name = "rename_tools"

    def __init__(self, upstream: Capabilities, family: str = "") -> None:
        self._family = family
        self._names = upstream.names
        self._ids = upstream.ids

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        tools, turns, held = conversation.tools, str(len(conversation.messages)), facts.inventory(conversation)
        used = {call.id for call in held.calls}.union([result.call_id for result in held.results])
        called = {call.name for call in held.calls}.union([tool.name for tool in tools if isinstance(tool, ToolSpec)])
        if _allows(self._names, called) and _allows(self._ids, used):  # as most do
            return conversation, partial(_Back, _NO_NAMES, used, turns)
        names = _Aliases(self._names, "tools.renamed", notes, self._family)
        ids = _Aliases(self._ids, "ids.renamed", notes)
        tools = tuple([_tool(tool, names) for tool in tools])
        for call in held.calls:
            ids.of(call.id, call.at)
            names.of(call.name, call.at, call.extra)
        for result in held.results:
            ids.of(result.call_id, result.at)
        choice = _choice(conversation.tool_choice, conversation.tools, names)
        if names.originals or ids.originals:
            messages = tuple([_message(message, names, ids) for message in conversation.messages])
            conversation = structs.replace(conversation, tools=tools, messages=messages, tool_choice=choice)
        return conversation, partial(_Back, names.originals, ids.aliases, turns)


def _allows(alphabet: IdentifierFormat, texts: set[str]) -> bool:
    """Whether none of these needs an alias."""
    if not texts:
        return True
    fits = "" not in texts and max(map(len, texts)) <= alphabet.limit
    return fits and _rules(alphabet)[1].search("".join(texts)) is None


class _Aliases:
    """The aliases of one request; each new one is noted, at the first place that needs it."""

    def __init__(self, alphabet: IdentifierFormat, rule: str, notes: Notes, family: str = "") -> None:
        self._alphabet = alphabet
        self._family = family
        self._legal = _rules(alphabet)[0].fullmatch
        self._rule = rule
        self._notes = notes
        self.aliases: dict[str, str] = {}
        self.originals: dict[str, str] = {}  # by alias, of those that needed one

    def of(self, text: str, at: Location, extra: Extra | None = None) -> str:
        alias = self.aliases.get(text)
        if alias is None:
            fits = self._legal(text) or self._has_another(extra)
            alias = self.aliases[text] = text if fits else fit_alphabet(text, self._alphabet)
            if alias != text:
                self.originals[alias] = text
                self._notes.renamed(self._rule, at.path, f"{text!r} is sent as {alias!r}")
        return alias

    def _has_another(self, extra: Extra | None) -> bool:
        """Whether the target gets another name than this one, and that one is legal."""
        name = extra.fields.get(NATIVE_NAME) if extra is not None and extra.family == self._family else None
        return isinstance(name, str) and self._legal(name) is not None


def _tool(tool: ToolSpec | Opaque, names: _Aliases) -> ToolSpec | Opaque:
    if isinstance(tool, Opaque):
        return tool
    name = names.of(tool.name, tool.at, tool.extra)
    return tool if name == tool.name else structs.replace(tool, name=name)


def _choice(choice: ToolChoice, tools: Iterable[ToolSpec | Opaque], names: _Aliases) -> ToolChoice:
    """The choice by the names that go out; a tool that is not ours to rename keeps its own."""
    ours = {tool.name for tool in tools if isinstance(tool, ToolSpec)} if choice.names else ()
    allowed = tuple([names.of(name, choice.at) if name in ours else name for name in choice.names])
    return choice if allowed == choice.names else structs.replace(choice, names=allowed)


def _message(message: Message, names: _Aliases, ids: _Aliases) -> Message:
    blocks = tuple([_block(block, names, ids) for block in message.blocks])
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _block(block: Block, names: _Aliases, ids: _Aliases) -> Block:
    if isinstance(block, ToolCall):
        id_, name = ids.of(block.id, block.at), names.of(block.name, block.at, block.extra)
        return block if (id_, name) == (block.id, block.name) else structs.replace(block, id=id_, name=name)
    if isinstance(block, ToolResult):
        id_ = ids.of(block.call_id, block.at)
        return block if id_ == block.call_id else structs.replace(block, call_id=id_)
    return block


class _Back(Struct, ResponseFilter, eq=False):
    """Restores the names this request changed, and sees to it that every call of the answer has an id of its own.

    Some upstreams send none, or begin with `call_0` in every answer, which a client that pairs by id alone mistakes for
    the old call. `_seed` begins with the request's length, which tells the answers of one conversation apart when
    `Started.id` does not.
    """

    _names: Mapping[str, str]
    _taken: Collection[str]
    _seed: str
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = frozenset({ev.Started, ToolCall})
    _given: dict[tuple[int, str], bool] = {}  # a set, small while it is empty
    _calls: int = 0

    def take(self, event: ev.Event) -> ev.Events:
        if isinstance(event, ev.Started):
            self._seed = f"{self._seed}\0{event.id}"
        if not isinstance(event, ev.BlockStarted) or not isinstance(event.block, ToolCall):
            return (event,)
        call, choice = event.block, event.choice
        name, id_ = self._names.get(call.name, call.name), call.id
        if not id_ or id_ in self._taken or (choice, id_) in self._given:
            id_ = "call_" + _digest(f"{self._seed}\0{self._calls}\0{name}")[:24]
            if call.id:
                self._notes.renamed("ids.reused", "", f"the id {call.id!r} is in use; this call of {name} is {id_!r}")
            else:
                self._notes.added("ids.minted", "", f"the call of {name} came without an id; it is {id_!r}")
        self._calls += 1
        self._given[choice, id_] = True
        if (id_, name) == (call.id, call.name):
            return (event,)
        return (structs.replace(event, block=structs.replace(call, id=id_, name=name)),)


# --- wrap_arguments: where a dialect needs an object, tool arguments are one (docs/decisions/content.md#d3).
#
# Empty stays empty (every codec spells it `{}`); a JSON string that holds an object is unwrapped; anything else, such
# as free text that was not asked for, becomes `{"raw_arguments": "<text>"}`. In a stream, arguments that begin with
# `{` pass live; others are held and sent as one. Where a client's streams have whole calls only, each call is held
# until its end, and one that was cut off is left out.


HELD_LIMIT = 1024 * 1024  # characters of one call that may be held (docs/decisions/raw_tools.md#d22)
WHOLE_LIMIT = 32 * 1024 * 1024  # of one that must come whole: as much as a frame may have


def as_object(arguments: str) -> str:
    """The arguments as the text of a JSON object, the same text where it is one or is empty."""
    if isinstance(arguments, jsonio.ObjectText):
        return arguments
    if not arguments.strip():
        return ""
    value = jsonio.try_decode(arguments)
    if isinstance(value, dict):
        return arguments
    if isinstance(value, str):
        inner = value.strip()
        if not inner or isinstance(jsonio.try_decode(inner), dict):
            return inner
    return jsonio.encode({"raw_arguments": arguments}).decode()


_IDLE: EventKinds = frozenset({ToolCall})
_IN_CALL: EventKinds = _IDLE | {ev.ArgumentsDelta, ev.BlockEnded}
_WHOLE: EventKinds = _IN_CALL | {ev.SignatureAdded, ev.Stopped}


class WrapArguments(MessageFilter):
    name = "wrap_arguments"

    def __init__(self, client: Capabilities, upstream: Capabilities) -> None:
        self._must = upstream.arguments == "object"
        self.applies_to = frozenset({"calls"}) if self._must else NO_FEATURES
        if client.arguments == "object":
            self.answers = _WholeCalls if "whole_calls" in client.traits else _Objects

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        calls = facts.inventory(conversation).calls if self._must else []
        if not [call for call in calls if call.form != "json" or not isinstance(call.arguments, jsonio.ObjectText)]:
            return conversation, None
        return super().forward(conversation, notes, facts)

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        return (_settle(block, notes),)


def _settle(block: Block, notes: Notes) -> Block:
    if not isinstance(block, ToolCall):
        return block
    block = _as_json(block)
    arguments = as_object(block.arguments)
    if arguments == block.arguments:
        return block
    if block.arguments.strip():  # blank is only another way to say nothing
        notes.changed(
            "arguments.wrapped",
            block.at.path,
            f"the arguments of {block.name} were no JSON object; now they are in one",
        )
    return structs.replace(block, arguments=arguments)


def _as_json(call: ToolCall) -> ToolCall:
    return call if call.form == "json" else structs.replace(call, form="json")


def wrap_reply_arguments(reply: Reply, notes: Notes) -> Reply:
    """What a stream had to let pass (it began as an object but is none) a whole reply can still put right."""
    choices = tuple(
        Choice(tuple(_settle(block, notes) for block in choice.blocks), choice.stop) for choice in reply.choices
    )
    return reply if choices == reply.choices else structs.replace(reply, choices=choices)


class _Arguments(Struct):
    """The arguments of one open call."""

    scanner: ObjectScanner | None = None  # set once they are known to begin as an object
    tail: bool = False  # something stands after the object
    held: ev.TextBuffer | None = None  # arguments that do not begin so

    def scan(self, text: str) -> None:
        """Follow more of an object."""
        if self.scanner is not None and self.scanner.feed(text).strip():
            self.tail = True


class _Objects(Struct, ResponseFilter, eq=False):
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _IDLE
    _calls: dict[int, _Arguments] = {}
    _failed: bool = False

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        call = self._calls.get(key)
        if call is None or call.scanner is None or self._failed:
            return None
        return LaneWatch(listener=call.scan)

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        if self._failed:
            return ()
        match event:
            case ev.ArgumentsDelta(key, text) if (call := self._calls.get(key)) is not None:
                if call.scanner is None:
                    return self._grow(key, text, call)
                call.scan(text)
            case ev.BlockStarted(key, ToolCall() as block):
                self._calls[key], self.reads = _Arguments(), _IN_CALL
                return (event if block.form == "json" else structs.replace(event, block=_as_json(block)),)
            case ev.BlockEnded(key) if (call := self._calls.pop(key, None)) is not None:
                self.reads = _IN_CALL if self._calls else _IDLE
                if call.held is not None or (call.scanner and (call.tail or not call.scanner.is_complete)):
                    return (*self._end(key, call), event)
            case _:
                pass
        return (event,)

    def _grow(self, key: int, text: str, call: _Arguments) -> ev.Events:
        """Take more of arguments that have not begun, or that are held."""
        begun = text.lstrip() if call.held is None else text
        if call.held is None and begun.startswith("{"):
            call.scanner = ObjectScanner()
            call.scan(begun)
            return (ev.ArgumentsDelta(key, text),)
        if begun:
            call.held = call.held or ev.TextBuffer(self._keys.budget)
            call.held.add(text)
            if len(call.held) > HELD_LIMIT:
                self._failed, self.reads = True, None
                why = f"tool arguments that are no JSON object grew beyond {HELD_LIMIT} characters"
                return (ev.Failed(Fault("server", why)),)
        return ()

    def _end(self, key: int, call: _Arguments) -> ev.Events:
        """Note what was no whole object; give what was held."""
        if call.held is None:
            self._notes.changed(
                "arguments.not_json", "", "the arguments of a call began as an object but are not a whole one"
            )
            return ()
        arguments = as_object(call.held.take())
        self._notes.changed("arguments.wrapped", "", "the arguments of a call were no JSON object; now they are in one")
        return (ev.ArgumentsDelta(key, arguments),) if arguments else ()


class _Gathered(Struct, eq=False):
    """A call that is not out yet."""

    started: ev.BlockStarted
    pieces: ev.TextBuffer
    seals: list[ev.Event] = []

    def events(self, arguments: str) -> Iterable[ev.Event]:
        yield self.started
        if arguments:
            yield ev.ArgumentsDelta(self.started.key, arguments)
        yield from self.seals
        yield ev.BlockEnded(self.started.key)


class _WholeCalls(Struct, ResponseFilter, eq=False):
    """Every call in one piece. One that is no object waits for the stop, which tells whether the length cut it.

    See docs/decisions/answers.md#d7.
    """

    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _WHOLE
    _calls: dict[int, _Gathered] = {}
    _odd: list[_Gathered] = []
    _failed: bool = False

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        if self._failed:
            return
        match event:
            case ev.BlockStarted(key, ToolCall() as block):
                self._calls[key] = _Gathered(
                    structs.replace(event, block=_as_json(block)), ev.TextBuffer(self._keys.budget)
                )
            case ev.ArgumentsDelta(key, text) if (call := self._calls.get(key)) is not None:
                call.pieces.add(text)
                if len(call.pieces) > WHOLE_LIMIT:
                    self._failed, self.reads = True, None
                    yield ev.Failed(Fault("server", f"tool arguments grew beyond {WHOLE_LIMIT} characters"))
            case ev.SignatureAdded(key) if (call := self._calls.get(key)) is not None:
                self._keys.budget.reserve(ev.event_size(event))
                call.seals.append(event)
            case ev.BlockEnded(key, complete) if (call := self._calls.pop(key, None)) is not None:
                yield from self._ended(call, complete)
            case ev.Stopped(stop, choice):
                yield from self._settled(choice, cut=stop.reason in (StopReason.LENGTH, StopReason.CONTEXT))
                yield event
            case _:
                yield event

    def _ended(self, call: _Gathered, complete: bool) -> Iterable[ev.Event]:
        arguments = call.pieces.text()
        if not complete:
            self._drop(call)
        elif as_object(arguments) == arguments:
            call.pieces.take()
            yield from call.events(arguments)
        else:
            self._odd.append(call)

    def _settled(self, choice: int, *, cut: bool) -> Iterable[ev.Event]:
        odd = [call for call in self._odd if call.started.choice == choice]
        self._odd = [call for call in self._odd if call.started.choice != choice]
        for call in odd:
            arguments = call.pieces.take()
            if cut and arguments.strip() and not jsonio.is_json(arguments):
                self._drop(call)
                continue
            if arguments.strip():
                self._notes.changed(
                    "arguments.wrapped", "", "the arguments of a call were no JSON object; now they are in one"
                )
            yield from call.events(as_object(arguments))

    def _drop(self, call: _Gathered) -> None:
        call.pieces.take()
        name = call.started.block.name if isinstance(call.started.block, ToolCall) else ""
        self._notes.dropped("stream.unfinished_call", "", f"the call of {name} was cut off; it is left out")
