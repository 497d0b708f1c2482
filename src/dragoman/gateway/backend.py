"""The upstreams of a running gateway: their credentials, connections, concurrency limits and health.

An `Upstreams` belongs to one configuration. A reload creates another one; the old one ends with its last request.
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
from dragoman.gateway.upstream_config import Login, TimeoutSettings, Upstream
from dragoman.http.client.client import ClientResponse, ConnectionSlots, HttpClient, HttpTimeouts, TlsSettings
from dragoman.model.conversation import Conversation
from dragoman.upstream import credentials
from dragoman.upstream.credentials import ClosableCredential, Credential, CredentialFault, Fetch, with_headers
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

# --- the credentials of an upstream, created from its configuration. No secret is read before it is needed


def credentials_of(upstream: Upstream, base_url: str, fetch: Fetch) -> Sequence[Credential]:
    """Return the credentials of an upstream; if it has none, one that does not change requests."""
    if upstream.kind == "simulator":
        return (ConfiguredKey("simulated", plain_value("simulated"), "authorization"),)  # A simulator accepts any key.
    keys = [_key(upstream, index, key, base_url, fetch) for index, key in enumerate(upstream.keys)]
    logins = [
        _LazyCredential(
            f"{login.source}:{login.detail}".rstrip(":"), partial(_login, login, upstream.region, base_url, fetch)
        )
        for login in upstream.logins
    ]
    return [*keys, *logins] or (ConfiguredKey("none", plain_value(""), "authorization"),)


def _key(upstream: Upstream, index: int, key: ConfiguredSecret, base_url: str, fetch: Fetch) -> Credential:
    name = f"key {index + 1}" if len(upstream.keys) > 1 else "key"
    if upstream.dialect.codec.family == "kiro":
        return _LazyCredential(name, partial(_kiro_key, key, base_url, fetch))
    return ConfiguredKey(name, key, upstream.key_header)


class ConfiguredKey:
    """A key of the configuration. It is read once, and again when the upstream refuses it.

    An empty key adds no header.
    """

    expires_at: float | None = None

    def __init__(self, name: str, key: ConfiguredSecret, header: str) -> None:
        self.name = name
        self._key = key
        self._header = header

    async def sign(self, request: HttpRequest) -> HttpRequest:
        key = self._key.revealed or await _reveal(self._key)
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


async def _reveal(secret: ConfiguredSecret) -> str:
    found = secret.revealed
    if found is not None:
        return found
    try:
        return await asyncio.to_thread(secret.reveal)  # A command or a keyring may be slow.
    except ConfigError as error:
        raise CredentialFault(f"the key cannot be read: {error}") from None


class _LazyCredential:
    """A credential that is created at its first use, so that the user may log in after the gateway has started."""

    def __init__(self, name: str, create: Callable[[str], Awaitable[Credential]]) -> None:
        self.name, self._create = name, create
        self._credential: Credential | None = None

    @property
    def expires_at(self) -> float | None:
        return self._credential.expires_at if self._credential else None

    async def sign(self, request: HttpRequest) -> HttpRequest:
        if self._credential is None:
            self._credential = await self._create(self.name)
        return await self._credential.sign(request)

    async def refused(self, status: int) -> bool:
        return self._credential is not None and await self._credential.refused(status)

    async def aclose(self) -> None:
        credential = self._credential
        if credential is not None and isinstance(credential, ClosableCredential):
            await credential.aclose()

    def describe(self) -> dict[str, Json]:
        if self._credential is None:
            return {"name": self.name, "type": "login", "state": "not used yet"}
        return self._credential.describe()

    def secrets(self) -> list[credentials.SecretText]:
        return self._credential.secrets() if self._credential else []


async def _kiro_key(key: ConfiguredSecret, base_url: str, fetch: Fetch, name: str) -> Credential:
    from dragoman.upstream.kiro.credential import KiroCredential  # noqa: PLC0415  imported only if used
    from dragoman.upstream.kiro.stores import ApiKeyStore  # noqa: PLC0415

    return KiroCredential(ApiKeyStore(credentials.SecretText(await _reveal(key))), fetch, name=name, base_url=base_url)


async def _login(login: Login, region: str, base_url: str, fetch: Fetch, name: str) -> Credential:
    """Create the credential of a login: of the AWS tools, or of Kiro (dragoman's store, the IDE's or kiro-cli's)."""
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
_REFRESH_SECONDS = 15.0  # timeout of a request to a sign-in service


class Backend:
    """One upstream of a running gateway: it signs and sends requests, and tracks the upstream's health."""

    def __init__(self, upstream: Upstream, base_url: str, client: HttpClient, breaker: CircuitBreaker) -> None:
        self.upstream = upstream
        self.name, self.dialect = upstream.name, upstream.dialect
        limits = upstream.limits
        self.slots = ConnectionSlots(upstream.name, limits.concurrency, limits.queue, limits.queue_wait, 529)
        self.budget = RetryBudget()
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
        """Return the credentials in the order to try: a session prefers the same one; those in cooldown are last."""
        if session:
            ranked = sorted(
                self.all_credentials, key=lambda each: hashlib.sha256(f"{session}\0{each.name}".encode()).digest()
            )
        else:
            turn = next(self._turn) % len(self.all_credentials)
            ranked = [*self.all_credentials[turn:], *self.all_credentials[:turn]]
        return sorted(ranked, key=lambda each: self.breaker.seconds_until_ready(self.name, each.name, model))

    def credential(self, name: str) -> Credential | None:
        """Return the credential of this name, if there is one."""
        return next((each for each in self.all_credentials if each.name == name), None)

    async def close_credentials(self) -> None:
        """Let credentials finish a renewal that is in progress."""
        for credential in self.all_credentials:
            if isinstance(credential, ClosableCredential):
                await credential.aclose()

    def is_cooling_down(self, credential: Credential, model: str) -> bool:
        """Return whether the credential is in cooldown, for requests that must not serve as a probe."""
        return self.upstream.limits.breaker and self.breaker.seconds_until_ready(self.name, credential.name, model) > 0

    async def open(
        self, request: HttpRequest, credential: Credential, sent: Conversation | None = None
    ) -> ClientResponse:
        """Sign and send a request that has all other headers. Return the response if its status is 2xx.

        `sent` is the conversation of the request. After 401 or 403, a credential that could be renewed is tried once
        more. Raises Refused, Redirected, CredentialFault, TransportError.
        """
        timeouts, patterns = self._timeouts, self.upstream.long_thinking
        if patterns and sent is not None and any(matches_pattern(each, sent.model) for each in patterns):
            timeouts = self._long_timeouts
        is_job, pool = sent is not None and sent.is_job, f"{self.name} {credential.name}"
        proxy = self.upstream.proxy.reveal() if self.upstream.proxy else None
        is_renewed = False
        while True:
            signed = await credential.sign(request)
            response = await self._client.open(
                self.base_url, signed, timeouts=timeouts, tls=self._tls, proxy=proxy, new_connection=is_job, pool=pool
            )
            if 200 <= response.status < 300:
                return response
            refusal = await self.read(response)
            if is_renewed or response.status not in (401, 403) or not await credential.refused(response.status):
                break
            is_renewed = True
        if 300 <= response.status < 400:
            raise Redirected(self.name, response.status)
        fault = with_reset(self.dialect.codec.parse_fault(refusal, sent), refusal, time.time())
        raise Refused(refusal, self._name_credential(fault))

    async def read(self, response: ClientResponse) -> HttpResponse:
        """Return a short response with its whole body; a body that is too long becomes empty."""
        try:
            body = await response.read(_REFUSAL_BYTES)
        except TooLarge:
            body = b""
        return HttpResponse(response.status, response.headers, body)

    def record_failure(self, permit: Permit, error: DragomanError) -> None:
        """Report a failed attempt to the circuit breaker, and keep its error for the status."""
        fault = error.fault
        permit.failed(error)
        if fault.kind not in REQUEST_ERROR_KINDS:
            self.failures += 1
        self.last_error, self.last_error_at = truncate_text(fault.message), time.time()

    @property
    def health(self) -> str:
        """`failing`, `cooling`, `ok` or `unused`."""
        if self.failures >= 3:
            return "failing"
        if all(self.breaker.is_cooling_down(self.name, each.name) for each in self.all_credentials):
            return "cooling"
        return "ok" if self.last_ok_at else "unused"

    def expiries(self) -> Iterator[tuple[str, float]]:
        """Yield the name of each credential that expires, with the seconds that are left."""
        for each in self.all_credentials:
            if each.expires_at is not None:
                yield each.name, each.expires_at - time.time()

    def describe(self) -> dict[str, Json]:
        """Return the state of this upstream, for the status. It may contain secrets."""
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
        """Yield the addresses of the upstream, its proxy and its sign-in services, each with its public name."""
        yield self.base_url, f"the upstream {self.name}"
        if self.upstream.proxy:
            yield self.upstream.proxy.reveal(), f"the proxy of {self.name}"
        yield from ((url, f"the sign-in service of {self.name}") for url in self._fetched_from)

    def secrets(self) -> Iterator[str]:
        """Return the secrets that the credentials hold now, for the redactor."""
        return (secret.reveal() for each in self.all_credentials for secret in each.secrets())

    def _name_credential(self, fault: Fault) -> Fault:
        """Say in the message that the gateway's credential was refused: the client's own key is valid."""
        if fault.kind not in ("auth", "permission"):
            return fault
        message = f"the upstream {self.name} refused this gateway's credential: {fault.message}"
        return structs.replace(fault, message=message)

    def own_headers(self) -> Headers:
        """Return the headers that this upstream gets with every request."""
        return (("user-agent", _AGENT), *((name, value.reveal()) for name, value in self.upstream.headers))

    async def _fetch(self, base_url: str, request: HttpRequest) -> HttpResponse:
        """Send a request of a credential to a sign-in service, through the proxy of this upstream."""
        self._fetched_from.add(base_url)
        proxy = self.upstream.proxy.reveal() if self.upstream.proxy else None
        timeouts = HttpTimeouts(head=_REFRESH_SECONDS, idle=_REFRESH_SECONDS, total=_REFRESH_SECONDS)
        response = await self._client.open(
            base_url, request, timeouts=timeouts, tls=self._tls, proxy=proxy, pool=f"{self.name} sign-in"
        )
        try:
            return HttpResponse(response.status, response.headers, await response.read(_REFUSAL_BYTES))
        finally:
            response.close()


def _timeouts(settings: TimeoutSettings) -> tuple[HttpTimeouts, HttpTimeouts]:
    """Return the timeouts for most models, and those for models that think long."""
    same = {name: value for name, value in structs.asdict(settings).items() if name not in ("first_byte", "long_idle")}
    usual = HttpTimeouts(head=settings.first_byte, **same)
    return usual, structs.replace(usual, idle=settings.long_idle, silent=max(settings.silent, settings.long_idle))


class Upstreams:
    """All upstreams of one configuration. Use it as a context manager while a request needs it."""

    def __init__(self, config: Config, client: HttpClient, breaker: CircuitBreaker | None = None) -> None:
        self.config, self.bounds = config, Bounds.of(config.server)
        self._client = client
        self.breaker = breaker or CircuitBreaker()
        self.by_name: dict[str, Backend] = {}
        self._embedded = AsyncExitStack()
        self._users = 0
        self._idle = asyncio.Event()

    async def start(self) -> None:
        """Create the backends, and start the simulators of the configuration."""
        for upstream in self.config.upstreams.values():
            base_url = upstream.base_url
            if upstream.kind == "simulator":
                base_url = await self._embed(upstream)
            self.by_name[upstream.name] = Backend(upstream, base_url, self._client, self.breaker)

    async def _embed(self, upstream: Upstream) -> str:
        from dragoman.simulator.server import Simulator  # noqa: PLC0415  imported only if used

        settings = upstream.simulator
        simulator = Simulator(upstream.dialect.name, profile=settings.profile, script=settings.script)
        await self._embedded.enter_async_context(simulator)
        return simulator.url

    @property
    def backends(self) -> Sequence[Backend]:
        """All upstreams, in the order of the configuration."""
        return tuple(self.by_name.values())

    def __enter__(self) -> None:
        """Count one more user; `retire` waits for all of them."""
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self._idle.set()

    async def retire(self) -> None:
        """Wait until no request uses these upstreams, then close them."""
        while self._users:
            self._idle.clear()
            await self._idle.wait()
        await self.aclose()

    async def close_credentials(self) -> None:
        """Let logins finish a renewal that is in progress. The HTTP client must still be open."""
        for backend in self.backends:
            await backend.close_credentials()

    async def aclose(self) -> None:
        """Close the credentials and stop the simulators."""
        await self.close_credentials()
        await self._embedded.aclose()
