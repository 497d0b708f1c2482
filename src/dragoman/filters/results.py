"""Filters of tool results: `PairTools` pairs calls and results, `SimplifyResults` fits the content of results.

How `PairTools` works (docs/decisions/kiro.md#d12): each call gets exactly one result, in the turn right after it, and
each result belongs to a call. A result belongs to the latest call with its id, wherever it stands, and moves to the
turn after that call. Text of the model between its calls and their results moves to the turn of the calls. A reused
call id is made unique, since some services require unique ids. Calls in the last turn get a result too, since services
refuse the request otherwise. If the service stores earlier turns, a result without a call in the request belongs to one
of those turns and stays unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import structs

from dragoman.model.blocks import Block, Media, Opaque, Text, ToolCall, ToolResult
from dragoman.model.capabilities import Capabilities
from dragoman.model.conversation import Conversation, Message, to_canonical
from dragoman.model.filter import Facts, Features, Filter, Inventory, MakeResponseFilter, MessageFilter, Notes
from dragoman.model.parts import UNREADABLE, UNREADABLE_LINE, UNREADABLE_NOTE, opaque_as_parts

NO_RESULT = "(no result)"
NO_OUTPUT = "(no output)"
MOVED_RESULT = "(tool result above)"


class PairTools(Filter):
    """Give each call exactly one result, in the turn right after it.

    `in_order`: sort the results of a turn like its calls.
    """

    name = "pair_tools"
    applies_to: Features = frozenset({"calls", "results"})

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        inventory = facts.inventory(conversation)
        if _is_paired(conversation, inventory) and (
            not self._in_order
            or [result.call_id for result in inventory.results] == [call.id for call in inventory.calls]
        ):
            return conversation, None
        before = len(notes)
        pairing = _Pairing(notes, self._in_order, continues=conversation.has_stored_turns)
        for message in conversation.messages:
            pairing.read(message)
        messages = tuple(pairing.write())
        if len(notes) == before:
            return conversation, None
        return to_canonical(structs.replace(conversation, messages=messages), conversation.messages), None


def _is_paired(conversation: Conversation, inventory: Inventory) -> bool:
    """Return whether nothing is to do: each id has one call, and one result in the next message; no other result."""
    if inventory.kinds.isdisjoint((ToolCall, ToolResult)):
        return True
    called: list[tuple[int, str]] = []
    answered: list[tuple[int, str]] = []
    for index, message in enumerate(conversation.messages):
        for block in message.blocks:
            if type(block) is ToolCall:
                called.append((index + 1, block.id))
            elif type(block) is ToolResult:
                answered.append((index, block.call_id))
    if called != answered and sorted(called) != sorted(answered):
        return False
    return len({call_id for _, call_id in called}) == len(called)


class _Turn:
    """A message: its remaining blocks, its calls, and the results found for them."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.blocks: list[Block] = []
        self.calls: list[ToolCall] = []
        self.results: list[ToolResult] = []

    def missing(self) -> Iterator[ToolCall]:
        """Return the calls without a result."""
        answered = {result.call_id for result in self.results}
        return (call for call in self.calls if call.id not in answered)

    def rebuilt(self, blocks: tuple[Block, ...]) -> Message:
        """Return the message with these blocks, the same object if they are its own."""
        return self.message if blocks == self.message.blocks else structs.replace(self.message, blocks=blocks)


class _Pairing:
    """Reads the messages one by one, then writes them with their results in place."""

    def __init__(self, notes: Notes, in_order: bool, *, continues: bool) -> None:
        self._notes = notes
        self._in_order = in_order
        self._has_stored_turns = continues  # the service stores earlier turns, which may have calls
        self._turns: list[_Turn] = []
        self._next_numbers: dict[str, int] = {}  # the next suffix to try for a reused id
        self._used_ids: set[str] = set()
        # By the client's id: the calls without a result so far, and the results found.
        self._waiting: dict[str, list[tuple[_Turn, ToolCall]]] = {}
        self._results_by_id: dict[str, list[ToolResult]] = {}
        self._called_since_user: set[str] = set()  # their results follow, in order
        self._last_caller: _Turn | None = None  # the last turn with calls, if only assistant turns followed

    def read(self, message: Message) -> None:
        """Take the next message of the conversation."""
        turn = _Turn(message)
        for block in message.blocks:
            if message.role == "assistant" and isinstance(block, ToolCall):
                turn.blocks.append(self._call(turn, block))
            elif message.role == "user" and isinstance(block, ToolResult):
                turn.blocks.extend(self._result(block))
            else:
                turn.blocks.append(block)
        if message.role == "user":
            self._called_since_user.clear()
        if message.role != "assistant" or message.extra is not None:
            self._last_caller = None
        if turn.calls:
            self._last_caller = turn
        self._turns.append(turn)

    def _call(self, turn: _Turn, call: ToolCall) -> ToolCall:
        if call.id not in self._called_since_user:  # from here on a reused id means the new call
            self._called_since_user.add(call.id)
            self._waiting[call.id] = []
            self._results_by_id[call.id] = []
        unique = self._unique(call)
        self._waiting[call.id].append((turn, unique))
        turn.calls.append(unique)
        return unique

    def _unique(self, call: ToolCall) -> ToolCall:
        """Return the call with an id that no earlier call has. Later calls do not count: prompt caches stay valid."""
        if call.id not in self._used_ids:
            self._used_ids.add(call.id)
            return call
        number = self._next_numbers.get(call.id, 2)
        while (id_ := f"{call.id}_{number}") in self._used_ids:
            number += 1
        self._next_numbers[call.id] = number + 1
        self._used_ids.add(id_)
        self._notes.renamed(
            "ids.duplicate", call.at.path, f"the id {call.id!r} was used before; this call gets {id_!r}"
        )
        return structs.replace(call, id=id_)

    def _result(self, result: ToolResult) -> Iterable[Block]:
        """Assign the result to its call. Return the blocks that stay in the turn where the client put it."""
        waiting, earlier = self._waiting.get(result.call_id), self._results_by_id.get(result.call_id, [])
        if waiting:
            turn, call = waiting.pop(0)
            earlier.append(result)
            if turn is self._last_caller:
                self._merge_texts_into(turn)
            if turn is not self._turns[-1]:
                self._notes.changed(
                    "tools.moved_result", result.at.path, "the result is moved to the turn after its call"
                )
            turn.results.append(result if result.call_id == call.id else structs.replace(result, call_id=call.id))
            return ()
        if any((one.content, one.is_error) == (result.content, result.is_error) for one in earlier):
            self._notes.changed("tools.duplicate_result", result.at.path, "the same result occurs twice; one is kept")
            return ()
        if self._has_stored_turns and result.call_id not in self._results_by_id:
            return (result,)
        if earlier:
            self._notes.changed(
                "tools.duplicate_result", result.at.path, "the call already has a result; this one is sent as text"
            )
        else:
            self._notes.changed(
                "tools.orphan_result",
                result.at.path,
                f"the conversation has no call {result.call_id!r}; the result is sent as text",
            )
        return self._as_text(result)

    def _merge_texts_into(self, caller: _Turn) -> None:
        """Move the texts after a turn with calls into that turn, before the calls.

        Codex 0.80 sends a turn's calls first and its text as a second message; the results must follow the calls.
        """
        texts: list[_Turn] = []
        while self._turns[-1] is not caller:
            texts.append(self._turns.pop())
        for text_turn in reversed(texts):
            self._notes.changed(
                "turn.merged", text_turn.message.at.path, "the turn is merged into the turn of the calls before it"
            )
        first = next(at for at, block in enumerate(caller.blocks) if isinstance(block, ToolCall))
        caller.blocks[first:first] = [block for text_turn in reversed(texts) for block in text_turn.blocks]

    def _as_text(self, result: ToolResult) -> Iterable[Block]:
        blocks: list[Text | Media] = []
        for part in result.content:
            match part:
                case Text(text=text):
                    blocks.extend([part] if text else [])
                case Media():
                    blocks.append(part)
                case Opaque(kind=kind) if kind == UNREADABLE:
                    self._notes.dropped("result.unreadable_media", part.at.path, UNREADABLE_NOTE)
                case Opaque():
                    blocks += opaque_as_parts(part, self._notes, "tools.orphan_result")
        if not blocks:
            unreadable = any(isinstance(part, Opaque) for part in result.content)
            blocks = [Text(UNREADABLE_LINE if unreadable else NO_OUTPUT, at=result.at)]
        if result.cache is not None and blocks[-1].cache is None:
            blocks[-1] = structs.replace(blocks[-1], cache=result.cache)
        return blocks

    def write(self) -> Iterator[Message]:
        """Yield the messages with all results in place."""
        results: tuple[Block, ...] = ()
        last_role = ""
        for turn in self._turns:
            role = turn.message.role
            if role == "user":
                blocks = (*results, *turn.blocks)
                results = ()
                if turn.message.blocks and not blocks:
                    if last_role == "user":
                        continue
                    # Without this text the assistant turn before would be the last one, or merge with the next one.
                    blocks = (Text(MOVED_RESULT),)
                yield turn.rebuilt(blocks)
            else:
                if results:
                    yield Message("user", results)
                yield turn.rebuilt(tuple(turn.blocks))
                results = self._results(turn)
            last_role = last_role if role == "system" else role
            last_role = "user" if results else last_role
        if results:
            yield Message("user", results)

    def _results(self, turn: _Turn) -> tuple[ToolResult, ...]:
        """Return the results of a turn's calls, with an error for each missing one."""
        results = [*turn.results, *map(self._no_result, turn.missing())]
        if not self._in_order:
            return tuple(results)
        places = {call.id: place for place, call in enumerate(turn.calls)}
        order = [places[result.call_id] for result in turn.results]
        if order != sorted(order):
            detail = "the results were sorted like their calls: the model matches them by order"
            self._notes.changed("tools.reordered_results", turn.results[0].at.path, detail)
        return tuple(sorted(results, key=lambda result: places[result.call_id]))

    def _no_result(self, call: ToolCall) -> ToolResult:
        self._notes.added(
            "tools.missing_result", call.at.path, f"the call {call.id!r} has no result; an error result was added"
        )
        return ToolResult(call.id, (Text(NO_RESULT),), is_error=True, at=call.at)


# --- SimplifyResults


ERROR = "Error"
_RICH: Features = frozenset({"media", "opaque"})


class SimplifyResults(MessageFilter):
    """Reduce tool results to what the target's results can hold: its kinds of media, its error flag.

    Other media moves behind the results of its turn. The result names it by kind and number, `(image 1 below)`, so that
    the model can match each to its call.
    """

    name = "simplify_results"

    def __init__(self, upstream: Capabilities) -> None:
        self._media = upstream.result_media
        self._errors = "result_errors" in upstream.traits
        self.applies_to = _RICH if self._errors else _RICH | {"failed_results"}

    def message(self, message: Message, notes: Notes) -> Message:
        if message.role != "user":
            return message
        results: list[Block] = []
        moved: list[Media] = []
        counts: Counter[str] = Counter()
        rest: list[Block] = []
        for block in message.blocks:
            if isinstance(block, ToolResult):
                results.append(self._result(block, moved, counts, notes))
            else:
                rest.append(block)
        blocks = (*results, *moved, *rest)
        return message if blocks == message.blocks else structs.replace(message, blocks=blocks)

    def _result(self, result: ToolResult, moved: list[Media], counts: Counter[str], notes: Notes) -> ToolResult:
        """Return the result without the media it cannot hold, which is appended to `moved`.

        `moved` and `counts` (the number of moved media by kind) belong to the whole turn.
        """
        content: list[Text | Media | Opaque] = []
        for part in result.content:
            if isinstance(part, Opaque) and part.kind == UNREADABLE:
                notes.dropped("result.unreadable_media", part.at.path, UNREADABLE_NOTE)
            elif isinstance(part, Media) and part.kind not in self._media:
                moved.append(part)
                counts[part.kind] += 1
                name = f"{part.kind} {counts[part.kind]}"
                notes.changed(
                    "result.media_lifted", part.at.path, f"the {part.kind} is placed after the results, as {name}"
                )
                content.append(Text(f"({name} below)", at=part.at))
            else:
                content.append(part)
        if result.content and not any(map(_has_content, content)) and len(content) < len(result.content):
            content.append(Text(UNREADABLE_LINE, at=result.at))
        is_error = result.is_error
        if is_error and not self._errors:
            notes.changed(
                "result.error_text",
                result.at.path,
                "the target has no error flag for results; the text of the result names the error",
            )
            content, is_error = _with_error_text(content), False
        if is_error == result.is_error and tuple(content) == result.content:
            return result
        return structs.replace(result, content=tuple(content), is_error=is_error)


def _has_content(part: Text | Media | Opaque) -> bool:
    return not isinstance(part, Text) or bool(part.text.strip())


def _with_error_text(content: list[Text | Media | Opaque]) -> list[Text | Media | Opaque]:
    for index, part in enumerate(content):
        if isinstance(part, Text) and part.text.strip():
            error_text = structs.replace(part, text=f"{ERROR}: {part.text}")
            return [*content[:index], error_text, *content[index + 1 :]]
    return [Text(ERROR), *content]
