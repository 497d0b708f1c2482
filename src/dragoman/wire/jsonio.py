"""The only JSON entry point: fast through msgspec, exact where msgspec refuses, one exception for all that goes wrong.

What comes back: integers of any size exactly (up to Python's limit of 4300 digits); other numbers as doubles, of which
`1e400` is refused rather than turned into infinity; the last of duplicate keys; lone surrogates, which clients do send
in escaped form, as they are. `NaN` and `Infinity` are not JSON. Invalid UTF-8 is refused, except inside the parts that
a typed decoder skips or keeps as `Raw`, which are never looked at.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Raw: TypeAlias = msgspec.Raw  # a part of a payload that is kept unread
T = TypeVar("T")


class JsonError(ValueError):
    """Text that is no JSON, or a value that JSON cannot hold.

    `position` is a byte offset, a hint only and None where it is not known; `at` is a path such as `choices[0].index`
    when the text is JSON but does not fit the type asked for.
    """

    def __init__(self, message: str, position: int | None = None, at: str = "") -> None:
        super().__init__(message if position is None else f"{message} (byte {position})")
        self.message = message
        self.position = position
        self.at = at


class ObjectText(str):
    """The JSON text of an object, written by this module: it needs no check and no second encoding.

    There is no half character in it.
    """

    __slots__ = ("_value", "data")
    data: bytes
    _value: dict[str, Json]

    @property
    def value(self) -> dict[str, Json]:
        """The object, decoded on access."""
        try:
            return self._value
        except AttributeError:
            self._value = _decode_object(self.data)
            return self._value


def _as_plain(value: object) -> str:
    """For the encoder, which knows no kind of text but one."""
    if isinstance(value, ObjectText):
        return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


DECODE_ERRORS = (
    msgspec.MsgspecError,
    RecursionError,
    ValueError,
)  # ValueError: UnicodeError, and integers of 4300 digits
_DEEP = "nested too deeply"

_plain_decode: Callable[[bytes | str], Json] = msgspec.json.Decoder().decode
_plain_encode = msgspec.json.Encoder(enc_hook=_as_plain).encode
_QUOTE = 0x22
_ODD_ESCAPE = re.compile(rb'\\[^\\"nrtbf]')  # a control character is written like that here, too, but seldom comes
encode_text: Callable[[str], bytes] = _plain_encode  # the literal of a text that a strict decoder read
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def decode(data: bytes | str) -> Json:
    """Decode one JSON text. Raises JsonError."""
    if isinstance(data, ObjectText):
        return data.value
    try:
        return _plain_decode(data)
    except DECODE_ERRORS as error:
        return _decode_surrogates(data, error)


def try_decode(data: bytes | str) -> Json:
    """Return the JSON value of a text, or None if it is no JSON."""
    try:
        return decode(data)
    except JsonError:
        return None


def is_json(text: str) -> bool:
    """Return whether a text is JSON."""
    try:
        decode(text)
    except JsonError:
        return False
    return True


def typed_decoder(kind: type[T]) -> Callable[[bytes | str], T]:
    """Make a decoder into `kind`, usually a Struct of a stream chunk. What it makes raises JsonError."""
    strict_decoder = msgspec.json.Decoder(kind).decode

    def read(data: bytes | str) -> T:
        try:
            return strict_decoder(data)
        except DECODE_ERRORS as error:
            try:
                return msgspec.convert(_decode_surrogates(data, error), kind)
            except (JsonError, *DECODE_ERRORS):  # it is wrong, or has a part that is kept as `Raw`
                return _decode_again(strict_decoder, data, error)

    return read


def optional_decoder(kind: type[T]) -> Callable[[bytes], T | None]:
    """Make a decoder into `kind` that gives None for whatever is not just that, JSON or not."""
    strict_decoder = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> T | None:
        try:
            return strict_decoder(data)
        except DECODE_ERRORS:
            return None

    return read


def encode(value: object) -> bytes:
    """Encode compactly; Structs and `Raw` may be part of `value`. Not-a-number becomes null. Raises JsonError."""
    try:
        return _plain_encode(value)
    except UnicodeEncodeError:
        return _guard(_spell, value)
    except (RecursionError, TypeError, ValueError) as error:
        raise _refusal(error) from None


def decode_at(text: str, at: int) -> tuple[Json, int]:
    """Decode the JSON value that begins at a position; return it and where it ends. Raises JsonError."""
    try:
        value, end = _AT.raw_decode(text, at)
    except (RecursionError, ValueError) as error:
        raise JsonError(_DEEP if isinstance(error, RecursionError) else "no JSON value", at) from None
    return value, end


def encode_like_python(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode as Python's own encoder does, with its spaces: what chat templates expect of `tojson`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def is_encodable(value: object) -> bool:
    """Whether it can be encoded, and there is no half character in it."""
    try:
        _plain_encode(value)
    except (RecursionError, TypeError, ValueError):
        return False
    return True


def encode_to_text(value: Json) -> str:
    """Encode as text, which of an object is an ObjectText. Raises JsonError."""
    if isinstance(value, dict):
        try:
            text = _object_text(_plain_encode(value))
        except (RecursionError, TypeError, ValueError):
            pass  # `encode` knows a way, or says what is wrong
        else:
            text._value = value
            return text
    return encode(value).decode()


def encode_raw_parts(parts: Mapping[str, Raw]) -> ObjectText:
    """The text of an object whose values are not read, the same as if they had been. Raises JsonError.

    A string is written as it came, unless that is not how strings are written here; all else is read first.
    """
    read = {name: value if memoryview(value)[0] == _QUOTE else decode(value) for name, value in parts.items()}
    try:
        data = _plain_encode(read)
        if _ODD_ESCAPE.search(data) is not None:
            data = _plain_encode(_decode_object(data))
        return _object_text(data)
    except DECODE_ERRORS as error:
        raise _refusal(error) from None


def _object_text(data: bytes) -> ObjectText:
    text = ObjectText(data, "utf-8")
    text.data = data
    return text


def decode_object(text: str | bytes) -> dict[str, Json] | None:
    """The object that this text is; None if it is none."""
    value = try_decode(text)
    return value if isinstance(value, dict) else None


def encode_pretty(value: object) -> bytes:
    """Encode for people: two spaces a level, what a terminal would obey escaped. Raises JsonError."""
    return _guard(_indent, encode(value))


def strict_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Make a decoder into `kind` that raises one of TROUBLE for all else, JSON or not."""
    return msgspec.json.Decoder(kind).decode


def quote(text: str) -> bytes:
    """Give the JSON string literal, quotes included, of any text."""
    try:
        return _plain_encode(text)
    except UnicodeEncodeError:  # lone surrogates have no UTF-8, only an escape
        return json.dumps(text).encode()


def may_have_duplicates(data: bytes, names: int, colons: int) -> bool:
    """Whether a name may stand twice in an object of this text, which was read as so many names and colons in strings.

    A name that the reader passed over would have one more colon, unless an escape hides another.
    """
    return _colons(data) != names + colons or (colons > 0 and _HIDDEN_COLON.search(data) is not None)


def find_duplicate_name(data: bytes, tree: Json = None) -> str | None:
    """Give a name that stands twice in one object of this text, which `decode` has read; the last of them counted.

    With `tree`, which is what it read, few texts are looked at closely.
    """
    if tree is not None and _is_single(data, tree):
        return None
    try:
        _DOUBLES.decode(data.decode())
    except _Doubled as found:
        return found.name
    except (RecursionError, ValueError):
        pass
    return None


def _is_single(data: bytes, tree: Json) -> bool:
    """Whether the text has no more colons than the tree: one for each name, and those in strings, none of them hidden
    by an escape. A name that the tree lacks would have one more.
    """
    fields = inside = 0
    names: set[str] = set()
    level: list[Json] = [tree]
    while level:
        inside += sum([value.count(":") for value in level if type(value) is str and ":" in value])
        objects = [value for value in level if type(value) is dict]
        fields += sum(map(len, objects))
        names.update(*objects)
        arrays = [value for value in level if type(value) is list]
        level = [each for value in objects for each in value.values()] + [each for value in arrays for each in value]
    if _colons(data) != fields + inside or ":" in "".join(names):
        return False
    return not inside or _HIDDEN_COLON.search(data) is None


def _colons(data: bytes) -> int:
    return len(data) - len(data.replace(b":", b""))  # in long texts several times as fast as `count`


class _Doubled(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _single(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        seen: set[str] = set()
        raise _Doubled(next(name for name, _ in pairs if name in seen or seen.add(name)))  # type: ignore[func-returns-value]


_HIDDEN_COLON = re.compile(rb"\\u003[aA]")
_AT = json.JSONDecoder()
_DOUBLES = json.JSONDecoder(object_pairs_hook=_single, parse_float=str, parse_int=str, strict=False)

# --- what msgspec refuses although the wire has it: lone surrogates

# Every escape is matched, so that the second half of `\\ud800` (an escaped backslash) is not taken for one.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)|([\ud800-\udfff])",
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile("\\\\[\ud800-\udfff]")
_OBEYED = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # JSON may hold them plainly, but only in strings
_NONCHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0)))


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError("Number out of range")
    return number


def _no_constant(name: str) -> Json:
    raise ValueError("JSON is malformed: invalid character")  # NaN, Infinity


_WITH_SURROGATES = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def _text_of(data: bytes | str) -> str:
    try:
        return data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as bad:
        raise JsonError("invalid UTF-8", bad.start) from None


def _decode_surrogates(data: bytes | str, error: Exception) -> Json:
    """Decode what msgspec refused, by Python's decoder, which takes lone surrogates; or explain what is wrong.

    No Python code runs for each of them, since a request may have millions.
    """
    text = _text_of(data)
    if isinstance(error, RecursionError) or not ("\\ud" in text or "\\uD" in text or _SURROGATE.search(text)):
        raise _refusal(error, len(data)) from None
    try:
        return _WITH_SURROGATES.decode(text)  # type: ignore[no-any-return]
    except (RecursionError, ValueError) as trouble:
        refused: Exception = trouble
    plain = text.replace("\\ud", "\\u0").replace("\\uD", "\\u0")
    try:  # the same text without surrogates, for the words in which msgspec refuses it
        _plain_decode(plain if _ESCAPED_SURROGATE.search(plain) else plain.encode("utf-8", "replace"))
    except DECODE_ERRORS as second:
        refused = second
    refusal = _refusal(refused)
    raise JsonError(refusal.message, at=refusal.at) from None  # its position is one in another text


def _decode_again(decoder: Callable[[bytes | str], T], data: bytes | str, error: Exception) -> T:
    """Decode with lone surrogates masked by text that msgspec accepts, then unmask; or explain what is wrong."""
    text = _text_of(data)
    if not isinstance(error, RecursionError) and (mark := _unused(text)):
        masked, found = _mask(text, mark)
        if found:
            try:
                return _unmask(decoder(masked), re.compile(mark + "(....)"))  # type: ignore[return-value]
            except DECODE_ERRORS as second:
                refusal = _refusal(second)
                raise JsonError(refusal.message, at=refusal.at) from None  # its position is one in the masked text
    raise _refusal(error, len(data)) from None


def _unused(text: str) -> str:
    """Pick a noncharacter that the text does not hold, neither plainly nor escaped."""
    lowered = text.lower()
    return next((mark for mark in _NONCHARACTERS if mark not in text and f"\\u{ord(mark):04x}" not in lowered), "")


def _mask(text: str, mark: str) -> tuple[str, bool]:
    found = False

    def spell(match: re.Match[str]) -> str:
        nonlocal found
        escaped, plain = match.groups()
        if escaped is None and plain is None:
            return match[0]
        found = True
        return f"{mark}{escaped or format(ord(plain), '04x')}"

    return _ESCAPE.sub(spell, text), found


def _unmask(value: object, masked: re.Pattern[str]) -> object:
    """Put the surrogates back wherever they are: keys, values, Struct fields and raw text."""
    if isinstance(value, str):
        return masked.sub(lambda match: chr(int(match[1], 16)), value)
    if isinstance(value, (list, tuple)):
        return type(value)(_unmask(item, masked) for item in value)
    if isinstance(value, dict):
        return {_unmask(key, masked): _unmask(item, masked) for key, item in value.items()}
    if isinstance(value, Raw):
        return Raw(masked.sub(r"\\u\1", str(memoryview(value), "utf-8")).encode())
    if isinstance(value, Struct):
        names = value.__struct_fields__
        return msgspec.structs.replace(value, **{name: _unmask(getattr(value, name), masked) for name in names})
    return value


def _spell(value: object) -> bytes:
    """Encode a value that has lone surrogates somewhere. Slow, rare."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (list, tuple)):
        return b"[%b]" % b",".join(map(_spell, value))
    if isinstance(value, dict):
        return b"{%b}" % b",".join(b"%b:%b" % (quote(key), _spell(item)) for key, item in value.items())
    if isinstance(value, Struct):
        return _spell(msgspec.to_builtins(value, builtin_types=(Raw,), enc_hook=_as_plain))
    return _plain_encode(value)


def _indent(text: bytes) -> bytes:
    plain = str(text, "utf-8")
    mark = _unused(plain)
    masked, _ = _mask(plain, mark) if mark else (plain, False)
    indented = msgspec.json.format(masked, indent=2)
    shown = re.sub(mark + "(....)", r"\\u\1", indented) if mark else indented
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", shown).encode()


# --- JSON text that arrives in pieces, followed just far enough to know when its object is complete.
#
# Only quotes, backslashes and brackets are looked at: whether what lies between them is JSON is not the question.

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')


class ObjectScanner(Struct):
    """Feed text cut anywhere; `complete` turns true with the bracket that closes the first object or array."""

    is_complete: bool = False
    _depth: int = 0
    _quoted: bool = False
    _escaped: bool = False  # a backslash was the last character

    def feed(self, text: str) -> str:
        """Take more text; give what follows the completed object, which is never part of it."""
        position = 0
        if self._escaped and text:
            position, self._escaped = 1, False
        while not self.is_complete:
            found = (_STRING_END if self._quoted else _STRUCTURE).search(text, position)
            if found is None:
                return ""
            position, mark = found.end(), found[0]
            if mark == '"':
                self._quoted = not self._quoted
            elif mark == "\\":
                self._escaped = position == len(text)
                position += 1
            elif mark in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                self.is_complete = self._depth <= 0
        return text[position:]


# --- errors

_BYTE = re.compile(r" \(byte (\d+)\)$")
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")


def _guard(work: Callable[[T], bytes], value: T) -> bytes:
    try:
        return work(value)
    except (RecursionError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _refusal(error) from None


def _refusal(error: Exception, size: int | None = None) -> JsonError:
    """Turn whatever a JSON library raised into our one error. `size` is the input's, to place "truncated"."""
    if isinstance(error, RecursionError):
        return JsonError(_DEEP)
    if isinstance(error, UnicodeError):
        return JsonError("a surrogate outside a string")
    message = str(error)
    if place := _PLACE.search(message):
        return JsonError(message[: place.start()], at=place[1])
    if byte := _BYTE.search(message):
        return JsonError(message[: byte.start()], int(byte[1]))
    return JsonError(message, size if "truncated" in message else None)
