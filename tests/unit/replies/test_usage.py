"""Usage sums are right for every service, never negative, never counted twice, and possible."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.dialects import get
from dragoman.model.conversation import MAX_TOKEN_COUNT, Usage
from tests.unit.replies.translated import CLIENTS, decode_stream, make_request, sse, translate_reply, translate_stream

CHAT: dict[str, Any] = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
}


def chat_usage(usage: Any, **more: Any) -> Usage | None:
    body = json.dumps({**CHAT, "usage": usage, **more}).encode()
    return get("openai").codec.parse_reply(body, make_request()).usage


def counts(usage: Usage | None) -> tuple[int, int, int, int, int]:
    assert usage is not None
    return usage.input, usage.output, usage.cache_read, usage.cache_write, usage.reasoning


def totals(prompt: int, completion: int, total: int | None = None) -> dict[str, Any]:
    total = prompt + completion if total is None else total
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        # OpenRouter: cached and written tokens overlap
        (
            {**totals(2168, 9), "prompt_tokens_details": {"cached_tokens": 2154, "cache_write_tokens": 2154}},
            (0, 9, 2154, 14, 0),
        ),
        (
            {**totals(100, 9), "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 20}},
            (20, 9, 60, 20, 0),
        ),
        # xAI counts reasoning in the total only
        ({**totals(307, 26, 560), "completion_tokens_details": {"reasoning_tokens": 227}}, (307, 253, 0, 0, 227)),
        ({**totals(12, 1, 303), "completion_tokens_details": {"reasoning_tokens": 290}}, (12, 291, 0, 0, 290)),
        ({**totals(12, 291), "completion_tokens_details": {"reasoning_tokens": 290}}, (12, 291, 0, 0, 290)),
        # DeepSeek, Moonshot, Mistral, DashScope, SGLang
        ({**totals(50, 5), "prompt_cache_hit_tokens": 32, "prompt_cache_miss_tokens": 18}, (18, 5, 32, 0, 0)),
        ({**totals(50, 5), "cached_tokens": 32}, (18, 5, 32, 0, 0)),
        ({**totals(50, 5), "num_cached_tokens": 32}, (18, 5, 32, 0, 0)),
        ({**totals(50, 5), "prompt_tokens_details": {"cache_creation_input_tokens": 40}}, (10, 5, 0, 40, 0)),
        ({**totals(50, 5), "reasoning_tokens": 3}, (50, 5, 0, 0, 3)),
        # Perplexity's deep research counts thoughts that are not part of its reply
        ({**totals(33, 7163), "reasoning_tokens": 193126, "citation_tokens": 20016}, (33, 7163, 0, 0, 0)),
        # a proxy that does not count cached tokens in its prompt: the total shows it
        ({**totals(14, 10, 2178), "prompt_tokens_details": {"cached_tokens": 2154}}, (14, 10, 2154, 0, 0)),
        # impossible figures
        ({"prompt_tokens": -5, "completion_tokens": 1e308}, (0, MAX_TOKEN_COUNT, 0, 0, 0)),
        ({"prompt_tokens": "12", "completion_tokens": 3.0}, (12, 3, 0, 0, 0)),
        ({"prompt_tokens": True, "completion_tokens": None, "prompt_tokens_details": "x"}, (0, 0, 0, 0, 0)),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}}, (0, 0, 5, 0, 0)),
    ],
)
def test_chat_usage(usage: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert counts(chat_usage(usage)) == expected
    frames = ({"id": "c1", "choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]},)
    assert counts(decode_stream("openai", sse(*frames, {"id": "c1", "choices": [], "usage": usage})).usage) == expected


def test_usage_of_groq_and_moonshot_stands_elsewhere() -> None:
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    text = {"id": "c1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}}]}
    groq = sse(text, {"id": "c1", "choices": [end], "x_groq": {"id": "req_1", "usage": totals(7, 2)}})
    moonshot = sse(text, {"id": "c1", "choices": [{**end, "usage": totals(7, 2)}]})
    for data in (groq, moonshot):
        assert counts(decode_stream("openai", data).usage) == (7, 2, 0, 0, 0)
    assert counts(chat_usage(None, x_groq={"usage": totals(7, 2)})) == (7, 2, 0, 0, 0)
    choice = {**CHAT["choices"][0], "usage": totals(7, 2)}
    assert counts(chat_usage(None, choices=[choice])) == (7, 2, 0, 0, 0)


def test_usage_in_every_chunk_counts_once() -> None:
    """Perplexity reports its usage in every chunk; the last one counts."""
    frames = [
        {"id": "c1", "choices": [{"index": 0, "delta": {"content": "a"}}], "usage": totals(7, n)} for n in (1, 2, 3)
    ]
    end = {"id": "c1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": totals(7, 3)}
    assert counts(decode_stream("openai", sse(*frames, end)).usage) == (7, 3, 0, 0, 0)


@pytest.mark.parametrize("usage", [[], "", "none", 0, None, False])
def test_what_is_no_usage_is_none(usage: Any) -> None:
    assert chat_usage(usage) is None


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {
                "promptTokenCount": 123,
                "candidatesTokenCount": 7,
                "thoughtsTokenCount": 5,
                "cachedContentTokenCount": 100,
            },
            (23, 12, 100, 0, 5),
        ),
        # some report the thoughts among the candidates' tokens: the total shows it
        (
            {"promptTokenCount": 10, "candidatesTokenCount": 12, "thoughtsTokenCount": 5, "totalTokenCount": 22},
            (10, 12, 0, 0, 5),
        ),
        ({"promptTokenCount": 10, "toolUsePromptTokenCount": 5, "candidatesTokenCount": 1}, (15, 1, 0, 0, 0)),
        ({"promptTokenCount": 10, "cachedContentTokenCount": 99, "candidatesTokenCount": -1}, (0, 0, 10, 0, 0)),
        ({"promptTokenCount": 1e308, "candidatesTokenCount": "x"}, (MAX_TOKEN_COUNT, 0, 0, 0, 0)),
    ],
)
def test_gemini_usage(usage: dict[str, Any], expected: tuple[int, ...]) -> None:
    body = {"candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}], "usageMetadata": usage}
    assert counts(get("gemini").codec.parse_reply(json.dumps(body).encode(), make_request()).usage) == expected


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"input_tokens": 5, "output_tokens": 1e308}, (5, MAX_TOKEN_COUNT, 0, 0, 0)),
        (
            {"input_tokens": 5, "output_tokens": 2, "cache_creation": {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}},
            (5, 2, 0, 7, 0),
        ),
        ({"input_tokens": -1, "output_tokens": "7", "cache_read_input_tokens": False}, (0, 7, 0, 0, 0)),
    ],
)  # fmt: skip
def test_anthropic_usage(usage: dict[str, Any], expected: tuple[int, ...]) -> None:
    body = {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "usage": usage}
    assert counts(get("anthropic").codec.parse_reply(json.dumps(body).encode(), make_request()).usage) == expected


def test_a_later_report_of_zeros_does_not_erase_a_side() -> None:
    frames = (
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"input_tokens": 0, "output_tokens": 3}},
        {"type": "message_stop"},
    )  # fmt: skip
    data = b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in frames)
    assert counts(decode_stream("anthropic", data).usage) == (9, 3, 4, 0, 0)


# --- the law

figures: st.SearchStrategy[Any] = st.one_of(
    st.integers(-10, 5000),
    st.sampled_from([1e308, -1e308, 2.5, "17", "many", True, None, [], {}, 10**40, 0]),
)
_CHAT_NAMES = ("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "prompt_cache_hit_tokens")
_DETAILS = ("cached_tokens", "cache_write_tokens", "cache_creation_input_tokens", "reasoning_tokens")


def objects(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, figures))


chats = st.builds(
    lambda plain, before, after: {**plain, "prompt_tokens_details": before, "completion_tokens_details": after},
    objects(*_CHAT_NAMES, "num_cached_tokens", "reasoning_tokens"),
    st.one_of(figures, objects(*_DETAILS)),
    st.one_of(figures, objects(*_DETAILS)),
)
_GEMINI = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount",
           "toolUsePromptTokenCount", "totalTokenCount")  # fmt: skip
_ANTHROPIC = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_BEDROCK = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens", "totalTokens")
reports = st.one_of(
    st.tuples(st.just("openai"), chats),
    st.tuples(st.just("gemini"), objects(*_GEMINI)),
    st.tuples(st.just("anthropic"), objects(*_ANTHROPIC, "cache_creation")),
    st.tuples(st.just("bedrock"), objects(*_BEDROCK)),
    st.tuples(
        st.just("responses"),
        st.builds(
            lambda plain, before, after: {**plain, "input_tokens_details": before, "output_tokens_details": after},
            objects("input_tokens", "output_tokens", "total_tokens"),
            st.one_of(figures, objects(*_DETAILS)),
            st.one_of(figures, objects(*_DETAILS)),
        ),
    ),
)


def body_of(upstream: str, usage: dict[str, Any]) -> dict[str, Any]:
    match upstream:
        case "openai":
            return {**CHAT, "usage": usage}
        case "gemini":
            return {
                "candidates": [{"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}],
                "usageMetadata": usage,
            }
        case "anthropic":
            text = {"type": "text", "text": "x"}
            return {
                "type": "message",
                "role": "assistant",
                "content": [text],
                "stop_reason": "end_turn",
                "usage": usage,
            }
        case "bedrock":
            message = {"role": "assistant", "content": [{"text": "x"}]}
            return {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}
        case _:
            text = {"type": "output_text", "text": "x"}
            item = {"type": "message", "role": "assistant", "content": [text]}
            return {"id": "resp_1", "object": "response", "status": "completed", "output": [item], "usage": usage}


@given(reports)
def test_law_usage_is_possible_and_each_dialect_adds_up(report: tuple[str, dict[str, Any]]) -> None:
    upstream, usage = report
    raw = json.dumps(body_of(upstream, usage)).encode()
    read = get(upstream).codec.parse_reply(raw, make_request()).usage
    assert read is not None
    input_tokens = read.input + read.cache_read + read.cache_write
    assert min(counts(read)) >= 0
    assert input_tokens <= MAX_TOKEN_COUNT and read.output <= MAX_TOKEN_COUNT and read.reasoning <= read.output
    for client in CLIENTS:
        if client == "kiro":
            continue  # Kiro reports a percentage
        reported, _ = reported_usage(upstream, client, raw)
        assert reported == (input_tokens, read.output), client


def reported_usage(upstream: str, client: str, raw: bytes) -> tuple[tuple[int, int], Any]:
    """Return all input and all output tokens that a client gets, by the rules of its dialect."""
    body, _ = translate_reply(upstream, client, json.loads(raw))
    usage = body.get("usage") or body.get("usageMetadata")
    match client:
        case "openai":
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
            assert usage["completion_tokens_details"]["reasoning_tokens"] <= usage["completion_tokens"]
            return (usage["prompt_tokens"], usage["completion_tokens"]), usage
        case "responses":
            assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
            return (usage["input_tokens"], usage["output_tokens"]), usage
        case "anthropic":
            caches = usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
            return (usage["input_tokens"] + caches, usage["output_tokens"]), usage
        case "bedrock":
            caches = usage.get("cacheReadInputTokens", 0) + usage.get("cacheWriteInputTokens", 0)
            assert usage["totalTokens"] == usage["inputTokens"] + caches + usage["outputTokens"]
            return (usage["inputTokens"] + caches, usage["outputTokens"]), usage
        case _:
            input_tokens = usage["promptTokenCount"] + usage.get("toolUsePromptTokenCount", 0)
            output = usage["candidatesTokenCount"] + usage.get("thoughtsTokenCount", 0)
            assert usage["totalTokenCount"] == input_tokens + output
            return (input_tokens, output), usage


# --- citations reach every client whose dialect has a field for them, whole and streamed

URL, TITLE = "https://example.org/fox", "Foxes"
TEXT = "Foxes are red."
NOTED = {"type": "url_citation", "url_citation": {"url": URL, "title": TITLE, "start_index": 0, "end_index": 5}}
HEAD: dict[str, Any] = {"id": "c1", "object": "chat.completion", "created": 1, "model": "m"}
CHUNK: dict[str, Any] = {**HEAD, "object": "chat.completion.chunk"}
GROUNDED = {"groundingChunks": [{"web": {"uri": URL, "title": TITLE}}], "webSearchQueries": ["foxes"]}


def chat(**message: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": TEXT, **message}, "finish_reason": "stop"}


def chunks(*choices: dict[str, Any], **fields: Any) -> bytes:
    return sse(*({**CHUNK, "choices": [{"index": 0, **choice}], **fields} for choice in choices))


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
def test_citations_of_whole_replies(title: str, client: str) -> None:
    upstream, body = WHOLE[title]
    translated, notes = translate_reply(upstream, client, body)
    found = json.dumps(translated)
    assert TEXT in found and found.count(URL) == (2 if (title, client) == ("perplexity", "openai") else 1), found
    assert TITLE in found
    assert not [rule for rule in notes if rule.startswith("foreign.")]
    assert ("citation.mapped" in notes) == (client != upstream)


@pytest.mark.parametrize("client", CITING)
@pytest.mark.parametrize("title", STREAMS)
def test_citations_of_streams(title: str, client: str) -> None:
    upstream, data = STREAMS[title]
    translated = translate_stream(upstream, client, data)
    assert URL.encode() in translated and TITLE.encode() in translated


def test_a_mapped_citation_has_all_fields_that_sdks_want() -> None:
    translated, _ = translate_reply("openai", "anthropic", WHOLE["chat"][1])
    assert translated["content"][0]["citations"] == [
        {
            "type": "web_search_result_location",
            "url": URL,
            "title": TITLE,
            "cited_text": "",
            "encrypted_index": "dragoman1.",
        }
    ]
    translated, _ = translate_reply("anthropic", "openai", WHOLE["anthropic"][1])
    inner = {"start_index": 0, "end_index": 0, "url": URL, "title": TITLE, "content": "red"}
    assert translated["choices"][0]["message"]["annotations"] == [{"type": "url_citation", "url_citation": inner}]
    translated, _ = translate_reply("openai", "responses", WHOLE["chat"][1])
    assert translated["output"][0]["content"][0]["annotations"] == [ANNOTATION]
    translated, _ = translate_reply("openai", "gemini", WHOLE["chat"][1])
    assert translated["candidates"][0]["groundingMetadata"]["groundingChunks"] == [
        {"web": {"uri": URL, "title": TITLE}}
    ]


def test_annotations_stay_unchanged_in_the_same_dialect() -> None:
    translated, notes = translate_reply("openai", "openai", WHOLE["chat"][1])
    assert translated["choices"][0]["message"]["annotations"] == [NOTED] and not notes


def test_what_has_no_counterpart_is_noted() -> None:
    document = {"type": "char_location", "cited_text": "red", "document_index": 0, "document_title": "d"}
    text = {"type": "text", "text": TEXT, "citations": [document]}
    _, notes = translate_reply("anthropic", "openai", {**MESSAGE, "content": [text], "stop_reason": "end_turn"})
    assert notes == ["foreign.citation"]
    _, notes = translate_reply("openai", "kiro", WHOLE["chat"][1])
    assert "foreign.citation" in notes


def test_thinking_in_tags_and_sources_beside_the_choices() -> None:
    """Perplexity's sources come with the first chunk; they are sent at the end of the text, not inside the thought."""
    data = chunks(
        {"delta": {"content": "<think>hm</think>Foxes"}}, {"delta": {}, "finish_reason": "stop"}, citations=[URL]
    )
    translated = translate_stream("openai", "anthropic", data)
    assert translated.index(b"Foxes") < translated.index(URL.encode())
