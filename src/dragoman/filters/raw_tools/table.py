"""`Table` describes how one format writes tool calls. tables.py has the shipped ones; table files add others."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct, structs

from dragoman.errors import LocalMisuse
from dragoman.wire import jsonio

_ENTITY = re.compile(r"&(?:amp|quot|apos|lt|gt|#\d{1,7}|#x[0-9a-fA-F]{1,6});")

# The reader of the arguments of a call, or of the calls of a section (see bodies.py).
BodyForm: TypeAlias = Literal["json", "wrapped", "array", "pythonic", "markup", "elements", "gemma"]


class Markup(Struct, frozen=True):
    """How a format writes a parameter as tags. `opens` has a group `key`, and `kind` where the tag names a type."""

    opens: re.Pattern[str]
    open_end: str  # the end of every opening tag
    value_ends: tuple[str, ...]  # end tags of a value
    value_stops: tuple[str, ...] = ()  # other markers that end a value if its end tag is missing
    trims: bool = False  # a line end after the opening tag, and then one before the end tag, belong to the markup
    json_tags: tuple[str, ...] = ("```json", "```")  # allowed around arguments that are one JSON object
    cdata: bool = False  # a value may be between `<![CDATA[` and `]]>`
    unescapes: bool = False  # attributes (the names of tool and parameters) contain XML entities

    def attribute(self, written: str) -> str:
        """Return the value of an attribute, with its entities replaced if the format has any."""
        return _ENTITY.sub(lambda entity: unescape(entity[0]), written) if self.unescapes else written


class Keys(Struct, frozen=True):
    """The keys of a JSON object that is a call."""

    name: tuple[str, ...] = ("name", "function")  # the name, or an object with the name and the arguments
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id",)
    is_name: bool = False  # the object has one member; its key is the tool's name, its value the arguments


class Table(Struct, frozen=True, kw_only=True):
    """One format. `special`: its markers are tokens that ordinary text does not contain; other markers are tags."""

    name: str
    special: bool
    body: BodyForm
    family: str = ""  # tables of one family are used together; "": its own name
    models: str = ""  # models that write this format
    call_begin: tuple[str, ...] = ()
    call_end: tuple[str, ...] = ()
    section_begin: tuple[str, ...] = ()
    section_end: tuple[str, ...] = ()
    header_end: tuple[str, ...] = ()  # the header ends with one of these
    header_stop: tuple[str, ...] = ()  # or before one of these
    header: re.Pattern[str] | None = None  # groups name, index, id; must also match every prefix of a header
    stray: tuple[str, ...] = ()  # end a call; removed after one
    trailing: tuple[str, ...] = ()  # removed directly after a call or section
    drops: tuple[str, ...] = ()  # removed from a JSON body, outside its strings
    reasoning: tuple[tuple[str, str], ...] = ()  # pairs of markers around reasoning
    wrappers: tuple[tuple[str, Literal["text", "reasoning"]], ...] = ()  # removed; text or reasoning follows
    markup: Markup | None = None
    keys: Keys = Keys()  # for bodies `wrapped` and `array`
    string_mark: str = ""  # for body `gemma`: the mark before and after a string
    tag_prefix: str = ""  # for body `elements`: the prefix of every tag
    separators: str = ""  # for bodies `wrapped` and `array`: characters allowed between two calls
    self_closing: bool = False  # a JSON call ends where its JSON ends; it needs no end marker
    at_start: bool = False  # a call has no opening marker, but may begin the reply (with header_stop)
    opener_is_body: bool = False  # `call_begin` is the start of the body, not a marker before it
    by_name_only: bool = False  # `auto` does not search for it
    numbered: bool = False  # headers and ids are Kimi's: `functions.NAME:N`

    def __post_init__(self) -> None:
        if not self.family:
            structs.force_setattr(self, "family", self.name)

    @property
    def unmarked(self) -> bool:
        """Whether calls have no marker before them, so that only the tool's name shows a call."""
        return self.at_start or self.opener_is_body

    @property
    def names_tool(self) -> bool:
        """Whether the header names the tool; else the body does."""
        return self.body not in ("wrapped", "array", "pythonic", "gemma")

    def ends(self) -> tuple[str, ...]:
        """Return all markers that end a call: its end, the end of its section, and the start of anything after it."""
        wrappers = (literal for literal, _ in self.wrappers)
        openers = (*self.section_begin, *(() if self.opener_is_body else self.call_begin))
        return (*self.call_end, *self.section_end, *openers, *self.stray, *wrappers)


# --- Table files: a user's own formats, as TOML. `raw_tools = "file:NAME.toml"` uses one.
#
# A file has one `[[tables]]` entry for each table. A table file is trusted configuration, like the file that names it:
# its regular expressions are run on model output. The checks here find mistakes; they do not protect against a
# malicious author.
#
# A file is read once and cached under its setting. Loading a configuration reads its table files again and puts a
# digest of their content into the setting, so that a changed file is a new setting and no cache is stale.


FILE_PREFIX = "file:"
_MAX_BYTES = 256 * 1024
_MAX_TABLES = 64
_MAX_MARKERS = 64
_LONGEST_MARKER = 256
_LONGEST_PATTERN = 2000
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_RESERVED = frozenset({"auto", "off"})
# A repeated group that itself holds an unbounded repeat, such as (a+)*: its time can grow exponentially.
_NESTED_REPEAT = re.compile(r"\((?:[^()\\]|\\.)*(?<!\\)[*+](?![+])(?:[^()\\]|\\.)*\)(?:[*+]|\{\d*,\})(?!\+)")

_FLAGS = re.compile(r"\(\?([imsx]+)\)")  # at the beginning of a regular expression
_FLAG_OF = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL, "x": re.VERBOSE}

_loaded: dict[str, tuple[Table, ...]] = {}


class TableFileError(LocalMisuse):
    """A table file is invalid. The message names the file and the field."""


# --- files


def is_file_choice(choice: str) -> bool:
    """Return whether a `raw_tools` setting names a table file."""
    return choice.startswith(FILE_PREFIX)


def tables_in(choice: str) -> tuple[Table, ...]:
    """Return the tables of a `file:` setting; read the file if it is not cached. Raises TableFileError."""
    tables = _loaded.get(choice)
    if tables is None:
        tables = _loaded[choice] = read(Path(choice.removeprefix(FILE_PREFIX)).expanduser())
    return tables


def load_table_file(path: Path) -> str:
    """Read a table file again and return the setting that names this content. Raises TableFileError."""
    return register_tables(read(path), str(path))


def register_tables(tables: tuple[Table, ...], place: str) -> str:
    """Cache tables for `tables_in` and return the setting that names them."""
    choice = f"{FILE_PREFIX}{place}#{sha256(render_tables(tables).encode()).hexdigest()[:12]}"
    _loaded[choice] = tables
    return choice


def read(path: Path) -> tuple[Table, ...]:
    """Read a table file. Raises TableFileError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise TableFileError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > _MAX_BYTES:
        raise TableFileError(f"{path}: the file has more than {_MAX_BYTES} bytes; split it into several table files")
    try:
        return parse_tables(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise TableFileError(f"{path}: the file is not UTF-8 text") from None


# --- reading


def parse_tables(text: str, place: str = "table file") -> tuple[Table, ...]:
    """Parse the text of a table file. `place` is its name in messages. Raises TableFileError."""
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TableFileError(f"{place}: not TOML: {error}") from None
    _known(tree, ("tables",), place, "")
    entries = tree.get("tables")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise TableFileError(f"{place}: the file has no [[tables]] entry; add one for each table")
    if len(entries) > _MAX_TABLES:
        raise TableFileError(f"{place}: a file may have at most {_MAX_TABLES} tables")
    tables = tuple(_table(entry, place, f"tables[{number}]") for number, entry in enumerate(entries))
    names = [table.name for table in tables]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise TableFileError(f"{place}: tables[{number}].name: {name!r} is the name of another table in this file")
    return tables


def _table(entry: Mapping[str, Any], place: str, at: str) -> Table:
    _known(entry, Table.__struct_fields__, place, at)
    for field, kind in (("markup", Markup), ("keys", Keys)):
        if isinstance(entry.get(field), dict):
            _known(entry[field], kind.__struct_fields__, place, f"{at}.{field}")
    try:
        table = msgspec.convert(entry, Table, dec_hook=_decode)
    except msgspec.ValidationError as error:
        message, _, inner = str(error).partition(" - at `$")
        hint = f"; known: {', '.join(get_args(BodyForm))}" if inner == ".body`" else ""
        raise TableFileError(f"{place}: {at}{inner.rstrip('`')}: {message[:1].lower()}{message[1:]}{hint}") from None
    for field, problem in _problems(table):
        raise TableFileError(f"{place}: {at}{'.' if field else ''}{field}: {problem}")
    return table


def _known(entry: Mapping[str, Any], fields: Iterable[str], place: str, at: str) -> None:
    fields = tuple(fields)
    for name in entry:
        if name not in fields:
            where = f"{at}.{name}" if at else name
            raise TableFileError(f"{place}: {where}: this field is unknown; the fields are: {', '.join(fields)}")


def _decode(kind: type, value: Any) -> Any:
    """Compile a regular expression: msgspec calls this for types that it does not know. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"expected a regular expression in a string, got {type(value).__name__}")
    if len(value) > _LONGEST_PATTERN:
        raise ValueError(f"a regular expression may have at most {_LONGEST_PATTERN} characters")
    if _NESTED_REPEAT.search(value):
        raise ValueError("a repeat inside a repeated group can take exponential time; make one of them bounded")
    flags = re.RegexFlag(0)
    if written := _FLAGS.match(value):
        for letter in written[1]:
            flags |= _FLAG_OF[letter]
        value = value[written.end() :]
    try:
        return re.compile(value, flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the regular expression is not valid: {error}") from None


# --- checks of a whole table


def _problems(table: Table) -> Iterable[tuple[str, str]]:
    """Yield the errors of a table: the field and a sentence."""
    for field in ("name", "family"):
        value = table.name if field == "name" else table.family
        if not _NAME.match(value) or value in _RESERVED:
            yield field, f"{value!r} is not allowed; use letters, digits, _ . and -, and neither auto nor off"
    for field, markers in _markers(table):
        if len(markers) > _MAX_MARKERS:
            yield field, f"a table may have at most {_MAX_MARKERS} markers"
        for marker in markers:
            if (not marker.strip() and field not in ("header_end", "header_stop")) or not marker:
                yield field, "a marker must not be empty"
            if len(marker) > _LONGEST_MARKER:
                yield field, f"a marker may have at most {_LONGEST_MARKER} characters"
    if not (table.call_begin or table.section_begin or table.at_start):
        yield "", "the table does not define where a call begins: set call_begin, section_begin or at_start"
    yield from _body_problems(table)


def _body_problems(table: Table) -> Iterable[tuple[str, str]]:
    if table.body == "markup" and table.markup is None:
        yield "markup", "is missing; body markup needs it"
    if table.body == "json" and not (table.header_end or table.header_stop):
        yield "header_end", 'is missing; set the text after the name, or header_stop = ["{"] if JSON follows it'
    if table.body == "gemma" and not table.string_mark:
        yield "string_mark", "is missing; body gemma needs it"
    if table.header is not None and "name" not in table.header.groupindex:
        yield "header", "has no group (?P<name>…)"
    if table.markup is not None and "key" not in table.markup.opens.groupindex:
        yield "markup.opens", "has no group (?P<key>…)"


def _markers(table: Table) -> Iterable[tuple[str, tuple[str, ...]]]:
    if table.markup is not None:
        yield "markup.open_end", (table.markup.open_end,)
    for prefix, part in (("", table), ("markup.", table.markup), ("keys.", table.keys)):
        for field, value in structs.asdict(part).items() if part is not None else ():
            if isinstance(value, tuple):  # markers, or pairs of them
                yield (
                    prefix + field,
                    tuple(one for each in value for one in (each if isinstance(each, tuple) else [each])),
                )


# --- writing


def render_tables(tables: Iterable[Table]) -> str:
    """Write tables as a table file. Fields that have their default are left out."""
    return "\n".join(_entry(table) for table in tables)


def _entry(table: Table) -> str:
    lines = ["[[tables]]", *_fields(table)]
    for field, part in (("markup", table.markup), ("keys", table.keys)):
        if part is not None and part != Keys():
            lines += [f"[tables.{field}]", *_fields(part)]
    return "\n".join(lines) + "\n"


def _fields(part: Struct) -> Iterable[str]:
    for field in structs.fields(part):
        value = structs.asdict(part)[field.name]
        if value is not None and value != field.default and not isinstance(value, Struct):
            yield f"{field.name} = {_value(value)}"


def _value(value: object) -> str:
    """Return a value as TOML: as JSON, or as a literal string if that keeps regular expressions readable."""
    match value:
        case re.Pattern():
            letters = "".join(letter for letter, flag in _FLAG_OF.items() if value.flags & flag)
            return _value((f"(?{letters})" if letters else "") + value.pattern)
        case tuple():
            return f"[{', '.join(map(_value, value))}]"
        case str() if "'" not in value and value.isprintable() and ("\\" in value or '"' in value):
            return f"'{value}'"
        case _:
            return jsonio.encode(value).decode().replace("\x7f", "\\u007f")  # the only character that differs
