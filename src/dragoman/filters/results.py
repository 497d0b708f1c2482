"""PairTools: every call is answered in the turn right after it, exactly once, and every result answers a call.
A result answers the latest call of its id, wherever it stands, and is moved to the turn after that call. What the model
says between its calls and their results belongs to the turn of the calls. Ids may be reused: each call's id is made
unique, so that services which want unique ids get them. A trailing turn with calls is answered too, since services
refuse it otherwise. Where the service holds earlier turns, a result without a call in the request answers one of those
and stays as it is.

See docs/decisions/kiro.md#d12.
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
    """`in_order`: the results of a turn stand in the order of its calls."""

    name = "pair_tools"
    applies_to: Features = frozenset({"calls", "results"})

    def __init__(self, *, in_order: bool = False) -> None:
        self._in_order = in_order

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        held = facts.inventory(conversation)
        if _paired(conversation, held) and (
            not self._in_order or [result.call_id for result in held.results] == [call.id for call in held.calls]
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


def _paired(conversation: Conversation, held: Inventory) -> bool:
    """Whether there is nothing to do: each id is called once and answered in the next message, with no other result."""
    if held.kinds.isdisjoint((ToolCall, ToolResult)):
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
    """A message, what of it stays, the calls it makes and the results found for them."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.blocks: list[Block] = []
        self.calls: list[ToolCall] = []
        self.results: list[ToolResult] = []

    def missing(self) -> Iterator[ToolCall]:
        answered = {result.call_id for result in self.results}
        return (call for call in self.calls if call.id not in answered)

    def rebuilt(self, blocks: tuple[Block, ...]) -> Message:
        return self.message if blocks == self.message.blocks else structs.replace(self.message, blocks=blocks)


class _Pairing:
    def __init__(self, notes: Notes, in_order: bool, *, continues: bool) -> None:
        self._notes = notes
        self._in_order = in_order
        self._continues = continues  # the service holds earlier turns, and calls in them
        self._turns: list[_Turn] = []
        self._numbers: dict[str, int] = {}  # the next number to try for an id that is used again
        self._taken: set[str] = set()
        # By the client's id: the calls that wait for a result, and the results that were given.
        self._waiting: dict[str, list[tuple[_Turn, ToolCall]]] = {}
        self._given: dict[str, list[ToolResult]] = {}
        self._asked: set[str] = set()  # ids called since the last user turn: their results are still to come, in order
        self._caller: _Turn | None = None  # the last turn with calls, if only the model spoke since

    def read(self, message: Message) -> None:
        turn = _Turn(message)
        for block in message.blocks:
            if message.role == "assistant" and isinstance(block, ToolCall):
                turn.blocks.append(self._call(turn, block))
            elif message.role == "user" and isinstance(block, ToolResult):
                turn.blocks.extend(self._result(block))
            else:
                turn.blocks.append(block)
        if message.role == "user":
            self._asked.clear()
        if message.role != "assistant" or message.extra is not None:
            self._caller = None
        if turn.calls:
            self._caller = turn
        self._turns.append(turn)

    def _call(self, turn: _Turn, call: ToolCall) -> ToolCall:
        if call.id not in self._asked:  # a reused id means the new call from here on
            self._asked.add(call.id)
            self._waiting[call.id] = []
            self._given[call.id] = []
        unique = self._unique(call)
        self._waiting[call.id].append((turn, unique))
        turn.calls.append(unique)
        return unique

    def _unique(self, call: ToolCall) -> ToolCall:
        """The call under an id that no earlier call has. Later ones do not matter: a prefix stays as it is."""
        if call.id not in self._taken:
            self._taken.add(call.id)
            return call
        number = self._numbers.get(call.id, 2)
        while (id_ := f"{call.id}_{number}") in self._taken:
            number += 1
        self._numbers[call.id] = number + 1
        self._taken.add(id_)
        self._notes.renamed("ids.duplicate", call.at.path, f"the id {call.id!r} was used before; this call is {id_!r}")
        return structs.replace(call, id=id_)

    def _result(self, result: ToolResult) -> Iterable[Block]:
        """Give the result to its call; what comes back stays in the turn where the client put it."""
        waiting, given = self._waiting.get(result.call_id), self._given.get(result.call_id, [])
        if waiting:
            turn, call = waiting.pop(0)
            given.append(result)
            if turn is self._caller:
                self._join_asides(turn)
            if turn is not self._turns[-1]:
                self._notes.changed("tools.moved_result", result.at.path, "moved to the turn right after its call")
            turn.results.append(result if result.call_id == call.id else structs.replace(result, call_id=call.id))
            return ()
        if any((one.content, one.is_error) == (result.content, result.is_error) for one in given):
            self._notes.changed("tools.duplicate_result", result.at.path, "the same result twice; one stays")
            return ()
        if self._continues and result.call_id not in self._given:
            return (result,)
        if given:
            self._notes.changed("tools.duplicate_result", result.at.path, "its call has a result; this one became text")
        else:
            self._notes.changed("tools.orphan_result", result.at.path, f"no call {result.call_id!r}; it became text")
        return self._as_text(result)

    def _join_asides(self, caller: _Turn) -> None:
        """Codex 0.80 tells a turn's calls first and its text as a message of its own: no call may wait behind it."""
        asides: list[_Turn] = []
        while self._turns[-1] is not caller:
            asides.append(self._turns.pop())
        for aside in reversed(asides):
            self._notes.changed("turn.merged", aside.message.at.path, "joined with the calls before it")
        first = next(at for at, block in enumerate(caller.blocks) if isinstance(block, ToolCall))
        caller.blocks[first:first] = [block for aside in reversed(asides) for block in aside.blocks]

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
        results: tuple[Block, ...] = ()
        speaker = ""
        for turn in self._turns:
            role = turn.message.role
            if role == "user":
                blocks = (*results, *turn.blocks)
                results = ()
                if turn.message.blocks and not blocks:
                    if speaker == "user":
                        continue
                    blocks = (
                        Text(MOVED_RESULT),
                    )  # without it the answer before would become the end, or join the next one
                yield turn.rebuilt(blocks)
            else:
                if results:
                    yield Message("user", results)
                yield turn.rebuilt(tuple(turn.blocks))
                results = self._results(turn)
            speaker = speaker if role == "system" else role
            speaker = "user" if results else speaker
        if results:
            yield Message("user", results)

    def _results(self, turn: _Turn) -> tuple[ToolResult, ...]:
        """The results of a turn's calls, those that were not given included."""
        results = [*turn.results, *map(self._no_result, turn.missing())]
        if not self._in_order:
            return tuple(results)
        places = {call.id: place for place, call in enumerate(turn.calls)}
        given = [places[result.call_id] for result in turn.results]
        if given != sorted(given):
            detail = "the results stand in the order of their calls: the model knows them by it"
            self._notes.changed("tools.reordered_results", turn.results[0].at.path, detail)
        return tuple(sorted(results, key=lambda result: places[result.call_id]))

    def _no_result(self, call: ToolCall) -> ToolResult:
        self._notes.added("tools.missing_result", call.at.path, f"the call {call.id!r} has no result; it got an error")
        return ToolResult(call.id, (Text(NO_RESULT),), is_error=True, at=call.at)


# --- PlainResults: tool results with no more in them than the target's can hold: its kinds of media, its error flag.
#
# Media that a result cannot hold stands after the results of its turn. The result names it by kind and number,
# `(image 1 below)`, so that each can be matched to its call.


ERROR = "Error"
_RICH: Features = frozenset({"media", "opaque"})


class SimplifyResults(MessageFilter):
    name = "simplify_results"

    def __init__(self, upstream: Capabilities) -> None:
        self._media = upstream.result_media
        self._errors = "result_errors" in upstream.traits
        self.applies_to = _RICH if self._errors else _RICH | {"failed_results"}

    def message(self, message: Message, notes: Notes) -> Message:
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
