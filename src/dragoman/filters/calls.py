"""Filters of tool calls: `RenameTools` fits their names and ids, `WrapArguments` the form of their arguments."""

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
    """Return the text if the alphabet allows it, else a cleaned prefix and eight characters of its hash.

    The alias depends on the text alone, so it is the same for a call and its result, and in every request.
    """
    legal, illegal, separator = _rules(alphabet)
    if legal.fullmatch(text):
        return text
    prefix = illegal.sub(separator, text)[: alphabet.limit - _HASH - len(separator)]
    return prefix + separator + _digest(text)[:_HASH]


@cache
def _rules(alphabet: IdentifierFormat) -> tuple[re.Pattern[str], re.Pattern[str], str]:
    characters = alphabet.pattern
    separator = "_" if re.fullmatch(f"[{characters}]", "_") else ""
    return re.compile(f"[{characters}]{{1,{alphabet.limit}}}"), re.compile(f"[^{characters}]"), separator


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


class RenameTools(Filter):
    """Give tools and calls names and ids that the target allows (docs/decisions/content.md#d4).

    The response filter restores the names, and gives each call of the reply an id (docs/decisions/content.md#d5).
    """

    name = "rename_tools"

    def __init__(self, upstream: Capabilities, family: str = "") -> None:
        self._family = family
        self._names = upstream.names
        self._ids = upstream.ids

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        tools, turns, inventory = conversation.tools, str(len(conversation.messages)), facts.inventory(conversation)
        used_ids = {call.id for call in inventory.calls}.union([result.call_id for result in inventory.results])
        names_in_use = {call.name for call in inventory.calls}.union(
            [tool.name for tool in tools if isinstance(tool, ToolSpec)]
        )
        if _allows(self._names, names_in_use) and _allows(self._ids, used_ids):  # the usual case
            return conversation, partial(_RestoreNames, _NO_NAMES, used_ids, turns)
        names = _Aliases(self._names, "tools.renamed", notes, self._family)
        ids = _Aliases(self._ids, "ids.renamed", notes)
        tools = tuple([_tool(tool, names) for tool in tools])
        for call in inventory.calls:
            ids.of(call.id, call.at)
            names.of(call.name, call.at, call.extra)
        for result in inventory.results:
            ids.of(result.call_id, result.at)
        choice = _choice(conversation.tool_choice, conversation.tools, names)
        if names.originals or ids.originals:
            messages = tuple([_message(message, names, ids) for message in conversation.messages])
            conversation = structs.replace(conversation, tools=tools, messages=messages, tool_choice=choice)
        return conversation, partial(_RestoreNames, names.originals, ids.aliases, turns)


def _allows(alphabet: IdentifierFormat, texts: set[str]) -> bool:
    """Return whether none of these texts needs an alias."""
    if not texts:
        return True
    fits = "" not in texts and max(map(len, texts)) <= alphabet.limit
    return fits and _rules(alphabet)[1].search("".join(texts)) is None


class _Aliases:
    """The aliases of one request. Writes a note for each, at the first place that needs it."""

    def __init__(self, alphabet: IdentifierFormat, rule: str, notes: Notes, family: str = "") -> None:
        self._alphabet = alphabet
        self._family = family
        self._legal = _rules(alphabet)[0].fullmatch
        self._rule = rule
        self._notes = notes
        self.aliases: dict[str, str] = {}
        self.originals: dict[str, str] = {}  # alias -> original, for the texts that needed an alias

    def of(self, text: str, at: Location, extra: Extra | None = None) -> str:
        """Return the alias of a text, or the text itself if the target allows it."""
        alias = self.aliases.get(text)
        if alias is None:
            fits = self._legal(text) or self._has_native_name(extra)
            alias = self.aliases[text] = text if fits else fit_alphabet(text, self._alphabet)
            if alias != text:
                self.originals[alias] = text
                self._notes.renamed(self._rule, at.path, f"{text!r} is sent as {alias!r}")
        return alias

    def _has_native_name(self, extra: Extra | None) -> bool:
        """Return whether the target's codec sends another name, and the target allows that one."""
        name = extra.fields.get(NATIVE_NAME) if extra is not None and extra.family == self._family else None
        return isinstance(name, str) and self._legal(name) is not None


def _tool(tool: ToolSpec | Opaque, names: _Aliases) -> ToolSpec | Opaque:
    if isinstance(tool, Opaque):
        return tool
    name = names.of(tool.name, tool.at, tool.extra)
    return tool if name == tool.name else structs.replace(tool, name=name)


def _choice(choice: ToolChoice, tools: Iterable[ToolSpec | Opaque], names: _Aliases) -> ToolChoice:
    """Return the tool choice with the aliases of its names; names of opaque tools stay."""
    declared = {tool.name for tool in tools if isinstance(tool, ToolSpec)} if choice.names else ()
    allowed = tuple([names.of(name, choice.at) if name in declared else name for name in choice.names])
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


class _RestoreNames(Struct, ResponseFilter, eq=False):
    """Restores the names that the request filter changed, and gives each call of the reply a unique id.

    Some upstreams send no id, or begin with `call_0` in every reply, which a client that pairs by id alone mistakes for
    the old call. `_seed` begins with the number of messages in the request, so that replies of one conversation get
    different ids even if `Started.id` is the same.
    """

    _names: Mapping[str, str]
    _used_ids: Collection[str]
    _seed: str
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = frozenset({ev.Started, ToolCall})
    _sent_ids: dict[tuple[int, str], bool] = {}  # a set; an empty dict is smaller than an empty set
    _calls: int = 0

    def take(self, event: ev.Event) -> ev.Events:
        if isinstance(event, ev.Started):
            self._seed = f"{self._seed}\0{event.id}"
        if not isinstance(event, ev.BlockStarted) or not isinstance(event.block, ToolCall):
            return (event,)
        call, choice = event.block, event.choice
        name, id_ = self._names.get(call.name, call.name), call.id
        if not id_ or id_ in self._used_ids or (choice, id_) in self._sent_ids:
            id_ = "call_" + _digest(f"{self._seed}\0{self._calls}\0{name}")[:24]
            if call.id:
                self._notes.renamed("ids.reused", "", f"the id {call.id!r} is in use; this call of {name} gets {id_!r}")
            else:
                self._notes.added("ids.minted", "", f"the call of {name} has no id; it gets {id_!r}")
        self._calls += 1
        self._sent_ids[choice, id_] = True
        if (id_, name) == (call.id, call.name):
            return (event,)
        return (structs.replace(event, block=structs.replace(call, id=id_, name=name)),)


# --- WrapArguments


BUFFER_LIMIT = 1024 * 1024  # most characters of one call to buffer (docs/decisions/raw_tools.md#d22)
WHOLE_LIMIT = 32 * 1024 * 1024  # the same for a call that must be sent whole: the size limit of a frame


def as_object(arguments: str) -> str:
    """Return the arguments as the text of a JSON object; a text that is an object, or empty, stays unchanged."""
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


_WRAPPED = "the arguments of a call were not a JSON object; they were put into one"
_IDLE: EventKinds = frozenset({ToolCall})
_IN_CALL: EventKinds = _IDLE | {ev.ArgumentsDelta, ev.BlockEnded}
_WHOLE: EventKinds = _IN_CALL | {ev.SignatureAdded, ev.Stopped}


class WrapArguments(MessageFilter):
    """Turn tool arguments into a JSON object for dialects that require one (docs/decisions/content.md#d3).

    Empty arguments stay empty (every codec writes them as `{}`). A JSON string that contains an object is unwrapped.
    Anything else, such as unexpected free text, becomes `{"raw_arguments": "<text>"}`. In a stream, arguments that
    begin with `{` pass live; others are buffered and sent as one delta. If the client's streams have only whole calls,
    each call is buffered until its end, and a call that was cut off is left out.
    """

    name = "wrap_arguments"

    def __init__(self, client: Capabilities, upstream: Capabilities) -> None:
        self._needs_objects = upstream.arguments == "object"
        self.applies_to = frozenset({"calls"}) if self._needs_objects else NO_FEATURES
        if client.arguments == "object":
            self.make_response_filter = _WholeCalls if "whole_calls" in client.traits else _WrapStream

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        calls = facts.inventory(conversation).calls if self._needs_objects else []
        if not [call for call in calls if call.form != "json" or not isinstance(call.arguments, jsonio.ObjectText)]:
            return conversation, None
        return super().forward(conversation, notes, facts)

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        return (_wrap_block(block, notes),)


def _wrap_block(block: Block, notes: Notes) -> Block:
    if not isinstance(block, ToolCall):
        return block
    block = _as_json(block)
    arguments = as_object(block.arguments)
    if arguments == block.arguments:
        return block
    if block.arguments.strip():  # blank arguments mean none: no note
        notes.changed(
            "arguments.wrapped",
            block.at.path,
            f"the arguments of {block.name} were not a JSON object; they were put into one",
        )
    return structs.replace(block, arguments=arguments)


def _as_json(call: ToolCall) -> ToolCall:
    return call if call.form == "json" else structs.replace(call, form="json")


def wrap_reply_arguments(reply: Reply, notes: Notes) -> Reply:
    """Wrap the arguments of a whole reply that are not objects.

    A stream cannot do this for arguments that begin like an object and are none.
    """
    choices = tuple(
        Choice(tuple(_wrap_block(block, notes) for block in choice.blocks), choice.stop) for choice in reply.choices
    )
    return reply if choices == reply.choices else structs.replace(reply, choices=choices)


class _OpenCall(Struct):
    """The arguments of one open call."""

    scanner: ObjectScanner | None = None  # set once the arguments begin with `{`
    tail: bool = False  # there is text after the object
    buffered: ev.TextBuffer | None = None  # arguments that begin with anything else

    def scan(self, text: str) -> None:
        """Scan more of an object."""
        if self.scanner is not None and self.scanner.feed(text).strip():
            self.tail = True


class _WrapStream(Struct, ResponseFilter, eq=False):
    """Wraps arguments that do not begin like an object; passes the others live."""

    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _IDLE
    _calls: dict[int, _OpenCall] = {}
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
                    return self._buffer(key, text, call)
                call.scan(text)
            case ev.BlockStarted(key, ToolCall() as block):
                self._calls[key], self.reads = _OpenCall(), _IN_CALL
                return (event if block.form == "json" else structs.replace(event, block=_as_json(block)),)
            case ev.BlockEnded(key) if (call := self._calls.pop(key, None)) is not None:
                self.reads = _IN_CALL if self._calls else _IDLE
                if call.buffered is not None or (call.scanner and (call.tail or not call.scanner.is_complete)):
                    return (*self._end(key, call), event)
            case _:
                pass
        return (event,)

    def _buffer(self, key: int, text: str, call: _OpenCall) -> ev.Events:
        """Take more arguments of a call that is still empty, or that is buffered."""
        text_start = text.lstrip() if call.buffered is None else text
        if call.buffered is None and text_start.startswith("{"):
            call.scanner = ObjectScanner()
            call.scan(text_start)
            return (ev.ArgumentsDelta(key, text),)
        if text_start:
            call.buffered = call.buffered or ev.TextBuffer(self._keys.budget)
            call.buffered.add(text)
            if len(call.buffered) > BUFFER_LIMIT:
                self._failed, self.reads = True, None
                reason = f"tool arguments that are not a JSON object exceed {BUFFER_LIMIT} characters"
                return (ev.Failed(Fault("server", reason)),)
        return ()

    def _end(self, key: int, call: _OpenCall) -> ev.Events:
        """Add a note about arguments that are not a complete object; return the buffered ones."""
        if call.buffered is None:
            self._notes.changed(
                "arguments.not_json", "", "the arguments of a call begin like a JSON object but are not a complete one"
            )
            return ()
        arguments = as_object(call.buffered.take())
        self._notes.changed("arguments.wrapped", "", _WRAPPED)
        return (ev.ArgumentsDelta(key, arguments),) if arguments else ()


class _BufferedCall(Struct, eq=False):
    """A call that is buffered until its end."""

    started: ev.BlockStarted
    pieces: ev.TextBuffer
    signatures: list[ev.Event] = []

    def events(self, arguments: str) -> Iterable[ev.Event]:
        """Yield the whole call."""
        yield self.started
        if arguments:
            yield ev.ArgumentsDelta(self.started.key, arguments)
        yield from self.signatures
        yield ev.BlockEnded(self.started.key)


class _WholeCalls(Struct, ResponseFilter, eq=False):
    """Sends every call whole. One that is not an object waits for the stop, which shows whether it was cut off.

    See docs/decisions/responses.md#d7.
    """

    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _WHOLE
    _calls: dict[int, _BufferedCall] = {}
    _not_objects: list[_BufferedCall] = []
    _failed: bool = False

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        if self._failed:
            return
        match event:
            case ev.BlockStarted(key, ToolCall() as block):
                self._calls[key] = _BufferedCall(
                    structs.replace(event, block=_as_json(block)), ev.TextBuffer(self._keys.budget)
                )
            case ev.ArgumentsDelta(key, text) if (call := self._calls.get(key)) is not None:
                call.pieces.add(text)
                if len(call.pieces) > WHOLE_LIMIT:
                    self._failed, self.reads = True, None
                    yield ev.Failed(Fault("server", f"tool arguments exceed {WHOLE_LIMIT} characters"))
            case ev.SignatureAdded(key) if (call := self._calls.get(key)) is not None:
                self._keys.budget.reserve(ev.event_size(event))
                call.signatures.append(event)
            case ev.BlockEnded(key, complete) if (call := self._calls.pop(key, None)) is not None:
                yield from self._ended(call, complete)
            case ev.Stopped(stop, choice):
                yield from self._stopped(choice, is_cut=stop.reason in (StopReason.LENGTH, StopReason.CONTEXT))
                yield event
            case _:
                yield event

    def _ended(self, call: _BufferedCall, complete: bool) -> Iterable[ev.Event]:
        arguments = call.pieces.text()
        if not complete:
            self._drop(call)
        elif as_object(arguments) == arguments:
            call.pieces.take()
            yield from call.events(arguments)
        else:
            self._not_objects.append(call)

    def _stopped(self, choice: int, *, is_cut: bool) -> Iterable[ev.Event]:
        not_objects = [call for call in self._not_objects if call.started.choice == choice]
        self._not_objects = [call for call in self._not_objects if call.started.choice != choice]
        for call in not_objects:
            arguments = call.pieces.take()
            if is_cut and arguments.strip() and not jsonio.is_json(arguments):
                self._drop(call)
                continue
            if arguments.strip():
                self._notes.changed("arguments.wrapped", "", _WRAPPED)
            yield from call.events(as_object(arguments))

    def _drop(self, call: _BufferedCall) -> None:
        call.pieces.take()
        name = call.started.block.name if isinstance(call.started.block, ToolCall) else ""
        self._notes.dropped("stream.unfinished_call", "", f"the call of {name} was cut off; it is left out")
