"""Table: how one format writes tool calls, as data. tables.py has those that ship, table files bring others."""

from __future__ import annotations

import re
from html import unescape
from typing import Literal, TypeAlias

from msgspec import Struct

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
    family: str
    special: bool
    body: Body
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
