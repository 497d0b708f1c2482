"""Filters that only this service needs."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable

from msgspec import structs

from dragoman.dialects.gemini.blocks import FAMILY, KEPT, NAMED
from dragoman.model.blocks import Block, Media, Seal, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message, Thinking
from dragoman.model.filter import EachMessage, Facts, Features, Filter, MakeBack, Notes
from dragoman.model.parts import join_texts

SKIP = "skip_thought_signature_validator"
_BUDGETS = {"minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
_MORE = 24576  # for any effort above
_USUAL = {"image": "image/jpeg", "document": "application/pdf", "audio": "audio/mpeg", "video": "video/mp4"}


class AskForEvents(Filter):
    """A client that wants an array gets one; the service is asked for events all the same."""

    name = "gemini.ask_for_events"
    concerns: Features = frozenset({"hints"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if conversation.hints is None or conversation.hints.family != FAMILY:
            return conversation, None
        notes.changed("gemini.stream.sse", "alt", "the service is asked for server-sent events")
        return structs.replace(conversation, hints=None), None


class OneChoice(Filter):
    """A choice limited to one tool is the choice of that tool: the service says both alike."""

    name = "gemini.one_choice"
    concerns: Features = frozenset({"chosen"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        choice = conversation.tool_choice
        if choice.mode != "any" or len(choice.names) != 1:
            return conversation, None
        notes.changed("gemini.choice.one", "tool_choice", f"the one tool it allows, {choice.names[0]}, is chosen")
        return structs.replace(conversation, tool_choice=structs.replace(choice, mode="one")), None


class EffortAsBudget(Filter):
    """Older models know no level of thinking, only a budget."""

    name = "gemini.effort_as_budget"
    concerns: Features = frozenset({"thinking"})
    before = "fit_limits"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        asked = conversation.thinking
        if not asked.effort or asked.mode == "off":
            return conversation, None
        budget = asked.budget or _BUDGETS.get(asked.effort, _MORE)
        notes.changed("gemini.thinking", "thinking", f"the effort {asked.effort} is told as {budget} tokens")
        thinking = Thinking("on", "", budget, asked.show)
        return structs.replace(conversation, thinking=thinking), None


class SettleThinking(Filter):
    """Thinking by a budget, by a level or by itself, never by two of these."""

    name = "gemini.settle_thinking"
    concerns: Features = frozenset({"thinking"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        asked = conversation.thinking
        thinking = _settled(asked)
        if thinking == asked:
            return conversation, None
        notes.changed("gemini.thinking", "thinking", "it is told by a budget, by a level or by itself: one of these")
        return structs.replace(conversation, thinking=thinking), None


def _settled(asked: Thinking) -> Thinking:
    if asked.effort:
        return Thinking("default", asked.effort, None, asked.show)
    if asked.mode == "off":
        return Thinking("off", "", None, asked.show)
    if asked.budget:
        return Thinking("on", "", asked.budget, asked.show)
    return Thinking("adaptive" if asked.mode == "on" else asked.mode, "", None, asked.show)


class SettleResults(EachMessage):
    """A result has one text, and it comes first."""

    name = "gemini.settle_results"
    concerns: Features = frozenset({"results"})

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if not isinstance(block, ToolResult):
            return (block,)
        texts = [part for part in block.content if isinstance(part, Text)]
        others = [part for part in block.content if not isinstance(part, Text)]
        if len(texts) < 2 and (not texts or block.content[0] is texts[0]):
            return (block,)
        notes.changed("gemini.result", block.at.path, "the texts of a result are one, and it comes first")
        text = structs.replace(texts[0], text=join_texts(each.text for each in texts))
        return (structs.replace(block, content=(text, *others)),)


class FitMedia(EachMessage):
    """Media by address needs a type, and none has a name."""

    name = "gemini.fit_media"
    concerns: Features = frozenset({"media"})

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        if isinstance(block, ToolResult):
            content = tuple(self._media(part, notes) if isinstance(part, Media) else part for part in block.content)
            return (structs.replace(block, content=content),)
        return (self._media(block, notes) if isinstance(block, Media) else block,)

    def _media(self, block: Media, notes: Notes) -> Media:
        if not block.mime:
            found = mimetypes.guess_type(block.data)[0] or ""
            mime = (
                found
                if found.startswith(f"{block.kind}/") or (block.kind == "document" and found)
                else _USUAL[block.kind]
            )
            notes.added("gemini.media.type", block.at.path, f"its type must be told; it is said to be {mime}")
            block = structs.replace(block, mime=mime)
        if block.name and NAMED not in KEPT.own_fields(block.extra):
            notes.dropped("gemini.media.name", block.at.path, f"its name {block.name!r} has no place")
            block = structs.replace(block, name="")
        return block


class SignCalls(EachMessage):
    """The first call of a turn must be signed. One of other origin gets the signature that is documented for it."""

    name = "gemini.sign_calls"
    concerns: Features = frozenset({"calls"})

    def message(self, message: Message, notes: Notes) -> Message:
        index = next((at for at, block in enumerate(message.blocks) if isinstance(block, ToolCall)), None)
        call = None if index is None else message.blocks[index]
        if index is None or not isinstance(call, ToolCall) or call.seal is not None:
            return message
        notes.added("gemini.seal.skip", call.at.path, f"the call of {call.name} has no signature; it says so")
        signed = structs.replace(call, seal=Seal(FAMILY, SKIP))
        return structs.replace(message, blocks=(*message.blocks[:index], signed, *message.blocks[index + 1 :]))
