"""What clients need of a stream, as a lint over captured frames; independent of the decoder and the encoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dragoman.dialects.gemini.rule_table import RULES
from dragoman.dialects.kit.lint import StreamLint
from dragoman.dialects.kit.values import Object, decoded, members, objects
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame


def stream_breaches(frames: Iterable[Frame]) -> Sequence[Breach]:
    """Every rule that the frames break. `at` is the number of the frame."""
    return _Lint(RULES).run(frames)


class _Lint(StreamLint):
    def __init__(self, rules: Rulebook) -> None:
        super().__init__(rules)
        self._running: set[int] = set()
        self._stopped: set[int] = set()
        self._in_pieces = False  # the last call has more pieces to come
        self._error: Object | None = None
        self._blocked = False

    def frame(self, frame: Frame) -> None:
        data = decoded(frame.data)
        if not isinstance(data, dict):
            self.breach("json", "the data must be a JSON object")
            return
        if frame.kind:
            self.breach("event_name", "frames have no names here")
        if self._error is not None and data != self._error:  # one may stand there twice: as an event, and bare
            self.breach("after_end", "nothing may follow an error")
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
                self.breach("candidate", "a candidate must be an object")

    def _candidate(self, entry: Object, position: int) -> None:
        index = entry.get("index", position)
        if type(index) is not int:
            self.breach("index", "index must be a whole number")
            return
        self._running.add(index)
        content = entry.get("content")
        parts = [part for part, _ in objects(members(content).get("parts"), "")]
        if isinstance(content, dict) and (not parts or content.get("role") != "model"):
            self.breach("content", "a content is the model's, and has parts: chats forget an answer without")
        for part in parts:
            self._part(part)
        if index in self._stopped and any(part.get("text") != "" for part in parts):
            self.breach("late", f"candidate {index} has stopped")
        if entry.get("finishReason"):
            self._stopped.add(index)

    def _part(self, part: Object) -> None:
        if not part:
            self.breach("part", "a part must hold something")
        call = part.get("functionCall")
        if call is None:
            return
        fields = call if isinstance(call, dict) else {}
        if not (fields.get("name") or self._in_pieces) or not isinstance(fields.get("args", {}), dict):
            self.breach("call", "a call has a name, and args that are an object")
        self._in_pieces = fields.get("willContinue") is True

    def end(self) -> None:
        if self._error is not None or self._blocked:
            return
        if not self._running or self._running - self._stopped:
            self.breach("unfinished", "every candidate must end with a finishReason")
