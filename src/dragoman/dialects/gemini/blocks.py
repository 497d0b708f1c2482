"""Parts, both directions, and what every node shares: its family, its unknown fields, both spellings of a name.

The same readers serve a client's request and an upstream's reply; blame differs.
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
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

FAMILY = "gemini"
MINTED = "~minted"  # on a call: the id is ours, the client gave none
EXTRAS = ExtraFields(FAMILY, lambda name, _: name.startswith(INTERNAL_PREFIX))
Names: TypeAlias = Mapping[str, str]
_HUMP = re.compile(r"(?<!^)(?=[A-Z])")


def snake_to_camel(*known: str) -> Names:
    """Known names by their other spelling: services that read protobuf's JSON take both."""
    return {snake: name for name in known if (snake := _HUMP.sub("_", name).lower()) != name}


def read_object(value: Json, at: str, blame: type[DragomanError], known: Names) -> Fields:
    """An object, its known names in camelCase."""
    if isinstance(value, dict) and not value.keys().isdisjoint(known):
        value = {known.get(name, name): each for name, each in value.items()}
    return Fields(value, at, blame)


def take_object(fields: Fields, name: str, known: Names) -> Fields | None:
    """Take an object, or None when it is absent or null."""
    value = fields.any(name)
    return None if value is None else read_object(value, fields.path(name), fields.blame, known)


def take_items(fields: Fields, name: str) -> Iterator[tuple[str, Json]]:
    """Take an array, item by item with its place. The service reads a lone object as an array of one."""
    if isinstance(fields.peek(name), dict):
        yield fields.path(name), fields.any(name)
        return
    for index, item in enumerate(fields.array(name, [])):
        yield f"{fields.path(name)}[{index}]", item


# --- what the name of a model tells

_VERSION = re.compile(r"gemini-(\d+)")
_LEVELS_SINCE = 3


def is_before_gemini_3(model: str) -> bool:
    """A model before Gemini 3: it thinks by budget, signs nothing that must come back, takes no media in results."""
    if "gemma" in model:
        return True
    found = _VERSION.search(model)
    return found is not None and int(found[1]) < _LEVELS_SINCE


# --- media, both directions: bytes inside the part, or an address

_DATA = snake_to_camel("mimeType", "displayName", "fileUri")
OWN_DISPLAY_NAME = "~named"  # the name is the client's own displayName

_MEDIA: dict[str, Literal["image", "audio", "video"]] = {"image": "image", "audio": "audio", "video": "video"}


def parse_media(fields: Fields, name: str) -> Media:
    """The media in `inlineData` or `fileData`; what else the part says is kept beside it."""
    data = take_object(fields, name, _DATA)
    assert data is not None
    mime, title = data.text("mimeType", ""), data.text("displayName", "")
    how: Literal["base64", "url"] = "base64" if name == "inlineData" else "url"
    if how == "base64" and not mime:
        data.fail("mimeType", "expected the type of the data")
    content = _base64(data) if how == "base64" else data.identifier("fileUri")
    rest = to_extra_names(fields.rest())
    if unknown := data.rest():
        rest[name] = unknown
    if title:
        rest[OWN_DISPLAY_NAME] = True
    kind = (mime or mimetypes.guess_type(content)[0] or "" if how == "url" else mime).partition("/")[0].lower()
    return Media(
        _MEDIA.get(kind, "document"), mime, how, content, title, extra=EXTRAS.extra_of(rest), at=Location(fields.at)
    )


def _base64(fields: Fields) -> str:
    data = fields.identifier("data")
    plain = data.replace("-", "+").replace("_", "/")  # protobuf reads both alphabets, padded or not
    plain += "=" * (-len(plain) % 4)
    if base64_bytes(plain) is None:
        fields.fail("data", "expected base64")
    return plain


def render_media(block: Media, blame: type[DragomanError]) -> dict[str, Json]:
    if block.form not in ("base64", "url"):
        raise blame(f"{block.kind} given by {block.form} has no place here", at=block.at.path)
    body: dict[str, Json] = {"mimeType": block.mime} if block.mime else {}
    body["data" if block.form == "base64" else "fileUri"] = block.data
    if block.name:
        body["displayName"] = block.name
    return EXTRAS.with_extra({"inlineData" if block.form == "base64" else "fileData": body}, block.extra)


# --- results of calls, both directions: what a tool said stands inside an object here

CALL_ID_PREFIX = "call_gemini_"  # ids of calls that have none begin so
_RESULT_PART = snake_to_camel("inlineData", "fileData")
_SAYING = {"output": False, "result": False, "error": True}
# What stands in each of them that is what the result says; around anything else the object itself is.
_WRAPPED: dict[str, tuple[type, ...]] = {
    "output": (str,),
    "result": (str, dict),
    "error": (str, dict, list, int, float, bool),
}
_SHAPE = "~response"  # the object as it came, where it is not the usual one
_NAME = "~name"  # the tool's name, where no call tells it, or another
_NOWHERE = Fields({}, "")
_ID = "~id"  # the id as it came, where it is not that of the call


def parse_result(fields: Fields, pairs: ToolCallIds) -> ToolResult:
    answer = fields.child("functionResponse")
    own_id, name, value = answer.text("id", ""), answer.identifier("name"), answer.any("response")
    if value is not None and not isinstance(value, dict):
        answer.fail("response", "expected an object")
    text, is_error = _said(value or {}, answer)
    content: list[Text | Media | Opaque] = [Text(text, at=Location(answer.path("response")))] if text else []
    content += _part_of(answer.any("parts"), answer.path("parts"), answer.blame)
    rest = to_extra_names(fields.rest())
    if unknown := answer.rest():
        rest["functionResponse"] = unknown
    if value != _usual(text, is_error):
        rest[_SHAPE] = value
    call_id = pairs.match_result(own_id, name)
    if pairs.name_of(call_id) != name:
        rest[_NAME] = name
    if own_id != call_id:
        rest[_ID] = own_id
    at = Location(fields.at, is_absent=value is None)
    return ToolResult(call_id, tuple(content), is_error, extra=EXTRAS.extra_of(rest), at=at)


def _said(value: dict[str, Json], answer: Fields) -> tuple[str, bool]:
    """What the object says, and whether it is an error. One that says more than one thing is its own JSON, and so is
    one around a list, a number or a boolean, so that it can be told from one around the same as text."""
    if not value:
        return "", False
    name, said = next(iter(value.items()))
    wraps = name in _SAYING and (said is None or isinstance(said, _WRAPPED[name]))
    if len(value) > 1 or not wraps:
        return json_text(value, answer.path("response"), answer.blame), False
    if said is None:
        return "", _SAYING[name]
    text = said if isinstance(said, str) else json_text(said, f"{answer.path('response')}.{name}", answer.blame)
    return text, _SAYING[name]


def _part_of(value: Json, at: str, blame: type[DragomanError]) -> Iterable[Text | Media | Opaque]:
    """What stands in `parts`: media, parts that only this family knows, and whatever else clients put there.

    See docs/decisions/content.md#d1.
    """
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _part_of(each, f"{at}[{index}]", blame)
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


def _usual(text: str, is_error: bool) -> dict[str, Json]:
    """The object that says this: structured where the text is JSON and the object is read as the same text again."""
    value = _structured(text)
    if is_error:
        return {"error": text if value is None else value}
    if isinstance(value, dict) and _said(value, _NOWHERE) == (text, False):
        return value
    return {"output": text}


def _structured(text: str) -> dict[str, Json] | list[Json] | None:
    """The object or list that a text is, if it is spelt as this dialect spells it."""
    if not text.startswith(("{", "[")):
        return None
    try:
        value = jsonio.decode(text)
        same = jsonio.encode_to_text(value) == text
    except (jsonio.JsonError, RecursionError):
        return None
    return value if same and isinstance(value, dict | list) else None


def render_result(result: ToolResult, called: ToolCall | None, blame: type[DragomanError]) -> dict[str, Json]:
    kept = EXTRAS.own_fields(result.extra)
    texts = [part.text for part in result.content if isinstance(part, Text)]
    if len(texts) > 1 or (texts and not isinstance(result.content[0], Text)):
        raise blame("a result has one text here, and it comes first", at=result.at.path)
    text = texts[0] if texts else ""
    name = str(kept.get(_NAME, called.name if called else ""))
    if not name:
        raise blame("a result without its call has no name", at=result.at.path)
    minted = called is not None and MINTED in EXTRAS.own_fields(called.extra)
    call_id = kept.get(_ID, "" if minted else result.call_id)
    body: dict[str, Json] = {"id": call_id} if call_id else {}
    body["name"] = name
    body["response"] = _as_it_came(kept, text, result.is_error)
    parts: list[Json] = []
    for part in result.content:
        if isinstance(part, Media):
            parts.append(render_media(part, blame))
        elif isinstance(part, Opaque):
            parts.append(part.data if part.family == FAMILY else EXTRAS.own_data(part, blame))
    if parts:
        body["parts"] = parts
    return EXTRAS.with_extra({"functionResponse": body}, result.extra)


def _as_it_came(kept: Mapping[str, Json], text: str, is_error: bool) -> Json:
    """The object in the client's own shape, as long as it still says what the result says."""
    usual = _usual(text, is_error)
    if _SHAPE not in kept:
        return usual
    shape = kept[_SHAPE]
    try:
        same = _said(shape or {}, _NOWHERE) == (text, is_error) if isinstance(shape, dict | None) else False
    except DragomanError:
        same = False
    return shape if same and shape is not None else usual


# --- parts, both directions. The same readers serve a client's request and an upstream's reply; blame differs

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
    """One part; `pairs` gives ids where a request has none. A string is a text."""
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
    signature_data = fields.text("thoughtSignature", "")
    return Signature(FAMILY, signature_data) if signature_data else None


def _call(fields: Fields, pairs: ToolCallIds | None) -> ToolCall:
    call = fields.child("functionCall")
    own_id, name, value = call.maybe_identifier("id"), call.identifier("name"), call.any("args")
    if value is not None and not isinstance(value, dict):
        call.fail("args", "expected an object")
    arguments = "" if value is None else json_text(value, call.path("args"), call.blame)
    signature = take_signature(fields)
    rest = to_extra_names(fields.rest())
    if unknown := call.rest():
        rest["functionCall"] = unknown
    call_id = pairs.add_call(own_id, name) if pairs else own_id
    if pairs and not own_id:
        rest[MINTED] = True
    return ToolCall(call_id, name, arguments, signature=signature, extra=EXTRAS.extra_of(rest), at=Location(fields.at))


# --- rendering


def render_part(
    block: Block, blame: type[DragomanError] = Unrepresentable, called: ToolCall | None = None
) -> dict[str, Json]:
    """One part; `called` is the call that a result answers. `blame` is raised for what has no place."""
    if isinstance(block, ToolResult):
        return render_result(block, called, blame)
    return EXTRAS.with_extra(_bare(block, blame), block.extra)


def _bare(block: Text | Reasoning | Media | ToolCall | Opaque, blame: type[DragomanError]) -> dict[str, Json]:
    match block:
        case Text():
            return {"text": block.text, **render_signature(block.signature)}
        case Reasoning():
            return {"text": block.text, "thought": True, **render_signature(block.signature)}
        case ToolCall():
            call: dict[str, Json] = (
                {"id": block.id} if block.id and MINTED not in EXTRAS.own_fields(block.extra) else {}
            )
            call |= {"name": block.name, "args": render_arguments(block, blame)}
            return {"functionCall": call, **render_signature(block.signature)}
        case Media():
            return render_media(block, blame)
        case Opaque():
            return EXTRAS.own_data(block, blame)
    assert_never(block)


def render_signature(signature: Signature | None) -> dict[str, Json]:
    return {"thoughtSignature": signature.data} if signature else {}
