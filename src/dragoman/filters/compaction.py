"""Compact a conversation by a summary of the model, for an upstream whose service cannot compact. Pure.

Codex ends its input with an item that asks for a compaction, and replaces its history by the one item that the reply
must have. Where the service cannot do that, the model is asked for a summary, and its text becomes that item. The codec
writes the text into the item, and reads it from there when the client sends the item back, so no store is needed and
any upstream can continue.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from msgspec import Struct, structs

from dragoman.errors import Fault
from dragoman.model import events as ev
from dragoman.model.blocks import Block, Opaque, Summary, SummaryRequest, Text
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, Output, StopReason, ToolChoice
from dragoman.model.filter import EventKinds, Facts, Features, Filter, MakeResponseFilter, Notes, ResponseFilter

SUMMARY = "Summary of the conversation so far:"
SUMMARY_AS_TEXT = "the target cannot compact: the summary of earlier turns is sent as text"
PROMPT = """\
Summarize the conversation so far for another model that will continue it and sees nothing else of it. State what the \
user wants, what was done and found (files, commands, results, decisions), what is left to do, and everything that \
must not be lost, such as names, paths and constraints. Write only the summary."""
_BY_MODEL = "the service compacts no conversations: the model is asked for a summary, and its text becomes the item"
_NO_SUMMARY = "the model wrote no summary of the conversation, so the conversation is not compacted; try again"


class CompactHistory(Filter):
    """Ask the model for a summary where the client asks the service for a compaction, and show it earlier summaries."""

    name = "compact_history"
    applies_to: Features = frozenset({"opaque"})
    replaces_blocks = True

    def __init__(self, client_family: str, upstream: Capabilities, upstream_family: str) -> None:
        self._family = client_family
        self._is_done_by_service = client_family == upstream_family and "compaction" in upstream.traits

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        messages = tuple([self._message(message, notes) for message in conversation.messages])
        if messages == conversation.messages:
            return conversation, None
        changed = structs.replace(conversation, messages=messages)
        if self._is_done_by_service or not any(map(_asks, facts.inventory(conversation).others)):
            return changed, None
        choice = ToolChoice("none") if conversation.tools else conversation.tool_choice
        return structs.replace(changed, tool_choice=choice, output=Output()), partial(_SummaryFilter, self._family)

    def _message(self, message: Message, notes: Notes) -> Message:
        blocks = tuple([self._block(block, notes) for block in message.blocks])
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block, notes: Notes) -> Block:
        for effect in block.effects if isinstance(block, Opaque) else ():
            match effect:
                case Summary(text, is_ours=True):
                    notes.changed("compaction.as_text", block.at.path, SUMMARY_AS_TEXT)
                    return Text(f"{SUMMARY}\n\n{text}", at=block.at)
                case SummaryRequest() if not self._is_done_by_service:
                    notes.changed("compaction.by_model", block.at.path, _BY_MODEL)
                    return Text(PROMPT, at=block.at)
                case _:
                    pass
        return block


def _asks(block: Block) -> bool:
    return isinstance(block, Opaque) and any(isinstance(effect, SummaryRequest) for effect in block.effects)


class _SummaryFilter(Struct, ResponseFilter, eq=False):
    """Collects the texts of the reply, and puts one block with the summary in the place of all its blocks."""

    _family: str
    _notes: Notes
    _keys: ev.BlockKeys
    _buffer: ev.TextBuffer | None = None
    _texts: dict[int, bool] = {}  # keys of texts
    _has_failed: bool = False
    reads: EventKinds | None = None

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.Started() | ev.UsageReported():
                return (event,)
            case ev.BlockStarted(key, Text(text)):
                self._texts[key] = True
                self._add(text)
            case ev.TextDelta(key, text) if key in self._texts:
                self._add(text)
            case ev.Stopped(stop):
                return self._ended(event, stop.reason)
            case ev.Finished() | ev.Failed() if not self._has_failed:
                return (event,)
            case _:
                pass
        return ()

    def _add(self, text: str) -> None:
        self._buffer = self._buffer or ev.TextBuffer(self._keys.budget)
        self._buffer.add(text)

    def _ended(self, event: ev.Stopped, reason: StopReason) -> Iterable[ev.Event]:
        summary = self._buffer.take().strip() if self._buffer is not None else ""
        if not summary or reason is StopReason.REFUSAL:
            self._has_failed = True
            return (ev.Failed(Fault("server", _NO_SUMMARY)),)
        block = Opaque(self._family, {}, "compaction", effects=(Summary(summary, is_ours=True),))
        key = self._keys.fresh(block)
        return (ev.BlockStarted(key, block), ev.BlockEnded(key), event)
