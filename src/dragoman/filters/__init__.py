"""Filters: the changes a target needs. Pure, composable, each with its notes and its own answer half.

Their order is one table in translate.py, which alone calls them; they touch nothing but the conversation and the events
they are given. A filter changes what a conversation says; how it is spelt is the codec's. By what they change: the
request as a whole (`request`), settings (`limits`), turns (`turns`), tools that are offered (`offers`), calls (`calls`)
and their results (`results`), what only one family knows (`foreign`, `seals`), answers alone (`answers`), and calls
that a model wrote as text (`raw_tools`).
"""

from __future__ import annotations

from dragoman.filters.calls import RenameTools, WrapArguments
from dragoman.filters.foreign import DropForeign
from dragoman.filters.limits import FitLimits, FitThinkingBudget
from dragoman.filters.raw_tools import RawTools
from dragoman.filters.request import HashUser, NoteAcceptedShapes, RefuseServerState
from dragoman.filters.response import FixStopReason, SerializeBlocks
from dragoman.filters.results import PairTools, SimplifyResults
from dragoman.filters.signatures import CarrySignatures
from dragoman.filters.tools import AddEmptySchemas, FlattenToolHistory, WrapTextTools
from dragoman.filters.turns import AlternateTurns, FillEmpty, FoldSystem, StripAttribution

__all__ = [
    "AddEmptySchemas",
    "AlternateTurns",
    "CarrySignatures",
    "DropForeign",
    "FillEmpty",
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
    "WrapArguments",
    "WrapTextTools",
]
