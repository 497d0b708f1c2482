"""Learn how a chat template writes tool calls: renderings of probe conversations in, a Table out. Pure.

probes.py   the conversations to render
shots.py    the text of the calls, cut out of the renderings
pieces.py   text as a list of tags and words, and what two such lists share
frame.py    the markers around a call and around a section
find.py     which body it is, and the Table
"""

from __future__ import annotations

from dragoman.filters.raw_tools.learning.find import CannotLearn, learn

__all__ = ["CannotLearn", "learn"]
