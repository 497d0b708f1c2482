"""Large histories go short ways: readers without Fields, filters that need not look, bytes that are not written anew.
Each gives what the long way gives.
"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

import dragoman.dialects as registry
from dragoman.dialects.anthropic import blocks as anthropic_blocks
from dragoman.dialects.anthropic import request as anthropic_request
from dragoman.dialects.base import Call
from dragoman.dialects.openai import messages as openai_messages
from dragoman.errors import DragomanError
from dragoman.filters import PairTools
from dragoman.filters import pair_tools as pairing
from dragoman.model.blocks import Text, ToolCall
from dragoman.model.conversation import Conversation, Message
from dragoman.model.notes import Notes
from dragoman.translate import plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from tests import strategies

NAMES = registry.names()
words = st.text(max_size=5)
ids = st.sampled_from(["a", "b", ""])


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


blocks = st.one_of(
    words,
    objects(type=st.just("text"), text=words),
    objects(type=st.just("tool_use"), id=ids, name=ids, input=st.dictionaries(words, words | st.integers())),
    objects(type=st.just("tool_result"), tool_use_id=ids, content=words),
)
roles = st.sampled_from(["user", "assistant", "system", "User", "tool", "developer", None])
messages = st.lists(objects(role=roles, content=words | st.none() | st.lists(blocks, max_size=3)), max_size=4)


def read(dialect: str, body: Any) -> str:
    """What is read, places included, or how it is refused."""
    try:
        return repr(registry.get(dialect).codec.parse_request(Call("generate", "m", False, {"messages": body})))
    except DragomanError as error:
        return repr((type(error), str(error), error.fault))


@given(messages)
def test_plain_messages_are_read_as_all_others(body: Any) -> None:
    short = read("anthropic", body)
    with patch.object(anthropic_request, "_PLAIN_ROLES", {}), patch.object(anthropic_blocks, "_plain", lambda *_: None):
        assert short == read("anthropic", body)


@given(messages)
def test_plain_chat_messages_are_read_as_all_others(body: Any) -> None:
    short = read("openai", body)
    with patch.object(openai_messages, "_PLAIN_ROLES", {}):
        assert short == read("openai", body)


@given(strategies.conversations())
def test_what_is_called_paired_needs_no_pairing(asked: Conversation) -> None:
    short, short_notes = PairTools().forward(asked, notes := Notes())[0], notes
    with patch.object(pairing, "_paired", lambda _: False):
        long, long_notes = PairTools().forward(asked, notes := Notes())[0], notes
    assert (short, list(short_notes)) == (long, list(long_notes))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(asked=strategies.conversations())
def test_the_head_of_a_call_is_that_of_the_whole_call(name: str, asked: Conversation) -> None:
    dialect = registry.get(name)
    try:
        made = plan(dialect, dialect, asked)
    except DragomanError:
        return
    whole, head = dialect.binding.wrap(made.call()), dialect.binding.wrap(made.head())
    assert structs.replace(head, body=whole.body) == whole


def test_kinds_are_those_of_the_messages_that_are_there() -> None:
    asked = Conversation("m", (Message("user", (Text("a"),)),))
    assert asked.kinds == {Text}
    assert structs.replace(asked, messages=(Message("assistant", (ToolCall("a", "b"),)),)).kinds == {ToolCall}


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
    assert jsonio.doubled(data, jsonio.decode(data)) == jsonio.doubled(data) == ("x" if "x" in around else None)
