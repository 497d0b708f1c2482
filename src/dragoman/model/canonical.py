"""The form every reader ends with (D8), so that one conversation has one canonical value whatever its framing."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import TypeVar

from msgspec import structs

from dragoman.errors import MalformedRequest
from dragoman.model.blocks import Block, Extra, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message

N = TypeVar("N", Text, Message)


def canonical(conversation: Conversation) -> Conversation:
    """Give the conversation its canonical form.

    Results come first in their turn, and user messages that follow results belong to that turn; leading system
    messages are part of `system`; a text that says nothing and carries nothing is no block. Raises MalformedRequest
    for a call that the assistant does not make and a result that the user does not give: no target has a place for it.
    """
    messages = [*map(_tidy, conversation.messages)]
    if _has_split_turns(messages):
        messages = _join_result_turns(messages)
    system = list(filter(_says_something, conversation.system))
    while messages and messages[0].role == "system" and _plain(messages[0]):
        system.extend(_inherit(messages.pop(0)))
    if _same(messages, conversation.messages) and _same(system, conversation.system):
        return conversation
    return structs.replace(conversation, messages=tuple(messages), system=tuple(system))


def _same(nodes: list[N], others: tuple[N, ...]) -> bool:
    return len(nodes) == len(others) and all(map(is_, nodes, others))


def spaced(before: Iterable[Block], blocks: tuple[Block, ...], seam: str) -> tuple[Block, ...]:
    """The blocks with the seam in front of their first text, if there is text before them that it keeps apart."""
    if not seam or not any(isinstance(block, Text) and block.text.strip() for block in before):
        return blocks
    for index, block in enumerate(blocks):
        if isinstance(block, Text) and block.text.strip():
            return (*blocks[:index], structs.replace(block, text=seam + block.text), *blocks[index + 1 :])
    return blocks


def _says_something(block: Block) -> bool:
    return not (isinstance(block, Text) and not block.text) or any(
        (block.cache, block.seal, block.citations, block.extra)
    )


def _tidy(message: Message) -> Message:
    role, tidy, others = message.role, True, False
    for block in message.blocks:
        if isinstance(block, ToolResult):
            if role != "user":
                raise MalformedRequest(f"a tool result stands in a message of the role {role}", at=block.at.path)
            tidy = tidy and not others
            continue
        others = True
        if isinstance(block, Text):
            tidy = tidy and bool(block.text)
        elif isinstance(block, ToolCall) and role != "assistant":
            raise MalformedRequest(f"a tool call stands in a {role} message", at=block.at.path)
    if tidy:
        return message
    blocks = tuple(filter(_says_something, message.blocks))
    if message.role == "user" and any(isinstance(block, ToolResult) for block in blocks[1:]):
        blocks = tuple(sorted(blocks, key=lambda block: not isinstance(block, ToolResult)))
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _has_split_turns(messages: Iterable[Message]) -> bool:
    """Whether a user message follows results."""
    answered = False
    for message in messages:
        if message.role == "user":
            if answered:
                return True
            answered = _has_results(message)
        else:
            answered = False
    return False


def _join_result_turns(messages: Iterable[Message]) -> list[Message]:
    joined: list[Message] = []
    run: list[Message] = []  # of one turn: results, and the user messages that follow them
    for message in messages:
        if run and message.role == "user":
            extra = _union(run[0].extra, message.extra)
            if extra is not False:
                run[0] = structs.replace(run[0], extra=extra)
                run.append(message)
                continue
        joined += _one_turn(run)
        run = [message] if message.role == "user" and _has_results(message) else []
        if not run:
            joined.append(message)
    return joined + _one_turn(run)


def _one_turn(run: list[Message]) -> list[Message]:
    if len(run) < 2:
        return run
    return [_tidy(structs.replace(run[0], blocks=tuple(block for message in run for block in message.blocks)))]


def _has_results(message: Message) -> bool:
    return bool(message.blocks) and type(message.blocks[0]) is ToolResult  # it is tidy: they come first


def _union(one: Extra | None, other: Extra | None) -> Extra | bool | None:
    """Both sets of fields in one, or False where they contradict each other: then the messages stay apart."""
    if one is None or other is None or one == other:
        return one or other
    both = {**one.fields, **other.fields}
    if one.family != other.family or any(both[name] != value for name, value in one.fields.items()):
        return False
    return Extra(one.family, both, one.spelling | other.spelling)


def _plain(message: Message) -> bool:
    return all(isinstance(block, Text) for block in message.blocks)


def _inherit(message: Message) -> Iterable[Text]:
    """The texts of a system message, each keeping the message's own extra fields."""
    for block in message.blocks:
        if isinstance(block, Text):
            extra = _union(message.extra, block.extra)
            yield structs.replace(block, extra=extra if isinstance(extra, Extra) else block.extra)
