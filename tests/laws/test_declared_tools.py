"""Every tool that a client declares, wherever it does, is in the request; a longer conversation moves none of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

import dragoman.dialects as registry
from dragoman.errors import Unrepresentable
from dragoman.filters.rename_tools import rename
from dragoman.model.conversation import ToolSpec
from dragoman.translate import plan

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
TOOL_NAMES = ("Agent", "Bash", "mcp.x/y", "Read", "z" * 65)
CHANGED = ("inline", "Later", "added.tool")
ANTHROPIC_TARGETS = [name for name in registry.names() if registry.get(name).codec.family != "anthropic"]
RESPONSES_TARGETS = [name for name in registry.names() if name != "responses"]


class Case:
    """A conversation in steps: the body after each of them, and the tools that must be sent then."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.bodies: list[dict[str, Any]] = []
        self.wanted: list[set[str]] = []

    def __repr__(self) -> str:
        return f"{self.source}: {self.bodies[-1]} wants {self.wanted[-1]}"


def _spec(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"It is {name}.", "input_schema": SCHEMA}


def _function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": SCHEMA, **more}


@st.composite
def anthropic_cases(draw: DrawFn) -> Case:
    """Clients that list deferred tools from the start, or only once they are found, in alphabetical place."""
    case, search = Case("anthropic"), draw(st.sampled_from(("client", "server", "")))
    lists_all = search != "client" or draw(st.booleans())
    deferred = set(draw(st.lists(st.sampled_from(TOOL_NAMES), unique=True)))
    searches = {"client": [_spec("ToolSearch")], "server": [{"type": "tool_search_tool_bm25", "name": "s"}], "": []}
    messages: list[Any] = [{"role": "user", "content": "go"}]
    found: set[str] = set()
    declared: set[str] = set()
    for number in range(draw(st.integers(1, 4))):
        step = draw(st.sampled_from(("talk", "add", "remove", *(["find"] if search == "client" else []))))
        if step == "find":
            shown = draw(st.lists(st.sampled_from(TOOL_NAMES), min_size=1, max_size=3, unique=True))
            found |= set(shown)
            messages += _search_step(f"t{number}", shown)
        elif step == "talk":
            messages += [{"role": "assistant", "content": "said"}, {"role": "user", "content": "more"}]
        else:
            name = draw(st.sampled_from(CHANGED))
            messages.append({"role": "system", "content": [_change(step, name)]})
            declared |= {name} if step == "add" else set()
        listed = [name for name in TOOL_NAMES if name not in deferred or lists_all or name in found]
        tools = [{**_spec(name), **({"defer_loading": True} if name in deferred else {})} for name in listed]
        case.bodies.append(
            {"model": "m", "max_tokens": 99, "messages": list(messages), "tools": [*searches[search], *tools]}
        )
        waiting = deferred - found if search == "client" else set()
        case.wanted.append((set(listed) | declared) - waiting)
    return case


def _search_step(call_id: str, shown: list[str]) -> list[Any]:
    references = [{"type": "tool_reference", "tool_name": name} for name in shown]
    return [
        {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": "ToolSearch", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": references}]},
    ]


def _change(step: str, name: str) -> dict[str, Any]:
    if step == "add":
        return {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": _spec(name)}}
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


@st.composite
def responses_cases(draw: DrawFn) -> Case:
    case, execution = Case("responses"), draw(st.sampled_from(("client", "server")))
    listed = draw(st.lists(st.sampled_from(("flat", "b", "c__d")), unique=True))
    deferred = set(draw(st.lists(st.sampled_from(("flat", "b", "c__d")), unique=True)))
    tools = [_function(name, **({"defer_loading": True} if name in deferred else {})) for name in listed]
    search = {"type": "tool_search", "execution": execution, "parameters": SCHEMA}
    items: list[Any] = [{"role": "user", "content": "go"}]
    seen: set[str] = set()
    for number in range(draw(st.integers(1, 4))):
        name, space = draw(st.sampled_from(("flat", "get", "put"))), draw(st.sampled_from(("", "crm")))
        tool: Any = _function(name)
        if space:
            tool = {"type": "namespace", "name": space, "description": "d", "tools": [tool]}
        if draw(st.booleans()):
            about = {"execution": execution, "call_id": f"s{number}" if execution == "client" else None}
            items += [
                {"type": "tool_search_call", **about, "arguments": {}},
                {"type": "tool_search_output", **about, "tools": [tool]},
            ]
        else:
            items.append({"type": "additional_tools", "role": "developer", "tools": [tool]})
        items.append({"role": "user", "content": "more"})
        seen.add(f"{space}__{name}" if space else name)
        case.bodies.append({"model": "m", "input": list(items), "tools": [*tools, search]})
        waiting = deferred - seen if execution == "client" else set()
        case.wanted.append((set(listed) | seen) - waiting)
    return case


def sent_names(case: Case, target: str) -> list[list[str]]:
    """The names of the tools in the rendered request of each step."""
    client, upstream = registry.get(case.source), registry.get(target)
    sent: list[list[str]] = []
    for body in case.bodies:
        made = plan(client, upstream, client.codec.parse_request(client.binding.unwrap(body)))
        rendered = upstream.codec.parse_request(made.call())
        sent.append([tool.name for tool in rendered.tools if isinstance(tool, ToolSpec)])
    return sent


def holds(case: Case, target: str) -> None:
    names = registry.get(target).codec.capabilities("m").names
    sent = sent_names(case, target)
    for each, wanted in zip(sent, case.wanted, strict=True):
        assert {rename(name, names) for name in wanted} <= set(each)
        assert len(each) == len(set(each))
    for earlier, later in pairwise(sent):
        assert later[: len(earlier)] == earlier, "a longer conversation moved a tool"


@given(case=anthropic_cases())
def test_l3_every_tool_that_an_anthropic_client_declares_is_sent_and_keeps_its_place(case: Case) -> None:
    for target in ANTHROPIC_TARGETS:
        note(target)
        holds(case, target)


@given(case=responses_cases())
def test_l3_every_tool_that_a_responses_client_declares_is_sent_and_keeps_its_place(case: Case) -> None:
    for target in RESPONSES_TARGETS:
        note(target)
        holds(case, target)


@given(case=anthropic_cases() | responses_cases())
def test_l3_a_dialect_writes_its_own_tools_as_they_came(case: Case) -> None:
    own = registry.get(case.source)
    for body in case.bodies:
        call = own.codec.render_request(own.codec.parse_request(own.binding.unwrap(body)))
        assert isinstance(call.body, dict) and call.body["tools"] == body["tools"]


@pytest.mark.parametrize("target", ANTHROPIC_TARGETS)
@given(text=st.text(min_size=1).filter(str.strip), before=st.booleans())
def test_l4_a_summary_reaches_every_target_or_the_request_is_refused(target: str, text: str, before: bool) -> None:
    client, upstream = registry.get("anthropic"), registry.get(target)
    block = {"type": "compaction", "content": text}
    user = {"role": "user", "content": "hi"}
    messages: list[Any] = [*([user] if before else []), {"role": "assistant", "content": [block]}, user]
    asked = client.codec.parse_request(client.binding.unwrap({"model": "m", "max_tokens": 9, "messages": messages}))
    try:
        call = plan(client, upstream, asked).call()
    except Unrepresentable:
        return
    read = upstream.codec.parse_request(call)
    words = [block.text for message in read.messages for block in message.blocks if hasattr(block, "text")]
    assert any(text.strip() in word for word in words)
