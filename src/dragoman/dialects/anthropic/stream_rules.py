"""The rules of Anthropic's API for streams, checked on captured frames, independent of the codec. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dragoman.dialects.anthropic.rules import RULES
from dragoman.dialects.kit.lint import StreamLint
from dragoman.dialects.kit.values import Object, decoded
from dragoman.wire.frame import Frame

_ALLOWED_DELTAS = {
    "text": ("text_delta", "citations_delta"),
    "thinking": ("thinking_delta", "signature_delta"),
    "redacted_thinking": (),
    "tool_use": ("input_json_delta",),
    "server_tool_use": ("input_json_delta",),
}
_START_FIELDS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str},
    "redacted_thinking": {"data": str},
    "tool_use": {"id": str, "name": str, "input": dict},
}
_DELTA_FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_CUT = ("max_tokens", "model_context_window_exceeded", "refusal", "pause_turn")


class AnthropicStreamLint(StreamLint):
    """Checks the frames of one stream."""

    rules = RULES

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[int, tuple[str, list[str]]] = {}
        self._next = 0
        self._begun = False
        self._stopped = False
        self._reason = ""
        self._broken: list[str] = []  # places of tool inputs that are not objects
        self._end = ""  # the last event, after which no event may come
        self._handlers: dict[str, Callable[[Object], None]] = {
            "message_start": self._message_start,
            "content_block_start": self._block_start,
            "content_block_delta": self._block_delta,
            "content_block_stop": self._block_stop,
            "message_delta": self._message_delta,
            "message_stop": self._message_stop,
            "error": self._error,
        }

    def frame(self, frame: Frame) -> None:
        if frame.data == b"[DONE]" and not frame.kind:
            return  # Some services end with it, and the SDKs ignore it.
        data = decoded(frame.data)
        if not isinstance(data, dict):
            self.breach("json", "the data must be a JSON object")
            return
        kind = data.get("type")
        if kind != frame.kind:
            self.breach("event_name", f"the event name is {frame.kind!r}, but the type of the data is {kind!r}")
        if self._end:
            self.breach("after_end", f"nothing may follow {self._end}")
        if kind not in ("message_start", "ping", "error") and not self._begun:
            self.breach("first", "message_start must come first")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler:
            handler(data)

    def end(self) -> None:
        if not self._end:
            self.breach("unfinished", "the stream must end with message_stop, or with an error")
        for at in self._broken:
            rule = "input_cut" if self._reason in _CUT or self._end == "error" else "input_json"
            self.breach(rule, "the input of a tool must be a JSON object", at)

    def _object(self, data: Object, name: str) -> Object:
        value = data.get(name)
        if not isinstance(value, dict):
            self.breach("object", f"{name} must be an object")
            return {}
        return value

    # --- the message

    def _message_start(self, data: Object) -> None:
        if self._begun:
            self.breach("start_once", "the stream has a second message_start")
        self._begun = True
        message = self._object(data, "message")
        for name in ("id", "model"):
            if not isinstance(message.get(name), str) or not message[name]:
                self.breach("message_fields", f"message.{name} must be set")
        if message.get("content") != [] or message.get("role") != "assistant" or message.get("type") != "message":
            self.breach("message", "message must have the role assistant and content []")
        usage = self._object(message, "usage")
        self._counts(usage, ("input_tokens", "output_tokens"))

    def _message_delta(self, data: Object) -> None:
        if self._stopped:
            self.breach("delta_once", "the stream has a second message_delta")
        for index in self._open:
            self.breach("open_block", f"block {index} must stop before message_delta")
        self._stopped = True
        reason = self._object(data, "delta").get("stop_reason")
        self._reason = reason if isinstance(reason, str) else self._reason
        self._counts(self._object(data, "usage"), ("output_tokens",))

    def _counts(self, usage: Object, names: Iterable[str]) -> None:
        for name in names:
            if type(usage.get(name)) is not int:
                self.breach("usage", f"usage.{name} must be a whole number")

    def _message_stop(self, data: Object) -> None:
        if not self._stopped:
            self.breach("no_delta", "message_delta must come before message_stop")
        elif not self._reason:
            self.breach("stop_reason", "message_delta must have a stop_reason")
        for index in self._open:
            self.breach("never_stopped", f"block {index} must stop before message_stop")
        self._end = "message_stop"

    def _error(self, data: Object) -> None:
        error = self._object(data, "error")
        if not isinstance(error.get("type"), str) or not isinstance(error.get("message"), str):
            self.breach("error", "an error must have a type and a message")
        self._end = "error"

    # --- blocks

    def _block_start(self, data: Object) -> None:
        index = data.get("index")
        if type(index) is not int or index != self._next:
            self.breach("index", f"index must be {self._next}, not {index}")
        if self._open:
            self.breach("interleaved", "the block before this one must stop first")
        if self._stopped:
            self.breach("late_block", "no block may come after message_delta")
        block = self._object(data, "content_block")
        kind = block.get("type")
        kind = kind if isinstance(kind, str) else ""
        for name, wanted in _START_FIELDS.get(kind, {}).items():
            if not isinstance(block.get(name), wanted) or (name in ("id", "name") and not block[name]):
                self.breach("block_start", f"a {kind} block must start with {name}")
        if kind == "tool_use" and block.get("input"):
            self.breach("input_at_start", "a tool_use block must start with input {}; the input comes in deltas")
        if type(index) is int:
            self._open[index] = (kind, [])
            self._next = index + 1

    def _block_delta(self, data: Object) -> None:
        index, delta = data.get("index"), self._object(data, "delta")
        opened = self._open.get(index) if type(index) is int else None
        if opened is None:
            self.breach("no_block", f"block {index} is not open")
            return
        kind, pieces = opened
        delta_kind = delta.get("type")
        if not isinstance(delta_kind, str):
            self.breach("delta_type", "a delta must have a type")
            return
        if kind in _ALLOWED_DELTAS and delta_kind in _DELTA_FIELDS and delta_kind not in _ALLOWED_DELTAS[kind]:
            self.breach("delta_kind", f"a {kind} block must not have deltas of type {delta_kind}")
        field = _DELTA_FIELDS.get(delta_kind, "")
        value = delta.get(field)
        if field and not isinstance(value, str):
            self.breach("delta_value", f"{delta_kind} must have {field}")
        elif delta_kind == "input_json_delta" and isinstance(value, str):
            pieces.append(value)

    def _block_stop(self, data: Object) -> None:
        index = data.get("index")
        opened = self._open.pop(index, None) if type(index) is int else None
        if opened is None:
            self.breach("no_block", f"block {index} is not open")
            return
        text = "".join(opened[1])
        if text and not isinstance(decoded(text), dict):
            self._broken.append(self.at)
