"""JSON for the whole project: msgspec where it can, a slower exact path where it refuses, one exception for all errors.

Decoded values: integers of any size are exact (up to Python's limit of 4300 digits); other numbers are doubles, and
`1e400` is refused instead of becoming infinity; the last of duplicate keys counts; lone surrogates, which clients send
in escaped form, are kept. `NaN` and `Infinity` are not JSON. Invalid UTF-8 is refused, except inside parts that a typed
decoder skips or keeps as `Raw`, which are not decoded. Pure: no I/O.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
JsonObject: TypeAlias = dict[str, Json]
Raw: TypeAlias = msgspec.Raw  # a part of a payload that is not decoded
T = TypeVar("T")


class JsonError(ValueError):
    """A text is not JSON, or a value cannot be encoded as JSON.

    `position` is an approximate byte offset, None if it is not known. `at` is a path such as `choices[0].index` if the
    text is JSON but does not match the requested type.
    """

    def __init__(self, message: str, position: int | None = None, at: str = "") -> None:
        super().__init__(message if position is None else f"{message} (byte {position})")
        self.message = message
        self.position = position
        self.at = at


class ObjectText(str):
    """The JSON text of an object, encoded by this module: it needs no validation and no second encoding.

    It has no lone surrogates.
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
    """Return an ObjectText as a plain str: msgspec does not encode subclasses of str."""
    if isinstance(value, ObjectText):
        return str(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


# ValueError: invalid Unicode, and integers of more than 4300 digits.
DECODE_ERRORS = (msgspec.MsgspecError, RecursionError, ValueError)
_TOO_DEEP = "nested too deeply"

_plain_decode: Callable[[bytes | str], Json] = msgspec.json.Decoder().decode
_exact_decode = msgspec.json.Decoder(float_hook=Decimal).decode
_plain_encode = msgspec.json.Encoder(enc_hook=_as_plain).encode
_QUOTE = 0x22
_ODD_ESCAPE = re.compile(rb'\\[^\\"nrtbf]')  # an escape that msgspec does not write, or a rare control character
encode_text: Callable[[str], bytes] = _plain_encode  # only for text without lone surrogates
_decode_object = msgspec.json.Decoder(dict[str, Any]).decode


def decode(data: bytes | str) -> Json:
    """Decode one JSON text. Raises JsonError."""
    if isinstance(data, ObjectText):
        return data.value
    try:
        return _plain_decode(data)
    except DECODE_ERRORS as error:
        return _decode_surrogates(data, error)


def decode_exact(data: bytes) -> object:
    """Decode one JSON text with every number that has a decimal point as a Decimal. Raises JsonError."""
    try:
        return _exact_decode(data)
    except DECODE_ERRORS as error:
        raise _to_json_error(error, len(data)) from None


def try_decode(data: bytes | str) -> Json:
    """Return the JSON value of a text, or None if it is not JSON."""
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
    """Return a decoder into `kind`, usually a Struct of a stream chunk. The decoder raises JsonError."""
    strict_decoder = msgspec.json.Decoder(kind).decode

    def read(data: bytes | str) -> T:
        try:
            return strict_decoder(data)
        except DECODE_ERRORS as error:
            try:
                return msgspec.convert(_decode_surrogates(data, error), kind)
            except (JsonError, *DECODE_ERRORS):  # the text does not match, or has a part that is kept as `Raw`
                return _decode_again(strict_decoder, data, error)

    return read


def optional_decoder(kind: type[T]) -> Callable[[bytes], T | None]:
    """Return a decoder into `kind` that returns None if the text does not match or is not JSON."""
    strict_decoder = msgspec.json.Decoder(kind).decode

    def read(data: bytes) -> T | None:
        try:
            return strict_decoder(data)
        except DECODE_ERRORS:
            return None

    return read


def encode(value: object) -> bytes:
    """Encode compactly. `value` may contain Structs and `Raw`; NaN becomes null. Raises JsonError."""
    try:
        return _plain_encode(value)
    except UnicodeEncodeError:
        return _guard(_encode_surrogates, value)
    except (RecursionError, TypeError, ValueError) as error:
        raise _to_json_error(error) from None


def decode_at(text: str, at: int) -> tuple[Json, int]:
    """Decode the JSON value that starts at a position; return it and the position of its end. Raises JsonError."""
    try:
        value, end = _AT.raw_decode(text, at)
    except (RecursionError, ValueError) as error:
        raise JsonError(_TOO_DEEP if isinstance(error, RecursionError) else "expected a JSON value", at) from None
    return value, end


def encode_like_python(
    value: Json,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Encode like `json.dumps`, with its spaces, as chat templates expect of `tojson`."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def is_encodable(value: object) -> bool:
    """Return whether a value can be encoded and has no lone surrogates."""
    try:
        _plain_encode(value)
    except (RecursionError, TypeError, ValueError):
        return False
    return True


def encode_to_text(value: Json) -> str:
    """Encode as text; the text of an object is an ObjectText. Raises JsonError."""
    if isinstance(value, dict):
        try:
            text = _object_text(_plain_encode(value))
        except (RecursionError, TypeError, ValueError):
            pass  # `encode` has a slower path, or raises JsonError
        else:
            text._value = value
            return text
    return encode(value).decode()


def encode_raw_parts(parts: Mapping[str, Raw]) -> ObjectText:
    """Encode an object with undecoded values; the text is the same as after decoding them. Raises JsonError.

    Strings are copied, unless they have escapes that the encoder would not write. Other values are decoded first.
    """
    values = {name: value if memoryview(value)[0] == _QUOTE else decode(value) for name, value in parts.items()}
    try:
        data = _plain_encode(values)
        if _ODD_ESCAPE.search(data) is not None:
            data = _plain_encode(_decode_object(data))
        return _object_text(data)
    except DECODE_ERRORS as error:
        raise _to_json_error(error) from None


def _object_text(data: bytes) -> ObjectText:
    text = ObjectText(data, "utf-8")
    text.data = data
    return text


def decode_object(text: str | bytes) -> dict[str, Json] | None:
    """Return the JSON object of a text, or None if it is not an object."""
    value = try_decode(text)
    return value if isinstance(value, dict) else None


def encode_pretty(value: object) -> bytes:
    """Encode for display: indented by two spaces, with terminal control characters escaped. Raises JsonError."""
    return _guard(_indent, encode(value))


def strict_decoder(kind: type[T]) -> Callable[[bytes], T]:
    """Return a decoder into `kind` that raises one of DECODE_ERRORS if the text does not match or is not JSON."""
    return msgspec.json.Decoder(kind).decode


def quote(text: str) -> bytes:
    """Return the JSON string literal of any text, quotes included."""
    try:
        return _plain_encode(text)
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form, only an escape
        return json.dumps(text).encode()


def may_have_duplicates(data: bytes, names: int, colons: int) -> bool:
    """Return whether an object of this text may have a duplicate name.

    `names` and `colons` count the names and the colons in strings of the decoded value. A dropped duplicate name would
    have one more colon in the text, unless an escape hides another colon.
    """
    return _count_colons(data) != names + colons or (colons > 0 and _HIDDEN_COLON.search(data) is not None)


def find_duplicate_name(data: bytes, tree: Json = None) -> str | None:
    """Return a name that occurs twice in one object of this text, or None. `decode` uses the last of its values.

    With `tree`, the decoded text, a fast check excludes most texts.
    """
    if tree is not None and _has_no_duplicates(data, tree):
        return None
    try:
        _DUPLICATE_FINDER.decode(data.decode())
    except _DuplicateName as duplicate:
        return duplicate.name
    except (RecursionError, ValueError):
        pass
    return None


def _has_no_duplicates(data: bytes, tree: Json) -> bool:
    """Return whether the text has as many colons as the tree: one for each name, and those in strings.

    A dropped duplicate name would have one more. An escaped colon makes the count useless: return False.
    """
    fields = in_strings = 0
    names: set[str] = set()
    level: list[Json] = [tree]
    while level:
        in_strings += sum([value.count(":") for value in level if type(value) is str and ":" in value])
        objects = [value for value in level if type(value) is dict]
        fields += sum(map(len, objects))
        names.update(*objects)
        arrays = [value for value in level if type(value) is list]
        level = [each for value in objects for each in value.values()] + [each for value in arrays for each in value]
    if _count_colons(data) != fields + in_strings or ":" in "".join(names):
        return False
    return not in_strings or _HIDDEN_COLON.search(data) is None


def _count_colons(data: bytes) -> int:
    return len(data) - len(data.replace(b":", b""))  # several times as fast as `count` in long texts


class _DuplicateName(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> None:
    if len(dict(pairs)) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateName(next(name for name, _ in pairs if name in seen or seen.add(name)))  # type: ignore[func-returns-value]


_HIDDEN_COLON = re.compile(rb"\\u003[aA]")
_AT = json.JSONDecoder()
_DUPLICATE_FINDER = json.JSONDecoder(object_pairs_hook=_refuse_duplicates, parse_float=str, parse_int=str, strict=False)

# --- lone surrogates, which clients send and msgspec refuses

# Every escape is matched, so that the second half of `\\ud800` (an escaped backslash) is not taken for one.
_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u([dD][89a-fA-F][0-9a-fA-F]{2})|.)|([\ud800-\udfff])",
    re.DOTALL,
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile("\\\\[\ud800-\udfff]")
_TERMINAL_CONTROLS = re.compile(
    "[\x7f-\x9f\u2028-\u202e\u2066-\u2069]"
)  # controls and bidi marks, which JSON allows unescaped in strings
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
    """Decode a text that msgspec refused, with Python's decoder, which accepts lone surrogates. Raises JsonError.

    No Python code runs for each surrogate, because a request may have millions.
    """
    text = _text_of(data)
    if isinstance(error, RecursionError) or not ("\\ud" in text or "\\uD" in text or _SURROGATE.search(text)):
        raise _to_json_error(error, len(data)) from None
    try:
        return _WITH_SURROGATES.decode(text)  # type: ignore[no-any-return]
    except (RecursionError, ValueError) as first:
        refused: Exception = first
    plain = text.replace("\\ud", "\\u0").replace("\\uD", "\\u0")
    try:  # decode the text without surrogates, for the error message of msgspec
        _plain_decode(plain if _ESCAPED_SURROGATE.search(plain) else plain.encode("utf-8", "replace"))
    except DECODE_ERRORS as second:
        refused = second
    converted = _to_json_error(refused)
    raise JsonError(converted.message, at=converted.at) from None  # the position is that of the changed text


def _decode_again(decoder: Callable[[bytes | str], T], data: bytes | str, error: Exception) -> T:
    """Decode with lone surrogates masked by text that msgspec accepts, then unmask them. Raises JsonError."""
    text = _text_of(data)
    if not isinstance(error, RecursionError) and (mark := _unused_character(text)):
        masked, was_masked = _mask(text, mark)
        if was_masked:
            try:
                return _unmask(decoder(masked), re.compile(mark + "(....)"))  # type: ignore[return-value]
            except DECODE_ERRORS as second:
                converted = _to_json_error(second)
                raise JsonError(converted.message, at=converted.at) from None  # the position is that of the masked text
    raise _to_json_error(error, len(data)) from None


def _unused_character(text: str) -> str:
    """Return a noncharacter that does not occur in the text, plain or escaped; "" if all do."""
    lowered = text.lower()
    return next((mark for mark in _NONCHARACTERS if mark not in text and f"\\u{ord(mark):04x}" not in lowered), "")


def _mask(text: str, mark: str) -> tuple[str, bool]:
    is_masked = False

    def replace(match: re.Match[str]) -> str:
        nonlocal is_masked
        escaped, plain = match.groups()
        if escaped is None and plain is None:
            return match[0]
        is_masked = True
        return f"{mark}{escaped or format(ord(plain), '04x')}"

    return _ESCAPE.sub(replace, text), is_masked


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


def _encode_surrogates(value: object) -> bytes:
    """Encode a value that has lone surrogates somewhere. Slow, rare."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (list, tuple)):
        return b"[%b]" % b",".join(map(_encode_surrogates, value))
    if isinstance(value, dict):
        return b"{%b}" % b",".join(b"%b:%b" % (quote(key), _encode_surrogates(item)) for key, item in value.items())
    if isinstance(value, Struct):
        return _encode_surrogates(msgspec.to_builtins(value, builtin_types=(Raw,), enc_hook=_as_plain))
    return _plain_encode(value)


def _indent(text: bytes) -> bytes:
    plain = str(text, "utf-8")
    mark = _unused_character(plain)
    masked, _ = _mask(plain, mark) if mark else (plain, False)
    indented = msgspec.json.format(masked, indent=2)
    shown = re.sub(mark + "(....)", r"\\u\1", indented) if mark else indented
    return _TERMINAL_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", shown).encode()


# --- JSON text that arrives in pieces: find the end of its object.
#
# The scanner reads only quotes, backslashes and brackets; it does not validate the text between them.

_STRUCTURE = re.compile(r'["{}\[\]]')
_STRING_END = re.compile(r'["\\]')


class ObjectScanner(Struct):
    """Scans text cut anywhere; the bracket that closes the first object or array sets `is_complete`."""

    is_complete: bool = False
    _depth: int = 0
    _quoted: bool = False
    _escaped: bool = False  # a backslash was the last character

    def feed(self, text: str) -> str:
        """Scan more text; return the part after the end of the object, "" while it is incomplete."""
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
        raise _to_json_error(error) from None


def _to_json_error(error: Exception, size: int | None = None) -> JsonError:
    """Convert an error of a JSON library to JsonError. `size` of the input is the position of "truncated" errors."""
    if isinstance(error, RecursionError):
        return JsonError(_TOO_DEEP)
    if isinstance(error, UnicodeError):
        return JsonError("a surrogate outside a string")
    message = str(error)
    if place := _PLACE.search(message):
        return JsonError(message[: place.start()], at=place[1])
    if byte := _BYTE.search(message):
        return JsonError(message[: byte.start()], int(byte[1]))
    return JsonError(message, size if "truncated" in message else None)
