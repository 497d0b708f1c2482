"""What a stream must be so that the SDKs' helpers and Codex read it, checked on raw frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dragoman.dialects.kit.lint import StreamLint
from dragoman.dialects.kit.values import decoded
from dragoman.dialects.responses.rules import RULES
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame

_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
_STARTS = ("response.created", "response.in_progress", "response.queued")
_IN_PART = ("response.output_text.", "response.refusal.")
_GROWS = {
    "response.output_text.": "message",
    "response.refusal.": "message",
    "response.content_part.": "message",
    "response.function_call_arguments.": "function_call",
    "response.custom_tool_call_input.": "custom_tool_call",
    "response.reasoning_summary_": "reasoning",
    "response.reasoning_text.": "reasoning",
}
_DETAILS = {
    "input_tokens_details": ("cached_tokens",),
    "output_tokens_details": ("reasoning_tokens",),
}
_WORDS = {"function_call": ("call_id", "name", "arguments"), "custom_tool_call": ("call_id", "name", "input")}
_Found = Iterator[tuple[str, str]]


def stream_breaches(frames: Iterable[Frame]) -> Sequence[Breach]:
    """Everything the captured stream breaks, frame by frame."""
    return tuple(_Lint(RULES).run(frames))


class _Lint(StreamLint):
    def __init__(self, rules: Rulebook) -> None:
        super().__init__(rules)
        self._begun = False
        self._over = ""
        self._number = -1
        self._added = 0
        self._kinds: dict[int, str] = {}  # of open items, by output_index
        self._parts: set[tuple[int, int]] = set()
        self._done = 0

    def frame(self, frame: Frame) -> None:
        if frame.data == b"[DONE]":
            return  # some end with it; clients take no notice
        if self._over:
            self.breach("after_end", f"nothing follows {self._over}")
        data = decoded(frame.data)
        if not isinstance(data, dict):
            self.breach("no_json", "the data of a frame is a JSON object")
            return
        kind = data.get("type")
        if not isinstance(kind, str):
            self.breach("type", "an event has a type")
            return
        if kind != frame.kind:
            self.breach("event_name", "the event's name is its type")
        self._numbered(data)
        if not self._begun and kind not in ("response.created", "error"):
            if kind.startswith("response."):
                self.breach("no_created", "response.created is the first event")
                self._begun = True  # said once
            else:
                self.breach("early", "nothing comes before response.created")
        self._begun = self._begun or kind in ("response.created", "error")
        self._event(kind, data)

    def _numbered(self, data: dict[str, Any]) -> None:
        number = data.get("sequence_number")
        if type(number) is not int or number <= self._number:
            self.breach("sequence_number", "sequence numbers grow")
        else:
            self._number = number

    def _event(self, kind: str, data: dict[str, Any]) -> None:
        if kind in _STARTS:
            response = data.get("response")
            if not isinstance(response, dict) or not response.get("id"):
                self.breach("response", "a response has an id")
        elif kind in _ENDS:
            self._over = kind
            self._ended(_ENDS[kind], data.get("response"))
        elif kind == "error":
            self._over = kind
        elif kind == "response.output_item.added":
            self._item_added(data)
        elif kind == "response.output_item.done":
            self._item_done(data)
        elif grows := next((name for name in _GROWS if kind.startswith(name)), ""):
            self._grown(kind, grows, data)

    def _item_added(self, data: dict[str, Any]) -> None:
        index, item = data.get("output_index"), data.get("item")
        if index != self._added:
            self.breach("output_index", f"output_index must be {self._added}, not {index}")
        kind = item.get("type") if isinstance(item, dict) else None
        if not isinstance(kind, str):
            self.breach("item", "an item has a type")
        self._kinds[index if type(index) is int else self._added] = str(kind)
        self._added += 1

    def _item_done(self, data: dict[str, Any]) -> None:
        item = data.get("item")
        kind = item.get("type") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(kind, str):
            self.breach("item", "an item has a type")
            return
        added = self._kinds.pop(self._index_of(data, kind), None)
        if added is None:
            self.breach("item_not_open", f"the {kind} was not added")
        elif added != kind:
            self.breach("item_kind", f"the item is a {added}")
        self._done += 1
        for name in _WORDS.get(kind, ()):
            if not isinstance(item.get(name), str):
                self.breach("item_field", f"a {kind} has {name}, a string")
        if kind == "reasoning" and not isinstance(item.get("summary"), list):
            self.breach("summary", "reasoning has a summary, a list")

    def _index_of(self, data: dict[str, Any], kind: str) -> int:
        """Return the place of the item that is done; without an index it is the last open one of its kind."""
        index = _place(data, "output_index")
        if index >= 0:
            return index
        return next((place for place, each in reversed(self._kinds.items()) if each == kind), -1)

    def _grown(self, kind: str, grows: str, data: dict[str, Any]) -> None:
        if kind.endswith(".delta") and not isinstance(data.get("delta"), str):
            self.breach("delta", "a delta is text")
        index, part = _place(data, "output_index"), _place(data, "content_index")
        if index not in self._kinds:
            self.breach("item_not_open", f"item {index} is not open")
            return
        if self._kinds[index] != _GROWS[grows] and grows != "response.content_part.":
            self.breach("item_kind", f"item {index} is a {self._kinds[index]}")
        if kind == "response.content_part.added":
            self._parts.add((index, part))
        elif kind.startswith(_IN_PART) and (index, part) not in self._parts:
            self.breach("part_not_added", f"part {part} of item {index} was not added")

    def _ended(self, status: str, response: Any) -> None:
        if not isinstance(response, dict) or not response.get("id"):
            self.breach("response", "a response has an id")
            return
        if response.get("status") != status:
            self.breach("status", f"the status is {status}")
        output = response.get("output")
        if not isinstance(output, list) or (status != "failed" and len(output) != self._done):
            self.breach("output", "the last event tells all items that are done")
        if status == "failed":
            error = response.get("error")
            if not isinstance(error, dict) or not (error.get("code") and error.get("message")):
                self.breach("error", "a failed response has an error with a code and a message")
        for found in _usage(response.get("usage")):
            self.breach(*found)

    def end(self) -> None:
        if not self._over:
            self.breach("no_end", "a stream ends with response.completed, incomplete or failed")
        if self._over == "response.completed":
            for kind in self._kinds.values():
                rule = "open_call" if kind in _WORDS else "open_item"
                self.breach(rule, f"the {kind} is done before the end")


def _place(data: dict[str, Any], name: str) -> int:
    value = data.get(name)
    return value if type(value) is int else -1


def _usage(usage: Any) -> _Found:
    if usage is None:
        return
    if not isinstance(usage, dict) or any(
        type(usage.get(name)) is not int for name in ("input_tokens", "output_tokens", "total_tokens")
    ):
        yield "usage", "usage has input_tokens, output_tokens and total_tokens"
        return
    for name, counts in _DETAILS.items():
        details = usage.get(name)
        if not isinstance(details, dict) or any(type(details.get(count)) is not int for count in counts):
            yield "usage_details", f"usage has {name} with {', '.join(counts)}"
