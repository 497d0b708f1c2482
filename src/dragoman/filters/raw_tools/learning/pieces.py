"""Text as a list of pieces (tags, words, white space), and what two lists have in common.

Markers are compared piece by piece, not character by character: `</a>` and `</ab>` share characters, but no marker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from dragoman.filters.raw_tools.learning.probes import (
    PROBE_REASONING,
    PROBE_TEXT,
    PROBES,
    ProbeCall,
    Variant,
    declare_tools,
    probe_messages,
)

# A tag, a tag that the text cuts off, a word in square brackets, white space, other characters.
_PIECE = re.compile(r"<[^<>]*>|<[^<>]*\Z|\[/?[A-Z_]+\]|\s+|[^<\[\s]+|.", re.DOTALL)
END_OF_TURN = re.compile(
    r"<[|｜]?(?:eo[mst]\w*|im_end|end|endoftext|end[_▁]of[_▁]\w+)[|｜]?>|</s>|\[EO[ST]\]", re.IGNORECASE
)
# A special token, which ordinary text does not contain.
SPECIAL_TOKEN = re.compile(r"<(?=[^<>|｜]*+[|｜])[^<>]*+>|\[/?[A-Z_]++\]")


def split_text(text: str) -> list[str]:
    """Split a text; the pieces joined are the text."""
    return _PIECE.findall(text)


def count_common_start(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many pieces two lists have in common at their beginning. White space equals white space."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right and not (left.isspace() and right.isspace()):
            break
        count += 1
    return count


def count_common_end(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many pieces two lists have in common at their end."""
    return count_common_start(one[::-1], other[::-1])


def join_marker(parts: Sequence[str]) -> str:
    """Join pieces to a marker, without the white space around it."""
    return "".join(parts).strip()


def _in_common(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def common_start_length(one: str, other: str) -> int:
    """Return the length of the text both begin with; it ends before a tag that only one of them completes."""
    size = _in_common(one, other)
    opened = max(one.rfind("<", 0, size), one.rfind("[", 0, size))
    closed = max(one.rfind(">", 0, size), one.rfind("]", 0, size))
    return opened if opened > closed and _PIECE.match(one, opened) and len(_PIECE.match(one, opened)[0]) > 1 else size  # type: ignore[index]


def common_end_length(one: str, other: str) -> int:
    """Return the length of the text both end with; it begins after a tag of which only the end is common."""
    if other and one.endswith(other):
        return len(other)
    size = _in_common(one[::-1], other[::-1])
    common = one[len(one) - size :]
    first_open, first_close = common.find("<"), common.find(">")
    if first_close != -1 and (first_open == -1 or first_close < first_open):
        return size - first_close - 1
    return size


# --- Find the markers around a call and around a section, by comparing an answer of one call with one of two


_PREFIX = "functions."  # belongs to the name; names are read with and without it


class CallMarkers(Struct, frozen=True):
    """The markers; "" for one that the format does not have."""

    section_begin: str = ""
    call_begin: str = ""
    call_end: str = ""
    section_end: str = ""
    between: str = ""  # what parts two calls, other than markers


def find_markers(before: str, after: str, between: str | None) -> CallMarkers:
    """Return the markers of a call.

    `before` and `after` is what stands before and after the name and the arguments of an only call, `between` what
    stands between those of two calls; None if the template takes only one call an answer.
    """
    begin, end = _named(split_text(before)), split_text(after)
    if between is None:
        return _split(CallMarkers(call_begin=join_marker(begin), call_end=join_marker(end)), begin, end)
    middle = _named(split_text(between))
    ends = count_common_start(end, middle)
    begins = count_common_end(begin, middle[ends:])
    found = CallMarkers(
        join_marker(begin[: len(begin) - begins]),
        join_marker(begin[len(begin) - begins :]),
        join_marker(end[:ends]),
        join_marker(end[ends:]),
        join_marker(middle[ends : len(middle) - begins]),
    )
    if found.section_begin or found.section_end:
        return found
    return _split(found, begin, end)


def _named(parts: list[str]) -> list[str]:
    return parts[:-1] if parts and parts[-1] == _PREFIX else parts


def _split(found: CallMarkers, begin: list[str], end: list[str]) -> CallMarkers:
    """Take the outer pair of tags for a section, where two pairs stand around each call."""
    begin, end = [part for part in begin if not part.isspace()], [part for part in end if not part.isspace()]
    if len(begin) > 1 and len(end) > 1 and end[-1] == f"</{begin[0][1:]}":
        return CallMarkers(begin[0], join_marker(begin[1:]), join_marker(end[:-1]), end[-1], found.between)
    return found


# --- Cut the text of the calls out of renderings of whole conversations.
#
# An answer that is only text shows what the template writes before and after an answer. What an answer with calls has
# in addition is the text of its calls.


_TEXT_ONLY = "text only"
_REASONED = "reasoned"
_LONGEST = 100_000


class RenderJob(Struct, frozen=True):
    """One conversation to render."""

    messages: list[Any]
    tools: list[Any]
    generation_prompt: bool = False


class ProbeTexts(Struct, frozen=True):
    """The text of the calls of each probe that the template rendered, and the text that ends an answer."""

    calls: Mapping[str, str]
    end: str = ""
    reasoning: tuple[str, str] | None = None  # what stands around reasoning


def probe_jobs(variant: Variant) -> dict[str, RenderJob]:
    """Return the conversations that `extract_probe_texts` needs, by name."""
    tools = declare_tools(call for calls in PROBES.values() for call in calls)
    jobs = {_TEXT_ONLY: RenderJob(probe_messages((), variant, content=PROBE_TEXT), tools)}
    jobs[_REASONED] = RenderJob(probe_messages((), variant, content=PROBE_TEXT, reasoning=PROBE_REASONING), tools)
    for name, calls in PROBES.items():
        jobs[name] = RenderJob(probe_messages(calls, variant), tools)
        jobs[f"{name} with text"] = RenderJob(probe_messages(calls, variant, content=PROBE_TEXT), tools)
        jobs[f"{name} with results"] = RenderJob(
            probe_messages(calls, variant, results=True), tools, generation_prompt=True
        )
    return jobs


def verification_jobs(sets: Sequence[Sequence[ProbeCall]], variant: Variant) -> dict[str, RenderJob]:
    """Return the conversations that verify a table: an answer that is only text, and each set of calls."""
    jobs = {
        str(number): RenderJob(probe_messages(calls, variant), declare_tools(calls))
        for number, calls in enumerate(sets)
    }
    for number, calls in enumerate(sets):
        jobs[f"{number} {_TEXT_ONLY}"] = RenderJob(
            probe_messages((), variant, content=PROBE_TEXT), declare_tools(calls)
        )
    return jobs


def verification_text(renderings: Mapping[str, str], number: int) -> str | None:
    """Return the text of one set of `verification_jobs`; None if the template did not render it."""
    text, plain = renderings.get(str(number)), renderings.get(f"{number} {_TEXT_ONLY}")
    if text is None or plain is None:
        return None
    before, after = _around(plain)
    return _cut(text, before, after)


def extract_probe_texts(renderings: Mapping[str, str]) -> ProbeTexts:
    """Cut the calls out of the renderings of `probe_jobs`; those that failed are not in it."""
    plain = renderings.get(_TEXT_ONLY, "")
    before, after = _around(plain)
    calls: dict[str, str] = {}
    for name in PROBES:
        found = _call_text(name, renderings, before, after)
        if found is not None and len(found) <= _LONGEST:
            calls[name] = found
    return ProbeTexts(calls, after, _reasoning(renderings.get(_REASONED, ""), before))


def _around(plain: str) -> tuple[str, str]:
    at = plain.rfind(PROBE_TEXT)
    return (plain, "") if at == -1 else (plain[:at], plain[at + len(PROBE_TEXT) :])


def _call_text(name: str, renderings: Mapping[str, str], before: str, after: str) -> str | None:
    """Prefer the answer that has text, too: what follows the text are the calls."""
    text = renderings.get(f"{name} with text")
    at = text.rfind(PROBE_TEXT) if text is not None else -1
    if text is not None and at != -1 and any(call.name in text[at:] for call in PROBES[name]):
        rest = text[at + len(PROBE_TEXT) :]
        return rest[: len(rest) - common_end_length(rest, after)]
    text = renderings.get(name)
    return None if text is None else _cut(text, before, after)


def _cut(text: str, before: str, after: str) -> str:
    rest = text[common_start_length(text, before) :]
    return rest[: len(rest) - common_end_length(rest, after)]


def _reasoning(text: str, before: str) -> tuple[str, str] | None:
    at, content = text.rfind(PROBE_REASONING), text.rfind(PROBE_TEXT)
    if at == -1 or content < at:
        return None
    start = common_start_length(text, before)
    begin, end = text[start:at].strip(), text[at + len(PROBE_REASONING) : content].strip()
    return (begin, end) if begin and end and not any(char.isspace() for char in begin + end) else None
