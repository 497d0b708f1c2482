"""Filters for services whose messages are flat, whose tools are lossy, and that have no tool choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import is_

from msgspec import structs

from dragoman.dialects.kit.values import items, members, untyped_media
from dragoman.errors import Unrepresentable
from dragoman.model.blocks import Block, Extra, Location, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec
from dragoman.model.events import json_size
from dragoman.model.filter import Action, Facts, Filter, MakeResponseFilter, Notes
from dragoman.model.parts import join_texts
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

# --- JSON Schema without references: what each `$ref` refers to stands in its place


MAX_ADDED_BYTES = 256 * 1024  # bytes that the references of all tools of a request may add
_DEEPEST = 64  # references within references
_DEFINITIONS = frozenset({"$defs", "definitions"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})  # their keys are names, not keywords
_VALUES = frozenset({"enum", "const", "default", "examples", "required"})  # their values are no schemas


def has_references(schema: Json) -> bool:
    """Whether a schema refers to another."""
    if isinstance(schema, list):
        return any(map(has_references, schema))
    if not isinstance(schema, dict):
        return False
    inner = [value for name, value in schema.items() if name not in _VALUES]
    return isinstance(schema.get("$ref"), str) or any(map(has_references, inner))


class SchemaReferences:
    """Puts referenced schemas in place, in all schemas of one request.

    Targets may hold references, so a short request can become a very long one. A reference that would add more than is
    left of `most` bytes stands for any value, and so does one inside of its own target.
    """

    def __init__(self, most: int = MAX_ADDED_BYTES) -> None:
        self._left = most
        self._whole: dict[str, Json] = {}
        self._targets: dict[str, tuple[Json, int]] = {}  # by reference: what it refers to, and its size
        self.is_cut = False  # a reference of the last schema stands for any value

    def inline(self, schema: Mapping[str, Json]) -> dict[str, Json]:
        """Return the schema without references and without the definitions they refer to."""
        self._whole, self._targets, self.is_cut = {**schema}, {}, False
        return self._schema(self._whole, ())

    def _schema(self, node: dict[str, Json], seen: tuple[str, ...]) -> dict[str, Json]:
        """Return a schema anywhere; `seen` are the references that led to it."""
        reference = node.get("$ref")
        target = self._target(reference, seen) if isinstance(reference, str) else {}
        own = {
            name: self._keyword(name, value, seen)
            for name, value in node.items()
            if name not in _DEFINITIONS and (name != "$ref" or not isinstance(reference, str))
        }
        return {**target, **own}  # the words beside a reference win

    def _keyword(self, name: str, value: Json, seen: tuple[str, ...]) -> Json:
        if isinstance(value, dict) and name in _NAMED:
            return {key: self._schema(each, seen) if isinstance(each, dict) else each for key, each in value.items()}
        if isinstance(value, dict) and name not in _VALUES:
            return self._schema(value, seen)
        if isinstance(value, list) and name not in _VALUES:
            return [self._schema(each, seen) if isinstance(each, dict) else each for each in value]
        return value

    def _target(self, reference: str, seen: tuple[str, ...]) -> dict[str, Json]:
        if reference not in self._targets:
            found: Json = self._whole if reference.startswith("#") else None
            for name in reference.removeprefix("#").split("/")[1:]:
                found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
            self._targets[reference] = found, json_size(found)
        place, size = self._targets[reference]
        if reference in seen or len(seen) >= _DEEPEST or not isinstance(place, dict) or size > self._left:
            self.is_cut = True
            return {}
        self._left -= size
        return self._schema(place, (*seen, reference))


_ORDER: tuple[type[Block], ...] = (ToolResult, Reasoning, Text, Media, Opaque, ToolCall)


class FlattenMessages(Filter):
    """A message has one thought, one text, then its media, then its calls; a result has one text, then its media.

    Media gets the type of its first bytes, since requests have no field for a type. Notes: `<family>.message`,
    `<family>.media_type`.
    """

    def __init__(self, family: str) -> None:
        self.name = f"{family}.flat_messages"
        self._family = family

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        messages = tuple([self._message(message, notes) for message in conversation.messages])
        if all(map(is_, messages, conversation.messages)):
            return conversation, None
        return structs.replace(conversation, messages=messages), None

    def _message(self, message: Message, notes: Notes) -> Message:
        if len(message.blocks) == 1 and type(message.blocks[0]) is Text:
            return message
        detail = "its texts became one, in the service's order: thinking, text, media, calls"
        blocks = self._flat(message.blocks, message.at, detail, notes)
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block, notes: Notes) -> Block:
        if isinstance(block, ToolResult):
            detail = "the texts of a result became one, and stand before its media"
            content = self._flat(block.content, block.at, detail, notes)
            return block if content == block.content else structs.replace(block, content=content)
        if not isinstance(block, Media):
            return block
        found = untyped_media(block.data, block.at)
        if (found.kind, found.mime) != (block.kind, block.mime):
            detail = f"the service finds out a type by itself; this is {found.mime or 'of no type that is known here'}"
            notes.changed(f"{self._family}.media_type", block.at.path, detail)
            block = structs.replace(block, kind=found.kind, mime=found.mime)
        return block

    def _flat(self, blocks: Sequence[Block], at: Location, detail: str, notes: Notes) -> tuple[Block, ...]:
        typed = [self._block(block, notes) for block in blocks]
        flat: list[Block] = []
        for kind in _ORDER:
            alike = [block for block in typed if type(block) is kind]
            if len(alike) > 1 and kind in (Text, Reasoning):
                alike = [structs.replace(alike[0], text=join_texts([block.text for block in alike]))]  # type: ignore[union-attr]
            flat += [block for block in alike if not isinstance(block, Text | Reasoning) or block.text]
        if flat != typed:
            notes.changed(f"{self._family}.message", at.path, detail)
        return tuple(flat)


class DropForbiddenTools(Filter):
    """Without a field for a tool choice, a request that forbids calls offers no tools. Notes: `<family>.no_calls`."""

    before = "fit_limits"

    def __init__(self, family: str) -> None:
        self.name = f"{family}.no_choice"
        self._rule = f"{family}.no_calls"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if conversation.tool_choice.mode != "none" or not conversation.tools:
            return conversation, None
        at = conversation.tool_choice.at.path
        notes.changed(self._rule, at, "calls are forbidden, and there is no field for that: no tool is offered")
        return structs.replace(conversation, tools=(), tool_choice=ToolChoice()), None


class SimplifySchemas(Filter):
    """Tool schemas of the keywords that a service reads; references are put in place first.

    `root` are the keywords of a tool's parameters, `kept` those of a property. `const` becomes `enum`, `oneOf` becomes
    `anyOf`, and the branches of `allOf` are merged. Notes: `<family>.schema`.
    """

    def __init__(self, family: str, root: Iterable[str], kept: Iterable[str]) -> None:
        self.name = f"{family}.plain_schemas"
        self._rule = f"{family}.schema"
        self._root, self._kept = frozenset(root), frozenset(kept)

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        references = SchemaReferences()
        try:
            tools = tuple([self._tool(tool, references, notes) for tool in conversation.tools])
        except RecursionError:
            raise Unrepresentable("a schema is nested too deeply", at="tools") from None
        if all(map(is_, tools, conversation.tools)):
            return conversation, None
        return structs.replace(conversation, tools=tools), None

    def _tool(self, tool: ToolSpec | Opaque, references: SchemaReferences, notes: Notes) -> ToolSpec | Opaque:
        if isinstance(tool, Opaque) or tool.schema is None:
            return tool
        lost: set[str] = set()
        whole = _settled(references.inline(tool.schema), lost)
        if "anyOf" in whole and "anyOf" not in self._root:
            whole = _joined(whole, lost)
        schema = {**self._node(whole, self._root, lost), "type": "object"}
        schema.setdefault("properties", {})
        if schema == tool.schema:
            return tool
        gone = sorted(lost - _ANNOTATIONS) + (["$ref (as any value)"] if references.is_cut else [])
        what = f" (without {', '.join(gone)})" if gone else ""
        detail = f"the schema of {tool.name} is made plain{what}"
        notes.add(self._rule, "dropped" if gone else "changed", tool.at.path, detail)
        return structs.replace(tool, schema=schema)

    def _node(self, node: dict[str, Json], keywords: frozenset[str], lost: set[str]) -> dict[str, Json]:
        lost |= node.keys() - keywords
        return {name: self._value(name, value, lost) for name, value in node.items() if name in keywords}

    def _value(self, name: str, value: Json, lost: set[str]) -> Json:
        if name == "properties":
            return {key: self._inside(each, lost) for key, each in members(value).items()}
        if name == "anyOf":
            return [self._inside(each, lost) for each in items(value)]
        if name == "items":
            return self._inside(value, lost)
        return [each for each in items(value) if isinstance(each, str)] if name == "required" else value

    def _inside(self, value: Json, lost: set[str]) -> Json:
        return self._node(_settled(value, lost), self._kept, lost) if isinstance(value, dict) else {}


# Keywords that constrain nothing, or whose meaning other keywords take over.
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "examples", "deprecated"}
    | {"const", "oneOf", "allOf"}
)


def _settled(node: Mapping[str, Json], lost: set[str]) -> dict[str, Json]:
    """Return the schema with `allOf` merged into it, `oneOf` as `anyOf` and `const` as `enum`."""
    settled = {**node}
    for branch in items(settled.pop("allOf", None)):
        if isinstance(branch, dict):
            settled = _merged(_settled(branch, lost), settled)
    if "const" in settled:
        settled.setdefault("enum", [settled.pop("const")])
    if "oneOf" in settled and "anyOf" not in settled:
        settled["anyOf"] = settled.pop("oneOf")
    return settled


def _joined(node: dict[str, Json], lost: set[str]) -> dict[str, Json]:
    """Return a union as one object with the properties of all branches. What only one branch demands is no demand."""
    branches = [_settled(each, lost) for each in items(node.get("anyOf")) if isinstance(each, dict)]
    properties = members(node.get("properties"))
    for branch in branches:
        properties = {**members(branch.get("properties")), **properties}
    return {**node, "properties": properties}


def _merged(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    """Return what both demand; of a keyword that both have in different words, the other's counts."""
    both = {**one, **other}
    for name in ("properties", "required"):
        match one.get(name), other.get(name):
            case dict(first), dict(second):
                both[name] = {**first, **second}
            case list(first), list(second):
                both[name] = [*first, *[each for each in second if each not in first]]
            case _:
                pass
    return both


class PreferEffort(Filter):
    """Thinking has a level, or it is on or off; not both. Notes: `<family>.thinking`."""

    def __init__(self, family: str) -> None:
        self.name = f"{family}.one_level"
        self._rule = f"{family}.thinking"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        thinking = conversation.thinking
        if thinking.mode != "on" or not thinking.effort:
            return conversation, None
        notes.changed(self._rule, "thinking", f"only the level {thinking.effort} is sent, which turns thinking on")
        return structs.replace(conversation, thinking=structs.replace(thinking, mode="default")), None


class SendFields(Filter):
    """Adds fields of the family's own to a request, those of objects by paths such as `options.num_ctx`.

    `always` replaces what the client gave, `absent` does not. Notes: `<family>.<last name of the path>`.
    """

    keeps_replies = True

    def __init__(self, family: str, always: Mapping[str, Json], absent: Mapping[str, Json]) -> None:
        self.name = f"{family}.send_fields"
        self._family = family
        self._fields = {**always, **absent}
        self._always = frozenset(always)

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        extra = conversation.extra if conversation.extra and conversation.extra.family == self._family else None
        kept = {} if extra is None else {**extra.fields}
        before = len(notes)
        for path, value in self._fields.items():
            self._send(path, value, kept, notes)
        if len(notes) == before:
            return conversation, None
        spelling = frozenset[str]() if extra is None else extra.spelling
        return structs.replace(conversation, extra=Extra(self._family, kept, spelling)), None

    def _send(self, path: str, value: Json, kept: dict[str, Json], notes: Notes) -> None:
        outer, _, name = path.rpartition(".")
        holder = {**members(kept.get(outer))} if outer else kept
        given = holder.get(name)
        if given == value or (given is not None and path not in self._always):
            return
        action: Action = "added" if given is None else "changed"
        notes.add(f"{self._family}.{name}", action, path, f"{jsonio.encode_to_text(value)} is sent (a setting)")
        holder[name] = value
        if outer:
            kept[outer] = holder
