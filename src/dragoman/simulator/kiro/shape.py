"""The request's shape (facts 1.4) as data, and the walk that finds where a document differs from it.

What a numbered rule judges with its own grade or its own words is `ANY` here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.wire.fields import describe
from dragoman.wire.jsonio import Json


class Whatever(Struct, frozen=True):
    """Whatever is there, null included."""


class Text(Struct, frozen=True):
    words: frozenset[str] = frozenset()
    pattern: str = ""
    limit: int = 0


class Flag(Struct, frozen=True):
    pass


class Many(Struct, frozen=True):
    of: Shape


class Record(Struct, frozen=True):
    """An object. Unknown members are ignored, as the service does below the top level."""

    required: Mapping[str, Shape] = {}
    optional: Mapping[str, Shape] = {}


class OneOf(Struct, frozen=True):
    """A Smithy union: an object with exactly one member."""

    members: Mapping[str, Shape]


Shape: TypeAlias = Whatever | Text | Flag | Many | Record | OneOf


class Flaw(Struct, frozen=True):
    kind: Literal["wrong", "null"]
    at: str
    detail: str


ANY = Whatever()
TEXT = Text()
OBJECT = Record()

ORIGINS = frozenset(
    [
        "AI_EDITOR",
        "KIRO_CLI",
        "CLI",
        "CHATBOT",
        "CONSOLE",
        "DOCUMENTATION",
        "GITLAB",
        "IDE",
        "INLINE_CHAT",
        "MARKETING",
        "MD",
        "MD_CE",
        "MD_IDE",
        "MOBILE",
        "OPENSEARCH_DASHBOARD",
        "Q_DEV_BEXT",
        "SAGE_MAKER",
        "SERVICE_INTERNAL",
        "SM_AI_STUDIO_IDE",
        "UNIFIED_SEARCH",
        "UNKNOWN",
    ]
)

_CACHE_POINT = Record({"type": Text(frozenset({"default"}))})
_TOOL = OneOf({"toolSpecification": Record({"name": ANY}, {"description": ANY, "inputSchema": ANY}), "cachePoint": ANY})
_RESULT = Record({"toolUseId": ANY}, {"content": Many(OneOf({"text": TEXT, "json": ANY})), "status": ANY})
_CONTEXT = Record(
    optional={
        "tools": Many(_TOOL),
        "toolResults": Many(_RESULT),
        **dict.fromkeys(
            ("envState", "editorState", "shellState", "gitState", "diagnostic", "userSettings", "appStudioContext"),
            OBJECT,
        ),
        "additionalContext": Many(ANY),
        "consoleState": OBJECT,
    }
)
_USER = Record(
    {"content": TEXT},
    {
        "modelId": ANY,
        "origin": Text(ORIGINS),
        "userIntent": TEXT,
        "images": Many(Record({"format": ANY, "source": ANY})),
        "cachePoint": _CACHE_POINT,
        "clientCacheConfig": Record({}, {"useClientCachingOnly": Flag()}),
        "userInputMessageContext": _CONTEXT,
    },
)
_ASSISTANT = Record(
    {"content": TEXT},
    {
        "messageId": Text(limit=128),
        "toolUses": Many(Record({"toolUseId": ANY, "name": ANY})),
        "reasoningContent": ANY,
        "supplementaryWebLinks": Many(OBJECT),
        "references": Many(OBJECT),
        "followupPrompt": OBJECT,
        "cachePoint": _CACHE_POINT,
    },
)
_MESSAGE = OneOf({"userInputMessage": _USER, "assistantResponseMessage": _ASSISTANT})
_UUID = Text(pattern=r"[0-9a-fA-F-]{36}")
REQUEST = Record(
    {
        "conversationState": Record(
            {"chatTriggerType": ANY, "currentMessage": _MESSAGE},
            {
                "conversationId": ANY,
                "workspaceId": _UUID,
                "customizationArn": Text(limit=1224),
                "agentContinuationId": TEXT,
                "agentTaskType": Text(frozenset({"vibe", "spectask"})),
                "history": Many(_MESSAGE),
            },
        )
    },
    {"profileArn": ANY, "agentMode": TEXT, "additionalModelRequestFields": OBJECT},
)


def flaws(value: Json, shape: Shape, at: str = "") -> Iterator[Flaw]:
    """Tell every difference, in document order."""
    match shape:
        case Whatever():
            return
        case Text():
            yield from _text_flaws(value, shape, at)
        case Flag():
            if not isinstance(value, bool):
                yield _wrong(at, "a boolean", value)
        case Many(of):
            if not isinstance(value, list):
                yield _wrong(at, "an array", value)
                return
            for index, item in enumerate(value):
                yield from flaws(item, of, f"{at}[{index}]")
        case Record() | OneOf():
            if not isinstance(value, dict):
                yield _wrong(at, "an object", value)
                return
            yield from _record_flaws(value, shape, at) if isinstance(shape, Record) else _union_flaws(value, shape, at)


def _text_flaws(value: Json, shape: Text, at: str) -> Iterator[Flaw]:
    if not isinstance(value, str):
        yield _wrong(at, "a string", value)
    elif shape.words and value not in shape.words:
        yield Flaw("wrong", at, "not one of the words the service knows")
    elif shape.pattern and not re.fullmatch(shape.pattern, value):
        yield Flaw("wrong", at, f"does not match {shape.pattern}")
    elif shape.limit and len(value) > shape.limit:
        yield Flaw("wrong", at, f"longer than {shape.limit}")


def _record_flaws(value: dict[str, Json], shape: Record, at: str) -> Iterator[Flaw]:
    for name, inner in shape.required.items():
        if name not in value:
            yield Flaw("wrong", _join(at, name), "is missing")
        elif value[name] is None and not isinstance(inner, Whatever):
            yield Flaw("wrong", _join(at, name), "is null, and required")
        else:
            yield from flaws(value[name], inner, _join(at, name))
    for name, inner in shape.optional.items():
        if name not in value:
            continue
        if value[name] is None:
            yield Flaw("null", _join(at, name), "is null; an optional member is left out instead")
        else:
            yield from flaws(value[name], inner, _join(at, name))


def _union_flaws(value: dict[str, Json], shape: OneOf, at: str) -> Iterator[Flaw]:
    known = [name for name in shape.members if value.get(name) is not None]
    yield from (
        Flaw("null", _join(at, name), "is null") for name in shape.members if name in value and value[name] is None
    )
    if len(known) != 1:
        yield Flaw("wrong", at, f"must have exactly one of {', '.join(shape.members)}, has {len(known)}")
    for name in known:
        yield from flaws(value[name], shape.members[name], _join(at, name))


def _wrong(at: str, wanted: str, value: Json) -> Flaw:
    return Flaw("wrong", at, f"expected {wanted}, got {describe(value)}")


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
