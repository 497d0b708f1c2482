"""The published shape of a request, which rules.py checks. Pure data.

botocore checks only types, minima and unknown members; the service checks all of it.
"""

from __future__ import annotations

from typing import Literal

from dragoman.dialects.bedrock.nodes import MIMES
from dragoman.dialects.kit.shapes import AnyValue, Array, Bool, Map, Num, ObjectShape, Str

_TEXT = Str()
_ID = Str(1, 64, "[a-zA-Z0-9_.:-]+")
_TOOL_NAME = Str(1, 64, "[a-zA-Z0-9_-]+")
_S3 = ObjectShape({"uri": Str(1, 1024, "s3://.+"), "bucketOwner": Str(0, None, "[0-9]{12}")}, ("uri",))
_ERROR = ObjectShape({"message": _TEXT})
_CITATIONS = ObjectShape({"enabled": Bool()}, ("enabled",))
_BYTES = Str(1)


def _media(kind: Literal["image", "audio", "video"]) -> ObjectShape:
    source = ObjectShape({"bytes": _BYTES, "s3Location": _S3}, union=True)
    return ObjectShape(
        {"format": Str(words=tuple(MIMES[kind])), "source": source, "error": _ERROR}, ("format", "source")
    )


_DOCUMENT = ObjectShape(
    {
        "format": Str(words=tuple(MIMES["document"])),
        "name": Str(1, 200),
        "source": ObjectShape({"bytes": _BYTES, "s3Location": _S3, "text": _TEXT, "content": AnyValue()}, union=True),
        "context": _TEXT,
        "citations": _CITATIONS,
    },
    ("name", "source"),
)
_CACHE_POINT = ObjectShape({"type": Str(words=("default",)), "ttl": Str(words=("5m", "1h"))}, ("type",))
_RESULT_PART = ObjectShape(
    {
        "json": AnyValue(),
        "text": _TEXT,
        "image": _media("image"),
        "document": _DOCUMENT,
        "video": _media("video"),
        "searchResult": AnyValue(),
    },
    union=True,
)
_BLOCK = ObjectShape(
    {
        "text": _TEXT,
        "image": _media("image"),
        "document": _DOCUMENT,
        "video": _media("video"),
        "audio": _media("audio"),
        "toolUse": ObjectShape(
            {"toolUseId": _ID, "name": _TOOL_NAME, "input": AnyValue(), "type": Str(words=("server_tool_use",))},
            ("toolUseId", "name", "input"),
        ),
        "toolResult": ObjectShape(
            {
                "toolUseId": _ID,
                "content": Array(_RESULT_PART),
                "status": Str(words=("success", "error")),
                "type": _TEXT,
            },
            ("toolUseId", "content"),
        ),
        "reasoningContent": ObjectShape(
            {"reasoningText": ObjectShape({"text": _TEXT, "signature": _TEXT}, ("text",)), "redactedContent": _TEXT},
            union=True,
        ),
        "cachePoint": _CACHE_POINT,
        **dict.fromkeys(
            ("guardContent", "citationsContent", "searchResult", "toolAddition", "toolRemoval"), AnyValue()
        ),
    },
    union=True,
)
_MESSAGE = ObjectShape(
    {"role": Str(words=("user", "assistant", "system")), "content": Array(_BLOCK)}, ("role", "content")
)
_TOOL = ObjectShape(
    {
        "toolSpec": ObjectShape(
            {"name": _TOOL_NAME, "description": Str(1), "inputSchema": AnyValue(), "strict": Bool()},
            ("name", "inputSchema"),
        ),
        "systemTool": ObjectShape({"name": _TOOL_NAME}, ("name",)),
        "cachePoint": _CACHE_POINT,
    },
    union=True,
)
_CHOICE = ObjectShape(
    {"auto": AnyValue(), "any": AnyValue(), "tool": ObjectShape({"name": _TOOL_NAME}, ("name",))}, union=True
)
_METADATA = r"[a-zA-Z0-9\s:_@$#=/+,.-]*"
REQUEST = ObjectShape(
    {
        "messages": Array(_MESSAGE),
        "system": Array(
            ObjectShape({"text": Str(1), "guardContent": AnyValue(), "cachePoint": _CACHE_POINT}, union=True)
        ),
        "inferenceConfig": ObjectShape(
            {
                "maxTokens": Num(1, whole=True),
                "temperature": Num(0, 1),
                "topP": Num(0, 1),
                "stopSequences": Array(Str(1), 0, 2500),
            }
        ),
        "toolConfig": ObjectShape({"tools": Array(_TOOL, 1), "toolChoice": _CHOICE}, ("tools",)),
        "guardrailConfig": AnyValue(),
        "additionalModelRequestFields": AnyValue(),
        "promptVariables": AnyValue(),
        "additionalModelResponseFieldPaths": Array(Str(1, 256), 0, 10),
        "requestMetadata": Map(Str(1, 256, _METADATA), Str(0, 256, _METADATA), 1, 16),
        "performanceConfig": ObjectShape({"latency": Str(words=("standard", "optimized"))}),
        "serviceTier": ObjectShape({"type": Str(words=("priority", "default", "flex", "reserved"))}, ("type",)),
        "outputConfig": ObjectShape({"textFormat": AnyValue(), "effort": Str(0, 16)}),
    }
)
