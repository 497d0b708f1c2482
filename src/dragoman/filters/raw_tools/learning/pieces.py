"""Compare renderings of a chat template, to find the markers around tool calls (such as `<tool_call>`). Pure.

Texts are split into tags, words and white space first, so that `</a>` and `</ab>` count as different.
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

# A tag, a tag that is cut off at the end, a word in square brackets, white space, other characters.
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
    """Return the number of common pieces at the start of two lists. All white space is equal."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right and not (left.isspace() and right.isspace()):
            break
        count += 1
    return count


def count_common_end(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of common pieces at the end of two lists."""
    return count_common_start(one[::-1], other[::-1])


def join_marker(parts: Sequence[str]) -> str:
    """Join pieces to a marker, without the white space around it."""
    return "".join(parts).strip()


def _common_length(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (left, right) in pairs if left != right), min(len(one), len(other)))


def common_start_length(one: str, other: str) -> int:
    """Return the length of the common start of two texts, without a tag that differs at its end."""
    size = _common_length(one, other)
    opened = max(one.rfind("<", 0, size), one.rfind("[", 0, size))
    closed = max(one.rfind(">", 0, size), one.rfind("]", 0, size))
    return opened if opened > closed and _PIECE.match(one, opened) and len(_PIECE.match(one, opened)[0]) > 1 else size  # type: ignore[index]


def common_end_length(one: str, other: str) -> int:
    """Return the length of the common end of two texts, without a tag of which only the end is common."""
    if other and one.endswith(other):
        return len(other)
    size = _common_length(one[::-1], other[::-1])
    common = one[len(one) - size :]
    first_open, first_close = common.find("<"), common.find(">")
    if first_close != -1 and (first_open == -1 or first_close < first_open):
        return size - first_close - 1
    return size


# --- Find the markers around a call and around a section, by comparing a reply with one call to a reply with two


_PREFIX = "functions."  # belongs to the name; names are read with and without it


class CallMarkers(Struct, frozen=True):
    """The markers of a format; "" for a marker that it does not have."""

    section_begin: str = ""
    call_begin: str = ""
    call_end: str = ""
    section_end: str = ""
    between: str = ""  # text between two calls, other than markers


def find_markers(before: str, after: str, between: str | None) -> CallMarkers:
    """Return the markers of a call.

    `before` and `after` are the texts before and after the name and the arguments of a single call, `between` is the
    text between those of two calls; None if the template accepts only one call per reply.
    """
    begin, end = _without_prefix(split_text(before)), split_text(after)
    if between is None:
        return _split(CallMarkers(call_begin=join_marker(begin), call_end=join_marker(end)), begin, end)
    middle = _without_prefix(split_text(between))
    ends = count_common_start(end, middle)
    begins = count_common_end(begin, middle[ends:])
    markers = CallMarkers(
        join_marker(begin[: len(begin) - begins]),
        join_marker(begin[len(begin) - begins :]),
        join_marker(end[:ends]),
        join_marker(end[ends:]),
        join_marker(middle[ends : len(middle) - begins]),
    )
    if markers.section_begin or markers.section_end:
        return markers
    return _split(markers, begin, end)


def _without_prefix(parts: list[str]) -> list[str]:
    return parts[:-1] if parts and parts[-1] == _PREFIX else parts


def _split(markers: CallMarkers, begin: list[str], end: list[str]) -> CallMarkers:
    """Use the outer pair of tags as the section, if each call has two pairs around it."""
    begin, end = [part for part in begin if not part.isspace()], [part for part in end if not part.isspace()]
    if len(begin) > 1 and len(end) > 1 and end[-1] == f"</{begin[0][1:]}":
        return CallMarkers(begin[0], join_marker(begin[1:]), join_marker(end[:-1]), end[-1], markers.between)
    return markers


# --- Extract the text of the calls from renderings of whole conversations.
#
# A reply that is only text shows what the template writes before and after a reply. The additional text of a reply with
# calls is the text of its calls.


_TEXT_ONLY = "text only"
_REASONED = "reasoned"
_LONGEST = 100_000


class RenderJob(Struct, frozen=True):
    """One conversation to render."""

    messages: list[Any]
    tools: list[Any]
    generation_prompt: bool = False


class ProbeTexts(Struct, frozen=True):
    """The text of the calls of each rendered probe, and the text that ends a reply."""

    calls: Mapping[str, str]
    end: str = ""
    reasoning: tuple[str, str] | None = None  # the texts before and after reasoning


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
    """Return the conversations that verify a table: for each set, a reply with its calls and one with only text."""
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
    before, after = _around_text(plain)
    return _cut(text, before, after)


def extract_probe_texts(renderings: Mapping[str, str]) -> ProbeTexts:
    """Extract the calls from the renderings of `probe_jobs`; probes that were not rendered are missing."""
    plain = renderings.get(_TEXT_ONLY, "")
    before, after = _around_text(plain)
    calls: dict[str, str] = {}
    for name in PROBES:
        text = _call_text(name, renderings, before, after)
        if text is not None and len(text) <= _LONGEST:
            calls[name] = text
    return ProbeTexts(calls, after, _reasoning(renderings.get(_REASONED, ""), before))


def _around_text(plain: str) -> tuple[str, str]:
    at = plain.rfind(PROBE_TEXT)
    return (plain, "") if at == -1 else (plain[:at], plain[at + len(PROBE_TEXT) :])


def _call_text(name: str, renderings: Mapping[str, str], before: str, after: str) -> str | None:
    """Return the text of a probe's calls, from the reply that also has text if possible: the calls follow the text."""
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
