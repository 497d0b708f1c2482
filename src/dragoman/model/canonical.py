"""The form every reader ends with (D8), so that one conversation has one canonical value whatever its framing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, compress, count, pairwise, repeat
from operator import is_, is_not

from msgspec import structs

from dragoman.errors import MalformedRequest
from dragoman.model.blocks import Block, Extra, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message
from dragoman.model.naming import OUTER


def canonical(conversation: Conversation, tidy: Sequence[Message] = ()) -> Conversation:
    """Give the conversation its canonical form. `tidy` are messages that have it already, as those have that a filter
    was given: one that stands there at the same place is not looked at again.

    Results come first in their turn, and user messages that follow results belong to that turn; leading system
    messages are part of `system`; a text that says nothing and carries nothing is no block. Raises MalformedRequest
    for a call that the assistant does not make and a result that the user does not give: no target has a place for it.
    """
    messages = list(conversation.messages)
    for place in compress(count(), map(is_not, messages, chain(tidy, repeat(None)))):
        messages[place] = _tidy(messages[place])
    followed = [one for one, other in pairwise(messages) if one.role == other.role == "user"]
    if any(map(_has_results, followed)):
        messages = _join_result_turns(messages)
    system = list(filter(_says_something, conversation.system))
    while messages and messages[0].role == "system" and _plain(messages[0]):
        system += _lifted(messages.pop(0))
    if not (messages or system) and (conversation.messages or conversation.system):
        messages = [Message("system", ())]  # to say something empty is not to say nothing
    lengths = len(messages) == len(conversation.messages) and len(system) == len(conversation.system)
    if not lengths or not all(map(is_, (*messages, *system), (*conversation.messages, *conversation.system))):
        conversation = structs.replace(conversation, messages=tuple(messages), system=tuple(system))
    return conversation


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
        if type(block) is ToolResult:
            if role != "user":
                raise MalformedRequest(f"a tool result stands in a message of the role {role}", at=block.at.path)
            tidy = tidy and not others
            continue
        others = True
        if type(block) is Text:
            tidy = tidy and bool(block.text)
        elif type(block) is ToolCall and role != "assistant":
            raise MalformedRequest(f"a tool call stands in a {role} message", at=block.at.path)
    if tidy:
        return message
    blocks = tuple(filter(_says_something, message.blocks))
    if message.role == "user" and any(isinstance(block, ToolResult) for block in blocks[1:]):
        blocks = tuple(sorted(blocks, key=lambda block: not isinstance(block, ToolResult)))
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


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
    """Whether it is texts and nothing else, and each of them can carry what the message says beside them."""
    outer = _outer(message.extra)
    return all(isinstance(block, Text) and _union(outer, block.extra) is not False for block in message.blocks)


def _lifted(message: Message) -> Iterable[Text]:
    """The texts of a system message, each with the message's own fields, as those of what it came in."""
    outer = _outer(message.extra)
    for block in message.blocks:
        extra = _union(outer, block.extra)
        if isinstance(block, Text):
            yield block if extra is block.extra else structs.replace(block, extra=extra)


def _outer(extra: Extra | None) -> Extra | None:
    if extra is None:
        return None
    fields = {name if name in extra.spelling else f"{OUTER}{name}": value for name, value in extra.fields.items()}
    return Extra(extra.family, fields, extra.spelling)
