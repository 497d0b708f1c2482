"""Upstreams at work: connections, credentials, how much they are asked at once, and how they have been doing.

A `Upstreams` belongs to one configuration; a reload makes another, and the old one ends when its last request has.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial

from msgspec import structs

from dragoman._version import __version__
from dragoman.errors import REQUEST_ERROR_KINDS, DragomanError, Fault, TooLarge
from dragoman.gateway.breaker import CircuitBreaker, Permit
from dragoman.gateway.config import Config
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.planning import Bounds, PlanCache
from dragoman.gateway.redaction import KnownAddress, truncate_text
from dragoman.gateway.retry_policy import Redirected, Refused, RetryBudget, with_reset
from dragoman.gateway.routing import matches_pattern
from dragoman.gateway.secrets import ConfiguredSecret, plain_value
from dragoman.gateway.upstream_config import Login, Upstream
from dragoman.gateway.upstream_config import TimeoutSettings as Seconds
from dragoman.http.client.client import ClientResponse, ConnectionSlots, HttpClient, HttpTimeouts, TlsSettings
from dragoman.model.conversation import Conversation
from dragoman.upstream import credentials
from dragoman.upstream.credentials import ClosableCredential, Credential, CredentialFault, Fetch, with_headers
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

# --- the credentials of an upstream, made from its configuration. Nothing is read or run before it is needed


def credentials_of(upstream: Upstream, base_url: str, fetch: Fetch) -> Sequence[Credential]:
    """All that may sign for this upstream; one that signs nothing if it has none."""
    if upstream.kind == "simulator":
        return (ConfiguredKey("simulated", plain_value("simulated"), "authorization"),)  # a simulator wants any key
    keys = [_key(upstream, index, key, base_url, fetch) for index, key in enumerate(upstream.keys)]
    logins = [
        _Later(f"{login.source}:{login.detail}".rstrip(":"), partial(_login, login, upstream.region, base_url, fetch))
        for login in upstream.logins
    ]
    return [*keys, *logins] or (ConfiguredKey("none", plain_value(""), "authorization"),)


def _key(upstream: Upstream, index: int, key: ConfiguredSecret, base_url: str, fetch: Fetch) -> Credential:
    name = f"key {index + 1}" if len(upstream.keys) > 1 else "key"
    if upstream.dialect.codec.family == "kiro":
        return _Later(name, partial(_kiro_key, key, base_url, fetch))
    return ConfiguredKey(name, key, upstream.key_header)


class ConfiguredKey:
    """A key that the configuration names. Its reference is followed once, and again when the upstream refuses it.

    An empty key signs nothing.
    """

    expires_at: float | None = None

    def __init__(self, name: str, key: ConfiguredSecret, header: str) -> None:
        self.name = name
        self._key = key
        self._header = header

    async def sign(self, request: HttpRequest) -> HttpRequest:
        key = self._key.revealed or await _revealed(self._key)
        if not key:
            return request
        value = f"Bearer {key}" if self._header == "authorization" else key
        return with_headers(request, ((self._header, value),))

    async def refused(self, status: int) -> bool:
        try:
            return await asyncio.to_thread(self._key.refresh)
        except ConfigError:
            return False

    def describe(self) -> dict[str, Json]:
        return {"name": self.name, "type": "key", "source": self._key.shown, "expires_at": None}

    def secrets(self) -> list[credentials.SecretText]:
        found = self._key.revealed
        return [credentials.SecretText(found)] if found else []


async def _revealed(secret: ConfiguredSecret) -> str:
    found = secret.revealed
    if found is not None:
        return found
    try:
        return await asyncio.to_thread(secret.reveal)  # a command or a keyring takes its time
    except ConfigError as error:
        raise CredentialFault(f"the key cannot be read: {error}") from None


class _Later:
    """A credential that is made when it is first needed: the user may log in until then."""

    def __init__(self, name: str, make: Callable[[str], Awaitable[Credential]]) -> None:
        self.name, self._make = name, make
        self._made: Credential | None = None

    @property
    def expires_at(self) -> float | None:
        return self._made.expires_at if self._made else None

    async def sign(self, request: HttpRequest) -> HttpRequest:
        if self._made is None:
            self._made = await self._make(self.name)
        return await self._made.sign(request)

    async def refused(self, status: int) -> bool:
        return self._made is not None and await self._made.refused(status)

    async def aclose(self) -> None:
        made = self._made
        if made is not None and isinstance(made, ClosableCredential):
            await made.aclose()

    def describe(self) -> dict[str, Json]:
        return self._made.describe() if self._made else {"name": self.name, "type": "login", "state": "not used yet"}

    def secrets(self) -> list[credentials.SecretText]:
        return self._made.secrets() if self._made else []


async def _kiro_key(key: ConfiguredSecret, base_url: str, fetch: Fetch, name: str) -> Credential:
    from dragoman.upstream.kiro.credential import KiroCredential  # noqa: PLC0415  only who uses it waits for it
    from dragoman.upstream.kiro.stores import ApiKeyStore  # noqa: PLC0415

    return KiroCredential(
        ApiKeyStore(credentials.SecretText(await _revealed(key))), fetch, name=name, base_url=base_url
    )


async def _login(login: Login, region: str, base_url: str, fetch: Fetch, name: str) -> Credential:
    """A login of the AWS tools, or of Kiro: our own store's, the IDE's or kiro-cli's."""
    if login.source == "aws":
        from dragoman.upstream.sigv4 import AwsCredential, find_region  # noqa: PLC0415

        region = region or await asyncio.to_thread(find_region, login.detail)
        return AwsCredential(name, base_url, region, login.detail)
    from dragoman.upstream.kiro.credential import KiroCredential  # noqa: PLC0415
    from dragoman.upstream.kiro.logins import open_store  # noqa: PLC0415

    source = {"auto": "", "store": "own"}.get(login.source, login.source)
    spec = f"{source}:{login.detail}" if source and login.detail else source
    return KiroCredential(await asyncio.to_thread(open_store, spec), fetch, name=name, base_url=base_url)


_AGENT = f"dragoman/{__version__}"
_REFUSAL_BYTES = 1024 * 1024
_REFRESH_SECONDS = 15.0  # for a sign-in service to answer


class Backend:
    """One upstream."""

    def __init__(self, upstream: Upstream, base_url: str, client: HttpClient, breaker: CircuitBreaker) -> None:
        self.upstream = upstream
        self.name, self.dialect = upstream.name, upstream.dialect
        limits = upstream.limits
        self.slots = ConnectionSlots(upstream.name, limits.concurrency, limits.queue, limits.queue_wait, 529)
        self.budget = RetryBudget()  # of retries: those of another upstream are not counted here
        self.plans = PlanCache()
        self.failures = 0  # in a row
        self.last_error = ""
        self.last_error_at: float | None = None
        self.last_ok_at: float | None = None
        self.base_url = base_url
        self._client = client
        self.breaker = breaker
        self._timeouts, self._long_timeouts = _timeouts(upstream.timeouts)
        self._tls = TlsSettings(ca_file=str(upstream.ca_file)) if upstream.ca_file else None
        self.all_credentials = credentials_of(upstream, base_url, self._fetch)
        self._turn = itertools.count()
        self._fetched_from: set[str] = set()  # base URLs of sign-in services

    def credentials(self, session: str, model: str) -> list[Credential]:
        """All of them, in the order to try: a session keeps its own, and those that rest come last."""
        if session:
            ranked = sorted(
                self.all_credentials, key=lambda each: hashlib.sha256(f"{session}\0{each.name}".encode()).digest()
            )
        else:
            turn = next(self._turn) % len(self.all_credentials)
            ranked = [*self.all_credentials[turn:], *self.all_credentials[:turn]]
        return sorted(ranked, key=lambda each: self.breaker.seconds_until_ready(self.name, each.name, model))

    def credential(self, name: str) -> Credential | None:
        return next((each for each in self.all_credentials if each.name == name), None)

    async def close_credentials(self) -> None:
        for credential in self.all_credentials:
            if isinstance(credential, ClosableCredential):
                await credential.aclose()

    def is_cooling_down(self, credential: Credential, model: str) -> bool:
        """Whether nobody shall ask now for what is not worth a probe."""
        return self.upstream.limits.breaker and self.breaker.seconds_until_ready(self.name, credential.name, model) > 0

    async def open(
        self, request: HttpRequest, credential: Credential, sent: Conversation | None = None
    ) -> ClientResponse:
        """Sign and send a request with all other headers; gives a reply that is no refusal. `sent` is what it says.

        A credential that can renew itself is given one more chance. Raises Refused, Redirected, CredentialFault,
        and what the network does.
        """
        timeouts, patterns = self._timeouts, self.upstream.long_thinking
        if patterns and sent is not None and any(matches_pattern(each, sent.model) for each in patterns):
            timeouts = self._long_timeouts
        once, pool = sent is not None and sent.is_job, f"{self.name} {credential.name}"
        proxy = self.upstream.proxy.reveal() if self.upstream.proxy else None
        renewed = False
        while True:
            signed = await credential.sign(request)
            reply = await self._client.open(
                self.base_url, signed, timeouts=timeouts, tls=self._tls, proxy=proxy, new_connection=once, pool=pool
            )
            if 200 <= reply.status < 300:
                return reply
            response = await self.read(reply)
            if renewed or reply.status not in (401, 403) or not await credential.refused(reply.status):
                break
            renewed = True
        if 300 <= reply.status < 400:
            raise Redirected(self.name, reply.status)
        fault = with_reset(self.dialect.codec.parse_fault(response, sent), response, time.time())
        raise Refused(response, self._blamed(fault))

    async def read(self, reply: ClientResponse) -> HttpResponse:
        """The whole of a short answer."""
        try:
            body = await reply.read(_REFUSAL_BYTES)
        except TooLarge:
            body = b""
        return HttpResponse(reply.status, reply.headers, body)

    def record_failure(self, ticket: Permit, error: DragomanError) -> None:
        fault = error.fault
        ticket.failed(error)
        if fault.kind not in REQUEST_ERROR_KINDS:
            self.failures += 1
        self.last_error, self.last_error_at = truncate_text(fault.message), time.time()

    @property
    def health(self) -> str:
        if self.failures >= 3:
            return "failing"
        if all(self.breaker.is_cooling_down(self.name, each.name) for each in self.all_credentials):
            return "cooling"
        return "ok" if self.last_ok_at else "unused"

    def expiries(self) -> Iterator[tuple[str, float]]:
        for each in self.all_credentials:
            if each.expires_at is not None:
                yield each.name, each.expires_at - time.time()

    def describe(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "dialect": self.dialect.name,
            "kind": self.upstream.kind,
            "base_url": self.base_url,
            "health": self.health,
            "active": self.slots.active,
            "waiting": self.slots.waiting,
            "failures": self.failures,
            "last_ok_at": self.last_ok_at,
            "last_error": self.last_error,
            "last_error_at": self.last_error_at,
            "cooldowns": self.breaker.describe(self.name),
            "credentials": [each.describe() for each in self.all_credentials],
        }

    def addresses(self) -> Iterator[KnownAddress]:
        """Where it, its proxy and its sign-in services are, with the words that clients get instead."""
        yield self.base_url, f"the upstream {self.name}"
        if self.upstream.proxy:
            yield self.upstream.proxy.reveal(), f"the proxy of {self.name}"
        yield from ((url, f"the sign-in service of {self.name}") for url in self._fetched_from)

    def secrets(self) -> Iterator[str]:
        """What its credentials hold now, for those who must keep it out of logs."""
        return (secret.reveal() for each in self.all_credentials for secret in each.secrets())

    def _blamed(self, fault: Fault) -> Fault:
        """The refusal as a client shall hear it. Whose key was wrong must be said: the client's own is fine."""
        if fault.kind not in ("auth", "permission"):
            return fault
        message = f"the upstream {self.name} refused this gateway's credential: {fault.message}"
        return structs.replace(fault, message=message)

    def own_headers(self) -> Headers:
        """What this upstream wants in the head of every request."""
        return (("user-agent", _AGENT), *((name, value.reveal()) for name, value in self.upstream.headers))

    async def _fetch(self, base_url: str, request: HttpRequest) -> HttpResponse:
        """For credentials that ask a sign-in service, which may be behind the same proxy."""
        self._fetched_from.add(base_url)
        proxy = self.upstream.proxy.reveal() if self.upstream.proxy else None
        timeouts = HttpTimeouts(head=_REFRESH_SECONDS, idle=_REFRESH_SECONDS, total=_REFRESH_SECONDS)
        reply = await self._client.open(
            base_url, request, timeouts=timeouts, tls=self._tls, proxy=proxy, pool=f"{self.name} sign-in"
        )
        try:
            return HttpResponse(reply.status, reply.headers, await reply.read(_REFUSAL_BYTES))
        finally:
            reply.close()


def _timeouts(told: Seconds) -> tuple[HttpTimeouts, HttpTimeouts]:
    """For most models, and for those that think long."""
    same = {name: value for name, value in structs.asdict(told).items() if name not in ("first_byte", "long_idle")}
    usual = HttpTimeouts(head=told.first_byte, **same)
    return usual, structs.replace(usual, idle=told.long_idle, silent=max(told.silent, told.long_idle))


class Upstreams:
    """All upstreams of one configuration."""

    def __init__(self, config: Config, client: HttpClient, breaker: CircuitBreaker | None = None) -> None:
        self.config, self.bounds = config, Bounds.of(config.server)
        self._client = client
        self.breaker = breaker or CircuitBreaker()
        self.by_name: dict[str, Backend] = {}
        self._embedded = AsyncExitStack()
        self._users = 0
        self._idle = asyncio.Event()

    async def start(self) -> None:
        for upstream in self.config.upstreams.values():
            base_url = upstream.base_url
            if upstream.kind == "simulator":
                base_url = await self._embed(upstream)
            self.by_name[upstream.name] = Backend(upstream, base_url, self._client, self.breaker)

    async def _embed(self, upstream: Upstream) -> str:
        from dragoman.simulator.server import Simulator  # noqa: PLC0415  only who uses it waits for it

        settings = upstream.simulator
        simulator = Simulator(upstream.dialect.name, profile=settings.profile, script=settings.script)
        await self._embedded.enter_async_context(simulator)
        return simulator.url

    @property
    def backends(self) -> Sequence[Backend]:
        return tuple(self.by_name.values())

    def __enter__(self) -> None:
        """Whoever is inside uses the fleet, and it is not put away."""
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self._idle.set()

    async def retire(self) -> None:
        """Wait until nobody uses it, then end what it runs."""
        while self._users:
            self._idle.clear()
            await self._idle.wait()
        await self.aclose()

    async def close_credentials(self) -> None:
        """See logins that are being renewed to the end of it; while this lasts there must be connections."""
        for backend in self.backends:
            await backend.close_credentials()

    async def aclose(self) -> None:
        await self.close_credentials()
        await self._embedded.aclose()
