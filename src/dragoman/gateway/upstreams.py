"""All upstreams of one configuration: their backends, embedded simulators and models.

A reload creates another `Upstreams`; the old one ends with its last request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.backend import Backend
from dragoman.gateway.breaker import CircuitBreaker
from dragoman.gateway.config import Config
from dragoman.gateway.model_catalogue import ModelCatalogue
from dragoman.gateway.planning import Bounds
from dragoman.gateway.upstream_config import Upstream
from dragoman.http.client.client import HttpClient


class Upstreams:
    """All upstreams of one configuration. Use it as a context manager while a request needs it."""

    def __init__(
        self,
        config: Config,
        client: HttpClient,
        breaker: CircuitBreaker | None = None,
        *,
        state: Path | None = None,
        log: AccessLog | None = None,
    ) -> None:
        self.config, self.bounds = config, Bounds.of(config.server)
        self._client = client
        self.breaker = breaker or CircuitBreaker()
        self.by_name: dict[str, Backend] = {}
        self._state, self._log = state, log
        self.catalogue = ModelCatalogue(config, self.by_name)  # `start` creates the one with backends
        self._embedded = AsyncExitStack()
        self.users = 0  # requests that use these upstreams; `retire` waits for all of them
        self.idle = asyncio.Event()  # set when there are none

    async def start(self) -> None:
        """Create the backends, and start the simulators of the configuration."""
        for upstream in self.config.upstreams.values():
            base_url = upstream.base_url
            if upstream.kind == "simulator":
                base_url = await self._embed(upstream)
            self.by_name[upstream.name] = Backend(upstream, base_url, self._client, self.breaker)
        self.catalogue = ModelCatalogue(self.config, self.by_name, self._state, self._log)

    async def _embed(self, upstream: Upstream) -> str:
        from dragoman.simulator.script import Script, human_pace  # noqa: PLC0415
        from dragoman.simulator.server import Simulator  # noqa: PLC0415  imported only if used

        settings, rate = upstream.simulator, upstream.simulator.tokens_per_second
        script = settings.script or (Script(pace=human_pace(rate)) if rate else None)
        simulator = Simulator(upstream.dialect.name, profile=settings.profile, script=script)
        await self._embedded.enter_async_context(simulator)
        return simulator.url

    @property
    def backends(self) -> Sequence[Backend]:
        """All upstreams, in the order of the configuration."""
        return tuple(self.by_name.values())

    async def retire(self) -> None:
        """Wait until no request uses these upstreams, then close them."""
        while self.users:
            self.idle.clear()
            await self.idle.wait()
        await self.aclose()

    async def close_credentials(self) -> None:
        """Stop fetching lists, and let logins finish a renewal in progress. The HTTP client must still be open."""
        await self.catalogue.aclose()
        for backend in self.backends:
            await backend.close_credentials()

    async def aclose(self) -> None:
        """Close the credentials and stop the simulators."""
        await self.close_credentials()
        await self._embedded.aclose()
