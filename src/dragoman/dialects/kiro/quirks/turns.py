"""Tool results: whatever their content is, text reaches the service, and every problem with it is noted and logged.

Mission document 000. Readers have flattened the content already (docs/decisions/content.md#d1, #d2); here is what they
could not make text of. The log names the place and the call, never what was said.
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
    """No result without text (rule 32 of docs/dialects/kiro.md), and no part in one that the service cannot read."""

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
                notes.dropped("kiro.result.malformed", part.at.path, "a part that cannot be read was left out")
                _log("kiro.result.malformed", part.at.path, result)
            case Opaque():
                content += opaque_as_parts(part, notes, "kiro.result.not_text")
                _log("kiro.result.not_text", part.at.path, result)
            case Media():
                _log(
                    "kiro.result.not_text", part.at.path, result
                )  # simplify_results lifts it out of the result, and says so
                content.append(part)
            case _:
                content.append(part)
    if any(isinstance(part, Media) or part.text.strip() for part in content):
        return result if tuple(content) == result.content else structs.replace(result, content=tuple(content))
    if any(isinstance(part, Opaque) for part in result.content):
        return structs.replace(result, content=(Text(UNREADABLE_LINE, at=result.at),))
    rule = "kiro.result.missing" if result.at.is_absent else "kiro.result.empty"
    what = "has no content" if result.at.is_absent else "says nothing"
    notes.added(rule, result.at.path, f"the result {what}; it is given as {NO_OUTPUT!r}")
    _log(rule, result.at.path, result)
    return structs.replace(result, content=(Text(NO_OUTPUT, at=result.at),))


def _log(rule: str, path: str, result: ToolResult) -> None:
    LOG.debug("%s at %s: the result of call %s", rule, path or "an unknown place", result.call_id)


# --- Turns in the one form the service has: results, one text, images; or a thought, one text, calls. No text is
# empty


RESULTS_ONLY = "Tool results provided."
IMAGE_ONLY = "(image)"
SILENT = "."
MAX_USER_CHARACTERS = 600_000
MAX_ASSISTANT_CHARACTERS = 100_000
MAX_RESULT_CHARACTERS = 800_000


class BuildHistory(Filter):
    """Every turn with one text that says something, of bearable length, in one order.

    See rules 6, 7 of docs/dialects/kiro.md and rule 51 of docs/dialects/kiro.md.
    """

    name = "kiro.build_history"
    keeps_canonical = True  # results, then a text that is never empty, then the rest

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        if all(map(_is_built, conversation.messages)):
            return conversation, None
        building = _Building(notes)
        messages = tuple([building.message(message) for message in conversation.messages])
        building.tell()
        if messages == conversation.messages:
            return conversation, None
        return structs.replace(conversation, messages=messages), None


class _Building:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._joined: list[Location] = []  # places where texts were joined or blocks changed their order
        self._filled: dict[str, list[Location]] = {}  # places that had no text, by the one that they got

    def message(self, message: Message) -> Message:
        blocks = message.blocks
        if _is_built(message):
            return message
        if message.role != "user":
            blocks = self._assistant(message)
        elif len(blocks) == 1 and _is_one_text(blocks[0]):  # so it is with most
            self._fill(message, RESULTS_ONLY)
            blocks = (blocks[0], Text(RESULTS_ONLY, at=message.at))
        else:
            blocks = self._user(message)
        if blocks == message.blocks:
            return message
        return Message(message.role, blocks, extra=message.extra, at=message.at)

    def tell(self) -> None:
        for words, places in self._filled.items():
            where = "stands here" if len(places) == 1 else f"stands in {len(places)} turns or results"
            detail = f"no text {where}, and the service wants one; it is {words!r}"
            self._notes.added("kiro.text.missing", places[0].path, detail)
        if self._joined:
            count = len(self._joined)
            turns = "one turn" if count == 1 else f"{count} turns or results"
            self._notes.changed(
                "kiro.text.joined", self._joined[0].path, f"the texts of {turns} were joined, in the service's order"
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
            words = RESULTS_ONLY if results else IMAGE_ONLY if images else SILENT
            self._fill(message, words)
            return (*results, Text(words, at=message.at), *images)
        blocks: tuple[Block, ...] = (*results, self._one(texts, MAX_USER_CHARACTERS), *images)
        self._compare(message, blocks)
        return blocks

    def _assistant(self, message: Message) -> tuple[Block, ...]:
        calls = [block for block in message.blocks if isinstance(block, ToolCall)]
        thoughts = [block for block in message.blocks if isinstance(block, Reasoning)]
        replayed = thoughts[:1] if thoughts and is_replayable(thoughts[0]) else []
        texts = [text for block in message.blocks if (text := self._spoken(block, replayed)) is not None]
        if not texts:
            self._fill(message, SILENT)
            return (*replayed, Text(SILENT, at=message.at), *calls)
        blocks: tuple[Block, ...] = (*replayed, self._one(texts, MAX_ASSISTANT_CHARACTERS), *calls)
        self._compare(message, blocks)
        return blocks

    def _spoken(self, block: Block, replayed: list[Reasoning]) -> Text | None:
        """What a block adds to the text. A turn replays one thought; a second one, of a merged turn, comes in tags."""
        match block:
            case Text():
                return block
            case Reasoning(text) if all(block is not one for one in replayed):
                at, reason = block.at.path, "a turn replays one thought"
                if not text.strip():
                    self._notes.dropped(
                        "kiro.thinking.unreadable", at, f"{reason}; this one says nothing without its seal"
                    )
                    return None
                self._notes.changed("kiro.thinking.wrapped", at, f"{reason}; this one is text")
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
        """All texts as one (docs/decisions/content.md#d1), with its middle left out where it is too long."""
        if len(texts) == 1 and len(texts[0].text) <= longest:
            return texts[0]
        words = join_texts(text.text for text in texts)
        if len(words) > longest:
            self._notes.dropped(
                "kiro.text.cut", texts[0].at.path, f"{len(words)} characters; the service takes {longest}"
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
    """Whether a turn surely has its form: a text that is not too long; the model's with calls after it."""
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
    """Whether it is a result with a text that is not too long."""
    if type(block) is not ToolResult or len(block.content) != 1:
        return False
    text = block.content[0]
    return type(text) is Text and len(text.text) <= MAX_RESULT_CHARACTERS


def _cut(words: str, longest: int) -> str:
    """The beginning and the end, which say most, and how much is missing between them."""
    marker = f"\n[{len(words)} characters, the middle left out]\n"
    head = (longest - len(marker)) * 2 // 3
    return words[:head] + marker + words[len(words) - (longest - len(marker) - head) :]
