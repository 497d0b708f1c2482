"""Rules about turns: their order, their content, and the pairing of tool calls with tool results."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dragoman.simulator.kiro.reading import Asked, Placed, Turn, items, text
from dragoman.simulator.kiro.verdict import Answer, Finding, Grade, Limits

INVALID_TOOL = Answer("Invalid tool use format.", "REQUEST_BODY_INVALID")
_THINKING_TAGS = re.compile(r"<(?:thinking_mode|max_thinking_length|thinking_effort)>")


def _legal(value: object, limit: int) -> bool:
    return isinstance(value, str) and len(value) <= limit and re.fullmatch(r"[a-zA-Z0-9_-]+", value) is not None


def _id(entry: Placed) -> str:
    return text(entry[1].get("toolUseId"))


# --- order


def alternates(asked: Asked, _: Limits) -> Iterator[Finding]:
    for before, after in zip(asked.history, asked.history[1:], strict=False):
        if before.role == after.role:
            yield Finding(after.at, f"two {after.role} turns in a row")


def starts_with_user(asked: Asked, _: Limits) -> Iterator[Finding]:
    if asked.history and asked.history[0].role != "user":
        yield Finding(asked.history[0].at, "history starts with an assistant turn")


def first_without_results(asked: Asked, _: Limits) -> Iterator[Finding]:
    first = next((turn for turn in asked.history if turn.role == "user"), None)
    if first is not None and first.results:
        yield Finding(first.results[0][0], "the first user turn of history carries toolResults")


def ends_with_assistant(asked: Asked, _: Limits) -> Iterator[Finding]:
    if asked.history and asked.history[-1].role != "assistant":
        yield Finding(asked.history[-1].at, "history ends with a user turn")


def current_is_user(asked: Asked, _: Limits) -> Iterator[Finding]:
    if asked.current is not None and asked.current.role != "user":
        yield Finding(asked.current.at, "the current message is an assistant turn")


def history_not_empty(asked: Asked, _: Limits) -> Iterator[Finding]:
    if asked.state.get("history") == []:
        yield Finding("conversationState.history", "history is an empty array")


# --- content


def user_content(asked: Asked, _: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        if turn.role == "user" and not turn.content.strip():
            yield Finding(f"{turn.at}.content", "a user turn without text", "D" if turn.results or turn.images else "C")


def assistant_content(asked: Asked, _: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        if turn.role == "assistant" and not turn.content.strip():
            grade: Grade = "D" if turn.content else "B"  # kiro.rs sends one space, and gets away with it
            yield Finding(f"{turn.at}.content", "an assistant turn without text", grade)


def content_length(asked: Asked, limits: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        limit = limits.user_content if turn.role == "user" else limits.assistant_content
        if len(turn.content) > limit:
            yield Finding(f"{turn.at}.content", f"{len(turn.content)} characters, more than {limit}")
        for at, result in turn.results:
            for index, part in enumerate(items(result.get("content"))):
                size = len(text(part.get("text"))) if isinstance(part, dict) else 0
                if size > limits.result_text:
                    yield Finding(f"{at}.content[{index}].text", f"{size} characters, more than {limits.result_text}")


def no_tags_beside_results(asked: Asked, _: Limits) -> Iterator[Finding]:
    turn = asked.current
    if turn is not None and turn.results and _THINKING_TAGS.search(turn.content):
        yield Finding(f"{turn.at}.content", "thinking tags in a current message that carries toolResults")


# --- calls and results, each by itself


def call_ids(asked: Asked, limits: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        for at, entry in (*turn.uses, *turn.results):
            if not _legal(entry.get("toolUseId"), limits.name):
                yield Finding(f"{at}.toolUseId", f"does not match [a-zA-Z0-9_-]{{1,{limits.name}}}")


def tool_names(asked: Asked, limits: Limits) -> Iterator[Finding]:
    uses = [use for turn in asked.turns for use in turn.uses]
    for at, entry in (*asked.tools, *uses):
        if not _legal(entry.get("name"), limits.name):
            yield Finding(f"{at}.name", f"does not match [a-zA-Z0-9_-]{{1,{limits.name}}}")


def input_is_object(asked: Asked, _: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        for at, use in turn.uses:
            if not isinstance(use.get("input"), dict):
                yield Finding(f"{at}.input", "input is not an object" if "input" in use else "input is missing")


def result_not_empty(asked: Asked, _: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        for at, result in turn.results:
            parts = items(result.get("content"))
            if not parts:
                yield Finding(f"{at}.content", "a toolResult without content")
            for index, part in enumerate(parts):
                if isinstance(part, dict) and part.get("text") == "":
                    yield Finding(f"{at}.content[{index}].text", "an empty text")


def result_status(asked: Asked, _: Limits) -> Iterator[Finding]:
    for turn in asked.turns:
        for at, result in turn.results:
            if result.get("status") not in (None, "success", "error"):
                yield Finding(f"{at}.status", "a status other than success and error")


# --- pairing


def results_have_calls(asked: Asked, _: Limits) -> Iterator[Finding]:
    made: set[str] = set()
    for turn in asked.turns:
        yield from (
            Finding(result[0], f"no call {_id(result)!r} before it")
            for result in turn.results
            if _id(result) not in made
        )
        made.update(map(_id, turn.uses))


def calls_have_results(asked: Asked, _: Limits) -> Iterator[Finding]:
    found: list[Finding] = []
    answered: set[str] = set()
    for turn in reversed(asked.turns):  # so that the next user turn is known
        if turn.role == "user":
            answered = set(map(_id, turn.results))
        for use in reversed(turn.uses):
            if _id(use) not in answered:
                found.append(Finding(use[0], f"call {_id(use)!r} has no result in the next user turn"))
    yield from reversed(found)


def batches_whole(asked: Asked, _: Limits) -> Iterator[Finding]:
    """A result whose call was not made in the turn right before it: another turn split the batch."""
    made: dict[str, int] = {}
    for index, turn in enumerate(asked.turns):
        for result in turn.results:
            if _id(result) in made and made[_id(result)] != index - 1:
                yield Finding(result[0], f"other turns stand between call {_id(result)!r} and this result")
        made.update((_id(use), index) for use in turn.uses)


def no_second_result(asked: Asked, _: Limits) -> Iterator[Finding]:
    answered: set[str] = set()
    for turn in asked.turns:
        for result in turn.results:
            if _id(result) in answered:
                yield Finding(result[0], f"call {_id(result)!r} is answered already")
            answered.add(_id(result))
        answered.difference_update(map(_id, turn.uses))  # an id used anew is rule 12's


def no_second_call(asked: Asked, _: Limits) -> Iterator[Finding]:
    seen: dict[str, Turn] = {}
    for turn in asked.turns:
        for use in turn.uses:
            if _id(use) in seen:
                grade: Grade = "C" if seen[_id(use)] is turn else "D"
                yield Finding(use[0], f"the id {_id(use)!r} was used before", grade)
            seen[_id(use)] = turn


def history_tools_declared(asked: Asked, _: Limits) -> Iterator[Finding]:
    declared = {text(spec.get("name")).lower() for _, spec in asked.tools}
    for turn in asked.turns:
        for at, use in turn.uses:
            if text(use.get("name")).lower() not in declared:
                yield Finding(f"{at}.name", f"the tool {text(use.get('name'))!r} is not declared")


def results_need_tools(asked: Asked, _: Limits) -> Iterator[Finding]:
    results = [result for turn in asked.turns for result in turn.results]
    if results and not asked.tools:
        yield Finding(results[0][0], "toolResults, but no tools are declared")
