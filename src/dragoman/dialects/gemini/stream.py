"""Decode Gemini's response streams: bytes to frames, and frames to events. Every response has its own decoder. Pure.

Theory of operation. Every frame is a small reply, and its parts continue those of the previous frame. Text continues
the open text, and thoughts continue the open thought; any other part ends it. Calls come whole. A text with a signature
is a block of its own. There is no last frame: each candidate ends with its finishReason, and the stream ends with its
bytes (docs/decisions/responses.md#d7).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from dragoman.dialects.base import Decoder, Environment
from dragoman.dialects.gemini import reply
from dragoman.dialects.gemini.blocks import EXTRAS, FAMILY, parse_part, snake_to_camel
from dragoman.dialects.gemini.sources import parse_search, parse_sources
from dragoman.dialects.kit.streams import BlockEventBuilder
from dragoman.errors import BadFrame, Fault, MissingField, OutOfOrder, Truncated, UpstreamFault
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Opaque, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Stop, StopReason, to_extra_names
from dragoman.wire.fields import Fields
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json, ObjectScanner
from dragoman.wire.sse import MAX_FRAME, FrameTooLong, SseDecoder

_IGNORED = (b"", b"null")


class _Choice(BlockEventBuilder):
    """One candidate of an open stream."""

    def __init__(self, index: int, keys: ev.BlockKeys) -> None:
        super().__init__(FAMILY, keys, index)
        self.has_content = False
        self.sources: list[Opaque] = []  # sent as citations when the candidate ends
        self.search: Opaque | None = None  # sent as a block at the same time
        self.partial: PartialCall | None = None  # a call whose arguments come in pieces
        self.stopped = False


class GeminiDecoder(Decoder):
    """Decode frames to events. Raises UpstreamViolation for a frame that the dialect does not allow."""

    def __init__(self, request: Conversation, environment: Environment, keys: ev.BlockKeys | None = None) -> None:
        self._model = request.model
        self._keys = keys or ev.BlockKeys()
        self._choices: dict[int, _Choice] = {}
        self._started = False
        self._ended = False
        self._envelope_fields: dict[str, Json] = {}  # fields of the response, as last reported in an event

    @property
    def is_open(self) -> bool:
        return any(choice.is_open or choice.partial is not None for choice in self._choices.values())

    def feed(self, frame: Frame) -> ev.Events | None:
        if frame.data.strip() in _IGNORED:
            return None
        events: list[ev.Event] = []
        try:
            fields = reply.read_response(frame.data)
            self._response(fields, frame.data, events)
        except UpstreamFault as failed:
            self._ended = True
            events.append(ev.Failed(failed.fault))
        except RecursionError:
            raise BadFrame("the frame is nested too deeply") from None
        return tuple(events)

    def close(self, broken: Fault | None) -> ev.Events:
        if self._ended:
            return ()
        self._ended = True
        if broken is None and self._choices and all(choice.stopped for choice in self._choices.values()):
            return (ev.FINISHED,)
        return (ev.Failed(broken or Truncated("the upstream's stream ended without a finishReason").fault),)

    def _response(self, fields: Fields, data: bytes, events: list[ev.Event]) -> None:
        usage, entries = fields.any("usageMetadata"), reply.candidates(fields)
        blocked = None if entries or self._choices else reply.parse_block_reason(fields)
        self._envelope(fields, events)
        arguments = reply.raw_arguments(data)
        for candidate in entries:
            choice = self._choices.get(candidate.index)
            if choice is None:
                self._keys.budget.choice()
                choice = self._choices[candidate.index] = _Choice(candidate.index, self._keys)
            parts, choice.partial = join_calls(candidate.parts, choice.partial, candidate.at)
            if choice.partial is not None:
                self._keys.budget.reserve(ev.json_size(candidate.parts))
            blocks = reply.parse_parts(structs.replace(candidate, parts=parts), arguments)
            self._candidate(choice, candidate, blocks, events)
        if blocked is not None:
            self._choices[0] = _Choice(0, self._keys)
            self._choices[0].stopped = True
            events.append(ev.Stopped(blocked))
        if (counts := reply.parse_usage(usage)) is not None:
            events.append(ev.UsageReported(counts))

    def _envelope(self, fields: Fields, events: list[ev.Event]) -> None:
        response_id, model = fields.text("responseId", ""), fields.text("modelVersion", "")
        rest = fields.rest()
        known = self._envelope_fields
        if not self._started:
            self._started = True
            events.append(ev.Started(response_id, model or self._model, extra=EXTRAS.extra_of(to_extra_names(rest))))
            changed = rest
        elif changed := {name: value for name, value in rest.items() if known.get(name) != value}:
            events.append(ev.OpaqueEvent(FAMILY, "response", changed))
        if changed:
            before = {name: known[name] for name in changed if name in known}
            self._keys.budget.reserve(ev.json_size(changed) - ev.json_size(before))
            known |= changed

    def _candidate(
        self, choice: _Choice, candidate: reply.Candidate, blocks: list[Block], events: list[ev.Event]
    ) -> None:
        for block in blocks:
            if reply.is_empty_block(block):
                continue
            if choice.stopped:
                raise OutOfOrder("a candidate has content after its finishReason", at=candidate.at)
            if isinstance(block, ToolResult):
                raise OutOfOrder("a reply must not contain a tool result", at=block.at.path)
            choice.has_content = True
            choice.add(block, events)
        rest = candidate.rest
        sources = [source for source in parse_sources(rest) if source not in choice.sources] if rest else []
        self._keys.budget.reserve(ev.json_size(*sources))
        choice.sources += sources
        if candidate.reason in reply.UNSPECIFIED or choice.stopped:
            choice.search = parse_search(rest) or choice.search
            if rest:
                events.append(ev.OpaqueEvent(FAMILY, "candidate", {"index": choice.choice, "fields": rest}))
            return
        reply.check_readable(candidate, has_content=choice.has_content)
        stop = reply.parse_stop(candidate.reason, rest, has_calls=choice.has_calls)
        if choice.partial is not None:
            self._end_cut_call(choice, choice.partial, stop, candidate.at, events)
        if choice.is_open and not choice.is_reasoning:
            events += [ev.CitationAdded(choice.key, source) for source in choice.sources]
        choice.end(events)
        if (search := choice.search or parse_search(rest)) is not None:
            choice.add(search, events)
        choice.stopped = True
        events.append(ev.Stopped(stop, choice.choice))

    def _end_cut_call(self, choice: _Choice, partial: PartialCall, stop: Stop, at: str, events: list[ev.Event]) -> None:
        """End a call that a token limit cut. Raises OutOfOrder if the stream stopped for another reason."""
        if stop.reason not in (StopReason.LENGTH, StopReason.CONTEXT):
            raise OutOfOrder("the stream stopped before the end of a tool call", at=at)
        call = parse_part(partial.part, at, MissingField)
        if isinstance(call, ToolCall):
            choice.call(call, events)
            events[-1] = structs.replace(events[-1], is_complete=False)


# --- calls whose arguments come in pieces, as Vertex AI sends them if `streamFunctionCallArguments` is set
#
# The first piece has the name, later ones have `partialArgs`: a JSON path and a value each. A piece without
# `willContinue` is the last one. The decoder sends the call when it is complete.


_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]|\['([^']*)'\]")
_VALUES = ("stringValue", "numberValue", "boolValue")
_MAX_ITEMS = 10_000
_SPELLINGS = snake_to_camel("functionCall", "partialArgs", "willContinue", "thoughtSignature", "jsonPath", *_VALUES)


class PartialCall:
    """One call that has started and is not complete."""

    def __init__(self) -> None:
        self._part: dict[str, Json] = {}  # the other fields of its part
        self._call: dict[str, Json] = {}
        self._args: dict[str, Any] = {}

    def take(self, part: dict[str, Json], call: dict[str, Json], at: str) -> Json | None:
        """Add a piece; return the part of the complete call after the last one, else None. Raises MissingField."""
        self._part |= {name: value for name, value in part.items() if name != "functionCall"}
        pieces, more = call.pop("partialArgs", None), call.pop("willContinue", None)
        args = call.pop("args", None)
        self._args |= args if isinstance(args, dict) else {}
        self._call |= {name: value for name, value in call.items() if value}
        for piece in pieces if isinstance(pieces, list) else ():
            fields, place = _in_camel_case(piece), f"{at}.functionCall.partialArgs"
            path = fields.get("jsonPath")
            matches = [*_STEP.finditer(path)] if isinstance(path, str) else []
            if not matches or "$" + "".join(step[0] for step in matches) != path:
                raise MissingField("expected the JSON path of a streamed argument", at=place)
            steps = [int(step[2]) if step[2] else step[1] or step[3] for step in matches]
            _put(self._args, steps, next((fields[name] for name in _VALUES if name in fields), None), place)
        return None if more else self.part

    @property
    def part(self) -> dict[str, Json]:
        """The part of the call, with the arguments received so far."""
        return {**self._part, "functionCall": {**self._call, "args": self._args}}


def join_calls(parts: list[Json], partial: PartialCall | None, at: str) -> tuple[list[Json], PartialCall | None]:
    """Return the parts, with the pieces of each call joined, and the call that is still open."""
    whole: list[Json] = []
    for index, part in enumerate(parts):
        fields = _in_camel_case(part)
        call = fields.get("functionCall")
        call = _in_camel_case(call) if isinstance(call, dict) else None
        if call is None or not (partial or call.get("willContinue") or call.get("partialArgs")):
            whole.append(part)
            continue
        partial = partial or PartialCall()
        complete = partial.take(fields, call, f"{at}.content.parts[{index}]")
        if complete is not None:
            whole.append(complete)
            partial = None
    return whole, partial


def _in_camel_case(value: Json) -> dict[str, Json]:
    """Return the fields of an object, with the known names in camelCase."""
    return {_SPELLINGS.get(name, name): each for name, each in value.items()} if isinstance(value, dict) else {}


def _put(place: Any, steps: list[str | int], value: Json, at: str) -> None:
    """Set the value at the path; append a string to a string that is already there."""
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        in_list = isinstance(step, int) and step <= _MAX_ITEMS and isinstance(place, list)
        if not (in_list or (isinstance(step, str) and isinstance(place, dict))):
            raise MissingField("a streamed argument's path leads through a value that is not an object or array", at=at)
        if isinstance(step, int):
            place.extend([None] * (step + 1 - len(place)))
        present = place[step] if isinstance(step, int) else place.get(step)
        if following is None:
            place[step] = present + value if isinstance(present, str) and isinstance(value, str) else value
        elif present is None:
            place[step] = [] if isinstance(following, int) else {}
        place = place[step]


# --- frames: server-sent events with bare JSON among them, or one JSON array
#
# In mid-stream the service sends an error as bare JSON on a line of its own; no line of an event begins with `{`. A
# stream requested without `alt=sse` is one array of the same objects.


_BARE = re.compile(rb"[\r\n]\{")
_SPACE = b" \t\r\n"


class GeminiFrameDecoder:
    """Decode bytes to frames, wherever the chunks are cut; see FrameDecoder."""

    def __init__(self) -> None:
        self._events = SseDecoder()
        self._started = False
        self._is_array = False
        self._at_line_start = True
        self._buffer: list[bytes] = []  # of one object of bare JSON
        self._size = 0
        self._scanner: ObjectScanner | None = None

    @property
    def buffered_bytes(self) -> int:
        """See FrameDecoder."""
        return self._size + self._events.buffered_bytes

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        if not self._started:
            chunk = chunk.lstrip(_SPACE)
            if not chunk:
                return
            self._started = True
            self._is_array = chunk.startswith(b"[")
        while chunk:
            if self._scanner is not None:
                chunk, frame = self._bare(chunk, self._scanner)
                if frame is not None:
                    yield frame
            elif self._is_array:
                chunk = chunk.lstrip(b"[,]" + _SPACE)
                self._scanner = ObjectScanner() if chunk else None
            elif self._at_line_start and chunk.startswith(b"{"):
                self._scanner = ObjectScanner()
            else:
                found = _BARE.search(chunk)
                end = found.start() + 1 if found else len(chunk)
                lines, chunk = chunk[:end], chunk[end:]
                self._at_line_start = lines.endswith((b"\n", b"\r"))
                yield from self._events.feed(lines)

    def close(self) -> Iterator[Frame]:
        if self._buffer:
            broken = b"".join(self._buffer)
            self._buffer = []
            yield Frame("", broken, broken)
        yield from self._events.close()

    def _bare(self, chunk: bytes, scanner: ObjectScanner) -> tuple[bytes, Frame | None]:
        """Read more of a JSON object; return the bytes after it, and its frame if it is complete."""
        rest = scanner.feed(chunk.decode("latin-1"))
        if not scanner.is_complete:
            self._buffer.append(chunk)
            self._size += len(chunk)
            if self._size > MAX_FRAME:
                raise FrameTooLong(f"a frame is longer than {MAX_FRAME} bytes")
            return b"", None
        end = len(chunk) - len(rest)
        data = b"".join([*self._buffer, chunk[:end]])
        self._buffer, self._size, self._scanner, self._at_line_start = [], 0, None, False
        return chunk[end:], Frame("", data, data)
