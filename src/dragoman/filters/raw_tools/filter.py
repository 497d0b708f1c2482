"""The filter that turns calls and thinking which a model wrote into its text into tool calls and reasoning.

In requests to a Kimi model it gives calls the form of id that the model's chat template was trained with.
"""

from __future__ import annotations

import re
from functools import partial

from msgspec import Struct, structs

from dragoman.filters.raw_tools.choices import tables_of
from dragoman.filters.raw_tools.engine import Engine
from dragoman.filters.raw_tools.grammar import grammar_of
from dragoman.filters.raw_tools.names import CallIds, DeclaredTools, number_calls
from dragoman.filters.raw_tools.outputs import (
    Arguments,
    CallEnded,
    CallStarted,
    Channel,
    EngineNote,
    EngineOutput,
    Mode,
    TextOutput,
)
from dragoman.model import events as ev
from dragoman.model.blocks import Reasoning, Text, ToolCall
from dragoman.model.capabilities import IdentifierFormat
from dragoman.model.conversation import Conversation, Stop, StopReason, ToolSpec
from dragoman.model.filter import NO_WATCH, Action, Facts, Filter, LaneWatch, MakeResponseFilter, Notes, ResponseFilter

_KIMI = re.compile(r"kimi|moonshot", re.IGNORECASE)
_MAX_COUNTED = 8 * 1024 * 1024  # most bytes to count for arguments that stream
_PIECE_BYTES, _CHARACTER_BYTES = 128, 8  # memory of a buffered piece of text, and of each character
_NO_IDS: frozenset[str] = frozenset()  # shared by all requests without ids: even an empty set takes memory


class RawTools(Filter):
    """Recover tool calls and reasoning from the text of a reply.

    `choice`: `auto`, `off`, or a table. `interleaves`: the client accepts several open blocks at a time. `kimi_ids`:
    whether requests get Kimi's ids; None means if a Kimi table was chosen, or with `auto` if the model's name is
    Kimi's. `ids`: the format of the client's ids, if it is stricter than Kimi's. `think_tags`: thinking in tags at the
    start of a text becomes reasoning, of the family `family`. Raises LocalMisuse for an unknown choice.
    """

    name = "raw_tools"

    def __init__(
        self,
        choice: str = "auto",
        mode: Mode = "live",
        *,
        kimi_ids: bool | None = None,
        ids: IdentifierFormat | None = None,
        interleaves: bool = True,
        trailing_text: bool = True,
        think_tags: bool = False,
        family: str = "",
    ) -> None:
        self._kimi_ids = kimi_ids
        self._settings = _Settings(choice, mode, ids, interleaves, trailing_text, think_tags, family)
        if choice != "off":
            grammar_of(choice)  # an unknown name is an error here, not in the middle of a reply

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        request = conversation
        if self._uses_kimi_ids(conversation.model):
            conversation = number_calls(conversation, notes)
        tools = [tool for tool in request.tools if isinstance(tool, ToolSpec)]
        known = bool(request.messages)  # a translation of a reply alone has no request
        choice = self._settings.choice
        if choice == "auto" and known and not tools:  # docs/decisions/raw_tools.md#d20
            choice = "off"
        if choice == "off" and not self._settings.think_tags:
            return conversation, None
        inventory = facts.inventory(request)
        ids = [call.id for call in inventory.calls] + [result.call_id for result in inventory.results]
        settings = structs.replace(
            self._settings,
            choice=choice,
            tools=DeclaredTools(tools),
            used=frozenset(ids) if ids else _NO_IDS,
            calls=len(inventory.calls),
            muted=request.tool_choice.mode == "none",
        )
        return conversation, partial(_RecoverCalls, settings)

    def _uses_kimi_ids(self, model: str) -> bool:
        if self._kimi_ids is not None:
            return self._kimi_ids
        choice = self._settings.choice
        if choice in ("auto", "off"):
            return choice == "auto" and _KIMI.search(model) is not None
        return any(table.numbered for table in tables_of(choice))


class _Settings(Struct, frozen=True):
    """How replies are read: the configuration, then the values of the request."""

    choice: str
    mode: Mode
    alphabet: IdentifierFormat | None
    interleaves: bool
    trailing_text: bool
    think_tags: bool
    family: str
    tools: DeclaredTools = DeclaredTools()
    used: frozenset[str] = _NO_IDS
    calls: int = 0
    muted: bool = False


class _SourceBlock:
    """A text or reasoning block of the upstream, and the client's block that gets its text."""

    __slots__ = ("channel", "ended", "engine", "has_text", "key", "opened", "started")

    def __init__(self, started: ev.BlockStarted, engine: Engine) -> None:
        self.started = started
        self.engine = engine  # not the _ChoiceState, which refers to this: a cycle would need the garbage collector
        self.channel = Channel.TEXT if isinstance(started.block, Text) else Channel.REASONING
        self.key: int | None = None  # of the client's open block
        self.opened = False  # the block was sent under its own key
        self.has_text = False
        self.ended = False


class _ChoiceState:
    """One choice: its engine, its source blocks, its open call, and its notes."""

    __slots__ = ("_budget", "_counted", "blocks", "call", "choice", "closed", "engine", "notes", "written_block")

    def __init__(self, settings: _Settings, choice: int, budget: ev.ResponseBudget) -> None:
        self._budget = budget
        self._counted = 0  # bytes reserved for text that the engine buffers
        ids = CallIds(settings.used, settings.calls, settings.alphabet, str(choice))
        self.choice = choice
        self.engine = Engine(
            settings.choice,
            settings.tools,
            ids,
            mode=settings.mode,
            muted=settings.muted,
            trailing_text=settings.trailing_text,
            think_tags=settings.think_tags,
        )
        self.blocks: dict[Channel, _SourceBlock] = {}
        self.written_block: _SourceBlock | None = None  # the block of reasoning that the model wrote into its text
        self.call = 0  # the open call's key
        self.notes: dict[str, tuple[int, str]] = {}
        self.closed = False

    def count(self, text: str) -> None:
        """Reserve memory for text that the engine buffers: all text since a marker, or a part of the arguments."""
        engine = self.engine
        if engine.is_holding or engine.is_reading_arguments:
            size = _PIECE_BYTES + _CHARACTER_BYTES * len(text)
            if not engine.is_holding:
                size = max(0, min(size, _MAX_COUNTED - self._counted))
            self._budget.reserve(size)
            self._counted += size
        elif self._counted:
            self._budget.release(self._counted)
            self._counted = 0


class _RecoverCalls(ResponseFilter):
    """Runs one engine per choice over the events of a reply."""

    __slots__ = ("_blocks", "_choices", "_keys", "_notes", "_pending", "_settings", "_waiting")

    def __init__(self, settings: _Settings, notes: Notes, keys: ev.BlockKeys) -> None:
        self._keys = keys
        self._settings = settings
        self._notes = notes
        self._choices: dict[int, _ChoiceState] = {}
        self._blocks: dict[int, _SourceBlock] = {}
        self._pending: _SourceBlock | None = None  # has begun and is empty: it may be a call
        # A block that has ended: if a native call follows, half a marker at its end is removed.
        self._waiting: tuple[_SourceBlock, ev.BlockEnded] | None = None

    def feed(self, events: ev.Events) -> ev.Events:
        if self._pending is not None or self._waiting is not None:
            return self._process(events, 0)
        for index, event in enumerate(events):
            if type(event) is ev.TextDelta or type(event) is ev.ReasoningDelta:
                source = self._blocks.get(event.key)
                if source is None or (source.key == event.key and source.engine.try_pass(event.text, source.channel)):
                    continue
                if len(events) == 1 and event.text and self._choice_of(source).blocks.get(source.channel) is source:
                    return self._delta(events, source, event.text)
            elif type(event) not in _HANDLED_EVENTS:
                continue
            return self._process(events, index)
        return events

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        source = self._blocks.get(key)
        if self._pending is not None or self._waiting is not None:
            return None
        if source is None:
            return NO_WATCH
        search = source.engine.marker_search(source.channel) if source.key == key else None
        return None if search is None else LaneWatch(search, source.engine.record_text)

    def _delta(self, events: ev.Events, source: _SourceBlock, text: str) -> ev.Events:
        """Process a single delta, the usual case: the result may still be the same event."""
        outputs = source.engine.feed(text, source.channel)
        self._choice_of(source).count(text)
        if len(outputs) == 1 and source.key == source.started.key:
            output = outputs[0]
            if (
                type(output) is TextOutput
                and output.text == text
                and output.channel is source.channel
                and not output.written
            ):
                return events
        out: list[ev.Event] = []
        self._emit(self._choice_of(source), outputs, out)
        return tuple(out)

    def _process(self, events: ev.Events, index: int) -> ev.Events:
        out: list[ev.Event] = list(events[:index])
        for event in events[index:]:
            if type(event) is ev.BlockStarted and isinstance(event.block, ToolCall):
                state = self._choice_state(event.choice)
                self._emit(state, state.engine.add_native_call(event.block.id), out)
        for event in events[index:]:
            self._take(event, out)
        changed = tuple(out)
        return events if changed == events else changed

    def _take(self, event: ev.Event, out: list[ev.Event]) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._end_block(*waiting, out)
        pending, self._pending = self._pending, None
        if pending is not None and getattr(event, "key", None) != pending.started.key:
            self._open(pending, out)
        match event:
            case ev.TextDelta(key, text) | ev.ReasoningDelta(key, text) if text and key in self._blocks:
                self._text(self._blocks[key], text, out)
            case ev.BlockStarted(key, Text() | Reasoning()):
                self._blocks[key] = self._pending = _SourceBlock(event, self._choice_state(event.choice).engine)
            case ev.BlockStarted(_, ToolCall() as call) if name := self._settings.tools.native_name(call.name):
                where = f"choices[{event.choice}]"
                self._notes.renamed(
                    "raw_tools.native_name", where, f"the native call of {call.name} became a call of {name}"
                )
                out.append(structs.replace(event, block=structs.replace(call, name=name)))
            case ev.BlockEnded(key) if key in self._blocks:
                source = self._blocks.pop(key)
                if source.engine.has_pending_text:
                    self._waiting = source, event
                else:
                    self._end_block(source, event, out)
            case ev.TextDelta(key) | ev.ReasoningDelta(key) if key in self._blocks and self._blocks[key].key is None:
                self._pending = pending  # an empty delta has no text: the block may still be a call
            case ev.SignatureAdded(key) | ev.CitationAdded(key) | ev.TextDelta(key) | ev.ReasoningDelta(key) if (
                key in self._blocks
            ):
                source = self._blocks[key]
                self._open(source, out)
                out.append(event if source.key == key else structs.replace(event, key=source.key))
            case ev.Stopped(stop, choice):
                state = self._choice_state(choice)
                self._close(state, out)
                out.append(ev.Stopped(_with_tool_stop(stop, state.engine.completed_calls), choice))
            case ev.Finished() | ev.Failed():
                for state in self._choices.values():
                    self._close(state, out)
                out.append(event)
            case _:
                out.append(event)

    def _choice_state(self, choice: int) -> _ChoiceState:
        state = self._choices.get(choice)
        if state is None:
            state = self._choices[choice] = _ChoiceState(self._settings, choice, self._keys.budget)
        return state

    def _choice_of(self, source: _SourceBlock) -> _ChoiceState:
        return self._choices[source.started.choice]

    def _text(self, source: _SourceBlock, text: str, out: list[ev.Event]) -> None:
        state = self._choice_of(source)
        before = state.blocks.get(source.channel)
        if before is not None and before is not source:
            self._emit(state, state.engine.end_block(), out)
        state.blocks[source.channel] = source
        source.has_text = True
        outputs = state.engine.feed(text, source.channel)
        state.count(text)
        self._emit(state, outputs, out)

    def _end_block(self, source: _SourceBlock, event: ev.BlockEnded, out: list[ev.Event]) -> None:
        state = self._choice_of(source)
        if state.blocks.get(source.channel) is source:
            self._emit(state, source.engine.end_block(), out)
            self._end_written_reasoning(state, out)
        if not source.has_text and not source.opened:  # the upstream sent an empty block
            self._open(source, out)
        if source.key is not None:
            out.append(event if source.key == event.key else ev.BlockEnded(source.key, event.is_complete))
        source.key, source.ended = None, True

    def _close(self, state: _ChoiceState, out: list[ev.Event]) -> None:
        if state.closed:
            return
        state.closed = True
        self._emit(state, state.engine.close(), out)
        for rule, (count, detail) in state.notes.items():
            times = f" ({count} times)" if count > 1 else ""
            name = rule if "." in rule else f"raw_tools.{rule}"
            self._notes.add(name, _ACTIONS[rule], f"choices[{state.choice}]", detail + times)

    def _emit(self, state: _ChoiceState, outputs: list[EngineOutput], out: list[ev.Event]) -> None:
        for output in outputs:
            match output:
                case Arguments(text):
                    out.append(ev.ArgumentsDelta(state.call, text))
                case TextOutput(text, _, written=True):
                    self._emit_text(self._written_reasoning(state), text, out)
                case TextOutput(text, channel):
                    self._end_written_reasoning(state, out)
                    self._emit_text(state.blocks[channel], text, out)
                case CallStarted():
                    self._start_call(state, output, out)
                case CallEnded(complete):
                    out.append(ev.BlockEnded(state.call, complete))
                case EngineNote(rule, detail):
                    count, first = state.notes.get(rule, (0, detail))
                    state.notes[rule] = (count + 1, first)

    def _written_reasoning(self, state: _ChoiceState) -> _SourceBlock:
        """Return the block of reasoning that the model wrote into its text; create it if needed."""
        if state.written_block is None:
            block = ev.BlockStarted(self._keys.fresh(), Reasoning("", self._settings.family), state.choice)
            state.written_block = _SourceBlock(block, state.engine)
        return state.written_block

    def _end_written_reasoning(self, state: _ChoiceState, out: list[ev.Event]) -> None:
        source, state.written_block = state.written_block, None
        if source is not None and source.key is not None:
            out.append(ev.BlockEnded(source.key))

    def _start_call(self, state: _ChoiceState, call: CallStarted, out: list[ev.Event]) -> None:
        self._end_written_reasoning(state, out)
        for source in state.blocks.values():
            # Reasoning is always closed: while it may still get a signature, later blocks would have to wait.
            if source.key is not None and (source.channel is Channel.REASONING or not self._settings.interleaves):
                out.append(ev.BlockEnded(source.key))
                source.key = None
        block = ToolCall(call.id, call.name)
        state.call = self._keys.fresh(block)
        out.append(ev.BlockStarted(state.call, block, state.choice))
        where = f"the call {call.id} of {call.name} was written into the {call.channel.value} ({call.table})"
        self._notes.changed("raw_tools.recovered", f"choices[{state.choice}]", where)

    def _emit_text(self, source: _SourceBlock, text: str, out: list[ev.Event]) -> None:
        self._open(source, out)
        key = source.key or 0
        out.append(ev.TextDelta(key, text) if source.channel is Channel.TEXT else ev.ReasoningDelta(key, text))
        if source.ended:
            out.append(ev.BlockEnded(key))
            source.key = None

    def _open(self, source: _SourceBlock, out: list[ev.Event]) -> None:
        """Ensure that the client has an open block for the source: its own if it is new, else another of its kind."""
        if source.key is not None:
            return
        if source.opened or source.ended:
            source.key = self._keys.fresh()
            out.append(structs.replace(source.started, key=source.key))
        else:
            source.key, source.opened = source.started.key, True
            out.append(source.started)


def _with_tool_stop(stop: Stop, completed_calls: int) -> Stop:
    return structs.replace(stop, reason=StopReason.TOOL) if completed_calls and stop.reason is StopReason.END else stop


_HANDLED_EVENTS: frozenset[type[ev.Event]] = frozenset(
    {ev.BlockStarted, ev.BlockEnded, ev.SignatureAdded, ev.CitationAdded, ev.Stopped, ev.Finished, ev.Failed}
)
_ACTIONS: dict[str, Action] = {
    "broken_arguments": "changed",
    "cut_off": "changed",
    "id_minted": "added",
    "name_inferred": "added",
    "nameless": "dropped",
    "noise": "dropped",
    "over_limit": "changed",
    "residue": "dropped",
    "stray_marker": "dropped",
    "suppressed": "dropped",
    "think.tags": "changed",
    "trailing_text": "dropped",
    "undeclared": "changed",
    "unfinished": "dropped",
    "wrapper": "dropped",
}
