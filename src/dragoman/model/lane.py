"""A lane: the short way of the deltas of one open block, from the upstream's frame to the client's.

When a delta of a block has gone the general way, the decoder, every response filter and the encoder are asked once for
their part of the block's lane. The next frames of the block go by the lane as long as they hold nothing but such a
delta; any other frame goes the general way and closes the lane. What a part says holds until its owner is fed an event.
A decoder, filter or encoder without lanes gives None: then all deltas go the general way, and the output is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from msgspec import Struct

Search: TypeAlias = Callable[[str], object]  # gives None where it finds nothing, as that of a regular expression
Listener: TypeAlias = Callable[[str], object]  # gets the texts of the lane's deltas, one or several at a time


class LaneSource(Struct, frozen=True, gc=False):
    """The decoder's part: how a frame that holds one delta of the block, and nothing else, is read.

    `decode` raises for a frame of another shape, as that of `jsonio.strict` does. `text_of` gives None or "" for a
    delta of another block.
    """

    kind: str  # of the frames
    decode: Callable[[bytes], Any]
    text_of: Callable[[Any], str | None]
    listener: Listener | None = None


class LaneWatch(Struct, frozen=True, gc=False):
    """A response filter's part: when it must see a delta."""

    search: Search | None = None  # finds the reason to see a delta in its text; None: it never must
    listener: Listener | None = None


class LaneTarget(Struct, frozen=True, gc=False):
    """The encoder's part: a payload without the JSON string that is the text."""

    kind: bytes
    before: bytes
    after: bytes
    listener: Listener | None = None


UNSEEN = LaneWatch()  # of a filter that need not see such deltas
