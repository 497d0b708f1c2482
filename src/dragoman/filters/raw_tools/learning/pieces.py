"""Text as a list of pieces (tags, words, white space), and what two lists have in common.

Markers are compared piece by piece, not character by character: `</a>` and `</ab>` share characters, but no marker.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# A tag, a tag that the text cuts off, a word in square brackets, white space, other characters.
_PIECE = re.compile(r"<[^<>]*>|<[^<>]*\Z|\[/?[A-Z_]+\]|\s+|[^<\[\s]+|.", re.DOTALL)
_END_OF_TURN = re.compile(
    r"<[|｜]?(?:eo[mst]\w*|im_end|end|endoftext|end[_▁]of[_▁]\w+)[|｜]?>|</s>|\[EO[ST]\]", re.IGNORECASE
)
_TOKEN = re.compile(r"<(?=[^<>|｜]*+[|｜])[^<>]*+>|\[/?[A-Z_]++\]")


def pieces(text: str) -> list[str]:
    """Split a text; the pieces joined are the text."""
    return _PIECE.findall(text)


def shared_start(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many pieces two lists have in common at their beginning. White space equals white space."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right and not (left.isspace() and right.isspace()):
            break
        count += 1
    return count


def shared_end(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many pieces two lists have in common at their end."""
    return shared_start(one[::-1], other[::-1])


def joined(parts: Sequence[str]) -> str:
    """Join pieces to a marker, without the white space around it."""
    return "".join(parts).strip()


def is_token(marker: str) -> bool:
    """Whether a marker looks like a special token, which ordinary text does not contain."""
    return _TOKEN.match(marker) is not None


def tokens(text: str) -> list[str]:
    """Return the special tokens in a text."""
    return _TOKEN.findall(text)


def is_end_of_turn(marker: str) -> bool:
    """Whether a marker looks like a token that ends a turn or the text."""
    return _END_OF_TURN.fullmatch(marker) is not None


def start_in_common(one: str, other: str) -> int:
    """Return the length of the text both begin with; it ends before a tag that only one of them completes."""
    size = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        size += 1
    opened = max(one.rfind("<", 0, size), one.rfind("[", 0, size))
    closed = max(one.rfind(">", 0, size), one.rfind("]", 0, size))
    return opened if opened > closed and _PIECE.match(one, opened) and len(_PIECE.match(one, opened)[0]) > 1 else size  # type: ignore[index]


def end_in_common(one: str, other: str) -> int:
    """Return the length of the text both end with; it begins after a tag of which only the end is common."""
    if other and one.endswith(other):
        return len(other)
    size = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left != right:
            break
        size += 1
    common = one[len(one) - size :]
    first_open, first_close = common.find("<"), common.find(">")
    if first_close != -1 and (first_open == -1 or first_close < first_open):
        return size - first_close - 1
    return size
