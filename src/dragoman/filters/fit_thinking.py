"""How much to think, in the words the target has: a mode, an effort, a budget, or nothing at all."""

from __future__ import annotations

from msgspec import structs

from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Thinking
from dragoman.model.notes import Notes

SCALE = ("minimal", "low", "medium", "high", "xhigh", "max")  # every effort any dialect knows, least first
_BUDGETS = ((4_096, "low"), (16_384, "medium"), (65_536, "high"))  # up to so many tokens is that effort: a convention


def fit_thinking(conversation: Conversation, target: Capabilities, notes: Notes) -> Conversation:
    asked = conversation.thinking
    fitted = _fitted(asked, target)
    if fitted == asked:
        return conversation
    if fitted == Thinking() and not target.efforts:
        notes.dropped("thinking.dropped", "thinking", f"the target cannot be told how to think ({_words(asked)})")
    else:
        lost = fitted == Thinking() or (asked.show is not None and fitted.show is None)
        detail = f"asked for: {_words(asked)}; sent: {_words(fitted)}"
        notes.add("thinking.fitted", "dropped" if lost else "changed", "thinking", detail)
    return structs.replace(conversation, thinking=fitted)


def _fitted(asked: Thinking, target: Capabilities) -> Thinking:
    effort, budget, mode, show = asked.effort, asked.budget, asked.mode, asked.show
    if budget is not None and "budgets" not in target.traits:
        effort = effort or next((name for limit, name in _BUDGETS if budget <= limit), "max")
        budget = None
    if effort and effort not in target.efforts:
        effort = _nearest(effort, target.efforts)
    if mode not in target.thinking:
        mode = "default"
    if mode == "off":
        effort, budget = "", None
    return Thinking(mode, effort, budget, show if "thinking_show" in target.traits else None)


def _nearest(effort: str, efforts: tuple[str, ...]) -> str:
    """The greatest effort of the target that is not more than asked for, else its least; nothing for a word unknown."""
    if effort not in SCALE or not efforts:
        return ""
    rank = SCALE.index(effort)
    below = [name for name in efforts if name in SCALE and SCALE.index(name) <= rank]
    return below[-1] if below else efforts[0]


def _words(thinking: Thinking) -> str:
    words = [f"mode {thinking.mode}"] if thinking.mode != "default" else []
    words += [f"effort {thinking.effort}"] if thinking.effort else []
    words += [f"a budget of {thinking.budget} tokens"] if thinking.budget is not None else []
    words += [f"show {thinking.show}".lower()] if thinking.show is not None else []
    return ", ".join(words) or "its default"
