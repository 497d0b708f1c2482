"""Whole, small exchanges through the upstream client, for what credentials ask of sign-in services."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.http.client.address import choose_proxy
from dragoman.http.client.client import Client, Timeouts, Tls
from dragoman.upstream.credentials import Fetch
from dragoman.wire.http import HttpRequest, HttpResponse

_LARGEST = 1024 * 1024
_TIMEOUTS = Timeouts(connect=5.0, tls=5.0, head=15.0, idle=15.0, total=15.0)


def fetch_through(client: Client, environ: Mapping[str, str], tls: Tls | None = None) -> Fetch:
    """Make a `Fetch` of a client; proxies are those the environment names."""

    async def fetch(base_url: str, request: HttpRequest) -> HttpResponse:
        proxy = choose_proxy(base_url, environ)
        reply = await client.open(base_url, request, timeouts=_TIMEOUTS, tls=tls, proxy=proxy)
        return HttpResponse(reply.status, reply.headers, await reply.read(_LARGEST))

    return fetch
