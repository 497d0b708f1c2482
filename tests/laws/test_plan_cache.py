"""A request with a cached plan is sent and answered exactly like one with a plan of its own."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

import dragoman.dialects as registry
from bench.canned_responses import canned_response
from dragoman.conformance.laws import fixed_environment
from dragoman.dialects.base import Dialect, RequestSummary
from dragoman.errors import DragomanError
from dragoman.gateway.planning import PlanCache
from dragoman.gateway.response_modes import PassThrough
from dragoman.translate import Plan, TranslationSettings, configure_dialect, plan
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

OPENAI = registry.get("openai")
STREAM = b"".join(canned_response("stream").events)
# What filters look for: raw tool tokens, thoughts, quotes of JSON, colons, marks, odd letters.
_TEXT = st.one_of(
    st.sampled_from(
        ["Hi", "a: b", "<think>x</think> y", "<|tool_calls_section_begin|>", "<tool_call>{}</tool_call>", '{"a": 1}',
         "\u00e9\U0001f600", "x" * 3000, "\\u003a", "```json\n{}\n```", "\u200b", " x "],
    ),
    st.text(min_size=1, max_size=20),
)  # fmt: skip
_FIGURES: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "max_tokens": st.integers(1, 9999),
    "max_completion_tokens": st.integers(1, 9999),
    "temperature": st.sampled_from([0, 0.3, 1, 1.0]),
    "top_p": st.sampled_from([0.1, 1]),
    "user": st.sampled_from(["u", "a:b"]),
}


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two bodies with the same fields, which may be spelt in any order."""
    names = draw(st.lists(st.sampled_from(list(_FIGURES)), unique=True, max_size=4))
    if "max_completion_tokens" in names:
        names = [name for name in names if name != "max_tokens"]
    model = draw(st.sampled_from(["m", "kimi-k2", "gpt-5", "o3-mini", "deepseek-chat", "claude-x"]))
    first, second = ({"model": model, **{name: draw(_FIGURES[name]) for name in names}} for _ in range(2))
    for body in (first, second):
        roles = ["system", "user"] if draw(st.booleans()) else ["user"]
        for _ in range(draw(st.integers(0, 2))):
            roles += ["assistant", "user"]
        body["messages"] = [{"role": role, "content": draw(_TEXT)} for role in roles]
    return first, second


_CODECS = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens_field": st.sampled_from(["max_tokens", "max_completion_tokens"]),
        "ask_usage": st.booleans(),
        "special_tokens": st.booleans(),
        "custom_tools": st.booleans(),
        "user_limit": st.sampled_from([1, 2, 64]),
        "more_sampling": st.just(["top_k"]),
    },
)
_SETTINGS = st.builds(TranslationSettings, losses=st.sampled_from(["note", "refuse"]), repair=st.booleans())


def _request(body: dict[str, Any]) -> HttpRequest:
    return HttpRequest("POST", "/v1/chat/completions", body=json.dumps(body).encode())


def _planned(upstream: Dialect, request: HttpRequest, settings: TranslationSettings) -> tuple[Plan, HttpRequest]:
    call = OPENAI.binding.match(request)
    assert call is not None
    planned = plan(OPENAI, upstream, OPENAI.codec.parse_request(call), settings=settings)
    wrapped = upstream.binding.wrap(planned.call())
    return planned, structs.replace(wrapped, body=request.body) if planned.verbatim else wrapped


def _read(body: bytes) -> RequestSummary | None:
    assert OPENAI.summary_reader is not None
    return OPENAI.summary_reader.read_request(HttpRequest("POST", "/v1/chat/completions", body=body))


def _plain(request: HttpRequest) -> RequestSummary:
    plain = _read(request.body)
    assert plain is not None
    return plain


@given(_shapes(), _CODECS, _SETTINGS)
def test_a_cached_plan_sends_and_answers_as_a_plan_of_its_own(
    bodies: tuple[dict[str, Any], dict[str, Any]], codec: dict[str, Any], settings: TranslationSettings
) -> None:
    upstream = configure_dialect(OPENAI, codec)
    first, second = map(_request, bodies)
    one, other = _read(first.body), _read(second.body)
    assume(one is not None and other is not None and one.shape == other.shape)
    assert one is not None and other is not None
    cache = PlanCache()
    planned, sent = _planned(upstream, first, settings)
    cache.keep(one, planned, first, sent)
    cached = cache.find(OPENAI, other, other.conversation.model)
    own, wanted = _planned(upstream, second, settings)
    if cached is None:
        assert not planned.passes
        return
    quick, request = cached.plan(other), cached.request(second.body)
    assert jsonio.decode(request.body) == {**bodies[1], **jsonio.decode(wanted.body)}  # type: ignore[dict-item]
    assert structs.replace(request, body=b"") == structs.replace(wanted, body=b"")
    assert (quick.notes, quick.verbatim, quick.passes) == (own.notes, own.verbatim, own.passes)
    assert _outcome(quick) == _outcome(own)


def _outcome(planned: Plan) -> tuple[bytes, Any, Any]:
    way = PassThrough(planned, fixed_environment())
    output = way.feed(STREAM)
    return output + (b"" if way.is_over else way.close()), way.progress.usage, way.progress.stop


def test_a_plain_request_is_read() -> None:
    plain = _plain(_request({"model": "m", "messages": [{"role": "user", "content": "Hi: you"}], "stream": True}))
    assert (plain.conversation.model, plain.conversation.stream, plain.message_count) == ("m", True, 1)


_MESSAGE = {"role": "user", "content": "Hi"}
_BODY: dict[str, Any] = {"model": "m", "messages": [_MESSAGE]}


@pytest.mark.parametrize(
    "change",
    [
        {"tools": []},
        {"model": ""},
        {"messages": []},
        {"messages": [{"role": "user", "content": " \n"}]},
        {"messages": [{"role": "user", "content": ""}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
        {"messages": [{"role": "user", "content": "Hi", "name": "Ann"}]},
        {"messages": [_MESSAGE, _MESSAGE]},
        {"messages": [_MESSAGE, {"role": "assistant", "content": "Yes"}]},
        {"messages": [{"role": "assistant", "content": "Yes"}, _MESSAGE]},
        {"messages": [_MESSAGE, {"role": "system", "content": "Be brief"}, _MESSAGE]},
        {"messages": [{"role": "system", "content": "Be brief"}]},
        {"messages": [{"role": "system", "content": "Be brief"}, {"role": "system", "content": "Be kind"}, _MESSAGE]},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"temperature": 1.5},
        {"max_tokens": 0},
        {"stream": None},
        {"n": 1},
        {"messages": [{"role": "user", "content": "x" * 70_000}]},
    ],
)
def test_another_request_is_left_to_the_codec(change: dict[str, Any]) -> None:
    assert _read(json.dumps({**deepcopy(_BODY), **change}).encode()) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"b","messages":[{"role":"user","content":"Hi"}]}',
        b'{"model":"b","messages":[{"role":"user","content":"Hi","content":"Ho"}]}',
        b'{"model":"b","messages":[{"role":"user","role":"user","content":"a\\u003ab"}]}',
        b'{"model":"b","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"b","messages":[{"role":"user","content":"Hi"}]',
        b"[]",
        b"",
    ],
)
def test_doubled_names_and_broken_json_are_left_to_the_codec(body: bytes) -> None:
    assert _read(body) is None


@given(_shapes())
def test_a_plain_request_says_what_the_codec_reads(bodies: tuple[dict[str, Any], dict[str, Any]]) -> None:
    for request in map(_request, bodies):
        plain = _read(request.body)
        if plain is None:
            continue
        call = OPENAI.binding.match(request)
        assert call is not None
        try:
            read = OPENAI.codec.parse_request(call)
        except DragomanError as error:
            raise AssertionError(f"plain, but the codec refuses it: {error}") from error
        summary = (plain.conversation.model, plain.conversation.stream, plain.conversation.user, plain.message_count)
        assert summary == (read.model, read.stream, read.user, len(read.messages) + len(read.system))


def test_the_number_of_cached_models_is_bounded() -> None:
    cache = PlanCache()
    for number in range(1000):
        for model in (f"m{number}", "x" * 300 + str(number)):
            request = _request({**_BODY, "model": model})
            planned, sent = _planned(OPENAI, request, TranslationSettings())
            cache.keep(_plain(request), planned, request, sent)
    assert 0 < len(cache) <= 256


def test_a_limit_of_the_upstream_holds_for_requests_with_a_cached_plan() -> None:
    upstream, cache = configure_dialect(OPENAI, {"user_limit": 8}), PlanCache()
    short, long = (_request({**_BODY, "user": user}) for user in ("u", "u" * 9))
    planned, sent = _planned(upstream, short, TranslationSettings())
    cache.keep(_plain(short), planned, short, sent)
    assert cache.find(OPENAI, _plain(short), "m") is not None
    assert cache.find(OPENAI, _plain(long), "m") is None
