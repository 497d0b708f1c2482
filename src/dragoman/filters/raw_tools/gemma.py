"""Gemma's calls: `call:NAME{key:<|"|>text<|"|>,number:42}`."""

from __future__ import annotations

import re

from dragoman.filters.raw_tools.literals import gemma_style
from dragoman.filters.raw_tools.pythonic import LiteralCalls
from dragoman.wire.markers import Markers

_HEADER = re.compile(r"call:\s*(?P<name>[^\s{}:<]+)\s*\{")
_HALF_HEADER = re.compile(r"(?:call:\s*(?:[^\s{}:<]+\s*)?|call|cal|ca|c)\Z")


def gemma_calls(ends: Markers, closes: frozenset[str], string_mark: str) -> LiteralCalls:
    """Make the reader of Gemma's calls. `string_mark` stands before and after every string."""
    return LiteralCalls(ends, closes, gemma_style(string_mark), _HEADER, _HALF_HEADER)
