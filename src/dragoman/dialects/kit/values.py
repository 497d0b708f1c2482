"""What dialects read from JSON values and write into them: unknown shapes, kept fields, media, tools and calls.

A value of unknown shape that has the wrong type reads as absent.
"""

from __future__ import annotations

import binascii
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TypeAlias

from msgspec import structs

from dragoman.errors import BadFrame, DragomanError, MissingField, Unrepresentable
from dragoman.model.blocks import Block, Extra, Location, Media, Opaque, ToolCall
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, ToolChoice, ToolSpec, node_fields, to_extra_names
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, Notes
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

Object: TypeAlias = dict[str, Json]
LocatedObject: TypeAlias = tuple[Object, str]  # an object, and its place in the payload
NO_PARAMETERS: Object = {"type": "object", "properties": {}}  # the schema of a tool that takes none


def members(value: Json) -> Object:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    """Return the value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def text(value: Json) -> str:
    """Return the value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def drop_empty(fields: Object) -> Object:
    """Return the fields that say something: nulls, zeros and empty objects do not."""
    return {name: value for name, value in fields.items() if value}


def objects(value: Json, at: str) -> Iterator[LocatedObject]:
    """Yield the objects of an array, each with its place."""
    for index, item in enumerate(items(value)):
        if isinstance(item, dict):
            yield item, f"{at}[{index}]"


decoded, is_json = jsonio.try_decode, jsonio.is_json


def json_text(value: Json, at: str, blame: type[DragomanError]) -> str:
    """Return a value as JSON text. Raises `blame` for one that has none."""
    try:
        return jsonio.encode_to_text(value)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at) from None


def iso_time(seconds: int) -> str:
    """Return a moment as text, such as `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reply_fields(body: bytes) -> Fields:
    """Return the fields of a whole reply. Raises BadFrame for a body that is no JSON."""
    try:
        return Fields(jsonio.decode(body), blame=MissingField)
    except jsonio.JsonError as error:
        raise BadFrame(f"the reply is not JSON: {error}") from None


# --- Fields that a dialect does not know: kept for its own family, and written back by it.
#
# One rule of precedence: a kept field wins over what the writer has under its name, and objects are merged, since a
# known
# one may hold unknown fields. What a filter changes on the way it takes out of the kept fields, too.


_NONE: Mapping[str, Json] = {}


class ExtraFields:
    """The kept fields of one family.

    `is_spelling` tells of a field and its value whether they only say how something was written: nothing is lost
    where another dialect has no such field.
    """

    def __init__(self, family: str, is_spelling: Callable[[str, Json], bool] | None = None) -> None:
        self._family = family
        self._is_spelling = is_spelling

    def extra_of(self, fields: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
        """Return the fields to keep, by the names they are kept under; those in `spelling` are spellings here."""
        if not fields:
            return None
        if self._is_spelling is None:
            return Extra(self._family, fields, spelling & fields.keys() if spelling else spelling)
        said = [name for name, value in fields.items() if name in spelling or self._is_spelling(name, value)]
        return Extra(self._family, fields, frozenset(said))

    def extra(self, fields: Fields) -> Extra | None:
        """Return all fields of a node that were not taken."""
        rest = fields.rest()
        return self.extra_of(to_extra_names(rest)) if rest else None

    def own_fields(self, extra: Extra | None) -> Mapping[str, Json]:
        """Return the fields kept for this family; those that begin with `~` are never written."""
        return extra.fields if extra is not None and extra.family == self._family else _NONE

    def wire_fields(self, extra: Extra | None) -> dict[str, Json]:
        """Return those that stand on the node itself, by their names on the wire; the result may be changed."""
        return node_fields(extra.fields) if extra is not None and extra.family == self._family else {}

    def with_extra(self, body: dict[str, Json], extra: Extra | None) -> dict[str, Json]:
        """Write the kept fields of a node back into its body, which is changed."""
        if extra is None or extra.family != self._family:
            return body
        return merge_fields(body, node_fields(extra.fields))

    def opaque(self, fields: Fields, kind: str) -> Opaque:
        """Return the whole object, of which nothing was taken yet."""
        return Opaque(self._family, fields.rest(), kind, at=Location(fields.at))

    def own_data(self, block: Opaque, blame: type[DragomanError]) -> dict[str, Json]:
        """Return a copy of an opaque block's object. Raises `blame` for one of another family."""
        if block.family != self._family or not isinstance(block.data, dict):
            raise blame(f"{block.kind or 'a block'} of {block.family} has no place here", at=block.at.path)
        return {**block.data}


def merge_fields(body: dict[str, Json], kept: Mapping[str, Json]) -> dict[str, Json]:
    """Put kept fields into a body, which is changed: they win, and objects are merged."""
    for name, value in kept.items():
        known = body.get(name)
        body[name] = merge_fields({**known}, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return body


def unrepresentable(block: Block, message: str) -> Unrepresentable:
    """Return the error for a block that a dialect has no place for."""
    return Unrepresentable(message, at=block.at.path)


def describe(block: Block) -> str:
    """Name a block in a message."""
    match block:
        case Media():
            return f"{block.kind} as {block.form}"
        case Opaque():
            return f"{block.family} {block.kind or 'content'}"
        case _:
            return type(block).__name__


def check_representable(conversation: Conversation, target: Capabilities) -> None:
    """Raise Unrepresentable for a wish that a dialect of these capabilities has no place for. Filters leave none."""
    output, thinking = conversation.output, conversation.thinking
    wishes = {
        "n": conversation.choices == 1 or "choices" in target.traits,
        "previous_response_id": conversation.previous_id is None,
        "tool_choice": conversation.tool_choice.mode in target.choice_modes and not conversation.tool_choice.names,
        "parallel_tool_calls": conversation.tool_choice.parallel is None or "parallel_flag" in target.traits,
        "user": not conversation.user or "user" in target.traits,
        "sampling": target.sampling >= conversation.sampling.keys(),
        "output": output.kind in target.output and (not output.name or "output_names" in target.traits),
        "thinking": thinking.mode in target.thinking and (thinking.budget is None or "budgets" in target.traits),
    }
    for name, has_place in wishes.items():
        if not has_place:
            raise Unrepresentable(f"there is no place for this {name} here", at=name)


# --- Media in requests: base64, and the types of files by the ends of their names


_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:\S")
FILE_TYPES = {
    "pdf": "application/pdf",
    "txt": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "json": "application/json",
}


_BY_FIRST_BYTES = ((b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_BY_RIFF = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


def media_type(data: str) -> str:
    """Return the type of what is in base64, by its first bytes. Empty if it is unknown."""
    head = base64_bytes(data[:16]) or b""
    if head.startswith(b"RIFF"):
        return _BY_RIFF.get(head[8:12], "")
    return next((mime for begin, mime in _BY_FIRST_BYTES if head.startswith(begin)), "")


def untyped_media(data: str, at: Location) -> Media:
    """Return media that comes without kind and type: what is no audio counts as an image."""
    mime = media_type(data)
    return Media("audio" if mime.startswith("audio/") else "image", mime, "base64", data, at=at)


def is_url(text: str) -> bool:
    """Tell whether a text begins like an address."""
    return _URL.match(text) is not None


def base64_bytes(data: str) -> bytes | None:
    """Return the bytes of plain base64 with its padding, or None if the text is something else."""
    try:
        return binascii.a2b_base64(data.encode("ascii"), strict_mode=True)
    except ValueError:
        return None


def base64_text(fields: Fields, name: str, data: str) -> str:
    """Return the data of a field if it is base64 of at least one byte. Raises the fields' error otherwise."""
    if not base64_bytes(data):
        fields.fail(name, "expected base64 data")
    return data


# --- Tools and calls, where services that are otherwise different demand the same


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


def render_arguments(call: ToolCall, blame: type[DragomanError] = Unrepresentable) -> Json:
    """Return a call's arguments as an object. Raises `blame` for arguments that are none."""
    if not call.arguments and call.form == "json":
        return {}
    value = jsonio.decode_object(call.arguments) if call.form == "json" else None
    if value is None:
        raise blame(f"the arguments of {call.name} are no JSON object", at=call.at.path)
    return value


def tool_body(tool: ToolSpec) -> dict[str, Json]:
    """Return name and description of a tool with a schema. Raises Unrepresentable for any other tool."""
    if tool.schema is None:
        raise Unrepresentable(f"the tool {tool.name} takes free text, which has no place here", at=tool.at.path)
    if tool.waits_for:
        raise Unrepresentable(f"the tool {tool.name} cannot be held back here", at=tool.at.path)
    return {"name": tool.name, "description": tool.description} if tool.description else {"name": tool.name}


CLAUDE_TOOL_CHOICES = {"auto": "auto", "any": "any", "none": "none", "tool": "one"}
_CLAUDE_CHOICES = {mode: name for name, mode in CLAUDE_TOOL_CHOICES.items()}


def render_claude_choice(choice: ToolChoice) -> dict[str, Json]:
    """Return a tool choice in Claude's words."""
    body: dict[str, Json] = {"type": _CLAUDE_CHOICES[choice.mode]}
    if choice.names:
        body["name"] = choice.names[0]
    if choice.parallel is not None:
        body["disable_parallel_tool_use"] = not choice.parallel
    return body


def with_object_schema(tool: ToolSpec | Opaque, rule: str, notes: Notes) -> ToolSpec | Opaque:
    """Return the tool with parameters that are an object; `rule` notes the change."""
    if isinstance(tool, Opaque) or tool.schema is None or tool.schema.get("type") == "object":
        return tool
    declared = tool.schema.get("type")
    fits = declared is None or (isinstance(declared, list) and "object" in declared)
    schema: Object = {**tool.schema, "type": "object"} if fits else {**NO_PARAMETERS}
    lost = tool.schema.keys() - schema.keys()
    detail = f"the parameters of {tool.name} are said to be an object"
    notes.add(rule, "dropped" if lost else "changed", tool.at.path, detail)
    return structs.replace(tool, schema=schema)


class NameOutput(Filter):
    """A filter: an output schema gets a name, of the letters that tools have. `at` is the field that holds it."""

    applies_to: Features = frozenset({"output"})

    def __init__(self, name: str, at: str) -> None:
        self.name = name
        self._at = at

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        output = conversation.output
        if output.kind != "schema" or _NAME.fullmatch(output.name):
            return conversation, None
        name = _FOREIGN.sub("_", output.name)[:64] or "answer"
        detail = f"an output schema needs a name of letters, digits, _ and -: it is called {name}"
        notes.add(self.name, "changed" if output.name else "added", self._at, detail)
        return structs.replace(conversation, output=structs.replace(output, name=name)), None


# --- Which result answers which call, where neither need have an id


class ToolCallIds:
    """Ids for the calls of one request, in their order, and the call that each result answers.

    A call without an id gets one of its place among those without, so that a request and the same request some turns
    later have the same ids.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix  # of ids that are made here
        self._made = 0
        self._names: dict[str, str] = {}  # of calls, by their ids
        self._waiting: dict[int, str] = {}  # ids of calls without a result, by place
        self._by_id: defaultdict[str, deque[int]] = defaultdict(deque)  # places, of calls that may have a result by now
        self._by_name: defaultdict[str, deque[int]] = defaultdict(deque)  # the same; under "" are all of them
        self._calls = 0

    def add_call(self, call_id: str, name: str) -> str:
        """Return the id of a call: its own, else one that is made for it."""
        call_id = call_id or self._make()
        self._names[call_id] = name
        self._waiting[self._calls] = call_id
        self._by_id[call_id].append(self._calls)
        for names in {name, ""}:
            self._by_name[names].append(self._calls)
        self._calls += 1
        return call_id

    def match_result(self, call_id: str, name: str) -> str:
        """Return the id that a result answers: its own if a call has it, else that of the first call of its name that
        waits, or of all calls if it has no name. Where no call waits it is its own, or one that no call has."""
        if call_id in self._names:
            self._take(self._by_id[call_id])
            return call_id
        return self._take(self._by_name[name]) or call_id or self._make()

    def name_of(self, call_id: str) -> str:
        """Return the name of a call; empty if there is none."""
        return self._names.get(call_id, "")

    def _take(self, places: deque[int]) -> str:
        """Return the id of the first of these calls that waits, which it does no longer."""
        while places:
            if call_id := self._waiting.pop(places.popleft(), ""):
                return call_id
        return ""

    def _make(self) -> str:
        self._made += 1
        while (made := f"{self._prefix}{self._made}") in self._names:  # a call of the request has it
            self._made += 1
        return made


# --- Tools and calls as `{"function": {"name": ...}}`, arguments an object, as services after OpenAI have it.
#
# Unknown fields of the outer and the inner object are kept for the family.


class FunctionCodec:
    """Reads and writes the tools and calls of one family."""

    def __init__(self, kept: ExtraFields) -> None:
        self._kept = kept

    def parse_tool(self, fields: Fields) -> ToolSpec | Opaque:
        """Read a tool; one of another type than a function is opaque."""
        kind = fields.peek("type")
        if kind not in (None, "function"):
            return self._kept.opaque(fields, str(kind))
        fields.any("type")
        function = fields.child("function")
        name, description = function.identifier("name"), function.text("description", "")
        parameters = function.maybe_child("parameters")
        function.any("parameters")
        schema = NO_PARAMETERS if parameters is None else parameters.rest()
        at = Location(fields.at, is_absent=parameters is None)
        return ToolSpec(name, description, schema, extra=self._beside(fields, function), at=at)

    def render_tool(self, tool: ToolSpec | Opaque) -> Json:
        """Write a tool. Raises Unrepresentable for one without a schema and for one of another family."""
        if isinstance(tool, Opaque):
            return self._kept.own_data(tool, Unrepresentable)
        function: dict[str, Json] = {**tool_body(tool), "parameters": {**(tool.schema or {})}}
        return self._kept.with_extra({"type": "function", "function": function}, tool.extra)

    def parse_call(self, fields: Fields, pairs: ToolCallIds | None = None) -> ToolCall:
        """Read a call. `pairs` gives an id to one without; in an answer a filter does."""
        call_id, function = fields.maybe_identifier("id"), fields.child("function")
        name, value = function.identifier("name"), function.any("arguments")
        if value is not None and not isinstance(value, dict):
            function.fail("arguments", "expected an object")
        arguments = "" if value is None else json_text(value, function.path("arguments"), function.blame)
        function.any("index")  # servers number several calls alike: their order counts
        call_id = pairs.add_call(call_id, name) if pairs else call_id
        return ToolCall(call_id, name, arguments, extra=self._beside(fields, function), at=Location(fields.at))

    def render_call(self, call: ToolCall, blame: type[DragomanError] = Unrepresentable) -> dict[str, Json]:
        """Write a call. Raises `blame` for arguments that are no object."""
        function: Json = {"name": call.name, "arguments": render_arguments(call, blame)}
        return self._kept.with_extra({"id": call.id, "function": function}, call.extra)

    def _beside(self, fields: Fields, function: Fields) -> Extra | None:
        rest = function.rest()
        return self._kept.extra_of(to_extra_names(fields.rest()) | ({"function": rest} if rest else {}))
