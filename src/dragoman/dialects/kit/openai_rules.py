"""Checks that both of OpenAI's APIs share: names, sampling settings, tools, parts of a message.

Each check yields findings: rule, place and detail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from dragoman.dialects.kit.lint import Findings

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Rows that both rule tables begin with.
COMMON_RULES = """
body.shape | documented | error | the body is an object
message.role | documented | error | a message has a role, a string
message.content | documented | error | content is a string or a list of parts
message.part_type | documented | error | a part is an object with a type
call.name | documented | error | a call has a name
call.name_letters | observed | advice | OpenAI takes names of 1 to 64 of a-z A-Z 0-9 _ -
tools.shape | documented | error | tools is an array of objects
tools.name | documented | error | a function has a name
tools.name_letters | observed | advice | OpenAI takes names of 1 to 64 of a-z A-Z 0-9 _ -
tools.duplicate | inferred | advice | no two tools have one name
tools.parameters | documented | error | parameters is a schema
tool_choice.unknown_tool | observed | error | the chosen tool is declared
knob.type | documented | error | a sampling setting is a number
effort.unknown | documented | advice | OpenAI's efforts: none, minimal, low, medium, high, xhigh, max
stream.no_json | observed | error | the data of a frame is a JSON object
"""
EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh", "max")


def is_name(value: Any) -> bool:
    """Return whether the value is a valid name of a function or a schema."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def name_rules(value: Any, area: str, at: str) -> Findings:
    """Check the name of a call (`area` is "call") or of a declared tool ("tools")."""
    if not isinstance(value, str) or not value:
        yield ("call.name" if area == "call" else "tools.name"), at, "it has a name"
    elif not is_name(value):
        rule = "call.name_letters" if area == "call" else "tools.name_letters"
        yield rule, at, "a name has 1 to 64 of a-z A-Z 0-9 _ -"


def sampling_rules(body: dict[str, Any], ranges: Mapping[str, tuple[int, int]]) -> Findings:
    """Check the settings that are numbers within a range."""
    for name, (low, high) in ranges.items():
        value = body.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            yield "knob.type", name, f"{name} is a number"
        elif value is not None and not low <= value <= high:
            yield "knob.range", name, f"{name} is a number from {low} to {high}"


def effort_rules(effort: Any, at: str) -> Findings:
    """Check the reasoning effort."""
    if effort not in EFFORTS:
        yield "effort.unknown", at, "the effort is one of none, minimal, low, medium, high, xhigh, max"


def part_rules(content: list[Any], role: str, at: str, parts: Mapping[str, set[str]]) -> Findings:
    """Check the parts of a message; `parts` has the types that each role accepts. Unknown types are not checked."""
    known = set[str]().union(*parts.values())
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str):
            yield "message.part_type", f"{at}.content[{index}]", "a part has a type"
        elif kind in known - parts[role]:
            yield "message.part", f"{at}.content[{index}]", f"{role} content has no parts of type {kind!r}"


def tool_rules(
    tool: Any, at: str, inside: Callable[[dict[str, Any]], tuple[Any, dict[str, Any], str]], seen: set[Any]
) -> Findings:
    """Check a declared tool. `inside` returns its kind, its definition and the place of that; `seen` collects names."""
    if not isinstance(tool, dict):
        yield "tools.shape", at, "a tool is an object"
        return
    if not isinstance(tool.get("type"), str):
        yield "tools.type", f"{at}.type", "a tool has a type"
    kind, definition, place = inside(tool)
    if kind not in ("function", "custom"):
        return
    name, parameters = definition.get("name"), definition.get("parameters")
    yield from name_rules(name, "tools", f"{at}{place}.name")
    if isinstance(name, str) and name in seen:
        yield "tools.duplicate", f"{at}{place}.name", "no two tools have one name"
    seen.add(str(name))
    if kind == "function" and parameters is not None and not isinstance(parameters, dict):
        yield "tools.parameters", f"{at}{place}.parameters", "parameters is a schema"


def format_rules(form: Any, definition: Any, rules: tuple[str, str, str], at: str, place: str) -> Findings:
    """Check the output format at `at`; the `definition` of an output schema is at `place`.

    `rules` are the names of the rules for the schema's name, the schema, and the format itself.
    """
    match form, definition:
        case ((None | {"type": "text"} | {"type": "json_object"}), _):
            return
        case {"type": "json_schema"}, {"name": str(name)}:
            if not is_name(name):
                yield rules[0], f"{place}.name", "a name has 1 to 64 of a-z A-Z 0-9 _ -"
            if not isinstance(definition.get("schema"), dict):
                yield rules[1], f"{place}.schema", "schema is an object"
        case _:
            yield rules[2], at, "text, json_object, or json_schema with a name"
