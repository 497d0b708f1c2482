"""The published shape of a request. botocore checks types, minima and unknown members only; the service checks all."""

from __future__ import annotations

from typing import Literal

from dragoman.dialects.bedrock.nodes import MIMES
from dragoman.dialects.kit.shapes import Flag, Free, Map, Members, Num, Seq, Str

_TEXT = Str()
_ID = Str(1, 64, "[a-zA-Z0-9_.:-]+")
_TOOL_NAME = Str(1, 64, "[a-zA-Z0-9_-]+")
_S3 = Members({"uri": Str(1, 1024, "s3://.+"), "bucketOwner": Str(0, None, "[0-9]{12}")}, ("uri",))
_ERROR = Members({"message": _TEXT})
_CITATIONS = Members({"enabled": Flag()}, ("enabled",))
_BYTES = Str(1)


def _media(kind: Literal["image", "audio", "video"]) -> Members:
    source = Members({"bytes": _BYTES, "s3Location": _S3}, union=True)
    return Members({"format": Str(words=tuple(MIMES[kind])), "source": source, "error": _ERROR}, ("format", "source"))


_DOCUMENT = Members(
    {
        "format": Str(words=tuple(MIMES["document"])),
        "name": Str(1, 200),
        "source": Members({"bytes": _BYTES, "s3Location": _S3, "text": _TEXT, "content": Free()}, union=True),
        "context": _TEXT,
        "citations": _CITATIONS,
    },
    ("name", "source"),
)
_CACHE_POINT = Members({"type": Str(words=("default",)), "ttl": Str(words=("5m", "1h"))}, ("type",))
_RESULT_PART = Members(
    {
        "json": Free(),
        "text": _TEXT,
        "image": _media("image"),
        "document": _DOCUMENT,
        "video": _media("video"),
        "searchResult": Free(),
    },
    union=True,
)
_BLOCK = Members(
    {
        "text": _TEXT,
        "image": _media("image"),
        "document": _DOCUMENT,
        "video": _media("video"),
        "audio": _media("audio"),
        "toolUse": Members(
            {"toolUseId": _ID, "name": _TOOL_NAME, "input": Free(), "type": Str(words=("server_tool_use",))},
            ("toolUseId", "name", "input"),
        ),
        "toolResult": Members(
            {"toolUseId": _ID, "content": Seq(_RESULT_PART), "status": Str(words=("success", "error")), "type": _TEXT},
            ("toolUseId", "content"),
        ),
        "reasoningContent": Members(
            {"reasoningText": Members({"text": _TEXT, "signature": _TEXT}, ("text",)), "redactedContent": _TEXT},
            union=True,
        ),
        "cachePoint": _CACHE_POINT,
        **dict.fromkeys(("guardContent", "citationsContent", "searchResult", "toolAddition", "toolRemoval"), Free()),
    },
    union=True,
)
_MESSAGE = Members({"role": Str(words=("user", "assistant", "system")), "content": Seq(_BLOCK)}, ("role", "content"))
_TOOL = Members(
    {
        "toolSpec": Members(
            {"name": _TOOL_NAME, "description": Str(1), "inputSchema": Free(), "strict": Flag()},
            ("name", "inputSchema"),
        ),
        "systemTool": Members({"name": _TOOL_NAME}, ("name",)),
        "cachePoint": _CACHE_POINT,
    },
    union=True,
)
_CHOICE = Members({"auto": Free(), "any": Free(), "tool": Members({"name": _TOOL_NAME}, ("name",))}, union=True)
_METADATA = r"[a-zA-Z0-9\s:_@$#=/+,.-]*"
REQUEST = Members(
    {
        "messages": Seq(_MESSAGE),
        "system": Seq(Members({"text": Str(1), "guardContent": Free(), "cachePoint": _CACHE_POINT}, union=True)),
        "inferenceConfig": Members(
            {
                "maxTokens": Num(1, whole=True),
                "temperature": Num(0, 1),
                "topP": Num(0, 1),
                "stopSequences": Seq(Str(1), 0, 2500),
            }
        ),
        "toolConfig": Members({"tools": Seq(_TOOL, 1), "toolChoice": _CHOICE}, ("tools",)),
        "guardrailConfig": Free(),
        "additionalModelRequestFields": Free(),
        "promptVariables": Free(),
        "additionalModelResponseFieldPaths": Seq(Str(1, 256), 0, 10),
        "requestMetadata": Map(Str(1, 256, _METADATA), Str(0, 256, _METADATA), 1, 16),
        "performanceConfig": Members({"latency": Str(words=("standard", "optimized"))}),
        "serviceTier": Members({"type": Str(words=("priority", "default", "flex", "reserved"))}, ("type",)),
        "outputConfig": Members({"textFormat": Free(), "effort": Str(0, 16)}),
    }
)
