"""RawTools: calls and thinking that a model wrote into its text become tool calls and reasoning.

On the way to a Kimi model the ids of calls become those that its chat template was trained with.
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
    Mode,
    Output,
    Remark,
    TextOutput,
)
from dragoman.model import events as ev
from dragoman.model.blocks import Reasoning, Text, ToolCall
from dragoman.model.capabilities import IdentifierFormat
from dragoman.model.conversation import Conversation, Stop, StopReason, ToolSpec
from dragoman.model.filter import NO_WATCH, Action, Facts, Filter, LaneWatch, MakeResponseFilter, Notes, ResponseFilter

_KIMI = re.compile(r"kimi|moonshot", re.IGNORECASE)
_MOST_READ = 8 * 1024 * 1024  # bytes that are counted for arguments which stream
_PIECE, _CHARACTER = 128, 8  # bytes of a piece of text that waits, and of a character with what is read of it
_NO_IDS: frozenset[str] = frozenset()  # the same for all: even an empty one takes its place


class RawTools(Filter):
    """`choice`: `auto`, `off`, or a table. `interleaves`: the client takes blocks that are open side by side.

    `kimi_ids` None: if a Kimi table was chosen, or with `auto` if the model's name says so. `ids`: the alphabet the
    client's ids must keep to, if it is stricter than Kimi's. `think_tags`: thinking in tags at the beginning of a text
    becomes reasoning. `family`: that of the reasoning.
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
            grammar_of(choice)  # an unknown name is an error here, not in the middle of an answer

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        asked = conversation
        if self._numbers(conversation.model):
            conversation = number_calls(conversation, notes)
        tools = [tool for tool in asked.tools if isinstance(tool, ToolSpec)]
        known = bool(asked.messages)  # a translation of an answer alone has no request
        choice = self._settings.choice
        if choice == "auto" and known and not tools:  # docs/decisions/raw_tools.md#d20
            choice = "off"
        if choice == "off" and not self._settings.think_tags:
            return conversation, None
        held = facts.inventory(asked)
        ids = [call.id for call in held.calls] + [result.call_id for result in held.results]
        settings = structs.replace(
            self._settings,
            choice=choice,
            tools=DeclaredTools(tools),
            used=frozenset(ids) if ids else _NO_IDS,
            calls=len(held.calls),
            muted=asked.tool_choice.mode == "none",
        )
        return conversation, partial(_Back, settings)

    def _numbers(self, model: str) -> bool:
        if self._kimi_ids is not None:
            return self._kimi_ids
        choice = self._settings.choice
        if choice in ("auto", "off"):
            return choice == "auto" and _KIMI.search(model) is not None
        return any(table.numbered for table in tables_of(choice))


class _Settings(Struct, frozen=True):
    """How answers are read: as it was configured, and then what the request says."""

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


class _Lane:
    """A text or reasoning block of the upstream, and the block it goes out as."""

    __slots__ = ("channel", "ended", "engine", "key", "opened", "started", "told")

    def __init__(self, started: ev.BlockStarted, engine: Engine) -> None:
        self.started = started
        self.engine = engine  # not the choice, which refers to this: a cycle would live until the next collection
        self.channel = Channel.TEXT if isinstance(started.block, Text) else Channel.REASONING
        self.key: int | None = None  # of the block that is open for it now
        self.opened = False  # it went out under its own key
        self.told = False  # text came
        self.ended = False


class _Voice:
    """One choice: its engine, its lanes, its open call, and what is to be noted of it."""

    __slots__ = ("_budget", "_counted", "call", "choice", "closed", "engine", "lanes", "remarks", "thoughts")

    def __init__(self, settings: _Settings, choice: int, budget: ev.ResponseBudget) -> None:
        self._budget = budget
        self._counted = 0  # bytes of text that the engine may keep
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
        self.lanes: dict[Channel, _Lane] = {}
        self.thoughts: _Lane | None = None  # reasoning that is written into the text
        self.call = 0  # the open call's key
        self.remarks: dict[str, tuple[int, str]] = {}
        self.closed = False

    def count(self, text: str) -> None:
        """Count what the engine may keep: all text since a marker, or a part of the arguments that it reads."""
        engine = self.engine
        if engine.is_holding or engine.is_reading_arguments:
            size = _PIECE + _CHARACTER * len(text)
            if not engine.is_holding:
                size = max(0, min(size, _MOST_READ - self._counted))
            self._budget.reserve(size)
            self._counted += size
        elif self._counted:
            self._budget.release(self._counted)
            self._counted = 0


class _Back(ResponseFilter):
    __slots__ = ("_keys", "_lanes", "_notes", "_pending", "_settings", "_voices", "_waiting")

    def __init__(self, settings: _Settings, notes: Notes, keys: ev.BlockKeys) -> None:
        self._keys = keys
        self._settings = settings
        self._notes = notes
        self._voices: dict[int, _Voice] = {}
        self._lanes: dict[int, _Lane] = {}
        self._pending: _Lane | None = None  # has begun, and nothing has been said in it: it may turn out to be a call
        self._waiting: tuple[_Lane, ev.BlockEnded] | None = (
            None  # has ended; a native call makes its last marker residue
        )

    def feed(self, events: ev.Events) -> ev.Events:
        if self._pending is not None or self._waiting is not None:
            return self._changed(events, 0)
        for index, event in enumerate(events):
            if type(event) is ev.TextDelta or type(event) is ev.ReasoningDelta:
                lane = self._lanes.get(event.key)
                if lane is None or (lane.key == event.key and lane.engine.try_pass(event.text, lane.channel)):
                    continue
                if len(events) == 1 and event.text and self._speaker(lane).lanes.get(lane.channel) is lane:
                    return self._delta(events, lane, event.text)
            elif type(event) not in _CONCERNED:
                continue
            return self._changed(events, index)
        return events

    def lane(self, kind: type[ev.Delta], key: int) -> LaneWatch | None:
        lane = self._lanes.get(key)
        if self._pending is not None or self._waiting is not None:
            return None
        if lane is None:
            return NO_WATCH
        search = lane.engine.marker_search(lane.channel) if lane.key == key else None
        return None if search is None else LaneWatch(search, lane.engine.record_text)

    def _delta(self, events: ev.Events, lane: _Lane, text: str) -> ev.Events:
        """One delta, as most frames are: what comes out may still be what went in."""
        outputs = lane.engine.feed(text, lane.channel)
        self._speaker(lane).count(text)
        if len(outputs) == 1 and lane.key == lane.started.key:
            said = outputs[0]
            if type(said) is TextOutput and said.text == text and said.channel is lane.channel and not said.written:
                return events
        out: list[ev.Event] = []
        self._tell(self._speaker(lane), outputs, out)
        return tuple(out)

    def _changed(self, events: ev.Events, index: int) -> ev.Events:
        out: list[ev.Event] = list(events[:index])
        for event in events[index:]:
            if type(event) is ev.BlockStarted and isinstance(event.block, ToolCall):
                voice = self._voice(event.choice)
                self._tell(voice, voice.engine.add_native_call(event.block.id), out)
        for event in events[index:]:
            self._take(event, out)
        changed = tuple(out)
        return events if changed == events else changed

    def _take(self, event: ev.Event, out: list[ev.Event]) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._end_lane(*waiting, out)
        pending, self._pending = self._pending, None
        if pending is not None and getattr(event, "key", None) != pending.started.key:
            self._open(pending, out)
        match event:
            case ev.TextDelta(key, text) | ev.ReasoningDelta(key, text) if text and key in self._lanes:
                self._text(self._lanes[key], text, out)
            case ev.BlockStarted(key, Text() | Reasoning()):
                self._lanes[key] = self._pending = _Lane(event, self._voice(event.choice).engine)
            case ev.BlockStarted(_, ToolCall() as call) if name := self._settings.tools.native_name(call.name):
                where = f"choices[{event.choice}]"
                self._notes.renamed("raw_tools.native_name", where, f"the native call of {call.name} is one of {name}")
                out.append(structs.replace(event, block=structs.replace(call, name=name)))
            case ev.BlockEnded(key) if key in self._lanes:
                lane = self._lanes.pop(key)
                if lane.engine.has_pending_text:
                    self._waiting = lane, event
                else:
                    self._end_lane(lane, event, out)
            case ev.TextDelta(key) | ev.ReasoningDelta(key) if key in self._lanes and self._lanes[key].key is None:
                self._pending = pending  # an empty delta says nothing: the block may still turn out to be a call
            case ev.SignatureAdded(key) | ev.CitationAdded(key) | ev.TextDelta(key) | ev.ReasoningDelta(key) if (
                key in self._lanes
            ):
                lane = self._lanes[key]
                self._open(lane, out)
                out.append(event if lane.key == key else structs.replace(event, key=lane.key))
            case ev.Stopped(stop, choice):
                voice = self._voice(choice)
                self._close(voice, out)
                out.append(ev.Stopped(_settled(stop, voice.engine.completed_calls), choice))
            case ev.Finished() | ev.Failed():
                for voice in self._voices.values():
                    self._close(voice, out)
                out.append(event)
            case _:
                out.append(event)

    def _voice(self, choice: int) -> _Voice:
        voice = self._voices.get(choice)
        if voice is None:
            voice = self._voices[choice] = _Voice(self._settings, choice, self._keys.budget)
        return voice

    def _speaker(self, lane: _Lane) -> _Voice:
        return self._voices[lane.started.choice]

    def _text(self, lane: _Lane, text: str, out: list[ev.Event]) -> None:
        voice = self._speaker(lane)
        before = voice.lanes.get(lane.channel)
        if before is not None and before is not lane:
            self._tell(voice, voice.engine.end_block(), out)
        voice.lanes[lane.channel] = lane
        lane.told = True
        outputs = voice.engine.feed(text, lane.channel)
        voice.count(text)
        self._tell(voice, outputs, out)

    def _end_lane(self, lane: _Lane, event: ev.BlockEnded, out: list[ev.Event]) -> None:
        voice = self._speaker(lane)
        if voice.lanes.get(lane.channel) is lane:
            self._tell(voice, lane.engine.end_block(), out)
            self._end_thoughts(voice, out)
        if not lane.told and not lane.opened:  # the upstream's own empty block
            self._open(lane, out)
        if lane.key is not None:
            out.append(event if lane.key == event.key else ev.BlockEnded(lane.key, event.is_complete))
        lane.key, lane.ended = None, True

    def _close(self, voice: _Voice, out: list[ev.Event]) -> None:
        if voice.closed:
            return
        voice.closed = True
        self._tell(voice, voice.engine.close(), out)
        for rule, (count, detail) in voice.remarks.items():
            times = f" ({count} times)" if count > 1 else ""
            name = rule if "." in rule else f"raw_tools.{rule}"
            self._notes.add(name, _ACTIONS[rule], f"choices[{voice.choice}]", detail + times)

    def _tell(self, voice: _Voice, outputs: list[Output], out: list[ev.Event]) -> None:
        for output in outputs:
            match output:
                case Arguments(text):
                    out.append(ev.ArgumentsDelta(voice.call, text))
                case TextOutput(text, _, written=True):
                    self._say(self._thoughts(voice), text, out)
                case TextOutput(text, channel):
                    self._end_thoughts(voice, out)
                    self._say(voice.lanes[channel], text, out)
                case CallStarted():
                    self._start_call(voice, output, out)
                case CallEnded(complete):
                    out.append(ev.BlockEnded(voice.call, complete))
                case Remark(rule, detail):
                    count, first = voice.remarks.get(rule, (0, detail))
                    voice.remarks[rule] = (count + 1, first)

    def _thoughts(self, voice: _Voice) -> _Lane:
        """The lane of the reasoning that is written into the text."""
        if voice.thoughts is None:
            block = ev.BlockStarted(self._keys.fresh(), Reasoning("", self._settings.family), voice.choice)
            voice.thoughts = _Lane(block, voice.engine)
        return voice.thoughts

    def _end_thoughts(self, voice: _Voice, out: list[ev.Event]) -> None:
        lane, voice.thoughts = voice.thoughts, None
        if lane is not None and lane.key is not None:
            out.append(ev.BlockEnded(lane.key))

    def _start_call(self, voice: _Voice, call: CallStarted, out: list[ev.Event]) -> None:
        self._end_thoughts(voice, out)
        for lane in voice.lanes.values():
            # Reasoning is always closed: what may still be sealed holds up all that begins after it.
            if lane.key is not None and (lane.channel is Channel.REASONING or not self._settings.interleaves):
                out.append(ev.BlockEnded(lane.key))
                lane.key = None
        block = ToolCall(call.id, call.name)
        voice.call = self._keys.fresh(block)
        out.append(ev.BlockStarted(voice.call, block, voice.choice))
        where = f"the call {call.id} of {call.name} was written into the {call.channel.value} ({call.table})"
        self._notes.changed("raw_tools.recovered", f"choices[{voice.choice}]", where)

    def _say(self, lane: _Lane, text: str, out: list[ev.Event]) -> None:
        self._open(lane, out)
        key = lane.key or 0
        out.append(ev.TextDelta(key, text) if lane.channel is Channel.TEXT else ev.ReasoningDelta(key, text))
        if lane.ended:
            out.append(ev.BlockEnded(key))
            lane.key = None

    def _open(self, lane: _Lane, out: list[ev.Event]) -> None:
        """See to it that a block is open for the lane: its own if it is new, else one more of its kind."""
        if lane.key is not None:
            return
        if lane.opened or lane.ended:
            lane.key = self._keys.fresh()
            out.append(structs.replace(lane.started, key=lane.key))
        else:
            lane.key, lane.opened = lane.started.key, True
            out.append(lane.started)


def _settled(stop: Stop, completed_calls: int) -> Stop:
    return structs.replace(stop, reason=StopReason.TOOL) if completed_calls and stop.reason is StopReason.END else stop


_CONCERNED: frozenset[type[ev.Event]] = frozenset(
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
