"""The rules of Ollama's API for requests and streams, which `dragoman check` and the simulator run. Pure.

The checks read raw JSON and share no code with the codec.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kit.filters import has_references
from dragoman.dialects.kit.lint import BreachTuples, StreamLint
from dragoman.dialects.kit.shapes import AnyValue, Array, Bool, Map, Num, ObjectShape, Str, find_mismatches
from dragoman.dialects.kit.values import decoded, items, members
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame

RULES = Rulebook.parse(
    "ollama",
    """
shape | documented | error | members must have their documented types and values; required ones must be set
think | documented | error | think must be true, false, low, medium, high or max
format | documented | error | format must be "json" or a schema
tools.reference | documented | advice | a tool's schema must not have $ref: the service silently drops it
stream.json | documented | error | a line must be a JSON object
stream.message | documented | error | a line must have a message with string content; calls need a name and an object
stream.after_end | inferred | advice | nothing may follow the line with done: true, or an error
stream.unfinished | documented | error | the last line must have done: true, or an error
""",
)
_OBJECT = ObjectShape({}, lenient=True)
_FUNCTION = ObjectShape({"name": Str(1), "arguments": _OBJECT, "parameters": _OBJECT}, ("name",), lenient=True)
_CALLS = Array(ObjectShape({"id": Str(), "type": Str(), "function": _FUNCTION}, ("function",), lenient=True))
_REPLY_MESSAGE = ObjectShape({"content": Str(), "thinking": Str(), "tool_calls": _CALLS}, ("content",), lenient=True)
_MESSAGE = ObjectShape(
    {
        **_REPLY_MESSAGE.members,
        "role": Str(pattern="(?i:system|user|assistant|tool)"),
        "images": Array(Str(1, pattern="[A-Za-z0-9+/]+={0,2}")),  # base64 without a prefix
        "tool_name": Str(),
        "tool_call_id": Str(),
    },
    ("role",),
    lenient=True,
)
_REQUEST = ObjectShape(
    {
        "messages": Array(_MESSAGE),
        "tools": _CALLS,
        "options": Map(Str(), AnyValue()),
        "truncate": Bool(),
        "top_logprobs": Num(0, 20, whole=True),
    },
    lenient=True,
)
_THINK = (None, True, False, "low", "medium", "high", "max")


def breaches(call: ApiRequest) -> Sequence[Breach]:
    """Return every rule of the service that the request breaks, with its place."""
    return [RULES.breach(*found) for found in _breaches(call)]


def _breaches(call: ApiRequest) -> BreachTuples:
    yield from (
        ("shape", mismatch.at, mismatch.detail)
        for mismatch in find_mismatches(call.body, _REQUEST)
        if mismatch.kind != "null"
    )
    body = members(call.body)
    if body.get("think") not in _THINK:
        yield "think", "think", ""
    if body.get("format") not in (None, "", "json") and not isinstance(body["format"], dict):
        yield "format", "format", ""
    for index, tool in enumerate(items(body.get("tools"))):
        if has_references(members(members(tool).get("function")).get("parameters")):
            yield "tools.reference", f"tools[{index}]", ""


class OllamaStreamLint(StreamLint):
    """Checks the lines of one stream."""

    rules = RULES
    _is_over = False

    def frame(self, frame: Frame) -> None:
        body = decoded(frame.data)
        if self._is_over:
            self.breach("after_end", "")
        elif not isinstance(body, dict):
            self.breach("json", "")
        elif not body.get("error"):
            for mismatch in find_mismatches(body.get("message"), _REPLY_MESSAGE, "message"):
                self.breach("message", f"{mismatch.at}: {mismatch.detail}")
        self._is_over = self._is_over or bool(members(body).get("done") or members(body).get("error"))

    def end(self) -> None:
        if not self._is_over:
            self.breach("unfinished", "")
