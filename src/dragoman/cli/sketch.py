"""JSON for people to look at: short things on one line, long texts cut; and two of them beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dragoman.cli.terminal import Paint
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

_NARROW = 90  # columns below which two do not fit beside each other
_LONGEST = 40


def sketch(value: Json, width: int, indent: int = 0, before: str = "", after: str = "") -> Iterator[str]:
    """The lines of a value, as far as possible no wider than that."""
    flat = f"{' ' * indent}{before}{_flat(value)}{after}"
    if len(flat) <= width or not isinstance(value, dict | list) or not value:
        yield flat if len(flat) <= width else f"{flat[: width - 1]}…"
        return
    begin, end = ("{", "}") if isinstance(value, dict) else ("[", "]")
    yield f"{' ' * indent}{before}{begin}"
    last = len(value) - 1
    items = value.items() if isinstance(value, dict) else (("", item) for item in value)
    for index, (name, item) in enumerate(items):
        label = f"{jsonio.quote(name).decode()}: " if isinstance(value, dict) else ""
        yield from sketch(item, width, indent + 2, label, "," if index < last else "")
    yield f"{' ' * indent}{end}{after}"


def folded(value: Json, names: Sequence[str]) -> Json:
    """The value with what stands under these names put out of sight."""
    match value:
        case dict():
            return {name: "…" if name in names else folded(item, names) for name, item in value.items()}
        case list():
            return [folded(item, names) for item in value]
        case _:
            return value


def _flat(value: Json) -> str:
    match value:
        case dict():
            inner = ", ".join(f"{jsonio.quote(name).decode()}: {_flat(item)}" for name, item in value.items())
            return f"{{{inner}}}"
        case list():
            return f"[{', '.join(map(_flat, value))}]"
        case str() if len(value) > _LONGEST * 2:
            return jsonio.quote(f"{value[:_LONGEST]} … {value[-_LONGEST:]}").decode()
        case _:
            return jsonio.encode(value).decode()


def beside(left: Sequence[str], right: Sequence[str], width: int, paint: Paint) -> Iterator[str]:
    """Two columns, the first line of each a heading; below each other where there is no room."""
    if width < _NARROW:
        for column in (left, right):
            yield paint(column[0], "bold")
            yield from (f"  {line}" for line in column[1:])
        return
    half = (width - 3) // 2
    for index in range(max(len(left), len(right))):
        one = left[index] if index < len(left) else ""
        other = right[index] if index < len(right) else ""
        styles = ("bold",) if index == 0 else ()
        yield f"{paint(f'{one[:half]:<{half}}', *styles)} {paint('│', 'dim')} {paint(other[:half], *styles)}".rstrip()
