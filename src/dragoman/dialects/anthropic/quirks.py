"""Filters that only this service needs: how it takes thinking, and what its requests must hold."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from dragoman.dialects.anthropic.rules import LEAST_BUDGET
from dragoman.model.blocks import Block, Opaque, Reasoning, Text, ToolCall
from dragoman.model.conversation import Conversation, Message, Thinking, ToolSpec
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Notes
from dragoman.wire.jsonio import Json

_LEAST_TOP_P = 0.95
_QUESTION = "Continue"
_NOTHING = "."  # no message may be empty


class AskSomething:
    """A conversation of nothing but a system prompt gets a question: the service wants one message at least."""

    name = "anthropic.ask_something"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        if conversation.messages:
            return conversation, None
        notes.added("anthropic.messages.question", "messages", f"there is no message; {_QUESTION!r} is asked")
        return structs.replace(conversation, messages=(Message("user", (Text(_QUESTION),)),)), None


class SettleThinking:
    """Thinking in a form that the service takes: a budget within its bounds, and nothing beside it that excludes it."""

    name = "anthropic.settle_thinking"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        thinking = _with_fitting_words(conversation.thinking, notes)
        if thinking is not conversation.thinking:
            conversation = structs.replace(conversation, thinking=thinking)
        if thinking.mode not in ("on", "adaptive"):
            return conversation, None
        reason = _hindrance(conversation)
        if reason:
            notes.changed("anthropic.thinking.off", "thinking", f"thinking is turned off: {reason}")
            return structs.replace(conversation, thinking=Thinking("off")), None
        return _with_knobs(_with_budget(conversation, notes), notes), None


def _with_fitting_words(asked: Thinking, notes: Notes) -> Thinking:
    """A budget means that thinking is on; only thinking that is on has a budget, or can be shown."""
    thinking = asked
    if thinking.budget is not None and thinking.mode == "default":
        thinking = structs.replace(thinking, mode="on")
    if thinking.mode != "on" and thinking.budget is not None:
        thinking = structs.replace(thinking, budget=None)
    if thinking.mode not in ("on", "adaptive") and thinking.show is not None:
        thinking = structs.replace(thinking, show=None)
    if thinking != asked:
        detail = "a budget is told only with thinking that is on, whether to show it only with thinking that there is"
        notes.changed("anthropic.thinking.words", "thinking", detail)
    return thinking


def _hindrance(conversation: Conversation) -> str:
    if conversation.tool_choice.mode in ("any", "one"):
        return "the service takes no forced tool beside it"
    if conversation.thinking.mode == "adaptive":
        return ""
    if _room(conversation) < LEAST_BUDGET:
        return f"max_tokens leaves no room for {LEAST_BUDGET} tokens of it"
    if not _opens_with_reasoning(conversation):
        return "the last answer that calls a tool does not open with any"
    return ""


def _room(conversation: Conversation) -> int:
    return LEAST_BUDGET if conversation.max_tokens is None else conversation.max_tokens - 1


def _opens_with_reasoning(conversation: Conversation) -> bool:
    """Whether the last answer that calls a tool begins with thinking; messages of one role in a row are one answer."""
    opens = begins = True
    speaker = ""
    for message in conversation.messages:
        if message.role == "assistant" and message.blocks:
            if speaker != "assistant":
                begins = isinstance(message.blocks[0], Reasoning)
            if any(isinstance(block, ToolCall) for block in message.blocks):
                opens = begins
        speaker = message.role
    return opens


def _with_budget(conversation: Conversation, notes: Notes) -> Conversation:
    thinking = conversation.thinking
    if thinking.mode != "on":
        return conversation
    room = _room(conversation)
    asked = room // 2 if thinking.budget is None else thinking.budget
    budget = min(max(asked, LEAST_BUDGET), room)
    if budget == thinking.budget:
        return conversation
    said = "no budget" if thinking.budget is None else str(thinking.budget)
    detail = f"{said} became {budget}: the service wants {LEAST_BUDGET} at least, and less than max_tokens"
    notes.changed("anthropic.thinking.budget", "thinking", detail)
    return structs.replace(conversation, thinking=structs.replace(thinking, budget=budget))


def _with_knobs(conversation: Conversation, notes: Notes) -> Conversation:
    knobs = {name: value for name, value in conversation.knobs.items() if not _excluded(name, value)}
    for name in sorted(conversation.knobs.keys() - knobs.keys()):
        notes.dropped("anthropic.thinking.knob", name, f"the service takes no such {name} beside thinking")
    return conversation if len(knobs) == len(conversation.knobs) else structs.replace(conversation, knobs=knobs)


def _excluded(name: str, value: float) -> bool:
    return (name == "temperature" and value != 1) or name == "top_k" or (name == "top_p" and value < _LEAST_TOP_P)


class OwnReasoning:
    """Reasoning in the two forms that the service has: signed, or redacted and without text."""

    name = "anthropic.own_reasoning"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        messages = tuple(_with_own_reasoning(message, notes) for message in conversation.messages)
        if all(one is other for one, other in zip(messages, conversation.messages, strict=True)):
            return conversation, None
        return structs.replace(conversation, messages=messages), None


def _with_own_reasoning(message: Message, notes: Notes) -> Message:
    before = len(notes)
    blocks = tuple(kept for block in message.blocks if (kept := _own(block, notes)) is not None)
    if len(notes) == before:
        return message
    return structs.replace(message, blocks=blocks or (Text(_NOTHING, at=message.at),))


def _own(block: Block, notes: Notes) -> Block | None:
    at = block.at.path
    if not isinstance(block, Reasoning):
        return block
    seal = block.seal
    if seal is not None and seal.kind == "encrypted":
        notes.dropped("anthropic.reasoning.encrypted", at, "the service has no encrypted reasoning")
        return None
    if seal is not None and seal.kind == "redacted" and block.text:
        notes.dropped("anthropic.reasoning.redacted", at, "redacted reasoning has no text here")
        block = structs.replace(block, text="")
    return block


class ObjectSchemas:
    """Tools whose parameters are an object: the service refuses any other."""

    name = "anthropic.object_schemas"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        tools = tuple(_settled(tool, notes) for tool in conversation.tools)
        return conversation if len(notes) == before else structs.replace(conversation, tools=tools), None


def _settled(tool: ToolSpec | Opaque, notes: Notes) -> ToolSpec | Opaque:
    if isinstance(tool, Opaque) or tool.schema is None or tool.schema.get("type") == "object":
        return tool
    notes.changed("anthropic.tools.schema", tool.at.path, f"the parameters of {tool.name} are said to be an object")
    return structs.replace(tool, schema=_object_schema(tool.schema))


def _object_schema(schema: Mapping[str, Json]) -> dict[str, Json]:
    said = schema.get("type")
    if said is None or (isinstance(said, list) and "object" in said):
        return {**schema, "type": "object"}
    return {"type": "object", "properties": {}}
