"""Filters: the changes a target needs. Pure, composable, each with its notes and its own way back.

Their order is one table in translate.py. A filter changes what a conversation says; how it is spelt is the codec's.
"""

from __future__ import annotations

from dragoman.filters.alternate_turns import AlternateTurns
from dragoman.filters.carry_seals import CarrySeals
from dragoman.filters.drop_foreign import DropForeign
from dragoman.filters.fill_empty import FillEmpty
from dragoman.filters.fit_limits import FitLimits
from dragoman.filters.fold_system import FoldSystem
from dragoman.filters.give_schemas import GiveSchemas
from dragoman.filters.hash_user import HashUser
from dragoman.filters.object_arguments import ObjectArguments
from dragoman.filters.pair_tools import PairTools
from dragoman.filters.plain_results import PlainResults
from dragoman.filters.raw_tools import RawTools
from dragoman.filters.refuse_held import RefuseHeld
from dragoman.filters.rename_tools import RenameTools
from dragoman.filters.serialize_blocks import SerializeBlocks
from dragoman.filters.settle_stop import SettleStop
from dragoman.filters.settle_thinking import SettleThinking
from dragoman.filters.strip_attribution import StripAttribution
from dragoman.filters.tell_shapes import TellShapes
from dragoman.filters.tools_in_history import ToolsInHistory
from dragoman.filters.wrap_text_tools import WrapTextTools

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
