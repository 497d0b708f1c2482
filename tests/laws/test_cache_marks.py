"""Prompt-cache marks that are sent in another dialect and are read there are the same marks.

The law: translate a request with marks to another dialect, read it there, and translate it back. Each text of the
system prompt and of user messages has the mark that it had before, with the same lifetime. It holds for the forms of
Claude, Bedrock and OpenAI, if the upstream takes marks and the longer lifetime is allowed.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import dragoman.dialects as registry
from dragoman.dialects.base import Dialect
from dragoman.model.blocks import CacheBreakpoint, Text
from dragoman.model.conversation import Conversation, Message
from dragoman.translate import configure_dialect, plan
from dragoman.wire import jsonio

FORMS: dict[str, tuple[str, dict[str, Any], str]] = {
    "anthropic": ("anthropic", {}, "claude-x"),
    "bedrock": ("bedrock", {}, "anthropic.claude-x"),
    "chat breakpoints": ("openai", {"cache_marks": "on", "cache_long": True}, "gpt-x"),
    "chat cache_control": ("openai", {"cache_control": True}, "claude-x"),
    "responses": ("responses", {"cache_marks": "on", "cache_long": True}, "gpt-x"),
}
words = st.text("abc", min_size=1, max_size=3)


def dialect_of(form: str) -> tuple[Dialect, str]:
    name, settings, model = FORMS[form]
    return configure_dialect(registry.get(name), settings), model


def sent_and_read(client: Dialect, form: str, conversation: Conversation) -> Conversation:
    """The conversation as an upstream of this form reads it."""
    upstream, model = dialect_of(form)
    request = plan(client, upstream, conversation, model=model).request()
    note(request.body.decode())
    call = upstream.binding.match(request)
    assert call is not None
    assert isinstance(jsonio.decode(request.body), dict)
    return upstream.codec.parse_request(call)


def marks(conversation: Conversation) -> list[tuple[str, str]]:
    blocks = [block for message in conversation.messages for block in message.blocks]
    return [
        (node.text, node.cache.ttl) for node in (*conversation.system, *blocks) if isinstance(node, Text) and node.cache
    ]


@st.composite
def marked_conversations(draw: st.DrawFn, form: str) -> Conversation:
    """Texts with at most four marks, none longer than one before it, of the lifetimes of this form."""
    short, long = ("30m", "12h") if form in ("responses", "chat breakpoints") else ("5m", "1h")
    count = draw(st.integers(1, 6))
    marked = sorted(draw(st.sets(st.integers(0, 2 * count), max_size=4)))
    longs = draw(st.integers(0, len(marked)))
    ttls: dict[int, Any] = {at: long if number < longs else short for number, at in enumerate(marked)}
    texts = [
        Text(f"{at} {draw(words)}", CacheBreakpoint(ttls[at]) if at in ttls else None) for at in range(2 * count + 1)
    ]
    messages: list[Message] = []
    for text in texts[1:]:
        response = () if not messages else (Message("assistant", (Text("yes"),)),)
        messages += [*response, Message("user", (text,))]
    return Conversation("m", tuple(messages), system=(texts[0],), max_tokens=100)


@pytest.mark.parametrize("away", FORMS)
@pytest.mark.parametrize("home", FORMS)
@given(data=st.data())
def test_marks_come_back_as_they_went(home: str, away: str, data: st.DataObject) -> None:
    conversation = data.draw(marked_conversations(home))
    client, _ = dialect_of(home)
    there = sent_and_read(client, away, conversation)
    assert [text for text, _ in marks(there)] == [text for text, _ in marks(conversation)]
    back = sent_and_read(dialect_of(away)[0], home, there)
    assert marks(back) == marks(conversation)
