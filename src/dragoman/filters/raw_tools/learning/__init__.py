"""Learn how a chat template writes tool calls: renderings of probe conversations in, a Table out. Pure.

probes.py     the conversations to render
pieces.py     the text of the calls, cut out of the renderings, and the markers around a call and a section
find_json.py  formats that write arguments as JSON
find.py       all others, and the Table
verify.py     whether the Table reads the renderings back
"""

from __future__ import annotations

from dragoman.filters.raw_tools.learning.find_table import CannotLearn, learn

__all__ = ["CannotLearn", "learn"]
