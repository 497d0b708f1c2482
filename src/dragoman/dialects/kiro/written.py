"""Most turns as they are written, for who sends them at once: nothing is made of them that somebody could look into.

`None` is given for a turn that has anything unusual in it; `turns` knows how to say that, or why it cannot be said.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.model.blocks import Text, ToolCall, ToolResult
from dragoman.model.conversation import Message
from dragoman.wire.jsonio import ObjectText, Raw


class _Node(Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    pass


class _Words(_Node, frozen=True):
    text: str


class _Result(_Node, frozen=True):
    tool_use_id: str
    content: tuple[_Words]
    status: str


class _Context(_Node, frozen=True):
    tool_results: list[_Result]


class _User(_Node, frozen=True):
    model_id: str
    content: str
    origin: str
    user_input_message_context: _Context | None = None


class _Use(_Node, frozen=True):
    tool_use_id: str
    name: str
    input: Raw


class _Assistant(_Node, frozen=True):
    content: str
    tool_uses: list[_Use] | None = None


class UserTurn(_Node, frozen=True):
    user_input_message: _User


class AssistantTurn(_Node, frozen=True):
    assistant_response_message: _Assistant


def written_turn(message: Message, model: str, origin: str) -> UserTurn | AssistantTurn | None:
    return _user(message, model, origin) if message.role == "user" else _assistant(message)


def _user(message: Message, model: str, origin: str) -> UserTurn | None:
    """Results and a text after them."""
    blocks = message.blocks
    text = blocks[-1] if blocks else None
    if type(text) is not Text or message.extra is not None:
        return None
    if len(blocks) == 1:
        return UserTurn(_User(model, text.text, origin))
    results: list[_Result] = []
    for block in blocks[:-1]:
        if type(block) is not ToolResult or block.extra is not None or len(block.content) != 1:
            return None
        part = block.content[0]
        if type(part) is not Text or part.extra is not None:
            return None
        results.append(_Result(block.call_id, (_Words(part.text),), "error" if block.is_error else "success"))
    return UserTurn(_User(model, text.text, origin, _Context(results)))


def _assistant(message: Message) -> AssistantTurn | None:
    """A text and calls after it."""
    blocks = message.blocks
    text = blocks[0] if blocks else None
    if type(text) is not Text or message.extra is not None or message.role != "assistant":
        return None
    if len(blocks) == 1:
        return AssistantTurn(_Assistant(text.text))
    uses: list[_Use] = []
    for block in blocks[1:]:
        if type(block) is not ToolCall or block.extra is not None or type(block.arguments) is not ObjectText:
            return None
        uses.append(_Use(block.id, block.name, Raw(block.arguments.data)))
    return AssistantTurn(_Assistant(text.text, uses))
