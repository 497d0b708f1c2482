"""What a stream must be so that the official helpers of both languages read it, checked on raw frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dragoman.dialects.kit.lint import StreamLint
from dragoman.dialects.kit.values import decoded
from dragoman.dialects.openai.rules import RULES
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame

_REASONS = {"stop", "length", "tool_calls", "content_filter", "function_call"}
_ENVELOPE = ("id", "object", "created", "model")
_Found = Iterator[tuple[str, str]]


def stream_breaches(frames: Iterable[Frame]) -> Sequence[Breach]:
    """Everything the captured stream breaks, frame by frame."""
    return tuple(_Lint(RULES).run(frames))


class _ChoiceLint:
    def __init__(self) -> None:
        self.spoken = False
        self.finished = False
        self.ended = False  # finished, or given the empty reason, which xAI sends with calls
        self._named: list[bool] = []  # of each call, by index: whether it has its name

    def delta(self, delta: dict[str, Any]) -> _Found:
        if "role" in delta and self.spoken:
            yield "role_twice", "the role comes once"
        if not self.spoken and delta.get("role") != "assistant":
            yield "no_role", "the first delta of a choice has the role assistant"
        self.spoken = True
        if self.finished and any(delta.get(name) for name in ("content", "refusal", "tool_calls", "function_call")):
            yield "after_finish", "nothing is said after the finish_reason"
        for name in ("content", "refusal"):
            if isinstance(delta.get(name), list):
                yield "content_parts", f"{name} is a string"
            elif not isinstance(delta.get(name), str | None):
                yield "content", f"{name} is a string"
        details = delta.get("reasoning_details")
        for entry in details if isinstance(details, list) else ():
            if not isinstance(entry, dict) or type(entry.get("index")) is not int:
                yield "details_index", "an entry of reasoning_details has an index"
        calls = delta.get("tool_calls")
        for entry in calls if isinstance(calls, list) else ():
            yield from self._call(entry if isinstance(entry, dict) else {})

    def _call(self, entry: dict[str, Any]) -> _Found:
        index = entry.get("index")
        kind = "custom" if isinstance(entry.get("custom"), dict) else "function"
        inner = entry.get(kind)
        inner = inner if isinstance(inner, dict) else {}
        if not isinstance(inner.get("input" if kind == "custom" else "arguments"), str | None):
            yield "arguments", "arguments are text"
        if index is None:
            yield "call_no_index", "a call has an index"
            if not inner.get("name") and not self._named:
                yield "call_name", "a call has a name"
            return
        if type(index) is not int or not 0 <= index <= len(self._named):
            yield "call_index", "call indices are dense and begin with 0"
            return
        if index == len(self._named):
            self._named.append(False)
            if not (entry.get("id") and entry.get("type") and inner.get("name")):
                yield "call_start", "the first entry of a call has id, type and name"
        elif entry.get("id") or entry.get("type") or inner.get("name"):
            yield "call_repeated", "id, type and name of a call come once"
        self._named[index] = self._named[index] or bool(inner.get("name"))

    def end(self) -> _Found:
        for index, named in enumerate(self._named):
            if not named:
                yield "call_name", f"call {index} has a name"


class _Lint(StreamLint):
    def __init__(self, rules: Rulebook) -> None:
        super().__init__(rules)
        self._choices: dict[int, _ChoiceLint] = {}
        self._envelope: list[Any] | None = None
        self._usage = False
        self._over = ""

    def frame(self, frame: Frame) -> None:
        done = frame.data == b"[DONE]"
        if self._over and not (done and self._over == "an error"):
            self.breach("after_end", f"nothing follows {self._over}")
        if frame.kind:
            self.breach("named", "frames have no event name")
        if done:
            self._over = self._over or "[DONE]"
            return
        chunk = decoded(frame.data)
        if not isinstance(chunk, dict):
            self.breach("no_json", "the data of a frame is a JSON object")
        elif (error := chunk if chunk.get("object") == "error" else chunk.get("error")) is not None:
            self._over = "an error"
            if not isinstance(error, dict) or not isinstance(error.get("message"), str):
                self.breach("error_shape", "an error has a message")
        else:
            self._chunk(chunk)

    def _chunk(self, chunk: dict[str, Any]) -> None:
        envelope = [chunk.get(name) for name in _ENVELOPE]
        if None in envelope or envelope[1] != "chat.completion.chunk":
            self.breach("envelope", "a chunk has id, object, created and model")
        elif self._envelope not in (None, envelope):
            self.breach("envelope_changed", "id, object, created and model stay the same")
        self._envelope = envelope
        if self._usage:
            self.breach("after_usage", "the usage chunk is the last")
        choices = chunk.get("choices")
        if choices is None and any(chunk.get(name) for name in ("usage", "x_groq", "base_resp")):
            choices = []  # usage alone: the helpers want the array, some services leave it out
            self.breach("empty", "a chunk has choices")
        if not isinstance(choices, list):
            self.breach("choices", "choices is an array")
            return
        if not choices:
            self._usage = chunk.get("usage") is not None
            if not self._usage:
                self.breach("empty", "a chunk without choices tells the usage")
        for choice in choices:
            self._choice(choice)

    def _choice(self, choice: Any) -> None:
        if not isinstance(choice, dict):
            self.breach("choice", "a choice is an object")
            return
        index, delta, reason = choice.get("index"), choice.get("delta"), choice.get("finish_reason")
        if not isinstance(index, int | None) or isinstance(index, bool) or not isinstance(delta, dict | None):
            self.breach("choice", "a choice has an index, a number, and a delta, an object")
            return
        if index is None or delta is None:
            self.breach("choice_fields", "a choice has an index and a delta")
        lint = self._choices.setdefault(index or 0, _ChoiceLint())
        if delta is not None:
            for found in lint.delta(delta):
                self.breach(*found)
        if reason is None:
            return
        if lint.finished and reason:
            self.breach("finish_twice", "a choice finishes once")
        if not isinstance(reason, str) or reason not in _REASONS:
            self.breach("finish_reason", f"{reason!r} is no finish_reason")
        lint.finished = lint.finished or bool(reason)
        lint.ended = True

    def end(self) -> None:
        if not self._over:
            self.breach("no_end", "a stream ends with [DONE] or an error")
        if self._over == "an error":
            return
        if not (self._choices and all(lint.ended for lint in self._choices.values())):
            self.breach("no_finish", "every choice has a finish_reason")
        for lint in self._choices.values():
            for found in lint.end():
                self.breach(*found)
