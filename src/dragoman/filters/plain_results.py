"""PlainResults: tool results with no more in them than the target's can hold: its kinds of media, its error flag.

Media that a result cannot hold stands after the results of its turn. The result names it by kind and number,
`(image 1 below)`, so that each can be matched to its call.
"""

from __future__ import annotations

from collections import Counter

from msgspec import structs

from dragoman.model.blocks import Block, Media, Opaque, Text, ToolResult
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes
from dragoman.model.parts import UNREADABLE, UNREADABLE_LINE, UNREADABLE_NOTE

ERROR = "Error"
_RICH: Features = frozenset({"media", "opaque"})


class PlainResults(Filter):
    name = "plain_results"

    def __init__(self, upstream: Capabilities) -> None:
        self._media = upstream.result_media
        self._errors = "result_errors" in upstream.traits
        self.concerns = _RICH if self._errors else _RICH | {"failed_results"}

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        messages = tuple([self._message(message, notes) for message in conversation.messages])
        if len(notes) == before:
            return conversation, None
        return structs.replace(conversation, messages=messages), None

    def _message(self, message: Message, notes: Notes) -> Message:
        if message.role != "user":
            return message
        results: list[Block] = []
        lifted: list[Media] = []
        counts: Counter[str] = Counter()
        rest: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolResult):
                results.append(self._result(block, lifted, counts, notes))
            else:
                rest.append(block)
        blocks = (*results, *lifted, *rest)
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _result(self, result: ToolResult, lifted: list[Media], counts: Counter[str], notes: Notes) -> ToolResult:
        """Return the result without what it cannot hold; its media is added to `lifted`, that of the whole turn.

        `counts` are the numbers of these media, by kind.
        """
        content: list[Text | Media | Opaque] = []
        for part in result.content:
            if isinstance(part, Opaque) and part.kind == UNREADABLE:
                notes.dropped("result.unreadable_media", part.at.path, UNREADABLE_NOTE)
            elif isinstance(part, Media) and part.kind not in self._media:
                lifted.append(part)
                counts[part.kind] += 1
                name = f"{part.kind} {counts[part.kind]}"
                notes.changed(
                    "result.media_lifted", part.at.path, f"the {part.kind} now stands after the results, as {name}"
                )
                content.append(Text(f"({name} below)", at=part.at))
            else:
                content.append(part)
        if result.content and not any(map(_says_something, content)) and len(content) < len(result.content):
            content.append(Text(UNREADABLE_LINE, at=result.at))
        is_error = result.is_error
        if is_error and not self._errors:
            notes.changed("result.error_text", result.at.path, "the error flag became the words of the result")
            content, is_error = _error(content), False
        if is_error == result.is_error and tuple(content) == result.content:
            return result
        return structs.replace(result, content=tuple(content), is_error=is_error)


def _says_something(part: Text | Media | Opaque) -> bool:
    return not isinstance(part, Text) or bool(part.text.strip())


def _error(content: list[Text | Media | Opaque]) -> list[Text | Media | Opaque]:
    for index, part in enumerate(content):
        if isinstance(part, Text) and part.text.strip():
            said = structs.replace(part, text=f"{ERROR}: {part.text}")
            return [*content[:index], said, *content[index + 1 :]]
    return [Text(ERROR), *content]
