"""Tool results: whatever their content is, text reaches the service, and every problem with it is noted and logged.

Mission document 000. Readers have flattened the content already (D1, D2); here is what they could not make text of.
The log names the place and the call, never what was said.
"""

from __future__ import annotations

from msgspec import structs

from dragoman.dialects.kiro.turns import LOG
from dragoman.model.blocks import Block, Media, Opaque, Text, ToolResult
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts, Features, Inventory
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes
from dragoman.model.parts import UNREADABLE, UNREADABLE_LINE, opaque_as_parts

NO_OUTPUT = "(no output)"


class ReadResults(Filter):
    """No result without text (rule 32), and no part in one that the service cannot read."""

    name = "kiro.read_results"
    concerns: Features = frozenset({"results"})
    before = "drop_foreign"

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        if _are_read(facts.inventory(conversation)):
            return conversation, None
        before = len(notes)
        messages = tuple([_message(message, notes) for message in conversation.messages])
        return (conversation if len(notes) == before else structs.replace(conversation, messages=messages)), None


def _message(message: Message, notes: Notes) -> Message:
    blocks: tuple[Block, ...] = tuple(
        [_result(block, notes) if isinstance(block, ToolResult) else block for block in message.blocks]
    )
    return message if blocks == message.blocks else structs.replace(message, blocks=blocks)


def _are_read(held: Inventory) -> bool:
    """Whether every result holds something, and nothing but texts that say something."""
    said = [part for part in held.parts if type(part) is Text and part.text and not part.text.isspace()]
    return len(said) == len(held.parts) and not [result for result in held.results if not result.content]


def _result(result: ToolResult, notes: Notes) -> ToolResult:
    content: list[Text | Media] = []
    for part in result.content:
        match part:
            case Opaque(kind=kind) if kind == UNREADABLE:
                notes.dropped("kiro.result.malformed", part.at.path, "a part that cannot be read was left out")
                _log("kiro.result.malformed", part.at.path, result)
            case Opaque():
                content += opaque_as_parts(part, notes, "kiro.result.not_text")
                _log("kiro.result.not_text", part.at.path, result)
            case Media():
                _log(
                    "kiro.result.not_text", part.at.path, result
                )  # plain_results lifts it out of the result, and says so
                content.append(part)
            case _:
                content.append(part)
    if any(isinstance(part, Media) or part.text.strip() for part in content):
        return result if tuple(content) == result.content else structs.replace(result, content=tuple(content))
    if any(isinstance(part, Opaque) for part in result.content):
        return structs.replace(result, content=(Text(UNREADABLE_LINE, at=result.at),))
    rule = "kiro.result.missing" if result.at.bare else "kiro.result.empty"
    what = "has no content" if result.at.bare else "says nothing"
    notes.added(rule, result.at.path, f"the result {what}; it is given as {NO_OUTPUT!r}")
    _log(rule, result.at.path, result)
    return structs.replace(result, content=(Text(NO_OUTPUT, at=result.at),))


def _log(rule: str, path: str, result: ToolResult) -> None:
    LOG.debug("%s at %s: the result of call %s", rule, path or "an unknown place", result.call_id)
