"""A whole answer in the client's words, or as it came where it may pass. Pure.

The worker process does this for answers as large as the requests it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dragoman.answer import is_event_stream, reply_whole
from dragoman.dialects.base import REAL_WORLD
from dragoman.errors import BadFrame, UpstreamFault, UpstreamViolation
from dragoman.model.conversation import Reply, Stop, Usage
from dragoman.model.events import Budget
from dragoman.model.filter import Note
from dragoman.translate import Plan


class Told(Struct, frozen=True):
    """What is told of an answer. Without `notes` it passes as it came; its body is then the upstream's own."""

    id: str
    usage: Usage | None
    stop: Stop | None
    notes: Sequence[Note] | None


def told_whole(made: Plan, body: bytes, budget: Budget | None = None) -> tuple[Told, bytes]:
    """Read an answer and write it for the client. Raises UpstreamViolation, UpstreamFault."""
    streams_only = "streams_only" in made.upstream.codec.capabilities(made.sent.model).traits
    if made.verbatim and (streams_only or not is_event_stream(body)) and not _holds_calls(made, body):
        return _tapped(made, body), body
    try:
        reply, notes = reply_whole(made, body, budget=budget)
    except RecursionError:
        raise BadFrame("the answer is nested too deeply") from None
    raw = made.client.codec.render_reply(reply, made.asked, REAL_WORLD)
    return _told(reply, notes), raw


def _told(reply: Reply, notes: Sequence[Note] | None) -> Told:
    return Told(reply.id, reply.usage, reply.choices[0].stop if reply.choices else None, notes)


def _tapped(made: Plan, body: bytes) -> Told:
    """Read along, for the record.

    Raises UpstreamViolation for what breaks the dialect: half an answer, a web page, a call without a name.
    """
    forms = made.upstream.plain
    if forms is not None and (seen := forms.reply(body)) is not None:
        return Told("", seen.usage, seen.stop, None)
    try:
        return _told(made.upstream.codec.parse_reply(body, made.sent), None)
    except RecursionError:
        return Told("", None, None, None)


def _holds_calls(made: Plan, body: bytes) -> bool:
    """Whether raw tool calls, or what is left of some, are in an answer that may pass as it came otherwise."""
    if not made.finds_calls:
        return False
    try:
        notes = reply_whole(made, body)[1]
    except (RecursionError, UpstreamViolation, UpstreamFault):
        return False  # those who read along say what is wrong
    return any(note.rule.startswith("raw_tools.") for note in notes)
