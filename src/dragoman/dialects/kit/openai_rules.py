"""Checks that both of OpenAI's APIs share: names, sampling settings, tools, parts of a message.

Each check yields breaches: rule, place and detail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from dragoman.dialects.kit.lint import BreachTuples

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Rows that both rule tables begin with.
COMMON_RULES = """
body.shape | documented | error | the body must be an object
message.role | documented | error | a message must have a role, which is a string
message.content | documented | error | content must be a string or a list of parts
message.part_type | documented | error | a part must be an object with a type
call.name | documented | error | a tool call must have a name
call.name_letters | observed | advice | OpenAI accepts names of 1 to 64 letters, digits, _ and -
tools.shape | documented | error | tools must be an array of objects
tools.name | documented | error | a function must have a name
tools.name_letters | observed | advice | OpenAI accepts names of 1 to 64 letters, digits, _ and -
tools.duplicate | inferred | advice | each tool must have a different name
tools.parameters | documented | error | parameters must be a JSON schema, which is an object
tool_choice.unknown_tool | observed | error | the chosen tool must be declared in tools
knob.type | documented | error | a sampling setting must be a number
effort.unknown | documented | advice | OpenAI accepts the efforts none, minimal, low, medium, high, xhigh, max
stream.no_json | observed | error | the data of a frame must be a JSON object
"""
EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")


def is_name(value: Any) -> bool:
    """Return whether the value is a valid name of a function or a schema."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def name_rules(value: Any, area: str, at: str) -> BreachTuples:
    """Check the name of a call (`area` is "call") or of a declared tool ("tools")."""
    if not isinstance(value, str) or not value:
        rule, owner = ("call.name", "a tool call") if area == "call" else ("tools.name", "a function")
        yield rule, at, f"{owner} must have a name"
    elif not is_name(value):
        rule = "call.name_letters" if area == "call" else "tools.name_letters"
        yield rule, at, "a name must have 1 to 64 letters, digits, _ and -"


def sampling_rules(body: dict[str, Any], ranges: Mapping[str, tuple[int, int]]) -> BreachTuples:
    """Check the settings that are numbers within a range."""
    for name, (low, high) in ranges.items():
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            yield "knob.type", name, f"{name} must be a number"
        elif value is not None and not low <= value <= high:
            yield "knob.range", name, f"{name} must be a number from {low} to {high}"


def effort_rules(effort: Any, at: str) -> BreachTuples:
    """Check the reasoning effort."""
    if effort not in EFFORTS:
        yield "effort.unknown", at, "the effort must be one of none, minimal, low, medium, high, xhigh, max"


def part_rules(content: list[Any], role: str, at: str, parts: Mapping[str, set[str]]) -> BreachTuples:
    """Check the parts of a message; `parts` has the types that each role accepts. Unknown types are not checked."""
    known = set[str]().union(*parts.values())
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            yield "message.part_type", f"{at}.content[{index}]", "a part must have a type"
        elif kind in known - parts[role]:
            yield "message.part", f"{at}.content[{index}]", f"a {role} message must not have parts of type {kind!r}"


def tool_rules(
    tool: Any, at: str, inside: Callable[[dict[str, Any]], tuple[Any, dict[str, Any], str]], seen: set[Any]
) -> BreachTuples:
    """Yield the breaches of one declared tool.

    `inside(tool)` returns its kind, its definition, and where in the payload the definition is. `seen` holds the names
    so far, to find duplicates.
    """
    if not isinstance(tool, dict):
        yield "tools.shape", at, "a tool must be an object"
        return
    if not isinstance(tool.get("type"), str):
        yield "tools.type", f"{at}.type", "a tool must have a type"
    kind, definition, place = inside(tool)
    if kind not in ("function", "custom"):
        return
    name, parameters = definition.get("name"), definition.get("parameters")
    yield from name_rules(name, "tools", f"{at}{place}.name")
    if isinstance(name, str) and name in seen:
        yield (
            "tools.duplicate",
            f"{at}{place}.name",
            f"two tools have the name {name!r}; each must have a different name",
        )
    seen.add(str(name))
    if kind == "function" and parameters is not None and not isinstance(parameters, dict):
        yield "tools.parameters", f"{at}{place}.parameters", "parameters must be a JSON schema, which is an object"


def format_rules(form: Any, definition: Any, rules: tuple[str, str, str], at: str, place: str) -> BreachTuples:
    """Check the output format at `at`; the `definition` of an output schema is at `place`.

    `rules` are the names of the rules for the schema's name, the schema, and the format itself.
    """
    match form, definition:
        case ((None | {"type": "text"} | {"type": "json_object"}), _):
            return
        case {"type": "json_schema"}, {"name": str(name)}:
            if not is_name(name):
                yield rules[0], f"{place}.name", "a name must have 1 to 64 letters, digits, _ and -"
            if not isinstance(definition.get("schema"), dict):
                yield rules[1], f"{place}.schema", "schema must be an object"
        case _:
            yield rules[2], at, f"{at} must have the type text, json_object, or json_schema with a name"
