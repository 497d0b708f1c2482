"""The service's own rules as a lint over raw JSON and captured streams; independent of the reader and the writer.

The numbers are those of facts/kiro.md, section 2. What cannot be seen in a body (accounts, quota, the model's name) is
not here; neither is what only an estimate tells (size).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from dragoman.dialects.base import Call
from dragoman.dialects.kiro.rule_table import RULES
from dragoman.dialects.kiro.schema_rules import schema_breaches
from dragoman.dialects.rulebook import Breach
from dragoman.wire import jsonio
from dragoman.wire.fields import is_blank
from dragoman.wire.frame import Frame
from dragoman.wire.jsonio import Json

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TAGS = re.compile(r"<(?:thinking_mode|max_thinking_length|thinking_effort)>")
_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89a-fA-F]")  # only a lone one is left escaped by our encoder
_TOP = frozenset({"conversationState", "profileArn", "agentMode", "additionalModelRequestFields"})
_FORMATS = frozenset({"png", "jpeg", "gif", "webp"})
_TRIGGERS = frozenset({"MANUAL", "DIAGNOSTIC", "INLINE_CHAT"})
_MOST_TOOLS = 120
_MOST_IMAGES = 10
_LONGEST_IMAGE = 5_242_880
_LONGEST = {"user": 600_000, "assistant": 100_000, "result": 800_000}
_LONGEST_DESCRIPTION = 10_240
_CUTS = frozenset({"MAX_TOKENS", "LENGTH_LIMIT", "MAX_TIME", "MODEL_CONTEXT_WINDOW_EXCEEDED"}) | frozenset(
    {"CONTENT_FILTERED", "GUARDRAIL_INTERVENED"}
)  # reasons to stop in the middle of a call


class _Turn(NamedTuple):
    role: str
    at: str
    body: dict[str, Json]

    @property
    def content(self) -> str:
        content = self.body.get("content")
        return content if isinstance(content, str) else ""

    def objects(self, *path: str) -> list[tuple[str, dict[str, Json]]]:
        """The objects of an array inside this turn, with their places."""
        value: Json = self.body
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        at = ".".join((self.at, *path))
        found = value if isinstance(value, list) else []
        return [(f"{at}[{index}]", item) for index, item in enumerate(found) if isinstance(item, dict)]

    @property
    def uses(self) -> list[tuple[str, dict[str, Json]]]:
        return self.objects("toolUses")

    @property
    def results(self) -> list[tuple[str, dict[str, Json]]]:
        return self.objects("userInputMessageContext", "toolResults")


class _Body:
    def __init__(self, body: Json) -> None:
        self.top = body if isinstance(body, dict) else {}
        state = self.top.get("conversationState")
        self.state = state if isinstance(state, dict) else {}
        history = self.state.get("history")
        entries = history if isinstance(history, list) else []
        self.history = [turn for index, entry in enumerate(entries) for turn in _turns(entry, f"history[{index}]")]
        self.current = next(_turns(self.state.get("currentMessage"), "currentMessage"), None)
        self.turns = [*self.history, *([self.current] if self.current else [])]
        self.tools = self.current.objects("userInputMessageContext", "tools") if self.current else []


def _turns(entry: Json, at: str) -> Iterator[_Turn]:
    names = {"userInputMessage": "user", "assistantResponseMessage": "assistant"}
    for name, role in names.items():
        body = entry.get(name) if isinstance(entry, dict) else None
        if isinstance(body, dict):
            yield _Turn(role, f"conversationState.{at}.{name}", body)


_Found: TypeAlias = Iterator[tuple[str, str, str]]  # rule, place, detail


def _envelope(body: _Body) -> _Found:
    for name in sorted(body.top.keys() - _TOP):
        yield "body.unknown_field", name, "not a field of the request (rule 30)"
    if str(body.state.get("chatTriggerType")) not in _TRIGGERS:
        yield "body.trigger", "conversationState.chatTriggerType", "expected MANUAL (rule 47)"
    named = body.state.get("conversationId", "not needed")
    if not isinstance(named, str) or not 0 < len(named) <= 128:
        yield "body.conversation_id", "conversationState.conversationId", "expected 1 to 128 characters (rule 50)"
    if _SURROGATE.search(jsonio.encode(body.top)):
        yield "body.surrogate", "", "half a character (rule 34)"


def _order(body: _Body) -> _Found:
    if body.state.get("history") == []:
        yield "history.empty", "conversationState.history", "left out when there is none (rule 31)"
    if body.current is None or body.current.role != "user":
        yield "current.role", "conversationState.currentMessage", "expected the user's (rule 5)"
    if body.history and body.history[0].role != "user":
        yield "history.begin", body.history[0].at, "history begins with the user (rule 2)"
    if body.history and body.history[-1].role != "assistant":
        yield "history.end", body.history[-1].at, "history ends with the assistant (rule 4)"
    for before, after in pairwise(body.history):
        if before.role == after.role:
            yield "history.alternate", after.at, f"two {after.role} turns in a row (rule 1)"
    first = next((turn for turn in body.history if turn.role == "user"), None)
    if first and first.results:
        yield "history.first_results", first.results[0][0], "the first user turn answers no call (rule 3)"


def _content(body: _Body) -> _Found:
    for turn in body.turns:
        if not turn.content.strip():
            at = f"{turn.at}.content"
            if turn.role == "user":
                yield "user.empty", at, "a turn without text (rule 6)"
            elif turn.content:
                yield "assistant.blank", at, "a turn of white space (rule 7)"
            else:
                yield "assistant.empty", at, "a turn without text (rule 7)"
        if len(turn.content) > _LONGEST[turn.role]:
            yield "content.long", f"{turn.at}.content", f"{len(turn.content)} characters (rule 51)"
        if "reasoningContent" in turn.body:
            yield from _reasoning(turn)
    current = body.current
    if current and current.results and _TAGS.search(current.content):
        yield "current.thinking_tags", f"{current.at}.content", "thinking tags beside tool results (rule 41)"


def _reasoning(turn: _Turn) -> _Found:
    match turn.body["reasoningContent"]:
        case {"reasoningText": {"text": str(text), "signature": str(signature)}} if text and signature:
            return
        case {"redactedContent": str(data)} if data:
            return
        case _:
            yield "assistant.reasoning", f"{turn.at}.reasoningContent", "not nested and signed (rule 40)"


def _entries(body: _Body) -> _Found:
    for turn in body.turns:
        for at, use in turn.uses:
            yield from _identity(at, use, "toolUseId", 16)
            yield from _identity(at, use, "name", 15)
            if not isinstance(use.get("input"), dict):
                yield "call.input", f"{at}.input", "expected an object (rule 28)"
        for at, result in turn.results:
            yield from _identity(at, result, "toolUseId", 16)
            if result.get("status") is None:
                yield "result.no_status", f"{at}.status", "expected success or error (rule 33)"
            elif result["status"] not in ("success", "error"):
                yield "result.status", f"{at}.status", "expected success or error (rule 33)"
            yield from _result_content(at, result.get("content"))


def _identity(at: str, entry: dict[str, Json], name: str, number: int) -> _Found:
    value = entry.get(name)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        rule = "tool.name" if name == "name" else "call.id"
        yield rule, f"{at}.{name}", f"expected 1 to 64 of a-z, A-Z, 0-9, _ and - (rule {number})"


def _result_content(at: str, content: Json) -> _Found:
    parts = content if isinstance(content, list) else []
    if not parts:
        yield "result.empty", f"{at}.content", "a result without content (rule 32)"
    for index, part in enumerate(parts):
        text = part.get("text") if isinstance(part, dict) else None
        if text == "":
            yield "result.empty", f"{at}.content[{index}]", "an empty text (rule 32)"
        if isinstance(text, str) and len(text) > _LONGEST["result"]:
            yield "result.long", f"{at}.content[{index}]", f"{len(text)} characters (rule 51)"


def _pairing(body: _Body) -> _Found:
    made: set[Json] = set()
    answered: set[Json] = set()
    open_calls: dict[Json, str] = {}
    for turn in body.turns:
        for at, result in turn.results:
            name = _key(result)
            if name not in made:
                yield "result.orphan", at, "no call of this id before it (rule 8)"
            elif name in answered:
                yield "result.duplicate", at, "its call has a result (rule 11)"
            elif name not in open_calls:
                yield "result.late", at, "other turns stand between it and its call (rule 10)"
            answered.add(name)
            open_calls.pop(name, None)
        for at in open_calls.values():
            yield "call.unanswered", at, "no result in the next user turn (rule 9)"
        open_calls = {}
        for at, use in turn.uses:
            if _key(use) in made:
                yield "call.duplicate", at, "the id was used before (rule 12)"
            made.add(_key(use))
            open_calls[_key(use)] = at
    for at in open_calls.values():
        yield "call.unanswered", at, "no result in the next user turn (rule 9)"


def _key(entry: dict[str, Json]) -> str:
    return str(entry.get("toolUseId"))


def _tools(body: _Body) -> _Found:
    if len(body.tools) >= _MOST_TOOLS:
        yield "tools.many", "tools", f"{len(body.tools)} tools (rule 45)"
    declared: set[Json] = set()
    for at, tool in body.tools:
        spec = tool.get("toolSpecification")
        if isinstance(spec, dict):
            declared.add(str(spec.get("name")).lower())
            yield from _specification(f"{at}.toolSpecification", spec)
        else:
            yield "tools.cache_point", at, "expected a toolSpecification (rule 27)"
    for turn in body.turns:
        for at, use in turn.uses:
            if str(use.get("name")).lower() not in declared:
                yield "tools.undeclared", at, f"history calls {use.get('name')!r}, which is no tool (rules 13, 14)"


def _specification(at: str, spec: dict[str, Json]) -> _Found:
    yield from _identity(at, spec, "name", 15)
    words = spec.get("description")
    size = len(words.encode("utf-8", "surrogatepass")) if isinstance(words, str) else 0
    if not 0 < size <= _LONGEST_DESCRIPTION:
        yield "tools.description", f"{at}.description", f"{size} bytes, not 1 to 10240 (rules 17, 18)"
    holder = spec.get("inputSchema")
    yield from schema_breaches(holder.get("json") if isinstance(holder, dict) else None, f"{at}.inputSchema.json")


def _images(body: _Body) -> _Found:
    for turn in body.turns:
        images = turn.objects("images")
        if len(images) > _MOST_IMAGES:
            yield "image.many", turn.at, f"{len(images)} images in one turn (rule 38)"
        for at, image in images:
            if str(image.get("format")) not in _FORMATS:
                yield "image.format", f"{at}.format", "expected png, jpeg, gif or webp (rule 35)"
            source = image.get("source")
            data = source.get("bytes") if isinstance(source, dict) else None
            if not isinstance(data, str) or not 0 < len(data) <= _LONGEST_IMAGE:
                yield "image.bytes", f"{at}.source", "expected base64 of at most 5 MiB (rules 36, 37, 39)"


_RULES: tuple[Callable[[_Body], _Found], ...] = (
    _envelope, _order, _content, _entries, _pairing, _tools, _images,
)  # fmt: skip


def breaches(call: Call) -> Sequence[Breach]:
    """What a request breaks, as far as its body shows it."""
    body = _Body(call.body)
    return [RULES.breach(*found) for rule in _RULES for found in rule(body)]


# --- streams

_KNOWN = frozenset(
    {"messageMetadataEvent", "assistantResponseEvent", "reasoningContentEvent", "toolUseEvent", "toolResultEvent"}
    | {"codeEvent", "codeReferenceEvent", "supplementaryWebLinksEvent", "followupPromptEvent", "citationEvent"}
    | {"intentsEvent", "interactionComponentsEvent", "dryRunSucceedEvent", "metadataEvent", "contextUsageEvent"}
    | {"meteringEvent", "invalidStateEvent", "initial-response", "messageStopEvent"}
)


def stream_breaches(frames: Iterable[Frame]) -> Sequence[Breach]:
    """What a captured stream breaks: unknown events, payloads that are no objects, calls without an end."""
    found: list[Breach] = []
    calls = _Calls()
    usage = cut = False
    number = -1
    for number, frame in enumerate(frames):
        if frame.error:
            return found
        if frame.kind not in _KNOWN:
            found.append(RULES.breach("stream.unknown", f"[{number}]", f"no event is named {frame.kind!r}"))
            continue
        usage = usage or frame.kind == "contextUsageEvent"
        cut = cut or _says_cut(frame)
        found += _frame_breaches(frame, number, calls)
    for name, at in () if cut else calls.open.items():
        found.append(RULES.breach("stream.open_call", f"[{at}]", f"the call {name!r} has no stop: it was cut"))
    if not usage:
        found.append(RULES.breach("stream.no_usage", f"[{number}]", "no contextUsageEvent: it may have been cut"))
    return found


def _says_cut(frame: Frame) -> bool:
    """Whether the frame says that the answer was cut: then a call may have no end."""
    if frame.kind != "metadataEvent":
        return False
    try:
        body = jsonio.decode(frame.data)
    except jsonio.JsonError:
        return False
    reason = body.get("stopReason") if isinstance(body, dict) else None
    return isinstance(reason, str) and reason in _CUTS


class _Calls:
    """The calls of a stream. A fragment without an id belongs to the call that came last (document 002)."""

    def __init__(self) -> None:
        self.open: dict[str, int] = {}  # the number of the frame that began it, by id
        self._names: dict[str, str] = {}
        self._last = ""

    def feed(self, body: dict[str, Json], number: int) -> Iterator[Breach]:
        named, name = body.get("toolUseId"), body.get("name")
        at = f"[{number}].toolUseId"
        if named in (None, ""):
            grows = not name or name == self._names.get(self._last)
            if not self._last or not grows:
                yield RULES.breach("stream.call_id", at, "a call begins with a toolUseId")
                return
            named = self._last
        elif not isinstance(named, str) or is_blank(named):
            yield RULES.breach("stream.call_id", at, "expected a string that is not blank")
            return
        elif named not in self._names:
            if not isinstance(name, str) or is_blank(name):
                yield RULES.breach("stream.call_name", f"[{number}].name", "a call begins with a name")
            self._names[named] = str(name)
            self.open[named] = number
        self._last = str(named)
        if body.get("stop") is True:
            self.open.pop(self._last, None)


def _frame_breaches(frame: Frame, number: int, calls: _Calls) -> Iterator[Breach]:
    try:
        body = jsonio.decode(frame.data or b"{}")
    except jsonio.JsonError as error:
        yield RULES.breach("stream.json", f"[{number}]", str(error))
        return
    if isinstance(body, dict) and len(body) == 1 and isinstance(inner := body.get(frame.kind), dict):
        body = inner  # some payloads are wrapped in their event's name
    if not isinstance(body, dict):
        yield RULES.breach("stream.json", f"[{number}]", "expected an object")
    elif frame.kind == "assistantResponseEvent" and not isinstance(
        body.get("content", "" if "modelId" in body else None), str
    ):
        yield RULES.breach("stream.content", f"[{number}].content", "expected a string")
    elif frame.kind == "toolUseEvent":
        yield from calls.feed(body, number)
