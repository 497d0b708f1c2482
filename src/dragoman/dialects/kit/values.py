"""Readers and writers of JSON values that dialects share: values of unknown type, extra fields, media, tools, calls.

The readers of unknown values (`members`, `items`, `text`) return an empty value for one of another type.
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
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

Object: TypeAlias = dict[str, Json]
LocatedObject: TypeAlias = tuple[Object, str]  # an object, and its place in the payload
NO_PARAMETERS: Object = {"type": "object", "properties": {}}  # the schema of a tool that takes none


def members(value: Json) -> Object:
    """Return the value if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}


def items(value: Json) -> list[Json]:
    """Return the value if it is an array, else an empty array."""
    return value if isinstance(value, list) else []


def text(value: Json) -> str:
    """Return the value if it is a string, else an empty string."""
    return value if isinstance(value, str) else ""


def drop_empty(fields: Object) -> Object:
    """Return the fields without nulls, zeros, empty strings, empty arrays and empty objects."""
    return {name: value for name, value in fields.items() if value}


def objects(value: Json, at: str) -> Iterator[LocatedObject]:
    """Yield the objects of an array, each with its place."""
    for index, item in enumerate(items(value)):
        if isinstance(item, dict):
            yield item, f"{at}[{index}]"


decoded, is_json = jsonio.try_decode, jsonio.is_json


def json_text(value: Json, at: str, blame: type[DragomanError]) -> str:
    """Return a value as JSON text. Raises `blame` for a value that JSON cannot express."""
    try:
        return jsonio.encode_to_text(value)
    except jsonio.JsonError as error:
        raise blame(str(error), at=at) from None


def iso_time(seconds: int) -> str:
    """Return a Unix time as text, such as `2026-01-31T12:00:00Z`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reply_fields(body: bytes) -> Fields:
    """Return the fields of a whole reply. Raises BadFrame for a body that is not JSON."""
    try:
        return Fields(jsonio.decode(body), blame=MissingField)
    except jsonio.JsonError as error:
        raise BadFrame(f"the reply is not JSON: {error}") from None


# --- Extra fields: fields that a reader does not know, kept for its family and written back for the same family.
#
# An extra field wins over a field of the writer with the same name. Objects are merged, since a known object may hold
# unknown fields. A filter that changes a setting also removes it from the extra fields.


_NONE: Mapping[str, Json] = {}


class ExtraFields:
    """Reads and writes the extra fields of one family.

    `is_spelling` returns whether a field with its value only records how something was written. Such a field is not
    a loss in a dialect without it.
    """

    def __init__(self, family: str, is_spelling: Callable[[str, Json], bool] | None = None) -> None:
        self._family = family
        self._is_spelling = is_spelling

    def extra_of(self, fields: dict[str, Json], spelling: frozenset[str] = frozenset()) -> Extra | None:
        """Return these fields as extra fields, or None without any; `spelling` names those that are only spelling."""
        if not fields:
            return None
        if self._is_spelling is None:
            return Extra(self._family, fields, spelling & fields.keys() if spelling else spelling)
        names = [name for name, value in fields.items() if name in spelling or self._is_spelling(name, value)]
        return Extra(self._family, fields, frozenset(names))

    def extra(self, fields: Fields) -> Extra | None:
        """Return the fields of a node that no reader took, as extra fields."""
        rest = fields.rest()
        return self.extra_of(to_extra_names(rest)) if rest else None

    def own_fields(self, extra: Extra | None) -> Mapping[str, Json]:
        """Return the extra fields of this family; names that begin with `~` are never written."""
        return extra.fields if extra is not None and extra.family == self._family else _NONE

    def wire_fields(self, extra: Extra | None) -> dict[str, Json]:
        """Return a copy of the extra fields that belong to the node itself, by their names on the wire."""
        return node_fields(extra.fields) if extra is not None and extra.family == self._family else {}

    def with_extra(self, body: dict[str, Json], extra: Extra | None) -> dict[str, Json]:
        """Add the extra fields of a node to its body, in place, and return the body."""
        if extra is None or extra.family != self._family:
            return body
        return merge_fields(body, node_fields(extra.fields))

    def opaque(self, fields: Fields, kind: str) -> Opaque:
        """Return an opaque block of all fields of the object."""
        return Opaque(self._family, fields.rest(), kind, at=Location(fields.at))

    def own_data(self, block: Opaque, blame: type[DragomanError]) -> dict[str, Json]:
        """Return a copy of an opaque block's object. Raises `blame` for one of another family."""
        if block.family != self._family or not isinstance(block.data, dict):
            message = f"{block.kind or 'a block'} of {block.family} cannot be sent in the dialect {self._family}"
            raise blame(message, at=block.at.path)
        return {**block.data}


def merge_fields(body: dict[str, Json], extra: Mapping[str, Json]) -> dict[str, Json]:
    """Add extra fields to a body, in place, and return it. Extra fields win, and objects are merged."""
    for name, value in extra.items():
        known = body.get(name)
        body[name] = merge_fields({**known}, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return body


def unrepresentable(block: Block, message: str) -> Unrepresentable:
    """Return the error for a block that a dialect cannot express."""
    return Unrepresentable(message, at=block.at.path)


def describe_block(block: Block) -> str:
    """Return the name of a block for messages."""
    match block:
        case Media():
            return f"{block.kind} as {block.form}"
        case Opaque():
            return f"{block.family} {block.kind or 'content'}"
        case _:
            return type(block).__name__


def check_representable(conversation: Conversation, target: Capabilities) -> None:
    """Raise Unrepresentable for a setting that a dialect of these capabilities lacks; filters remove all of them."""
    output, thinking = conversation.output, conversation.thinking
    is_supported = {
        "n": conversation.choices == 1 or "choices" in target.traits,
        "previous_response_id": conversation.previous_id is None,
        "tool_choice": conversation.tool_choice.mode in target.choice_modes and not conversation.tool_choice.names,
        "parallel_tool_calls": conversation.tool_choice.parallel is None or "parallel_flag" in target.traits,
        "user": not conversation.user or "user" in target.traits,
        "sampling": target.sampling >= conversation.sampling.keys(),
        "output": output.kind in target.output and (not output.name or "output_names" in target.traits),
        "thinking": thinking.mode in target.thinking and (thinking.budget is None or "budgets" in target.traits),
    }
    for name, supported in is_supported.items():
        if not supported:
            raise Unrepresentable(f"the target cannot express this value of {name}", at=name)


# --- Media in requests: base64, and the media types of file name extensions


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
    """Return the media type of base64 data by its first bytes; empty if unknown."""
    head = base64_bytes(data[:16]) or b""
    if head.startswith(b"RIFF"):
        return _BY_RIFF.get(head[8:12], "")
    return next((mime for begin, mime in _BY_FIRST_BYTES if head.startswith(begin)), "")


def untyped_media(data: str, at: Location) -> Media:
    """Return media whose kind and type are read from its data: audio if it is known as such, else an image."""
    mime = media_type(data)
    return Media("audio" if mime.startswith("audio/") else "image", mime, "base64", data, at=at)


def is_url(text: str) -> bool:
    """Return whether a text begins like a URL."""
    return _URL.match(text) is not None


def base64_bytes(data: str) -> bytes | None:
    """Return the bytes of padded base64, or None if the text is not base64."""
    try:
        return binascii.a2b_base64(data.encode("ascii"), strict_mode=True)
    except ValueError:
        return None


def base64_text(fields: Fields, name: str, data: str) -> str:
    """Return the data of a field if it is base64 of at least one byte. Raises the fields' error otherwise."""
    if not base64_bytes(data):
        fields.fail(name, "expected base64 data")
    return data


# --- Tools and calls, where different services have the same requirements


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FOREIGN = re.compile(r"[^a-zA-Z0-9_-]")


def render_arguments(call: ToolCall, blame: type[DragomanError] = Unrepresentable) -> Json:
    """Return the arguments of a call as an object. Raises `blame` for arguments that are not a JSON object."""
    if not call.arguments and call.form == "json":
        return {}
    value = jsonio.decode_object(call.arguments) if call.form == "json" else None
    if value is None:
        raise blame(f"the arguments of {call.name} are not a JSON object", at=call.at.path)
    return value


def tool_body(tool: ToolSpec) -> dict[str, Json]:
    """Return name and description of a tool with a schema. Raises Unrepresentable for any other tool."""
    if tool.schema is None:
        message = f"the tool {tool.name} accepts free text; the target supports only tools with a schema"
        raise Unrepresentable(message, at=tool.at.path)
    if tool.waits_for:
        raise Unrepresentable(f"the target cannot defer loading the tool {tool.name}", at=tool.at.path)
    return {"name": tool.name, "description": tool.description} if tool.description else {"name": tool.name}


CLAUDE_TOOL_CHOICES = {"auto": "auto", "any": "any", "none": "none", "tool": "one"}
_CLAUDE_CHOICES = {mode: name for name, mode in CLAUDE_TOOL_CHOICES.items()}


def render_claude_choice(choice: ToolChoice) -> dict[str, Json]:
    """Return a tool choice as Claude's APIs write it."""
    body: dict[str, Json] = {"type": _CLAUDE_CHOICES[choice.mode]}
    if choice.names:
        body["name"] = choice.names[0]
    if choice.parallel is not None:
        body["disable_parallel_tool_use"] = not choice.parallel
    return body


def with_object_schema(tool: ToolSpec | Opaque, rule: str, notes: Notes) -> ToolSpec | Opaque:
    """Return the tool with parameters of type object; a change is noted under `rule`."""
    if isinstance(tool, Opaque) or tool.schema is None or tool.schema.get("type") == "object":
        return tool
    declared = tool.schema.get("type")
    fits = declared is None or (isinstance(declared, list) and "object" in declared)
    schema: Object = {**tool.schema, "type": "object"} if fits else {**NO_PARAMETERS}
    lost = tool.schema.keys() - schema.keys()
    detail = f"the parameters of {tool.name} get the type object"
    notes.add(rule, "dropped" if lost else "changed", tool.at.path, detail)
    return structs.replace(tool, schema=schema)


class NameOutput(Filter):
    """Gives an output schema a name that the service accepts. `at` is the field of the name in notes."""

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
        detail = f"an output schema needs a name of letters, digits, _ and -; its name is {name} now"
        notes.add(self.name, "changed" if output.name else "added", self._at, detail)
        return structs.replace(conversation, output=structs.replace(output, name=name)), None


# --- Ids of calls, and the call of each result, where ids are optional


class ToolCallIds:
    """Assigns ids to the calls of one request, in their order, and finds the call of each result.

    A call without an id is numbered among the calls without ids, so that its id stays the same in later requests of
    the same conversation.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix  # of the ids that are assigned here
        self._assigned = 0
        self._names: dict[str, str] = {}  # names of calls, by id
        self._waiting: dict[int, str] = {}  # ids of calls without a result, by number of the call
        # Numbers of calls, by id and by name ("" has all calls). Calls that have a result are removed lazily.
        self._by_id: defaultdict[str, deque[int]] = defaultdict(deque)
        self._by_name: defaultdict[str, deque[int]] = defaultdict(deque)
        self._calls = 0

    def add_call(self, call_id: str, name: str) -> str:
        """Return the id of a call: its own, else an assigned one."""
        call_id = call_id or self._new_id()
        self._names[call_id] = name
        self._waiting[self._calls] = call_id
        self._by_id[call_id].append(self._calls)
        for names in {name, ""}:
            self._by_name[names].append(self._calls)
        self._calls += 1
        return call_id

    def match_result(self, call_id: str, name: str) -> str:
        """Return the id of the call that a result belongs to.

        That is the result's own id if a call has it, else the id of the first call of its name without a result (of
        any name if the result has none). If all calls have results, it is the result's own id or a new one.
        """
        if call_id in self._names:
            self._take(self._by_id[call_id])
            return call_id
        return self._take(self._by_name[name]) or call_id or self._new_id()

    def name_of(self, call_id: str) -> str:
        """Return the name of the call with this id; empty if there is none."""
        return self._names.get(call_id, "")

    def _take(self, numbers: deque[int]) -> str:
        """Return the id of the first of these calls without a result, and record that it has one."""
        while numbers:
            if call_id := self._waiting.pop(numbers.popleft(), ""):
                return call_id
        return ""

    def _new_id(self) -> str:
        self._assigned += 1
        while (new_id := f"{self._prefix}{self._assigned}") in self._names:  # a call of the request has this id
            self._assigned += 1
        return new_id


# --- Tools and calls as `{"function": {"name": ...}}` with an object as arguments, a variant of OpenAI's form.
#
# Unknown fields of the outer and the inner object become extra fields of the family.


class FunctionCodec:
    """Reads and writes the tools and calls of one family."""

    def __init__(self, extra: ExtraFields) -> None:
        self._extra = extra

    def parse_tool(self, fields: Fields) -> ToolSpec | Opaque:
        """Read a tool. A tool that is not a function is opaque."""
        kind = fields.peek("type")
        if kind not in (None, "function"):
            return self._extra.opaque(fields, str(kind))
        fields.any("type")
        function = fields.child("function")
        name, description = function.identifier("name"), function.text("description", "")
        parameters = function.maybe_child("parameters")
        function.any("parameters")
        schema = NO_PARAMETERS if parameters is None else parameters.rest()
        at = Location(fields.at, is_absent=parameters is None)
        return ToolSpec(name, description, schema, extra=self._extra_of(fields, function), at=at)

    def render_tool(self, tool: ToolSpec | Opaque) -> Json:
        """Write a tool. Raises Unrepresentable for a tool without a schema or of another family."""
        if isinstance(tool, Opaque):
            return self._extra.own_data(tool, Unrepresentable)
        function: dict[str, Json] = {**tool_body(tool), "parameters": {**(tool.schema or {})}}
        return self._extra.with_extra({"type": "function", "function": function}, tool.extra)

    def parse_call(self, fields: Fields, pairs: ToolCallIds | None = None) -> ToolCall:
        """Read a call. In requests, `pairs` assigns an id to a call without one; in replies, a filter does."""
        call_id, function = fields.maybe_identifier("id"), fields.child("function")
        name, value = function.identifier("name"), function.any("arguments")
        if value is not None and not isinstance(value, dict):
            function.fail("arguments", f"expected an object, got {describe(value)}")
        arguments = "" if value is None else json_text(value, function.path("arguments"), function.blame)
        function.any("index")  # Ignored: some servers give all calls the same index.
        call_id = pairs.add_call(call_id, name) if pairs else call_id
        return ToolCall(call_id, name, arguments, extra=self._extra_of(fields, function), at=Location(fields.at))

    def render_call(self, call: ToolCall, blame: type[DragomanError] = Unrepresentable) -> dict[str, Json]:
        """Write a call. Raises `blame` for arguments that are not an object."""
        function: Json = {"name": call.name, "arguments": render_arguments(call, blame)}
        return self._extra.with_extra({"id": call.id, "function": function}, call.extra)

    def _extra_of(self, fields: Fields, function: Fields) -> Extra | None:
        rest = function.rest()
        return self._extra.extra_of(to_extra_names(fields.rest()) | ({"function": rest} if rest else {}))
