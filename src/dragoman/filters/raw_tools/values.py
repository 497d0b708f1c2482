"""Turn a value that a model wrote as text into JSON, by the schema that the request declares for it.

Formats that write parameters as markup write `5` for the number 5 and for the string "5". The declared schema decides.
If it allows both, the markup's own type decides if it has one, otherwise the type that is not a string. A value that is
JSON of an allowed type keeps its bytes. A value that fits no type becomes a string, so that none is lost.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from dragoman.filters.raw_tools.schemas import SchemaDocument, json_type, type_named
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

WHITE_SPACE = " \t\r\n"
# A single parameter of this name that the schema does not declare holds the whole arguments.
_WRAPPERS = frozenset({"arguments", "input", "parameters", "args"})
_PYTHON_LIMIT = 128 * 1024  # characters of a Python literal; its syntax tree takes a hundred times as much memory
_DEEPEST_QUOTING = 3  # how often JSON may have been written as a string within a string

_WORDS = {
    **dict.fromkeys(("True", "TRUE"), "true"),
    **dict.fromkeys(("False", "FALSE"), "false"),
    **dict.fromkeys(("None", "Null", "NULL"), "null"),
}
_BOOLEAN_WORDS = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}
_NUMBER = re.compile(r"([+-]?)0*(\d*)(?:\.(\d*))?([eE][+-]?\d+)?")
_WHOLE = re.compile(r"(-?\d+)\.0+")
JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_NAMES = {"true": True, "false": False, "null": None}


class ParameterSchema:
    """The schema of one value: a parameter, a member of one, an item of one."""

    __slots__ = ("_document", "_kinds", "_schema", "_values", "declared", "wrapper")

    def __init__(self, document: SchemaDocument | None, schema: Json, declared: bool, wrapper: bool = False) -> None:
        self.declared = declared  # whether the schema has this property
        self.wrapper = wrapper  # if the value is an object and the only one, it is the whole arguments
        self._document = document
        self._schema = schema
        self._kinds: frozenset[str] = frozenset()  # allowed types; empty: any
        self._values: list[Json] | None = None
        if document is not None and schema is not None:
            self._kinds = document.kinds(schema) or frozenset()
            self._values = document.values(schema)

    def streams(self, type_word: str = "") -> bool:
        """Return whether the value can only be a string, so that it may be sent, escaped, while it arrives.

        `type_word` is the type in the markup itself, as the format writes it.
        """
        hint = _hint(type_word)
        if self._values is not None:
            return False  # short, and worth comparing with the list
        if not self._kinds:
            return hint == "string"
        return "string" in self._kinds and (hint == "string" or (not hint and len(self._kinds) == 1))

    def allows(self, kind: str) -> bool:
        """Return whether the schema allows this JSON type explicitly. False if it names no types."""
        return kind in self._kinds

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters of the tool, in the order in which its schema declares them."""
        return self._document.names() if self._document is not None else ()

    @property
    def is_scalar(self) -> bool:
        """Whether the schema allows neither an object nor an array."""
        return bool(self._kinds) and not self._kinds & {"object", "array"}

    def member(self, key: str) -> ParameterSchema:
        """Return the schema of a member of this object."""
        if self._document is None or self._schema is None:
            return UNKNOWN_PARAMETER
        schema = self._document.member(self._schema, key)
        if schema is not None:
            return ParameterSchema(self._document, schema, True)
        return ParameterSchema(self._document, self._document.other_member(self._schema, key), False)

    def item(self, index: int) -> ParameterSchema:
        """Return the schema of an item of this array."""
        if self._document is None or self._schema is None:
            return UNKNOWN_PARAMETER
        schema = self._document.item(self._schema, index)
        return ParameterSchema(self._document, schema, schema is not None)

    def as_json(self, raw: str, type_word: str = "") -> str:
        """Return the value as JSON text. `type_word` is the type in the markup itself, as the format writes it."""
        hint = _hint(type_word)
        if not self._kinds:
            return _untyped(raw, hint)
        if self._values is not None:
            value = self._listed(raw, hint)
            if value is not None:
                return value
        text = raw.strip(WHITE_SPACE)
        may_be_text = "string" in self._kinds
        if may_be_text and hint == "string":
            return quote_json(raw)
        value = self._first_fitting(text, not may_be_text or hint in self._kinds)
        if value is not None:
            return value
        if may_be_text:  # markup that declares its values to be JSON may quote a string
            return text if hint and isinstance(_decoded(text), str) else quote_json(raw)
        return quote_json(raw) if _decoded(text) is _NOT_JSON else text

    def _first_fitting(self, text: str, loose: bool) -> str | None:
        """Return the first reading of the text that is JSON of an allowed type other than string."""
        for reading in _readings(text, loose, self._kinds):
            value = _decoded(reading)
            if not isinstance(value, str | _NotJson) and self._fits(value):
                whole = _WHOLE.fullmatch(reading)
                return whole[1] if whole and "number" not in self._kinds else reading
        return None

    def _fits(self, value: Json) -> bool:
        if json_type(value) not in self._kinds:
            return False
        return self._values is None or any(_same(value, each) for each in self._values)

    def _listed(self, raw: str, hint: str) -> str | None:
        """Return the value of the enumeration that the text means; None if there is none."""
        text = raw.strip(WHITE_SPACE)
        if hint != "string" and (value := self._first_fitting(text, loose=True)) is not None:
            return value
        inner = _decoded(text)
        for each in (raw, text, inner):
            if isinstance(each, str) and each in (self._values or ()):
                return quote_json(each)
        return self._first_fitting(text, loose=True)


FindParameter: TypeAlias = Callable[
    [str, str], ParameterSchema
]  # the tool's name as written ("" for the header's), the parameter

UNKNOWN_PARAMETER = ParameterSchema(None, None, False)
_OBJECT = ParameterSchema(SchemaDocument({}), {"type": "object"}, True)


def find_parameter(schema: Mapping[str, Json] | None, key: str) -> ParameterSchema:
    """Return the schema of a tool's parameter. `schema` None: the tool's schema is unknown."""
    if schema is None:
        return UNKNOWN_PARAMETER
    document = SchemaDocument(schema)
    member = document.member(document.root, key)
    if member is not None:
        return ParameterSchema(document, member, True)
    other = document.other_member(document.root, key)
    return ParameterSchema(document, other, False, key in _WRAPPERS and other is None and bool(document.names()))


def fits_schema(schema: Mapping[str, Json] | None, arguments: str) -> bool:
    """Return whether a text is a JSON object with all properties that the schema requires."""
    value = jsonio.decode_object(arguments)
    return value is not None and SchemaDocument(schema or {}).required_names() <= value.keys()


def object_text(raw: str) -> str | None:
    """Return the JSON object in a text, also in a string or as a Python literal; None if there is none."""
    return _OBJECT._first_fitting(raw.strip(WHITE_SPACE), True)


def quote_json(text: str) -> str:
    """Return a text as a JSON string."""
    return jsonio.quote(text).decode()


def escape_json(text: str) -> str:
    """Return a text as it is written between the quotes of a JSON string."""
    plain = text.isprintable() and '"' not in text and "\\" not in text
    return text if plain else quote_json(text)[1:-1]


# --- readings of a text


class _NotJson:
    """The type of `_NOT_JSON`, the result for text that is not JSON."""


_NOT_JSON = _NotJson()


def _decoded(text: str) -> Json | _NotJson:
    try:
        return jsonio.decode(text)
    except jsonio.JsonError:
        return _NOT_JSON


def _hint(type_word: str) -> str:
    """Return the JSON type that the markup names; "json": any JSON; "": none."""
    if type_word in ("true", "false"):  # DSML: string="true" or "false"
        return "string" if type_word == "true" else "json"
    return type_named(type_word)


def _untyped(raw: str, hint: str) -> str:
    """Return a value without a schema: the markup decides, otherwise only objects and arrays are JSON."""
    if hint == "string":
        return quote_json(raw)
    text = raw.strip(WHITE_SPACE)
    if hint in ("", "json"):
        text = _WORDS.get(text, text) if hint else text
        value = _decoded(text)
        return text if value is not _NOT_JSON and (hint or isinstance(value, dict | list)) else quote_json(raw)
    return ParameterSchema(_OBJECT._document, {"type": hint}, True).as_json(raw)


def _readings(text: str, loose: bool, kinds: frozenset[str]) -> Iterator[str]:
    """Yield the readings of a text as JSON, the most literal first."""
    yield text
    yield _WORDS.get(text, text)
    if not loose:
        return
    if not text:
        yield "null"
    if "integer" in kinds and (number := _number(text)):
        yield number
    if "boolean" in kinds:
        yield _BOOLEAN_WORDS.get(text.lower(), text)
    if kinds & {"object", "array"} and text[:1] in ("{", "[", "("):
        yield from _structures(text)
    if text[:1] == '"':
        yield from _unquoted(text, kinds)


def _unquoted(text: str, kinds: frozenset[str]) -> Iterator[str]:
    """Yield the readings of a value that was written as a JSON string."""
    for _ in range(_DEEPEST_QUOTING):
        inner = _decoded(_with_escapes(text))
        if not isinstance(inner, str):
            return
        text = inner.strip(WHITE_SPACE)
        if text[:1] != '"':
            yield from _readings(text, bool(text), kinds)
            return


def _structures(text: str) -> Iterator[str]:
    """Yield the readings of an object or array that is not valid JSON."""
    yield _with_escapes(text)
    if '\\"' in text:
        inner = _decoded(_with_escapes(f'"{text}"') if '"' not in text.replace('\\"', "") else text)
        if isinstance(inner, str):
            yield inner
            yield _with_escapes(inner)
    python = _python(text)
    if python is not None:
        yield python


def _with_escapes(text: str) -> str:
    """Return JSON text with the raw control characters in its strings escaped."""
    if not _CONTROL.search(text):
        return text
    return JSON_STRING.sub(lambda string: _CONTROL.sub(lambda char: f"\\u{ord(char[0]):04x}", string[0]), text)


def _number(text: str) -> str:
    """Return a number as JSON writes it, also for `+5`, `007`, `.5` and `5.`; "" if the text is not a number."""
    found = _NUMBER.fullmatch(text.replace("_", "") if re.fullmatch(r"[+-]?\d[\d_]*\d", text) else text)
    if found is None or not re.search(r"\d", text):
        return ""
    sign, whole, fraction, exponent = found.groups()
    if fraction is not None:
        fraction = "." + (fraction or "0")
    return f"{'-' if sign == '-' else ''}{whole or '0'}{fraction or ''}{exponent or ''}"


def _python(text: str) -> str | None:
    """Return the JSON of a Python literal, which may also contain `true`, `false` and `null`."""
    if len(text) > _PYTHON_LIMIT:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # escapes that Python does not know
            tree = _Named().visit(ast.parse(text, mode="eval"))
        return jsonio.encode(_plain(ast.literal_eval(tree))).decode()
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


class _Named(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.copy_location(ast.Constant(_NAMES[node.id]), node) if node.id in _NAMES else node


def _plain(value: object) -> Json:
    """Return a Python value with JSON's types. Raises ValueError if JSON has no such type."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() if value - value == 0:  # neither infinite nor not a number
            return value
        case dict():
            return {key if isinstance(key, str) else _key(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case set():
            return [_plain(each) for each in sorted(value, key=repr)]
        case _:
            raise ValueError(f"the arguments have a value of type {type(value).__name__}, which JSON cannot represent")


def _key(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return jsonio.encode(value).decode()
    raise ValueError(f"the arguments have a key of type {type(value).__name__}; keys must be strings")


def _same(one: Json, other: Json) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and one == other
