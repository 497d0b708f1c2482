"""Tools that cannot be offered here: their calls, their results and what a server ran itself become text (D13)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import structs

from dragoman.dialects.kiro.nodes import FAMILY, called, joined
from dragoman.model.blocks import Block, Opaque, Text, ToolCall, ToolResult
from dragoman.model.canonical import canonical
from dragoman.model.conversation import Conversation, Message, ToolChoice, ToolSpec
from dragoman.model.filter import MakeBack
from dragoman.model.notes import Notes
from dragoman.wire import jsonio
from dragoman.wire.jsonio import Json

REFUSED = frozenset({"web_search", "websearch"})
_CALLS = ("server_tool_use", "mcp_tool_use", "_call")
_RESULTS = ("tool_result", "_call_output")
_TELLING = frozenset({"text", "title", "url", "stdout", "stderr", "error_code", "query", "message", "output"})


class LeaveOut:
    """web_search, and every tool that only another family runs, with all that history holds of them.

    The words for a call are prose on purpose: what looks like a call teaches the model to write calls as text.
    """

    name = "kiro.leave_out"
    before = "drop_foreign"

    def forward(self, conversation: Conversation, notes: Notes) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        tools, gone = self._tools(conversation, notes)
        messages = conversation.messages
        if not gone.isdisjoint(names := called(conversation)) or Opaque in conversation.kinds or _any_refused(names):
            history = _History(gone, notes)
            messages = tuple([history.message(message) for message in messages])
        if len(notes) == before:
            return conversation, None
        choice = _choice(conversation, gone, notes)
        changed = structs.replace(conversation, tools=tools, messages=messages, tool_choice=choice)
        return canonical(changed, conversation), None

    def _tools(self, conversation: Conversation, notes: Notes) -> tuple[tuple[ToolSpec | Opaque, ...], set[str]]:
        """The tools that stay, and the names of those that do not. Typed tools are drop_foreign's to leave out."""
        kept: list[ToolSpec | Opaque] = []
        gone: set[str] = set()
        for tool in conversation.tools:
            name = tool.name if isinstance(tool, ToolSpec) else _name(tool)
            if name.lower() in REFUSED:
                notes.dropped("kiro.tools.web_search", tool.at.path, f"the service does not take {name}")
            else:
                kept.append(tool)
            if name and (name.lower() in REFUSED or (isinstance(tool, Opaque) and tool.family != FAMILY)):
                gone.add(name)
        return tuple(kept), gone - {tool.name for tool in kept if isinstance(tool, ToolSpec)}


def _any_refused(names: Iterable[str]) -> bool:
    return any(name.lower() in REFUSED for name in names)


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
        blocks = tuple([told for block in message.blocks for told in self._block(block, message.role)])
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _block(self, block: Block, role: str) -> Iterable[Block]:
        match block:
            case ToolCall():
                return (self._call(block),)
            case ToolResult():
                return self._result(block)
            case Opaque(family=family) if family != FAMILY and role == "assistant":
                return self._served(block)
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
        said = joined(part.text for part in result.content if isinstance(part, Text))
        words = f"({name} {'failed' if result.is_error else 'gave'}: {said.strip() or 'nothing'})"
        others = [part for part in result.content if not isinstance(part, Text)]
        return (Text(words, at=result.at), *others)

    def _served(self, block: Opaque) -> Iterable[Block]:
        kind = block.kind
        if block.text.strip() and kind.endswith((*_CALLS, *_RESULTS)):
            words = block.text
        elif kind.endswith(_CALLS):
            words = f"({_name(block) or kind} was used with {_gist(block.data)})"
        elif kind.endswith(_RESULTS):
            words = f"({kind.removesuffix('_tool_result')} gave: {_gist(block.data)})"
        else:
            return (block,)
        self._notes.changed("kiro.tools.history", block.at.path, f"{kind} became text of its turn")
        return (Text(words, at=block.at),)


def _gist(data: Json) -> str:
    """What people can read of a block that a server made: no ids, no sealed content."""
    if isinstance(data, dict) and isinstance(data.get("input"), dict):
        return jsonio.encode(data["input"]).decode()
    return joined(_leaves(data)) or "nothing to read"


def _leaves(data: Json) -> Iterator[str]:
    pending: list[tuple[str, Json]] = [("", data)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending.extend(reversed(value.items()))
        elif isinstance(value, list):
            pending.extend((name, each) for each in reversed(value))
        elif isinstance(value, str) and name in _TELLING:
            yield value
