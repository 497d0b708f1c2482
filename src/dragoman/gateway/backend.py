"""One upstream of a running gateway: its credentials, connections, concurrency limits and health.

Clients name their session in a header or in the user id. All requests of a session prefer one credential, and the
upstream that last reported a prompt cache for it: another one would have to read the whole prompt again.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct, structs

from dragoman._version import __version__
from dragoman.errors import REQUEST_ERROR_KINDS, DragomanError, Fault, TooLarge
from dragoman.gateway.breaker import CircuitBreaker, Permit
from dragoman.gateway.planning import PlanCache
from dragoman.gateway.redaction import KnownAddress, truncate_text
from dragoman.gateway.retry_policy import Redirected, Refused, RetryBudget, with_reset
from dragoman.gateway.targets import Target
from dragoman.gateway.upstream_config import TimeoutSettings, Upstream
from dragoman.gateway.upstream_credentials import MissingSecret, credentials_of, header_settings, proxy_setting
from dragoman.http.client.client import ClientResponse, ConnectionSlots, HttpClient, HttpTimeouts, TlsSettings
from dragoman.model.conversation import Conversation, Usage
from dragoman.model.patterns import matches_pattern
from dragoman.upstream.credentials import ClosableCredential, Credential
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

SESSION_HEADERS = ("x-claude-code-session-id", "x-session-id", "session-id", "session_id", "x-session-affinity")
_AGENT_HEADERS = ("x-claude-code-agent-id", "x-openai-subagent")  # an agent has a prompt, and so a cache, of its own
_SESSION_OR_AGENT = frozenset((*SESSION_HEADERS, *_AGENT_HEADERS))
# Claude Code's user id: a JSON object, or in older versions `user_HASH_account_UUID_session_UUID`.
_SESSION_IN_USER = re.compile(r'"session_id"\s*:\s*"([^"]{1,128})"|_session_([0-9a-fA-F-]{8,64})\Z')
_CACHE_KEY = "prompt_cache_key"
_KEY_BYTES = 24  # 32 characters of base64; OpenAI's limit is 64
MAX_HOLDERS = 10_000
T = TypeVar("T")

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
        self._headers, self._proxy = tuple(header_settings(upstream)), proxy_setting(upstream)
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
        self,
        request: HttpRequest,
        credential: Credential,
        sent: Conversation | None = None,
        on_signed: Callable[[str, HttpRequest, HttpRequest], None] | None = None,
    ) -> ClientResponse:
        """Sign and send a request that has all other headers. Return the response if its status is 2xx.

        `sent` is the conversation of the request. `on_signed` gets the base URL, the request, and what is sent. After
        401 or 403, a credential that could be renewed is tried once more. Raises Refused, Redirected, CredentialFault,
        TransportError.
        """
        timeouts, patterns = self._timeouts, self.upstream.long_thinking
        if patterns and sent is not None and any(matches_pattern(each, sent.model) for each in patterns):
            timeouts = self._long_timeouts
        is_job, pool = sent is not None and sent.is_job, f"{self.name} {credential.name}"
        proxy = self._proxy.reveal() if self._proxy else None
        is_renewed = False
        while True:
            signed = await credential.sign(request)
            if on_signed is not None:
                on_signed(self.base_url, request, signed)
            response = await self._client.open(
                self.base_url, signed, timeouts=timeouts, tls=self._tls, proxy=proxy, new_connection=is_job, pool=pool
            )
            if 200 <= response.status < 300:
                return response
            refusal = await self.read(response)
            if is_renewed or response.status not in (401, 403) or not await credential.on_refusal(response.status):
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
        if not isinstance(error, MissingSecret):  # It says nothing about the upstream: nothing was sent.
            permit.report_failed(error)
            self.failures += fault.kind not in REQUEST_ERROR_KINDS
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
            "credentials": [*(each.describe() for each in self.all_credentials), *self._missing_settings()],
        }

    def _missing_settings(self) -> Iterator[dict[str, Json]]:
        """Yield a row like those of credentials for each header, and the proxy, whose value is missing."""
        for each in (*(setting for _, setting in self._headers), *((self._proxy,) if self._proxy else ())):
            if each.problem:
                yield {
                    "name": each.what,
                    "type": "setting",
                    "source": each.secret.shown,
                    "state": "missing",
                    "problem": each.problem,
                }

    def addresses(self) -> Iterator[KnownAddress]:
        """Yield the addresses of the upstream, its proxy and its sign-in services, each with its public name."""
        yield self.base_url, f"the upstream {self.name}"
        if self.upstream.proxy and (proxy := self.upstream.proxy.revealed):
            yield proxy, f"the proxy of {self.name}"
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
        """Return the headers that this upstream gets with every request. Raises MissingSecret."""
        own = {name: setting.reveal() for name, setting in self._headers}
        return tuple({"user-agent": _AGENT, **own}.items())

    async def _fetch(self, base_url: str, request: HttpRequest) -> HttpResponse:
        """Send a request of a credential to a sign-in service, through the proxy of this upstream."""
        self._fetched_from.add(base_url)
        proxy = self._proxy.reveal() if self._proxy else None
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


# --- the session of a client, and which upstream and credential hold its prompt cache


class ClientSession(Struct, frozen=True):
    """The session of one request. Both values are empty if the client names none."""

    affinity: str = ""  # requests with equal values prefer the same credential
    key: str = ""  # of the prompt cache: a hash of the client's key, the session and the agent

    @property
    def cache(self) -> str:
        """The key of the prompt cache, which no other client has."""
        return self.key or self.affinity


def find_session(request: HttpRequest, parameters: Conversation, owner: str) -> ClientSession:
    """Return the session of a request from its headers, its user id or its own key of the prompt cache."""
    headers = {name: value for name, value in request.headers if name in _SESSION_OR_AGENT and value}
    named = next((headers[name] for name in SESSION_HEADERS if name in headers), "") if headers else ""
    key = ""
    if not named and parameters.user and (found := _SESSION_IN_USER.search(parameters.user)):
        named = found[1] or found[2]
    if named:
        key = _cache_key(owner, named, next((headers[name] for name in _AGENT_HEADERS if name in headers), ""))
    own = parameters.extra.fields.get(_CACHE_KEY) if parameters.extra is not None else None
    return ClientSession(named or (own if isinstance(own, str) else "") or parameters.user, key)


def _cache_key(owner: str, session: str, agent: str) -> str:
    digest = hashlib.sha256("\0".join(("dragoman", owner, session, agent)).encode(errors="surrogatepass")).digest()
    return base64.urlsafe_b64encode(digest[:_KEY_BYTES]).decode()


class CacheHolder(Struct, frozen=True):
    """The upstream and the credential that hold the prompt cache of a session."""

    upstream: str
    credential: str
    until: float


class CacheHolders:
    """The holders of prompt caches by session and model, in memory. The oldest is removed when there are too many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, most: int = MAX_HOLDERS) -> None:
        self._clock, self._most = clock, most
        self._holders: OrderedDict[tuple[str, str], CacheHolder] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def remember(self, session: str, model: str, backend: Backend, credential: str, usage: Usage | None) -> None:
        """Record which upstream and credential responded, if the response reports a prompt cache."""
        seconds = backend.upstream.limits.cache_affinity
        if not seconds or usage is None or not (usage.cache_read or usage.cache_write):
            return
        self._holders[session, model] = CacheHolder(backend.name, credential, self._clock() + seconds)
        self._holders.move_to_end((session, model))
        if len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def find(self, session: str, model: str) -> CacheHolder | None:
        """Return the holder of the session's cache; None if there is none, or the cache has probably expired."""
        holder = self._holders.get((session, model)) if session else None
        return holder if holder is not None and holder.until > self._clock() else None

    def order_targets(
        self, session: str, model: str, targets: Sequence[Target], backends: dict[str, Backend]
    ) -> Sequence[Target]:
        """Return the targets with the one that holds the cache first, unless it is in cooldown."""
        holder = self.find(session, model)
        if holder is None:
            return targets
        return _first(targets, lambda target: _is_ready(backends[target.upstream.name], holder, target.model))

    def order_credentials(
        self, session: str, model: str, backend: Backend, credentials: list[Credential], used_model: str
    ) -> list[Credential]:
        """Return the credentials with the one that holds the cache first, unless it is in cooldown."""
        holder = self.find(session, model)
        if holder is None or not _is_ready(backend, holder, used_model):
            return credentials
        return list(_first(credentials, lambda credential: credential.name == holder.credential))


def _first(values: Sequence[T], is_first: Callable[[T], bool]) -> Sequence[T]:
    return sorted(values, key=lambda value: not is_first(value))


def _is_ready(backend: Backend, holder: CacheHolder, model: str) -> bool:
    seconds = backend.breaker.seconds_until_ready(backend.name, holder.credential, model)
    return backend.name == holder.upstream and seconds <= 0
