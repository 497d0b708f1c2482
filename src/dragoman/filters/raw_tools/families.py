"""Makers of tables for families of similar formats, so that a row of tables.py has only what differs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from dragoman.filters.raw_tools.table import BodyForm, Markup, Table

EMPTY_HEADER = re.compile(r"\s*(?P<name>)")  # the header of a format that names the tool inside its body
_NAME = r"[^\s<>{}\"']*"
NAME_HEADER = re.compile(rf"""\s*["']?(?P<name>{_NAME})["']?\s*""")
THINK_END = ("</think>",)  # reasoning that ends right after a call


def table_named_in_body(
    name: str, body: BodyForm, begin: str = "", end: str = "", first: Iterable[str] = "[{", **more: Any
) -> Table:
    """Return the table of a format whose body names its tools. `first`: texts that the body may begin with."""
    fields: dict[str, Any] = {
        "special": False,
        "call_begin": (begin,) if begin else (),
        "call_end": (end,) if end else (),
        "header_stop": tuple(first),
        "header": EMPTY_HEADER,
        **more,
    }
    return Table(name=name, body=body, **fields)


def _sections(names: Iterable[str]) -> dict[str, Any]:
    """Return the fields for tags of these names around the calls."""
    return {
        "section_begin": tuple(f"<{name}>" for name in names),
        "section_end": tuple(f"</{name}>" for name in names),
    }


def attribute_table(
    name: str,
    call: str,
    parameter: str,
    opens: str,
    sections: Iterable[str] = (),
    *,
    joint: str = " name=",
    **more: Any,
) -> Table:
    """Return the table of a format with tags like `<CALL name=…>` and `<PARAMETER name=…>`.

    `opens` is the pattern of the text after the word PARAMETER, `sections` are the tags around the calls, `joint` is
    the text before a name.
    """
    markup = Markup(
        opens=re.compile(f"<{parameter}{opens}>"),
        open_end=">",
        value_ends=(f"</{parameter}>",),
        value_stops=(f"<{parameter}{joint}",),
        trims=more.pop("trims", False),
        cdata=more.pop("cdata", False),
    )
    fields: dict[str, Any] = {
        "special": False,
        **_sections(sections),
        "call_begin": (f"<{call}{joint}",),
        "header_end": (">",),
        "header": NAME_HEADER,
        "call_end": (f"</{call}>",),
        "trailing": THINK_END,
        "markup": markup,
        **more,
    }
    return Table(name=name, body="markup", **fields)


def key_value_table(
    name: str, prefix: str = "", sections: Iterable[str] = (), *, gap: str = r"\s*", **more: Any
) -> Table:
    """Return the table of a format with a tag for each key and one for each value; `gap` is a pattern."""
    call, key, value = f"{prefix}tool_call", f"{prefix}arg_key", f"{prefix}arg_value"
    markup = Markup(
        opens=re.compile(rf"<{key}>\s*(?P<key>[^<]*?)\s*</{key}>{gap}<{value}>"),
        open_end=f"<{value}>",
        value_ends=(f"</{value}>",),
        value_stops=(f"<{key}>",),
    )
    fields: dict[str, Any] = {
        "special": False,
        **_sections(sections),
        "call_begin": (f"<{call}>",),
        "header_stop": (f"<{key}>", f"</{call}>"),
        "header": re.compile(rf"\s*(?P<name>{_NAME})\s*"),
        "call_end": (f"</{call}>",),
        "trailing": THINK_END,
        "markup": markup,
        **more,
    }
    return Table(name=name, body="markup", **fields)


def prefix_pattern(literal: str, rest: str) -> str:
    """Return a pattern that matches the literal followed by `rest`, and every prefix of that."""
    for char in reversed(literal):
        rest = f"(?:{re.escape(char)}{rest})?"
    return rest
