"""Parts of requests and replies that Chat Completions and Responses share.

Output schemas, reasoning effort, tool choice, media, and the sources of citations. The argument `api` is the name of
the API in messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from msgspec import structs

from dragoman.dialects.kit.values import (
    FILE_TYPES,
    NO_PARAMETERS,
    Object,
    base64_text,
    describe_block,
    is_url,
    text,
    unrepresentable,
)
from dragoman.errors import BadFrame, MalformedRequest, MissingField, Unrepresentable
from dragoman.model.blocks import CitationSource, Extra, Location, Media, Opaque, Text, ToolCall, ToolResult
from dragoman.model.conversation import Output, Reply, Thinking, ToolChoice, ToolSpec
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")
TOOL_CHOICES = {"auto": ToolChoice("auto"), "required": ToolChoice("any"), "none": ToolChoice("none")}
# Values of other vendors, which clients send too: `any` of Mistral and Anthropic, `validated` of Gemini.
LENIENT_TOOL_CHOICES = {**TOOL_CHOICES, "any": ToolChoice("any"), "validated": ToolChoice("auto")}
_MODE_NAMES = {"auto": "auto", "any": "required", "none": "none"}


def arguments_text(value: Json) -> str:
    """Return the arguments of a call as text. Some services send an object, which is written as JSON.

    See docs/decisions/content.md#d3.
    """
    if value is None or isinstance(value, str):
        return value or ""
    return jsonio.encode(value).decode()


def refuse_cache_and_signature(block: Text | Media | ToolCall | ToolResult, api: str) -> None:
    """Raise Unrepresentable for a signature, and for a cache breakpoint on a call or a result: only parts have them."""
    if block.cache is not None and isinstance(block, ToolCall | ToolResult):
        raise unrepresentable(block, f"{api} has no cache breakpoints on {describe_block(block)}")
    if not isinstance(block, Media | ToolResult) and block.signature is not None:
        raise unrepresentable(block, f"{api} has no field for a signature on {describe_block(block)}")


def as_upstream_error(error: MalformedRequest) -> MissingField:
    """Return an error of a reader that requests and replies share as an error of the upstream, with status 502."""
    return MissingField(error.fault.message, fault=structs.replace(error.fault, kind="server", status=502))


def read_reply(body: bytes, read: Callable[[Fields], Reply]) -> Reply:
    """Read a whole reply. Raises UpstreamViolation if the body is not a reply."""
    try:
        return read(Fields(jsonio.decode(body), "", BadFrame))
    except (jsonio.JsonError, RecursionError) as error:
        raise BadFrame(f"the reply is not JSON: {error}") from None
    except MalformedRequest as error:
        raise as_upstream_error(error) from None


# --- settings


def take_user(fields: Fields, extra: Object) -> str:
    """Take the user's id, and record in `extra` the name of its field unless that is `user`."""
    for name in ("user", "safety_identifier"):
        if user := fields.text(name, "") if fields.peek(name) is not None else "":
            if name != "user":
                extra["~user"] = name
            return user
    return ""


def thinking_from_effort(effort: str) -> Thinking:
    """Return the thinking setting for the value of `reasoning_effort`; `none` turns thinking off."""
    return Thinking("off") if effort == "none" else Thinking(effort=effort)


def effort_from_thinking(thinking: Thinking, api: str) -> str:
    """Return the value of `reasoning_effort` for a thinking setting; empty: no field. Raises Unrepresentable."""
    if thinking.mode not in {"default", "off"} or thinking.budget is not None or thinking.show is not None:
        raise Unrepresentable(f"{api} accepts only a thinking effort, or no thinking setting", at="thinking")
    if thinking.mode == "off" and thinking.effort:
        raise Unrepresentable(f"{api} accepts a thinking effort or thinking turned off, not both", at="thinking")
    return "none" if thinking.mode == "off" else thinking.effort


def parse_schema(form: Fields) -> Output:
    """Read name, schema and strictness of an output schema."""
    schema = form.any("schema")
    if schema is not None and not isinstance(schema, dict):
        form.fail("schema", f"expected an object, got {describe(schema)}")
    return Output("schema", form.text("name", ""), schema, form.flag("strict", None))


def render_schema(output: Output) -> Object:
    """Write name, schema and strictness of an output schema, where given."""
    body: Object = {"name": output.name} if output.name else {}
    if output.schema is not None:
        body["schema"] = dict(output.schema)
    if output.strict is not None:
        body["strict"] = output.strict
    return body


# --- tools


def render_function(tool: ToolSpec, name: str) -> Object:
    """Write the fields of a function or a custom tool that both APIs have."""
    body: Object = {"name": name}
    if tool.description:
        body["description"] = tool.description
    if tool.schema is not None:
        body["parameters"] = dict(tool.schema)
    if tool.strict is not None:
        body["strict"] = tool.strict
    return body


def refuse_foreign_tool(tool: ToolSpec | Opaque, family: str, api: str) -> None:
    """Raise Unrepresentable for a tool of another family, or with a breakpoint, which only content parts have."""
    if tool.cache is not None:
        raise Unrepresentable(f"{api} has no cache breakpoints among tools", at=tool.at.path)
    if isinstance(tool, Opaque) and tool.family != family:
        raise Unrepresentable(f"{api} has no {tool.family} tools", at=tool.at.path)


def take_parameters(parameters: Json, rest: Object) -> Object:
    """Return the schema of a function. A value that is not a schema goes into `rest`, the extra fields."""
    if isinstance(parameters, dict):
        return parameters
    if parameters is not None:
        rest["parameters"] = parameters
    return dict(NO_PARAMETERS)


def parse_choice(fields: Fields, name: str, value: Json, chosen: Callable[[Fields], str | None]) -> ToolChoice | None:
    """Read the tool choice of a field. None: the canonical model has no equivalent.

    `chosen` returns the name of a tool from its object, or None for a tool that is not declared.
    """
    match value:
        case None:
            return ToolChoice()
        case str():
            if value.lower() not in LENIENT_TOOL_CHOICES:
                fields.fail(name, f"expected one of {', '.join(TOOL_CHOICES)} or an object")
            return LENIENT_TOOL_CHOICES[value.lower()]
        case {"type": str(mode), **more} if mode in LENIENT_TOOL_CHOICES and not more:
            return LENIENT_TOOL_CHOICES[mode]
        case {"type": "function" | "custom" | "tool"}:
            tool = chosen(_definition(Fields(value, fields.path(name))))
            return ToolChoice("one", (tool,)) if tool else None
        case {"type": "allowed_tools"}:
            return _allowed(Fields(value, fields.path(name)), chosen)
        case dict():
            return None
        case _:
            raise fields.blame(f"expected a string or an object, got {describe(value)}", at=fields.path(name))


def _definition(tool: Fields) -> Fields:
    return tool.maybe_child(str(tool.peek("type"))) or tool  # the form of Chat, or that of Responses


def _allowed(fields: Fields, chosen: Callable[[Fields], str | None]) -> ToolChoice | None:
    inner = fields.maybe_child("allowed_tools") or fields  # the form of Chat, or that of Responses
    mode = inner.one_of("mode", {"auto": "auto", "required": "any"}, "auto")
    names: list[str] = []
    for tool in inner.children("tools"):
        name = chosen(_definition(tool)) if tool.peek("type") in ("function", "custom") else None
        if name is None:
            return None
        names.append(name)
    return ToolChoice("any" if mode == "any" else "auto", tuple(names)) if names else None


def render_choice(
    choice: ToolChoice, api: str, named: Callable[[str], Json], allowed: Callable[[Object], Object]
) -> Object:
    """Write a tool choice. `named` writes one tool, `allowed` the body of a choice among some tools."""
    fields: Object = {}
    if choice.mode == "one":
        if len(choice.names) != 1:
            raise Unrepresentable(f"{api} can force only one tool by name", at="tool_choice")
        fields["tool_choice"] = named(choice.names[0])
    elif choice.names:
        if choice.mode == "none":
            raise Unrepresentable(f"{api} can forbid only all tools", at="tool_choice")
        some: Object = {"mode": _MODE_NAMES[choice.mode], "tools": [named(name) for name in choice.names]}
        fields["tool_choice"] = {"type": "allowed_tools", **allowed(some)}
    elif choice.mode != "auto":
        fields["tool_choice"] = _MODE_NAMES[choice.mode]
    if choice.parallel is not None:
        fields["parallel_tool_calls"] = choice.parallel
    return fields


def free_text_tools(tools: Iterable[ToolSpec | Opaque]) -> set[str]:
    """Return the names of the tools that take free text."""
    return {tool.name for tool in tools if isinstance(tool, ToolSpec) and tool.schema is None}


# --- media


DataUrl: TypeAlias = Callable[[str], re.Match[str] | None]  # matches a data: URL; groups: media type, data


def parse_image_url(fields: Fields, name: str, data_url: DataUrl, url: str, extra: Extra | None, at: Location) -> Media:
    """Return the image of a URL; a data: URL holds the image itself."""
    if found := data_url(url):
        return Media("image", found[1], "base64", base64_text(fields, name, found[2]), extra=extra, at=at)
    if url[:5].lower() == "data:" or not is_url(url):
        fields.fail(name, "expected an http(s) URL or a data: URL with a media type and base64")
    return Media("image", "", "url", url, extra=extra, at=at)


def take_file_data(fields: Fields, name: str, data_url: DataUrl) -> tuple[str, Literal["url", "base64"], str]:
    """Take `file_data` of the file `name`: media type, form, and the data, or the URL that some clients put there."""
    data = fields.text("file_data")
    if data.lower().startswith(("http://", "https://")):
        return "", "url", data
    found = data_url(data)
    mime = found[1] if found else FILE_TYPES.get(name.rpartition(".")[2].lower(), "")
    if not mime:
        fields.fail("file_data", "expected a data: URL with a media type and base64")
    return mime, "base64", base64_text(fields, "file_data", found[2] if found else data)


# --- citations


def parse_annotation(family: str, annotation: Json) -> Opaque:
    """Read a citation of a reply. Without a URL it has no source, and only this family can read it."""
    body = annotation if isinstance(annotation, dict) else {}
    kind, inner = body.get("type"), body.get("url_citation")
    fields = inner if isinstance(inner, dict) else body
    start, end = (each if type(each) is int else None for each in map(fields.get, ("start_index", "end_index")))
    source = parse_source(fields, start, end)
    return Opaque(family, annotation, kind if isinstance(kind, str) else "annotation", source=source)


def parse_source(fields: Object, start: int | None = None, end: int | None = None) -> CitationSource | None:
    """Return the source in these fields; None without a URL."""
    url, title, quote, snippet = (text(fields.get(name)) for name in ("url", "title", "content", "snippet"))
    quote = quote if isinstance(fields.get("content"), str) else snippet
    return CitationSource(url, title, quote, start, end) if url else None
