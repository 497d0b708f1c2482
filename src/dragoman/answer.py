"""An answer on its way back: what an upstream says, through the ways back of its plan, in the client's words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.dialects.base import REAL_WORLD, Reader, World
from dragoman.errors import ClientFault, DragomanError, Fault
from dragoman.filters.object_arguments import settle_reply
from dragoman.model.assemble import fold, unfold
from dragoman.model.budget import Budget
from dragoman.model.conversation import Reply, Stop, Usage
from dragoman.model.events import (
    ArgumentsDelta,
    BlockKeys,
    Delta,
    Event,
    Events,
    Failed,
    Finished,
    Listener,
    ReasoningDelta,
    Run,
    Search,
    Started,
    Step,
    Stopped,
    TextDelta,
    UsageReported,
    nothing,
)
from dragoman.model.filter import Back
from dragoman.model.notes import MOST_OF_ANSWER, Note, Notes
from dragoman.translate import Plan
from dragoman.wire.frame import Hole, Payload
from dragoman.wire.jsonio import respelt

MOST_WHOLE = 64 * 1024 * 1024  # bytes of an answer that is read whole
Mask: TypeAlias = Callable[[Fault], Fault]  # gives the same one if there is nothing to take out


class WaysBack:
    """All ways back of a plan as one, last change first."""

    __slots__ = ("_backs", "_concerned", "keys", "notes")

    def __init__(self, plan: Plan, keys: BlockKeys | None = None) -> None:
        self.notes = Notes(most=MOST_OF_ANSWER)
        self.keys = keys or BlockKeys()
        self._backs = [make(self.notes, self.keys) for make in reversed(plan.makers)]
        self._concerned = _concerned(tuple(map(type, self._backs)))

    def feed(self, events: Events) -> Events:
        first, concerned, backs = 0, self._concerned, self._backs
        while events:
            kinds = type(events[0]) if len(events) == 1 else frozenset(map(type, events))
            for position in concerned[kinds]:
                if position >= first:
                    told = backs[position].feed(events)
                    if told is not events:
                        events, first = told, position + 1
                        break
            else:
                break
        return events

    def lets(self, kind: type[Delta], key: int) -> tuple[Search, ...] | None:
        """What finds that such a delta may not pass as it is; None if none may."""
        searches: list[Search] = []
        for position in self._concerned[kind]:
            ask: Callable[..., Search | None] = getattr(self._backs[position], "lets", _none)
            search = ask(kind, key)
            if search is None:
                return None
            if search is not nothing:
                searches.append(search)
        return tuple(searches)

    def hearing(self, kind: type[Delta], key: int) -> tuple[Listener, ...]:
        """Who is told of those that pass."""
        asks: Iterable[Callable[..., Listener | None]] = [
            getattr(self._backs[position], "hearing", _none) for position in self._concerned[kind]
        ]
        return tuple([hear for ask in asks if (hear := ask(kind, key)) is not None])


class _Concerned(dict[type[Event] | frozenset[type[Event]], tuple[int, ...]]):
    """Which ways back look at events of a kind, or of several kinds together: hardly any, if the events are usual."""

    def __init__(self, backs: tuple[type[Back], ...]) -> None:
        super().__init__()
        self._backs = backs

    def __missing__(self, kinds: type[Event] | frozenset[type[Event]]) -> tuple[int, ...]:
        any_of = kinds if isinstance(kinds, frozenset) else frozenset({kinds})
        reads = [getattr(back, "reads", any_of) for back in self._backs]
        self[kinds] = found = tuple([at for at, read in enumerate(reads) if not any_of.isdisjoint(read)])
        return found


_concerned = lru_cache(maxsize=256)(_Concerned)  # the same for all answers of a pair


def _none(_kind: type[Delta], _key: int) -> None:
    return None


class Progress:
    """How far an answer has come: whether it has begun to say something, and its counts and stop so far."""

    __slots__ = ("begun", "id", "stop", "usage")

    def __init__(self) -> None:
        self.begun = False  # something came that a second try would say again
        self.id = ""  # the answer's own
        self.usage: Usage | None = None
        self.stop: Stop | None = None

    def see(self, events: Events) -> None:
        for event in events:
            kind = type(event)
            if kind not in _WATCHED:
                self.begun = True
            elif isinstance(event, Started | UsageReported):
                self.usage = event.usage or self.usage
                if isinstance(event, Started):
                    self.id = event.id
            elif isinstance(event, Stopped):
                self.begun, self.stop = True, self.stop or event.stop


_WATCHED: frozenset[type[Event]] = frozenset({Started, UsageReported, Stopped, Failed})
_BACKSLASH = 0x5C
_DELTAS: frozenset[type[Event]] = frozenset({TextDelta, ReasoningDelta, ArgumentsDelta})
_LAST: frozenset[type[Event]] = frozenset({Finished, Failed})


class _Filling(Struct, frozen=True):
    """How deltas of one kind and block are written, as long as nothing else comes."""

    delta: Callable[[str], Event]
    searches: tuple[Search, ...]  # for what may not go so
    listeners: tuple[Listener, ...]
    told: Listener | None  # the encoder's
    before: bytes
    after: bytes

    def fits(self, run: Run) -> int:
        """How many of its deltas, from the first on, may go so."""
        size = len(run.row.texts)
        for search in self.searches:
            clear = run.clear(search)
            size = clear if clear < size else size  # `min` takes longer than all the rest
        return size


class Answer:
    """One answer on its way back: the upstream's bytes in, the client's bytes out.

    A run of deltas that nobody on the way wants to see goes out at once: the client's encoder gives the frame of such a
    delta with a hole in it, and the strings fill it. All others go step by step, and what comes out is the same.

    `mask` takes out of an upstream's complaint what the client must not read. `budget` counts what is kept of the
    answer; over a limit the client's stream ends with an error.
    """

    __slots__ = (
        "_binding",
        "_encoder",
        "_filling",
        "_hearing",
        "_hole",
        "_keeps_frames",
        "_mask",
        "_moulds",
        "_reader",
        "_ways",
        "fault",
        "over",
        "progress",
    )

    def __init__(
        self, plan: Plan, world: World = REAL_WORLD, mask: Mask | None = None, budget: Budget | None = None
    ) -> None:
        upstream, client = plan.upstream, plan.client
        self._mask = mask
        keys, self._keeps_frames = BlockKeys(budget=budget), plan.keeps_frames
        decoder = upstream.codec.decoder(plan.sent, world, keys)
        keeps_unread = plan.same_wire and not plan.settings.repair
        self._reader = Reader(upstream.binding.frames(), decoder, keeps_unread=keeps_unread, budget=keys.budget)
        self._moulds = self._reader.moulds
        self._ways = WaysBack(plan, keys)
        self._encoder = client.codec.encoder(plan.asked, world, keys.budget)
        self._binding: Any = client.binding
        fills = hasattr(client.binding, "around")
        self._hole: Callable[..., Hole | None] | None = getattr(self._encoder, "hole", None) if fills else None
        self._hearing: Callable[[type[Delta], int], Listener | None] | None = getattr(self._encoder, "hearing", None)
        self._filling: _Filling | None = None  # of the last delta, until something else comes
        self.progress = Progress()
        self.over = False
        self.fault: Fault | None = None

    @property
    def notes(self) -> list[Note]:
        return list(self._ways.notes)

    @property
    def hushed(self) -> int:
        """How many chunks brought no content."""
        return self._reader.hushed

    def feed(self, chunk: bytes) -> bytes:
        filling, sole = self._filling, self._moulds.sole
        if filling is not None and (lone := sole(chunk)) is not None:
            # Most events that do not hurry come here, and find every cache cold: as little as can be is called.
            text, inside = lone
            for search in filling.searches:
                if search(text) is not None:
                    break
            else:
                try:
                    for hear in filling.listeners:
                        hear(text)
                    if (listener := self._moulds.listener) is not None:
                        listener(text)
                    if self._keeps_frames and self._encoder.passes((filling.delta(text),)):
                        return chunk
                    if (told := filling.told) is not None:
                        told(text)
                except DragomanError as error:  # more than may be kept
                    return self._failed(error, [])
                if _BACKSLASH in inside:
                    (inside,) = respelt([text], [inside])
                return filling.before + inside + filling.after
        return b"" if self.over else self._write(self._reader.feed(chunk))

    def close(self, broken: Fault | None = None) -> bytes:
        """The upstream's bytes are over. The client's stream always ends with its dialect's end or its error."""
        return self._write(self._reader.close(broken))

    def tell(self, reply: Reply) -> bytes:
        """Write a whole reply as the stream it stands for."""
        self._ways.notes.changed("stream.from_whole", "", "a whole answer came where a stream was asked for")
        return self._write([Step(unfold(reply, self._ways.keys))])

    def ping(self) -> bytes:
        """A frame that says nothing, for a client that waits; empty where its dialect has none."""
        payload = None if self.over else self._encoder.ping()
        return b"" if payload is None else self._framed((payload,))

    def _write(self, steps: list[Step | Run]) -> bytes:
        out: list[bytes] = []
        try:
            for step in steps:
                if isinstance(step, Step):
                    self._add(step, out)
                else:
                    self._add_run(step, out)
        except DragomanError as error:
            return self._failed(error, out)
        return b"".join(out)

    def _failed(self, error: DragomanError, out: list[bytes]) -> bytes:
        """Tell the client of an error that no filter knew, in its own dialect.

        Raises an error that is not the upstream's fault: who runs the answer knows what to do, and calls `close`.
        """
        if isinstance(error, ClientFault):
            raise error
        self.over, self.fault, self._filling = True, error.fault, None
        told = self._encoder.feed(self._masked((Failed(error.fault),)))
        return b"".join([*out, self._framed(told)])

    def _add_run(self, run: Run, out: list[bytes]) -> None:
        """Write all that may go at once, and the rest step by step, asking again ever less often."""
        at, size, alone = 0, len(run.row.texts), 1
        while at < size:
            rest = run.part(at, size) if at else run
            if taken := self._filled(rest, out):
                at, alone = at + taken, 1
            else:
                for step in rest.part(0, alone).steps():
                    self._add(step, out)
                at, alone = at + alone, alone * 2

    def _filled(self, run: Run, out: list[bytes]) -> int:
        """How many of the run's deltas, from the first on, went out at once."""
        filling = self._filling or self._filling_of(run.kind, run.key)  # a run of others comes after a step of theirs
        if filling is None or not (size := filling.fits(run)):
            return 0
        if size < len(run.row.texts):
            run = run.part(0, size)
        for hear in filling.listeners:
            hear(run.text)
        self.progress.begun = True
        self._filling, told = filling, filling.told
        if self._keeps_frames and self._encoder.passes(next(run.steps()).events):  # as the first of them, so the others
            if told is not None and size > 1:
                told(run.part(1, size).text)
            out.append(run.raw)
            return size
        if told is not None:
            told(run.text)
        before, after = filling.before, filling.after
        out.append(before + (after + before).join(respelt(run.row.texts, run.row.insides)) + after)
        return size

    def _filling_of(self, kind: type[Delta], key: int) -> _Filling | None:
        """None if such deltas go step by step."""
        if self._hole is None or self.over or (searches := self._ways.lets(kind, key)) is None:
            return None
        hole = self._hole(kind, key)
        if hole is None:
            return None
        told = self._hearing(kind, key) if self._hearing is not None else None
        listeners = self._ways.hearing(kind, key)
        return _Filling(partial(kind, key), searches, listeners, told, *self._binding.around(hole))

    def _add(self, step: Step, out: list[bytes]) -> None:
        self._filling = None
        if step.unread:
            note_unread(self._ways.notes, step)
            out.append(step.raw)
        elif not self.over:
            out.append(self._written(step))

    def _written(self, step: Step) -> bytes:
        events = self._ways.feed(step.events)
        if len(events) == 1 and type(events[0]) in _DELTAS:  # nearly all of a stream
            self.progress.begun = True
        else:
            events = self._watched(events)
        if self._keeps_frames and step.raw and events == step.events and self._encoder.passes(events):
            return step.raw
        return self._framed(self._encoder.feed(events))

    def _framed(self, payloads: Iterable[Payload]) -> bytes:
        frame = self._binding.frame
        return b"".join([frame(payload) for payload in payloads])

    def _watched(self, events: Events) -> Events:
        self.progress.see(events)
        if events and type(events[-1]) in _LAST:
            self.over = True
            events = self._masked(events)
            self.fault = events[-1].fault if isinstance(events[-1], Failed) else None
        return events

    def _masked(self, events: Events) -> Events:
        last = events[-1]
        if self._mask is None or not isinstance(last, Failed):
            return events
        told = self._mask(last.fault)
        return events if told is last.fault else (*events[:-1], Failed(told))


def note_unread(notes: Notes, step: Step) -> None:
    """Note a frame that could not be read, and whether the client gets it."""
    if step.raw:
        notes.changed("stream.unread_frame", "", f"a frame that cannot be read was passed on as it came: {step.unread}")
    else:
        notes.dropped("stream.unread_frame", "", f"a frame that cannot be read was left out: {step.unread}")


def answer_whole(plan: Plan, body: bytes, world: World = REAL_WORLD) -> tuple[bytes, list[Note]]:
    """A whole reply in the client's dialect: the streamed path, so that streamed equals whole by construction."""
    reply, notes = reply_whole(plan, body, world)
    return plan.client.codec.render_reply(reply, plan.asked, world), notes


def reply_whole(
    plan: Plan, body: bytes, world: World = REAL_WORLD, budget: Budget | None = None
) -> tuple[Reply, list[Note]]:
    """Read a whole reply into the client's canonical reply, before it is rendered.

    A body that is a stream, though none was asked for, is gathered, with a note.
    """
    ways = WaysBack(plan, BlockKeys(budget=budget))
    reply = folded(plan, ways.feed(_told(plan, body, world, ways)), ways.notes)
    return reply, list(ways.notes)


def is_event_stream(body: bytes) -> bool:
    """Whether a body begins as a stream of events does, and as no JSON does."""
    return body.lstrip()[:6].startswith((b"data:", b"event:", b":", b"id:", b"retry:")) or body[:1] == b"\0"


def folded(plan: Plan, events: Events, notes: Notes) -> Reply:
    """What the client is told by these events, as a whole reply that its dialect can say."""
    reply = fold(events, notes)
    takes_objects = plan.client.codec.capabilities(plan.asked.model).arguments == "object"
    return settle_reply(reply, notes) if takes_objects else reply


def _told(plan: Plan, body: bytes, world: World, ways: WaysBack) -> Events:
    """What a whole answer says, as events. One that only ever streams is read as the stream it is."""
    upstream = plan.upstream
    if "streams_only" not in upstream.codec.capabilities(plan.sent.model).traits:
        if is_event_stream(body):
            ways.notes.changed("stream.gathered", "", "a stream came where a whole answer was asked for")
            return _streamed(plan, body, world, ways)
        return unfold(upstream.codec.parse_reply(body, plan.sent), ways.keys)
    return _streamed(plan, body, world, ways)


def _streamed(plan: Plan, body: bytes, world: World, ways: WaysBack) -> Events:
    """The events of an answer that came as a stream."""
    upstream, events = plan.upstream, list[Event]()
    reader = Reader(upstream.binding.frames(), upstream.codec.decoder(plan.sent, world, ways.keys))
    for step in (*reader.feed(body), *reader.close()):
        if isinstance(step, Step) and step.unread:
            note_unread(ways.notes, step)
        events += step.events
    if reader.error is not None:
        raise reader.error
    return tuple(events)
