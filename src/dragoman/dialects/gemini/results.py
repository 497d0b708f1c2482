"""Results of calls, both directions: what a tool said stands inside an object here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dragoman.dialects.gemini.media import parse_media, render_media
from dragoman.dialects.gemini.nodes import FAMILY, MINTED, extra_of, names, own_data, own_fields, read, with_extra
from dragoman.dialects.gemini.pairs import Pairs
from dragoman.dialects.kit.values import json_text
from dragoman.errors import DragomanError
from dragoman.model.blocks import Media, Opaque, Text, ToolCall, ToolResult, Where, to_keep
from dragoman.model.parts import read_bad_media, read_loose_part
from dragoman.wire import jsonio
from dragoman.wire.fields import Fields
from dragoman.wire.jsonio import Json

_PART = names("inlineData", "fileData")
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


def parse_result(fields: Fields, pairs: Pairs) -> ToolResult:
    answer = fields.child("functionResponse")
    own_id, name, value = answer.text("id", ""), answer.identifier("name"), answer.any("response")
    if value is not None and not isinstance(value, dict):
        answer.fail("response", "expected an object")
    text, is_error = _said(value or {}, answer)
    content: list[Text | Media | Opaque] = [Text(text, at=Where(answer.path("response")))] if text else []
    content += _parts(answer)
    rest = to_keep(fields.rest())
    if unknown := answer.rest():
        rest["functionResponse"] = unknown
    if value != _usual(text, is_error):
        rest[_SHAPE] = value
    call_id = pairs.answered(own_id, name)
    if pairs.name_of(call_id) != name:
        rest[_NAME] = name
    if own_id != call_id:
        rest[_ID] = own_id
    at = Where(fields.at, bare=value is None)
    return ToolResult(call_id, tuple(content), is_error, extra=extra_of(rest), at=at)


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


def _parts(answer: Fields) -> Iterable[Text | Media | Opaque]:
    value = answer.any("parts")
    yield from _part_of(value, answer.path("parts"), answer.blame)


def _part_of(value: Json, at: str, blame: type[DragomanError]) -> Iterable[Text | Media | Opaque]:
    """What stands in `parts`: media, parts that only this family knows, and whatever else clients put there (D1)."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _part_of(each, f"{at}[{index}]", blame)
    elif isinstance(value, dict):
        fields = read(value, at, blame, _PART)
        whole = fields.rest()
        name = next((name for name in ("inlineData", "fileData") if fields.peek(name) is not None), "")
        try:
            yield (
                parse_media(fields, name)
                if name
                else read_loose_part(FAMILY, whole, Where(at), next(iter(whole), "part"))
            )
        except blame:
            yield read_bad_media(FAMILY, whole, name, Where(at))
    elif value is not None and value != "":
        yield Opaque(FAMILY, value, "part", at=Where(at))


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
        same = jsonio.text_of(value) == text
    except (jsonio.JsonError, RecursionError):
        return None
    return value if same and isinstance(value, dict | list) else None


def render_result(result: ToolResult, called: ToolCall | None, blame: type[DragomanError]) -> dict[str, Json]:
    kept = own_fields(result.extra)
    texts = [part.text for part in result.content if isinstance(part, Text)]
    if len(texts) > 1 or (texts and not isinstance(result.content[0], Text)):
        raise blame("a result has one text here, and it comes first", at=result.at.path)
    text = texts[0] if texts else ""
    name = str(kept.get(_NAME, called.name if called else ""))
    if not name:
        raise blame("a result without its call has no name", at=result.at.path)
    minted = called is not None and MINTED in own_fields(called.extra)
    call_id = kept.get(_ID, "" if minted else result.call_id)
    body: dict[str, Json] = {"id": call_id} if call_id else {}
    body["name"] = name
    body["response"] = _as_it_came(kept, text, result.is_error)
    parts: list[Json] = []
    for part in result.content:
        if isinstance(part, Media):
            parts.append(render_media(part, blame))
        elif isinstance(part, Opaque):
            parts.append(part.data if part.family == FAMILY else own_data(part, blame))
    if parts:
        body["parts"] = parts
    return with_extra({"functionResponse": body}, result.extra)


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
