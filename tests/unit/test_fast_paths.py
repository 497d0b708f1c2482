"""Large histories go short ways: readers without Fields, filters that need not look, bytes that are not written anew.
Each gives what the long way gives.
"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from msgspec import structs

import dragoman.dialects as registry
from bench.request_bodies import request_body
from dragoman.dialects.anthropic import request as anthropic_request
from dragoman.dialects.base import ApiRequest
from dragoman.dialects.kiro.quirks import request as kiro_surrogates
from dragoman.dialects.kiro.request import estimate_input_tokens, estimate_message_tokens, estimate_tokens
from dragoman.dialects.openai import messages as openai_messages
from dragoman.errors import DragomanError
from dragoman.filters import PairTools
from dragoman.filters import calls as renaming
from dragoman.filters import results as pairing
from dragoman.gateway.limits import RequestLimits, check_tree
from dragoman.model.blocks import CacheBreakpoint, Location, Reasoning, Signature, Text, ToolResult
from dragoman.model.conversation import Conversation, Message, to_canonical
from dragoman.model.filter import Facts, Notes, inventory
from dragoman.translate import plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests import strategies

NAMES = registry.names()
words = st.text(max_size=5)
ids = st.sampled_from(["a", "b", ""])


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


def marked(kind: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A block, mostly without a cache marker."""
    marks = st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}, {"type": "x"}, None])
    return st.fixed_dictionaries({"type": st.just(kind), **fields}, optional={"cache_control": marks})


text_blocks = marked("text", text=words | st.just("\ud800"))
blocks = st.one_of(
    words,
    text_blocks,
    marked("tool_use", id=ids, name=ids, input=st.dictionaries(words, words | st.integers() | st.just("\ud800"))),
    marked("tool_result", tool_use_id=ids, content=words | st.lists(text_blocks, max_size=2)),
    marked("tool_result", tool_use_id=ids, content=words, is_error=st.sampled_from([True, False, None, 1])),
    marked("thinking", thinking=words, signature=words),
)
roles = st.sampled_from(["user", "assistant", "system", "User", "tool", "developer", None])
messages = st.lists(objects(role=roles, content=words | st.none() | st.lists(blocks, max_size=3)), max_size=4)


def read(dialect: str, body: Any) -> str:
    """Return what is read, places included, or the error."""
    try:
        return repr(registry.get(dialect).codec.parse_request(ApiRequest("generate", "m", False, {"messages": body})))
    except DragomanError as error:
        return repr((type(error), str(error), error.fault))


@given(messages)
def test_messages_of_the_documented_shape_are_read_as_all_others(body: Any) -> None:
    short = read("anthropic", body)
    with patch.object(anthropic_request, "read_typed_message", lambda *_: None):
        assert short == read("anthropic", body)


USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {"c": [{}]}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}]}
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
request_fields = st.dictionaries(
    st.sampled_from(["system", "max_tokens", "stream", "tools", "x"]), words | st.just(3) | st.just([WEB_SEARCH])
)


@given(st.sampled_from([[], [USED]]), messages, request_fields)
@example([USED], [RESULT], {"system": "s"})
@example([USED], [RESULT], {"tools": [WEB_SEARCH]})
@example([], [{"role": "user", "content": "a"}], {"max_tokens": 3})
def test_an_exact_request_says_what_is_read_of_a_matched_one(used: Any, body: Any, fields: dict[str, Any]) -> None:
    data = json.dumps({"model": "m", "messages": [*used, *body], **fields}).encode()
    request, dialect = HttpRequest("POST", "/v1/messages", body=data), registry.get("anthropic")
    assert dialect.typed_reader is not None
    exact = dialect.typed_reader(request)
    if exact is None:
        return
    call = dialect.binding.match(request)
    assert call is not None
    assert repr(exact.conversation) == repr(dialect.codec.parse_request(call))
    assert structs.replace(exact.call, body=None) == structs.replace(call, body=None)
    depths = [check_tree(each.body, len(data), RequestLimits()).depth for each in (exact.call, call)]
    assert max(depths[0], 8) == max(depths[1], 8)  # the least limit


def test_the_bench_asks_in_the_documented_shape() -> None:
    """Otherwise the test above would test nothing."""
    request = HttpRequest("POST", "/v1/messages", body=request_body("anthropic", "pairs", "m", stream=True))
    exact = registry.get("anthropic").typed_reader
    assert exact is not None and exact(request) is not None


calls = objects(
    id=ids, type=st.sampled_from(["function", "custom", None]), function=objects(name=ids, arguments=words | st.none())
)
chat = st.lists(
    objects(role=roles, content=words | st.none() | st.lists(words | objects(type=st.just("text"), text=words)))
    | objects(role=roles, content=words | st.none(), tool_call_id=ids | st.none())
    | objects(role=roles, content=words | st.none(), tool_calls=st.none() | st.lists(calls, max_size=2))
    | objects(role=roles, name=words, tool_calls=st.lists(calls, max_size=1))
    | objects(role=roles, content=words, refusal=st.none() | words, annotations=st.none(), name=st.none()),
    max_size=4,
)


@settings(max_examples=300)
@given(chat)
def test_chat_messages_of_the_documented_shape_are_read_as_all_others(body: Any) -> None:
    short = read("openai", body)
    with patch.object(openai_messages, "read_typed_message", lambda *_: None):
        assert short == read("openai", body)


def paired_needs_no_pairing(conversation: Conversation) -> None:
    short, short_notes = PairTools().forward(conversation, notes := Notes(), Facts())[0], notes
    with patch.object(pairing, "_is_paired", lambda *_: False):
        long, long_notes = PairTools().forward(conversation, notes := Notes(), Facts())[0], notes
    assert (short, list(short_notes)) == (long, list(long_notes))


# Checks that let a filter skip its work, each with the value that makes the filter look at everything.
SHORT_CUTS: list[tuple[Any, str, Any]] = [
    (pairing, "_is_paired", False),
    (renaming, "_allows", False),
    (kiro_surrogates, "_are_whole", False),
    (openai_messages, "_plain_text", None),
]


def plan_outcome(upstream: str, conversation: Conversation) -> Any:
    """Return the translated request and its notes, or the error. The order of notes does not matter."""
    try:
        planned = plan(registry.get("anthropic"), registry.get(upstream), conversation)
        sent = registry.get(upstream).binding.wrap(planned.call())
        return planned.translated, sent.body, sorted(map(str, planned.notes))
    except DragomanError as error:
        return type(error), str(error)


@settings(max_examples=60)
@given(conversation=strategies.conversations(), upstream=st.sampled_from(["kiro", "anthropic", "openai"]))
def test_a_filter_that_need_not_look_would_have_changed_nothing(upstream: str, conversation: Conversation) -> None:
    short = plan_outcome(upstream, conversation)
    for where, name, response in SHORT_CUTS:
        note(name)
        with patch.object(where, name, lambda *_, response=response: response):
            assert plan_outcome(upstream, structs.replace(conversation)) == short


@settings(max_examples=50)
@given(conversation=strategies.conversations(), upstream=st.sampled_from(["kiro", "anthropic", "openai", "gemini"]))
def test_what_is_known_of_a_plan_is_so(upstream: str, conversation: Conversation) -> None:
    try:
        sent = plan(registry.get("anthropic"), registry.get(upstream), conversation).translated
    except DragomanError:
        return
    assert to_canonical(sent) == sent


@given(strategies.conversations())
def test_what_is_known_of_a_conversation_is_so(conversation: Conversation) -> None:
    paired_needs_no_pairing(conversation)
    inventory_has_every_block_once(conversation)
    conversation_is_as_long_as_its_parts(conversation)
    for name in NAMES:
        note(name)
        head_of_a_call_is_that_of_the_whole_call(name, conversation)


def inventory_has_every_block_once(conversation: Conversation) -> None:
    contents = inventory(conversation.messages)
    listed = [*contents.texts, *contents.calls, *contents.results, *contents.thoughts, *contents.others]
    blocks = [block for message in conversation.messages for block in message.blocks]
    assert sorted(map(id, listed)) == sorted(map(id, blocks))
    assert contents.kinds == {type(block) for block in blocks}
    assert contents.parts == [part for block in blocks if isinstance(block, ToolResult) for part in block.content]


def conversation_is_as_long_as_its_parts(conversation: Conversation) -> None:
    around = estimate_input_tokens(structs.replace(conversation, messages=(), system=()))
    system = sum(estimate_tokens(text.text) for text in conversation.system)
    assert estimate_input_tokens(conversation) == around + system + sum(
        map(estimate_message_tokens, conversation.messages)
    )


def test_a_place_is_named_by_its_steps() -> None:
    message = Location(Location("messages"), 3)
    assert [
        place.path for place in (message, Location(Location(message, "content"), 0), Location(), Location("system"))
    ] == [
        "messages[3]",
        "messages[3].content[0]",
        "",
        "system",
    ]
    assert repr(Location(message, "content", is_absent=True)) == "Location('messages[3].content', is_absent=True)"


def test_a_thought_with_a_lone_surrogate_becomes_text_without_it() -> None:
    thought = Reasoning("half \ud800", "kiro", Signature("kiro", "signed"))
    conversation = Conversation(
        "m", (Message("user", (Text("a"),)), Message("assistant", (thought,)), Message("user", (Text("b"),)))
    )
    planned = plan(registry.get("kiro"), registry.get("kiro"), conversation)
    assert b"\\ud800" not in registry.get("kiro").binding.wrap(planned.call()).body
    assert {"kiro.text.surrogate", "kiro.thinking.wrapped"} <= {note.rule for note in planned.notes}


def head_of_a_call_is_that_of_the_whole_call(name: str, conversation: Conversation) -> None:
    dialect = registry.get(name)
    try:
        planned = plan(dialect, dialect, conversation)
    except DragomanError:
        return
    whole, head = dialect.binding.wrap(planned.call()), dialect.binding.wrap(planned.request_head())
    assert structs.replace(head, body=whole.body) == whole


def test_facts_are_those_of_the_messages_that_are_there() -> None:
    facts, conversation = Facts(), Conversation("m", (Message("user", (Text("a"),)),))
    assert facts.inventory(conversation).kinds == {Text} and facts.plain(conversation)
    changed = structs.replace(
        conversation, messages=(Message("assistant", (Text("a", cache=CacheBreakpoint()), Reasoning("b"))),)
    )
    assert facts.inventory(changed).kinds == {Text, Reasoning} and not facts.plain(changed)
    assert facts.plain(conversation)


def test_a_copy_of_a_request_does_not_keep_what_was_read_of_its_body() -> None:
    request = HttpRequest("POST", "/", body=b'{"a":1}')
    assert request.document is request.document
    assert structs.replace(request).document is not request.document
    assert structs.replace(request) == request


texts = st.text(alphabet='a:\\"{}, é', max_size=4)
trees = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@given(trees, st.booleans(), st.booleans(), st.sampled_from(["{}", '[{{"x":{},"x":1}}]', '{{"x":{},"\\u0078":":"}}']))
def test_a_name_that_stands_twice_is_found_with_the_tree_at_hand(
    tree: Any, escaped: bool, spaced: bool, around: str
) -> None:
    text = json.dumps(tree, ensure_ascii=False, separators=(", ", " : ") if spaced else (",", ":"))
    if escaped:  # every other colon of a string; the text stays the same JSON
        text = json.dumps(tree).replace("a:", "a\\u003A")
    data = around.format(text).encode()
    assert (
        jsonio.find_duplicate_name(data, jsonio.decode(data))
        == jsonio.find_duplicate_name(data)
        == ("x" if "x" in around else None)
    )
