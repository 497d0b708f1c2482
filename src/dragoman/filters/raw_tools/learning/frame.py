"""Find the markers around a call and around a section, by comparing an answer of one call with one of two."""

from __future__ import annotations

from msgspec import Struct

from dragoman.filters.raw_tools.learning.pieces import joined, pieces, shared_end, shared_start

_PREFIX = "functions."  # belongs to the name; names are read with and without it


class Frame(Struct, frozen=True):
    """The markers; "" for one that the format does not have."""

    section_begin: str = ""
    call_begin: str = ""
    call_end: str = ""
    section_end: str = ""
    between: str = ""  # what parts two calls, other than markers


def frame_of(before: str, after: str, between: str | None) -> Frame:
    """Return the markers of a call.

    `before` and `after` is what stands before and after the name and the arguments of an only call, `between` what
    stands between those of two calls; None if the template takes only one call an answer.
    """
    begin, end = _named(pieces(before)), pieces(after)
    if between is None:
        return _split(Frame(call_begin=joined(begin), call_end=joined(end)), begin, end)
    middle = _named(pieces(between))
    ends = shared_start(end, middle)
    begins = shared_end(begin, middle[ends:])
    found = Frame(
        joined(begin[: len(begin) - begins]),
        joined(begin[len(begin) - begins :]),
        joined(end[:ends]),
        joined(end[ends:]),
        joined(middle[ends : len(middle) - begins]),
    )
    if found.section_begin or found.section_end:
        return found
    return _split(found, begin, end)


def _named(parts: list[str]) -> list[str]:
    return parts[:-1] if parts and parts[-1] == _PREFIX else parts


def _split(found: Frame, begin: list[str], end: list[str]) -> Frame:
    """Take the outer pair of tags for a section, where two pairs stand around each call."""
    begin, end = [part for part in begin if not part.isspace()], [part for part in end if not part.isspace()]
    if len(begin) > 1 and len(end) > 1 and end[-1] == f"</{begin[0][1:]}":
        return Frame(begin[0], joined(begin[1:]), joined(end[:-1]), end[-1], found.between)
    return found
