"""The library renders errors in a client's dialect, reads those of upstreams, and ends streams with them."""

from __future__ import annotations

from typing import Any, get_args

import pytest

import dragoman
import dragoman.dialects as registry
from dragoman.errors import ErrorKind, Fault
from dragoman.response_stream import error_response

KINDS: tuple[ErrorKind, ...] = get_args(ErrorKind)
# Kinds that every dialect can express.
COMMON: frozenset[ErrorKind] = frozenset({"invalid", "permission", "not_found", "rate_limit", "overloaded", "server"})
CLIENT: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("dialect", registry.names())
@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_rendered_in_every_dialect_as_the_gateway_renders_it(kind: ErrorKind, dialect: str) -> None:
    fault = Fault(kind, "something is wrong", 502, retry_after=7.0 if kind == "rate_limit" else None)
    rendered = dragoman.render_error(dragoman.UpstreamFault("", fault=fault), dialect=dialect)
    expected = error_response(registry.get(dialect), fault)
    assert (rendered.status, tuple(rendered.headers.items()), rendered.body) == (
        expected.status,
        expected.headers,
        expected.body,
    )
    assert 400 <= rendered.status <= 599 and b"something is wrong" in rendered.body
    read = dragoman.parse_error(rendered.body, status=rendered.status, headers=rendered.headers, dialect=dialect)
    assert read.fault.kind == kind or kind not in COMMON
    assert (rendered.status == 429) <= ("retry-after" in rendered.headers)


def test_a_refused_request_names_its_place_for_the_client() -> None:
    with pytest.raises(dragoman.MalformedRequest) as refused:
        dragoman.translate_request({**CLIENT, "messages": 5}, source="openai", target="anthropic")
    rendered = dragoman.render_error(refused.value, dialect="openai")
    assert rendered.status == 400 and b'"param":"messages"' in rendered.body


def test_an_upstreams_error_is_read_with_its_headers() -> None:
    body = b'{"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}'
    error = dragoman.parse_error(body, status=429, headers={"Retry-After": "7"}, dialect="openai")
    assert (str(error), error.fault.kind, error.fault.retry_after) == ("slow down", "rate_limit", 7.0)
    page = dragoman.parse_error(b"<html>Bad Gateway</html>", status=502, dialect="openai")
    assert (page.fault.kind, page.fault.status) == ("server", 502)


def started() -> dragoman.StreamTranslator:
    request = dragoman.translate_request({**CLIENT, "stream": True}, source="anthropic", target="openai")
    stream = dragoman.stream_translator(source="openai", target="anthropic", request=request)
    assert b"Begin" in stream.feed(b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"Begin"}}]}\n\n')
    return stream


def test_a_stream_that_has_begun_ends_with_the_error() -> None:
    stream = started()
    error = dragoman.TimedOut("the upstream was silent for 300 seconds")
    end = stream.close(error)
    assert b'"type":"timeout_error","message":"the upstream was silent for 300 seconds"' in end
    assert b"message_stop" not in end
    assert stream.error is error
    assert stream.close() == stream.feed(b"data: [DONE]\n\n") == b""


@pytest.mark.parametrize("dialect", registry.names())
def test_a_stream_of_any_dialect_can_end_with_an_error_before_it_has_content(dialect: str) -> None:
    stream = dragoman.stream_translator(source="openai", target=dialect)
    assert b"late" in stream.close(dragoman.TimedOut("late"))


def test_an_error_after_the_end_of_a_stream_is_ignored() -> None:
    stream = started()
    stream.feed(b'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    assert stream.close(dragoman.Reset("the connection broke")) == b""
    assert stream.error is None


def test_the_error_of_a_stream_says_who_is_at_fault() -> None:
    """A well-formed error inside a stream is no violation of the dialect."""
    stream = started()
    assert b"error" in stream.feed(b'data: {"error":{"message":"busy","code":"rate_limit_exceeded"}}\n\n')
    assert type(stream.error) is dragoman.UpstreamFault and str(stream.error) == "busy"
    cut = started()
    assert b"error" in cut.close()
    assert isinstance(cut.error, dragoman.UpstreamViolation)
