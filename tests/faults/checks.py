"""What a client got, against what was said: the truth, an error in its own words, or something is lost or wrong."""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.eventstream import ParserError

import dragoman.dialects as registry
from dragoman.errors import DragomanError
from dragoman.simulator.faults import ProxyFault
from dragoman.wire.sse import FrameTooLong
from tests.faults.http_client import NoResponse, RawResponse, WrongResponse
from tests.faults.response_parsers import LENGTH_REASONS, RESPONSE_PARSERS, ParsedResponse, parse_refusal, parse_whole

if TYPE_CHECKING:
    from tests.faults.runner import ProbeResult

# What the model says: two characters of several bytes, what JSON must escape, and a call.
EXPECTED_TEXT = 'Größe “ok” 🦜\nsecond line {"a": [1, 2]} and the end.'
EXPECTED_ARGUMENTS = {"city": "Nowhereville", "note": 'ü " \\ 🦜'}


@dataclass(frozen=True)
class Probe:
    """One way to cause a fault, and what may come of it.

    `may`: answer (all that the model said, and its end), error (in the client's words), either, or short (an end that
    tells of a limit, docs/decisions/answers.md#d7). `within`: the deadline of the configuration; without one only a
    hang is one.
    """

    label: str
    faults: tuple[ProxyFault, ...] = ()
    may: str = "answer"
    stream: bool = True
    within: float | None = None
    status: tuple[int, ...] = ()
    says: str = ""
    asked: int | None = None  # how often the upstream was asked, at most
    check: Callable[[ProbeResult], None] | None = None
    tls: ssl.SSLContext | None = None
    framed: bool = True  # the proxy sees wire frames; else bytes, however long
    url: str = ""  # instead of the proxy's


def parse_success(client: str, told: RawResponse, *, stream: bool) -> ParsedResponse:
    """What a 200 says. Raises Wrong for what a client could not read."""
    try:
        heard = RESPONSE_PARSERS[client](told.body) if stream else parse_whole(client, told.body)
    except (ValueError, KeyError, TypeError, ParserError, struct.error) as error:
        raise WrongResponse(f"a client cannot read this: {error!r}: {told.body[-400:]!r}") from error
    if heard.odd:
        raise WrongResponse(f"a client stumbles over this: {heard.odd}: {told.body[-400:]!r}")
    if stream:
        dialect = registry.get(client)
        try:
            decoder = dialect.binding.frame_decoder()
            breaches = dialect.codec.stream_breaches([*decoder.feed(told.body), *decoder.close()])
        except DragomanError as error:
            if not isinstance(error, FrameTooLong):  # a reader's limit, which is for upstreams
                raise WrongResponse(f"no stream of {client}: {error}") from error
            breaches = ()
        if heard.finish in LENGTH_REASONS:  # the call that the limit cut off is no JSON, and cannot be
            breaches = [breach for breach in breaches if not breach.rule.endswith(("input_json", "input_cut"))]
        if breaches:
            raise WrongResponse(
                f"the stream breaks the rules of {client}: {breaches[0]} ({heard.finish}, {heard.error})"
            )
    return heard


def check_response(
    client: str,
    probe: Probe,
    told: RawResponse,
    says: str | None = EXPECTED_TEXT,
    calls: Sequence[Any] | None = (EXPECTED_ARGUMENTS,),
) -> ParsedResponse | None:
    """Raises Lost or Wrong unless the client got the truth; with None for what was said, an honest stream will do."""
    if told.status != 200:
        message = parse_refusal(client, told)
        if not told.whole:
            raise NoResponse(f"half a refusal: {told}")
        if told.status == 429 and "retry-after" not in told.headers:
            raise WrongResponse("429 without retry-after")
        if probe.may not in ("error", "either", "short"):
            raise WrongResponse(f"refused ({told.status}: {message}), though an answer was there")
        _as_said(probe, told, message)
        return None
    heard = parse_success(client, told, stream=probe.stream)
    if (says is not None and not says.startswith(heard.text)) or (calls is not None and len(heard.calls) > len(calls)):
        raise WrongResponse(f"nobody said {_brief(heard)}")
    if heard.error is not None:
        if probe.may not in ("error", "either", "short"):
            raise WrongResponse(f"an error ({heard.error}), though an answer was there")
        if heard.finish and heard.ended:
            raise WrongResponse("an error and an end")
        _as_said(probe, told, heard.error)
        return heard
    if not heard.ended or not told.whole:
        raise NoResponse(f"it just ends: {told.body[-300:]!r}")
    complete = says in (None, heard.text) and _same(heard, calls)
    if complete and heard.finish not in LENGTH_REASONS:
        if probe.may == "error":
            raise WrongResponse("an answer, though the upstream gave none")
        return heard
    if probe.may != "short":
        raise WrongResponse(f"a made-up end ({heard.finish}): {_brief(heard)}")
    if len(heard.calls) and not complete and heard.finish not in LENGTH_REASONS:
        raise WrongResponse(f"a call that never ended came with {heard.finish!r}: {_brief(heard)}")
    return heard


def _as_said(probe: Probe, told: RawResponse, message: str) -> None:
    if probe.status and told.status not in probe.status:
        raise WrongResponse(f"{told.status} instead of {str(probe.status)[:20]}…: {message}")
    if probe.says not in message:
        raise WrongResponse(f"{probe.says!r} is not in {message!r}")


def _same(heard: ParsedResponse, calls: Sequence[Any] | None) -> bool:
    try:
        said = heard.arguments()
    except ValueError:
        return calls is None
    return all(call["whole"] for call in heard.calls) and (calls is None or said == list(calls))


def _brief(heard: ParsedResponse) -> str:
    return f"{heard.text[:120]!r} {str(heard.calls)[:200]}"
