"""The text of content parts, and the text of tools that a provider ran itself."""

from __future__ import annotations

from typing import Any

import pytest

import dragoman.dialects as registry
from dragoman import translate_request
from dragoman.model.blocks import Location, Media, Opaque
from dragoman.model.filter import Note
from dragoman.model.parts import PartText, part_text, read_any_media, read_tool_media, server_tool_text
from dragoman.translate import plan
from dragoman.wire import jsonio

Body = dict[str, Any]
LONG = "QUJD" * 200


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (None, ""),
        ("a", "a"),
        (7, "7"),
        (True, "true"),
        (["a", ["b", [None, "c"]]], "a\nb\nc"),
        ([" a ", "b"], " a b"),
        ({"type": "text"}, ""),
        ({"type": "text", "text": None}, ""),
        ({"text": ""}, ""),
        ({"type": "text", "text": "a"}, "a"),
        ({"type": "text", "text": [{"type": "text", "text": "a"}, "b"]}, "a\nb"),
        ({"type": "text", "content": "a"}, "a"),
        ({"type": "output_text", "text": "a"}, "a"),
        ({"type": "json", "json": {"text": "a", "n": 1}}, '{"text":"a","n":1}'),
        ({"type": "json", "json": "a"}, "a"),
        ({"type": "resource", "resource": {"text": "a"}}, "a"),
        ({"type": "resource", "resource": {"uri": "file:///x", "text": "a"}}, "file:///x\na"),
        ({"type": "x", "value": {"text": "a"}}, "a"),
        ({"type": "tool_result", "content": [{"type": "text", "text": "a"}]}, "a"),
        ({"type": "search_result", "source": "S", "title": "T", "content": [{"type": "text", "text": "a"}]}, "T\nS\na"),
        ({"type": "document", "title": "T", "source": {"type": "content", "content": [{"text": "a"}]}}, "T\na"),
        ({"type": "document", "source": {"type": "text", "data": "a"}}, "a"),
        ({"searchResult": {"source": "S", "title": "T", "content": [{"text": "a"}]}}, "T\nS\na"),
        ({"type": "x"}, '{"type":"x"}'),
        ({"type": "x", "content": []}, '{"type":"x","content":[]}'),
        ({"type": "x", "y": "a"}, '{"type":"x","y":"a"}'),
        ({"type": "x", "content": "a", "y": "b"}, 'a\n{"y":"b"}'),
    ],
)
def test_what_a_part_says(part: Any, text: str) -> None:
    assert part_text(part).text == text


def test_data_that_is_no_text_is_left_out_and_named() -> None:
    words = part_text({"type": "x", "content": ["a"], "y": [{"z": LONG}]})
    assert words == PartText('a\n{"y":[{"z":"[800 characters of base64 left out]"}]}', omitted=("y[0].z",))
    assert part_text(LONG).text == LONG


def test_labels_are_named() -> None:
    words = part_text({"type": "tool_result", "tool_use_id": "t", "content": {"mimeType": "text/plain", "text": "a"}})
    assert words == PartText("a", labels=("mimeType", "tool_use_id"))


@pytest.mark.parametrize("depth", [10, 900])
def test_depth_is_no_hindrance(depth: int) -> None:
    value: Any = "deep"
    for _ in range(depth):
        value = [value]
    assert part_text({"type": "x", "content": value}).text == "deep"


@pytest.mark.parametrize(
    ("part", "kind", "how"),
    [
        ({"type": "image", "data": "aGk=", "mimeType": "image/png"}, "image", "base64"),
        ({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}, "audio", "base64"),
        ({"type": "resource", "resource": {"blob": "aGk=", "mimeType": "image/png"}}, "image", "base64"),
        ({"type": "resource", "resource": {"blob": "aGk=", "mimeType": "application/pdf"}}, "document", "base64"),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
            "image",
            "base64",
        ),
        ({"type": "image", "source": {"type": "url", "url": "https://x/y"}}, "image", "url"),
        ({"type": "document", "source": {"type": "text", "data": "words"}}, "document", "text"),
        ({"type": "image", "data": "?", "mimeType": "image/png"}, None, ""),
        ({"type": "image", "source": {"data": "base64data"}}, None, ""),
        ({"type": "text", "text": "a"}, None, ""),
    ],
)
def test_media_in_the_form_of_another_protocol(part: Body, kind: str | None, how: str) -> None:
    media = read_tool_media("openai", part, Location())
    assert (media.kind, media.form) == (kind, how) if isinstance(media, Media) else kind is None


# --- tools that the provider ran

FOUND = {"type": "web_search_result", "url": "https://found", "title": "Title", "encrypted_content": "SECRET"}


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (
            "server_tool_use",
            {"name": "web_search", "input": {"query": "q"}},
            '(web_search was used with {"query":"q"})',
        ),
        ("web_search_tool_result", {"content": [FOUND]}, "(web_search gave: https://found\nTitle)"),
        (
            "web_search_tool_result",
            {"content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}},
            "(web_search gave: error_code: unavailable)",
        ),
        (
            "web_fetch_tool_result",
            {
                "content": {
                    "url": "https://page",
                    "content": {"title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
                }
            },
            "(web_fetch gave: https://page\nT\nwords)",
        ),
        (
            "bash_code_execution_tool_result",
            {"content": {"stdout": "42", "stderr": "", "return_code": 1, "content": [{"file_id": "file_1"}]}},
            "(bash_code_execution gave: 42\nreturn_code: 1\nfile_id: file_1)",
        ),
        ("mcp_tool_use", {"name": "find", "server_name": "s", "input": {}}, "(find was used with {})"),
        ("mcp_tool_result", {"content": [{"type": "text", "text": "a"}]}, "(mcp gave: a)"),
        (
            "web_search_call",
            {"id": "ws", "status": "completed", "action": {"type": "search", "query": "q", "sources": [{"url": "U"}]}},
            "(web_search was used with q\nU)",
        ),
        (
            "file_search_call",
            {"queries": ["q"], "results": [{"filename": "f.md", "text": "a"}]},
            "(file_search was used with queries: q\nfilename: f.md\na)",
        ),
        (
            "code_interpreter_call",
            {"code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]},
            "(code_interpreter was used with 1+1\nlogs: 2)",
        ),
        (
            "mcp_call",
            {"name": "find", "arguments": '{"a":1}', "output": "b", "error": None},
            '(find was used with arguments: {"a":1}\nb)',
        ),
        ("image_generation_call", {"result": LONG}, "(image_generation was used with nothing to read)"),
        ("executableCode", {"executableCode": {"code": "1+1"}}, "(executableCode was used with 1+1)"),
        (
            "codeExecutionResult",
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
            "(codeExecutionResult gave: outcome: OUTCOME_OK\n2)",
        ),
        ("server_tool_use", {"toolUse": {"name": "nova_code", "input": {"a": 1}}}, '(nova_code was used with {"a":1})'),
        ("x_widget", {"text": "a"}, None),
    ],
)
def test_the_words_for_what_a_provider_ran(kind: str, data: Any, words: str | None) -> None:
    found = server_tool_text(Opaque("x", data, kind))
    assert (found.text if found else None) == words


ANTHROPIC: Body = {
    "model": "m",
    "max_tokens": 9,
    "messages": [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "QUERY"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [FOUND]},
                {"type": "text", "text": "So."},
            ],
        },
        {"role": "user", "content": "next"},
    ],
}
RESPONSES: Body = {
    "model": "m",
    "input": [
        {"role": "user", "content": "go"},
        {
            "type": "web_search_call",
            "id": "ws_1",
            "status": "completed",
            "action": {"type": "search", "query": "QUERY", "sources": [{"type": "url", "url": "https://found"}]},
        },
        {"role": "assistant", "content": [{"type": "output_text", "text": "So.", "annotations": []}]},
        {"role": "user", "content": "next"},
    ],
}
GEMINI: Body = {
    "model": "models/gemini-3-pro-preview",
    "contents": [
        {"role": "user", "parts": [{"text": "go"}]},
        {
            "role": "model",
            "parts": [
                {"executableCode": {"language": "PYTHON", "code": "QUERY"}},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "https://found"}},
                {"text": "So."},
            ],
        },
        {"role": "user", "parts": [{"text": "next"}]},
    ],
}
SEARCH = {"toolUseId": "s1", "name": "nova_grounding", "type": "server_tool_use", "input": {"query": "QUERY"}}
FOUND_PAGE = {"toolUseId": "s1", "type": "nova_grounding_result", "content": [{"json": {"url": "https://found"}}]}
BEDROCK: Body = {
    "modelId": "amazon.nova-pro-v1:0",
    "messages": [
        {"role": "user", "content": [{"text": "go"}]},
        {"role": "assistant", "content": [{"toolUse": SEARCH}, {"toolResult": FOUND_PAGE}, {"text": "So."}]},
        {"role": "user", "content": [{"text": "next"}]},
    ],
}


def translated(source: str, target: str, body: Body) -> tuple[str, tuple[Note, ...]]:
    client, upstream = registry.get(source), registry.get(target)
    conversation = client.codec.parse_request(client.binding.unwrap(body))
    planned = plan(client, upstream, conversation)
    return jsonio.encode(planned.call().body).decode(), planned.notes


@pytest.mark.parametrize("target", ["anthropic", "openai", "responses", "bedrock", "gemini", "kiro"])
@pytest.mark.parametrize(
    ("source", "body"),
    [("anthropic", ANTHROPIC), ("responses", RESPONSES), ("gemini", GEMINI), ("bedrock", BEDROCK)],
    ids=["anthropic", "responses", "gemini", "bedrock"],
)
def test_history_keeps_what_a_provider_found_with_its_sources(source: str, body: Body, target: str) -> None:
    sent, notes = translated(source, target, body)
    assert "QUERY" in sent
    assert "https://found" in sent
    assert ("SECRET" in sent) == (source == target == "anthropic")
    as_text = [note for note in notes if note.rule == "foreign.as_text"]
    assert bool(as_text) == (source != target)


# --- media in a tool result, in any form and at any depth

PICTURE = "iVBORw0KGgo" + "QUJD" * 200 + "A"
FILE = "JVBERi0x" + "QUJD" * 200


@pytest.mark.parametrize(
    ("part", "kind", "mime"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}, "image", "image/png"),
        ({"type": "image_url", "image_url": f"data:image/png;base64,{PICTURE}"}, "image", "image/png"),
        ({"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}, "image", "image/png"),
        ({"type": "input_image", "image_url": "https://x/y.png"}, "image", ""),
        ({"type": "input_file", "file_data": f"data:application/pdf;base64,{FILE}"}, "document", "application/pdf"),
        ({"type": "file", "file": {"file_data": f"data:application/pdf;base64,{FILE}"}}, "document", "application/pdf"),
        ({"type": "input_audio", "input_audio": {"data": FILE, "format": "wav"}}, "audio", "audio/wav"),
        ({"inlineData": {"mimeType": "image/png", "data": PICTURE}}, "image", "image/png"),
        ({"inline_data": {"mime_type": "image/png", "data": PICTURE}}, "image", "image/png"),
        ({"image": {"format": "png", "source": {"bytes": PICTURE}}}, "image", "image/png"),
        ({"document": {"format": "pdf", "name": "n", "source": {"bytes": FILE}}}, "document", "application/pdf"),
        ({"type": "media", "data": PICTURE, "mediaType": "image/png"}, "image", "image/png"),
        ({"type": "file-data", "data": FILE, "mediaType": "application/pdf"}, "document", "application/pdf"),
        ({"type": "image", "base64": PICTURE, "mime_type": "image/png"}, "image", "image/png"),
        ({"type": "image", "source_type": "base64", "data": PICTURE, "mime_type": "image/png"}, "image", "image/png"),
    ],
)
def test_media_of_every_form_is_read(part: Body, kind: str, mime: str) -> None:
    media = read_any_media("x", part, Location())
    assert media is not None and (media.kind, media.mime) == (kind, mime)
    nested: Body = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}, part]}
    words = part_text(nested)
    assert (words.text, words.omitted) == ("a", ())
    assert [(each.kind, each.at.path) for each in words.media] == [(kind, "content[1]")]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "MARK"}},
        {"type": "image_url", "image_url": 7},
        {"type": "file", "file": {"file_id": "f"}},
        {"inlineData": {"mimeType": "image/png", "data": "?"}},
        {"image": {"format": "png", "source": {"bytes": "?"}}},
        {"document": {"format": "x", "source": {"bytes": FILE}}},
        {"type": "media", "data": PICTURE},
        {"type": "image", "url": "https://x/y.png"},
        {},
    ],
)
def test_what_is_no_media_of_any_form_is_not_read(part: Body) -> None:
    assert read_any_media("x", part, Location()) is None


def body_with(source: str, part: Any) -> Body:
    if source == "openai":
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        return {
            "model": "m",
            "messages": [
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": [part]},
            ],
        }
    return {
        "model": "m",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [part]}]},
        ],
    }


@pytest.mark.parametrize("source", ["anthropic", "openai"])
@pytest.mark.parametrize("target", ["anthropic", "openai", "responses", "bedrock", "gemini", "kiro"])
def test_an_image_in_a_nested_result_reaches_the_target(source: str, target: str) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
    inner = {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "MARK"}, image]}
    translation = translate_request(body_with(source, inner), source=source, target=target, model="m")
    sent = translation.raw.decode()
    assert sent.count(PICTURE) == 1 and "MARK" in sent
    assert not [note for note in translation.notes if note.action == "dropped" and note.rule != "kiro.max_tokens"]


@pytest.mark.parametrize("target", ["anthropic", "openai", "responses", "bedrock", "gemini", "kiro"])
def test_the_name_of_an_image_is_kept_as_text(target: str) -> None:
    resource = {"uri": "file:///MARK.png", "mimeType": "image/png", "blob": PICTURE}
    translation = translate_request(
        body_with("anthropic", {"type": "resource", "resource": resource}), source="anthropic", target=target
    )
    sent = translation.raw.decode()
    assert sent.count(PICTURE) == 1 and "MARK" in sent
    assert "media.name" in [note.rule for note in translation.notes]


def test_citations_of_a_text_in_a_result_are_not_lost_without_a_note() -> None:
    part: Body = {"type": "text", "text": "a", "citations": [{"cited_text": "MARK"}]}
    translation = translate_request(body_with("openai", part), source="openai", target="responses")
    assert "messages[2].content[0].citations" in [note.at for note in translation.notes if note.action == "dropped"]
    assert part_text({"type": "x", "content": "a", "citations": {"enabled": True}}).text == "a"
    assert "MARK" in part_text({**part, "type": "x"}).text


def test_a_screenshot_in_a_computer_call_output_reaches_the_target() -> None:
    screenshot = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{PICTURE}"}
    items: list[Body] = [
        {"role": "user", "content": "go"},
        {"type": "computer_call", "call_id": "c", "id": "x", "status": "completed", "action": {"type": "screenshot"}},
        {"type": "computer_call_output", "call_id": "c", "output": screenshot},
    ]
    translation = translate_request({"model": "m", "input": items}, source="responses", target="anthropic")
    assert translation.raw.decode().count(PICTURE) == 1
    assert not [note for note in translation.notes if note.rule == "part.data"]


def test_media_in_a_block_of_an_assistant_turn_is_a_line_of_text() -> None:
    block = {"type": "x_block", "content": [{"type": "image", "data": PICTURE, "mimeType": "image/png"}]}
    messages: list[Body] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": "on"},
    ]
    body = {"model": "m", "max_tokens": 9, "messages": messages}
    translation = translate_request(body, source="anthropic", target="bedrock")
    assert PICTURE not in translation.raw.decode()
    assert "media.replaced" in [note.rule for note in translation.notes if note.action == "dropped"]
