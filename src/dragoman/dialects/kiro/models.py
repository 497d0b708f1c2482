"""The models of the service (facts 1.8): their names, windows, how thinking is asked of them, who takes images."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from dragoman.model.blocks import Block, Media, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Usage, count
from dragoman.model.filter import Inventory, inventory
from dragoman.wire import jsonio

# tags: in the text. claude, gpt: in additionalModelRequestFields, each in its own words. none: not at all.
Asks: TypeAlias = Literal["tags", "claude", "gpt", "none"]

CLAUDE_EFFORTS = ("low", "medium", "high", "xhigh", "max")
GPT_EFFORTS = ("low", "medium", "high", "xhigh")
PATTERN = re.compile(r"[a-zA-Z0-9_:.-]{1,1024}")

_USUAL_WINDOW = 200_000
_MILLION = 1_000_000


class Model(Struct, frozen=True):
    window: int = _USUAL_WINDOW
    asks: Asks = "none"
    images: bool = False


_OLD_CLAUDE = Model(asks="tags", images=True)  # every other Claude, legacy ids included
_TABLE: dict[str, Model] = {
    "auto": Model(asks="tags", images=True),  # the service chooses: its window is a guess
    "claude-opus-5": Model(_MILLION, "claude", True),
    "claude-sonnet-5": Model(_MILLION, "claude", True),
    "claude-fable-5": Model(_MILLION, "claude", True),
    "claude-opus-4.8": Model(_MILLION, "claude", True),
    "claude-opus-4.7": Model(_MILLION, "claude", True),
    "claude-opus-4.6": Model(_MILLION, "tags", True),
    "claude-sonnet-4.6": Model(_MILLION, "tags", True),
    "claude-opus-4.5": _OLD_CLAUDE,
    "claude-sonnet-4.5": _OLD_CLAUDE,
    "claude-haiku-4.5": _OLD_CLAUDE,
    "claude-sonnet-4": _OLD_CLAUDE,
    "gpt-5.6-sol": Model(272_000, "gpt"),
    "gpt-5.6-terra": Model(272_000, "gpt"),
    "gpt-5.6-luna": Model(272_000, "gpt"),
    "deepseek-3.2": Model(128_000),
    "minimax-m2.5": Model(),
    "minimax-m2.1": Model(),
    "glm-5": Model(),
    "qwen3-coder-next": Model(256_000),
}
NAMES = tuple(_TABLE)
_HIDDEN = {"claude-3.7-sonnet": "CLAUDE_3_7_SONNET_20250219_V1_0", "claude-sonnet-4.0": "claude-sonnet-4"}

_PREFIX = re.compile(r"^(?:.*/|kiro-)")
_SUFFIX = re.compile(
    r"(?:\[1m\]|-thinking|-agentic|-latest|-(?:low|medium|high|xhigh|max)|[-@]\d{8}(?:-v\d+(?::\d+)?)?)$"
)
_LONGEST = 256  # characters of a name that is looked at: suffixes are taken off one by one
_VERSION = re.compile(r"(?<=\d)-(?=\d)")
_OLD_ORDER = re.compile(r"^claude-(\d(?:\.\d)?)-(opus|sonnet|haiku)$")


def model_of(name: str) -> Model:
    """What is known of a model, under its own name or a client's."""
    named = name_of(name)
    return _TABLE.get(named) or (_OLD_CLAUDE if "claude" in named.lower() else Model(images=True))


def known_window(name: str) -> int | None:
    """The window of a model that is in the table; of others, and of what the service chooses, nobody has told it."""
    known = _TABLE.get(name_of(name))
    return None if known is None or known is _TABLE["auto"] else known.window


@lru_cache(256)
def name_of(name: str) -> str:
    """The service's own name for a model that clients spell in many ways; an unknown one stays as it is."""
    if name in _TABLE or name.isupper() or len(name) > _LONGEST:
        return name
    plain = _PREFIX.sub("", name.strip().lower())
    while (shorter := _SUFFIX.sub("", plain)) != plain:
        plain = shorter
    plain = _VERSION.sub(".", plain)
    plain = _HIDDEN.get(plain, plain)
    plain = _OLD_ORDER.sub(r"claude-\2-\1", plain)
    return plain if plain in _TABLE or plain in _HIDDEN.values() or plain.startswith("claude-") else name


# --- Token counts without a tokenizer: an estimate from characters, and the figures Kiro's percentage stands for (D15)


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
    # All others of this alphabet have two bytes. The text keeps its bytes for the next writer.
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
    except jsonio.JsonError:  # nested too deeply: sending it reports that
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
