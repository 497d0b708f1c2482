"""Decode response streams of Chat Completions: chunks to events. Pure.

Theory of operation. Chat has no blocks: a delta holds fragments, and the decoder decides where a block ends. Per choice
at most one text or reasoning block is open; a fragment of the other kind, or a call, ends it. Calls stay open until the
choice stops, because their arguments may interleave. A call's block starts when its name is known; arguments that come
earlier wait.

`[DONE]` ends the stream. Some servers leave it out, so the end of the bytes also ends it if every choice has stopped.
"""

from __future__ import annotations

from dragoman.dialects.base import Decoder, Environment
from dragoman.dialects.kit.openai_errors import fault_of, find_fault
from dragoman.dialects.openai import chunk as chunks
from dragoman.dialects.openai.blocks import EXTRAS, FAMILY, parse_sources
from dragoman.dialects.openai.choice import ChoiceReader
from dragoman.dialects.openai.reply import embedded_usage, envelope_fields, parse_usage, stop_fault
from dragoman.errors import Fault, MalformedRequest, MissingField, Truncated, UpstreamFault
from dragoman.model import events as ev
from dragoman.model.blocks import Opaque
from dragoman.model.conversation import NO_STOP_WORDS, Conversation
from dragoman.model.filter import LaneSource
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import JsonObject


class OpenaiDecoder(Decoder):
    """Decodes the frames of one response stream."""

    __slots__ = (
        "_choices",
        "_early",
        "_environment",
        "_is_over",
        "_keys",
        "_sequences",
        "_started",
        "_usage_reported"
    )  # fmt: skip

    def __init__(self, request: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> None:
        self._sequences = request.stop  # a long stream must not keep the whole request alive
        self._environment = environment
        self._keys = keys or ev.BlockKeys()
        self._choices: dict[int, ChoiceReader] = {}
        self._started = False
        self._is_over = False
        self._usage_reported = False  # usage was reported
        self._early: JsonObject = {}  # fields of frames before the first real chunk

    @property
    def is_open(self) -> bool:
        return any(choice.is_open for choice in self._choices.values())

    def feed(self, frame: Frame) -> ev.Events | None:
        data = frame.data
        if frame.kind == "error":
            return self._error_event(data)
        if data.startswith(b"[DONE]"):
            return self._done(marked=True)
        if data[:1] != b"{" and data.strip() in (b"", b"null"):
            return None
        chunk = chunks.read_chunk(data)
        if chunk.error:
            return self._failed(fault_of({"error": chunk.error}, None))
        if (fault := _reported_fault(chunk, data)) is not None:
            raise self._as_error(fault)
        events: list[ev.Event] = []
        if not self._started and not self._start(chunk, data, events):
            return ()
        has_sources = chunk.citations is not None or chunk.search_results is not None
        sources = parse_sources(chunk.citations, chunk.search_results) if has_sources else []
        for position, choice in enumerate(chunk.choices or ()):
            if choice is not None:
                self._choice(choice, position, data, events, sources)
            if self._is_over:
                return tuple(events)
        counts = chunk.usage or embedded_usage(
            chunk.x_groq, [each.usage for each in chunk.choices or () if each is not None]
        )
        if counts and (usage := parse_usage(counts)) is not None:
            self._usage_reported = True
            events.append(ev.UsageReported(usage))
        return tuple(events)

    def lane(self, kind: type[ev.Delta], key: int) -> LaneSource | None:
        first = self._choices.get(0)
        return None if first is None else first.lane(key)

    def close(self, broken: Fault | None) -> ev.Events:
        if self._is_over:
            return ()
        if broken is not None:
            return self._failed(broken)
        return self._done(marked=False)

    def _failed(self, fault: Fault) -> ev.Events:
        self._is_over = True
        return (ev.Failed(fault),)

    def _error_event(self, data: bytes) -> ev.Events:
        """Read an `error` event. Some servers send plain text as its data, but clients read only the field `error`."""
        try:
            error = jsonio.decode(data)
        except jsonio.JsonError:
            error = data.decode("utf-8", "replace").strip()
        fault = fault_of(error, None)
        if isinstance(error, dict) and error.get("error"):
            return self._failed(fault)
        raise self._as_error(fault)

    def _as_error(self, fault: Fault) -> UpstreamFault:
        """Return the error for a failure that clients would not notice. Raising it drops the upstream's frame."""
        self._is_over = True
        return UpstreamFault(fault.message, fault=fault)

    def _done(self, *, marked: bool) -> ev.Events:
        """Finish if every choice has stopped, and fail otherwise: some servers also end a cut stream with `[DONE]`.

        `marked` means that `[DONE]` came. xAI sends an empty finish_reason in the last chunk of a choice: such a choice
        counts as stopped if the usage came before `[DONE]`.
        """
        self._is_over = True
        events: list[ev.Event] = []
        if marked and self._usage_reported:
            for choice in self._choices.values():
                if choice.unnamed:
                    choice.stop("stop", {}, events)
        if self._choices and all(choice.stopped for choice in self._choices.values()):
            return (*events, ev.FINISHED)
        cut = Truncated("the stream ended without a finish_reason")
        if marked:
            raise cut.as_final()  # clients read `[DONE]` as success, so its frame must not reach them
        return (ev.Failed(cut.fault),)

    def _start(self, chunk: chunks.Chunk, data: bytes, events: list[ev.Event]) -> bool:
        """Emit Started for the first real chunk. Azure sends a frame with only its content filters before it."""
        rest = self._early | envelope_fields(chunks.read_json_object(data))
        if not (chunk.id or chunk.choices or chunk.usage):
            self._keys.budget.reserve(ev.json_size(rest) - ev.json_size(self._early))
            self._early = rest
            return False
        self._started = True
        # The encoder writes the current time by itself, so only another time is kept.
        if type(chunk.created) is int and chunk.created and chunk.created != self._environment.now():
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
            except MalformedRequest as error:  # from parsers that are shared with requests
                raise MissingField(str(error)) from None
        if choice.logprobs:
            events.append(ev.OpaqueEvent(FAMILY, "logprobs", {"index": index, "logprobs": choice.logprobs}))
        word = choice.finish_reason
        reader.unnamed = word == ""
        if (word is None or word.lower() in NO_STOP_WORDS) and not choice.error:
            return
        rest = chunks.stopped_choice_fields(data, position)
        fault = stop_fault(word or "", rest)
        if fault is None:
            reader.stop(word or "stop", rest, events)
        elif not events:
            raise self._as_error(fault)
        else:
            events += self._failed(fault)


def _reported_fault(chunk: chunks.Chunk, data: bytes) -> Fault | None:
    """Return the fault that a frame reports outside `error`. Most frames are recognised without a second decoding."""
    if chunk.choices and chunk.base_resp is None and chunk.x_groq is None:
        return None
    return find_fault(chunks.read_json_object(data))
