"""The rules for Kiro's streams, checked on captured frames, independent of the decoder. Pure."""

from __future__ import annotations

from dragoman.dialects.kiro.rules import RULES
from dragoman.dialects.kit.lint import StreamLint
from dragoman.dialects.kit.values import Object, decoded
from dragoman.wire.fields import is_blank
from dragoman.wire.frame import Frame

_KNOWN = frozenset(
    {"messageMetadataEvent", "assistantResponseEvent", "reasoningContentEvent", "toolUseEvent", "toolResultEvent"}
    | {"codeEvent", "codeReferenceEvent", "supplementaryWebLinksEvent", "followupPromptEvent", "citationEvent"}
    | {"intentsEvent", "interactionComponentsEvent", "dryRunSucceedEvent", "metadataEvent", "contextUsageEvent"}
    | {"meteringEvent", "invalidStateEvent", "initial-response", "messageStopEvent"}
)
_CUTS = frozenset({"MAX_TOKENS", "LENGTH_LIMIT", "MAX_TIME", "MODEL_CONTEXT_WINDOW_EXCEEDED"}) | frozenset(
    {"CONTENT_FILTERED", "GUARDRAIL_INTERVENED"}
)  # stop reasons with which a call may lack its `stop`


class KiroStreamLint(StreamLint):
    """Check the captured frames of a response stream; see `StreamLint`."""

    rules = RULES

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str, str] = {}  # the position of the first frame of each open call, by id
        self._names: dict[str, str] = {}
        self._last = ""  # the id of the last call
        self._usage = self._cut = self._failed = False

    def frame(self, frame: Frame) -> None:
        self._failed = self._failed or frame.error
        if self._failed:
            return
        if frame.kind not in _KNOWN:
            self.breach("unknown", f"Kiro has no event named {frame.kind!r}")
            return
        self._usage = self._usage or frame.kind == "contextUsageEvent"
        body = decoded(frame.data or b"{}")
        if isinstance(body, dict) and len(body) == 1 and isinstance(inner := body.get(frame.kind), dict):
            body = inner  # The service wraps some payloads in an object with the event's name.
        if not isinstance(body, dict):
            self.breach("json", "the payload must be a JSON object")
        elif frame.kind == "assistantResponseEvent":
            if not isinstance(body.get("content", "" if "modelId" in body else None), str):
                self.breach("content", "content must be a string")
        elif frame.kind == "metadataEvent":
            self._cut = self._cut or str(body.get("stopReason")) in _CUTS
        elif frame.kind == "toolUseEvent":
            self._call(body)

    def _call(self, body: Object) -> None:
        """Check a fragment of a call. One without an id belongs to the last call (docs/mission.md, rows of 002)."""
        call_id, name = body.get("toolUseId"), body.get("name")
        if call_id in (None, ""):
            continues = not name or name == self._names.get(self._last)
            if not self._last or not continues:
                self.breach("call_id", "a call must begin with a toolUseId")
                return
            call_id = self._last
        elif not isinstance(call_id, str) or is_blank(call_id):
            self.breach("call_id", "toolUseId must be a string that is not blank")
            return
        elif call_id not in self._names:
            if not isinstance(name, str) or is_blank(name):
                self.breach("call_name", "a call must begin with a name")
            self._names[call_id] = str(name)
            self._open[call_id] = self.at
        self._last = str(call_id)
        if body.get("stop") is True:
            self._open.pop(self._last, None)

    def end(self) -> None:
        if self._failed:
            return
        for name, at in () if self._cut else self._open.items():
            self.breach("open_call", f"the call {name!r} has no stop; the stream was cut off", at)
        if not self._usage:
            self.breach("no_usage", "the stream has no contextUsageEvent; it may have been cut off")
