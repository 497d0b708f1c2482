"""Table: how one format writes tool calls, as data. tables.py has those that ship, table files bring others."""

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

# Which reader reads the arguments of a call, or the calls of a section (bodies.py has them by name).
Body: TypeAlias = Literal["json", "wrapped", "array", "pythonic", "markup", "elements", "gemma"]


class Markup(Struct, frozen=True):
    """How a format writes a parameter as tags. `opens` has a group `key`, and `kind` where the tag names a type."""

    opens: re.Pattern[str]
    open_end: str  # every opening tag ends with it
    value_ends: tuple[str, ...]  # these belong to the value
    value_stops: tuple[str, ...] = ()  # these do not, but where the end tag is missing they end the value, too
    trims: bool = False  # a line end after the opening tag, and then one before the end tag, belong to the markup
    json_tags: tuple[str, ...] = ("```json", "```")  # may stand around arguments that are one JSON object
    cdata: bool = False  # a value may stand between `<![CDATA[` and `]]>`
    unescapes: bool = False  # attributes, which are the tool's name and the parameters' names, hold XML entities

    def attribute(self, written: str) -> str:
        """Return what an attribute says, its entities replaced if the format has any."""
        return _ENTITY.sub(lambda entity: unescape(entity[0]), written) if self.unescapes else written


class Keys(Struct, frozen=True):
    """The members of a JSON object that is a call."""

    name: tuple[str, ...] = ("name", "function")  # or an object under one of these has the name and the arguments
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ("id",)
    is_name: bool = False  # the object has one member; its key is the tool's name, its value the arguments


class Table(Struct, frozen=True, kw_only=True):
    """One format. `special`: its markers are tokens that ordinary text does not contain; other markers are tags."""

    name: str
    special: bool
    body: Body
    family: str = ""  # tables of one family are read side by side; "": its own name
    models: str = ""  # who writes it
    call_begin: tuple[str, ...] = ()
    call_end: tuple[str, ...] = ()
    section_begin: tuple[str, ...] = ()
    section_end: tuple[str, ...] = ()
    header_end: tuple[str, ...] = ()  # the header ends with one of these
    header_stop: tuple[str, ...] = ()  # or before one of these
    header: re.Pattern[str] | None = None  # groups name, index, id; must match every beginning of a header, too
    stray: tuple[str, ...] = ()  # end a call; are removed after one
    trailing: tuple[str, ...] = ()  # removed directly after a call or section
    drops: tuple[str, ...] = ()  # removed from a JSON body, outside its strings
    reasoning: tuple[tuple[str, str], ...] = ()  # pairs of markers around reasoning
    wrappers: tuple[tuple[str, Literal["text", "reasoning"]], ...] = ()  # removed; what follows is text or reasoning
    markup: Markup | None = None
    keys: Keys = Keys()  # of bodies `wrapped` and `array`
    string_mark: str = ""  # of body `gemma`: what stands before and after a string
    tag_prefix: str = ""  # of body `elements`: what stands before every tag
    separators: str = ""  # of bodies `wrapped` and `array`: characters that may stand between two calls
    self_closing: bool = False  # a JSON call ends where its JSON ends; it needs no end marker
    at_start: bool = False  # a call has no opening marker, but may begin the answer (header_stop says how)
    opener_is_body: bool = False  # what `call_begin` says is the beginning of the body, not a marker before it
    by_name_only: bool = False  # `auto` does not look for it
    numbered: bool = False  # headers and ids are Kimi's: `functions.NAME:N`

    def __post_init__(self) -> None:
        if not self.family:
            structs.force_setattr(self, "family", self.name)

    @property
    def unmarked(self) -> bool:
        """Whether no marker stands before a call, so that only the tool's name tells that it is one."""
        return self.at_start or self.opener_is_body

    @property
    def names_tool(self) -> bool:
        """Whether the header names the tool; else the body does."""
        return self.body not in ("wrapped", "array", "pythonic", "gemma")

    def ends(self) -> tuple[str, ...]:
        """All that ends a call: its end, the end of its section, and the beginning of what can follow."""
        wrappers = (literal for literal, _ in self.wrappers)
        openers = (*self.section_begin, *(() if self.opener_is_body else self.call_begin))
        return (*self.call_end, *self.section_end, *openers, *self.stray, *wrappers)


# --- Table files: formats that a user brings, as TOML. `raw_tools = "file:NAME.toml"` uses one.
#
# A file has one `[[tables]]` entry for each table. A table file is trusted configuration, like the file that names it:
# its regular expressions are run on model output. The checks here find mistakes, they are no defence against an author
# who means harm.
#
# A file is read once and kept under the setting that names it. Loading a configuration reads its table files again and
# puts a digest of their content into the setting, so that a changed file is another setting and no cache is stale.


FILE_PREFIX = "file:"
_MOST_BYTES = 256 * 1024
_MOST_TABLES = 64
_MOST_MARKERS = 64
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
    """A table file that cannot be used. The message names the file and the field."""


# --- files


def is_file_choice(choice: str) -> bool:
    """Whether a `raw_tools` setting names a table file."""
    return choice.startswith(FILE_PREFIX)


def tables_in(choice: str) -> tuple[Table, ...]:
    """Return the tables of a `file:` setting; a file that was not loaded before is read now. Raises TableFileError."""
    found = _loaded.get(choice)
    if found is None:
        found = _loaded[choice] = read(Path(choice.removeprefix(FILE_PREFIX)).expanduser())
    return found


def load_table_file(path: Path) -> str:
    """Read a table file again and return the setting that stands for this content. Raises TableFileError."""
    return register_tables(read(path), str(path))


def register_tables(tables: tuple[Table, ...], place: str) -> str:
    """Keep tables for `tables_in` and return the setting that names them."""
    choice = f"{FILE_PREFIX}{place}#{sha256(render_tables(tables).encode()).hexdigest()[:12]}"
    _loaded[choice] = tables
    return choice


def read(path: Path) -> tuple[Table, ...]:
    """Read a table file. Raises TableFileError."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise TableFileError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > _MOST_BYTES:
        raise TableFileError(f"{path}: larger than {_MOST_BYTES} bytes; a table file holds a few tables")
    try:
        return parse_tables(data.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError:
        raise TableFileError(f"{path}: not UTF-8 text") from None


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
        raise TableFileError(f"{place}: no [[tables]] entry; a table file has one for each table")
    if len(entries) > _MOST_TABLES:
        raise TableFileError(f"{place}: more than {_MOST_TABLES} tables")
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
        hint = f"; known: {', '.join(get_args(Body))}" if inner == ".body`" else ""
        raise TableFileError(f"{place}: {at}{inner.rstrip('`')}: {message[:1].lower()}{message[1:]}{hint}") from None
    for field, problem in _problems(table):
        raise TableFileError(f"{place}: {at}{'.' if field else ''}{field}: {problem}")
    return table


def _known(entry: Mapping[str, Any], fields: Iterable[str], place: str, at: str) -> None:
    fields = tuple(fields)
    for name in entry:
        if name not in fields:
            where = f"{at}.{name}" if at else name
            raise TableFileError(f"{place}: {where}: there is no such field; known here: {', '.join(fields)}")


def _decode(kind: type, value: Any) -> Any:
    """Compile the regular expressions; every other field is of a type that msgspec knows."""
    if not isinstance(value, str):
        raise ValueError(f"expected a regular expression in a string, got {type(value).__name__}")
    if len(value) > _LONGEST_PATTERN:
        raise ValueError(f"a regular expression of more than {_LONGEST_PATTERN} characters")
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
        raise ValueError(f"not a regular expression: {error}") from None


# --- checks of a whole table


def _problems(table: Table) -> Iterable[tuple[str, str]]:
    """Yield what makes a table unusable: the field and a sentence."""
    for field in ("name", "family"):
        value = table.name if field == "name" else table.family
        if not _NAME.match(value) or value in _RESERVED:
            yield field, f"{value!r} is no name of a table: letters, digits, _ . and -, and neither auto nor off"
    for field, markers in _markers(table):
        if len(markers) > _MOST_MARKERS:
            yield field, f"more than {_MOST_MARKERS} markers"
        for marker in markers:
            if (not marker.strip() and field not in ("header_end", "header_stop")) or not marker:
                yield field, "an empty marker"
            if len(marker) > _LONGEST_MARKER:
                yield field, f"a marker of more than {_LONGEST_MARKER} characters"
    if not (table.call_begin or table.section_begin or table.at_start):
        yield "", "nothing says where a call begins: set call_begin, section_begin or at_start"
    yield from _body_problems(table)


def _body_problems(table: Table) -> Iterable[tuple[str, str]]:
    if table.body == "markup" and table.markup is None:
        yield "markup", "is missing; body markup needs it"
    if table.body == "json" and not (table.header_end or table.header_stop):
        yield "header_end", 'is missing: where does the name end? (header_stop = ["{"] for JSON right after it)'
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
            if isinstance(value, tuple):  # of markers, or of pairs
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
    """Write a value as TOML: as JSON, and strings literally where that keeps regular expressions readable."""
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
