"""The protocol of credentials, and helpers for all kinds: secrets, single-flight renewal, HTTP, masking.

`Fetch` sends requests through `dragoman.http`; the rest does no I/O.
"""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Generic, NoReturn, Protocol, TypeAlias, TypeVar, runtime_checkable
from urllib.parse import quote, quote_plus, unquote, urlsplit

from dragoman.errors import Fault, UpstreamFault
from dragoman.http.addresses import choose_proxy
from dragoman.http.client.client import HttpClient, HttpTimeouts
from dragoman.wire import jsonio
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

Fetch: TypeAlias = Callable[[str, HttpRequest], Awaitable[HttpResponse]]  # (base URL, request); raises TransportError
T = TypeVar("T")

_MAX_BODY = 1024 * 1024
_TIMEOUTS = HttpTimeouts(connect=5.0, tls=5.0, head=15.0, idle=15.0, total=15.0)


class Credential(Protocol):
    """Signs requests and renews itself. May raise CredentialFault, whose message says what the operator can do."""

    @property
    def name(self) -> str:
        """The name of the credential in logs and messages."""
        ...

    @property
    def expires_at(self) -> float | None:
        """The time at which it expires, in seconds of the epoch; None if it does not expire or the time is unknown."""

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """Return the request with a signature; each attempt needs its own."""

    async def on_refusal(self, status: int) -> bool:
        """Handle a refused signature. Return True if the credential was renewed: sign again and retry once."""

    def describe(self) -> dict[str, Json]:
        """Return the facts that a status page may show, without secrets."""

    def secrets(self) -> list[SecretText]:
        """Return all secrets that it has now, so that callers can mask them in logs."""


@runtime_checkable
class ClosableCredential(Protocol):
    """A credential that must be closed: a response to a renewal under way may be the only copy of a new login."""

    async def aclose(self) -> None:
        """Wait for a renewal under way, and store its result."""


class CredentialFault(UpstreamFault):
    """A credential cannot be used now. `is_permanent`: no retry helps; the operator must do what the message says."""

    def __init__(self, message: str, *, is_permanent: bool = True) -> None:
        fault = Fault("auth", message, 401) if is_permanent else Fault("server", message, 503)
        super().__init__(message, fault=fault)
        self.is_permanent = is_permanent


class MissingCredential(CredentialFault):
    """The gateway has no key or login for an upstream.

    Clients get a 500: with a 401 they would take their own key for the wrong one.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.fault = Fault("server", message, 500)


class SecretText:
    """A text that only `reveal` returns: logs, a repr or an f-string do not show it."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the secret."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "Secret(***)" if self._text else "Secret()"

    __str__ = __repr__

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


class LazyCredential:
    """A credential that is created at its first use, so that the user may log in after the gateway has started."""

    def __init__(self, name: str, create: Callable[[str], Awaitable[Credential]]) -> None:
        self.name, self._create = name, create
        self._credential: Credential | None = None

    @property
    def expires_at(self) -> float | None:
        """When the credential expires; None also before its first use."""
        return self._credential.expires_at if self._credential else None

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """Sign a request; the first one creates the credential."""
        if self._credential is None:
            self._credential = await self._create(self.name)
        return await self._credential.sign(request)

    async def on_refusal(self, status: int) -> bool:
        """Let the credential handle a refused signature; see `Credential.on_refusal`."""
        return self._credential is not None and await self._credential.on_refusal(status)

    async def aclose(self) -> None:
        """Close the credential, if it has been created."""
        credential = self._credential
        if credential is not None and isinstance(credential, ClosableCredential):
            await credential.aclose()

    def describe(self) -> dict[str, Json]:
        """Return the facts of the credential, or that it has not been used yet."""
        if self._credential is None:
            return {"name": self.name, "type": "login", "state": "not used yet"}
        return self._credential.describe()

    def secrets(self) -> list[SecretText]:
        """Return the secrets of the credential; none before its first use."""
        return self._credential.secrets() if self._credential else []


def with_headers(request: HttpRequest, headers: Headers) -> HttpRequest:
    """Return the request with these headers; they replace its own of the same names."""
    names = [name for name, _ in headers]
    others = [header for header in request.headers if header[0] not in names]
    return HttpRequest(request.method, request.path, request.query, (*others, *headers), request.body)


class SingleFlight(Generic[T]):
    """Run a job at most once at a time; callers that come while it runs wait for the same run.

    The run is a task of its own, so that cancelling a caller (its client disconnected) does not cancel the run.
    """

    def __init__(self, job: Callable[[], Awaitable[T]]) -> None:
        self._job = job
        self._task: asyncio.Task[T] | None = None

    async def join(self) -> T:
        """Wait for the run under way, or start one."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._done)
        return await asyncio.shield(self._task)

    async def settle(self) -> None:
        """Wait until no run is under way. Errors of the run go to its callers."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> T:
        return await self._job()

    def _done(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved: all callers may have been cancelled


def json_object_of(response: HttpResponse) -> dict[str, Json]:
    """Return the JSON object in a response; empty if there is none."""
    return jsonio.decode_object(response.body) or {}


@asynccontextmanager
async def open_fetch(environ: Mapping[str, str]) -> AsyncIterator[Fetch]:
    """Provide a `Fetch` with its own HTTP client, which is closed at the end."""
    client = HttpClient()
    try:
        yield make_fetch(client, environ)
    finally:
        await client.aclose()


def make_fetch(client: HttpClient, environ: Mapping[str, str]) -> Fetch:
    """Return a `Fetch` that uses the client, and the proxies of the environment."""

    async def fetch(base_url: str, request: HttpRequest) -> HttpResponse:
        proxy = choose_proxy(base_url, environ)
        response = await client.open(base_url, request, timeouts=_TIMEOUTS, proxy=proxy)
        return HttpResponse(response.status, response.headers, await response.read(_MAX_BODY))

    return fetch


# --- masking: a secret may be in a text as it is, in JSON, in a URL or in base64


MASK = "***"
_MIN_LENGTH = 6  # shorter secrets would mask common words
_MIN_CORE = 8


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with these secrets masked, in every encoding."""
    for spelling in _all_spellings(tuple(secrets)):
        if spelling in text:
            text = text.replace(spelling, MASK)
    return text


@lru_cache(maxsize=16)
def _all_spellings(secrets: tuple[str, ...]) -> tuple[str, ...]:
    spellings = {spelling for secret in secrets for spelling in encoded_forms(secret)}
    return tuple(sorted(spellings, key=lambda each: (-len(each), each)))


def encoded_forms(secret: str) -> set[str]:
    """Return all texts that reveal the secret; none for a secret that is too short to differ from a common word."""
    return {each for part in (secret, *_user_info(secret)) if len(part) >= _MIN_LENGTH for each in _spellings(part)}


def _user_info(secret: str) -> Iterator[str]:
    """Yield the secrets in a URL: a proxy gets user and password separately, and decoded."""
    if "@" not in secret:
        return
    try:
        user = urlsplit(secret if "://" in secret else f"//{secret}").netloc.rpartition("@")[0]
    except ValueError:
        return
    password = user.partition(":")[2]
    yield from (user, unquote(user), password, unquote(password))


def _spellings(text: str) -> Iterator[str]:
    yield text
    yield jsonio.quote(text).decode()[1:-1]
    for quoted in (quote(text, safe=""), quote(text), quote_plus(text)):
        yield quoted
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)
    raw = text.encode(errors="surrogatepass")
    for encode in (b64encode, urlsafe_b64encode):
        yield from (core for offset in range(3) if len(core := _core(raw, offset, encode)) >= _MIN_CORE)


def _core(raw: bytes, offset: int, encode: Callable[[bytes], bytes]) -> str:
    """Return the part of its base64 that is the same in every longer text, at this offset modulo 3."""
    encoded = encode(bytes(offset) + raw).decode()
    return encoded[(0, 2, 3)[offset] : len(encoded) - (0, 3, 2)[(offset + len(raw)) % 3]]
