"""Translate web searches between the families whose services search the web themselves. Pure.

The client declares the search as a tool. The service decides when to search; its reply has the searches, the pages that
they found, and citations. Some services have no blocks for searches and only cite pages: then the client gets one
search with all cited pages, after the text. The filter returns blocks without data; the codec writes them from their
effects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from hashlib import sha256

from msgspec import Struct, structs

from dragoman.model import events as ev
from dragoman.model.blocks import Block, Opaque, SearchOptions, WebPage, WebResults, WebSearch
from dragoman.model.capabilities import Capabilities, SearchOption
from dragoman.model.conversation import Conversation, ToolChoice, ToolSpec, tool_name
from dragoman.model.filter import (
    BLOCK_STARTS,
    EventKinds,
    Facts,
    Features,
    Filter,
    MakeResponseFilter,
    Notes,
    ResponseFilter,
)

_READS: EventKinds = BLOCK_STARTS | {ev.Started, ev.CitationAdded, ev.Stopped}
_OPTIONS: tuple[SearchOption, ...] = ("max_uses", "allowed_domains", "blocked_domains", "location", "context_size")
_TO_TARGET = "the target's own search of the web is used"
_TO_CLIENT = "a search of the web is written in the form of the client"


def web_effects(node: Block | ToolSpec) -> list[WebSearch | WebResults]:
    """Return the effects of a node that declares a search of the web, or is a part of one."""
    effects = node.effects if isinstance(node, Opaque) else ()
    return [effect for effect in effects if isinstance(effect, WebSearch | WebResults)]


def declared_search(tool: ToolSpec | Opaque) -> SearchOptions | None:
    """Return the options of a tool that searches the web; None for another tool."""
    return next((effect.options for effect in web_effects(tool) if isinstance(effect, WebSearch)), None)


def may_search(tools: Iterable[ToolSpec | Opaque], target: Capabilities) -> bool:
    """Return whether the target itself searches the web for a request that declares these tools."""
    support = target.tools.web_search
    return support is not None and not (
        support.excludes_functions and any(isinstance(tool, ToolSpec) for tool in tools)
    )


def is_carried_search(tool: ToolSpec | Opaque, target: Capabilities) -> bool:
    """Return whether the tool is a search of the web, and the target has one, too."""
    return target.tools.web_search is not None and declared_search(tool) is not None


class TranslateWebSearch(Filter):
    """Let the target search the web with its own tool, and write its searches in the form of the client."""

    name = "translate_web_search"
    applies_to: Features = frozenset({"opaque_tools"})

    def __init__(self, client: Capabilities, client_family: str, upstream: Capabilities, upstream_family: str) -> None:
        self._target, self._family = upstream.tools.web_search, upstream_family
        self._client_family = client_family
        self._shows = client.tools.web_search is not None and client.tools.web_search.has_blocks
        self._is_silent = self._target is not None and not self._target.has_blocks

    def forward(
        self, conversation: Conversation, notes: Notes, facts: Facts
    ) -> tuple[Conversation, MakeResponseFilter | None]:
        options = [found for tool in conversation.tools if (found := declared_search(tool)) is not None]
        if not options or self._target is None:
            return conversation, None
        tools = tuple(self._tools(conversation.tools, notes))
        choice = self._choice(conversation, tools, notes)
        maker = partial(_ReplySearches, self._client_family, self._is_silent) if self._shows else None
        return structs.replace(conversation, tools=tools, tool_choice=choice), maker

    def _tools(self, tools: Iterable[ToolSpec | Opaque], notes: Notes) -> Iterator[ToolSpec | Opaque]:
        has_search = False
        for tool in tools:
            options = declared_search(tool)
            if options is None or not isinstance(tool, Opaque):
                yield tool
            elif not has_search:
                has_search = True
                notes.changed("search.native", tool.at.path, _TO_TARGET)
                effect = WebSearch(options=self._fitted(options, tool.at.path, notes))
                yield structs.replace(tool, family=self._family, data={}, effects=(effect,), cache=None, extra=None)

    def _fitted(self, options: SearchOptions, at: str, notes: Notes) -> SearchOptions:
        """Return the options that the target has."""
        default, lost = SearchOptions(), list[str]()
        for name in _OPTIONS:
            if (
                getattr(options, name) != getattr(default, name)
                and self._target is not None
                and name not in self._target.options
            ):
                lost.append(name)
        for other in (*lost, *options.others):
            notes.dropped("search.option", at, f"the target's search has no setting {other}")
        return structs.replace(options, **{name: getattr(default, name) for name in (*lost, "others")})

    def _choice(self, conversation: Conversation, tools: tuple[ToolSpec | Opaque, ...], notes: Notes) -> ToolChoice:
        """Return the choice without the name of the search, which each family writes in its own way.

        If the search must be called and is the only tool, some tool must be called.
        """
        choice = conversation.tool_choice
        searches = {tool_name(tool) for tool in conversation.tools if declared_search(tool) is not None}
        if searches.isdisjoint(choice.names):
            return choice
        names = tuple(name for name in choice.names if name not in searches)
        if len(tools) == 1 and self._target is not None and self._target.is_forced_by_any:
            return structs.replace(choice, mode="any" if choice.mode in ("one", "any") else choice.mode, names=())
        notes.dropped("tools.choice", choice.at.path, "the target cannot force its own search of the web")
        return structs.replace(choice, mode="auto" if choice.mode in ("one", "any") else choice.mode, names=names)


class _ReplySearches(Struct, ResponseFilter, eq=False):
    """Writes the searches of a reply in the form of the client. `_is_silent`: the upstream only cites what it found."""

    _family: str
    _is_silent: bool
    _notes: Notes
    _keys: ev.BlockKeys
    reads: EventKinds | None = _READS
    _seed: str = ""
    _count: int = 0
    _last: str = ""  # the id of the search before
    _cited: dict[str, WebPage] = {}

    def take(self, event: ev.Event) -> Iterable[ev.Event]:
        match event:
            case ev.Started(id=reply_id):
                self._seed = reply_id
            case ev.BlockStarted(block=Opaque() as block) if web_effects(block):
                return self._written(event, block)
            case ev.CitationAdded(citation=Opaque(source=source)) if self._is_silent and source is not None:
                if source.url not in self._cited:
                    page = WebPage(source.url, source.title, source.quote)
                    self._keys.budget.reserve(ev.json_size(page))
                    self._cited[source.url] = page
            case ev.Stopped(choice=choice) if self._cited:
                pages, self._cited = tuple(self._cited.values()), {}
                blocks = [self._block(WebSearch()), self._block(WebResults("", pages))]
                return (*self._whole(blocks, choice), event)
            case _:
                pass
        return (event,)

    def _written(self, event: ev.BlockStarted, block: Opaque) -> Iterable[ev.Event]:
        """Return the blocks of the client for a block of the upstream, one for each effect.

        The last one has the key of the upstream's block, whose end follows.
        """
        if block.family == self._family and block.data:
            return (event,)
        self._notes.changed("search.blocks", "", _TO_CLIENT)
        *before, last = map(self._block, web_effects(block))
        return (*self._whole(before, event.choice), structs.replace(event, block=last, wire_index=None))

    def _whole(self, blocks: Iterable[Opaque], choice: int) -> Iterator[ev.Event]:
        for block in blocks:
            key = self._keys.fresh(block)
            yield from (ev.BlockStarted(key, block, choice), ev.BlockEnded(key))

    def _block(self, effect: WebSearch | WebResults) -> Opaque:
        if isinstance(effect, WebSearch):
            self._count += 1
            self._last = effect.id or sha256(f"{self._seed}\0{self._count}".encode()).hexdigest()[:24]
        own = structs.replace(effect, id=effect.id or self._last)
        return Opaque(self._family, {}, "web_search", effects=(own,))
