"""tools_in_history: say to another family what blocks of the history do to the tools and to the past.

Some families declare, show and withdraw tools in the middle of a conversation, hold tools back until a search has found
them, and replace the past by a summary. No other family has a form for that. Every declared tool goes into the tool
list; what the model was told at a place in the history becomes text, a call or a result at that place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from msgspec import structs

from dragoman.errors import Unrepresentable
from dragoman.filters.offered_tools import offered_tools
from dragoman.filters.rename_tools import rename
from dragoman.filters.wrap_text_tools import SCHEMA
from dragoman.model.blocks import (
    Block,
    DefinedTool,
    Media,
    Opaque,
    ShownTool,
    Summary,
    Text,
    ToolCall,
    ToolChange,
    ToolResult,
    Untranslatable,
)
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes
from dragoman.wire import jsonio

SUMMARY = "Summary of the conversation so far:"


class ToolsInHistory(Filter):
    """Runs only where client and upstream are of different families. Raises Unrepresentable for what has no form."""

    name = "tools_in_history"
    concerns: Features = frozenset({"opaque", "opaque_tools", "waiting_tools"})

    def __init__(self, upstream: Capabilities, family: str) -> None:
        self._target = upstream
        self._family = family

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        held = facts.inventory(conversation)
        nodes = (*held.others, *held.parts)
        messages = conversation.messages
        has_meaning = any(isinstance(node, Opaque) and node.means for node in nodes)
        tools = offered_tools(conversation, notes)
        if has_meaning:
            history = _History(tools, self._target, self._family, notes)
            messages = tuple([told for message in messages for told in history.message(message)])
        if tools == conversation.tools and messages == conversation.messages:
            return conversation, None
        return structs.replace(conversation, tools=tools, messages=messages), None


class _History:
    def __init__(self, tools: Iterable[object], target: Capabilities, family: str, notes: Notes) -> None:
        self._tools: Mapping[str, ToolSpec] = {tool.name: tool for tool in tools if isinstance(tool, ToolSpec)}
        self._target = target
        self._family = family
        self._notes = notes

    def message(self, message: Message) -> Iterator[Message]:
        """The message; what it says about the past or the tools stands in a user turn before an assistant's."""
        blocks: list[Block] = []
        before: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolResult):
                blocks.append(self._result(block))
            elif not isinstance(block, Opaque) or not self._is_ours(block):
                blocks.append(block)
            else:
                told = self._told(block)
                assistants = message.role == "assistant" and isinstance(told, Text)
                (before if assistants else blocks).append(told)
        if before:
            yield Message("user", tuple(before), at=message.at)
        if blocks == list(message.blocks):
            yield message
        elif blocks:
            yield structs.replace(message, blocks=tuple(blocks))

    def _is_ours(self, block: Opaque) -> bool:
        says = any(not isinstance(meaning, DefinedTool) for meaning in block.means)
        return says and not block.echo and block.family != self._family

    def _told(self, block: Opaque) -> Block:
        said: list[str] = []
        shown = list(dict.fromkeys(meaning.name for meaning in block.means if isinstance(meaning, ShownTool)))
        if shown:
            said.append(self._shown(shown))
            self._notes.changed("tools.reference", block.at.path, f"definitions are given as text: {', '.join(shown)}")
        for meaning in block.means:
            match meaning:
                case ToolCall():
                    self._notes.changed("tools.search", block.at.path, "a tool search became the call of a function")
                    return meaning
                case ToolResult():
                    self._notes.changed("tools.search", block.at.path, "what a tool search found became a result")
                    return self._result(meaning)
                case Untranslatable(reason):
                    raise Unrepresentable(reason, at=block.at.path)
                case Summary(text):
                    said.append(f"{SUMMARY}\n\n{text}")
                    self._notes.changed("compaction.as_text", block.at.path, "the summary of the past is given as text")
                case ToolChange(name, offered):
                    said.append(self._change(name, offered))
                    self._notes.changed("tools.changed", block.at.path, f"a change of the tool {name} is given as text")
                case _:
                    pass
        return Text("\n".join(said), cache=block.cache, at=block.at)

    # --- results that show tools

    def _result(self, result: ToolResult) -> ToolResult:
        content: list[Text | Media | Opaque] = []
        for shows, group in groupby(result.content, self._shows):
            parts = list(group)
            content += [self._shown_part(parts)] if shows else parts
        return result if content == list(result.content) else structs.replace(result, content=tuple(content))

    def _shows(self, part: Text | Media | Opaque) -> bool:
        return isinstance(part, Opaque) and self._is_ours(part)

    def _shown_part(self, parts: Sequence[Text | Media | Opaque]) -> Text:
        means = [meaning for part in parts if isinstance(part, Opaque) for meaning in part.means]
        names = list(dict.fromkeys(meaning.name for meaning in means if isinstance(meaning, ShownTool)))
        first, last = parts[0], parts[-1]
        self._notes.changed("tools.reference", first.at.path, f"definitions are given as text: {', '.join(names)}")
        return Text(self._shown(names), cache=last.cache, at=first.at)

    def _shown(self, names: Sequence[str]) -> str:
        """The form in which Anthropic's service shows references, and which Claude Code's search promises the model."""
        known = [self._tools[name] for name in names if name in self._tools]
        lines = [f"<function>{self._definition(tool)}</function>" for tool in known]
        missing = [f"Tool {self._alias(name)} is not available." for name in names if name not in self._tools]
        return "\n".join([*(["<functions>", *lines, "</functions>"] if lines else []), *missing])

    def _definition(self, tool: ToolSpec) -> str:
        schema = tool.schema if tool.schema is not None else SCHEMA
        return jsonio.text_of(
            {"description": tool.description, "name": self._alias(tool.name), "parameters": dict(schema)}
        )

    def _change(self, name: str, offered: bool) -> str:
        alias = self._alias(name)
        if not offered:
            return f"Tool {alias} is no longer available."
        return f"Tool {alias} is available from here on." if name in self._tools else f"Tool {alias} is not available."

    def _alias(self, name: str) -> str:
        """The name under which `rename_tools` sends the tool."""
        return rename(name, self._target.names) if name else name
