"""Filters change a conversation so that a target accepts it. They are pure and write a note for each change.

Only `translate.py` calls them, in the order of its table `FILTER_ORDER`. A filter may return a response filter, which
undoes the change in the events of the reply. Filters change content; how content is written on the wire is the codec's
work.

The modules, by what they change: the request as a whole (`request`), settings (`limits`), marks of prompt caches
(`cache_marks`), turns (`turns`), a history to be compacted (`compaction`), offered tools (`tools`, `tool_search`,
`web_search`), tool calls (`calls`), tool results (`results`), content that only one model family knows (`foreign`,
`signatures`), replies only (`response`), and tool calls that a model wrote as text (`raw_tools`).
"""

from __future__ import annotations

from dragoman.filters.cache_marks import AddCacheKey, FitCacheMarks
from dragoman.filters.calls import RenameTools, WrapArguments
from dragoman.filters.compaction import CompactHistory
from dragoman.filters.foreign import DropForeign
from dragoman.filters.limits import FitLimits, FitThinkingBudget
from dragoman.filters.raw_tools import RawTools
from dragoman.filters.request import HashUser, NoteAcceptedShapes, RefuseServerState
from dragoman.filters.response import FixStopReason, SerializeBlocks
from dragoman.filters.results import PairTools, SimplifyResults
from dragoman.filters.signatures import CarrySignatures
from dragoman.filters.tool_search import TranslateToolSearch
from dragoman.filters.tools import AddEmptySchemas, FlattenToolHistory, WrapTextTools
from dragoman.filters.turns import AlternateTurns, FillEmpty, FoldSystem, StripAttribution
from dragoman.filters.web_search import TranslateWebSearch

__all__ = [
    "AddCacheKey",
    "AddEmptySchemas",
    "AlternateTurns",
    "CarrySignatures",
    "CompactHistory",
    "DropForeign",
    "FillEmpty",
    "FitCacheMarks",
    "FitLimits",
    "FitThinkingBudget",
    "FixStopReason",
    "FlattenToolHistory",
    "FoldSystem",
    "HashUser",
    "NoteAcceptedShapes",
    "PairTools",
    "RawTools",
    "RefuseServerState",
    "RenameTools",
    "SerializeBlocks",
    "SimplifyResults",
    "StripAttribution",
    "TranslateToolSearch",
    "TranslateWebSearch",
    "WrapArguments",
    "WrapTextTools",
]
