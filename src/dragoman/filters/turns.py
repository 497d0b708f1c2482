"""Filters of turns: which there are, in which order, and that each says something.

StripAttribution: Claude Code's accounting line is not sent to services that do not read it. Claude Code begins its
system prompt with a block like `x-anthropic-billing-header: cc_version=…; cc_entrypoint=cli;`. It differs between
conversations and subagents (older versions: between requests), so a service that reads it as prompt text can reuse
nothing behind it from its prompt cache. Some other clients write it as the first line of a longer first block: then
only the line goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from msgspec import structs

from dragoman.model.blocks import Block, CacheBreakpoint, Extra, Reasoning, Text, ToolResult
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, Role, to_canonical, with_separator
from dragoman.model.filter import Action, Facts, Features, Filter, MakeResponseFilter, Notes

ATTRIBUTION_PREFIX = "x-anthropic-billing-header:"  # Claude Code itself recognises the block by exactly this


class StripAttribution(Filter):
    name = "strip_attribution"
    applies_to: Features = frozenset({"system"})
    keeps_replies = True  # no answer differs by it, so frames of the same dialect still pass

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        system = conversation.system
        if not system or not system[0].text.startswith(ATTRIBUTION_PREFIX):
            return conversation, None
        at = system[0].at.path
        while system and system[0].text.startswith(ATTRIBUTION_PREFIX):
            system = _without_line(system)
        notes.changed("system.attribution", at, "Claude Code's accounting line is not for this target")
        return structs.replace(conversation, system=system), None


def _without_line(system: tuple[Text, ...]) -> tuple[Text, ...]:
    """The system text without the first line of its first block, and without the block if nothing else is in it."""
    first, *others = system
    rest = first.text.partition("\n")[2]
    return (structs.replace(first, text=rest), *others) if rest.strip() else tuple(others)


# --- FoldSystem: system messages where the target has no place for them become labelled text of a user turn
# (docs/decisions/kiro.md#d10)


LABEL = "[System] "
_TURNS: Features = frozenset({"system_turns"})


class FoldSystem(Filter):
    """A system message joins the user turn right before it, else the one right after it, else it is a user turn itself.

    Where the target has no system text at all, that text stands, without a label, before the first user turn.
    """

    name = "fold_system"

    def __init__(self, upstream: Capabilities) -> None:
        self._keeps_leading = upstream.system != "none"
        self.applies_to = _TURNS if self._keeps_leading else _TURNS | {"system"}
        self._question = upstream.fillers[1]
        self._seam = upstream.turn_separator

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        messages = [*conversation.messages]
        if [message for message in messages if message.role == "system"]:
            messages = _fold(messages, notes)
        system = conversation.system
        if system and not self._keeps_leading:
            notes.changed("system.folded", system[0].at.path, "the system text now begins the first user turn")
            messages = self._lead(system, messages, notes)
            system = ()
        if len(notes) == before:
            return conversation, None
        folded = structs.replace(conversation, messages=tuple(messages), system=system)
        return to_canonical(folded, conversation.messages), None

    def _lead(self, system: tuple[Text, ...], messages: list[Message], notes: Notes) -> list[Message]:
        if messages and messages[0].role == "user":
            turn = structs.replace(messages[0], blocks=with_separator(system, messages[0].blocks, self._seam))
            return [_begun(system, turn), *messages[1:]]
        notes.added("turn.placeholder", "messages", f"a missing first user turn became {self._question!r}")
        return [Message("user", (*system, *with_separator(system, (Text(self._question),), self._seam))), *messages]


def _fold(messages: Iterable[Message], notes: Notes) -> list[Message]:
    folded: list[Message] = []
    waiting: list[Block] = []  # for the user turn after them
    for message in messages:
        if message.role == "system":
            notes.changed("system.folded", message.at.path, "a system message became labelled text of a user turn")
            if folded and folded[-1].role == "user":
                folded[-1] = structs.replace(folded[-1], blocks=(*folded[-1].blocks, *_labelled(message)))
            else:
                waiting.extend(_labelled(message))
            continue
        if waiting and message.role == "user":
            folded.append(_begun(waiting, message))
        else:
            folded.extend([Message("user", tuple(waiting)), message] if waiting else [message])
        waiting = []
    if waiting:
        folded.append(Message("user", tuple(waiting)))
    return folded


def _labelled(message: Message) -> Iterator[Block]:
    for block in message.blocks:
        if not isinstance(block, Text):
            yield block
        elif block.text.strip():
            yield structs.replace(block, text=LABEL + block.text)


def _begun(blocks: Iterable[Block], message: Message) -> Message:
    """The turn with the blocks before what it says; the canonical form keeps its tool results first."""
    return structs.replace(message, blocks=(*blocks, *message.blocks))


# --- FillEmpty: no text of white space only, unless it carries a seal that must go back, and no turn without a block.
#
# A turn that is left with nothing goes if the turn before it has the same role, or if it is an answer at the very
# end; elsewhere it says `.`: without it the turns around it would move, and with them the prefix that prompt caches
# know.


FILLER = "."
_MARK_LOST = ", and its cache mark with it"
B = TypeVar("B", bound=Block)


class FillEmpty(Filter):
    name = "fill_empty"
    applies_to: Features = frozenset({"blank", "prefill"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        system = _without_blanks(conversation.system, notes)
        messages: list[Message] = []
        speaker = ""
        last = len(conversation.messages) - 1
        for index, message in enumerate(conversation.messages):
            kept = _spoken(message, notes)
            if not kept.blocks:
                goes = message.role in ("system", speaker) or (message.role == "assistant" and index == last)
                fate = "was left out" if goes else f"became {FILLER!r}"
                notes.changed("turn.empty", message.at.path, f"the {message.role} turn says nothing; it {fate}")
                if goes:
                    continue
                kept = structs.replace(kept, blocks=(Text(FILLER, at=message.at),))
            messages.append(kept)
            speaker = speaker if message.role == "system" else message.role
        _strip_end(messages, notes)
        if len(notes) == before:
            return conversation, None
        filled = structs.replace(conversation, messages=tuple(messages), system=system)
        return to_canonical(filled, conversation.messages), None


def _spoken(message: Message, notes: Notes) -> Message:
    blocks = _without_blanks(message.blocks, notes)
    blocks = tuple([_result(block, notes) if isinstance(block, ToolResult) else block for block in blocks])
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _result(result: ToolResult, notes: Notes) -> ToolResult:
    content = _without_blanks(result.content, notes)
    return result if content is result.content else structs.replace(result, content=content)


def _without_blanks(blocks: tuple[B, ...], notes: Notes) -> tuple[B, ...]:
    kept: list[B] = []
    for block in blocks:
        if not isinstance(block, Text) or block.text.strip() or block.signature:
            kept.append(block)
            continue
        fate = "" if block.cache is None else _move_mark(kept, block.cache)
        action: Action = "dropped" if fate == _MARK_LOST else "changed"
        notes.add("text.blank", action, block.at.path, f"text without content was left out{fate}")
    return blocks if len(kept) == len(blocks) else tuple(kept)


def _move_mark(kept: list[B], mark: CacheBreakpoint) -> str:
    """Give a cache mark to the block before, which ends at the same place."""
    if not kept or isinstance(kept[-1], Reasoning):
        return _MARK_LOST
    if kept[-1].cache is None:
        kept[-1] = structs.replace(kept[-1], cache=mark)
    return "; its cache mark moved to the block before"


def _strip_end(messages: list[Message], notes: Notes) -> None:
    """The text that the model shall go on with may not end with white space."""
    if not messages or messages[-1].role != "assistant":
        return
    *others, end = messages[-1].blocks
    if isinstance(end, Text) and end.text != end.text.rstrip():
        notes.changed("text.trailing_space", end.at.path, "white space at the end of the last answer was cut")
        messages[-1] = structs.replace(messages[-1], blocks=(*others, structs.replace(end, text=end.text.rstrip())))


# --- AlternateTurns: turns in the order that the target wants, by merging or by placeholders
# (docs/decisions/kiro.md#d10)


class AlternateTurns(Filter):
    """`merge`: adjacent turns of one role become one. `pair`: a placeholder stands where a turn is missing.

    Both begin with a user turn; where the target takes no prefill, all end with one.
    """

    name = "alternate_turns"

    def __init__(self, upstream: Capabilities) -> None:
        self._turns = upstream.turns
        self._seam = upstream.turn_separator
        self._prefill = "user_last" not in upstream.traits
        ends: Features = frozenset() if self._prefill else frozenset({"prefill"})
        self.applies_to = ends if upstream.turns == "free" else ends | {"uneven_turns"}
        self._fillers: dict[Role, str] = {"assistant": upstream.fillers[0], "user": upstream.fillers[1]}

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        messages = list(conversation.messages)
        if self._turns != "free":
            messages = self._begun(messages, notes)
            messages = _merged(messages, self._seam, notes) if self._turns == "merge" else self._paired(messages, notes)
        if not self._prefill and messages and messages[-1].role == "assistant":
            messages.append(self._filler("user", messages[-1], notes))
        if len(notes) == before:
            return conversation, None
        return structs.replace(conversation, messages=tuple(messages)), None

    def _begun(self, messages: list[Message], notes: Notes) -> list[Message]:
        first = next((message for message in messages if message.role != "system"), None)
        if first is not None and first.role == "user":
            return messages
        return [self._filler("user", first, notes), *messages]

    def _paired(self, messages: Iterable[Message], notes: Notes) -> list[Message]:
        paired: list[Message] = []
        for message in messages:
            if paired and paired[-1].role == message.role != "system":
                paired.append(self._filler("assistant" if message.role == "user" else "user", message, notes))
            paired.append(message)
        return paired

    def _filler(self, role: Role, near: Message | None, notes: Notes) -> Message:
        text = self._fillers[role]
        notes.added("turn.placeholder", near.at.path if near else "messages", f"a missing {role} turn became {text!r}")
        return Message(role, (Text(text),))


def _merged(messages: Iterable[Message], seam: str, notes: Notes) -> list[Message]:
    runs: list[list[Message]] = []
    for message in messages:
        if runs and runs[-1][0].role == message.role != "system":
            notes.changed("turn.merged", message.at.path, f"joined with the {message.role} turn before it")
            runs[-1].append(message)
        else:
            runs.append([message])
    return [_joined(run, seam) if len(run) > 1 else run[0] for run in runs]


def _joined(run: list[Message], seam: str) -> Message:
    blocks: list[Block] = []
    extra: Extra | None = None
    said: tuple[Block, ...] = ()  # a text before, if there is one
    for message in run:
        blocks += with_separator(said, message.blocks, seam)
        said = said or tuple(block for block in message.blocks if isinstance(block, Text) and block.text.strip())[:1]
        extra = _union(extra, message.extra)
    if run[0].role == "user":
        blocks.sort(key=lambda block: not isinstance(block, ToolResult))
    return structs.replace(run[0], blocks=tuple(blocks), extra=extra)


def _union(one: Extra | None, other: Extra | None) -> Extra | None:
    """The fields of both turns; where they contradict each other, those of the first."""
    if one is None or other is None or one.family != other.family:
        return one or other
    return Extra(one.family, {**other.fields, **one.fields}, one.spelling | other.spelling)
