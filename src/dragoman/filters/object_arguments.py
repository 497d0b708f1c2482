"""object_arguments: where a dialect needs an object, tool arguments are one (D3).

Empty stays empty (every codec spells it `{}`); a JSON string that holds an object is unwrapped; anything else, such as
free text that nobody asked for, becomes `{"raw_arguments": "<text>"}`. In a stream, arguments that begin with `{` pass
live; others are held and sent as one.
Where a client's streams have whole calls only, each call is held until its end, and one that was cut off is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import structs

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
    Finished,
    Sealed,
    Stopped,
    event_size,
)
from dragoman.model.facts import Facts
from dragoman.model.filter import Back, Filter, MakeBack
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


class ObjectArguments(Filter):
    name = "object_arguments"

    def __init__(self, client: Capabilities, upstream: Capabilities) -> None:
        self._client = client
        self._upstream = upstream

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if self._upstream.arguments == "object" and not _are_settled(facts.inventory(conversation).calls):
            messages = tuple([_settle_message(message, notes) for message in conversation.messages])
            if messages != conversation.messages:
                conversation = structs.replace(conversation, messages=messages)
        if self._client.arguments != "object":
            return conversation, None
        return conversation, _WholeCalls if "whole_calls" in self._client.traits else _Objects


def _are_settled(calls: list[ToolCall]) -> bool:
    return not [call for call in calls if call.form != "json" or not isinstance(call.arguments, jsonio.ObjectText)]


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


class _Arguments:
    """The arguments of one open call."""

    def __init__(self, budget: Budget) -> None:
        self.scanner: ObjectScanner | None = None  # set once they are known to begin as an object
        self.tail = False  # something stands after the object
        self.held = KeptText(budget)


class _Objects(Back):
    reads = frozenset({ArgumentsDelta, BlockStarted, BlockEnded, Finished, Failed})
    __slots__ = ("_budget", "_calls", "_failed", "_notes")

    def __init__(self, notes: Notes, keys: BlockKeys) -> None:
        self._budget = keys.budget
        self._notes = notes
        self._calls: dict[int, _Arguments] = {}
        self._failed = False

    def feed(self, events: Events) -> Events:
        if self._failed:
            return ()
        if len(events) == 1 and self._is_live(events[0]):
            return events
        out = tuple(each for event in events for each in self._take(event))
        return events if out == events else out

    def lane(self, kind: type[Delta], key: int) -> LaneWatch | None:
        call = self._calls.get(key)
        if call is None or call.scanner is None or self._failed:
            return None
        return LaneWatch(listener=partial(self._scan, call))

    def _scan(self, call: _Arguments, text: str) -> None:
        if call.scanner is not None and call.scanner.feed(text).strip():
            call.tail = True

    def _is_live(self, event: Event) -> bool:
        """The hot path: more of arguments that are known to be an object."""
        if type(event) is not ArgumentsDelta:
            return False
        call = self._calls.get(event.key)
        if call is None or call.scanner is None:
            return False
        self._scan(call, event.text)
        return True

    def _take(self, event: Event) -> Iterable[Event]:
        if self._failed:
            return
        match event:
            case ArgumentsDelta(key, text) if (call := self._calls.get(key)) is not None:
                yield from self._grow(key, text, call)
            case BlockStarted(key, ToolCall() as block):
                self._calls[key] = _Arguments(self._budget)
                yield structs.replace(event, block=_as_json(block))
            case BlockEnded(key) if (call := self._calls.pop(key, None)) is not None:
                yield from self._end(key, call)
                yield event
            case _:
                yield event

    def _grow(self, key: int, text: str, call: _Arguments) -> Iterable[Event]:
        if call.scanner is not None:
            self._scan(call, text)
            yield ArgumentsDelta(key, text)
            return
        begun = text.lstrip() if not call.held else text
        if not call.held and begun.startswith("{"):
            call.scanner = ObjectScanner()
            call.tail = bool(call.scanner.feed(begun).strip())
            yield ArgumentsDelta(key, text)
        elif begun or call.held:
            call.held.add(text)
            if len(call.held) > HELD_LIMIT:
                self._failed = True
                yield Failed(
                    Fault("server", f"tool arguments that are no JSON object grew beyond {HELD_LIMIT} characters")
                )

    def _end(self, key: int, call: _Arguments) -> Iterable[Event]:
        if held := call.held.take():
            arguments = as_object(held)
            self._notes.changed(
                "arguments.wrapped", "", "the arguments of a call were no JSON object; now they are in one"
            )
            if arguments:
                yield ArgumentsDelta(key, arguments)
        elif call.scanner is not None and (call.tail or not call.scanner.complete):
            self._notes.changed(
                "arguments.not_json", "", "the arguments of a call began as an object but are not a whole one"
            )


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

    reads = frozenset({ArgumentsDelta, BlockStarted, BlockEnded, Sealed, Stopped, Failed})
    __slots__ = ("_budget", "_calls", "_failed", "_notes", "_odd")

    def __init__(self, notes: Notes, keys: BlockKeys) -> None:
        self._budget = keys.budget
        self._notes = notes
        self._calls: dict[int, _Gathered] = {}
        self._odd: list[_Gathered] = []
        self._failed = False

    def feed(self, events: Events) -> Events:
        out = tuple(each for event in events for each in self._take(event))
        return events if out == events else out

    def _take(self, event: Event) -> Iterable[Event]:
        if self._failed:
            return
        match event:
            case BlockStarted(key, ToolCall() as block):
                self._calls[key] = _Gathered(structs.replace(event, block=_as_json(block)), self._budget)
            case ArgumentsDelta(key, text) if (call := self._calls.get(key)) is not None:
                call.pieces.add(text)
                if len(call.pieces) > WHOLE_LIMIT:
                    self._failed = True
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
