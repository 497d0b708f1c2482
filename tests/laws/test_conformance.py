"""The laws of dragoman.conformance for every registered dialect, on values that Hypothesis generates."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

import dragoman.dialects as registry
from dragoman.conformance import laws, run
from dragoman.conformance.laws import EMPTY_REQUEST, fixed_environment
from dragoman.dialects.base import Dialect
from dragoman.errors import Unrepresentable
from dragoman.filters.calls import fit_alphabet
from dragoman.model.conversation import Conversation, ToolSpec
from dragoman.model.events import BlockKeys, Events
from dragoman.response_stream import ResponseFilters, ResponseTranslator
from dragoman.translate import plan
from dragoman.wire import jsonio
from tests import strategies
from tests.hypothesis_profile import IS_LONG_RUN
from tests.stories.story import Story, stories

NAMES = registry.names()
every_dialect = pytest.mark.parametrize("name", NAMES)
any_dialect = st.sampled_from(NAMES).map(registry.get)  # the other end: it matters less, so hypothesis picks it


@every_dialect
def test_the_kit_passes_on_its_own_samples(name: str) -> None:
    tried, failures = run(registry.get(name))
    assert tried > 200
    assert failures == []


# One conversation is tried on every target and law: to make one up takes longer than all of them together.


@given(client=any_dialect, conversation=strategies.conversations())
def test_request_laws(client: Dialect, conversation: Conversation) -> None:
    for name in NAMES:
        for law in laws.REQUEST_LAWS:
            note(f"{law.__name__} of {name}")
            law(client, registry.get(name), conversation)


@given(client=any_dialect, pair=strategies.continued_conversations())
def test_prefix_is_stable(client: Dialect, pair: tuple[Conversation, Conversation]) -> None:
    earlier, later = pair
    more = later.messages[len(earlier.messages) :]
    if later.messages[: len(earlier.messages)] != earlier.messages:
        return
    for name in NAMES:
        note(name)
        laws.prefix_is_stable(client, registry.get(name), earlier, more)


@given(upstream=any_dialect, events=strategies.events(choices=1))
def test_nothing_is_lost_in_a_stream(upstream: Dialect, events: Events) -> None:
    for name in NAMES:
        note(name)
        laws.nothing_is_lost_in_a_stream(registry.get(name), upstream, events)


@given(client=any_dialect, events=strategies.events(choices=1), data=st.data())
def test_cuts_do_not_matter(client: Dialect, events: Events, data: st.DataObject) -> None:
    for name in NAMES:
        note(name)
        _cuts_do_not_matter(registry.get(name), client, events, data)


def _cuts_do_not_matter(source: Dialect, client: Dialect, events: Events, data: st.DataObject) -> None:
    filters = ResponseFilters(plan(source, source, EMPTY_REQUEST), BlockKeys.after(events))
    stream = laws.encode_events(source, filters.feed(events))
    if stream and data.draw(st.booleans(), "broken"):
        at = data.draw(st.integers(0, len(stream) - 1))
        stream = data.draw(st.sampled_from([stream[:at], stream[:at] + b"\xff" + stream[at + 1 :]]))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    laws.cuts_do_not_matter(plan(client, source, EMPTY_REQUEST), stream, cuts)


@given(events=strategies.events(choices=1))
def test_equal_steps_pass_as_they_came(events: Events) -> None:
    for name in NAMES:
        note(name)
        laws.unchanged_frames_pass_verbatim(registry.get(name), events)


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_our_errors(data: bytes) -> None:
    for name in NAMES:
        note(name)
        laws.only_own_errors(registry.get(name), data)


@given(body=strategies.json_values)
def test_arbitrary_json_raises_only_our_errors(body: object) -> None:
    for name in NAMES:
        note(name)
        laws.only_own_errors(registry.get(name), jsonio.encode(body))


@pytest.mark.parametrize("story", stories(), ids=str)
def test_every_single_cut_of_every_story_gives_the_same_response(story: Story) -> None:
    """The two stories that are longer than 3,000 bytes are cut at every ninth one; `make laws-long` tries all."""
    planned = plan(registry.get(story.client), registry.get(story.upstream), EMPTY_REQUEST)
    stream = story.stream
    whole = ResponseTranslator(planned, fixed_environment())
    expected = whole.feed(stream) + whole.close()
    for at in range(1, len(stream), 1 if len(stream) < 3000 or IS_LONG_RUN else 9):
        response = ResponseTranslator(planned, fixed_environment())
        assert response.feed(stream[:at]) + response.feed(stream[at:]) + response.close() == expected, at
    laws.cuts_do_not_matter(planned, stream, range(len(stream)))


@pytest.mark.parametrize("story", stories(), ids=str)
def test_the_own_body_of_every_story_returns(story: Story) -> None:
    laws.own_body_round_trips(registry.get(story.client), jsonio.decode(story.request))


# --- Every tool that a client declares, wherever it does, is in the request; a longer conversation moves none of them

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
        planned = plan(client, upstream, client.codec.parse_request(client.binding.unwrap(body)))
        rendered = upstream.codec.parse_request(planned.call())
        sent.append([tool.name for tool in rendered.tools if isinstance(tool, ToolSpec)])
    return sent


def holds(case: Case, target: str) -> None:
    names = registry.get(target).codec.capabilities("m").names
    sent = sent_names(case, target)
    for each, wanted in zip(sent, case.wanted, strict=True):
        assert {fit_alphabet(name, names) for name in wanted} <= set(each)
        assert len(each) == len(set(each))
    for earlier, later in pairwise(sent):
        assert later[: len(earlier)] == earlier, "a longer conversation moved a tool"


@given(case=anthropic_cases())
def test_every_tool_that_an_anthropic_client_declares_is_sent_and_keeps_its_place(case: Case) -> None:
    for target in ANTHROPIC_TARGETS:
        note(target)
        holds(case, target)


@given(case=responses_cases())
def test_every_tool_that_a_responses_client_declares_is_sent_and_keeps_its_place(case: Case) -> None:
    for target in RESPONSES_TARGETS:
        note(target)
        holds(case, target)


@given(case=anthropic_cases() | responses_cases())
def test_a_dialect_writes_its_own_tools_as_they_came(case: Case) -> None:
    own = registry.get(case.source)
    for body in case.bodies:
        call = own.codec.render_request(own.codec.parse_request(own.binding.unwrap(body)))
        assert isinstance(call.body, dict) and call.body["tools"] == body["tools"]


@pytest.mark.parametrize("target", ANTHROPIC_TARGETS)
@given(text=st.text(min_size=1).filter(str.strip), before=st.booleans())
def test_a_summary_reaches_every_target_or_the_request_is_refused(target: str, text: str, before: bool) -> None:
    client, upstream = registry.get("anthropic"), registry.get(target)
    block = {"type": "compaction", "content": text}
    user = {"role": "user", "content": "hi"}
    messages: list[Any] = [*([user] if before else []), {"role": "assistant", "content": [block]}, user]
    conversation = client.codec.parse_request(
        client.binding.unwrap({"model": "m", "max_tokens": 9, "messages": messages})
    )
    try:
        call = plan(client, upstream, conversation).call()
    except Unrepresentable:
        return
    read = upstream.codec.parse_request(call)
    words = [block.text for message in read.messages for block in message.blocks if hasattr(block, "text")]
    assert any(text.strip() in word for word in words)
