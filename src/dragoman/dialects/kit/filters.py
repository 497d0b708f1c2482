"""Filters that several dialects add to their quirks: flat messages, simple schemas, thinking effort. Pure.

They serve services with flat messages (one text each), a subset of JSON Schema, or without a tool choice. Each class
takes the family, which begins the names of its rules.
"""

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

# --- JSON Schema without references: each `$ref` is replaced by its target


MAX_ADDED_BYTES = 256 * 1024  # bytes that the references of all tools of a request may add
_DEEPEST = 64  # nesting of references
_DEFINITIONS = frozenset({"$defs", "definitions"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})  # their keys are names, not keywords
_VALUES = frozenset({"enum", "const", "default", "examples", "required"})  # their values are not schemas


def has_references(schema: Json) -> bool:
    """Return whether a schema contains a `$ref`."""
    if isinstance(schema, list):
        return any(map(has_references, schema))
    if not isinstance(schema, dict):
        return False
    inner = [value for name, value in schema.items() if name not in _VALUES]
    return isinstance(schema.get("$ref"), str) or any(map(has_references, inner))


class SchemaReferences:
    """Replaces references by their targets, in all schemas of one request.

    Targets may contain references, so a short schema can become a very long one. All references together add at most
    `most` bytes. A reference beyond that, or inside its own target, is replaced by the schema `{}`: any value.
    """

    def __init__(self, most: int = MAX_ADDED_BYTES) -> None:
        self._left = most
        self._root: dict[str, Json] = {}
        self._targets: dict[str, tuple[Json, int]] = {}  # target and its size, by reference
        self.is_cut = False  # a reference of the last schema was replaced by `{}`

    def inline(self, schema: Mapping[str, Json]) -> dict[str, Json]:
        """Return the schema without references and definitions."""
        self._root, self._targets, self.is_cut = {**schema}, {}, False
        return self._schema(self._root, ())

    def _schema(self, node: dict[str, Json], seen: tuple[str, ...]) -> dict[str, Json]:
        """Return a schema or a part of one without references; `seen` are the references that led to it."""
        reference = node.get("$ref")
        target = self._target(reference, seen) if isinstance(reference, str) else {}
        own = {
            name: self._keyword(name, value, seen)
            for name, value in node.items()
            if name not in _DEFINITIONS and (name != "$ref" or not isinstance(reference, str))
        }
        return {**target, **own}  # Keywords next to a reference override those of its target.

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
            node: Json = self._root if reference.startswith("#") else None
            for name in reference.removeprefix("#").split("/")[1:]:
                node = node.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
            self._targets[reference] = node, json_size(node)
        target, size = self._targets[reference]
        if reference in seen or len(seen) >= _DEEPEST or not isinstance(target, dict) or size > self._left:
            self.is_cut = True
            return {}
        self._left -= size
        return self._schema(target, (*seen, reference))


_ORDER: tuple[type[Block], ...] = (ToolResult, Reasoning, Text, Media, Opaque, ToolCall)


class FlattenMessages(Filter):
    """Gives messages the order reasoning, text, media, calls, and tool results the order text, media.

    Several texts become one, and so do several reasoning blocks. Media gets the type that its first bytes show, since
    requests have no field for a type. Notes: `<family>.message`, `<family>.media_type`.
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
        detail = "its texts are joined; its blocks are sorted for the service: thinking, text, media, calls"
        blocks = self._flat(message.blocks, message.at, detail, notes)
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block, notes: Notes) -> Block:
        if isinstance(block, ToolResult):
            detail = "the texts of the tool result are joined and come before its media"
            content = self._flat(block.content, block.at, detail, notes)
            return block if content == block.content else structs.replace(block, content=content)
        if not isinstance(block, Media):
            return block
        media = untyped_media(block.data, block.at)
        if (media.kind, media.mime) != (block.kind, block.mime):
            detected = media.mime or "unknown"
            detail = f"the service detects the media type from the data; the detected type is {detected}"
            notes.changed(f"{self._family}.media_type", block.at.path, detail)
            block = structs.replace(block, kind=media.kind, mime=media.mime)
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
    """Removes all tools from a request that forbids calls, for a service without a tool choice.

    Notes: `<family>.no_calls`.
    """

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
        detail = "the request forbids calls, and the service has no field for that: the tools are removed"
        notes.changed(self._rule, at, detail)
        return structs.replace(conversation, tools=(), tool_choice=ToolChoice()), None


class SimplifySchemas(Filter):
    """Reduces tool schemas to the keywords that a service reads.

    `root` are the keywords of a tool's parameters, `keywords` those of a property. References are replaced by their
    targets, `const` becomes `enum`, `oneOf` becomes `anyOf`, and the branches of `allOf` are merged.
    Notes: `<family>.schema`.
    """

    def __init__(self, family: str, root: Iterable[str], keywords: Iterable[str]) -> None:
        self.name = f"{family}.plain_schemas"
        self._rule = f"{family}.schema"
        self._root, self._keywords = frozenset(root), frozenset(keywords)

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
        whole = _normalized(references.inline(tool.schema), lost)
        if "anyOf" in whole and "anyOf" not in self._root:
            whole = _join_branches(whole, lost)
        schema = {**self._node(whole, self._root, lost), "type": "object"}
        schema.setdefault("properties", {})
        if schema == tool.schema:
            return tool
        dropped = sorted(lost - _ANNOTATIONS) + (["$ref (as any value)"] if references.is_cut else [])
        without = f" (without {', '.join(dropped)})" if dropped else ""
        detail = f"the schema of {tool.name} is simplified{without}"
        notes.add(self._rule, "dropped" if dropped else "changed", tool.at.path, detail)
        return structs.replace(tool, schema=schema)

    def _node(self, node: dict[str, Json], keywords: frozenset[str], lost: set[str]) -> dict[str, Json]:
        lost |= node.keys() - keywords
        return {name: self._value(name, value, lost) for name, value in node.items() if name in keywords}

    def _value(self, name: str, value: Json, lost: set[str]) -> Json:
        if name == "properties":
            return {key: self._subschema(each, lost) for key, each in members(value).items()}
        if name == "anyOf":
            return [self._subschema(each, lost) for each in items(value)]
        if name == "items":
            return self._subschema(value, lost)
        return [each for each in items(value) if isinstance(each, str)] if name == "required" else value

    def _subschema(self, value: Json, lost: set[str]) -> Json:
        return self._node(_normalized(value, lost), self._keywords, lost) if isinstance(value, dict) else {}


# Keywords that constrain nothing, or that `_normalized` replaces by others.
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description", "examples", "deprecated"}
    | {"const", "oneOf", "allOf"}
)


def _normalized(node: Mapping[str, Json], lost: set[str]) -> dict[str, Json]:
    """Return the schema with `allOf` merged into it, `oneOf` as `anyOf` and `const` as `enum`."""
    result = {**node}
    for branch in items(result.pop("allOf", None)):
        if isinstance(branch, dict):
            result = _merged(_normalized(branch, lost), result)
    if "const" in result:
        result.setdefault("enum", [result.pop("const")])
    if "oneOf" in result and "anyOf" not in result:
        result["anyOf"] = result.pop("oneOf")
    return result


def _join_branches(node: dict[str, Json], lost: set[str]) -> dict[str, Json]:
    """Return a union as one object with the properties of all branches, without what single branches require."""
    branches = [_normalized(each, lost) for each in items(node.get("anyOf")) if isinstance(each, dict)]
    properties = members(node.get("properties"))
    for branch in branches:
        properties = {**members(branch.get("properties")), **properties}
    return {**node, "properties": properties}


def _merged(one: dict[str, Json], other: dict[str, Json]) -> dict[str, Json]:
    """Return one schema with the constraints of both; `other` wins where both have a keyword."""
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
    """Sends only the level of thinking where a request has a level and the switch: the service takes one of them.

    Notes: `<family>.thinking`.
    """

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
    """Adds fields of the family to a request. A path such as `options.num_ctx` adds a field of an object.

    `always` replaces the client's value, `absent` does not. Notes: `<family>.<last name of the path>`.
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
        fields = {} if extra is None else {**extra.fields}
        before = len(notes)
        for path, value in self._fields.items():
            self._send(path, value, fields, notes)
        if len(notes) == before:
            return conversation, None
        spelling = frozenset[str]() if extra is None else extra.spelling
        return structs.replace(conversation, extra=Extra(self._family, fields, spelling)), None

    def _send(self, path: str, value: Json, fields: dict[str, Json], notes: Notes) -> None:
        outer, _, name = path.rpartition(".")
        parent = {**members(fields.get(outer))} if outer else fields
        current = parent.get(name)
        if current == value or (current is not None and path not in self._always):
            return
        action: Action = "added" if current is None else "changed"
        detail = f"{jsonio.encode_to_text(value)} is sent, as configured"
        notes.add(f"{self._family}.{name}", action, path, detail)
        parent[name] = value
        if outer:
            fields[outer] = parent
