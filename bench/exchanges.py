"""The translation of one exchange of a scenario, request and response, as the gateway does it but without I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import dragoman.dialects as registry
from bench.canned_responses import canned_response
from bench.gateways import PATHS
from bench.request_bodies import request_body
from bench.scenarios import BY_NAME
from dragoman.dialects.base import SYSTEM_ENVIRONMENT, Dialect
from dragoman.gateway.response_modes import PassThrough, passes_frames
from dragoman.response_stream import ResponseTranslator, read_whole_reply
from dragoman.translate import Plan, TranslationSettings, plan
from dragoman.wire.http import HttpRequest

READ = 64 * 1024  # bytes per read, as a socket returns them when the upstream is fast
_UPSTREAMS = {"kiro": "kiro", "bedrock": "bedrock", "anthropic": "anthropic"}


@dataclass(frozen=True)
class Exchange:
    """The two halves of a translation."""

    translate_request: Callable[[], Plan]
    translate_response: Callable[[Plan], list[bytes]]  # returns the bytes for the client


def exchange(name: str) -> Exchange:
    """Return the exchange of a scenario. In a paced one, each read returns one event."""
    scenario = BY_NAME[name]
    client, upstream = registry.get(scenario.client), registry.get(_UPSTREAMS.get(scenario.upstream, "openai"))
    body = request_body(scenario.client, scenario.question, "bench", stream=scenario.stream)
    headers = (("content-type", "application/json"), ("anthropic-version", "2023-06-01"))
    request = HttpRequest("POST", PATHS[scenario.client], headers=headers, body=body)
    settings = TranslationSettings(repair=scenario.reads, raw_tools="auto" if scenario.upstream == "kimi" else None)
    response = canned_response(scenario.upstream)
    whole = b"".join(response.events)
    reads = response.events if scenario.paced else [whole[at : at + READ] for at in range(0, len(whole), READ)]

    def translate_request() -> Plan:
        return _plan(client, upstream, request, settings)

    def translate_response(planned: Plan) -> list[bytes]:
        if not scenario.stream:
            reply, _ = read_whole_reply(planned, whole)
            return [planned.client.codec.render_reply(reply, planned.original, SYSTEM_ENVIRONMENT)]
        translator = PassThrough(planned) if passes_frames(planned) else ResponseTranslator(planned)
        pieces = [translator.feed(read) for read in reads]
        return pieces if translator.is_over else [*pieces, translator.close()]

    return Exchange(translate_request, translate_response)


def translated_response(name: str) -> bytes:
    """Return the whole response of a scenario, as its client gets it."""
    pair = exchange(name)
    return b"".join(pair.translate_response(pair.translate_request()))


def _plan(client: Dialect, upstream: Dialect, request: HttpRequest, settings: TranslationSettings) -> Plan:
    call = client.binding.match(request)
    assert call is not None
    planned = plan(client, upstream, client.codec.parse_request(call), settings=settings)
    upstream.binding.wrap(planned.call())
    return planned
