"""Learn how a chat template writes tool calls: from renderings of probe conversations to a `Table`. Pure.

probes.py      the conversations to render
pieces.py      extracts the text of the calls from the renderings, and finds the markers of calls and sections
find_json.py   formats that write arguments as JSON
find_table.py  all other formats, and the Table
verify.py      checks that the Table reads the renderings
"""

from __future__ import annotations

from dragoman.filters.raw_tools.learning.find_table import CannotLearn, learn

__all__ = ["CannotLearn", "learn"]
