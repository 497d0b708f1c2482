"""Compare the response that a client got with what the model sent: complete, an error that says so, or a failure."""

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

# The model's reply: multi-byte characters, characters that JSON escapes, and a tool call.
EXPECTED_TEXT = 'Größe “ok” 🦜\nsecond line {"a": [1, 2]} and the end.'
EXPECTED_ARGUMENTS = {"city": "Nowhereville", "note": 'ü " \\ 🦜'}


@dataclass(frozen=True)
class Probe:
    """One way to cause a fault, and the allowed results.

    `may`: response (the complete reply and its end), error (in the client's dialect), either, or short (an end with the
    reason length, docs/decisions/responses.md#d7). `within`: the configured timeout; without one only a hang fails.
    """

    label: str
    faults: tuple[ProxyFault, ...] = ()
    may: str = "response"
    stream: bool = True
    within: float | None = None
    status: tuple[int, ...] = ()
    says: str = ""
    max_requests: int | None = None  # the most requests that the upstream may get
    check: Callable[[ProbeResult], None] | None = None
    tls: ssl.SSLContext | None = None
    framed: bool = True  # the proxy splits at wire frames; otherwise it forwards raw bytes
    url: str = ""  # instead of the proxy's


def parse_success(client: str, response: RawResponse, *, stream: bool) -> ParsedResponse:
    """Parse a response with status 200. Raises WrongResponse if a client could not read it."""
    try:
        parsed = RESPONSE_PARSERS[client](response.body) if stream else parse_whole(client, response.body)
    except (ValueError, KeyError, TypeError, ParserError, struct.error) as error:
        raise WrongResponse(f"a client cannot read this: {error!r}: {response.body[-400:]!r}") from error
    if parsed.odd:
        raise WrongResponse(f"a client stumbles over this: {parsed.odd}: {response.body[-400:]!r}")
    if stream:
        dialect = registry.get(client)
        try:
            decoder = dialect.binding.frame_decoder()
            breaches = dialect.codec.stream_breaches([*decoder.feed(response.body), *decoder.close()])
        except DragomanError as error:
            if not isinstance(error, FrameTooLong):  # this limit is only for upstream frames
                raise WrongResponse(f"no stream of {client}: {error}") from error
            breaches = ()
        if parsed.finish in LENGTH_REASONS:  # a call cut by the length limit is not valid JSON
            breaches = [breach for breach in breaches if not breach.rule.endswith(("input_json", "input_cut"))]
        if breaches:
            raise WrongResponse(
                f"the stream breaks the rules of {client}: {breaches[0]} ({parsed.finish}, {parsed.error})"
            )
    return parsed


def check_response(
    client: str,
    probe: Probe,
    response: RawResponse,
    says: str | None = EXPECTED_TEXT,
    calls: Sequence[Any] | None = (EXPECTED_ARGUMENTS,),
) -> ParsedResponse | None:
    """Raise NoResponse or WrongResponse unless the response is complete or an error that says so.

    With None for `says` or `calls` that content is not compared.
    """
    if response.status != 200:
        message = parse_refusal(client, response)
        if not response.whole:
            raise NoResponse(f"half a refusal: {response}")
        if response.status == 429 and "retry-after" not in response.headers:
            raise WrongResponse("429 without retry-after")
        if probe.may not in ("error", "either", "short"):
            raise WrongResponse(f"refused ({response.status}: {message}), though a response was there")
        _check_error(probe, response, message)
        return None
    parsed = parse_success(client, response, stream=probe.stream)
    if (says is not None and not says.startswith(parsed.text)) or (
        calls is not None and len(parsed.calls) > len(calls)
    ):
        raise WrongResponse(f"the model did not send {_brief(parsed)}")
    if parsed.error is not None:
        if probe.may not in ("error", "either", "short"):
            raise WrongResponse(f"an error ({parsed.error}), though a response was there")
        if parsed.finish and parsed.ended:
            raise WrongResponse("an error and an end")
        _check_error(probe, response, parsed.error)
        return parsed
    if not parsed.ended or not response.whole:
        raise NoResponse(f"it just ends: {response.body[-300:]!r}")
    complete = says in (None, parsed.text) and _same(parsed, calls)
    if complete and parsed.finish not in LENGTH_REASONS:
        if probe.may == "error":
            raise WrongResponse("a response, though the upstream gave none")
        return parsed
    if probe.may != "short":
        raise WrongResponse(f"a made-up end ({parsed.finish}): {_brief(parsed)}")
    if len(parsed.calls) and not complete and parsed.finish not in LENGTH_REASONS:
        raise WrongResponse(f"a call that never ended came with {parsed.finish!r}: {_brief(parsed)}")
    return parsed


def _check_error(probe: Probe, response: RawResponse, message: str) -> None:
    if probe.status and response.status not in probe.status:
        raise WrongResponse(f"{response.status} instead of {str(probe.status)[:20]}…: {message}")
    if probe.says not in message:
        raise WrongResponse(f"{probe.says!r} is not in {message!r}")


def _same(parsed: ParsedResponse, calls: Sequence[Any] | None) -> bool:
    try:
        arguments = parsed.arguments()
    except ValueError:
        return calls is None
    return all(call["whole"] for call in parsed.calls) and (calls is None or arguments == list(calls))


def _brief(parsed: ParsedResponse) -> str:
    return f"{parsed.text[:120]!r} {str(parsed.calls)[:200]}"
