"""Notes are correct for every pair of dialects: a loss is `dropped`, and added content has a note."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.filters.results import MOVED_RESULT, NO_OUTPUT, NO_RESULT
from dragoman.filters.turns import FILLER
from dragoman.model.filter import Note
from tests.laws.bodies import BODIES, MODEL, MORE_BODIES, strings
from tests.wrong_values import Path, body_paths, with_value, without_value

ALL = [*BODIES.items(), *MORE_BODIES]
every_body = pytest.mark.parametrize(
    ("source", "body"), ALL, ids=[f"{name}-{'rich' if body in BODIES.values() else 'more'}" for name, body in ALL]
)
every_target = pytest.mark.parametrize("target", registry.names())

# Fields whose value says nothing that the rest of the request does not say, by their last steps.
REDUNDANT: tuple[Path, ...] = (
    ("type",),  # readers know a part by its other fields
    ("role",),  # Gemini's default is the user
    ("functionResponse", "id"),  # without it results follow the order of their calls
    ("source", "media_type"),  # of a document that is given as text
    ("document", "format"),
    ("fileData", "mimeType"),  # what is at an address has a type of its own
    ("include",),  # encrypted reasoning is sent, requested or not
    ("chatTriggerType",),
    ("conversationId",),  # made by the client for one service; others do not know conversations
    ("profileArn",),
    ("modelId",),  # the model was given beside the body
    ("model",),
    ("origin",),
    ("json_schema", "name"),  # a label: the schema itself is sent
    ("format", "name"),
    ("json_schema", "strict"),  # where there is no such flag the schema always holds
    ("format", "strict"),
)
# The same, for one target.
CARRIED = {
    ("kiro", ("content", "signature")),  # reasoning is sent as text, which needs no signature
    ("kiro", ("stream",)),  # every response is a stream
    ("kiro", ("thinkingConfig", "includeThoughts")),  # thinking by tags is always shown
}


def translated(body: dict[str, Any], source: str, target: str, **options: Any) -> dragoman.Translated:
    return dragoman.translate_request(body, source=source, target=target, model=MODEL, **options)


def names_of(path: Path) -> Path:
    return tuple(step for step in path if isinstance(step, str))


def shown(path: Path) -> str:
    """The path as notes write it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def value_at(body: Any, path: Path) -> Any:
    """Return the value at a path."""
    for step in path:
        body = body[step]
    return body


def is_redundant(path: Path, target: str, body: dict[str, Any]) -> bool:
    names = names_of(path)
    if names[-1] == "include":
        return "message.output_text.logprobs" not in body["include"]
    if "tool_name" in (holder := value_at(body, path[:-1])) and "tool_call_id" in holder:
        return names[-1] in ("tool_name", "tool_call_id")  # Ollama has both, and either names the call
    if names[-1] == "name" and str(holder.get("type")).startswith("web_search"):
        return True  # the type says what the tool is
    ends = [names[-size:] for size in (1, 2)]
    return any(end in REDUNDANT or (target, end) in CARRIED for end in ends)


def more(notes: list[Note], others: list[Note], action: str) -> Counter[tuple[str, str, str]]:
    """The notes of this action that the others do not have."""

    def count(each: list[Note]) -> Counter[tuple[str, str, str]]:
        return Counter((note.rule, note.at, note.detail) for note in each if note.action == action)

    return count(notes) - count(others)


@every_target
@every_body
def test_what_has_no_effect_on_what_is_sent_is_dropped(source: str, body: dict[str, Any], target: str) -> None:
    """A field that can be removed without changing what the upstream gets was lost: its note says `dropped`."""
    try:
        whole = translated(body, source, target)
    except Unrepresentable:
        return  # the target cannot carry this, and says so
    silent: list[Path] = []
    idle: list[Path] = []  # without effect, with all that is in it
    for path in body_paths(body):
        if is_redundant(path, target, body) or any(path[: len(outer)] == outer for outer in idle):
            continue
        try:
            less = translated(without_value(body, path), source, target)
        except DragomanError:
            continue
        if (less.raw, less.path) != (whole.raw, whole.path):
            continue
        idle.append(path)
        if more(whole.notes, less.notes, "dropped") or more(less.notes, whole.notes, "added"):
            continue
        if not any(note.action == "dropped" and note.at and shown(path).startswith(note.at) for note in whole.notes):
            silent.append(path)
    assert not silent


NOTHINGS: tuple[Any, ...] = (None, "", [], {})
FILLING = frozenset(
    {"turn.empty", "turn.placeholder", "anthropic.messages.question", "tools.missing_result", "tools.orphan_result"}
    | {"kiro.text.missing", "kiro.result.missing", "kiro.result.empty", "bedrock.result.empty", "bedrock.result.apart"}
    | {"bedrock.document.text", "tools.moved_result", "anthropic.reasoning.encrypted"}
)
FILLERS = frozenset(
    {FILLER, NO_RESULT, NO_OUTPUT, MOVED_RESULT, "Continue", "I understand.", "Tool results provided.", "(image)"}
)


def fillers(body: dict[str, Any]) -> set[str]:
    """The texts of a body for something that its client did not send."""
    return {text for text in strings(body) if text.rpartition("\n\n")[2] in FILLERS}


@every_target
@every_body
def test_what_is_made_up_for_an_empty_field_is_noted(source: str, body: dict[str, Any], target: str) -> None:
    """With a field absent, null or empty, no filler reaches the upstream without a note that says so."""
    made_up: list[Path] = []
    for path in body_paths(body):
        for variant in (without_value(body, path), *(with_value(body, path, nothing) for nothing in NOTHINGS)):
            try:
                translation = translated(variant, source, target)
            except DragomanError:
                continue
            if fillers(translation.body) and not any(note.rule in FILLING for note in translation.notes):
                made_up.append(path)
    assert not made_up


@every_target
@every_body
def test_losses_are_refused_exactly_where_a_note_says_dropped(source: str, body: dict[str, Any], target: str) -> None:
    try:
        translation = translated(body, source, target)
    except Unrepresentable:
        return  # the target cannot carry this, and says so
    lost = [note for note in translation.notes if note.action == "dropped"]
    if not lost:
        assert translated(body, source, target, losses="refuse").raw == translation.raw
        return
    with pytest.raises(Unrepresentable) as refused:
        translated(body, source, target, losses="refuse")
    assert refused.value.fault.at == lost[0].at


# --- schemas that were not given

EMPTY = {"type": "object", "properties": {}}
HELLO: dict[str, dict[str, Any]] = {
    "anthropic": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    "openai": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "bedrock": {"messages": [{"role": "user", "content": [{"text": "hi"}]}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}


def offering(source: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A request with one tool; `fields` holds its schema under the key `schema`, or nothing."""
    schema = fields.get("schema")

    def named(field: str) -> dict[str, Any]:
        return {field: schema} if "schema" in fields else {}

    tool: dict[str, dict[str, Any]] = {
        "anthropic": {"tools": [{"name": "go", **named("input_schema")}]},
        "openai": {"tools": [{"type": "function", "function": {"name": "go", **named("parameters")}}]},
        "responses": {"tools": [{"type": "function", "name": "go", **named("parameters")}]},
        "bedrock": {"toolConfig": {"tools": [{"toolSpec": {"name": "go", **named("inputSchema")}}]}},
        "gemini": {"tools": [{"functionDeclarations": [{"name": "go", **named("parametersJsonSchema")}]}]},
    }
    return {**HELLO[source], **tool[source]}


@pytest.mark.parametrize("fields", [{}, {"schema": None}], ids=["absent", "null"])
@every_target
@pytest.mark.parametrize("source", HELLO)
def test_a_schema_that_was_not_given_is_noted_where_one_is_sent(
    source: str, target: str, fields: dict[str, Any]
) -> None:
    """Null and missing schemas are replaced with a note."""
    translation = translated(offering(source, fields), source, target)
    added = [note for note in translation.notes if note.rule == "tools.schema"]
    sent = '"properties":{}' in translation.raw.decode().replace(" ", "")
    assert [note.action for note in added] == ["added"] * sent
    assert sent == (target not in ("openai", "gemini"))


@every_target
@pytest.mark.parametrize("source", HELLO)
def test_a_schema_that_was_given_has_no_such_note(source: str, target: str) -> None:
    schema = {"json": EMPTY} if source == "bedrock" else EMPTY
    translation = translated(offering(source, {"schema": schema}), source, target)
    assert not [note for note in translation.notes if note.rule == "tools.schema"]


# --- no question


NO_QUESTION: list[tuple[str, dict[str, Any]]] = [
    ("anthropic", {"max_tokens": 9, "messages": []}),
    ("anthropic", {"max_tokens": 9, "messages": [], "system": "Be brief."}),
    ("openai", {"messages": []}),
    ("responses", {"input": []}),
    ("bedrock", {"messages": []}),
    ("gemini", {"contents": []}),
]


@every_target
@pytest.mark.parametrize(("source", "body"), NO_QUESTION)
def test_a_question_that_was_made_up_is_noted_at_the_messages(source: str, body: dict[str, Any], target: str) -> None:
    """`messages: []` became `Continue`."""
    translation = translated(body, source, target)
    added = [note for note in translation.notes if note.action == "added" and note.at == "messages"]
    assert bool(added) == (
        "Continue" in strings(translation.body) or "Be brief.\n\nContinue" in strings(translation.body)
    )


# --- single actions


@pytest.mark.parametrize("source", [name for name in HELLO if name != "anthropic"])
def test_a_limit_that_kiro_does_not_get_is_dropped(source: str) -> None:
    limits: dict[str, dict[str, Any]] = {
        "openai": {"max_tokens": 9},
        "responses": {"max_output_tokens": 99},
        "bedrock": {"inferenceConfig": {"maxTokens": 9}},
        "gemini": {"generationConfig": {"maxOutputTokens": 9}},
    }
    limit = limits[source]
    translation = translated({**HELLO[source], **limit}, source, "kiro")
    assert [note.action for note in translation.notes if note.rule == "kiro.max_tokens"] == ["dropped"]
    with pytest.raises(Unrepresentable, match=r"kiro\.max_tokens"):
        translated({**HELLO[source], **limit}, source, "kiro", losses="refuse")


@pytest.mark.parametrize(
    ("schema", "action"),
    [
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}}, "dropped"),
        ({"type": "object", "properties": {}, "additionalProperties": False}, "dropped"),
        ({"type": "object", "properties": {}, "$schema": "http://json-schema.org/draft-07/schema#"}, "changed"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "null"}}}, "changed"),
    ],
)
def test_a_constraint_that_kiro_does_not_get_is_dropped(schema: dict[str, Any], action: str) -> None:
    translation = translated(offering("anthropic", {"schema": schema}), "anthropic", "kiro")
    assert [note.action for note in translation.notes if note.rule == "kiro.schema.cleaned"] == [action]


@pytest.mark.parametrize("target", ["anthropic", "bedrock"])
def test_a_schema_that_is_replaced_is_dropped(target: str) -> None:
    for schema, action in (({"type": "array", "items": {}}, "dropped"), ({"properties": {}}, "changed")):
        translation = translated(offering("openai", {"schema": schema}), "openai", target)
        assert [note.action for note in translation.notes if note.rule == f"{target}.tools.schema"] == [action]


def test_a_forced_choice_that_is_lost_is_dropped() -> None:
    body = {**HELLO["anthropic"], "tools": [{"type": "web_search_20250305", "name": "web_search"}]}
    body["tool_choice"] = {"type": "tool", "name": "web_search"}
    for target in ("openai", "gemini", "bedrock", "kiro"):
        notes = translated(body, "anthropic", target).notes
        assert [note.action for note in notes if note.rule in ("tools.choice", "kiro.tools.choice")] == ["dropped"]


def test_thinking_that_cannot_be_asked_for_is_dropped() -> None:
    body = {**HELLO["anthropic"], "max_tokens": 4000, "thinking": {"type": "disabled"}}
    translation = dragoman.translate_request(
        body, source="anthropic", target="bedrock", model="openai.gpt-oss-120b-1:0"
    )
    assert [note.action for note in translation.notes if note.rule == "thinking.fitted"] == ["dropped"]
    forced = {
        **body,
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        **offering("anthropic", {"schema": EMPTY}),
    }
    forced |= {"max_tokens": 4000, "tool_choice": {"type": "any"}}
    translation = translated(forced, "anthropic", "anthropic")
    assert [note.action for note in translation.notes if note.rule == "thinking.off"] == ["dropped"]
