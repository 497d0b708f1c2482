"""A stream of chunks to events.

Theory of operation. Chat has no blocks: a delta holds fragments, and where a block ends is left to the reader. Per
choice at most one text or reasoning block is open (a fragment of the other, or a call, closes it); calls stay open
until the choice stops, because their arguments may interleave. A call begins when its name is known; what came before
waits.
The end is `[DONE]`; some leave it out, so a clean end of bytes after every choice has stopped is one too.
"""

from __future__ import annotations

from dragoman.dialects.base import Decoder, Environment
from dragoman.dialects.kit.openai_errors import fault_of, find_fault
from dragoman.dialects.openai import chunk as chunks
from dragoman.dialects.openai.blocks import EXTRAS, FAMILY, JsonObject, parse_sources
from dragoman.dialects.openai.choice import ChoiceReader
from dragoman.dialects.openai.reply import embedded_usage, envelope_fields, parse_usage, stop_fault
from dragoman.errors import Fault, MalformedRequest, MissingField, Truncated, UpstreamFault
from dragoman.model import events as ev
from dragoman.model.blocks import Opaque
from dragoman.model.conversation import NO_STOP_WORDS, Conversation
from dragoman.model.filter import LaneSource
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame


class OpenaiDecoder(Decoder):
    __slots__ = (
        "_choices", "_counted", "_early", "_keys", "_over", "_sequences", "_started", "_world"
    )  # fmt: skip

    def __init__(self, asked: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> None:
        self._sequences = asked.stop  # no more of it: a stream may last
        self._world = environment
        self._keys = keys or ev.BlockKeys()
        self._choices: dict[int, ChoiceReader] = {}
        self._started = False
        self._over = False
        self._counted = False  # usage was reported
        self._early: JsonObject = {}  # fields of frames before the first real chunk

    @property
    def is_open(self) -> bool:
        return any(choice.is_open for choice in self._choices.values())

    def feed(self, frame: Frame) -> ev.Events | None:
        data = frame.data
        if frame.kind == "error":
            return self._named_error(data)
        if data.startswith(b"[DONE]"):
            return self._done(marked=True)
        if data[:1] != b"{" and data.strip() in (b"", b"null"):
            return None
        chunk = chunks.read_chunk(data)
        if chunk.error:
            return self._failed(fault_of({"error": chunk.error}, None))
        if (fault := _told_fault(chunk, data)) is not None:
            raise self._unfit(fault)
        events: list[ev.Event] = []
        if not self._started and not self._start(chunk, data, events):
            return ()
        sources = parse_sources(chunk.citations, chunk.search_results)
        for position, choice in enumerate(chunk.choices or ()):
            if choice is not None:
                self._choice(choice, position, data, events, sources)
            if self._over:
                return tuple(events)
        told = chunk.usage or embedded_usage(
            chunk.x_groq, (each.usage for each in chunk.choices or () if each is not None)
        )
        if (usage := parse_usage(told)) is not None:
            self._counted = True
            events.append(ev.UsageReported(usage))
        return tuple(events)

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        first = self._choices.get(0)
        return None if first is None else first.lane(key)

    def close(self, broken: Fault | None) -> ev.Events:
        if self._over:
            return ()
        if broken is not None:
            return self._failed(broken)
        return self._done(marked=False)

    def _failed(self, fault: Fault) -> ev.Events:
        self._over = True
        return (ev.Failed(fault),)

    def _named_error(self, data: bytes) -> ev.Events:
        """An `error` event. Some servers write its data as plain text; clients only look for the field `error`."""
        try:
            told = jsonio.decode(data)
        except jsonio.JsonError:
            told = data.decode("utf-8", "replace").strip()
        fault = fault_of(told, None)
        if isinstance(told, dict) and told.get("error"):
            return self._failed(fault)
        raise self._unfit(fault)

    def _unfit(self, fault: Fault) -> UpstreamFault:
        """A failure told in a way that clients do not take for one: raised, so that it loses its frame."""
        self._over = True
        return UpstreamFault(fault.message, fault=fault)

    def _done(self, *, marked: bool) -> ev.Events:
        """The end, if every choice has said why it stopped: `[DONE]` alone is also what cut streams are closed with.

        `marked`: `[DONE]` came. If the counts came before it, a choice whose last chunk has an empty finish_reason has
        stopped (xAI).
        """
        self._over = True
        events: list[ev.Event] = []
        if marked and self._counted:
            for choice in self._choices.values():
                if choice.unnamed:
                    choice.stop("stop", {}, events)
        if self._choices and all(choice.stopped for choice in self._choices.values()):
            return (*events, ev.FINISHED)
        cut = Truncated("the stream ended before it said why")
        if marked:
            raise cut.as_final()  # clients take `[DONE]` for a good end: the frame must not go out
        return (ev.Failed(cut.fault),)

    def _start(self, chunk: chunks.Chunk, data: bytes, events: list[ev.Event]) -> bool:
        """Begin with the first chunk that is one; Azure sends a frame with nothing but its filters before."""
        rest = self._early | envelope_fields(chunks.read_json_object(data))
        if not (chunk.id or chunk.choices or chunk.usage):
            self._keys.budget.reserve(ev.json_size(rest) - ev.json_size(self._early))
            self._early = rest
            return False
        self._started = True
        # A time that an encoder would write anyhow need not be remembered.
        if type(chunk.created) is int and chunk.created and chunk.created != self._world.now():
            rest["created"] = chunk.created
        events.append(ev.Started(chunk.id or "", chunk.model or "", extra=EXTRAS.extra_of(rest)))
        return True

    def _choice(
        self, choice: chunks.ChunkChoice, position: int, data: bytes, events: list[ev.Event], sources: list[Opaque]
    ) -> None:
        index = position if choice.index is None else choice.index
        reader = self._choices.get(index)
        if reader is None:
            self._keys.budget.choice()
            self._choices[index] = reader = ChoiceReader(index, self._keys, self._sequences)
        reader.cite(sources)
        if choice.delta is not None:
            try:
                reader.feed(choice.delta, events)
            except MalformedRequest as error:  # the readers shared with requests blame a client
                raise MissingField(str(error)) from None
        if choice.logprobs:
            events.append(ev.OpaqueEvent(FAMILY, "logprobs", {"index": index, "logprobs": choice.logprobs}))
        word = choice.finish_reason
        reader.unnamed = word == ""
        if (word is None or word.lower() in NO_STOP_WORDS) and not choice.error:
            return
        beside = chunks.stopped_choice_fields(data, position)
        fault = stop_fault(word or "", beside)
        if fault is None:
            reader.stop(word or "stop", beside, events)
        elif not events:
            raise self._unfit(fault)
        else:
            events += self._failed(fault)


def _told_fault(chunk: chunks.Chunk, data: bytes) -> Fault | None:
    """The fault in a frame that is no chunk, or in one that says that it failed. Most frames need no second look."""
    if chunk.choices and chunk.base_resp is None and chunk.x_groq is None:
        return None
    return find_fault(chunks.read_json_object(data))
