"""Thinking and reasoning as the models behind the service take them."""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.bedrock.models import Vendor
from dragoman.model.blocks import Block, Reasoning, ToolCall
from dragoman.model.conversation import Conversation, Message, Thinking
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Notes

LEAST_BUDGET = 1024
_USUAL_BUDGET = 4096
_LEAST_TOP_P = 0.95


class OwnReasoning:
    """Reasoning in the two forms that the service has, as far as the model takes it back."""

    name = "bedrock.own_reasoning"
    before = "pair_tools"  # what is left of a turn is looked at afterwards

    def __init__(self, vendor: Vendor) -> None:
        self._takes = vendor.reasoning

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        messages = tuple(self._message(message, notes) for message in conversation.messages)
        return (conversation if len(notes) == before else structs.replace(conversation, messages=messages)), None

    def _message(self, message: Message, notes: Notes) -> Message:
        before = len(notes)
        blocks = tuple(kept for block in message.blocks if (kept := self._block(block, notes)) is not None)
        return message if len(notes) == before else structs.replace(message, blocks=blocks)

    def _block(self, block: Block, notes: Notes) -> Block | None:
        if not isinstance(block, Reasoning):
            return block
        reason = self._objection(block)
        if reason:
            notes.dropped("bedrock.reasoning.refused", block.at.path, reason)
            return None
        if block.seal is not None and block.seal.kind == "redacted" and block.text:
            notes.dropped("bedrock.reasoning.redacted", block.at.path, "redacted reasoning has no text here")
            return structs.replace(block, text="")
        return block

    def _objection(self, block: Reasoning) -> str:
        if self._takes == "none":
            return "the model takes no reasoning back"
        if self._takes == "unsigned" and block.seal is not None:
            return "the model takes no signed reasoning: it is another model's"
        if block.seal is not None and block.seal.kind == "encrypted":
            return "the service has no encrypted reasoning"
        return ""


class SettleThinking:
    """Thinking in a form that Claude takes: a budget within its bounds, and nothing beside it that excludes it."""

    name = "bedrock.settle_thinking"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        thinking = _with_fitting_words(conversation.thinking, notes)
        if thinking is not conversation.thinking:
            conversation = structs.replace(conversation, thinking=thinking)
        if thinking.mode not in ("on", "adaptive"):
            return conversation, None
        reason = _hindrance(conversation)
        if reason:
            notes.changed("bedrock.thinking.off", "thinking", f"thinking is turned off: {reason}")
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
        notes.changed("bedrock.thinking.words", "thinking", detail)
    return thinking


def _hindrance(conversation: Conversation) -> str:
    if conversation.tool_choice.mode in ("any", "one"):
        return "the service takes no forced tool beside it"
    if conversation.thinking.mode == "adaptive":
        return ""
    if (conversation.max_tokens or LEAST_BUDGET + 1) <= LEAST_BUDGET:
        return f"the limit of tokens leaves no room for {LEAST_BUDGET} of it"
    calling = [message for message in conversation.messages if _calls(message)]
    if calling and not isinstance(calling[-1].blocks[0], Reasoning):
        return "the last answer that calls a tool does not open with any"
    return ""


def _calls(message: Message) -> bool:
    return message.role == "assistant" and any(isinstance(block, ToolCall) for block in message.blocks)


def _with_budget(conversation: Conversation, notes: Notes) -> Conversation:
    thinking, limit = conversation.thinking, conversation.max_tokens
    if thinking.mode != "on":
        return conversation
    usual = _USUAL_BUDGET if limit is None else limit // 2
    budget = max(usual if thinking.budget is None else thinking.budget, LEAST_BUDGET)
    budget = budget if limit is None else min(budget, limit - 1)
    if budget == thinking.budget:
        return conversation
    said = "no budget" if thinking.budget is None else str(thinking.budget)
    detail = f"{said} became {budget}: the service wants {LEAST_BUDGET} at least, and less than the limit of tokens"
    notes.changed("bedrock.thinking.budget", "thinking", detail)
    return structs.replace(conversation, thinking=structs.replace(thinking, budget=budget))


def _with_knobs(conversation: Conversation, notes: Notes) -> Conversation:
    knobs = {name: value for name, value in conversation.knobs.items() if not _excluded(name, value)}
    for name in sorted(conversation.knobs.keys() - knobs.keys()):
        notes.dropped("bedrock.thinking.knob", name, f"the service takes no such {name} beside thinking")
    return conversation if len(knobs) == len(conversation.knobs) else structs.replace(conversation, knobs=knobs)


def _excluded(name: str, value: float) -> bool:
    return (name == "temperature" and value != 1) or name == "top_k" or (name == "top_p" and value < _LEAST_TOP_P)
