"""SettleThinking: thinking as Claude takes it, whoever serves it: a budget within bounds, and nothing it excludes."""

from __future__ import annotations

from msgspec import structs

from dragoman.model.blocks import Reasoning, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Thinking
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes

_USUAL_BUDGET = 4096
_LEAST_TOP_P = 0.95


class SettleThinking(Filter):
    """For targets whose thinking has a least budget; what it was told in the client's words is already fitted."""

    name = "settle_thinking"
    concerns: Features = frozenset({"thinking"})

    def __init__(self, upstream: Capabilities) -> None:
        self._least = upstream.least_budget

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        thinking = _with_fitting_words(conversation.thinking, notes)
        if thinking is not conversation.thinking:
            conversation = structs.replace(conversation, thinking=thinking)
        if thinking.mode not in ("on", "adaptive"):
            return conversation, None
        reason = self._hindrance(conversation)
        if reason:
            notes.dropped("thinking.off", "thinking", f"thinking is turned off: {reason}")
            return structs.replace(conversation, thinking=Thinking("off")), None
        return _with_knobs(self._with_budget(conversation, notes), notes), None

    def _hindrance(self, conversation: Conversation) -> str:
        if conversation.tool_choice.mode in ("any", "one"):
            return "the target takes no forced tool beside it"
        if conversation.thinking.mode == "adaptive":
            return ""
        if conversation.max_tokens is not None and conversation.max_tokens <= self._least:
            return f"the limit of tokens leaves no room for {self._least} of it"
        if unopened_loop(conversation):
            return "an answer in the history calls a tool and does not open with any"
        return ""

    def _with_budget(self, conversation: Conversation, notes: Notes) -> Conversation:
        thinking, limit = conversation.thinking, conversation.max_tokens
        if thinking.mode != "on":
            return conversation
        usual = _USUAL_BUDGET if limit is None else limit // 2
        budget = max(usual if thinking.budget is None else thinking.budget, self._least)
        budget = budget if limit is None else min(budget, limit - 1)
        if budget == thinking.budget:
            return conversation
        said = "no budget" if thinking.budget is None else str(thinking.budget)
        detail = f"{said} became {budget}: the target wants {self._least} at least, and less than the limit of tokens"
        notes.changed("thinking.budget", "thinking", detail)
        return structs.replace(conversation, thinking=structs.replace(thinking, budget=budget))


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
        lost = (thinking.budget, thinking.show) != (asked.budget, asked.show)
        notes.add("thinking.words", "dropped" if lost else "changed", "thinking", detail)
    return thinking


def unopened_loop(conversation: Conversation) -> bool:
    """Whether a tool loop of this history does not open with thinking. A loop is one turn of Claude's: the answers from
    one question to the next, with the results between them; only its first answer need open with thinking.

    Claude refuses thinking that is on for such a loop only while it is the last one. All count here, so that thinking,
    once it is off, stays off: turning it on and off again makes the service forget the messages it has cached.
    """
    opens: bool | None = None  # of the loop under way; None: it has not begun
    for message in conversation.messages:
        if message.role == "user" and not any(isinstance(block, ToolResult) for block in message.blocks):
            opens = None
        elif message.role == "assistant" and message.blocks:
            if opens is None:
                opens = isinstance(message.blocks[0], Reasoning)
            if not opens and any(isinstance(block, ToolCall) for block in message.blocks):
                return True
    return False


def _with_knobs(conversation: Conversation, notes: Notes) -> Conversation:
    knobs = {name: value for name, value in conversation.knobs.items() if not _excluded(name, value)}
    for name in sorted(conversation.knobs.keys() - knobs.keys()):
        notes.dropped("thinking.knob", name, f"the target takes no such {name} beside thinking")
    return conversation if len(knobs) == len(conversation.knobs) else structs.replace(conversation, knobs=knobs)


def _excluded(name: str, value: float) -> bool:
    return (name == "temperature" and value != 1) or name == "top_k" or (name == "top_p" and value < _LEAST_TOP_P)
