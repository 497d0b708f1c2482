"""Filters of turns: the system text, empty turns, and the order of roles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from msgspec import structs

from dragoman.filters.cache_marks import MARK_LOST, move_mark
from dragoman.model.blocks import Block, Extra, Text, ToolResult
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, Role, to_canonical, with_separator
from dragoman.model.filter import Action, Facts, Features, Filter, MakeResponseFilter, Notes

ATTRIBUTION_PREFIX = "x-anthropic-billing-header:"  # Claude Code itself recognises the block by this prefix


class StripAttribution(Filter):
    """Remove Claude Code's billing line for services that do not read it.

    Claude Code begins its system prompt with a block like `x-anthropic-billing-header: cc_version=…;
    cc_entrypoint=cli;`. The line differs between conversations and subagents (older versions: between requests), so a
    service that reads it as prompt text cannot reuse its prompt cache for the text after it. Some other clients write
    it as the first line of a longer block; then only the line is removed.
    """

    name = "strip_attribution"
    applies_to: Features = frozenset({"system"})
    keeps_replies = True  # replies stay the same, so frames of the same dialect still pass unchanged

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        system = conversation.system
        if not system or not system[0].text.startswith(ATTRIBUTION_PREFIX):
            return conversation, None
        at = system[0].at.path
        while system and system[0].text.startswith(ATTRIBUTION_PREFIX):
            system = _without_line(system)
        notes.changed("system.attribution", at, "Claude Code's billing line is left out: the target does not read it")
        return structs.replace(conversation, system=system), None


def _without_line(system: tuple[Text, ...]) -> tuple[Text, ...]:
    """Return the system text without the first line of its first block; the block goes too if it is then empty."""
    first, *others = system
    rest = first.text.partition("\n")[2]
    return (structs.replace(first, text=rest), *others) if rest.strip() else tuple(others)


# --- FoldSystem


LABEL = "[System] "
_TURNS: Features = frozenset({"system_turns"})


class FoldSystem(Filter):
    """Turn system messages into labelled text of a user turn, for targets without them (docs/decisions/kiro.md#d10).

    A system message joins the user turn right before it, else the one right after it, else it becomes a user turn.
    If the target has no system text at all, that text begins the first user turn, without a label.
    """

    name = "fold_system"

    def __init__(self, upstream: Capabilities) -> None:
        self._keeps_leading = upstream.system != "none"
        self.applies_to = _TURNS if self._keeps_leading else _TURNS | {"system"}
        self._question = upstream.fillers[1]
        self._separator = upstream.turn_separator

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        messages = [*conversation.messages]
        if [message for message in messages if message.role == "system"]:
            messages = _fold(messages, notes)
        system = conversation.system
        if system and not self._keeps_leading:
            notes.changed(
                "system.folded", system[0].at.path, "the system text is placed at the start of the first user turn"
            )
            messages = self._lead(system, messages, notes)
            system = ()
        if len(notes) == before:
            return conversation, None
        folded = structs.replace(conversation, messages=tuple(messages), system=system)
        return to_canonical(folded, conversation.messages), None

    def _lead(self, system: tuple[Text, ...], messages: list[Message], notes: Notes) -> list[Message]:
        if messages and messages[0].role == "user":
            turn = structs.replace(messages[0], blocks=with_separator(system, messages[0].blocks, self._separator))
            return [_with_blocks_first(system, turn), *messages[1:]]
        notes.added("turn.placeholder", "messages", f"the first user turn is missing; {self._question!r} is added")
        return [
            Message("user", (*system, *with_separator(system, (Text(self._question),), self._separator))),
            *messages,
        ]


def _fold(messages: Iterable[Message], notes: Notes) -> list[Message]:
    folded: list[Message] = []
    waiting: list[Block] = []  # blocks for the next user turn
    for message in messages:
        if message.role == "system":
            notes.changed("system.folded", message.at.path, "a system message became labelled text of a user turn")
            if folded and folded[-1].role == "user":
                folded[-1] = structs.replace(folded[-1], blocks=(*folded[-1].blocks, *_labelled(message)))
            else:
                waiting.extend(_labelled(message))
            continue
        if waiting and message.role == "user":
            folded.append(_with_blocks_first(waiting, message))
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


def _with_blocks_first(blocks: Iterable[Block], message: Message) -> Message:
    """Return the turn with the blocks before its own; `to_canonical` moves tool results to the front again."""
    return structs.replace(message, blocks=(*blocks, *message.blocks))


# --- FillEmpty


FILLER = "."
B = TypeVar("B", bound=Block)


class FillEmpty(Filter):
    """Remove blank texts, except those with a signature that must be sent back, and fill or remove empty turns.

    A turn without blocks is removed if the turn before it has the same role, or if it is an assistant turn at the end.
    Elsewhere its text becomes `.`: without it the turns around it would move, and prompt caches would miss.
    """

    name = "fill_empty"
    applies_to: Features = frozenset({"blank", "prefill"})

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = len(notes)
        system = _without_blanks(conversation.system, notes)
        messages: list[Message] = []
        last_role = ""
        last = len(conversation.messages) - 1
        for index, message in enumerate(conversation.messages):
            remaining = _without_blank_texts(message, notes)
            if not remaining.blocks:
                is_dropped = message.role in ("system", last_role) or (message.role == "assistant" and index == last)
                outcome = "was left out" if is_dropped else f"became {FILLER!r}"
                notes.changed("turn.empty", message.at.path, f"the {message.role} turn is empty; it {outcome}")
                if is_dropped:
                    continue
                remaining = structs.replace(remaining, blocks=(Text(FILLER, at=message.at),))
            messages.append(remaining)
            last_role = last_role if message.role == "system" else message.role
        _strip_end(messages, notes)
        if len(notes) == before:
            return conversation, None
        filled = structs.replace(conversation, messages=tuple(messages), system=system)
        return to_canonical(filled, conversation.messages), None


def _without_blank_texts(message: Message, notes: Notes) -> Message:
    blocks = _without_blanks(message.blocks, notes)
    blocks = tuple([_result(block, notes) if isinstance(block, ToolResult) else block for block in blocks])
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _result(result: ToolResult, notes: Notes) -> ToolResult:
    content = _without_blanks(result.content, notes)
    return result if content is result.content else structs.replace(result, content=content)


def _without_blanks(blocks: tuple[B, ...], notes: Notes) -> tuple[B, ...]:
    remaining: list[B] = []
    for block in blocks:
        if not isinstance(block, Text) or block.text.strip() or block.signature:
            remaining.append(block)
            continue
        outcome = "" if block.cache is None else move_mark(remaining, block.cache)
        action: Action = "dropped" if outcome == MARK_LOST else "changed"
        notes.add("text.blank", action, block.at.path, f"text without content was left out{outcome}")
    return blocks if len(remaining) == len(blocks) else tuple(remaining)


def _strip_end(messages: list[Message], notes: Notes) -> None:
    """Remove white space at the end of a prefill: services refuse it."""
    if not messages or messages[-1].role != "assistant":
        return
    *others, end = messages[-1].blocks
    if isinstance(end, Text) and end.text != end.text.rstrip():
        notes.changed(
            "text.trailing_space", end.at.path, "white space at the end of the last assistant turn was removed"
        )
        messages[-1] = structs.replace(messages[-1], blocks=(*others, structs.replace(end, text=end.text.rstrip())))


# --- AlternateTurns


class AlternateTurns(Filter):
    """Put turns into the order that the target requires (docs/decisions/kiro.md#d10).

    `Capabilities.turns` selects how. `merge`: adjacent turns of one role become one. `pair`: a placeholder fills each
    missing turn. Both begin with a user turn; if the target accepts no prefill, the last turn is a user turn too.
    """

    name = "alternate_turns"

    def __init__(self, upstream: Capabilities) -> None:
        self._turns = upstream.turns
        self._separator = upstream.turn_separator
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
            messages = self._starting_with_user(messages, notes)
            messages = (
                _merge_adjacent(messages, self._separator, notes)
                if self._turns == "merge"
                else self._paired(messages, notes)
            )
        if not self._prefill and messages and messages[-1].role == "assistant":
            messages.append(self._filler("user", messages[-1], notes))
        if len(notes) == before:
            return conversation, None
        return structs.replace(conversation, messages=tuple(messages)), None

    def _starting_with_user(self, messages: list[Message], notes: Notes) -> list[Message]:
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
        notes.added(
            "turn.placeholder", near.at.path if near else "messages", f"a {role} turn is missing; {text!r} is added"
        )
        return Message(role, (Text(text),))


def _merge_adjacent(messages: Iterable[Message], separator: str, notes: Notes) -> list[Message]:
    runs: list[list[Message]] = []
    for message in messages:
        if runs and runs[-1][0].role == message.role != "system":
            notes.changed("turn.merged", message.at.path, f"the turn is joined with the {message.role} turn before it")
            runs[-1].append(message)
        else:
            runs.append([message])
    return [_merge_run(run, separator) if len(run) > 1 else run[0] for run in runs]


def _merge_run(run: list[Message], separator: str) -> Message:
    blocks: list[Block] = []
    extra: Extra | None = None
    earlier_text: tuple[Block, ...] = ()  # a text of an earlier turn, if there is one
    for message in run:
        blocks += with_separator(earlier_text, message.blocks, separator)
        earlier_text = (
            earlier_text
            or tuple(block for block in message.blocks if isinstance(block, Text) and block.text.strip())[:1]
        )
        extra = _union(extra, message.extra)
    if run[0].role == "user":
        blocks.sort(key=lambda block: not isinstance(block, ToolResult))
    return structs.replace(run[0], blocks=tuple(blocks), extra=extra)


def _union(one: Extra | None, other: Extra | None) -> Extra | None:
    """Return the extra fields of both turns; those of the first win."""
    if one is None or other is None or one.family != other.family:
        return one or other
    return Extra(one.family, {**other.fields, **one.fields}, one.spelling | other.spelling)
