"""Whatever a tool result is made of, every string of it reaches the upstream, or a note names what was left out.

Parts are nested at random: those of every dialect and of MCP, unknown ones and malformed ones, in all dialect pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import dragoman.dialects as registry
from dragoman.model.filter import Note
from dragoman.translate import plan
from dragoman.wire import jsonio

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
MARK = "@"  # stands for a string that is searched for; each gets its own number
NAMES = ("anthropic", "openai", "responses", "bedrock", "gemini", "kiro")
NO_OUTPUT = "(no output)"
Body = dict[str, Any]


# --- parts

mark = st.just(MARK)


def part(kind: str, **fields: SearchStrategy[Any]) -> SearchStrategy[Body]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


def _containers(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    some = st.lists(inner, max_size=3)
    content = some | inner
    odd = st.dictionaries(st.sampled_from(("x_field", "x_other", "title", "value", "id")), inner, max_size=2)
    return st.one_of(
        some,
        part("text", text=content),
        part("text", content=content),
        part("output_text", text=content),
        part("search_result", source=mark, title=mark, content=some),
        part("tool_result", tool_use_id=mark, content=content),
        part("document", title=mark, source=part("content", content=some)),
        part("json", json=inner),
        part("resource", resource=st.fixed_dictionaries({"uri": mark, "text": content})),
        st.tuples(part("x_unknown", content=content), odd).map(lambda pair: {**pair[1], **pair[0]}),
        st.tuples(part("x_unknown"), odd).map(lambda pair: {**pair[1], **pair[0]}),
        odd,
        st.fixed_dictionaries({"content": content}, optional={"x_field": mark}),
        st.fixed_dictionaries({"text": content}, optional={"x_field": mark}),
        st.fixed_dictionaries({"json": inner}),
        st.fixed_dictionaries({"searchResult": st.fixed_dictionaries({"source": mark, "content": some})}),
        st.fixed_dictionaries({"x_member": st.fixed_dictionaries({"text": inner})}),
    )


LEAVES: SearchStrategy[Any] = st.one_of(
    mark,
    st.sampled_from((None, 7, 1.5, True, False, "", " ", [], {})),
    part("text", text=mark),
    part("text"),
    part("input_text", text=mark),
    part("image", source=st.just({"type": "base64", "media_type": "image/png", "data": PIXEL})),
    part("image", source=st.fixed_dictionaries({"data": mark})),
    part("image", source=part("url", url=st.just("https://example.org/@"))),
    part("image", data=st.just(PIXEL), mimeType=st.just("image/png"), x_field=mark),
    part("audio", data=st.just("UklGRg=="), mimeType=st.just("audio/wav")),
    part("document", title=mark, source=part("text", media_type=st.just("text/plain"), data=mark)),
    part("document", source=st.just({"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="})),
    part("document", text=mark),
    part("resource_link", uri=mark, name=mark),
    part("resource", resource=st.just({"uri": "file:///x", "mimeType": "application/zip", "blob": "JVBERg=="})),
    part("image_url", image_url=st.just({"url": f"data:image/png;base64,{PIXEL}"})),
    part("image_url", image_url=mark),
    part("input_image", image_url=mark),
    part("input_file", filename=mark),
    part("refusal", refusal=mark),
    part("tool_reference", tool_name=mark),
    part("x_unknown", x_field=mark),
    st.just({"image": {"format": "png", "source": {"bytes": PIXEL}}}),
    st.just({"image": {"format": "png", "source": {"bytes": MARK}}}),
    st.just({"inlineData": {"mimeType": "image/png", "data": PIXEL}}),
    st.just({"document": {"format": "txt", "name": "notes", "source": {"content": [{"text": MARK}]}}}),
)
PARTS = st.lists(st.recursive(LEAVES, _containers, max_leaves=5), max_size=4)


def numbered(value: Any, counter: Iterator[int]) -> Any:
    """The value with a number in the place of each mark."""
    if isinstance(value, str):
        return value.replace(MARK, f"MARK{next(counter):03d}END") if MARK in value else value
    if isinstance(value, list):
        return [numbered(each, counter) for each in value]
    if isinstance(value, dict):
        return {name: numbered(each, counter) for name, each in value.items()}
    return value


def marks(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every mark in a value, with its path."""
    if isinstance(value, str) and "MARK" in value:
        yield value[value.index("MARK") : value.index("END") + 3], path
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from marks(each, f"{path}[{index}]")
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from marks(each, f"{path}.{name}")


# --- a request of each dialect around a result


def _anthropic(content: Any) -> Body:
    called = {"type": "tool_use", "id": "call_1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": content}
    return {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [called]},
            {"role": "user", "content": [result]},
        ],
    }


def _openai(content: Any) -> Body:
    called = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    return {
        "model": "m",
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "tool_call_id": "call_1", "content": content},
        ],
    }


def _responses(content: Any) -> Body:
    return {
        "model": "m",
        "input": [
            {"role": "user", "content": "go"},
            {"type": "function_call", "call_id": "call_1", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": content},
        ],
    }


def _bedrock(content: Any) -> Body:
    return {
        "modelId": "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "messages": [
            {"role": "user", "content": [{"text": "go"}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "call_1", "name": "read", "input": {}}}]},
            {"role": "user", "content": [{"toolResult": {"toolUseId": "call_1", "content": content}}]},
        ],
    }


def _gemini(content: Any) -> Body:
    response = {"name": "read", "response": {"output": content}, "parts": content}
    return {
        "model": "models/gemini-3-pro-preview",
        "contents": [
            {"role": "user", "parts": [{"text": "go"}]},
            {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": response}]},
        ],
    }


def _kiro(content: Any) -> Body:
    used = {"toolUseId": "call_1", "name": "read", "input": {}}
    result = {"toolUseId": "call_1", "content": content, "status": "success"}
    message = {"content": "go on", "modelId": "claude-sonnet-4.5", "userInputMessageContext": {"toolResults": [result]}}
    return {
        "conversationState": {
            "conversationId": "c",
            "history": [
                {"userInputMessage": {"content": "go", "modelId": "claude-sonnet-4.5"}},
                {"assistantResponseMessage": {"content": "ok", "toolUses": [used]}},
            ],
            "currentMessage": {"userInputMessage": message},
        }
    }


ASK: dict[str, tuple[Callable[[Any], Body], str]] = {  # and where the parts stand
    "anthropic": (_anthropic, "messages[2].content[0].content"),
    "openai": (_openai, "messages[2].content"),
    "responses": (_responses, "input[2].output"),
    "bedrock": (_bedrock, "messages[2].content[0].toolResult.content"),
    "gemini": (_gemini, "contents[2].parts[0].functionResponse.parts"),
    "kiro": (
        _kiro,
        "conversationState.currentMessage.userInputMessage.userInputMessageContext.toolResults[0].content",
    ),
}


def translated(source: str, target: str, content: Any) -> tuple[str, tuple[Note, ...]]:
    """The body that is sent, as text, and the notes."""
    client, upstream = registry.get(source), registry.get(target)
    conversation = client.codec.parse_request(client.binding.unwrap(ASK[source][0](content)))
    planned = plan(client, upstream, conversation, model="gemini-3-pro-preview" if target == "gemini" else None)
    return jsonio.encode(planned.call().body).decode(), planned.notes


def names(note: Note, path: str, root: str) -> bool:
    """Whether a note on a part says that what stands at this path in it was left out: by its place, or by its name."""
    if not path.startswith(note.at) or "[" not in note.at.removeprefix(root):
        return False
    return note.action == "dropped" or path.rpartition(".")[2] in note.detail


@given(content=PARTS)
def test_a_result_keeps_every_string_or_a_note_names_it(content: list[Any]) -> None:
    content = numbered(content, iter(range(1000)))
    for source in NAMES:
        for target in NAMES:
            note(f"{source} to {target}")
            _keeps_every_string(source, target, content)


def _keeps_every_string(source: str, target: str, content: list[Any]) -> None:
    body, notes = translated(source, target, content)
    root = ASK[source][1]
    for found, path in marks(content, root):
        assert found in body or any(names(note, path, root) for note in notes), (path, body, notes)
    if any(marks(content, "")):
        assert NO_OUTPUT not in body


OWN: dict[str, list[Any]] = {  # parts that a dialect can carry, among them one of an unknown type
    "anthropic": [
        {"type": "text", "text": "a"},
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]},
        {"type": "document", "title": "t", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
        {"type": "x_unknown", "x_field": ["a", {"b": 1}]},
    ],
    "openai": [{"type": "text", "text": "a"}, {"type": "x_unknown", "content": ["a"], "id": "b"}],
    "responses": [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"},
        {"type": "x_unknown", "text": "a"},
    ],
    "bedrock": [
        {"text": "a"},
        {"json": {"a": 1}},
        {"json": "a"},
        {"searchResult": {"source": "s", "title": "t", "content": [{"text": "a"}]}},
        {"image": {"format": "png", "source": {"bytes": PIXEL}}},
        {"x_member": {"a": 1}},
    ],
    "gemini": [{"inlineData": {"mimeType": "image/png", "data": PIXEL}}, {"x_member": {"a": 1}}],
    "kiro": [{"json": {"a": 1}}],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_dialect_gets_its_own_parts_back_as_they_came(name: str) -> None:
    body, _ = translated(name, name, OWN[name])
    assert jsonio.encode(OWN[name]).decode() in body


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", ["anthropic", "openai"])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "MARK"}]},
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "MARK"}]},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "MARK"}},
        {"type": "resource", "resource": {"uri": "file:///x", "text": "MARK"}},
        {"type": "json", "json": {"a": "MARK"}},
        {"type": "output_text", "text": "MARK"},
        {"type": "input_text", "text": "MARK"},
        {"type": "text", "content": "MARK"},
        {"type": "x_unknown", "content": "MARK"},
        {"type": "x_unknown", "x_field": "MARK"},
    ],
    ids=lambda part: f"{part['type']}-{[*part][-1]}",
)
def test_rows_of_the_findings(part: Body, source: str, target: str) -> None:
    body, notes = translated(source, target, [part])
    assert "MARK" in body
    assert NO_OUTPUT not in body
    others = ("foreign.field", "kiro.max_tokens")  # not of the result's text
    assert not [note for note in notes if note.action == "dropped" and note.rule not in others]


@pytest.mark.parametrize("source", ["anthropic", "openai"])
@pytest.mark.parametrize("target", NAMES)
def test_a_text_part_without_text_is_empty(source: str, target: str) -> None:
    body, _ = translated(source, target, [{"type": "text"}, {"type": "text", "text": "MARK"}])
    assert "MARK" in body
    assert '\\"type\\"' not in body  # its JSON as text
