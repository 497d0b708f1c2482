"""Turns to try a filter with, and what it makes of a request."""

from __future__ import annotations

from dragoman.model.blocks import Block, Extra, Location, Text
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Filter, Note, Notes


def user(*blocks: Block | str, extra: Extra | None = None) -> Message:
    return Message("user", _blocks(blocks), extra=extra)


def assistant(*blocks: Block | str) -> Message:
    return Message("assistant", _blocks(blocks))


def system(*blocks: Block | str) -> Message:
    return Message("system", _blocks(blocks), at=Location("the system message"))


def _blocks(blocks: tuple[Block | str, ...]) -> tuple[Block, ...]:
    return tuple(Text(block) if isinstance(block, str) else block for block in blocks)


def apply_filter(filter_: Filter, conversation: Conversation) -> tuple[Conversation, list[Note]]:
    """The request and its notes after a filter that leaves the reply alone; without a note nothing has changed."""
    notes = Notes()
    fitted, back = filter_.forward(conversation, notes, Facts())
    assert back is None
    assert (fitted is conversation) == (not notes)
    return fitted, list(notes)
