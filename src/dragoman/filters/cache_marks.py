"""Fit prompt-cache marks to the target: where they may be, their lifetimes, and how many there may be.

A mark says that the prompt up to its node is worth caching. The next request of the conversation finds the longest
marked prefix, so the last marks matter most: those at the end of the tools, of the system text and of the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from msgspec import structs

from dragoman.model.blocks import (
    Block,
    CacheBreakpoint,
    CacheTtl,
    Extra,
    Media,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.model.capabilities import MARK_PLACES, Capabilities
from dragoman.model.conversation import Conversation, Message, ToolSpec
from dragoman.model.filter import Action, Facts, Features, Filter, MakeResponseFilter, Notes

_LONG: frozenset[CacheTtl] = frozenset({"1h", "12h"})
_CLAUDE: tuple[CacheTtl, CacheTtl] = ("5m", "1h")
# A place of a node: tools, system, or messages; the index there, of the block, and of the part of a result.
_Place: TypeAlias = tuple[int, int, int, int]
_Marks: TypeAlias = dict[_Place, CacheBreakpoint]
_Nodes: TypeAlias = "Mapping[_Place, ToolSpec | Block]"
_TOOLS, _SYSTEM, _MESSAGES = range(3)
_FIRST: _Place = (_TOOLS, 0, 0, 0)
_KEY = "prompt_cache_key"
_WHOLE = 1 << 30  # the index of a result's part that stands for the result itself, which ends after all its parts
B = TypeVar("B", bound=Block)


class FitCacheMarks(Filter):
    """Convert, move or remove the cache marks that the target does not accept as they are."""

    name = "fit_cache_marks"
    applies_to: Features = frozenset({"marks"})
    keeps_replies = True

    def __init__(self, upstream: Capabilities, *, foreign: bool) -> None:
        self._target = target = upstream.cache_marks
        self._foreign = foreign  # whether the client's family is another one
        foreign_ttls = frozenset(target.ttls if target.count or target.is_own else ())
        self._ttls = foreign_ttls if foreign else target.known_ttls

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        before = dict(_find_marks(conversation))
        marks = self._limited(self._with_lifetimes(before, notes), notes)
        marks = self._placed(conversation, marks, notes)
        return (conversation if marks == before else _with_marks(conversation, marks)), None

    def _with_lifetimes(self, marks: _Marks, notes: Notes) -> _Marks:
        """Return the marks with the target's lifetimes. Claude's services refuse a longer one after a shorter one."""
        target = self._target
        if not self._foreign or not target.count:
            return marks
        fitted = {place: self._with_lifetime(mark) for place, mark in marks.items()}
        last_long = max((place for place, mark in fitted.items() if mark.ttl == "1h"), default=_FIRST)
        for place, mark in fitted.items():
            if place < last_long and mark.ttl == "5m":
                fitted[place] = structs.replace(mark, ttl="1h")
        changes = {(marks[place].ttl, mark.ttl) for place, mark in fitted.items() if marks[place].ttl != mark.ttl}
        if changes:
            detail = ", ".join(f"{one} is sent as {other}" for one, other in sorted(changes))
            notes.changed("cache.ttl", "", f"the target has other lifetimes of cache marks: {detail}")
        return fitted

    def _with_lifetime(self, mark: CacheBreakpoint) -> CacheBreakpoint:
        if mark.ttl in self._ttls:
            return mark
        is_long = mark.ttl in _LONG and self._target.allows_long
        return CacheBreakpoint(self._target.ttls[is_long])

    def _limited(self, marks: _Marks, notes: Notes) -> _Marks:
        """Return at most as many marks as the target accepts: the last of each part, then the latest."""
        target = self._target
        fitting_marks = {place: mark for place, mark in marks.items() if mark.ttl in self._ttls}
        if target.count:
            fitting_marks = _latest(fitting_marks, target.count)
        if len(fitting_marks) < len(marks):
            surplus = len(marks) - len(fitting_marks)
            detail = f"the target accepts {target.count} cache marks; {surplus} are left out"
            notes.dropped("cache.marks", "", detail)
        return fitting_marks

    def _placed(self, conversation: Conversation, marks: _Marks, notes: Notes) -> _Marks:
        """Return the marks, each at a place that the target has: its own, or the last one before it."""
        nodes = dict(_nodes(conversation)) if marks else {}
        misplaced = [place for place, mark in marks.items() if not self._may_stand(conversation, place, nodes, mark)]
        if not misplaced:
            return marks
        placed = {place: mark for place, mark in marks.items() if place not in misplaced}
        lost = 0
        for place in misplaced:
            mark = marks[place]
            allowed = (each for each in nodes if self._may_stand(conversation, each, nodes, mark))
            target = _nearest(place, allowed)
            if target is None:
                lost += 1
            elif target not in placed or mark.ttl in _LONG:
                placed[target] = mark
        if lost:
            notes.dropped("cache.marks", "", f"the target has no place for {lost} cache marks")
        if lost < len(misplaced):
            detail = "the target has cache marks on content only, not on tools, calls or results as a whole"
            notes.changed("cache.moved", "", f"{len(misplaced) - lost} cache marks moved: {detail}")
        return dict(sorted(placed.items()))

    def _may_stand(self, conversation: Conversation, place: _Place, nodes: _Nodes, mark: CacheBreakpoint) -> bool:
        """Return whether the target accepts this mark at this place. OpenAI's marks are on content parts only."""
        places, node = self._target.places, nodes[place]
        if place[0] == _TOOLS:
            return "tools" in places and mark.ttl in _CLAUDE
        match node:
            case Text(text="") if self._foreign:
                return False  # without its mark it would be left out, so it must not depend on the mark
            case ToolCall():
                return "calls" in places
            case ToolResult():
                return "results" in places
            case Opaque():
                return places == MARK_PLACES
            case _ if place[0] == _MESSAGES and conversation.messages[place[1]].role == "assistant":
                return "assistant" in places
            case _:
                return True


class AddCacheKey(Filter):
    """Add the key by which a service routes a conversation to its prompt cache, unless the client sent one."""

    name = "add_cache_key"
    applies_to: Features = frozenset({"session"})
    keeps_replies = True

    def __init__(self, upstream: Capabilities, family: str) -> None:
        self._field = upstream.shared_fields["request"][_KEY]
        self._family = family

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        extra = conversation.extra
        fields = extra.fields if extra is not None and extra.family == self._family else {}
        if not conversation.session or fields.get(self._field):
            return conversation, None
        notes.added("cache.key", _KEY, "the key of the prompt cache is made of the client's session")
        spelling = extra.spelling if extra is not None else frozenset[str]()
        keyed = Extra(self._family, {**fields, self._field: conversation.session}, spelling)
        return structs.replace(conversation, extra=keyed), None


def _latest(marks: _Marks, count: int) -> _Marks:
    if len(marks) <= count:
        return marks
    ends = {place[0]: place for place in marks if place[0] != _MESSAGES}  # the last of the tools and of the system
    rest = [place for place in reversed(marks) if place not in ends.values()]
    by_part = sorted(rest, key=lambda place: place[0] != _MESSAGES)  # stable: messages first, latest first
    fitting_marks = {*ends.values(), *by_part[: max(count - len(ends), 0)]}
    return {place: mark for place, mark in marks.items() if place in fitting_marks}


def _nearest(place: _Place, allowed: Iterable[_Place]) -> _Place | None:
    """Return the last place before this one; for a mark on a tool, the end of the system text."""
    if place[0] == _TOOLS:
        return max((each for each in allowed if each[0] == _SYSTEM), default=None)
    return max((each for each in allowed if each < place), default=None)


def _nodes(conversation: Conversation) -> Iterator[tuple[_Place, ToolSpec | Block]]:
    """Yield every node that can have a mark, in the order in which services cache them."""
    for index, tool in enumerate(conversation.tools):
        yield (_TOOLS, index, 0, 0), tool
    for index, text in enumerate(conversation.system):
        yield (_SYSTEM, index, 0, 0), text
    for index, message in enumerate(conversation.messages):
        for number, block in enumerate(message.blocks):
            if isinstance(block, ToolResult):
                yield from (((_MESSAGES, index, number, at), part) for at, part in enumerate(block.content))
                yield (_MESSAGES, index, number, _WHOLE), block
            elif not isinstance(block, Reasoning):
                yield (_MESSAGES, index, number, 0), block


def _find_marks(conversation: Conversation) -> Iterator[tuple[_Place, CacheBreakpoint]]:
    for place, node in _nodes(conversation):
        if not isinstance(node, Reasoning) and node.cache is not None:
            yield place, node.cache


def _with_marks(conversation: Conversation, marks: _Marks) -> Conversation:
    """Return the conversation with these marks and no others."""
    tools = tuple(_marked(tool, marks.get((_TOOLS, at, 0, 0))) for at, tool in enumerate(conversation.tools))
    system = tuple(_marked(text, marks.get((_SYSTEM, at, 0, 0))) for at, text in enumerate(conversation.system))
    messages = tuple(_message(message, at, marks) for at, message in enumerate(conversation.messages))
    return structs.replace(conversation, tools=tools, system=system, messages=messages)


def _message(message: Message, index: int, marks: _Marks) -> Message:
    blocks = tuple([_block(block, (index, at), marks) for at, block in enumerate(message.blocks)])
    unchanged = all(one is other for one, other in zip(blocks, message.blocks, strict=True))
    return message if unchanged else structs.replace(message, blocks=blocks)


def _block(block: Block, at: tuple[int, int], marks: _Marks) -> Block:
    if isinstance(block, Reasoning):
        return block
    if not isinstance(block, ToolResult):
        return _marked(block, marks.get((_MESSAGES, *at, 0)))
    parts = [_marked(part, marks.get((_MESSAGES, *at, index))) for index, part in enumerate(block.content)]
    if any(one is not other for one, other in zip(parts, block.content, strict=True)):
        block = structs.replace(block, content=tuple(parts))
    return _marked(block, marks.get((_MESSAGES, *at, _WHOLE)))


N = TypeVar("N", ToolSpec | Opaque, Text, Text | Media | Opaque, ToolResult, Text | Media | ToolCall | Opaque)


def _marked(node: N, mark: CacheBreakpoint | None) -> N:
    return node if node.cache == mark else structs.replace(node, cache=mark)


# --- marks on blocks that a filter leaves out

MARK_LOST = ", and its cache mark with it"


def move_mark(remaining: list[B], mark: CacheBreakpoint) -> str:
    """Move a cache mark to the block before, which ends at the same place. Return the end of the note's sentence."""
    if not remaining or isinstance(remaining[-1], Reasoning):
        return MARK_LOST
    if remaining[-1].cache is None:
        remaining[-1] = structs.replace(remaining[-1], cache=mark)
    return "; its cache mark moved to the block before"


def replace_blocks(blocks: Iterable[Block], fit: Callable[[Block], Iterable[Block]], notes: Notes) -> tuple[Block, ...]:
    """Return the blocks that `fit` returns for each block. The mark of a block that is left out moves, with a note."""
    fitted: list[Block] = []
    for block in blocks:
        before = len(fitted)
        fitted += fit(block)
        if len(fitted) == before and not isinstance(block, Reasoning) and block.cache is not None:
            outcome = move_mark(fitted, block.cache)
            action: Action = "dropped" if outcome == MARK_LOST else "changed"
            notes.add("cache.moved", action, block.at.path, f"a block is left out{outcome}")
    return tuple(fitted)
