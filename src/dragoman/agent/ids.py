"""Ids of tool calls that Converse takes back: legal, short enough, and different from one another."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import dragoman.dialects as registry
from dragoman.agent.types import ToolUseBlock
from dragoman.filters.calls import rename


def with_legal_ids(calls: Sequence[ToolUseBlock]) -> list[ToolUseBlock]:
    """Return the calls of one response with ids that the service takes back, as a run sends them (D4).

    An id that is illegal or too long gets the alias that a request would carry. An id that an earlier call of the
    response has is replaced by one made from the id and the call's position.
    """
    alphabet = registry.get("bedrock").codec.capabilities("").ids
    given: set[str] = set()
    mended: list[ToolUseBlock] = []
    for position, call in enumerate(calls):
        id_ = rename(call["id"], alphabet)
        if id_ in given:
            id_ = "call_" + sha256(f"{position}\0{call['id']}".encode(errors="surrogatepass")).hexdigest()[:24]
        given.add(id_)
        mended.append(ToolUseBlock(id=id_, name=call["name"], input=call["input"]))
    return mended
