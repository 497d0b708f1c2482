"""The service's own rules for requests and streams, as a lint over raw JSON; independent of the readers and writers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dragoman.dialects.base import Call
from dragoman.dialects.kit.lint import Found, StreamLint
from dragoman.dialects.kit.media import base64_bytes
from dragoman.dialects.kit.shapes import Flag, Free, Map, Members, Num, Seq, Str, flaws
from dragoman.dialects.kit.values import decoded, items, members, objects
from dragoman.dialects.rulebook import Breach, Rulebook
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

RULES = Rulebook.parse(
    "ollama",
    """
shape | documented | error | every member has its documented type, and what is required is there
message.role | documented | error | a role is system, user, assistant or tool
message.images | documented | error | images are base64 without a prefix
result.call | inferred | advice | a result names its tool or its call
think | documented | error | think is true, false, low, medium, high or max
format | documented | error | format is "json" or a schema
tools.reference | documented | advice | a tool's schema has no $ref: the service drops it without a word
stream.json | documented | error | a line is a JSON object
stream.message | documented | error | a line has a message whose content is a string
stream.call | documented | error | a call has a name, and arguments that are an object
stream.after_end | inferred | advice | nothing follows the line with done: true, or an error
stream.unfinished | documented | error | the last line has done: true, or an error
""",
)
_ROLES = ("system", "user", "assistant", "tool")
_FUNCTION = Members({"name": Str(1), "arguments": Members({}, lenient=True)}, ("name",), lenient=True)
_CALL = Members({"id": Str(), "function": _FUNCTION}, ("function",), lenient=True)
_MESSAGE = Members(
    {"role": Str(), "content": Str(), "thinking": Str(), "images": Seq(Str(1)), "tool_calls": Seq(_CALL)}
    | {"tool_name": Str(), "tool_call_id": Str()},
    ("role",),
    lenient=True,
)
_TOOL = Members(
    {"name": Str(1), "description": Str(), "parameters": Members({}, lenient=True)}, ("name",), lenient=True
)
_REQUEST = Members(
    {
        "messages": Seq(_MESSAGE),
        "tools": Seq(Members({"type": Str(), "function": _TOOL}, ("function",), lenient=True)),
        "options": Map(Str(), Free()),
        "truncate": Flag(),
        "top_logprobs": Num(0, 20, whole=True),
    },
    lenient=True,
)


def breaches(call: Call) -> Sequence[Breach]:
    """Every rule of the service that the request breaks, with its place."""
    shaped = [RULES.breach("shape", flaw.at, flaw.detail) for flaw in flaws(call.body, _REQUEST) if flaw.kind != "null"]
    return shaped + [RULES.breach(*found) for found in _found(members(call.body))]


def _found(body: dict[str, Json]) -> Found:
    for message, at in objects(body.get("messages"), "messages"):
        role = str(message.get("role")).lower()
        if role not in _ROLES:
            yield "message.role", f"{at}.role", f"it must be one of {', '.join(_ROLES)}"
        if any(isinstance(image, str) and not base64_bytes(image) for image in items(message.get("images"))):
            yield "message.images", f"{at}.images", ""
        if role == "tool" and not (message.get("tool_name") or message.get("tool_call_id")):
            yield "result.call", at, ""
    if body.get("think") not in (None, True, False, "low", "medium", "high", "max"):
        yield "think", "think", ""
    if body.get("format") not in (None, "", "json") and not isinstance(body.get("format"), dict):
        yield "format", "format", ""
    for tool, at in objects(body.get("tools"), "tools"):
        if _has_reference(members(tool.get("function")).get("parameters")):
            yield "tools.reference", f"{at}.function.parameters", ""


def _has_reference(value: Json) -> bool:
    found: Iterator[Json] = iter(value) if isinstance(value, list) else iter(members(value).values())
    return isinstance(members(value).get("$ref"), str) or any(map(_has_reference, found))


def stream_breaches(frames: Iterable[Frame]) -> Sequence[Breach]:
    """What a captured stream breaks."""
    return _Lint(RULES).run(frames)


class _Lint(StreamLint):
    _over = False

    def frame(self, frame: Frame) -> None:
        body = decoded(frame.data)
        if self._over:
            self.breach("after_end", "")
        elif not isinstance(body, dict):
            self.breach("json", "")
        elif not body.get("error"):
            message = members(body.get("message"))
            if not isinstance(message.get("content"), str):
                self.breach("message", "")
            for call in items(message.get("tool_calls")):
                if any(flaws(call, _CALL)):
                    self.breach("call", "")
        self._over = self._over or bool(members(body).get("done") or members(body).get("error"))

    def end(self) -> None:
        if not self._over:
            self.breach("unfinished", "")
