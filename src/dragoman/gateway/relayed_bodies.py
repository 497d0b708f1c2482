"""Bodies of relayed requests: find the model in JSON, in a form or in a path, replace it, and read token counts. Pure.

A body is sent as it came, unless the model has another name at the upstream. Then only its name is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.message import Message
from typing import Any

from msgspec import Struct

from dragoman.dialects.endpoints import RelayedEndpoint
from dragoman.errors import MalformedRequest
from dragoman.model.conversation import Usage, parse_token_count
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json, JsonError, Raw

_FORM = "multipart/form-data"
_FIELD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")
_DISPOSITION = re.compile(rb"(?i)^content-disposition:\s*form-data\s*(?=;|$)")
_NAME = re.compile(rb"(?i);\s*name\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s;\"]+))")
_ENCODED_NAME = re.compile(rb"(?i);\s*name\*")
_GOOGLE_PREFIX = "models/"


class RelayedModel(Struct, frozen=True):
    """The model that a request names, empty if none, and the most tokens that it asks for."""

    name: str
    max_tokens: int | None = None


class _Inner(Struct):
    """One request of a batch of Gemini."""

    model: str | None = None


class _Body(Struct):
    """The members of a JSON body that are read; the others are skipped."""

    model: str | None = None
    max_tokens: Raw = Raw(b"null")
    requests: list[_Inner] | None = None


_read_body = jsonio.typed_decoder(_Body)
_read_members = jsonio.typed_decoder(dict[str, Raw])
_read_batch = jsonio.typed_decoder(list[dict[str, Raw]])


def is_form(request: HttpRequest) -> bool:
    """Return whether the body is a form."""
    return request.header("content-type").partition(";")[0].strip().lower() == _FORM


def read_model(endpoint: RelayedEndpoint, request: HttpRequest, in_path: str) -> RelayedModel:
    """Return the model of a request; `in_path` is the one in its path. Raises MalformedRequest."""
    if is_form(request):
        return RelayedModel(in_path or _form_model(request), 0)
    body = _decode(request)
    if not endpoint.has_model_in_path:
        most = jsonio.decode(bytes(body.max_tokens)) if endpoint.generates else 0
        return RelayedModel(body.model or "", most if type(most) is int else None)
    for model in (body.model, *(each.model for each in body.requests or ())):
        if model is not None and model.removeprefix(_GOOGLE_PREFIX) != in_path:
            raise MalformedRequest(f"the body names the model {model[:80]!r} and the path {in_path[:80]!r}", at="model")
    return RelayedModel(in_path, 0)


def rename_model(request: HttpRequest, model: str) -> bytes:
    """Return the body with another name of the model, wherever the body names it. Raises MalformedRequest."""
    if is_form(request):
        start, end = _form_field(request, b"model") or (0, 0)
        body = request.body
        return b"%b%b%b" % (body[:start], model.encode(), body[end:]) if start else body
    members = _read_members(request.body)  # `read_model` has read it before
    if "model" in members:
        members["model"] = _renamed(members["model"], model)
    if "requests" in members:
        batch = _read_batch(bytes(members["requests"]))
        for each in batch:
            if "model" in each:
                each["model"] = _renamed(each["model"], model)
        members["requests"] = Raw(jsonio.encode(batch))
    return jsonio.encode(members)


def _renamed(before: Raw, model: str) -> Raw:
    """Return the name of a model in the form of the one before: Gemini writes `models/NAME`."""
    is_google = bytes(before).startswith(b'"models/') and not model.startswith(_GOOGLE_PREFIX)
    return Raw(jsonio.encode(f"{_GOOGLE_PREFIX}{model}" if is_google else model))


def _decode(request: HttpRequest) -> _Body:
    try:
        return _read_body(request.body)
    except JsonError as error:
        raise MalformedRequest(str(error), at=error.at) from None


# --- forms


def _form_model(request: HttpRequest) -> str:
    place = _form_field(request, b"model")
    if place is None:
        return ""
    try:
        return request.body[slice(*place)].decode()
    except UnicodeDecodeError:
        raise MalformedRequest("the field 'model' of the form is not UTF-8", at="model") from None


def _form_field(request: HttpRequest, name: bytes) -> tuple[int, int] | None:
    """Return where the value of a field is in a form; None if there is none. Raises MalformedRequest."""
    found: tuple[int, int] | None = None
    for head, start, end in _form_parts(request):
        for line in head:
            if not _FIELD.fullmatch(line):
                raise MalformedRequest(f"a part of the form has an invalid header: {line[:80]!r}")
            if not _DISPOSITION.match(line):
                continue
            if _ENCODED_NAME.search(line):
                raise MalformedRequest("a part of the form has an encoded name (name*), which RFC 7578 does not allow")
            names = [quoted or plain for quoted, plain in _NAME.findall(line)]
            if len(names) > 1 or (names == [name] and found is not None):
                raise MalformedRequest(f"the form has the field {name.decode()!r} twice")
            if names == [name]:
                found = start, end
    return found


def _form_parts(request: HttpRequest) -> Iterator[tuple[list[bytes], int, int]]:
    """Yield the header lines of each part of a form, and the begin and end of its content in the body."""
    envelope = Message()
    envelope["content-type"] = request.header("content-type")
    boundary = envelope.get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= 70:
        raise MalformedRequest("the header content-type of a form needs a boundary of 1 to 70 characters")
    body, mark = request.body, b"--" + boundary.encode("latin-1", "replace")
    if not body.startswith(mark):
        raise MalformedRequest("the form does not begin with its boundary")
    at = len(mark)
    while not body.startswith(b"--", at):
        if not body.startswith(b"\r\n", at):
            raise MalformedRequest("a boundary of the form does not end its line")
        end, content = body.find(b"\r\n" + mark, at), body.find(b"\r\n\r\n", at)
        if end < 0 or not at <= content <= end:
            raise MalformedRequest("the form ends inside a part")
        yield body[at + 2 : content].split(b"\r\n"), min(content + 4, end), end
        at = end + 2 + len(mark)


# --- token counts


class _Counts(Struct):
    """Where services report token counts in the responses of relayed endpoints."""

    usage: Any = None
    usageMetadata: Any = None  # noqa: N815  Gemini
    prompt_eval_count: Any = None  # Ollama
    eval_count: Any = None


_read_counts = jsonio.optional_decoder(_Counts)
_INPUT = ("prompt_tokens", "input_tokens", "promptTokenCount")
_OUTPUT = ("completion_tokens", "output_tokens", "candidatesTokenCount")


def read_usage(body: bytes) -> Usage | None:
    """Return the token counts that a JSON response reports; None if it reports none."""
    counts = _read_counts(body)
    if counts is None:
        return None
    if counts.prompt_eval_count is not None or counts.eval_count is not None:
        return Usage(parse_token_count(counts.prompt_eval_count), parse_token_count(counts.eval_count))
    for report in (counts.usage, counts.usageMetadata):
        if isinstance(report, dict) and any(name.lower().startswith(("total", "prompt", "input")) for name in report):
            return _usage(report)
    return None


def _usage(report: dict[str, Json]) -> Usage:
    given = next((parse_token_count(report[name]) for name in _INPUT if name in report), None)
    output = next((parse_token_count(report[name]) for name in _OUTPUT if name in report), 0)
    if given is None:  # Services that rerank report the total only.
        total = report.get("total_tokens", report.get("totalTokenCount"))
        given = max(parse_token_count(total) - output, 0)
    return Usage(given, output)


def read_stream_usage(tail: bytes) -> Usage | None:
    """Return the token counts in the last events or lines of a stream; None if they report none."""
    for line in reversed(tail.splitlines()):
        text = line.removeprefix(b"data:").strip()
        if text.startswith(b"{") and (usage := read_usage(text)) is not None:
            return usage
    return None
