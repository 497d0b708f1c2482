"""What clients need of a stream, as a lint over captured frames; independent of the decoder and the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dragoman.dialects.gemini.rule_table import RULES
from dragoman.dialects.rulebook import Breach
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json


def stream_breaches(frames: Iterable[Frame]) -> Sequence[Breach]:
    """Every rule that the frames break. `at` is the number of the frame."""
    lint = _Lint()
    for number, frame in enumerate(frames):
        lint.take(frame, f"frame {number}")
    lint.close()
    return lint.found


class _Lint:
    def __init__(self) -> None:
        self.found: list[Breach] = []
        self._at = ""
        self._running: set[int] = set()
        self._stopped: set[int] = set()
        self._in_pieces = False  # the last call has more pieces to come
        self._error: dict[str, Json] | None = None
        self._blocked = False

    def _breach(self, rule: str, detail: str) -> None:
        self.found.append(RULES.breach(f"stream.{rule}", self._at, detail))

    def take(self, frame: Frame, at: str) -> None:
        self._at = at
        try:
            data = jsonio.decode(frame.data)
        except jsonio.JsonError:
            data = None
        if not isinstance(data, dict):
            self._breach("json", "the data must be a JSON object")
            return
        if frame.kind:
            self._breach("event_name", "frames have no names here")
        if self._error is not None and data != self._error:  # one may stand there twice: as an event, and bare
            self._breach("after_end", "nothing may follow an error")
        if "error" in data:
            self._error = data
            return
        feedback = data.get("promptFeedback")
        self._blocked |= isinstance(feedback, dict) and bool(feedback.get("blockReason"))
        entries = data.get("candidates")
        for position, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                self._candidate(entry, position)
            else:
                self._breach("candidate", "a candidate must be an object")

    def _candidate(self, entry: dict[str, Json], position: int) -> None:
        index = entry.get("index", position)
        if type(index) is not int:
            self._breach("index", "index must be a whole number")
            return
        self._running.add(index)
        content = entry.get("content")
        parts = list(_parts(content))
        if isinstance(content, dict) and (not parts or content.get("role") != "model"):
            self._breach("content", "a content is the model's, and has parts: chats forget an answer without")
        for part in parts:
            self._part(part)
        if index in self._stopped and any(part.get("text") != "" for part in parts):
            self._breach("late", f"candidate {index} has stopped")
        if entry.get("finishReason"):
            self._stopped.add(index)

    def _part(self, part: dict[str, Json]) -> None:
        if not part:
            self._breach("part", "a part must hold something")
        call = part.get("functionCall")
        if call is None:
            return
        fields = call if isinstance(call, dict) else {}
        if not (fields.get("name") or self._in_pieces) or not isinstance(fields.get("args", {}), dict):
            self._breach("call", "a call has a name, and args that are an object")
        self._in_pieces = fields.get("willContinue") is True

    def close(self) -> None:
        self._at = "end"
        if self._error is not None or self._blocked:
            return
        if not self._running or self._running - self._stopped:
            self._breach("unfinished", "every candidate must end with a finishReason")


def _parts(content: Json) -> Iterator[dict[str, Json]]:
    parts = content.get("parts") if isinstance(content, dict) else None
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            yield part
