"""The published shape of a request, as a table: members, what is required, limits, patterns, unions of one member.

botocore checks types, minima and unknown members only; the service checks all of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from msgspec import Struct

from dragoman.dialects.bedrock.media import MIMES
from dragoman.dialects.bedrock.rule_table import RULES
from dragoman.dialects.rulebook import Breach
from dragoman.wire.jsonio import Json

_DISPLAYED = 40


def breach(rule: str, at: str, detail: str) -> Breach:
    return RULES.breach(rule, at, detail)


class Str(Struct, frozen=True):
    least: int = 0
    most: int | None = None
    pattern: str = ""
    words: tuple[str, ...] = ()


class Num(Struct, frozen=True):
    least: float = 0
    most: float | None = None
    whole: bool = False


class Flag(Struct, frozen=True):
    pass


class Free(Struct, frozen=True):
    """Any JSON; another rule looks at it, or none."""


class Seq(Struct, frozen=True):
    of: Shape
    least: int = 0
    most: int | None = None


class Map(Struct, frozen=True):
    """An object with names of the sender's own."""

    key: Str
    of: Shape
    least: int = 0
    most: int | None = None


class Members(Struct, frozen=True):
    """An object. A union has exactly one of its members; members that we do not know may be newer than this table."""

    members: Mapping[str, Shape]
    required: tuple[str, ...] = ()
    union: bool = False


Shape: TypeAlias = Str | Num | Flag | Free | Seq | Map | Members

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


def shape_breaches(value: Json, shape: Shape, at: str) -> Iterator[Breach]:
    """What a value breaks of its published shape."""
    match shape:
        case Members():
            yield from _members(value, shape, at)
        case Seq(of, least, most):
            if not isinstance(value, list):
                yield breach("type", at, "it must be an array")
                return
            yield from _length(len(value), least, most, at)
            for index, item in enumerate(value):
                yield from shape_breaches(item, of, f"{at}[{index}]")
        case Map():
            yield from _map(value, shape, at)
        case Str():
            yield from _string(value, shape, at)
        case Num():
            yield from _number(value, shape, at)
        case Flag():
            if not isinstance(value, bool):
                yield breach("type", at, "it must be a boolean")
        case Free():
            pass


def _members(value: Json, shape: Members, at: str) -> Iterator[Breach]:
    if not isinstance(value, dict):
        yield breach("type", at, "it must be an object")
        return
    known = [name for name in value if name in shape.members]
    if shape.union and (len(value) != 1):
        names = ", ".join(shape.members)
        yield breach("union", at, f"it must have exactly one member of: {names}")
    unknown = [name for name in value if name not in shape.members]
    if unknown and (known or not shape.union):  # a union of one unknown member may be newer than this table
        where = f"{at}.{unknown[0]}" if at else unknown[0]
        yield breach("field.unknown", where, f"extraneous key [{unknown[0][:_DISPLAYED]}] is not permitted")
    for name in shape.required:
        if value.get(name) is None:
            yield breach("field.required", f"{at}.{name}" if at else name, "it must be set: Member must not be null")
    for name in known:
        if value[name] is not None:
            yield from shape_breaches(value[name], shape.members[name], f"{at}.{name}" if at else name)


def _map(value: Json, shape: Map, at: str) -> Iterator[Breach]:
    if not isinstance(value, dict):
        yield breach("type", at, "it must be an object")
        return
    yield from _length(len(value), shape.least, shape.most, at)
    for name, item in value.items():
        yield from shape_breaches(name, shape.key, at)
        yield from shape_breaches(item, shape.of, f"{at}.{name}")


def _string(value: Json, shape: Str, at: str) -> Iterator[Breach]:
    if not isinstance(value, str):
        yield breach("type", at, "it must be a string")
    elif shape.words and value not in shape.words:
        yield breach("enum", at, f"it must be one of: Member must satisfy enum value set: [{', '.join(shape.words)}]")
    elif shape.pattern and value and not re.fullmatch(shape.pattern, value):
        yield breach("pattern", at, f"Member must satisfy regular expression pattern: {shape.pattern}")
    else:
        yield from _length(len(value), shape.least, shape.most, at)


def _number(value: Json, shape: Num, at: str) -> Iterator[Breach]:
    kinds = (int,) if shape.whole else (int, float)
    if type(value) not in kinds:
        yield breach("type", at, "it must be a whole number" if shape.whole else "it must be a number")
    elif value < shape.least:  # type: ignore[operator]
        yield breach("range", at, f"Member must have value greater than or equal to {shape.least:g}")
    elif shape.most is not None and value > shape.most:  # type: ignore[operator]
        yield breach("range", at, f"Member must have value less than or equal to {shape.most:g}")


def _length(size: int, least: int, most: int | None, at: str) -> Iterator[Breach]:
    if size < least:
        yield breach("length", at, f"Member must have length greater than or equal to {least}")
    elif most is not None and size > most:
        yield breach("length", at, f"Member must have length less than or equal to {most}")
