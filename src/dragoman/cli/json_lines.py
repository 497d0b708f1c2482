"""Readable JSON for `dragoman demo`: short values on one line, long texts cut, two values side by side. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from dragoman.cli.layout import cut, display_width, pad
from dragoman.cli.terminal import Paint
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

NARROW = 100  # columns; below that, the two sides are printed one after the other
_LONGEST = 40


def value_lines(value: Json, width: int, indent: int = 0, before: str = "", after: str = "") -> Iterator[str]:
    """Yield the lines of a value, each at most `width` characters long."""
    flat = f"{' ' * indent}{before}{flat_json(value)}{after}"
    if display_width(flat) <= width or not isinstance(value, dict | list) or not value:
        yield cut(flat, width)
        return
    begin, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    yield f"{' ' * indent}{before}{begin}"
    last = len(value) - 1
    items = value.items() if isinstance(value, dict) else (("", item) for item in value)
    for index, (name, item) in enumerate(items):
        label = f"{jsonio.quote(name).decode()}: " if isinstance(value, dict) else ""
        yield from value_lines(item, width, indent + 2, label, "," if index < last else "")
    yield f"{' ' * indent}{end}{after}"


def hide_fields(value: Json, names: Sequence[str]) -> Json:
    """Return the value with the values of these fields replaced by `…`."""
    match value:
        case dict():
            return {name: "…" if name in names else hide_fields(item, names) for name, item in value.items()}
        case list():
            return [hide_fields(item, names) for item in value]
        case _:
            return value


def flat_json(value: Json) -> str:
    """Return a value on one line, with long texts cut."""
    match value:
        case dict():
            inner = ", ".join(f"{jsonio.quote(name).decode()}: {flat_json(item)}" for name, item in value.items())
            return f"{{{inner}}}"
        case list():
            return f"[{', '.join(map(flat_json, value))}]"
        case str() if len(value) > _LONGEST * 2:
            return jsonio.quote(f"{value[:_LONGEST]} … {value[-_LONGEST:]}").decode()
        case _:
            return jsonio.encode(value).decode()


def side_by_side(left: Sequence[str], right: Sequence[str], width: int, paint: Paint) -> Iterator[str]:
    """Yield two columns with a heading line each; one below the other if the terminal is narrow."""
    if width < NARROW:
        for column in (left, right):
            yield paint(column[0], "bold")
            yield from (f"  {line}" for line in column[1:])
        return
    half = (width - 3) // 2
    for index, (one, other) in enumerate(zip_longest(left, right, fillvalue="")):
        styles = ("bold",) if index == 0 else ()
        left_half = paint(pad(cut(one, half), half), *styles)
        yield f"{left_half} {paint('│', 'dim')} {paint(cut(other, half), *styles)}".rstrip()
