"""What a stream must be so that the official helpers of both languages read it, checked on raw frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dragoman.dialects.base import Breach
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame

_REASONS = {"stop", "length", "tool_calls", "content_filter", "function_call"}
_ENVELOPE = ("id", "object", "created", "model")
_Found = Iterator[tuple[str, str]]


def stream_breaches(frames: Iterable[Frame]) -> Sequence[Breach]:
    """Everything the captured stream breaks, frame by frame."""
    lint = _Lint()
    found = [
        Breach(f"openai.stream.{rule}", f"frame[{index}]", detail)
        for index, frame in enumerate(frames)
        for rule, detail in lint.frame(frame)
    ]
    return (*found, *(Breach(f"openai.stream.{rule}", "", detail) for rule, detail in lint.end()))


class _ChoiceLint:
    def __init__(self) -> None:
        self.spoken = False
        self.finished = False
        self.calls = 0

    def delta(self, delta: dict[str, Any]) -> _Found:
        if "role" in delta and self.spoken:
            yield "role_twice", "the role comes once"
        if not self.spoken and delta.get("role") != "assistant":
            yield "no_role", "the first delta of a choice has the role assistant"
        self.spoken = True
        if self.finished and any(delta.get(name) for name in ("content", "refusal", "tool_calls", "function_call")):
            yield "after_finish", "nothing is said after the finish_reason"
        for name in ("content", "refusal"):
            if not isinstance(delta.get(name), str | None):
                yield "content", f"{name} is a string"
        for entry in delta.get("reasoning_details") or ():
            if type(entry.get("index")) is not int:
                yield "details_index", "an entry of reasoning_details has an index"
        calls = delta.get("tool_calls")
        for entry in calls if isinstance(calls, list) else ():
            yield from self._call(entry if isinstance(entry, dict) else {})

    def _call(self, entry: dict[str, Any]) -> _Found:
        index = entry.get("index")
        kind = "custom" if isinstance(entry.get("custom"), dict) else "function"
        inner = entry.get(kind)
        inner = inner if isinstance(inner, dict) else {}
        if type(index) is not int or not 0 <= index <= self.calls:
            yield "call_index", "call indices are dense and begin with 0"
            return
        if index == self.calls:
            self.calls += 1
            if not (entry.get("id") and entry.get("type") and inner.get("name")):
                yield "call_start", "the first entry of a call has id, type and name"
        elif entry.get("id") or entry.get("type") or inner.get("name"):
            yield "call_repeated", "id, type and name of a call come once"
        if not isinstance(inner.get("input" if kind == "custom" else "arguments"), str | None):
            yield "arguments", "arguments are text"


class _Lint:
    def __init__(self) -> None:
        self._choices: dict[int, _ChoiceLint] = {}
        self._envelope: list[Any] | None = None
        self._usage = False
        self._over = ""

    def frame(self, frame: Frame) -> _Found:
        if self._over:
            yield "after_end", f"nothing follows {self._over}"
        if frame.kind:
            yield "named", "frames have no event name"
        if frame.data == b"[DONE]":
            self._over = "[DONE]"
            return
        try:
            chunk = jsonio.decode(frame.data)
        except jsonio.JsonError:
            chunk = None
        if not isinstance(chunk, dict):
            yield "no_json", "the data of a frame is a JSON object"
        elif "error" in chunk:
            self._over = "an error"
            error = chunk["error"]
            if not isinstance(error, dict) or not isinstance(error.get("message"), str):
                yield "error_shape", "an error has a message"
        else:
            yield from self._chunk(chunk)

    def _chunk(self, chunk: dict[str, Any]) -> _Found:
        envelope = [chunk.get(name) for name in _ENVELOPE]
        if None in envelope or envelope[1] != "chat.completion.chunk":
            yield "envelope", "a chunk has id, object, created and model"
        elif self._envelope not in (None, envelope):
            yield "envelope_changed", "id, object, created and model stay the same"
        self._envelope = envelope
        if self._usage:
            yield "after_usage", "the usage chunk is the last"
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            yield "choices", "choices is an array"
            return
        if not choices:
            self._usage = chunk.get("usage") is not None
            if not self._usage:
                yield "empty", "a chunk without choices tells the usage"
        for choice in choices:
            yield from self._choice(choice if isinstance(choice, dict) else {})

    def _choice(self, choice: dict[str, Any]) -> _Found:
        index, delta, reason = choice.get("index"), choice.get("delta"), choice.get("finish_reason")
        if type(index) is not int or not isinstance(delta, dict):
            yield "choice", "a choice has an index and a delta"
            return
        lint = self._choices.setdefault(index, _ChoiceLint())
        yield from lint.delta(delta)
        if reason is None:
            return
        if lint.finished:
            yield "finish_twice", "a choice finishes once"
        if reason not in _REASONS:
            yield "finish_reason", f"{reason!r} is no finish_reason"
        lint.finished = True

    def end(self) -> _Found:
        if not self._over:
            yield "no_end", "a stream ends with [DONE] or an error"
        if self._over == "[DONE]" and not (self._choices and all(lint.finished for lint in self._choices.values())):
            yield "no_finish", "every choice has a finish_reason"
