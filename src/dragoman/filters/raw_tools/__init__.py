"""Recover tool calls that a model wrote into its text as raw tokens or tags, while they stream.

See docs/decisions/raw_tools.md.
"""

from __future__ import annotations

from dragoman.filters.raw_tools.choices import FORMAT_ALIASES, FORMAT_NAMES
from dragoman.filters.raw_tools.engine import Engine
from dragoman.filters.raw_tools.filter import RawTools
from dragoman.filters.raw_tools.names import CallIds, DeclaredTools
from dragoman.filters.raw_tools.table import Table
from dragoman.filters.raw_tools.tables import TABLES

__all__ = ["FORMAT_ALIASES", "FORMAT_NAMES", "TABLES", "CallIds", "DeclaredTools", "Engine", "RawTools", "Table"]
