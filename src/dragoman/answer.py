"""An answer on its way back: what an upstream says, through the ways back of its plan, in the client's words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.dialects.base import REAL_WORLD, Reader, World
from dragoman.errors import DragomanError, Fault
from dragoman.filters.object_arguments import settle_reply
from dragoman.model.assemble import fold, unfold
from dragoman.model.conversation import Reply, Stop, Usage
from dragoman.model.events import (
    ArgumentsDelta,
    Event,
    Events,
    Failed,
    Finished,
    ReasoningDelta,
    Run,
    Started,
    Step,
    Stopped,
    TextDelta,
    UsageReported,
)
from dragoman.model.filter import Back
from dragoman.model.notes import Note, Notes
from dragoman.translate import Plan
from dragoman.wire.frame import Hole, Payload
from dragoman.wire.jsonio import respelt

Mask: TypeAlias = Callable[[Fault], Fault]  # gives the same one if there is nothing to take out


class WaysBack:
    """All ways back of a plan as one, last change first."""

    __slots__ = ("backs", "notes", "routes")

    def __init__(self, plan: Plan) -> None:
        self.notes = Notes(refuse=False)
        self.backs = [make(self.notes) for make in reversed(plan.makers)]
        self.routes = _routes(tuple(map(type, self.backs)))

    def feed(self, events: Events) -> Events:
        first = 0
        while len(events) == 1:
            for position in self.routes[type(events[0])].concerned:
                if position >= first:
                    told = self.backs[position].feed(events)
                    if told is not events:
                        events, first = told, position + 1
                        break
            else:
                return events
        for back in self.backs[first:]:
            events = back.feed(events)
        return events

    def lets(self, run: Run) -> int:
        """How many of its deltas, from the first on, pass as they are."""
        lets, backs = self.routes[run.kind].lets, self.backs
        if lets is None:
            return 0
        size = len(run.row.texts)
        for position, ask in lets:
            let = ask(backs[position], run)
            size = let if let < size else size  # `min` takes longer than all the rest
        return size

    def heard(self, run: Run) -> None:
        """All of it has passed."""
        for position, tell in self.routes[run.kind].hear:
            tell(self.backs[position], run)


class _Route(Struct, frozen=True):
    """The ways back that a lone event concerns; how they are asked about runs (None: not all can be) and told of them.

    By functions: a method that is looked up on one class and then on another takes twice as long.
    """

    concerned: tuple[int, ...]
    lets: tuple[tuple[int, Callable[[Back, Run], int]], ...] | None
    hear: tuple[tuple[int, Callable[[Back, Run], None]], ...]


class _Routes(dict[type[Event], _Route]):
    """By the kind of event: of the usual ones, hardly any way back is concerned."""

    def __init__(self, backs: tuple[type[Back], ...]) -> None:
        super().__init__()
        self._backs = backs

    def __missing__(self, kind: type[Event]) -> _Route:
        backs = self._backs
        concerned = tuple([at for at, back in enumerate(backs) if kind in getattr(back, "reads", {kind})])
        lets = tuple([(at, found) for at in concerned if (found := getattr(backs[at], "lets", None))])
        hearing = [at for at in concerned if kind in getattr(backs[at], "hears", {kind})]
        hear = tuple([(at, found) for at in hearing if (found := getattr(backs[at], "heard", None))])
        self[kind] = route = _Route(concerned, lets if len(lets) == len(concerned) else None, hear)
        return route


_routes = lru_cache(maxsize=256)(_Routes)  # the same for all answers of a pair


class Progress:
    """How far an answer has come: whether it has begun to say something, and its counts and stop so far."""

    __slots__ = ("begun", "stop", "usage")

    def __init__(self) -> None:
        self.begun = False  # something came that a second try would say again
        self.usage: Usage | None = None
        self.stop: Stop | None = None

    def see(self, events: Events) -> None:
        for event in events:
            kind = type(event)
            if kind not in _WATCHED:
                self.begun = True
            elif isinstance(event, Started | UsageReported):
                self.usage = event.usage or self.usage
            elif isinstance(event, Stopped):
                self.begun, self.stop = True, self.stop or event.stop


_WATCHED: frozenset[type[Event]] = frozenset({Started, UsageReported, Stopped, Failed})
_BACKSLASH = 0x5C
_DELTAS: frozenset[type[Event]] = frozenset({TextDelta, ReasoningDelta, ArgumentsDelta})
_LAST: frozenset[type[Event]] = frozenset({Finished, Failed})


class Answer:
    """One answer on its way back: the upstream's bytes in, the client's bytes out.

    A run of deltas that nobody on the way wants to see goes out at once: the client's encoder gives the frame of such a
    delta with a hole in it, and the strings fill it. All others go step by step, and what comes out is the same.

    `mask` takes out of an upstream's complaint what the client must not read.
    """

    __slots__ = (
        "_binding",
        "_encoder",
        "_filling",
        "_heard",
        "_hole",
        "_keeps_frames",
        "_mask",
        "_reader",
        "_ways",
        "fault",
        "over",
        "progress",
    )

    def __init__(self, plan: Plan, world: World = REAL_WORLD, mask: Mask | None = None) -> None:
        upstream, client = plan.upstream, plan.client
        self._mask = mask
        self._reader = Reader(upstream.binding.frames(), upstream.codec.decoder(plan.sent, world))
        self._ways = WaysBack(plan)
        self._encoder = client.codec.encoder(plan.asked, world)
        self._binding: Any = client.binding
        self._keeps_frames = plan.same_wire and not plan.settings.repair
        fills = hasattr(client.binding, "around")
        self._hole: Callable[..., Hole | None] | None = getattr(self._encoder, "hole", None) if fills else None
        self._heard: Callable[[Run], None] | None = getattr(self._encoder, "heard", None)
        self._filling: tuple[Hole | None, bytes, bytes] = (None, b"", b"")
        self.progress = Progress()
        self.over = False
        self.fault: Fault | None = None

    @property
    def notes(self) -> list[Note]:
        return list(self._ways.notes)

    def feed(self, chunk: bytes) -> bytes:
        sole = self._reader.sole
        run = sole(chunk)
        if run is None:
            return self._write(self._reader.feed(chunk))
        try:
            told = None if self._keeps_frames else self._lone(run)
        except DragomanError as error:
            return self._failed(error, [])
        return self._write([run]) if told is None else told

    def close(self, broken: Fault | None = None) -> bytes:
        """The upstream's bytes are over. The client's stream always ends with its dialect's end or its error."""
        return self._write(self._reader.close(broken))

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
        """Something no filter knew: the client is told, in its own dialect."""
        self.over, self.fault = True, error.fault
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

    def _lone(self, run: Run) -> bytes | None:
        """What `_filled` would write of a run that is one delta; None if nothing. Written out: most events that do not
        hurry come here, and find every cache cold."""
        make, ways, kind = self._hole, self._ways, run.kind
        route, backs = ways.routes[kind], ways.backs
        if make is None or self.over or route.lets is None:
            return None
        for position, ask in route.lets:
            if not ask(backs[position], run):
                return None
        hole = make(kind, run.key)
        if hole is None:
            return None
        for position, tell in route.hear:
            tell(backs[position], run)
        if (heard := self._heard) is not None:
            heard(run)
        self.progress.begun = True
        if hole is not self._filling[0]:
            self._filling = hole, *self._binding.around(hole)
        _, before, after = self._filling
        inside = run.row.insides[0]
        return before + (inside if _BACKSLASH not in inside else respelt(run.row.texts, [inside])[0]) + after

    def _filled(self, run: Run, out: list[bytes]) -> int:
        """How many of the run's deltas, from the first on, went out at once."""
        if self._hole is None or self.over or not (size := self._ways.lets(run)):
            return 0
        make = self._hole
        hole = make(run.kind, run.key)
        if hole is None:
            return 0
        if size < len(run.row.texts):
            run = run.part(0, size)
        self._ways.heard(run)
        self.progress.begun = True
        if self._keeps_frames and self._encoder.passes(next(run.steps()).events):  # as the first of them, so the others
            if self._heard is not None and size > 1:
                self._heard(run.part(1, size))
            out.append(run.raw)
            return size
        if self._heard is not None:
            self._heard(run)
        if hole is not self._filling[0]:
            self._filling = hole, *self._binding.around(hole)
        _, before, after = self._filling
        out.append(before + (after + before).join(respelt(run.row.texts, run.row.insides)) + after)
        return size

    def _add(self, step: Step, out: list[bytes]) -> None:
        if not self.over:
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


def answer_whole(plan: Plan, body: bytes, world: World = REAL_WORLD) -> tuple[bytes, list[Note]]:
    """A whole reply in the client's dialect: the streamed path, so that streamed equals whole by construction."""
    reply, notes = reply_whole(plan, body, world)
    return plan.client.codec.render_reply(reply, plan.asked, world), notes


def reply_whole(plan: Plan, body: bytes, world: World = REAL_WORLD) -> tuple[Reply, list[Note]]:
    """What the client is told by a whole reply, before it is put in the client's words."""
    ways = WaysBack(plan)
    reply = folded(plan, ways.feed(_told(plan, body, world)), ways.notes)
    return reply, list(ways.notes)


def folded(plan: Plan, events: Events, notes: Notes) -> Reply:
    """What the client is told by these events, as a whole reply that its dialect can say."""
    reply = fold(events, notes)
    takes_objects = plan.client.codec.capabilities(plan.asked.model).arguments == "object"
    return settle_reply(reply, notes) if takes_objects else reply


def _told(plan: Plan, body: bytes, world: World) -> Events:
    """What a whole answer says, as events. One that only ever streams is read as the stream it is."""
    upstream = plan.upstream
    if not upstream.codec.capabilities(plan.sent.model).streams_only:
        return unfold(upstream.codec.parse_reply(body, plan.sent))
    reader = Reader(upstream.binding.frames(), upstream.codec.decoder(plan.sent, world))
    return tuple(event for step in (*reader.feed(body), *reader.close()) for event in step.events)
