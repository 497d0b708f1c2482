"""Token counts without a tokenizer: an estimate from characters, and the figures Kiro's percentage stands for (D15)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dragoman.model.blocks import Block, Media, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Usage
from dragoman.model.filter import Inventory, inventory
from dragoman.model.usage import count
from dragoman.wire import jsonio

IMAGE = 1600  # tokens of one image, whatever its size: a convention
_UNSPLIT = 100  # below this many input tokens 002 makes no shares


class Counting(Protocol):
    """What the codec's settings say about counts (D15)."""

    @property
    def usage_split(self) -> tuple[int, int, int] | bool: ...
    def window(self, model: str) -> int: ...


def estimate(text: str) -> int:
    """Tokens in a text: four ASCII characters, or one other character, are about one."""
    return (len(text) + 3) // 4 if text.isascii() else _wide(text)


def _wide(text: str) -> int:
    plain = _plain(text)
    return len(text) - plain + (plain + 3) // 4


def _plain(text: str) -> int:
    """How many characters are ASCII; counted by encoders, since a long text has very many."""
    try:
        text.encode("latin-1")
    except UnicodeEncodeError:
        return len(text.encode("ascii", "ignore"))
    # All others of this alphabet have two bytes. The text keeps what it is written in for whoever writes it next.
    return 2 * len(text) - len(text.data if type(text) is jsonio.ObjectText else jsonio.Raw(text))


def estimate_input(conversation: Conversation) -> int:
    """Tokens of everything a conversation says to the model; the estimate that it carries, if it carries one."""
    if conversation.tokens is not None:
        return conversation.tokens
    return count_input(conversation, inventory(conversation.messages))


def count_input(conversation: Conversation, held: Inventory) -> int:
    """Count them. `held` is what the messages hold."""
    texts = [text.text for text in conversation.system] + held.words
    texts += [call.arguments for call in held.calls] + [call.name for call in held.calls]
    wide = [text for text in texts if not text.isascii()]
    plain = [*map(_plain, wide)]
    others = sum(map(len, wide)) - sum(plain)
    plain += [len(text) for text in texts if text.isascii()]
    return (
        others
        + sum([(size + 3) // 4 for size in plain])
        + sum(map(_block, (*held.thoughts, *held.others)))
        + sum(map(_tool, conversation.tools))
    )


def estimate_message(message: Message) -> int:
    return sum(map(_block, message.blocks))


def _tool(tool: object) -> int:
    try:
        return estimate(jsonio.encode(tool).decode())
    except jsonio.JsonError:  # nested too deeply: whoever sends it will say so
        return 0


def _block(block: Block) -> int:
    if isinstance(block, (Text, Reasoning)):
        return estimate(block.text)
    if isinstance(block, ToolCall):
        return estimate(block.name) + estimate(block.arguments)
    if isinstance(block, ToolResult):
        return sum([0 if isinstance(part, Media) else _block(part) for part in block.content])
    return IMAGE if isinstance(block, Media) else 0


class Counter:
    """Counts what an answer says, piece by piece, so that cutting it into more pieces makes no more tokens."""

    __slots__ = ("_plain", "_wide")

    def __init__(self) -> None:
        self._plain = 0
        self._wide = 0

    def add(self, text: str) -> None:
        plain = len(text) if text.isascii() else _plain(text)
        self._plain += plain
        self._wide += len(text) - plain

    @property
    def tokens(self) -> int:
        return self._wide + (self._plain + 3) // 4


def usage_of(percentage: float, window: int, output: int, split: Sequence[int] | None, reasoning: int = 0) -> Usage:
    """Return the counts that a percentage of the context stands for.

    The input is the total less the output, in shares of input and caches. All are estimates (D15): the window is a
    convention, the output is counted without a tokenizer, the shares are fixed.
    """
    total = count(window * percentage / 100)
    given, reasoning = max(total - output, 0), min(reasoning, output)
    if not split or given < _UNSPLIT:
        return Usage(given, output, reasoning=reasoning, estimated=True)
    whole = sum(split)
    fresh, written = given * split[0] // whole, given * split[1] // whole
    return Usage(fresh, output, given - fresh - written, written, reasoning, estimated=True)
