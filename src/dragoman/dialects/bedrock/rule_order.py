"""How turns must follow one another: who begins, who follows whom, and which results answer which calls."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from dragoman.dialects.bedrock.models import Vendor
from dragoman.dialects.bedrock.shapes import breach
from dragoman.dialects.kit.values import Object, Placed, objects
from dragoman.dialects.rulebook import Breach
from dragoman.wire.jsonio import Json


def order(messages: Json, vendor: Vendor) -> Iterator[Breach]:
    turns = list(objects(messages, "messages"))
    if turns and turns[0][0].get("role") != "user":
        detail = "A conversation must start with a user message. Try again with one that does."
        yield breach("messages.first", turns[0][1], detail)
    for (before, _), (after, at) in pairwise(turns):
        if before.get("role") == after.get("role"):
            detail = "A conversation must alternate between user and assistant roles."
            yield breach("messages.alternate", at, detail)
    yield from _pairing(turns)
    if turns and turns[-1][0].get("role") == "assistant" and not vendor.prefill:
        detail = "This model doesn't support a prefilled answer: the conversation must end with a user message."
        yield breach("messages.last", turns[-1][1], detail)


def _pairing(turns: list[Placed]) -> Iterator[Breach]:
    """Every call is answered at the start of the next turn, once; there are no more results than calls."""
    waiting: list[Json] = []
    for message, at in turns:
        results = _ids(message, "toolResult")
        yield from _duplicates(results, "toolResult", at)
        if len(results) > len(waiting):
            detail = "The number of toolResult blocks exceeds the number of toolUse blocks of previous turn."
            yield breach("tool_result.count", f"{at}.content", detail)
        elif any(call_id not in waiting for call_id in results):
            yield breach(
                "tool_result.orphan", f"{at}.content", "unexpected `tool_use_id` found in `tool_result` blocks"
            )
        leading = _leading_results(message)
        missing = [call_id for call_id in waiting if call_id not in leading]
        if missing:
            yield _unanswered(missing, at)
        waiting = _ids(message, "toolUse")
        yield from _duplicates(waiting, "toolUse", at)
    if waiting:
        yield _unanswered(waiting, "messages")


def _unanswered(missing: list[Json], at: str) -> Breach:
    names = ", ".join(str(each) for each in missing)
    detail = f"Did not find {len(missing)} tool_result block(s) at the beginning of this message, for the ids: {names}"
    return breach("tool_use.unanswered", at, detail)


def _duplicates(ids: list[Json], member: str, at: str) -> Iterator[Breach]:
    twice = {str(each) for each in ids if ids.count(each) > 1}
    if twice:
        detail = f"The {member} blocks at {at}.content contain duplicate Ids: {', '.join(sorted(twice))}"
        rule = "tool_use.duplicate" if member == "toolUse" else "tool_result.duplicate"
        yield breach(rule, f"{at}.content", detail)


def _ids(message: Object, member: str) -> list[Json]:
    """The ids of the client's own tools; those that the service runs carry a type, or a result in the same answer."""
    served = _given(message, "toolResult") if message.get("role") == "assistant" else []
    return [
        use.get("toolUseId")
        for use in _given(message, member)
        if use.get("type") is None and use.get("toolUseId") not in [result.get("toolUseId") for result in served]
    ]


def _given(message: Object, member: str) -> list[Object]:
    blocks = objects(message.get("content"), "")
    return [given for block, _ in blocks if isinstance(given := block.get(member), dict)]


def _leading_results(message: Object) -> list[Json]:
    """The ids answered before anything else is said."""
    found: list[Json] = []
    for block, _ in objects(message.get("content"), ""):
        result = block.get("toolResult")
        if isinstance(result, dict):
            found.append(result.get("toolUseId"))
        elif "cachePoint" not in block:
            break
    return found
