"""The rules of Bedrock ConverseStream for captured streams, which `dragoman check` runs. Pure.

The checks share no code with the decoder and the encoder.
"""

from __future__ import annotations

from dragoman.dialects.bedrock.rules import RULES
from dragoman.dialects.kit.lint import StreamLint
from dragoman.dialects.kit.values import Object, decoded
from dragoman.wire import jsonio
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

_EXCEPTIONS = frozenset(
    {
        "internalServerException",
        "modelStreamErrorException",
        "validationException",
        "throttlingException",
        "serviceUnavailableException",
    }
)
_REASONS = frozenset(
    {
        "end_turn",
        "tool_use",
        "max_tokens",
        "stop_sequence",
        "guardrail_intervened",
        "content_filtered",
        "malformed_model_output",
        "malformed_tool_use",
        "model_context_window_exceeded",
    }
)
_LIMITS = ("max_tokens", "model_context_window_exceeded", "content_filtered", "guardrail_intervened")
_DELTAS = ("text", "toolUse", "toolResult", "reasoningContent", "citation", "image")
_STARTS = ("toolUse", "toolResult", "image")
_COUNTS = ("inputTokens", "outputTokens", "totalTokens")


class BedrockStreamLint(StreamLint):
    """Checks the frames of one stream."""

    rules = RULES

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[
            int, tuple[str, list[str]]
        ] = {}  # by index: the kind of its deltas, and the pieces of its input
        self._used: set[int] = set()
        self._incomplete: list[str] = []  # places of tool inputs that are no JSON object
        self._is_started = self._is_stopped = self._is_over = self._is_failed = False

    def frame(self, frame: Frame) -> None:
        if self._is_over or self._is_failed:
            self.breach("after_end", "nothing may come after the end of the stream")
            return
        try:
            data = jsonio.decode(frame.data)
        except jsonio.JsonError as error:
            self.breach("json", f"not JSON: {error}")
            return
        if not isinstance(data, dict):
            self.breach("object", "the payload must be an object")
        elif frame.error:
            self._exception(frame.kind, data)
        else:
            self._event(frame.kind, data)

    def end(self) -> None:
        if not self._is_failed and not self._is_stopped:
            self.breach("no_stop", "a stream must end with messageStop and metadata, or with an exception")
        elif not self._is_failed and not self._is_over:
            self.breach("no_metadata", "metadata must come after messageStop")

    def _exception(self, kind: str, data: Object) -> None:
        self._is_failed = True
        if kind not in _EXCEPTIONS:
            self.breach("exception", f"an exception must be one of {', '.join(sorted(_EXCEPTIONS))}")
        if not isinstance(data.get("message"), str):
            self.breach("exception_message", "an exception must have a message")

    def _event(self, kind: str, data: Object) -> None:
        if kind == "messageStart":
            if self._is_started:
                self.breach("start_once", "the stream has a second messageStart")
            if data.get("role") != "assistant":
                self.breach("role", "messageStart must have the role assistant")
            self._is_started = True
            return
        if not self._is_started:
            self.breach("no_start", "messageStart must come first")
        match kind:
            case "contentBlockStart":
                self._block_start(data)
            case "contentBlockDelta":
                self._block_delta(data)
            case "contentBlockStop":
                self._block_stop(data)
            case "messageStop":
                self._message_stop(data)
            case "metadata":
                self._metadata(data)
            case _:
                pass  # an event type newer than this table

    def _index(self, data: Object) -> int | None:
        index = data.get("contentBlockIndex")
        if type(index) is int and index >= 0:
            return index
        self.breach("index", "contentBlockIndex must be a whole number, 0 or more")
        return None

    def _member(self, data: Object, name: str, known: tuple[str, ...]) -> tuple[str, Json]:
        """Return the only member of a union. An unknown one is accepted: it may be newer than this table."""
        inner = data.get(name)
        if not isinstance(inner, dict) or len(inner) != 1:
            self.breach("union", f"{name} must have exactly one member of {', '.join(known)}")
            return "", None
        return next(iter(inner.items()))

    def _block_start(self, data: Object) -> None:
        index, (member, value) = self._index(data), self._member(data, "start", _STARTS)
        if member in ("toolUse", "toolResult"):
            for name in ("toolUseId", "name") if member == "toolUse" else ("toolUseId",):
                if not isinstance(value, dict) or not isinstance(value.get(name), str) or not value[name]:
                    self.breach("block_start", f"the start of a {member} must have {name}")
        if index is None:
            return
        if index in self._used:
            self.breach("index_reused", f"block {index} has a second contentBlockStart")
        self._begin(index, member)

    def _begin(self, index: int, kind: str) -> None:
        if self._open:
            self.breach("interleaved", "the block before must stop first")
        if self._is_stopped:
            self.breach("late_block", "no block may come after messageStop")
        self._used.add(index)
        self._open[index] = (kind, [])

    def _block_delta(self, data: Object) -> None:
        index, (member, value) = self._index(data), self._member(data, "delta", _DELTAS)
        if index is None or not member:
            return
        kind = "text" if member == "citation" else member
        if index not in self._open:
            if index in self._used:
                self.breach("index_reused", f"block {index} has already stopped")
            if member in _STARTS:
                self.breach("no_block_start", f"a {member} block must start with contentBlockStart")
            self._begin(index, kind)
        opened, pieces = self._open[index]
        if opened != kind:
            self.breach("delta_kind", f"a {opened} block must not have a delta of {member}")
        if member == "text" and not isinstance(value, str):
            self.breach("delta_value", "text must be a string")
        if member == "toolUse":
            text = value.get("input") if isinstance(value, dict) else None
            if isinstance(text, str):
                pieces.append(text)
            else:
                self.breach("delta_value", "toolUse must have an input that is a string")

    def _block_stop(self, data: Object) -> None:
        index = self._index(data)
        if index is None:
            return
        kind, pieces = self._open.pop(index, ("", []))
        if not kind and index in self._used:
            self.breach("no_block", f"block {index} is not open")
        self._used.add(index)
        text = "".join(pieces)
        if text and not isinstance(decoded(text), dict):
            self._incomplete.append(self.at)

    def _message_stop(self, data: Object) -> None:
        if self._is_stopped:
            self.breach("stop_once", "the stream has a second messageStop")
        reason = data.get("stopReason")
        for index in self._open:
            rule = "open_cut" if reason in _LIMITS else "open_block"
            self.breach(rule, f"block {index} must stop before messageStop")
        for at in self._incomplete:
            rule = "input_cut" if reason in _LIMITS else "input_json"
            self.breach(rule, "the input of a tool call must be a JSON object", at)
        if not isinstance(reason, str) or reason not in _REASONS:
            self.breach("stop_reason", f"stopReason must be one of {', '.join(sorted(_REASONS))}")
        self._is_stopped = True

    def _metadata(self, data: Object) -> None:
        if not self._is_stopped:
            self.breach("metadata_early", "metadata must come after messageStop")
        usage = data.get("usage")
        for name in _COUNTS:
            if not isinstance(usage, dict) or type(usage.get(name)) is not int:
                self.breach("usage", f"usage.{name} must be a whole number")
        self._is_over = True
