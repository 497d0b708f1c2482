"""What a request to an upstream is signed with: the protocol, and what every kind of credential needs."""

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

_LARGEST = 1024 * 1024
_TIMEOUTS = HttpTimeouts(connect=5.0, tls=5.0, head=15.0, idle=15.0, total=15.0)


class Credential(Protocol):
    """Signs requests and renews itself. Both methods may raise CredentialFault, which says what a person must do."""

    @property
    def name(self) -> str: ...

    @property
    def expires_at(self) -> float | None:
        """When it ends, in seconds of the epoch; None if it does not, or if nobody knows."""

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """The request as it may go out, signed anew for each attempt."""

    async def refused(self, status: int) -> bool:
        """The upstream did not accept the signature. True: something was renewed, sign again and try once more."""

    def describe(self) -> dict[str, Json]:
        """What a status page may show. No secret is in it."""

    def secrets(self) -> list[SecretText]:
        """All that it holds now and nobody may see, for those who must keep it out of logs."""


@runtime_checkable
class ClosableCredential(Protocol):
    """A credential that must not be dropped while it renews itself: the answer may be the only copy of a new login."""

    async def aclose(self) -> None: ...


class CredentialFault(UpstreamFault):
    """A credential that cannot be used now. `lasting`: no retry helps, a person must do what the message says."""

    def __init__(self, message: str, *, is_permanent: bool = True) -> None:
        fault = Fault("auth", message, 401) if is_permanent else Fault("server", message, 503)
        super().__init__(message, fault=fault)
        self.is_permanent = is_permanent


class SecretText:
    """A text that shows itself only when it is asked to: not in logs, in a repr or in an f-string."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
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
        raise TypeError("a secret is not pickled")


def with_headers(request: HttpRequest, headers: Headers) -> HttpRequest:
    """The request with these headers in place of its own of the same names."""
    names = [name for name, _ in headers]
    kept = [header for header in request.headers if header[0] not in names]
    return HttpRequest(request.method, request.path, request.query, (*kept, *headers), request.body)


class SingleFlight(Generic[T]):
    """One run of a job at a time: whoever asks while it runs waits for the same run.

    The run is a task of its own, so that a caller who is cancelled (a client that left) does not take it along.
    """

    def __init__(self, job: Callable[[], Awaitable[T]]) -> None:
        self._job = job
        self._task: asyncio.Task[T] | None = None

    async def join(self) -> T:
        """Wait for the run under way, or start one."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._landed)
        return await asyncio.shield(self._task)

    async def settle(self) -> None:
        """Wait until nothing runs. What became of the run is its callers' affair."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> T:
        return await self._job()

    def _landed(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # marks it as seen: all who asked may have left


def json_object_of(response: HttpResponse) -> dict[str, Json]:
    """The JSON object in an answer; empty if there is none."""
    return jsonio.decode_object(response.body) or {}


@asynccontextmanager
async def open_fetch(environ: Mapping[str, str]) -> AsyncIterator[Fetch]:
    """A `Fetch` with a client of its own, for as long as this lasts."""
    client = HttpClient()
    try:
        yield make_fetch(client, environ)
    finally:
        await client.aclose()


def make_fetch(client: HttpClient, environ: Mapping[str, str]) -> Fetch:
    """Make a `Fetch` of a client; proxies are those the environment names."""

    async def fetch(base_url: str, request: HttpRequest) -> HttpResponse:
        proxy = choose_proxy(base_url, environ)
        reply = await client.open(base_url, request, timeouts=_TIMEOUTS, proxy=proxy)
        return HttpResponse(reply.status, reply.headers, await reply.read(_LARGEST))

    return fetch


# --- how a secret may stand in a text: plainly, in JSON, in a URL, in base64; and the text without it


MASK = "***"
_SHORTEST = 6  # shorter ones would mask common words
_SHORTEST_CORE = 8


def mask_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text without these secrets, however they are spelt."""
    for spelling in _all_spellings(tuple(secrets)):
        if spelling in text:
            text = text.replace(spelling, MASK)
    return text


@lru_cache(maxsize=16)
def _all_spellings(secrets: tuple[str, ...]) -> tuple[str, ...]:
    found = {spelling for secret in secrets for spelling in encoded_forms(secret)}
    return tuple(sorted(found, key=lambda each: (-len(each), each)))


def encoded_forms(secret: str) -> set[str]:
    """All that gives the secret away; nothing for one too short to be told from a word."""
    return {each for part in (secret, *_inside(secret)) if len(part) >= _SHORTEST for each in _spelt(part)}


def _inside(secret: str) -> Iterator[str]:
    """The secrets within an address: a proxy is told its user and password on their own, and decoded."""
    if "@" not in secret:
        return
    try:
        user = urlsplit(secret if "://" in secret else f"//{secret}").netloc.rpartition("@")[0]
    except ValueError:
        return
    password = user.partition(":")[2]
    yield from (user, unquote(user), password, unquote(password))


def _spelt(text: str) -> Iterator[str]:
    yield text
    yield jsonio.quote(text).decode()[1:-1]
    for spelt in (quote(text, safe=""), quote(text), quote_plus(text)):
        yield spelt
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), spelt)
    raw = text.encode(errors="surrogatepass")
    for encode in (b64encode, urlsafe_b64encode):
        yield from (core for offset in range(3) if len(core := _core(raw, offset, encode)) >= _SHORTEST_CORE)


def _core(raw: bytes, offset: int, encode: Callable[[bytes], bytes]) -> str:
    """What is the same of its base64 wherever it stands in a longer text: after so many bytes, whatever follows."""
    encoded = encode(bytes(offset) + raw).decode()
    return encoded[(0, 2, 3)[offset] : len(encoded) - (0, 3, 2)[(offset + len(raw)) % 3]]
