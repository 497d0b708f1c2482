"""Parse and render the parts of a Gemini content; also the family, unknown fields and camelCase names. Pure.

The same parsers read a client's request and an upstream's reply; only the error class that they raise (`blame`)
differs. No I/O.
"""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias, assert_never

from dragoman.dialects.kit.values import ExtraFields, ToolCallIds, base64_bytes, json_text, render_arguments
from dragoman.errors import DragomanError, Unrepresentable
from dragoman.model.blocks import Block, Location, Media, Opaque, Reasoning, Signature, Text, ToolCall, ToolResult
from dragoman.model.conversation import INTERNAL_PREFIX, to_extra_names
from dragoman.model.parts import read_bad_media, read_loose_part
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields, describe
from dragoman.wire.jsonio import Json

FAMILY = "gemini"
GENERATED_ID = "~minted"  # marks a call whose id the parser created because the client sent none
EXTRAS = ExtraFields(FAMILY, lambda name, _: name.startswith(INTERNAL_PREFIX))
Names: TypeAlias = Mapping[str, str]
_CAMEL_BOUNDARY = re.compile(r"(?<!^)(?=[A-Z])")


def snake_to_camel(*known: str) -> Names:
    """Return the known camelCase names by their snake_case spelling: protobuf's JSON readers accept both."""
    return {snake: name for name in known if (snake := _CAMEL_BOUNDARY.sub("_", name).lower()) != name}


def read_object(value: Json, at: str, blame: type[DragomanError], known: Names) -> Fields:
    """Return the fields of an object, with the known names in camelCase."""
    if isinstance(value, dict) and not value.keys().isdisjoint(known):
        value = {known.get(name, name): each for name, each in value.items()}
    return Fields(value, at, blame)


def take_object(fields: Fields, name: str, known: Names) -> Fields | None:
    """Take an object, or None when it is absent or null."""
    value = fields.any(name)
    return None if value is None else read_object(value, fields.path(name), fields.blame, known)


def take_items(fields: Fields, name: str) -> Iterator[tuple[str, Json]]:
    """Take an array and yield each item with its path. The service reads a single object as an array of one."""
    if isinstance(fields.peek(name), dict):
        yield fields.path(name), fields.any(name)
        return
    for index, item in enumerate(fields.array(name, [])):
        yield f"{fields.path(name)}[{index}]", item


# --- the generation of a model, by its name

_VERSION = re.compile(r"gemini-(\d+)")
_LEVELS_SINCE = 3


def is_before_gemini_3(model: str) -> bool:
    """Return whether the model is older than Gemini 3.

    Older models have a thinking budget instead of a level, need no thought signatures back, and accept no media in
    tool results.
    """
    if "gemma" in model:
        return True
    found = _VERSION.search(model)
    return found is not None and int(found[1]) < _LEVELS_SINCE


# --- media: base64 data inside the part, or a URI

_DATA = snake_to_camel("mimeType", "displayName", "fileUri")
OWN_DISPLAY_NAME = "~named"  # marks media whose name is a displayName that the client sent

_MEDIA: dict[str, Literal["image", "audio", "video"]] = {"image": "image", "audio": "audio", "video": "video"}


def parse_media(fields: Fields, name: str) -> Media:
    """Parse the media in `inlineData` or `fileData`; the other fields of the part are kept in `extra`."""
    data = take_object(fields, name, _DATA)
    assert data is not None
    mime, title = data.text("mimeType", ""), data.text("displayName", "")
    form: Literal["base64", "url"] = "base64" if name == "inlineData" else "url"
    if form == "base64" and not mime:
        data.fail("mimeType", "expected the media type of the data")
    content = _base64(data) if form == "base64" else data.identifier("fileUri")
    rest = to_extra_names(fields.rest())
    if unknown := data.rest():
        rest[name] = unknown
    if title:
        rest[OWN_DISPLAY_NAME] = True
    kind = (mime or mimetypes.guess_type(content)[0] or "" if form == "url" else mime).partition("/")[0].lower()
    return Media(
        _MEDIA.get(kind, "document"), mime, form, content, title, extra=EXTRAS.extra_of(rest), at=Location(fields.at)
    )


def _base64(fields: Fields) -> str:
    data = fields.identifier("data")
    plain = data.replace("-", "+").replace("_", "/")  # protobuf accepts both base64 alphabets, padded or not
    plain += "=" * (-len(plain) % 4)
    if base64_bytes(plain) is None:
        fields.fail("data", "expected base64 data")
    return plain


def render_media(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    """Return media as a part. Raises `blame` for media given by another form than base64 or URL."""
    if block.form not in ("base64", "url"):
        raise blame(f"Gemini does not accept {block.kind} given by {block.form}", at=block.at.path)
    body: dict[str, Json] = {"mimeType": block.mime} if block.mime else {}
    body["data" if block.form == "base64" else "fileUri"] = block.data
    if block.name:
        body["displayName"] = block.name
    return EXTRAS.with_extra({"inlineData" if block.form == "base64" else "fileData": body}, block.extra)


# --- tool results: here the text of a result is inside an object

CALL_ID_PREFIX = "call_gemini_"  # begins the ids that parsers create for calls without one
_RESULT_PART = snake_to_camel("inlineData", "fileData")
_WRAPPERS = {"output": False, "result": False, "error": True}  # fields that wrap the text; whether it is an error
# The types of value that each field wraps. With a value of another type, the whole object is the result.
_WRAPPED: dict[str, tuple[type, ...]] = {
    "output": (str,),
    "result": (str, dict),
    "error": (str, dict, list, int, float, bool),
}
_SHAPE = "~response"  # the original object, if it is not the usual one
_NAME = "~name"  # the original tool name, if the call is missing or has another name
_NO_FIELDS = Fields({}, "")
_ID = "~id"  # the original id, if it is not that of the call


def parse_result(fields: Fields, pairs: ToolCallIds) -> ToolResult:
    """Parse a `functionResponse` part; `pairs` finds the id of the call that it belongs to."""
    response = fields.child("functionResponse")
    own_id, name, value = response.text("id", ""), response.identifier("name"), response.any("response")
    if value is not None and not isinstance(value, dict):
        response.fail("response", f"expected an object, got {describe(value)}")
    text, is_error = _result_text(value or {}, response)
    content: list[Text | Media | Opaque] = [Text(text, at=Location(response.path("response")))] if text else []
    content += _result_parts(response.any("parts"), response.path("parts"), response.blame)
    rest = to_extra_names(fields.rest())
    if unknown := response.rest():
        rest["functionResponse"] = unknown
    if value != _usual_object(text, is_error):
        rest[_SHAPE] = value
    call_id = pairs.match_result(own_id, name)
    if pairs.name_of(call_id) != name:
        rest[_NAME] = name
    if own_id != call_id:
        rest[_ID] = own_id
    at = Location(fields.at, is_absent=value is None)
    return ToolResult(call_id, tuple(content), is_error, extra=EXTRAS.extra_of(rest), at=at)


def _result_text(value: dict[str, Json], response: Fields) -> tuple[str, bool]:
    """Return the text of a result object, and whether it is an error.

    The text of an object with more than one field is its JSON. So is the text of an object around a list, a number or
    a boolean: otherwise it would read the same as an object around that value as text.
    """
    if not value:
        return "", False
    name, wrapped = next(iter(value.items()))
    wraps = name in _WRAPPERS and (wrapped is None or isinstance(wrapped, _WRAPPED[name]))
    if len(value) > 1 or not wraps:
        return json_text(value, response.path("response"), response.blame), False
    if wrapped is None:
        return "", _WRAPPERS[name]
    at = f"{response.path('response')}.{name}"
    text = wrapped if isinstance(wrapped, str) else json_text(wrapped, at, response.blame)
    return text, _WRAPPERS[name]


def _result_parts(value: Json, at: str, blame: type[DragomanError]) -> Iterable[Text | Media | Opaque]:
    """Yield the content of `parts`: media, parts that only this family knows, and other values that clients send.

    See docs/decisions/content.md#d1.
    """
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _result_parts(each, f"{at}[{index}]", blame)
    elif isinstance(value, dict):
        fields = read_object(value, at, blame, _RESULT_PART)
        whole = fields.rest()
        name = next((name for name in ("inlineData", "fileData") if fields.peek(name) is not None), "")
        try:
            yield (
                parse_media(fields, name)
                if name
                else read_loose_part(FAMILY, whole, Location(at), next(iter(whole), "part"))
            )
        except blame:
            yield read_bad_media(FAMILY, whole, name, Location(at))
    elif value is not None and value != "":
        yield Opaque(FAMILY, value, "part", at=Location(at))


def _usual_object(text: str, is_error: bool) -> dict[str, Json]:
    """Return the usual object for this text.

    It is structured if the text is JSON and the parser reads the object as the same text again.
    """
    value = _structured(text)
    if is_error:
        return {"error": text if value is None else value}
    if isinstance(value, dict) and _result_text(value, _NO_FIELDS) == (text, False):
        return value
    return {"output": text}


def _structured(text: str) -> dict[str, Json] | list[Json] | None:
    """Return the JSON object or list in a text, if encoding it gives the same text; else None."""
    if not text.startswith(("{", "[")):
        return None
    try:
        value = jsonio.decode(text)
        same = jsonio.encode_to_text(value) == text
    except (jsonio.JsonError, RecursionError):
        return None
    return value if same and isinstance(value, dict | list) else None


def render_result(result: ToolResult, called: ToolCall | None, blame: type[DragomanError]) -> dict[str, Json]:
    """Return a tool result as a part. `called` is its call; `blame` is raised for a result that does not fit."""
    own = EXTRAS.own_fields(result.extra)
    texts = [part.text for part in result.content if isinstance(part, Text)]
    if len(texts) > 1 or (texts and not isinstance(result.content[0], Text)):
        raise blame("a Gemini tool result may have at most one text, which must come first", at=result.at.path)
    text = texts[0] if texts else ""
    name = str(own.get(_NAME, called.name if called else ""))
    if not name:
        raise blame("a Gemini tool result needs the tool's name, but its call is missing", at=result.at.path)
    has_generated_id = called is not None and GENERATED_ID in EXTRAS.own_fields(called.extra)
    call_id = own.get(_ID, "" if has_generated_id else result.call_id)
    body: dict[str, Json] = {"id": call_id} if call_id else {}
    body["name"] = name
    body["response"] = _result_object(own, text, result.is_error)
    parts: list[Json] = []
    for part in result.content:
        if isinstance(part, Media):
            parts.append(render_media(part, blame))
        elif isinstance(part, Opaque):
            parts.append(part.data if part.family == FAMILY else EXTRAS.own_data(part, blame))
    if parts:
        body["parts"] = parts
    return EXTRAS.with_extra({"functionResponse": body}, result.extra)


def _result_object(own: Mapping[str, Json], text: str, is_error: bool) -> Json:
    """Return the object that the client sent, if it still reads as this text; else the usual object."""
    usual = _usual_object(text, is_error)
    if _SHAPE not in own:
        return usual
    shape = own[_SHAPE]
    try:
        same = _result_text(shape or {}, _NO_FIELDS) == (text, is_error) if isinstance(shape, dict | None) else False
    except DragomanError:
        same = False
    return shape if same and shape is not None else usual


# --- parts

_PART = snake_to_camel(
    "thoughtSignature",
    "functionCall",
    "functionResponse",
    "inlineData",
    "fileData",
    "executableCode",
    "codeExecutionResult",
    "videoMetadata",
    "partMetadata",
    "mediaResolution",
)
# --- reading


def parse_part(value: Json, at: str, blame: type[DragomanError], pairs: ToolCallIds | None = None) -> Block:
    """Parse one part; a string is a text. `pairs` creates ids for the calls of a request that have none."""
    if isinstance(value, str):
        return Text(value, at=Location(at))
    fields = read_object(value, at, blame, _PART)
    if fields.peek("functionCall") is not None:
        return _call(fields, pairs)
    if fields.peek("functionResponse") is not None:
        return parse_result(fields, pairs or ToolCallIds(CALL_ID_PREFIX))
    for name in ("inlineData", "fileData"):
        if fields.peek(name) is not None:
            return parse_media(fields, name)
    if fields.peek("text") is not None or fields.rest().keys() <= {"text", "thought", "thoughtSignature"}:
        text, thought, signature = fields.text("text", ""), fields.flag("thought", False), take_signature(fields)
        if thought:
            return Reasoning(text, FAMILY, signature, extra=EXTRAS.extra(fields), at=Location(at))
        return Text(text, signature=signature, extra=EXTRAS.extra(fields), at=Location(at))
    return EXTRAS.opaque(
        fields, next((name for name in fields.rest() if name not in ("thought", "thoughtSignature")), "part")
    )


def take_signature(fields: Fields) -> Signature | None:
    """Take the thought signature of a part; None if there is none."""
    signature_data = fields.text("thoughtSignature", "")
    return Signature(FAMILY, signature_data) if signature_data else None


def _call(fields: Fields, pairs: ToolCallIds | None) -> ToolCall:
    call = fields.child("functionCall")
    own_id, name, value = call.maybe_identifier("id"), call.identifier("name"), call.any("args")
    if value is not None and not isinstance(value, dict):
        call.fail("args", f"expected an object, got {describe(value)}")
    arguments = "" if value is None else json_text(value, call.path("args"), call.blame)
    signature = take_signature(fields)
    rest = to_extra_names(fields.rest())
    if unknown := call.rest():
        rest["functionCall"] = unknown
    call_id = pairs.add_call(own_id, name) if pairs else own_id
    if pairs and not own_id:
        rest[GENERATED_ID] = True
    return ToolCall(call_id, name, arguments, signature=signature, extra=EXTRAS.extra_of(rest), at=Location(fields.at))


# --- rendering


def render_part(
    block: Block, blame: type[DragomanError] = Unrepresentable, called: ToolCall | None = None
) -> dict[str, Json]:
    """Return a block as a part. Raises `blame` for a block that does not fit. `called` is the call of a tool result."""
    if isinstance(block, ToolResult):
        return render_result(block, called, blame)
    return EXTRAS.with_extra(_part_body(block, blame), block.extra)


def _part_body(block: Text | Reasoning | Media | ToolCall | Opaque, blame: type[DragomanError]) -> dict[str, Json]:
    match block:
        case Text():
            return {"text": block.text, **render_signature(block.signature)}
        case Reasoning():
            return {"text": block.text, "thought": True, **render_signature(block.signature)}
        case ToolCall():
            call: dict[str, Json] = (
                {"id": block.id} if block.id and GENERATED_ID not in EXTRAS.own_fields(block.extra) else {}
            )
            call |= {"name": block.name, "args": render_arguments(block, blame)}
            return {"functionCall": call, **render_signature(block.signature)}
        case Media():
            return render_media(block, blame)
        case Opaque():
            return EXTRAS.own_data(block, blame)
    assert_never(block)


def render_signature(signature: Signature | None) -> dict[str, Json]:
    """Return the thought signature as a field; no field if there is none."""
    return {"thoughtSignature": signature.data} if signature else {}
