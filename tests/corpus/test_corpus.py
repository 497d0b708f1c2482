"""Every exchange of the corpus, to every client dialect, streamed, cut anywhere, and whole."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from dragoman.dialects.base import StreamReader
from dragoman.errors import UpstreamFault, UpstreamViolation
from dragoman.gateway.response_modes import PassThrough
from dragoman.model.assemble import assemble_reply, check
from dragoman.model.conversation import Conversation, Reply
from dragoman.model.events import BlockKeys, Event, Failed
from dragoman.response_stream import ResponseFilters, ResponseTranslator, read_whole_reply
from dragoman.translate import plan
from dragoman.wire.http import HttpResponse
from tests.corpus.exchange import (
    CLIENTS,
    ENVIRONMENT,
    UPSTREAM,
    Exchange,
    dialect_of,
    exchanges,
    expected_outcome,
    outcome,
)

ALL = exchanges()
VENDORS = (
    "deepseek", "xai", "groq", "mistral", "together", "fireworks", "cerebras", "openrouter", "zai", "minimax",
    "dashscope", "moonshot", "nvidia", "huggingface", "sambanova", "perplexity", "cohere", "lmstudio", "llamacpp",
    "localai", "vllm", "sglang", "ollama",
)  # fmt: skip


# Stops that a dialect cannot distinguish from others.
COARSER = {
    ("responses", "sequence"): ["end"],
    ("gemini", "sequence"): ["end"],
    ("kiro", "sequence"): ["end"],
    ("openai", "context"): ["length"],
    ("responses", "context"): ["length"],
    ("gemini", "context"): ["length"],
}


def named(chosen: Iterable[Exchange]) -> list[Any]:
    return [pytest.param(each, id=f"{each.vendor}-{each.name}") for each in chosen]


WITH_REPLY = named(each for each in ALL if "error" not in each.expected)
STREAMED = named(each for each in ALL if each.stream is not None and "error" not in each.expected)
FAILED = named(each for each in ALL if each.refusal is None and "error" in each.expected)
REFUSED = named(each for each in ALL if each.refusal is not None)


def test_every_vendor_has_at_least_five_exchanges() -> None:
    for vendor in VENDORS:
        assert len([each for each in ALL if each.vendor == vendor]) >= 5, vendor
    assert {each.vendor for each in ALL} == set(VENDORS)
    for each in ALL:
        kinds = [kind for kind in (each.stream, each.reply, each.refusal) if kind is not None]
        assert len(kinds) == 1, f"{each.vendor}/{each.name} needs one response"


def pieces(data: bytes, seed: int) -> list[bytes]:
    """The data cut somewhere; seed 0 does not cut, 1 cuts between all bytes."""
    if seed < 2:
        return [data] if seed == 0 else [data[at : at + 1] for at in range(len(data))]
    draw, cut, at = random.Random(seed), [], 0
    while at < len(data):
        size = draw.randint(1, 97)
        cut.append(data[at : at + size])
        at += size
    return cut


def client_stream(exchange: Exchange, client: str, seed: int = 0) -> bytes:
    """What a client gets for the response, as bytes of a stream."""
    planned = plan(dialect_of(client), UPSTREAM, exchange.conversation(client), settings=exchange.settings)
    response = ResponseTranslator(planned, ENVIRONMENT)
    assert exchange.stream is not None
    return b"".join([*map(response.feed, pieces(exchange.stream, seed)), response.close()])


def read_by_client(client: str, data: bytes, conversation: Conversation) -> Reply:
    """What the client's own dialect reads in the bytes it got. Raises the fault of a stream that failed."""
    dialect = dialect_of(client)
    reader = StreamReader(dialect.binding.frame_decoder(), dialect.codec.decoder(conversation, ENVIRONMENT))
    events = [event for decoded in (*reader.feed(data), *reader.close()) for event in decoded.events]
    check(events)
    return assemble_reply(events)


def compare(exchange: Exchange, client: str, reply: Reply) -> None:
    """Compare all that the client's dialect can say."""
    found, right = outcome(reply), expected_outcome(exchange.expected)
    where = f"{exchange.vendor}/{exchange.name} to {client}"
    legal = client in ("openai", "responses")
    for (one, *call), (other, *expected) in zip(found["calls"], right["calls"], strict=True):
        assert call == expected, where
        assert one and (other in (one, "*") or not (legal or other.replace("_", "").isalnum())), where
    assert found["text"] == right["text"], where
    assert found["reasoning"] == right["reasoning"], where
    assert found["stop"] in {right["stop"], *COARSER.get((client, right["stop"]), ())}, where
    if client != "kiro":
        assert found["sources"] == right["sources"] or (exchange.vendor, client) == ("perplexity", "openai"), where
        if "usage" in right and ("usage" in found or client != "openai"):  # Chat sends it only on request
            assert sums(found["usage"]) == sums(right["usage"]), where


def sums(usage: dict[str, int]) -> tuple[int, int]:
    return usage["input"] + usage["cache_read"] + usage["cache_write"], usage["output"]


@pytest.mark.parametrize("exchange", WITH_REPLY)
def test_a_response_is_read_as_expected(exchange: Exchange) -> None:
    """The canonical outcome, exactly; a stream whole and cut between all its bytes."""
    conversation, right = exchange.conversation(), expected_outcome(exchange.expected)
    if exchange.reply is not None:
        planned = plan(UPSTREAM, UPSTREAM, conversation, settings=exchange.settings)
        found = outcome(read_whole_reply(planned, exchange.reply, ENVIRONMENT)[0])
        assert found == right, exchange.vendor
        return
    for seed in (0, 1, 2):
        planned = plan(UPSTREAM, UPSTREAM, conversation, settings=exchange.settings)
        events: list[Event] = []
        assert exchange.stream is not None
        keys = BlockKeys()
        reader = StreamReader(
            UPSTREAM.binding.frame_decoder(), UPSTREAM.codec.decoder(planned.translated, ENVIRONMENT, keys)
        )
        for piece in pieces(exchange.stream, seed):
            events += [event for decoded in reader.feed(piece) for event in decoded.events]
        events += [event for decoded in reader.close() for event in decoded.events]
        check(events)
        found = outcome(assemble_reply(ResponseFilters(planned, keys).feed(tuple(events))))
        ids = [
            one[0] if other[0] == "*" else other[0] for one, other in zip(found["calls"], right["calls"], strict=True)
        ]
        calls = [(call_id, *call[1:]) for call_id, call in zip(ids, right["calls"], strict=True)]
        assert found == {**right, "calls": calls}, exchange.vendor


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("exchange", STREAMED)
def test_a_stream_reaches_every_client(exchange: Exchange, client: str) -> None:
    conversation = exchange.conversation(client)
    whole = client_stream(exchange, client)
    compare(exchange, client, read_by_client(client, whole, conversation))
    for seed in (3, 4):
        assert read_by_client(client, client_stream(exchange, client, seed), conversation) == read_by_client(
            client, whole, conversation
        ), exchange.vendor


@pytest.mark.parametrize("exchange", named(each for each in ALL if each.stream is not None))
def test_a_stream_that_passes_says_the_same(exchange: Exchange) -> None:
    """A Chat client of the same service, where bytes pass as they came."""
    if "settings" in exchange.expected:
        return  # nothing passes unread there
    conversation = exchange.conversation()
    assert exchange.stream is not None
    for seed in (0, 1, 5):
        pass_through = PassThrough(plan(UPSTREAM, UPSTREAM, conversation, settings=exchange.settings), ENVIRONMENT)
        data = b"".join([*map(pass_through.feed, pieces(exchange.stream, seed)), pass_through.close()])
        if "error" in exchange.expected:
            assert pass_through.fault is not None and pass_through.fault.kind == exchange.expected["error"]["kind"]
            with pytest.raises(UpstreamFault, match=exchange.expected["error"]["message"]):
                read_by_client("openai", data, conversation)
        else:
            assert (
                outcome(read_by_client("openai", data, conversation))["calls"]
                == expected_outcome(exchange.expected)["calls"]
            )


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("exchange", named(each for each in ALL if each.reply and "error" not in each.expected))
def test_a_whole_reply_reaches_every_client(exchange: Exchange, client: str) -> None:
    dialect, conversation = dialect_of(client), exchange.conversation(client)
    planned = plan(dialect, UPSTREAM, conversation, settings=exchange.settings)
    assert exchange.reply is not None
    reply, _ = read_whole_reply(planned, exchange.reply, ENVIRONMENT)
    data = dialect.codec.render_reply(reply, conversation, ENVIRONMENT)
    if "streams_only" in dialect.codec.capabilities("m").traits:
        compare(exchange, client, read_by_client(client, data, conversation))
    else:
        compare(exchange, client, dialect.codec.parse_reply(data, conversation))


@pytest.mark.parametrize("exchange", FAILED)
def test_a_failure_reaches_every_client(exchange: Exchange) -> None:
    error = exchange.expected["error"]
    for client in CLIENTS:
        conversation = exchange.conversation(client)
        planned = plan(dialect_of(client), UPSTREAM, conversation, settings=exchange.settings)
        if exchange.reply is not None:
            with pytest.raises((UpstreamFault, UpstreamViolation), match=error["message"]) as caught:
                read_whole_reply(planned, exchange.reply, ENVIRONMENT)
            assert caught.value.fault.kind == error["kind"], exchange.vendor
            continue
        assert exchange.stream is not None
        for seed in (0, 1, 6):
            response = ResponseTranslator(planned, ENVIRONMENT)
            data = b"".join([*map(response.feed, pieces(exchange.stream, seed)), response.close()])
            assert response.fault is not None and response.fault.kind == error["kind"], exchange.vendor
            assert error["message"] in response.fault.message, exchange.vendor
            dialect = dialect_of(client)
            reader = StreamReader(dialect.binding.frame_decoder(), dialect.codec.decoder(conversation, ENVIRONMENT))
            events = [event for decoded in (*reader.feed(data), *reader.close()) for event in decoded.events]
            assert isinstance(events[-1], Failed), f"{exchange.vendor} to {client}"


@pytest.mark.parametrize("exchange", REFUSED)
def test_a_refusal_is_read_as_expected(exchange: Exchange) -> None:
    refusal, error = exchange.refusal, exchange.expected["error"]
    assert refusal is not None
    body = json.dumps(refusal["body"], ensure_ascii=False).encode()
    headers = tuple((name, value) for name, value in refusal["headers"].items())
    fault = UPSTREAM.codec.parse_fault(HttpResponse(refusal["status"], headers, body))
    assert (fault.kind, error["message"] in fault.message) == (error["kind"], True), exchange.vendor


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("exchange", named(ALL))
def test_the_request_of_every_client_dialect_says_the_same(exchange: Exchange, client: str) -> None:
    """The question, as a client of each dialect writes it, reaches the service with all it says."""
    conversation, dialect = exchange.conversation(client), dialect_of(client)
    model = "claude-sonnet-4.5" if client == "kiro" else conversation.model
    theirs = plan(UPSTREAM, dialect, exchange.conversation(), model=model)  # the question in the client's words
    written = dialect.binding.wrap(theirs.call())
    call = dialect.binding.match(written)
    assert call is not None, exchange.vendor
    sent: Any = plan(dialect, UPSTREAM, dialect.codec.parse_request(call), model=conversation.model).call().body
    found = json.dumps(sent, ensure_ascii=False)
    for words in texts_of(exchange.request):
        assert json.dumps(words, ensure_ascii=False)[1:-1] in found, f"{exchange.vendor}: {words!r}"
    assert calls(sent) == calls(exchange.request), exchange.vendor
    assert {tool["function"]["name"] for tool in sent.get("tools", ())} == {
        tool["function"]["name"] for tool in exchange.request.get("tools", ())
    } | {name for name, _ in calls(exchange.request)}


def texts_of(request: dict[str, Any]) -> Iterable[str]:
    for message in request["messages"]:
        content = message.get("content")
        if isinstance(content, str) and content:
            yield content
        for part in content if isinstance(content, list) else ():
            if part["type"] == "text":
                yield part["text"]


def calls(request: dict[str, Any]) -> list[tuple[str, Any]]:
    """All calls that are answered, by name and arguments, with their results' order."""
    found = {
        call["id"]: (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for message in request["messages"]
        for call in message.get("tool_calls") or ()
    }
    return [found[message["tool_call_id"]] for message in request["messages"] if message["role"] == "tool"]
