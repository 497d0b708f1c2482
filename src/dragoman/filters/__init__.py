"""Filters: the changes a target needs. Pure, composable, each with its notes and its own answer half.

Their order is one table in translate.py, which alone calls them; they touch nothing but the conversation and the events
they are given. A filter changes what a conversation says; how it is spelt is the codec's. By what they change: the
request as a whole (`request`), settings (`limits`), turns (`turns`), tools that are offered (`offers`), calls (`calls`)
and their results (`results`), what only one family knows (`foreign`, `seals`), answers alone (`answers`), and calls
that a model wrote as text (`raw_tools`).
"""

from __future__ import annotations

from dragoman.filters.answers import SerializeBlocks, SettleStop
from dragoman.filters.calls import ObjectArguments, RenameTools
from dragoman.filters.foreign import DropForeign
from dragoman.filters.limits import FitLimits, SettleThinking
from dragoman.filters.offers import GiveSchemas, ToolsInHistory, WrapTextTools
from dragoman.filters.raw_tools import RawTools
from dragoman.filters.request import HashUser, RefuseHeld, TellShapes
from dragoman.filters.results import PairTools, PlainResults
from dragoman.filters.seals import CarrySeals
from dragoman.filters.turns import AlternateTurns, FillEmpty, FoldSystem, StripAttribution

__all__ = [
    "AlternateTurns",
    "CarrySeals",
    "DropForeign",
    "FillEmpty",
    "FitLimits",
    "FoldSystem",
    "GiveSchemas",
    "HashUser",
    "ObjectArguments",
    "PairTools",
    "PlainResults",
    "RawTools",
    "RefuseHeld",
    "RenameTools",
    "SerializeBlocks",
    "SettleStop",
    "SettleThinking",
    "StripAttribution",
    "TellShapes",
    "ToolsInHistory",
    "WrapTextTools",
]
