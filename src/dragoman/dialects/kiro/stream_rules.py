"""The rules of the service's streams, as a lint over captured frames; independent of the decoder and the encoder."""

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
)  # reasons to stop in the middle of a call


class KiroStreamLint(StreamLint):
    rules = RULES

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[str, str] = {}  # the place where each open call began, by its id
        self._names: dict[str, str] = {}
        self._last = ""  # the id of the last call
        self._usage = self._cut = self._failed = False

    def frame(self, frame: Frame) -> None:
        self._failed = self._failed or frame.error
        if self._failed:
            return
        if frame.kind not in _KNOWN:
            self.breach("unknown", f"no event is named {frame.kind!r}")
            return
        self._usage = self._usage or frame.kind == "contextUsageEvent"
        body = decoded(frame.data or b"{}")
        if isinstance(body, dict) and len(body) == 1 and isinstance(inner := body.get(frame.kind), dict):
            body = inner  # some payloads are wrapped in their event's name
        if not isinstance(body, dict):
            self.breach("json", "expected a JSON object")
        elif frame.kind == "assistantResponseEvent":
            if not isinstance(body.get("content", "" if "modelId" in body else None), str):
                self.breach("content", "content must be a string")
        elif frame.kind == "metadataEvent":
            self._cut = self._cut or str(body.get("stopReason")) in _CUTS
        elif frame.kind == "toolUseEvent":
            self._call(body)

    def _call(self, body: Object) -> None:
        """A fragment without an id belongs to the call that came last (document 002)."""
        named, name = body.get("toolUseId"), body.get("name")
        if named in (None, ""):
            grows = not name or name == self._names.get(self._last)
            if not self._last or not grows:
                self.breach("call_id", "a call begins with a toolUseId")
                return
            named = self._last
        elif not isinstance(named, str) or is_blank(named):
            self.breach("call_id", "toolUseId must be a string that is not blank")
            return
        elif named not in self._names:
            if not isinstance(name, str) or is_blank(name):
                self.breach("call_name", "a call begins with a name")
            self._names[named] = str(name)
            self._open[named] = self.at
        self._last = str(named)
        if body.get("stop") is True:
            self._open.pop(self._last, None)

    def end(self) -> None:
        if self._failed:
            return
        for name, at in () if self._cut else self._open.items():
            self.breach("open_call", f"the call {name!r} has no stop: it was cut", at)
        if not self._usage:
            self.breach("no_usage", "no contextUsageEvent: it may have been cut")
