"""fit_limits: settings and counts within what the target takes."""

from __future__ import annotations

import pytest

from dragoman.errors import Unrepresentable
from dragoman.filters.limits import FitLimits
from dragoman.model.blocks import Cache, Opaque, Text, ToolResult
from dragoman.model.capabilities import Capabilities, traits
from dragoman.model.conversation import Conversation, Message, Output, Thinking, ToolChoice, ToolSpec
from dragoman.model.filter import Facts, Notes
from dragoman.wire.jsonio import Json

USER = Message("user", (Text("hi"),))
TOOL = ToolSpec("f", "", {"type": "object", "properties": {}})


def fitted(target: Capabilities, **asked: object) -> tuple[Conversation, list[str]]:
    notes = Notes()
    given = {"messages": (USER,), **asked}
    sent, _ = FitLimits(target).forward(Conversation("m", **given), notes, Facts())  # type: ignore[arg-type]
    return sent, [note.rule for note in notes]


def test_more_than_one_answer_is_refused_at_n() -> None:
    with pytest.raises(Unrepresentable, match=r"^n: "):
        fitted(Capabilities(), choices=2)
    assert fitted(Capabilities(traits=traits("choices")), choices=2)[0].choices == 2


def test_knobs_are_dropped_or_clamped() -> None:
    target = Capabilities(knobs=frozenset({"temperature"}), knob_ranges=(("temperature", 0.0, 1.0),))
    sent, rules = fitted(target, knobs={"temperature": 1.7, "seed": 3})
    assert (sent.knobs, rules) == ({"temperature": 1.0}, ["knob.dropped", "knob.clamped"])


def test_max_tokens_is_added_where_needed_and_zero_refused_where_impossible() -> None:
    sent, rules = fitted(Capabilities(max_tokens=99))
    assert (sent.max_tokens, rules) == (99, ["max_tokens.default"])
    with pytest.raises(Unrepresentable, match=r"^max_tokens: "):
        fitted(Capabilities(), max_tokens=0)
    assert fitted(Capabilities(traits=traits("zero_tokens")), max_tokens=0)[1] == []


def test_stop_sequences_are_cut_to_what_the_target_takes() -> None:
    sent, rules = fitted(Capabilities(stop_limit=1), stop=("", "A", "B"))
    assert (sent.stop, rules) == (("A",), ["stop.blank", "stop.limit"])


@pytest.mark.parametrize(
    ("takes", "asked", "told"),
    [
        ({"text"}, Output("schema", "n", {"type": "object"}), Output()),
        ({"text", "json"}, Output("schema", "n", {"type": "object"}), Output("json")),
        ({"text", "schema"}, Output("json"), Output()),
    ],
)
def test_an_output_form_the_target_lacks(takes: set[str], asked: Output, told: Output) -> None:
    sent, rules = fitted(Capabilities(output=frozenset(takes), traits=traits("output_names")), output=asked)
    assert (sent.output, rules) == (told, ["output.form"])


def test_objects_of_an_output_schema_are_closed_but_names_and_values_are_not_keywords() -> None:
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {"properties": {"type": "object"}, "x": {"enum": [{"type": "object"}]}},
        "anyOf": [{"properties": {}}],
    }
    target = Capabilities(output=frozenset({"schema"}), traits=traits("closed_schemas"))
    sent, rules = fitted(target, output=Output("schema", schema=schema))
    closed = {
        "type": "object",
        "properties": {
            "properties": {"type": "object", "additionalProperties": False},
            "x": {"enum": [{"type": "object"}]},
        },
        "anyOf": [{"properties": {}, "additionalProperties": False}],
        "additionalProperties": False,
    }
    assert (sent.output.schema, rules) == (closed, ["output.closed"])


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (Thinking("on", "", 3000), Thinking(effort="low")),
        (Thinking("on", "", 31999), Thinking(effort="high")),
        (Thinking("on", "", 100_000), Thinking(effort="high")),
        (Thinking("adaptive", "xhigh", None, False), Thinking(effort="high")),
        (Thinking(effort="minimal"), Thinking(effort="low")),
        (Thinking("off", "high"), Thinking("off")),
        (Thinking(effort="unheard of"), Thinking()),
    ],
)
def test_thinking_in_the_targets_words(asked: Thinking, told: Thinking) -> None:
    target = Capabilities(efforts=("low", "medium", "high"), thinking=frozenset({"default", "off"}))
    sent, rules = fitted(target, thinking=asked)
    assert (sent.thinking, rules) == (told, ["thinking.fitted"])


def test_thinking_without_any_word_for_it() -> None:
    sent, rules = fitted(Capabilities(), thinking=Thinking("on", "", 3000))
    assert (sent.thinking, rules) == (Thinking(), ["thinking.dropped"])


@pytest.mark.parametrize(
    ("choice", "told", "rules"),
    [
        (ToolChoice("any", ("f",)), ToolChoice("any"), ["tools.allowed"]),
        (ToolChoice("none"), ToolChoice(), ["tools.choice"]),
        (ToolChoice(parallel=False), ToolChoice(), ["tools.parallel"]),
    ],
)
def test_a_tool_choice_the_target_lacks(choice: ToolChoice, told: ToolChoice, rules: list[str]) -> None:
    target = Capabilities(choice_modes=frozenset({"auto", "any", "one"}))
    other = ToolSpec("g", "", {"type": "object"})
    sent, noted = fitted(target, tools=(TOOL, other), tool_choice=choice)
    assert (sent.tool_choice, noted) == (told, rules)
    assert (other in sent.tools) == (not choice.names)


def test_a_choice_and_a_parallel_flag_without_tools_go() -> None:
    """Row 31: they must never leak without tools."""
    sent, rules = fitted(Capabilities(traits=traits("parallel_flag")), tool_choice=ToolChoice("any", parallel=False))
    assert (sent.tool_choice, rules) == (ToolChoice(), ["tools.choice"])


def test_one_tool_of_a_name_stays() -> None:
    search = Opaque("anthropic", {"type": "web_search_20250305", "name": "f"}, "web_search_20250305")
    sent, rules = fitted(Capabilities(), tools=(TOOL, ToolSpec("f", "again", {}), search))
    assert (sent.tools, rules) == ((TOOL,), ["tools.duplicate", "tools.duplicate"])
    sent, rules = fitted(
        Capabilities(traits=traits("shared_names")), tools=(TOOL, ToolSpec("f", "again", {}), search, search)
    )
    assert (sent.tools, rules) == ((TOOL, search, search), ["tools.duplicate"])


def test_a_fifth_cache_mark_is_dropped_the_oldest_of_the_messages_first() -> None:
    """Case 23."""
    mark = Cache("1h")
    old = Message("user", (ToolResult("t", (Text("x", mark),), cache=mark), Text("y", mark)))
    sent, rules = fitted(
        Capabilities(cache_marks=4),
        system=(Text("s", mark),),
        tools=(ToolSpec("f", "", {}, mark),),
        messages=(old, Message("user", (Text("z", mark),))),
    )
    assert rules == ["cache.marks"]
    assert sent.system[0].cache == mark
    assert sent.tools[0].cache == mark
    result, text = sent.messages[0].blocks
    assert isinstance(result, ToolResult)
    assert (result.content[0].cache, result.cache, text) == (None, None, Text("y", mark))
    assert sent.messages[1].blocks == (Text("z", mark),)


def test_strict_flags_and_user_ids_go_where_there_is_no_place() -> None:
    sent, rules = fitted(Capabilities(), tools=(ToolSpec("f", "", {}, strict=True),), user="u")
    assert (sent.tools, sent.user, rules) == ((ToolSpec("f", "", {}),), "", ["tools.strict", "user.dropped"])
