"""Tools that cannot be offered here: their calls and their results become text (D13)."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from dragoman.dialects.kiro.turns import FAMILY, called
from dragoman.model.blocks import Block, Media, Opaque, Text, ToolCall, ToolResult
from dragoman.model.canonical import canonical
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes
from dragoman.model.parts import UNREADABLE, UNREADABLE_LINE, UNREADABLE_NOTE, join_texts, opaque_as_parts

REFUSED = frozenset({"web_search", "websearch"})


class LeaveOut(Filter):
    """web_search, and every tool that only another family runs, with all that history holds of them.

    The words for a call are prose on purpose: what looks like a call teaches the model to write calls as text.
    """

    name = "kiro.leave_out"
    concerns: Features = frozenset({"tools", "calls"})
    before = "drop_foreign"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        names, before = called(facts.inventory(conversation)), len(notes)
        kept, gone = list[ToolSpec | Opaque](), set[str]()
        for tool in conversation.tools:  # those of other families are drop_foreign's to leave out
            name = tool.name if isinstance(tool, ToolSpec) else _name(tool)
            if name.lower() in REFUSED:
                notes.dropped("kiro.tools.web_search", tool.at.path, f"the service does not take {name}")
            else:
                kept.append(tool)
            if name and (name.lower() in REFUSED or (isinstance(tool, Opaque) and tool.family != FAMILY)):
                gone.add(name)
        gone -= {tool.name for tool in kept if isinstance(tool, ToolSpec)}
        messages = conversation.messages
        if not gone.isdisjoint(names) or [name for name in names if name.lower() in REFUSED]:
            history = _History(gone, notes)
            messages = tuple([history.message(message) for message in messages])
        if len(notes) == before:
            return conversation, None
        choice = _choice(conversation, gone, notes)
        changed = structs.replace(conversation, tools=tuple(kept), messages=messages, tool_choice=choice)
        return canonical(changed, conversation.messages), None


def _name(tool: Opaque) -> str:
    name = tool.data.get("name") if isinstance(tool.data, dict) else None
    return name if isinstance(name, str) else ""


def _choice(conversation: Conversation, gone: set[str], notes: Notes) -> ToolChoice:
    """A choice of a tool that is gone is no choice."""
    choice = conversation.tool_choice
    names = tuple([name for name in choice.names if name not in gone])
    if names == choice.names:
        return choice
    notes.dropped("kiro.tools.choice", "tool_choice", "it named a tool that is left out")
    return structs.replace(choice, names=names, mode=choice.mode if names else "auto")


class _History:
    def __init__(self, gone: set[str], notes: Notes) -> None:
        self._gone = gone
        self._notes = notes
        self._told: dict[str, str] = {}  # ids of calls that became text, and what they called

    def message(self, message: Message) -> Message:
        blocks = tuple([told for block in message.blocks for told in self._block(block)])
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block) -> Iterable[Block]:
        match block:
            case ToolCall():
                return (self._call(block),)
            case ToolResult():
                return self._result(block)
            case _:
                return (block,)

    def _call(self, call: ToolCall) -> Block:
        if call.name not in self._gone and call.name.lower() not in REFUSED:
            self._told.pop(call.id, None)  # an id used anew means the new call
            return call
        self._told[call.id] = call.name
        self._notes.changed("kiro.tools.history", call.at.path, f"the call of {call.name} became text of its turn")
        return Text(f"({call.name} was used with {call.arguments or 'no input'})", at=call.at)

    def _result(self, result: ToolResult) -> Iterable[Block]:
        name = self._told.get(result.call_id)
        if name is None:
            return (result,)
        self._notes.changed("kiro.tools.history", result.at.path, f"the result of {name} became text of its turn")
        parts = [text for part in result.content for text in self._parts(part)]
        text = join_texts(part.text for part in parts if isinstance(part, Text))
        words = f"({name} {'failed' if result.is_error else 'gave'}: {text.strip() or 'nothing'})"
        others = [part for part in parts if isinstance(part, Media)]
        return (Text(words, at=result.at), *others)

    def _parts(self, part: Text | Media | Opaque) -> list[Text | Media]:
        if not isinstance(part, Opaque):
            return [part]
        if part.kind == UNREADABLE:
            self._notes.dropped("result.unreadable_media", part.at.path, UNREADABLE_NOTE)
            return [Text(UNREADABLE_LINE, at=part.at)]
        return opaque_as_parts(part, self._notes, "kiro.tools.history")
