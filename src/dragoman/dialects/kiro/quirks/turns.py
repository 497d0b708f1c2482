"""Filters that fit tool results and turns to Kiro. Pure, except that they log problems of results.

Every tool result becomes text, and every problem with its content is noted and logged (docs/mission.md, rows of 000).
The parsers have already flattened the content (docs/decisions/content.md#d1, #d2); the filter handles the parts that
they could not turn into text. The log has the path and the call id, never content.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import structs

from dragoman.dialects.kiro.quirks.thinking import is_replayable, wrap_in_tags
from dragoman.dialects.kiro.request import LOG
from dragoman.model.blocks import Block, Location, Media, Opaque, Reasoning, Text, ToolCall, ToolResult
from dragoman.model.conversation import Conversation, Message
from dragoman.model.filter import Facts, Features, Filter, MakeResponseFilter, MessageFilter, Notes
from dragoman.model.parts import UNREADABLE, UNREADABLE_LINE, join_texts, opaque_as_parts

NO_OUTPUT = "(no output)"


class FlattenResults(MessageFilter):
    """Give every result a text (rule 32 of docs/dialects/kiro.md); turn parts that the service refuses into text."""

    name = "kiro.read_results"
    applies_to: Features = frozenset({"blank", "media", "opaque"})
    before = "drop_foreign"

    def block(self, block: Block, notes: Notes) -> Iterable[Block]:
        return (_result(block, notes) if isinstance(block, ToolResult) else block,)


def _result(result: ToolResult, notes: Notes) -> ToolResult:
    content: list[Text | Media] = []
    for part in result.content:
        match part:
            case Opaque(kind=kind) if kind == UNREADABLE:
                notes.dropped(
                    "kiro.result.malformed", part.at.path, "a part of the result is unreadable and is left out"
                )
                _log("kiro.result.malformed", part.at.path, result)
            case Opaque():
                content += opaque_as_parts(part, notes, "kiro.result.not_text")
                _log("kiro.result.not_text", part.at.path, result)
            case Media():
                # simplify_results moves it out of the result, and notes that.
                _log("kiro.result.not_text", part.at.path, result)
                content.append(part)
            case _:
                content.append(part)
    if any(isinstance(part, Media) or part.text.strip() for part in content):
        return result if tuple(content) == result.content else structs.replace(result, content=tuple(content))
    if any(isinstance(part, Opaque) for part in result.content):
        return structs.replace(result, content=(Text(UNREADABLE_LINE, at=result.at),))
    rule = "kiro.result.missing" if result.at.is_absent else "kiro.result.empty"
    what = "has no content" if result.at.is_absent else "has no text"
    notes.added(rule, result.at.path, f"the result {what}; {NO_OUTPUT!r} is sent")
    _log(rule, result.at.path, result)
    return structs.replace(result, content=(Text(NO_OUTPUT, at=result.at),))


def _log(rule: str, path: str, result: ToolResult) -> None:
    LOG.debug("the result of call %s was changed at %s (rule %s)", result.call_id, path or "an unknown path", rule)


# --- turns in the form of the service: results, one text, images; or a thought, one text, calls. No text is empty


RESULTS_ONLY = "Tool results provided."
IMAGE_ONLY = "(image)"
PLACEHOLDER = "."
MAX_USER_CHARACTERS = 600_000
MAX_ASSISTANT_CHARACTERS = 100_000
MAX_RESULT_CHARACTERS = 800_000


class BuildHistory(Filter):
    """Give every turn exactly one text, which is neither empty nor too long, and put its blocks in order.

    See rules 6, 7 and 51 of docs/dialects/kiro.md.
    """

    name = "kiro.build_history"
    keeps_canonical = True  # results, then a text that is never empty, then the rest

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if all(map(_is_built, conversation.messages)):
            return conversation, None
        builder = _HistoryBuilder(notes)
        messages = tuple([builder.message(message) for message in conversation.messages])
        builder.write_notes()
        if messages == conversation.messages:
            return conversation, None
        return structs.replace(conversation, messages=messages), None


class _HistoryBuilder:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._joined: list[Location] = []  # turns and results whose texts were joined or blocks reordered
        self._filled: dict[str, list[Location]] = {}  # turns and results without text, by the text that they got

    def message(self, message: Message) -> Message:
        blocks = message.blocks
        if _is_built(message):
            return message
        if message.role != "user":
            blocks = self._assistant(message)
        elif len(blocks) == 1 and _is_one_text(blocks[0]):  # most user turns with results
            self._fill(message, RESULTS_ONLY)
            blocks = (blocks[0], Text(RESULTS_ONLY, at=message.at))
        else:
            blocks = self._user(message)
        if blocks == message.blocks:
            return message
        return Message(message.role, blocks, extra=message.extra, at=message.at)

    def write_notes(self) -> None:
        for words, places in self._filled.items():
            what = "a turn or result has" if len(places) == 1 else f"{len(places)} turns or results have"
            detail = f"{what} no text, and the service requires one; {words!r} is sent"
            self._notes.added("kiro.text.missing", places[0].path, detail)
        if self._joined:
            count = len(self._joined)
            turns = "one turn" if count == 1 else f"{count} turns or results"
            self._notes.changed(
                "kiro.text.joined",
                self._joined[0].path,
                f"the texts of {turns} were joined, in the order of the service",
            )

    def _user(self, message: Message) -> tuple[Block, ...]:
        results: list[ToolResult] = []
        for block in message.blocks:
            if type(block) is ToolResult:
                results.append(block if _is_one_text(block) else self._result(block))
        if results and len(results) == len(message.blocks):
            self._fill(message, RESULTS_ONLY)
            return (*results, Text(RESULTS_ONLY, at=message.at))
        images = [block for block in message.blocks if isinstance(block, Media)]
        texts = [block for block in message.blocks if isinstance(block, Text)]
        if not texts:
            words = RESULTS_ONLY if results else IMAGE_ONLY if images else PLACEHOLDER
            self._fill(message, words)
            return (*results, Text(words, at=message.at), *images)
        blocks: tuple[Block, ...] = (*results, self._one(texts, MAX_USER_CHARACTERS), *images)
        self._compare(message, blocks)
        return blocks

    def _assistant(self, message: Message) -> tuple[Block, ...]:
        calls = [block for block in message.blocks if isinstance(block, ToolCall)]
        thoughts = [block for block in message.blocks if isinstance(block, Reasoning)]
        sent = thoughts[:1] if thoughts and is_replayable(thoughts[0]) else []
        texts = [text for block in message.blocks if (text := self._text_of(block, sent)) is not None]
        if not texts:
            self._fill(message, PLACEHOLDER)
            return (*sent, Text(PLACEHOLDER, at=message.at), *calls)
        blocks: tuple[Block, ...] = (*sent, self._one(texts, MAX_ASSISTANT_CHARACTERS), *calls)
        self._compare(message, blocks)
        return blocks

    def _text_of(self, block: Block, sent: list[Reasoning]) -> Text | None:
        """Return the text that a block adds to the turn.

        A turn has one thought, which is in `sent`; a second one, of a merged turn, becomes text in tags.
        """
        match block:
            case Text():
                return block
            case Reasoning(text) if all(block is not one for one in sent):
                at, reason = block.at.path, "a turn of Kiro can have only one block of reasoning"
                if not text.strip():
                    self._notes.dropped(
                        "kiro.thinking.unreadable",
                        at,
                        f"{reason}; this one has no text without its signature and is left out",
                    )
                    return None
                self._notes.changed("kiro.thinking.wrapped", at, f"{reason}; this one is sent as text")
                return Text(wrap_in_tags(text), at=block.at)
            case _:
                return None

    def _result(self, result: ToolResult) -> ToolResult:
        texts = [part for part in result.content if isinstance(part, Text)]
        if not texts:
            self._fill(result, NO_OUTPUT)
            return structs.replace(result, content=(Text(NO_OUTPUT, at=result.at),))
        one = self._one(texts, MAX_RESULT_CHARACTERS)
        if len(texts) > 1:
            self._joined.append(result.at)
        return result if (one,) == result.content else structs.replace(result, content=(one,))

    def _one(self, texts: list[Text], longest: int) -> Text:
        """Join the texts into one (docs/decisions/content.md#d1); leave out its middle if it is too long."""
        if len(texts) == 1 and len(texts[0].text) <= longest:
            return texts[0]
        words = join_texts(text.text for text in texts)
        if len(words) > longest:
            self._notes.dropped(
                "kiro.text.cut",
                texts[0].at.path,
                f"the text has {len(words)} characters, more than the limit of {longest}; its middle is left out",
            )
            return Text(_cut(words, longest), at=texts[0].at)
        return Text(words, at=texts[0].at)

    def _compare(self, message: Message, blocks: tuple[Block, ...]) -> None:
        if len(blocks) != len(message.blocks) or any(
            type(a) is not type(b) for a, b in zip(blocks, message.blocks, strict=True)
        ):
            self._joined.append(message.at)

    def _fill(self, node: Message | ToolResult, words: str) -> None:
        self._filled.setdefault(words, []).append(node.at)


def _is_built(message: Message) -> bool:
    """Return whether a turn certainly needs no change: one text within the limit, and calls of the model after it."""
    blocks = message.blocks
    text = blocks[0] if blocks else None
    if not isinstance(text, Text):
        return False
    if message.role == "user":
        return len(blocks) == 1 and len(text.text) <= MAX_USER_CHARACTERS
    return len(text.text) <= MAX_ASSISTANT_CHARACTERS and not [
        call for call in blocks[1:] if type(call) is not ToolCall
    ]


def _is_one_text(block: Block) -> bool:
    """Return whether the block is a result with one text that is not too long."""
    if type(block) is not ToolResult or len(block.content) != 1:
        return False
    text = block.content[0]
    return type(text) is Text and len(text.text) <= MAX_RESULT_CHARACTERS


def _cut(words: str, longest: int) -> str:
    """Return the beginning and the end of a text, with a marker that names its length between them."""
    marker = f"\n[{len(words)} characters, the middle left out]\n"
    head = (longest - len(marker)) * 2 // 3
    return words[:head] + marker + words[len(words) - (longest - len(marker) - head) :]
