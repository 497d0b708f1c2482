"""object_arguments: where a dialect needs an object, tool arguments are one (D3).

Empty stays empty (every codec spells it `{}`); a JSON string that holds an object is unwrapped; anything else, such as
free text that nobody asked for, becomes `{"raw_arguments": "<text>"}`. In a stream, arguments that begin with `{` pass
live; others are held and sent as one.
Where a client's streams have whole calls only, each call is held until its end, and one that was cut off is left out.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from dragoman.errors import Fault
from dragoman.model.blocks import Block, ToolCall
from dragoman.model.budget import Budget, KeptText
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Choice, Conversation, Message, Reply, Why
from dragoman.model.events import (
    ArgumentsDelta,
    BlockEnded,
    BlockKeys,
    BlockStarted,
    Delta,
    Event,
    Events,
    Failed,
    Sealed,
    Stopped,
    event_size,
)
from dragoman.model.facts import Facts
from dragoman.model.filter import NEVER, Back, Filter, MakeBack, Reads
from dragoman.model.lane import LaneWatch
from dragoman.model.notes import Notes
from dragoman.wire import jsonio
from dragoman.wire.jsonscan import ObjectScanner

HELD_LIMIT = 1024 * 1024  # characters of one call that may be held (D22)
WHOLE_LIMIT = 32 * 1024 * 1024  # of one that must come whole: as much as a frame may have


def as_object(arguments: str) -> str:
    """The arguments as the text of a JSON object, the same text where it is one or is empty."""
    if isinstance(arguments, jsonio.ObjectText):
        return arguments
    if not arguments.strip():
        return ""
    value = _decoded(arguments)
    if isinstance(value, dict):
        return arguments
    if isinstance(value, str):
        inner = value.strip()
        if not inner or isinstance(_decoded(inner), dict):
            return inner
    return jsonio.encode({"raw_arguments": arguments}).decode()


def _decoded(text: str) -> jsonio.Json:
    try:
        return jsonio.decode(text)
    except jsonio.JsonError:
        return None


_IDLE: Reads = frozenset({ToolCall})
_IN_CALL: Reads = _IDLE | {ArgumentsDelta, BlockEnded}
_WHOLE: Reads = _IN_CALL | {Sealed, Stopped}


class ObjectArguments(Filter):
    name = "object_arguments"

    def __init__(self, client: Capabilities, upstream: Capabilities) -> None:
        self._must = upstream.arguments == "object"
        self.concerns = frozenset({"calls"}) if self._must else NEVER
        if client.arguments == "object":
            self.answers = _WholeCalls if "whole_calls" in client.traits else _Objects

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        calls = facts.inventory(conversation).calls if self._must else []
        if not [call for call in calls if call.form != "json" or not isinstance(call.arguments, jsonio.ObjectText)]:
            return conversation, None
        messages = tuple([_settle_message(message, notes) for message in conversation.messages])
        return conversation if messages == conversation.messages else structs.replace(
            conversation, messages=messages
        ), None


def _settle_message(message: Message, notes: Notes) -> Message:
    if message.role != "assistant":
        return message
    blocks = tuple([_settle(block, notes) for block in message.blocks])
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


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


def settle_reply(reply: Reply, notes: Notes) -> Reply:
    """What a stream had to let pass (it began as an object but is none) a whole reply can still put right."""
    choices = tuple(
        Choice(tuple(_settle(block, notes) for block in choice.blocks), choice.stop) for choice in reply.choices
    )
    return reply if choices == reply.choices else structs.replace(reply, choices=choices)


class _Arguments(Struct):
    """The arguments of one open call."""

    scanner: ObjectScanner | None = None  # set once they are known to begin as an object
    tail: bool = False  # something stands after the object
    held: KeptText | None = None  # arguments that do not begin so

    def scan(self, text: str) -> None:
        """Follow more of an object."""
        if self.scanner is not None and self.scanner.feed(text).strip():
            self.tail = True


class _Objects(Back):
    __slots__ = ("_budget", "_calls", "_failed", "_notes", "reads")

    def __init__(self, notes: Notes, keys: BlockKeys) -> None:
        self.reads: Reads | None = _IDLE
        self._budget = keys.budget
        self._notes = notes
        self._calls: dict[int, _Arguments] = {}
        self._failed = False

    def lane(self, kind: type[Delta], key: int) -> LaneWatch | None:
        call = self._calls.get(key)
        if call is None or call.scanner is None or self._failed:
            return None
        return LaneWatch(listener=call.scan)

    def take(self, event: Event) -> Iterable[Event]:
        if self._failed:
            return ()
        match event:
            case ArgumentsDelta(key, text) if (call := self._calls.get(key)) is not None:
                if call.scanner is None:
                    return self._grow(key, text, call)
                call.scan(text)
            case BlockStarted(key, ToolCall() as block):
                self._calls[key], self.reads = _Arguments(), _IN_CALL
                return (event if block.form == "json" else structs.replace(event, block=_as_json(block)),)
            case BlockEnded(key) if (call := self._calls.pop(key, None)) is not None:
                self.reads = _IN_CALL if self._calls else _IDLE
                if call.held is not None or (call.scanner and (call.tail or not call.scanner.complete)):
                    return (*self._end(key, call), event)
            case _:
                pass
        return (event,)

    def _grow(self, key: int, text: str, call: _Arguments) -> Events:
        """Take more of arguments that have not begun, or that are held."""
        begun = text.lstrip() if call.held is None else text
        if call.held is None and begun.startswith("{"):
            call.scanner = ObjectScanner()
            call.scan(begun)
            return (ArgumentsDelta(key, text),)
        if begun:
            call.held = call.held or KeptText(self._budget)
            call.held.add(text)
            if len(call.held) > HELD_LIMIT:
                self._failed, self.reads = True, None
                why = f"tool arguments that are no JSON object grew beyond {HELD_LIMIT} characters"
                return (Failed(Fault("server", why)),)
        return ()

    def _end(self, key: int, call: _Arguments) -> Events:
        """Note what was no whole object; give what was held."""
        if call.held is None:
            self._notes.changed(
                "arguments.not_json", "", "the arguments of a call began as an object but are not a whole one"
            )
            return ()
        arguments = as_object(call.held.take())
        self._notes.changed("arguments.wrapped", "", "the arguments of a call were no JSON object; now they are in one")
        return (ArgumentsDelta(key, arguments),) if arguments else ()


class _Gathered:
    """A call that is not out yet."""

    def __init__(self, started: BlockStarted, budget: Budget) -> None:
        self.started = started
        self.pieces = KeptText(budget)
        self.seals: list[Event] = []

    def events(self, arguments: str) -> Iterable[Event]:
        yield self.started
        if arguments:
            yield ArgumentsDelta(self.started.key, arguments)
        yield from self.seals
        yield BlockEnded(self.started.key)


class _WholeCalls(Back):
    """Every call in one piece. One that is no object waits for the stop, which tells whether the length cut it (D7)."""

    __slots__ = ("_budget", "_calls", "_failed", "_notes", "_odd", "reads")

    def __init__(self, notes: Notes, keys: BlockKeys) -> None:
        self.reads: Reads | None = _WHOLE
        self._budget = keys.budget
        self._notes = notes
        self._calls: dict[int, _Gathered] = {}
        self._odd: list[_Gathered] = []
        self._failed = False

    def take(self, event: Event) -> Iterable[Event]:
        if self._failed:
            return
        match event:
            case BlockStarted(key, ToolCall() as block):
                self._calls[key] = _Gathered(structs.replace(event, block=_as_json(block)), self._budget)
            case ArgumentsDelta(key, text) if (call := self._calls.get(key)) is not None:
                call.pieces.add(text)
                if len(call.pieces) > WHOLE_LIMIT:
                    self._failed, self.reads = True, None
                    yield Failed(Fault("server", f"tool arguments grew beyond {WHOLE_LIMIT} characters"))
            case Sealed(key) if (call := self._calls.get(key)) is not None:
                self._budget.keep(event_size(event))
                call.seals.append(event)
            case BlockEnded(key, complete) if (call := self._calls.pop(key, None)) is not None:
                yield from self._ended(call, complete)
            case Stopped(stop, choice):
                yield from self._settled(choice, cut=stop.why in (Why.LENGTH, Why.CONTEXT))
                yield event
            case _:
                yield event

    def _ended(self, call: _Gathered, complete: bool) -> Iterable[Event]:
        arguments = call.pieces.text()
        if not complete:
            self._drop(call)
        elif as_object(arguments) == arguments:
            call.pieces.take()
            yield from call.events(arguments)
        else:
            self._odd.append(call)

    def _settled(self, choice: int, *, cut: bool) -> Iterable[Event]:
        odd = [call for call in self._odd if call.started.choice == choice]
        self._odd = [call for call in self._odd if call.started.choice != choice]
        for call in odd:
            arguments = call.pieces.take()
            if cut and arguments.strip() and not _is_json(arguments):
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


def _is_json(text: str) -> bool:
    try:
        jsonio.decode(text)
    except jsonio.JsonError:
        return False
    return True
