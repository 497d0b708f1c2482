"""L34: what an answer cites reaches every client whose dialect has a place for it, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.answers.reading import sse, streamed, whole

URL, TITLE = "https://example.org/fox", "Foxes"
TEXT = "Foxes are red."
NOTED = {"type": "url_citation", "url_citation": {"url": URL, "title": TITLE, "start_index": 0, "end_index": 5}}
HEAD: dict[str, Any] = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m"}
CHUNK: dict[str, Any] = {**HEAD, "object": "chat.completion.chunk"}
GROUNDED = {"groundingChunks": [{"web": {"uri": URL, "title": TITLE}}], "webSearchQueries": ["foxes"]}


def chat(**message: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": TEXT, **message}, "finish_reason": "stop"}


def chunks(*choices: dict[str, Any], **beside: Any) -> bytes:
    return sse(*({**CHUNK, "choices": [{"index": 0, **choice}], **beside} for choice in choices))


def events(*frames: dict[str, Any]) -> bytes:
    return b"".join(f"event: {frame['type']}\ndata: {json.dumps(frame)}\n\n".encode() for frame in frames)


LOCATION = {
    "type": "web_search_result_location",
    "url": URL,
    "title": TITLE,
    "cited_text": "red",
    "encrypted_index": "e",
}
ANNOTATION = {"type": "url_citation", "url": URL, "title": TITLE, "start_index": 0, "end_index": 5}
MESSAGE: dict[str, Any] = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}

WHOLE: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("openai", {**HEAD, "choices": [chat(annotations=[NOTED])]}),
    "perplexity": (
        "openai",
        {**HEAD, "choices": [chat()], "citations": [URL], "search_results": [{"title": TITLE, "url": URL}]},
    ),
    "anthropic": (
        "anthropic",
        {**MESSAGE, "content": [{"type": "text", "text": TEXT, "citations": [LOCATION]}], "stop_reason": "end_turn"},
    ),
    "responses": (
        "responses",
        {
            "id": "resp_1",
            "object": "response",
            "status": "completed",
            "output": [
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": TEXT, "annotations": [ANNOTATION]}],
                }
            ],
        },
    ),
    "gemini": (
        "gemini",
        {
            "candidates": [
                {"content": {"parts": [{"text": TEXT}]}, "finishReason": "STOP", "groundingMetadata": GROUNDED}
            ]
        },
    ),
    "bedrock": (
        "bedrock",
        {
            "output": {
                "message": {
                    "role": "assistant",
                    "content": [
                        {
                            "citationsContent": {
                                "content": [{"text": TEXT}],
                                "citations": [{"title": TITLE, "location": {"web": {"url": URL}}}],
                            }
                        }
                    ],
                }
            },
            "stopReason": "end_turn",
            "usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
        },
    ),
}
STREAMS: dict[str, tuple[str, bytes]] = {
    "chat": (
        "openai",
        chunks({"delta": {"content": TEXT}}, {"delta": {"annotations": [NOTED]}}, {"delta": {}, "finish_reason": "stop"}),
    ),
    "perplexity": (
        "openai",
        chunks(
            {"delta": {"content": "Foxes "}},
            {"delta": {"content": "are red."}},
            {"delta": {}, "finish_reason": "stop"},
            citations=[URL],
            search_results=[{"title": TITLE, "url": URL}],
        ),
    ),
    "anthropic": (
        "anthropic",
        events(
            {"type": "message_start", "message": MESSAGE},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": LOCATION}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ),
    ),
    "gemini": (
        "gemini",
        sse(
            {"candidates": [{"content": {"parts": [{"text": TEXT}]}}]},
            {"candidates": [{"content": {"parts": [{"text": ""}]}, "finishReason": "STOP", "groundingMetadata": GROUNDED}]},
            done=False,
        ),
    ),
}  # fmt: skip
CITING = ("openai", "anthropic", "responses", "gemini", "bedrock")


@pytest.mark.parametrize("client", CITING)
@pytest.mark.parametrize("title", WHOLE)
def test_l34_citations_of_whole_answers(title: str, client: str) -> None:
    upstream, body = WHOLE[title]
    told, notes = whole(upstream, client, body)
    found = json.dumps(told)
    assert TEXT in found and found.count(URL) == (2 if (title, client) == ("perplexity", "openai") else 1), found
    assert TITLE in found
    assert not [rule for rule in notes if rule.startswith("foreign.")]
    assert ("citation.mapped" in notes) == (client != upstream)


@pytest.mark.parametrize("client", CITING)
@pytest.mark.parametrize("title", STREAMS)
def test_l34_citations_of_streams(title: str, client: str) -> None:
    upstream, data = STREAMS[title]
    told = streamed(upstream, client, data)
    assert URL.encode() in told and TITLE.encode() in told


def test_l34_a_mapped_citation_has_all_fields_that_sdks_want() -> None:
    told, _ = whole("openai", "anthropic", WHOLE["chat"][1])
    assert told["content"][0]["citations"] == [
        {
            "type": "web_search_result_location",
            "url": URL,
            "title": TITLE,
            "cited_text": "",
            "encrypted_index": "dragoman1.",
        }
    ]
    told, _ = whole("anthropic", "openai", WHOLE["anthropic"][1])
    inner = {"start_index": 0, "end_index": 0, "url": URL, "title": TITLE, "content": "red"}
    assert told["choices"][0]["message"]["annotations"] == [{"type": "url_citation", "url_citation": inner}]
    told, _ = whole("openai", "responses", WHOLE["chat"][1])
    assert told["output"][0]["content"][0]["annotations"] == [ANNOTATION]
    told, _ = whole("openai", "gemini", WHOLE["chat"][1])
    assert told["candidates"][0]["groundingMetadata"]["groundingChunks"] == [{"web": {"uri": URL, "title": TITLE}}]


def test_l34_at_home_annotations_come_back_as_they_were() -> None:
    told, notes = whole("openai", "openai", WHOLE["chat"][1])
    assert told["choices"][0]["message"]["annotations"] == [NOTED] and not notes


def test_l34_what_has_no_counterpart_is_noted() -> None:
    document = {"type": "char_location", "cited_text": "red", "document_index": 0, "document_title": "d"}
    text = {"type": "text", "text": TEXT, "citations": [document]}
    _, notes = whole("anthropic", "openai", {**MESSAGE, "content": [text], "stop_reason": "end_turn"})
    assert notes == ["foreign.citation"]
    _, notes = whole("openai", "kiro", WHOLE["chat"][1])
    assert "foreign.citation" in notes


def test_l34_thinking_in_tags_and_sources_beside_the_choices() -> None:
    """Perplexity's sources come with the first chunk; they are told at the end of the text, not inside the thought."""
    data = chunks(
        {"delta": {"content": "<think>hm</think>Foxes"}}, {"delta": {}, "finish_reason": "stop"}, citations=[URL]
    )
    told = streamed("openai", "anthropic", data)
    assert told.index(b"Foxes") < told.index(URL.encode())
