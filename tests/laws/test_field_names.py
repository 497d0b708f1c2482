"""The name of an unknown field does not matter: all names are treated alike, in every dialect and direction.

Extras keep names of their own beside those of the wire (`~word` for a spelling, `../name` and `inner.name` for places),
and a client or an upstream may call a field so too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.dialects.base import Dialect
from dragoman.model.assemble import assemble_reply
from dragoman.model.conversation import Conversation
from dragoman.model.events import Failed
from dragoman.model.filter import Note
from dragoman.response_stream import ResponseTranslator, translate_whole_reply
from dragoman.translate import plan
from dragoman.wire import jsonio
from tests.stories.story import Story, fixed_environment, read_frames, stories, wire_bytes

Outcome: TypeAlias = tuple[Any, Iterable[Note]]

PLAIN = "oddly"
ODD = ("~oddly", "../oddly", "./oddly", "./../~oddly", "text.oddly", "image_url.detail", "custom.format")
WORDS = ("~role", "~message", "~older", "~field", "~type", "~namespace", "~minted", "~json", "~beside", "~schema")

every_dialect = pytest.mark.parametrize("name", registry.names())
every_story = pytest.mark.parametrize("story", stories(), ids=str)
NO_ARGUMENTS = {"type": "object", "properties": {}}
PIXEL = "data:image/png;base64,aGk="

# Fields that no story contains.
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "openai",
        {
            "model": "m",
            "max_tokens": 5,
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "One."}]},
                {"role": "developer", "content": "Two."},
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL, "detail": "auto"}}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "Hm.",
                    "reasoning_details": [{"type": "reasoning.summary", "summary": "Hm.", "index": 0}],
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                        {"id": "b", "type": "custom", "custom": {"name": "g", "input": "x"}},
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]},
                {"role": "tool", "tool_call_id": "b", "content": "2"},
                {
                    "role": "assistant",
                    "content": "So.",
                    "thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": "s"}],
                },
                {"role": "user", "content": "Go on."},
            ],
            "tools": [
                {"type": "function", "function": {"name": "f", "parameters": NO_ARGUMENTS}},
                {"type": "custom", "custom": {"name": "g", "format": {"type": "text"}}},
            ],
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        },
    ),
    (
        "openai",
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "1"},
            ],
            "functions": [{"name": "f", "parameters": NO_ARGUMENTS}],
        },
    ),
    (
        "responses",
        {
            "model": "m",
            "instructions": "Be brief.",
            "input": [
                {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Two."}]},
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "hi"},
                        {"type": "input_image", "image_url": PIXEL, "detail": "low"},
                    ],
                },
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
                {"type": "function_call", "call_id": "a", "name": "f", "namespace": "n", "arguments": "{}"},
                {"type": "custom_tool_call", "call_id": "b", "name": "g", "input": "x"},
                {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
                {"type": "function_call_output", "call_id": "a", "output": "1"},
                {"type": "custom_tool_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
                {"type": "local_shell_call_output", "id": "c", "output": "3"},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]},
                {"type": "message", "role": "user", "content": "Go on."},
            ],
            "tools": [
                {
                    "type": "namespace",
                    "name": "n",
                    "description": "N.",
                    "tools": [{"type": "function", "name": "f", "parameters": NO_ARGUMENTS}],
                },
                {"type": "custom", "name": "g", "format": {"type": "text"}},
            ],
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        },
    ),
    (
        "kiro",
        {
            "conversationState": {
                "history": [
                    {"userInputMessage": {"content": "a", "modelId": "m"}},
                    {
                        "assistantResponseMessage": {
                            "content": "b",
                            "toolUses": [{"toolUseId": "t", "name": "f", "input": {}}],
                        }
                    },
                ],
                "currentMessage": {
                    "userInputMessage": {
                        "content": "hi",
                        "modelId": "m",
                        "images": [{"format": "png", "source": {"bytes": "aGk="}}],
                        "userInputMessageContext": {
                            "tools": [
                                {
                                    "toolSpecification": {
                                        "name": "f",
                                        "description": "d",
                                        "inputSchema": {"json": {"type": "object"}},
                                    }
                                }
                            ],
                            "toolResults": [{"toolUseId": "t", "content": "x", "status": "success"}],
                        },
                    }
                },
            }
        },
    ),
]


def planted(value: Any, name: str, count: Any = None) -> Any:
    """The value with a field of this name in each of its objects; every one says something else."""
    count = count or itertools.count()
    if isinstance(value, list):
        return [planted(each, name, count) for each in value]
    if isinstance(value, dict):
        return {**{key: planted(each, name, count) for key, each in value.items()}, name: f"planted {next(count)}"}
    return value


def called_plainly(value: Any, odd: str) -> Any:
    """The value with each of its fields of this name under the plain one."""
    if isinstance(value, list):
        return [called_plainly(each, odd) for each in value]
    if isinstance(value, dict):
        return {PLAIN if key == odd else key: called_plainly(each, odd) for key, each in value.items()}
    return value.replace(odd, PLAIN) if isinstance(value, str) else value  # JSON in a string: arguments, results


def outcome(work: Callable[[str], Outcome], odd: str) -> Any:
    try:
        value, notes = work(odd)
    except dragoman.DragomanError as error:
        return type(error), str(error).replace(odd, PLAIN)
    return called_plainly(value, odd), [str(note).replace(odd, PLAIN) for note in notes]


def fare_alike(work: Callable[[str], Outcome], names: Iterable[str] = ODD) -> None:
    plain = outcome(work, PLAIN)
    for odd in names:
        assert outcome(work, odd) == plain, odd


def other_than(name: str) -> str:
    return "openai" if name == "anthropic" else "anthropic"


def body_of(story: Story, name: str) -> Any:
    return jsonio.decode((story.folder / f"{name}.request.json").read_bytes())


def conversation_in(dialect: Dialect, body: Any) -> Conversation:
    return dialect.codec.parse_request(dialect.binding.unwrap(body))


def requests_fare_alike(body: Any, name: str, names: Iterable[str]) -> None:
    for target in (name, other_than(name)):

        def sent(field: str, target: str = target) -> Outcome:
            translation = dragoman.translate_request(planted(body, field), source=name, target=target)
            return translation.body, translation.notes

        fare_alike(sent, names)


@every_dialect
@every_story
def test_no_name_of_an_unknown_field_of_a_request_is_special(story: Story, name: str) -> None:
    requests_fare_alike(body_of(story, name), name, ODD)


@pytest.mark.parametrize(("name", "body"), BODIES, ids=[name for name, _ in BODIES])
def test_an_unknown_field_named_with_one_of_our_own_words_is_not_special(name: str, body: dict[str, Any]) -> None:
    requests_fare_alike(body, name, (*ODD, *WORDS))


@pytest.mark.parametrize(("name", "body"), BODIES, ids=[name for name, _ in BODIES])
def test_an_unknown_field_is_neither_lost_nor_noted_in_its_own_dialect(name: str, body: dict[str, Any]) -> None:
    for odd in (*ODD, *WORDS):
        translation = dragoman.translate_request({**body, odd: "planted"}, source=name, target=name)
        assert translation.body[odd] == "planted"
        assert odd not in str(translation.notes)


@pytest.mark.parametrize(("name", "body"), BODIES, ids=[name for name, _ in BODIES])
def test_unknown_fields_survive_a_round_trip_at_every_place(name: str, body: dict[str, Any]) -> None:
    planted_body = planted(body, PLAIN)
    translation = dragoman.translate_request(planted_body, source=name, target=name)
    planted_words = re.findall(r"planted \d+", str(planted_body))
    assert planted_words and sorted(planted_words) == sorted(re.findall(r"planted \d+", str(translation.body)))


# --- replies


def with_planted(dialect: Dialect, text: bytes, field: str) -> bytes:
    """A story's stream with a field in every object of every frame."""
    lines = []
    for line in text.splitlines(keepends=True):
        head, brace, _ = line.partition(b"{")
        if brace and head.rstrip().endswith(b":"):
            data = jsonio.encode(planted(jsonio.decode(line[len(head) :]), field))
            lines.append(head + data + line[len(line.rstrip(b"\r\n")) :])
        else:
            lines.append(line)
    return wire_bytes(dialect, b"".join(lines))


@every_dialect
@every_story
def test_no_name_of_an_unknown_field_of_a_stream_is_special(story: Story, name: str) -> None:
    dialect, elsewhere = registry.get(name), registry.get(other_than(name))
    text = (story.folder / f"{name}.stream").read_bytes()
    conversation, other_conversation = (
        conversation_in(dialect, body_of(story, name)),
        conversation_in(elsewhere, body_of(story, elsewhere.name)),
    )

    def written_anew(field: str) -> Outcome:
        encoder = dialect.codec.encoder(conversation, fixed_environment())
        output = read_frames(dialect, conversation, with_planted(dialect, text, field))
        return [_json(payload.data) for decoded in output for payload in encoder.feed(decoded.events)], ()

    def translated(field: str) -> Outcome:
        response = ResponseTranslator(plan(elsewhere, dialect, other_conversation), fixed_environment())
        raw = response.feed(with_planted(dialect, text, field)) + response.close()
        return raw.decode(errors="replace"), response.notes

    fare_alike(written_anew)
    fare_alike(translated)


@every_dialect
@every_story
def test_no_name_of_an_unknown_field_of_a_whole_reply_is_special(story: Story, name: str) -> None:
    dialect, elsewhere = registry.get(name), registry.get(other_than(name))
    conversation, other_conversation = (
        conversation_in(dialect, body_of(story, name)),
        conversation_in(elsewhere, body_of(story, elsewhere.name)),
    )
    text = wire_bytes(dialect, (story.folder / f"{name}.stream").read_bytes())
    events = tuple(event for decoded in read_frames(dialect, conversation, text) for event in decoded.events)
    if "streams_only" in dialect.codec.capabilities(conversation.model).traits or any(
        isinstance(event, Failed) for event in events
    ):
        return  # there is no such reply
    body = jsonio.decode(dialect.codec.render_reply(assemble_reply(events), conversation, fixed_environment()))
    for client, question in ((dialect, conversation), (elsewhere, other_conversation)):

        def translate(field: str, client: Dialect = client, question: Conversation = question) -> Outcome:
            raw, notes = translate_whole_reply(
                plan(client, dialect, question), jsonio.encode(planted(body, field)), fixed_environment()
            )
            return jsonio.decode(raw), notes

        fare_alike(translate)


def _json(data: bytes) -> Any:
    try:
        return jsonio.decode(data)
    except jsonio.JsonError:
        return data
