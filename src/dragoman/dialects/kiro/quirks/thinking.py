"""Filters for Kiro's thinking: send past thinking as tagged text, request thinking, parse tags in replies. Pure.

Theory of operation of the response filter. A text block begins in the state `head`: its first characters after white
space decide whether it begins with the opening tag. If it does not, all of it is text. If it does, everything is
thinking up to a closing tag that is not inside quotation marks or backticks and that is followed by a blank line, or
only by white space until the block ends. The rest is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import structs

from dragoman.dialects.kiro.models import find_model
from dragoman.dialects.kiro.request import FAMILY
from dragoman.model.blocks import Block, Reasoning, Text
from dragoman.model.conversation import Conversation, Thinking
from dragoman.model.events import BlockEnded, BlockKeys, BlockStarted, Event, ReasoningDelta, TextDelta
from dragoman.model.filter import (
    EventKinds,
    Facts,
    Features,
    Filter,
    MakeResponseFilter,
    MessageFilter,
    Notes,
    ResponseFilter,
)
from dragoman.wire.markers import Markers

HISTORY_TAGS = ("<kiro_thinking>", "</kiro_thinking>")
DEFAULT_LENGTH = 16_000  # tokens of thinking if the client gives no budget

_ENABLED = "<thinking_mode>enabled</thinking_mode><max_thinking_length>{}</max_thinking_length>"
_ADAPTIVE = "<thinking_mode>adaptive</thinking_mode><thinking_effort>{}</thinking_effort>"


def wrap_in_tags(text: str) -> str:
    """Return thinking as text in the tags for history."""
    return HISTORY_TAGS[0] + text + HISTORY_TAGS[1]


def is_replayable(block: Reasoning) -> bool:
    """Return whether the service accepts the thought in history: it has the service's signature and the signed text.

    See rule 40 of docs/dialects/kiro.md.
    """
    signature = block.signature
    if signature is None or signature.family != FAMILY or not signature.data:
        return False
    return (
        bool(block.text.strip()) if signature.kind == "signature" else signature.kind == "redacted" and not block.text
    )


class WrapThinking(MessageFilter):
    """Turn thinking without the service's own signature into tagged text of its turn (docs/decisions/kiro.md#d14)."""

    name = "kiro.wrap_thinking"
    applies_to: Features = frozenset({"reasoning"})
    before = "drop_foreign"

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if not isinstance(block, Reasoning) or is_replayable(block):
            return (block,)
        if block.text.strip():
            notes.changed("kiro.thinking.wrapped", block.at.path, f"thinking is sent as text in {HISTORY_TAGS[0]} tags")
            return (Text(wrap_in_tags(block.text), at=block.at),)
        notes.dropped(
            "kiro.thinking.unreadable", block.at.path, "Kiro cannot read encrypted thinking of another service"
        )
        return ()


class AskForThinking(Filter):
    """Request thinking as the model expects it: by model fields for new models, by tags in the text for older ones.

    The tags come before the system text, in the first user turn: never in a turn with tool results (rule 41 of
    docs/dialects/kiro.md), and always at the same place, so that earlier turns do not change and prompt caches stay
    valid.
    """

    name = "kiro.ask_thinking"
    applies_to: Features = frozenset({"thinking"})
    before = "fold_system"

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        thinking = conversation.thinking
        if thinking.mode not in ("on", "adaptive") and (thinking.mode == "off" or not thinking.effort):
            return conversation, None
        match find_model(conversation.model).thinking_style:
            case "tags":
                tags = _tags(thinking)
                notes.changed(
                    "kiro.thinking.tags", "thinking", f"thinking is requested by {tags} before the system text"
                )
                if thinking.show is False:
                    notes.dropped("thinking.show", "thinking", "thinking requested by tags is always shown")
                system = (Text(tags), *conversation.system)
                return structs.replace(conversation, system=system, thinking=Thinking()), _SplitThinking
            case "claude" if thinking.mode != "adaptive":
                notes.changed("kiro.thinking.adaptive", "thinking", "this model accepts only adaptive thinking")
                return structs.replace(conversation, thinking=structs.replace(thinking, mode="adaptive")), None
            case _:
                return conversation, None  # fit_limits converts or drops the setting


def _tags(thinking: Thinking) -> str:
    if thinking.mode == "on" and not (thinking.effort and thinking.budget is None):
        return _ENABLED.format(thinking.budget or DEFAULT_LENGTH)
    return _ADAPTIVE.format(thinking.effort or "high")


# --- the response filter

_OPEN, _CLOSE = "<thinking>", "</thinking>"
_CLOSING = Markers((_CLOSE,))
_MAX_BLANKS = 1024  # characters of white space that are buffered before a tag, or after it
_QUOTES = "`\"'"
# A closing tag and the white space after it. A blank line ends the thinking, any other text does not.
_ENDING = re.compile(re.escape(_CLOSE) + r"(?P<space>[ \t]*(?:\n[ \t]*(?P<blank>\n)?)?)")


_IDLE: EventKinds = frozenset({Text})


class _OpenText:
    """An open text block of the upstream. `key` is that of the block that is open in the output; None if none is."""

    def __init__(self, started: BlockStarted) -> None:
        self.started = started
        self.state = "head"
        self.buffer = ""
        self.before = ""  # the character before the buffer
        self.key: int | None = None


class _SplitThinking(ResponseFilter):
    def __init__(self, notes: Notes, keys: BlockKeys) -> None:
        self._notes = notes
        self._keys = keys
        self._blocks: dict[int, _OpenText] = {}  # open blocks that may have thinking
        self.reads: EventKinds | None = _IDLE

    def take(self, event: Event) -> Iterable[Event]:
        out = tuple(self._split(event))
        self.reads = None if self._blocks else _IDLE
        return out

    def _split(self, event: Event) -> Iterable[Event]:
        match event:
            case BlockStarted(key, Text()):
                self._blocks[key] = _OpenText(event)
            case TextDelta(key, text) if (block := self._blocks.get(key)) is not None:
                block.buffer += text
                yield from self._advance(block)
            case BlockEnded(key) if (block := self._blocks.pop(key, None)) is not None:
                yield from self._end(block, event)
            case _:
                block = self._blocks.get(getattr(event, "key", -1))
                yield from self._end_thinking(block) if block is not None else ()
                yield event

    def _end_thinking(self, block: _OpenText) -> Iterable[Event]:
        """Send the buffer and continue the block as text, because an event comes that only a text can have."""
        if block.state == "thinking":
            yield from self._thought(block, block.buffer)
            yield BlockEnded(self._key(block))
        yield from self._plain(block, block.buffer if block.state == "head" else "")

    def _advance(self, block: _OpenText) -> Iterable[Event]:
        if block.state == "head":
            yield from self._head(block)
        if block.state == "thinking":
            yield from self._thinking(block)
        if block.state == "after":
            block.buffer = block.buffer.lstrip()
            if block.buffer:
                yield from self._plain(block, block.buffer)

    def _head(self, block: _OpenText) -> Iterable[Event]:
        text = block.buffer.lstrip()
        if text.startswith(_OPEN) and len(text) > len(_OPEN):  # One more character: a newline after the tag is removed.
            block.key, block.state = self._keys.fresh(), "thinking"
            block.buffer = text.removeprefix(_OPEN).removeprefix("\n")
            self._notes.changed("kiro.thinking.split", "", f"thinking in {_OPEN} tags in the text became reasoning")
            yield BlockStarted(block.key, Reasoning("", FAMILY), block.started.choice)
        elif not _OPEN.startswith(text[: len(_OPEN)]) or len(block.buffer) > _MAX_BLANKS:
            yield from self._plain(block, block.buffer)

    def _thinking(self, block: _OpenText) -> Iterable[Event]:
        """Yield the text that is certainly thinking; buffer from the first tag that may still close it."""
        buffer, position = block.buffer, 0
        while (found := _ENDING.search(buffer, position)) is not None:
            if self._is_quoted(block, found.start()):
                position = found.start() + len(_CLOSE)
            elif found["blank"] is not None:
                yield from self._thought(block, buffer[: found.start()])
                yield BlockEnded(self._key(block))
                block.state, block.buffer = "after", buffer[found.end() :]
                return
            elif found.end() == len(buffer) and len(buffer) - found.start() <= _MAX_BLANKS:  # undecided
                yield from self._thought(block, buffer[: found.start()])
                block.buffer = buffer[found.start() :]
                return
            else:
                position = found.start() + len(_CLOSE)
        end, _ = _CLOSING.find(buffer, position, False)
        yield from self._thought(block, buffer[:end])
        block.buffer = buffer[end:]

    def _is_quoted(self, block: _OpenText, at: int) -> bool:
        before = block.buffer[at - 1] if at else block.before
        return bool(before) and before in _QUOTES

    def _thought(self, block: _OpenText, text: str) -> Iterable[Event]:
        if text:
            block.before = text[-1]
            yield ReasoningDelta(self._key(block), text)

    def _key(self, block: _OpenText) -> int:
        assert block.key is not None
        return block.key

    def _plain(self, block: _OpenText, text: str) -> Iterable[Event]:
        """Continue the block as ordinary text."""
        block.state, block.buffer, block.key = "plain", "", block.started.key
        self._blocks.pop(block.key, None)
        yield block.started
        if text:
            yield TextDelta(block.key, text)

    def _end(self, block: _OpenText, event: BlockEnded) -> Iterable[Event]:
        if block.state == "head":
            if block.buffer.strip() != _OPEN:  # A lone opening tag is left out.
                yield from self._plain(block, block.buffer)
        elif block.state == "thinking":
            is_closed = not self._is_quoted(block, 0) and block.buffer.startswith(_CLOSE)
            text = block.buffer.removeprefix(_CLOSE).rstrip() if is_closed else block.buffer
            yield from self._thought(block, text)
        if block.state != "after" and block.key is not None:
            yield BlockEnded(block.key, event.is_complete)
