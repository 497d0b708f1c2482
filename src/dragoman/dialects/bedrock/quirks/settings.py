"""Cache points, the user and the output schema within what the service takes."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TypeVar

from msgspec import structs

from dragoman.model.blocks import Block, Cache, Media, Opaque, Reasoning, Text, ToolResult
from dragoman.model.conversation import Conversation, ToolSpec
from dragoman.model.facts import Facts, Features
from dragoman.model.filter import Filter, MakeBack
from dragoman.model.notes import Notes

LONGEST_USER = 256
_NO_USER = re.compile(r"[^a-zA-Z0-9\s:_@$#=/+,.-]")
N = TypeVar("N", ToolSpec | Opaque, Text, Block)


class SettleCache(Filter):
    """Cache points where the service takes them: beside results, never in them; never after a document other than
    PDF; no hour after five minutes. They are looked at in the order tools, system, messages."""

    name = "bedrock.settle_cache"
    concerns: Features = frozenset({"marks"})

    def __init__(self, tools: bool) -> None:
        self._tools = tools

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        before = len(notes)
        walk = _Walk(notes)
        tools = tuple(walk.node(tool) if self._tools else walk.without(tool) for tool in conversation.tools)
        system = tuple(map(walk.node, conversation.system))
        messages = tuple(
            structs.replace(message, blocks=tuple(map(walk.block, message.blocks))) for message in conversation.messages
        )
        if len(notes) == before:
            return conversation, None
        return structs.replace(conversation, tools=tools, system=system, messages=messages), None


class _Walk:
    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._short = False  # a mark of five minutes has been seen

    def without(self, tool: ToolSpec | Opaque) -> ToolSpec | Opaque:
        if tool.cache is None:
            return tool
        self._notes.dropped("bedrock.cache.tools", tool.at.path, "the model takes no cache mark among its tools")
        return structs.replace(tool, cache=None)

    def block(self, block: Block) -> Block:
        if isinstance(block, Reasoning):
            return block
        if isinstance(block, ToolResult):
            block = self._result(block)
        if isinstance(block, Media) and block.cache and block.kind == "document" and block.mime != "application/pdf":
            self._notes.dropped("bedrock.cache.document", block.at.path, "only after a PDF may a cache mark stand")
            return structs.replace(block, cache=None)
        return self.node(block)

    def _result(self, result: ToolResult) -> ToolResult:
        marks = [part.cache for part in result.content if part.cache is not None]
        if not marks:
            return result
        self._notes.changed("bedrock.cache.moved", result.at.path, "a cache mark in a result now stands after it")
        content = tuple(part if part.cache is None else structs.replace(part, cache=None) for part in result.content)
        return structs.replace(result, content=content, cache=result.cache or marks[-1])

    def node(self, node: N) -> N:
        cache: Cache | None = getattr(node, "cache", None)
        if cache is None:
            return node
        if cache.ttl == "1h" and self._short:
            self._notes.changed("bedrock.cache.ttl", node.at.path, "no mark of 1h may follow one of 5m; it is 5m now")
            return structs.replace(node, cache=structs.replace(cache, ttl="5m"))
        self._short = self._short or cache.ttl == "5m"
        return node


class FitWords(Filter):
    """The user's id in the characters of requestMetadata, and an output schema without a strict flag."""

    name = "bedrock.fit_words"
    concerns: Features = frozenset({"output", "user"})

    def forward(self, conversation: Conversation, notes: Notes, facts: Facts) -> tuple[Conversation, MakeBack | None]:
        output = conversation.output
        if output.strict is not None:
            notes.changed(
                "bedrock.output.strict", "output", "an output schema has no strict flag here; it always holds"
            )
            conversation = structs.replace(conversation, output=structs.replace(output, strict=None))
        user = _legal_user(conversation.user)
        if user != conversation.user:
            notes.renamed("bedrock.user", "user", f"{conversation.user!r} is sent as {user!r}")
            conversation = structs.replace(conversation, user=user)
        return conversation, None


def _legal_user(user: str) -> str:
    """The user's id if it is legal, else a cleaned prefix and eight characters of its hash (as D4 does for names)."""
    if len(user) <= LONGEST_USER and not _NO_USER.search(user):
        return user
    digest = sha256(user.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{_NO_USER.sub('_', user)[: LONGEST_USER - 9]}_{digest}"
