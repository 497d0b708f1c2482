"""One exchange of a scenario without any I/O: the translation alone, question and answer, as the gateway does it."""

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

READ = 64 * 1024  # bytes a read, as a socket gives them when the upstream is in a hurry
_UPSTREAMS = {"kiro": "kiro", "bedrock": "bedrock", "anthropic": "anthropic"}


@dataclass(frozen=True)
class Exchange:
    ask: Callable[[], Plan]
    tell: Callable[[Plan], list[bytes]]  # what the client gets


def exchange(name: str) -> Exchange:
    """The exchange of this scenario. A paced one comes an event a read."""
    scenario = BY_NAME[name]
    client, upstream = registry.get(scenario.client), registry.get(_UPSTREAMS.get(scenario.upstream, "openai"))
    body = request_body(scenario.client, scenario.question, "bench", stream=scenario.stream)
    headers = (("content-type", "application/json"), ("anthropic-version", "2023-06-01"))
    request = HttpRequest("POST", PATHS[scenario.client], headers=headers, body=body)
    settings = TranslationSettings(repair=scenario.reads, raw_tools="auto" if scenario.upstream == "kimi" else None)
    said = canned_response(scenario.upstream)
    whole = b"".join(said.events)
    reads = said.events if scenario.paced else [whole[at : at + READ] for at in range(0, len(whole), READ)]

    def ask() -> Plan:
        return _asked(client, upstream, request, settings)

    def tell(made: Plan) -> list[bytes]:
        if not scenario.stream:
            told, _ = read_whole_reply(made, whole)
            return [made.client.codec.render_reply(told, made.original, SYSTEM_ENVIRONMENT)]
        way = PassThrough(made) if passes_frames(made) else ResponseTranslator(made)
        pieces = [way.feed(read) for read in reads]
        return pieces if way.over else [*pieces, way.close()]

    return Exchange(ask, tell)


def translated_response(name: str) -> bytes:
    """The whole answer of a scenario, as its client gets it."""
    made = exchange(name)
    return b"".join(made.tell(made.ask()))


def _asked(client: Dialect, upstream: Dialect, request: HttpRequest, settings: TranslationSettings) -> Plan:
    call = client.binding.match(request)
    assert call is not None
    made = plan(client, upstream, client.codec.parse_request(call), settings=settings)
    upstream.binding.wrap(made.call())
    return made
