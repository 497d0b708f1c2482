"""The request's shape (facts 1.4) as data. What a numbered rule judges with its own grade or words is `_ANY` here."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.dialects.kit.shapes import Flag, Free, Members, Seq, Shape, Str


def _record(required: Mapping[str, Shape] | None = None, optional: Mapping[str, Shape] | None = None) -> Members:
    return Members({**(required or {}), **(optional or {})}, tuple(required or ()), lenient=True)


def _one_of(members: Mapping[str, Shape]) -> Members:
    """A Smithy union: an object with exactly one member."""
    return Members(members, union=True, lenient=True)


_ANY = Free()
_TEXT = Str()
_OBJECT = _record()
_ORIGINS = (
    "AI_EDITOR KIRO_CLI CLI CHATBOT CONSOLE DOCUMENTATION GITLAB IDE INLINE_CHAT MARKETING MD MD_CE "
    "MD_IDE MOBILE OPENSEARCH_DASHBOARD Q_DEV_BEXT SAGE_MAKER SERVICE_INTERNAL SM_AI_STUDIO_IDE UNIFIED_SEARCH UNKNOWN"
)

_CACHE_POINT = _record({"type": Str(words=("default",))})
_TOOL = _one_of(
    {"toolSpecification": _record({"name": _ANY}, {"description": _ANY, "inputSchema": _ANY}), "cachePoint": _ANY}
)
_RESULT = _record({"toolUseId": _ANY}, {"content": Seq(_one_of({"text": _TEXT, "json": _ANY})), "status": _ANY})
_CONTEXT = _record(
    optional={
        "tools": Seq(_TOOL),
        "toolResults": Seq(_RESULT),
        **dict.fromkeys(
            ("envState", "editorState", "shellState", "gitState", "diagnostic", "userSettings", "appStudioContext"),
            _OBJECT,
        ),
        "additionalContext": Seq(_ANY),
        "consoleState": _OBJECT,
    }
)
_USER = _record(
    {"content": _TEXT},
    {
        "modelId": _ANY,
        "origin": Str(words=tuple(_ORIGINS.split())),
        "userIntent": _TEXT,
        "images": Seq(_record({"format": _ANY, "source": _ANY})),
        "cachePoint": _CACHE_POINT,
        "clientCacheConfig": _record({}, {"useClientCachingOnly": Flag()}),
        "userInputMessageContext": _CONTEXT,
    },
)
_ASSISTANT = _record(
    {"content": _TEXT},
    {
        "messageId": Str(most=128),
        "toolUses": Seq(_record({"toolUseId": _ANY, "name": _ANY})),
        "reasoningContent": _ANY,
        "supplementaryWebLinks": Seq(_OBJECT),
        "references": Seq(_OBJECT),
        "followupPrompt": _OBJECT,
        "cachePoint": _CACHE_POINT,
    },
)
_MESSAGE = _one_of({"userInputMessage": _USER, "assistantResponseMessage": _ASSISTANT})
_UUID = Str(36, 36, "[0-9a-fA-F-]+")
REQUEST = _record(
    {
        "conversationState": _record(
            {"chatTriggerType": _ANY, "currentMessage": _MESSAGE},
            {
                "conversationId": _ANY,
                "workspaceId": _UUID,
                "customizationArn": Str(most=1224),
                "agentContinuationId": _TEXT,
                "agentTaskType": Str(words=("vibe", "spectask")),
                "history": Seq(_MESSAGE),
            },
        )
    },
    {"profileArn": _ANY, "agentMode": _TEXT, "additionalModelRequestFields": _OBJECT},
)
