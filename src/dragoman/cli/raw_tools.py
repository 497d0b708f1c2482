"""`dragoman raw-tools`: list the formats of raw tool calls, try one on a text, learn one from a chat template."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from dragoman.cli.terminal import CommandError, Paint, one_line, plain, read_input, replace_unencodable, say
from dragoman.filters.raw_tools import FORMAT_ALIASES, TABLES, Table
from dragoman.filters.raw_tools.outputs import ParsedItem, merge_outputs
from dragoman.filters.raw_tools.table import Markup
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `dragoman raw-tools`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list | try | learn")
    listed = actions.add_parser("list", help="list the known formats")
    listed.add_argument("--json", action="store_true", help="print JSON")
    tried = actions.add_parser("try", help="show the tool calls that a format finds in a text")
    tried.add_argument("table", metavar="TABLE", help="a name from `raw-tools list`, auto, or a table file")
    tried.add_argument("file", nargs="?", default="-", metavar="FILE|-", help="the text (default: standard input)")
    tried.add_argument("--tools", metavar="FILE", help="the declared tools as JSON, in the form of OpenAI or Anthropic")
    tried.add_argument(
        "--cut", type=int, default=0, metavar="N", help="feed the text in pieces of N characters, as a stream would"
    )
    tried.add_argument("--json", action="store_true", help="print JSON")
    learnt = actions.add_parser("learn", help="write a table file for a chat template")
    learnt.add_argument("template", metavar="TEMPLATE", help="a .jinja file or a tokenizer_config.json")
    learnt.add_argument("--name", metavar="N", help="the name of the table (default: the name of the file)")
    learnt.add_argument("--output", metavar="FILE", type=Path, help="the file to write (default: standard output)")
    learnt.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the template (JSON or text)"
    )


def run(arguments: Namespace) -> int:
    """Run `dragoman raw-tools`; return the exit status."""
    replace_unencodable(sys.stdout)
    if arguments.action == "list":
        return _list(arguments)
    if arguments.action == "try":
        return _try(arguments)
    from dragoman.cli.raw_tools_learn import learn

    return learn(arguments)


# --- list


def _list(arguments: Namespace) -> int:
    formats = list_formats()
    if arguments.json:
        print(jsonio.encode_pretty(formats).decode())
        return 0
    paint, width = Paint(sys.stdout), max(len(row.name) for row in formats)
    rest = " " * (width + 2)
    for row in formats:
        say(f"{paint(f'{row.name:<{width}}', 'bold')}  {row.models}", rest=rest)
        print(f"{rest}{paint(row.looks, 'dim')}")
        if row.also:
            say(f"{rest}also: {', '.join(row.also)}", rest="  ")
    say('Set raw_tools = "NAME" to read one format, or "auto" to read all that are not marked "only by name".')
    return 0


# --- try


def _try(arguments: Namespace) -> int:
    tools = _tools(arguments.tools)
    text = read_input(arguments.file).decode(errors="replace")
    items = list(find_calls(text, _choice(arguments.table), tools, arguments.cut))
    if arguments.json:
        print(jsonio.encode_pretty(items).decode())
    else:
        print("\n".join(_lines(items, Paint(sys.stdout))))
        calls = sum(each.kind == "call" for each in items)
        print(f"{calls} call{'' if calls == 1 else 's'}", file=sys.stderr)
        if not calls and arguments.table == "auto" and arguments.tools is None:
            print(
                "The format auto reads tags only for declared tools. Declare them with --tools FILE.", file=sys.stderr
            )
    return 0


def _choice(table: str) -> str:
    is_path = "/" in table or table.endswith(".toml")
    return f"file:{table}" if is_path and not table.startswith("file:") else table


def _tools(name: str | None) -> list[Json]:
    if name is None:
        return []
    try:
        value = jsonio.decode(read_input(name))
    except jsonio.JsonError as error:
        raise CommandError(f"{name}: not JSON: {error}") from None
    tools = value.get("tools") if isinstance(value, dict) else value  # a whole request is accepted, too
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise CommandError(f"{name}: expected a list of tool declarations, or an object with a field tools")
    return tools


def find_calls(text: str, choice: str, tools: Iterable[Json] = (), cut: int = 0) -> Iterator[ParsedItem]:
    """Return the text and calls that a format finds in a text. Raises LocalMisuse for an unknown format."""
    from dragoman.filters.raw_tools import CallIds, DeclaredTools, Engine
    from dragoman.filters.raw_tools.chunks import parse_tool

    engine = Engine(choice, DeclaredTools(parse_tool(tool) for tool in tools if isinstance(tool, dict)), CallIds())
    size = cut if cut > 0 else max(len(text), 1)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return merge_outputs((*(each for piece in pieces for each in engine.feed(piece)), *engine.close()))


def _lines(items: Iterable[ParsedItem], paint: Paint) -> Iterator[str]:
    for each in items:
        match each.kind:
            case "call":
                cut = "" if each.complete else paint("  (cut off)", "yellow")
                yield f"{paint('call', 'bold', 'green')} {one_line(each.name)}  {paint(one_line(each.id), 'dim')}{cut}"
                yield from (f"  {line}" for line in _shown(each.arguments).splitlines())
            case "note":
                yield f"{paint('note', 'yellow')} {each.rule}: {one_line(each.text, 1000)}"
            case _:
                yield paint(each.kind, "bold", "cyan")
                yield from (f"  {line}" for line in plain(each.text).splitlines())


def _shown(arguments: str) -> str:
    try:
        return jsonio.encode_pretty(jsonio.decode(arguments)).decode()
    except jsonio.JsonError:
        return plain(arguments)


# --- the formats: the models that write one, and an example of a call


class FormatRow(Struct, frozen=True):
    """One row of `raw-tools list`."""

    name: str
    family: str
    models: str
    looks: str
    also: list[str]  # its aliases


def list_formats() -> list[FormatRow]:
    """Return the shipped formats in the order in which `auto` looks for them."""
    return [
        FormatRow(
            table.name,
            table.family,
            table.models + (" (only by name)" if table.by_name_only else ""),
            looks(table),
            [alias for alias, names in FORMAT_ALIASES.items() if table.name in names and alias != table.name],
        )
        for table in TABLES
    ]


def looks(table: Table) -> str:
    """Return an example of a call in a table's format, built from its markers."""
    if table.body in ("wrapped", "array", "pythonic", "gemma"):
        header = _first(table.header_end)
    else:
        header = _name(table) + _first(table.header_end)
    begin = _first(table.section_begin) + ("" if table.opener_is_body else _first(table.call_begin))
    end = _first(table.call_end) + _first(table.section_end)
    return f"{begin}{header}{_body(table)}{end}".replace("\n", "⏎")


def _name(table: Table) -> str:
    """Return the example of a name, as it is written after the marker that begins the call."""
    if _first(table.call_begin).endswith("name="):
        return '"NAME"'
    header = table.header.pattern if table.header else ""
    if "tool=" in header:
        return 'tool="NAME"'
    return ' name="NAME"' if "name=" in header else "NAME"


def _body(table: Table) -> str:
    keys = table.keys
    match table.body:
        case "wrapped" | "array":
            named = f'"{keys.name[0]}": "NAME", "{keys.arguments[0]}": {{"KEY": VALUE}}'
            call = '{"NAME": {"KEY": VALUE}}' if keys.is_name else f"{{{named}}}"
            return f"[{call}]" if table.body == "array" else call
        case "pythonic":
            return "[NAME(KEY=VALUE)]"
        case "gemma":
            return f"call:NAME{{KEY:{table.string_mark}VALUE{table.string_mark}}}"
        case "elements":
            return f"{table.tag_prefix}<KEY>VALUE{table.tag_prefix}</KEY>"
        case "markup" if table.markup is not None:
            return f"{_key(_first(table.markup.value_stops), table.markup)}VALUE{_first(table.markup.value_ends)}"
        case _:
            return '{"KEY": VALUE}'


def _key(opening: str, markup: Markup) -> str:
    """Return the example of a tag that names a parameter; `opening` is its beginning."""
    if opening.endswith(">"):
        return f"{opening}KEY</{opening[1:]}{markup.open_end}"
    if opening.endswith(("name=", "key=")):
        return f'{opening}"KEY"{markup.open_end}'
    return f"{opening}KEY{markup.open_end}" if opening.endswith("=") else f'{opening}name="KEY"{markup.open_end}'


def _first(markers: tuple[str, ...]) -> str:
    return markers[0] if markers else ""
