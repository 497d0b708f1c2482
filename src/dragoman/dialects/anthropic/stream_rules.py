"""The grammar of the service's streams, as a lint over captured frames; independent of the decoder and the encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dragoman.dialects.anthropic.rule_table import RULES
from dragoman.dialects.rulebook import Breach
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

_GROWS_BY = {
    "text": ("text_delta", "citations_delta"),
    "thinking": ("thinking_delta", "signature_delta"),
    "redacted_thinking": (),
    "tool_use": ("input_json_delta",),
    "server_tool_use": ("input_json_delta",),
}
_STARTS_WITH: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str},
    "redacted_thinking": {"data": str},
    "tool_use": {"id": str, "name": str, "input": dict},
}
_SAYS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
_CUT = ("max_tokens", "model_context_window_exceeded", "refusal", "pause_turn")


def stream_breaches(frames: Iterable[Frame]) -> Sequence[Breach]:
    """Every rule of the stream's grammar that the frames break. `at` is the number of the frame."""
    lint = _Lint()
    for number, frame in enumerate(frames):
        lint.take(frame, f"frame {number}")
    lint.close()
    return lint.found


class _Lint:
    def __init__(self) -> None:
        self.found: list[Breach] = []
        self._at = ""
        self._open: dict[int, tuple[str, list[str]]] = {}
        self._next = 0
        self._begun = False
        self._stopped = False
        self._reason = ""
        self._broken: list[str] = []  # where a tool's input is no object
        self._end = ""  # the event after which nothing may come
        self._handlers: dict[str, Callable[[dict[str, Json]], None]] = {
            "message_start": self._message_start,
            "content_block_start": self._block_start,
            "content_block_delta": self._block_delta,
            "content_block_stop": self._block_stop,
            "message_delta": self._message_delta,
            "message_stop": self._message_stop,
            "error": self._error,
        }

    def take(self, frame: Frame, at: str) -> None:
        self._at = at
        if frame.data == b"[DONE]" and not frame.kind:
            return  # some services end with it; the SDKs take no notice
        try:
            data = jsonio.decode(frame.data)
        except jsonio.JsonError:
            data = None
        if not isinstance(data, dict):
            self._breach("json", "the data must be a JSON object")
            return
        kind = data.get("type")
        if kind != frame.kind:
            self._breach("event_name", f"the event line says {frame.kind!r}, the data {kind!r}")
        if self._end:
            self._breach("after_end", f"nothing may follow {self._end}")
        if kind not in ("message_start", "ping", "error") and not self._begun:
            self._breach("first", "message_start must come first")
        handler = self._handlers.get(kind) if isinstance(kind, str) else None
        if handler:
            handler(data)

    def close(self) -> None:
        self._at = "end"
        if not self._end:
            self._breach("unfinished", "the stream must end with message_stop, or with an error")
        for at in self._broken:
            self._at = at
            rule = "input_cut" if self._reason in _CUT or self._end == "error" else "input_json"
            self._breach(rule, "the input of a tool must be a JSON object")

    def _breach(self, rule: str, detail: str) -> None:
        self.found.append(RULES.breach(f"stream.{rule}", self._at, detail))

    def _object(self, data: dict[str, Json], name: str) -> dict[str, Json]:
        value = data.get(name)
        if not isinstance(value, dict):
            self._breach("object", f"{name} must be an object")
            return {}
        return value

    # --- the message

    def _message_start(self, data: dict[str, Json]) -> None:
        if self._begun:
            self._breach("start_once", "message_start came before")
        self._begun = True
        message = self._object(data, "message")
        for name in ("id", "model"):
            if not isinstance(message.get(name), str) or not message[name]:
                self._breach("message_fields", f"message.{name} must be set")
        if message.get("content") != [] or message.get("role") != "assistant" or message.get("type") != "message":
            self._breach("message", "it must be an assistant's message with content []")
        usage = self._object(message, "usage")
        self._counts(usage, ("input_tokens", "output_tokens"))

    def _message_delta(self, data: dict[str, Json]) -> None:
        if self._stopped:
            self._breach("delta_once", "message_delta came before")
        for index in self._open:
            self._breach("open_block", f"block {index} must stop before message_delta")
        self._stopped = True
        reason = self._object(data, "delta").get("stop_reason")
        self._reason = reason if isinstance(reason, str) else self._reason
        self._counts(self._object(data, "usage"), ("output_tokens",))

    def _counts(self, usage: dict[str, Json], names: Iterable[str]) -> None:
        for name in names:
            if type(usage.get(name)) is not int:
                self._breach("usage", f"usage.{name} must be a whole number")

    def _message_stop(self, data: dict[str, Json]) -> None:
        if not self._stopped:
            self._breach("no_delta", "message_delta must come before message_stop")
        elif not self._reason:
            self._breach("stop_reason", "message_delta must say why the model stopped")
        for index in self._open:
            self._breach("never_stopped", f"block {index} must stop before message_stop")
        self._end = "message_stop"

    def _error(self, data: dict[str, Json]) -> None:
        error = self._object(data, "error")
        if not isinstance(error.get("type"), str) or not isinstance(error.get("message"), str):
            self._breach("error", "an error must have a type and a message")
        self._end = "error"

    # --- blocks

    def _block_start(self, data: dict[str, Json]) -> None:
        index = data.get("index")
        if type(index) is not int or index != self._next:
            self._breach("index", f"index must be {self._next}, not {index}")
        if self._open:
            self._breach("interleaved", "the block before must stop first")
        if self._stopped:
            self._breach("late_block", "no block may come after message_delta")
        block = self._object(data, "content_block")
        kind = block.get("type")
        kind = kind if isinstance(kind, str) else ""
        for name, wanted in _STARTS_WITH.get(kind, {}).items():
            if not isinstance(block.get(name), wanted) or (name in ("id", "name") and not block[name]):
                self._breach("block_start", f"a {kind} block must start with {name}")
        if kind == "tool_use" and block.get("input"):
            self._breach("input_at_start", "a tool_use block starts with input {}; the input comes in deltas")
        if type(index) is int:
            self._open[index] = (kind, [])
            self._next = index + 1

    def _block_delta(self, data: dict[str, Json]) -> None:
        index, delta = data.get("index"), self._object(data, "delta")
        opened = self._open.get(index) if type(index) is int else None
        if opened is None:
            self._breach("no_block", f"block {index} is not open")
            return
        kind, pieces = opened
        said = delta.get("type")
        if not isinstance(said, str):
            self._breach("delta_type", "a delta must say its type")
            return
        if kind in _GROWS_BY and said in _SAYS and said not in _GROWS_BY[kind]:
            self._breach("delta_kind", f"a {kind} block does not grow by {said}")
        field = _SAYS.get(said, "")
        value = delta.get(field)
        if field and not isinstance(value, str):
            self._breach("delta_value", f"{said} must have {field}")
        elif said == "input_json_delta" and isinstance(value, str):
            pieces.append(value)

    def _block_stop(self, data: dict[str, Json]) -> None:
        index = data.get("index")
        opened = self._open.pop(index, None) if type(index) is int else None
        if opened is None:
            self._breach("no_block", f"block {index} is not open")
            return
        text = "".join(opened[1])
        if text and not isinstance(_decoded(text), dict):
            self._broken.append(self._at)


def _decoded(text: str) -> Json:
    try:
        return jsonio.decode(text)
    except jsonio.JsonError:
        return None
