"""Admission: decide which requests are served, and read their bodies. The checks are: head, key, limits, body.

`KeyCheck` finds the account of a request. A key comes in a key header, as a bearer token, or on Gemini's paths in the
query: the gateway's own, or a client key if there is a store of accounts. An AWS signature proves the gateway's own
key, or the AWS secret of the client key whose id it names (`accounts.keys`).

A request does not count toward `server.limits` before it has proven the key. A request whose signature covers its
body waits in a separate pool until the body has arrived.

The HTTP parser accepts some invalid heads (two Host headers, a transfer encoding that is not decoded), and a web page
may let its own host name resolve to loopback (DNS rebinding). So `HeadCheck` checks every head, for every server.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct, structs

from dragoman.accounts.account import Account
from dragoman.errors import ClientFault, Fault, NotAuthorised
from dragoman.gateway.aws_signatures import UNSIGNED, AwsSignature, parse_signature, sign
from dragoman.gateway.config import Server
from dragoman.gateway.limits import MemoryAccount, MemoryBudget
from dragoman.gateway.records import Record, utc_time
from dragoman.gateway.unproven import UnprovenRequests
from dragoman.http.addresses import is_loopback, limit_key, normalize_address
from dragoman.http.exchange import BodyTimeout, Exchange, Owner
from dragoman.http.framing import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from dragoman.wire.http import Headers, HttpRequest

if TYPE_CHECKING:
    from dragoman.accounts.book import AccountBook

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAX_HOPS = 32  # entries of X-Forwarded-For that are read, from the right
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?", re.ASCII)
_INVALID_IN_TARGET = re.compile(r"[^\x21-\x7e]")
_ONCE = ("host", "content-length", "transfer-encoding", "origin", "content-encoding", "expect", "upgrade")
_READ = frozenset({*_ONCE, "sec-fetch-site"})
_FRAMING = frozenset({"transfer-encoding", "content-encoding", "expect"})
_FROM_PAGES = frozenset({"origin", "sec-fetch-site"})
_OWN_SITE = ("", "none", "same-origin")  # values of Sec-Fetch-Site: a typed address, or a page of this server
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_SEEN_HOSTS = 64  # accepted Host values that are cached

TOO_MANY_HEADERS = Fault("invalid", "the request has too many or too long headers", 431)
TOO_LONG_TARGET = Fault("invalid", "the request's URL is too long", 414)
WEBSOCKET_OFFERED = Fault("invalid", "WebSockets are not supported here: send POST /v1/responses over HTTP/1.1", 426)
_OTHER_SITES = Fault(
    "permission", "a web page of another site sent this request (see Origin, Sec-Fetch-Site): that is not allowed", 403
)
SECONDS = 10.0  # for the whole body of an unproven request

_KEY_HEADERS = ("x-api-key", "x-goog-api-key")
# Clients of Gemini may send the key as `?key=`. Elsewhere it is no place for a key: proxies and browsers keep URLs.
_KEY_IN_QUERY = re.compile(r"/v1(?:alpha|beta)/|/v1/models/[^/]+:")
WRONG_KEY = (
    "the key of this gateway is missing or wrong: send it as x-api-key, x-goog-api-key or a bearer token"
    " (`dragoman serve` shows where it is)"
)
SKEW = 15 * 60.0  # seconds by which a signer's clock may be wrong


class Admission:
    """Checks and admits requests by the current configuration; `configure` replaces it."""

    def __init__(self, settings: Server, keys: KeyCheck) -> None:
        self.memory_budget = MemoryBudget(settings.limits)
        self._unproven = UnprovenRequests(settings.limits)
        self.configure(settings, keys)

    def configure(self, settings: Server, keys: KeyCheck) -> None:
        """Use these settings and keys for all further requests."""
        self.memory_budget.resize(settings.limits)
        self._unproven.resize(settings.limits)
        self._head_check, self._keys = HeadCheck(settings.host, settings.hosts, settings.websockets), keys
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self._max_body = settings.max_body
        self._body_timeout = BodyTimeout(rate=settings.min_body_rate)
        self._unproven_body_timeout = BodyTimeout(SECONDS, settings.min_body_rate)

    def serves(self, exchange: Exchange[MemoryAccount]) -> bool:
        """Return whether the head passes `HeadCheck`. The key is not checked."""
        return self._head_check.refusal(exchange.request, target=exchange.target, version=exchange.version) is None

    async def request(self, exchange: Exchange[MemoryAccount], record: Record) -> HttpRequest:
        """Return an authorised request with its body, and store its account in the record.

        Raises ClientFault, ClientDisconnected.
        """
        found, peer = await self.judge_head(exchange), limit_key(exchange.client)
        claim = found if isinstance(found, SignatureClaim) else None
        is_proven = claim is None or claim.is_proven
        if claim is None or is_proven:
            exchange.on_admitted()
            exchange.memory = self.memory_budget.enter(peer)
        else:
            exchange.memory = self._unproven.enter(peer, claim.signature.id, exchange.fail_body)
        body = await exchange.body(self._max_body, self._body_timeout if is_proven else self._unproven_body_timeout)
        if exchange.memory.request_bytes != len(body):
            exchange.memory.hold("body", len(body))  # The announced length may have been wrong.
        request = exchange.request
        if body is not request.body:
            request = exchange.request = structs.replace(request, body=body)
        if claim is not None:
            claim.check_body(request)
            if not is_proven:
                self._unproven.remember(peer, claim.signature.id)
                self._admit(exchange, peer, len(body))
        account = found.account if isinstance(found, SignatureClaim) else found
        self._keys.check_validity(account)
        record.account, exchange.owner = account, Owner(account.id)
        return request

    async def judge_head(self, exchange: Exchange[MemoryAccount]) -> Account | SignatureClaim:
        """Return the account of a head, or the claim of its signature. Raises ClientFault.

        A connection whose head is refused closes after the response (`exchange.last`).
        """
        fault = self._head_check.refusal(exchange.request, target=exchange.target, version=exchange.version)
        if fault is not None:
            exchange.last = True
            raise ClientFault(fault.message, fault=fault)
        return self._keys.find_known(exchange.request) or await self._keys.find(exchange.request)

    def _admit(self, exchange: Exchange[MemoryAccount], peer: str, size: int) -> None:
        """Move a request whose signature has been checked from the pool to the limits. Raises Overloaded."""
        exchange.on_admitted()
        unproven, exchange.memory = exchange.memory, self.memory_budget.enter(peer)
        if unproven is not None:
            unproven.leave()
        exchange.memory.reserve(size)


class SignatureClaim(Struct, frozen=True):
    """A signature that may still have to be compared with the body, and the account that it proves then."""

    signature: AwsSignature
    secrets: tuple[bytes, ...]  # each of which may have signed
    account: Account

    @property
    def is_proven(self) -> bool:
        """Whether the head alone was enough to check the signature; the body's hash is compared later."""
        return self.signature.is_proven

    def check_signature(self, request: HttpRequest) -> None:
        """Raises NotAuthorised."""
        claimed, is_right = self.signature, False
        for secret in self.secrets:
            expected = sign(request, secret, claimed.date, claimed.region, claimed.service, claimed.headers)
            is_right |= hmac.compare_digest(expected, claimed.signature)
        if not is_right:
            raise NotAuthorised(WRONG_KEY)

    def check_body(self, request: HttpRequest) -> None:
        """Check the body of the request against the signature. Raises NotAuthorised."""
        if not self.is_proven:
            self.check_signature(request)
        elif self.signature.payload != hashlib.sha256(request.body).hexdigest():
            raise NotAuthorised(WRONG_KEY)


class KeyCheck:
    """Finds the account of a request. Every refusal of an unknown key has the same words, so that it reveals nothing.

    Digests are compared, so that the time of the comparison reveals neither a key's length nor a common prefix.
    """

    def __init__(self, key: str, book: AccountBook | None = None, *, now: Callable[[], float] = time.time) -> None:
        if not key:
            raise ValueError("the gateway has no key: set server.key, or delete it so that one is created")
        self._key = key
        self._digest = hashlib.sha256(key.encode()).digest()
        self._book = book
        self._own = Account() if book is None else book.gateway
        self._now = now

    def find_known(self, head: HttpRequest) -> Account | None:
        """Return the account of a key in the headers, if it is the gateway's own or was found before.

        Other headers may contain keys of other services.
        """
        found, book = None, self._book
        for candidate in _candidates(head):
            digest = hashlib.sha256(candidate.encode("utf-8", "surrogatepass")).digest()
            if hmac.compare_digest(digest, self._digest):
                found = self._own
            elif book is not None and found is None:
                found = book.find_cached(digest)
        return found

    async def find(self, head: HttpRequest) -> Account | SignatureClaim:
        """Return the account of a key or of a signature in the head, or the claim of a signature that covers the body.

        Raises NotAuthorised; ClientFault (503) if the store of accounts cannot be read.
        """
        if self._book is not None:
            from dragoman.accounts.keys import digest_of, is_client_key  # noqa: PLC0415  only with a store

            for candidate in _candidates(head):
                if is_client_key(candidate) and (account := await self._book.find(digest_of(candidate))) is not None:
                    return account
        claim = await self._claim(head)
        if claim.is_proven:
            claim.check_signature(head)
        return claim.account if claim.signature.payload == UNSIGNED else claim

    async def _claim(self, head: HttpRequest) -> SignatureClaim:
        """Return what the AWS signature of a head claims. Raises NotAuthorised if there is none, or an old one."""
        signature = parse_signature(head)
        if signature is None:
            raise NotAuthorised(WRONG_KEY)
        if not self._is_recent(signature.date):
            raise NotAuthorised(f"{WRONG_KEY}; or the clock of the client is wrong")
        found = None if self._book is None else await self._book.find_by_id(signature.id)
        if found is None:
            return SignatureClaim(signature, (self._key.encode(),), self._own)
        from dragoman.accounts.keys import aws_secrets  # noqa: PLC0415  only with a store

        key, account = found
        return SignatureClaim(signature, aws_secrets(self._key, key, self._now()), account)

    def check_validity(self, account: Account) -> None:
        """Raises NotAuthorised for a key that was revoked or has expired. Its holder may know which."""
        if account.ends_at > self._now():
            return
        what = "was revoked" if account.is_revoked else f"expired at {utc_time(account.ends_at)}"
        raise NotAuthorised(f"the key {account.name or account.id} of this gateway {what}; ask for a new one")

    def _is_recent(self, moment: str) -> bool:
        try:
            signed_at = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return False
        return abs(self._now() - signed_at) <= SKEW


def _candidates(head: HttpRequest) -> Iterator[str]:
    """Yield the texts of a head that may be a key."""
    for name, value in head.headers:
        if name == "authorization":
            scheme, _, candidate = value.partition(" ")
            if scheme.lower() == "bearer":
                yield candidate.strip()
        elif name in _KEY_HEADERS:
            yield value
    if "key=" in head.query and _KEY_IN_QUERY.match(head.path):
        yield head.parameter("key")


def check_model(account: Account, model: str) -> None:
    """Raise ClientFault (403) for a model that the key may not ask for."""
    if not account.allows_model(model):
        raise model_not_allowed(account, model)


def model_not_allowed(account: Account, model: str) -> ClientFault:
    """Return the refusal of a model that a key may not ask for (403)."""
    allowed = ", ".join(account.models)
    message = (
        f"the key {account.name or account.id} may not ask for the model {model[:200]!r}; it may ask for: {allowed}"
    )
    return ClientFault(message, fault=Fault("permission", message, 403))


class HeadCheck:
    """Checks the head of a request: its size, request line, framing, Host and Origin.

    Allowed hosts are the names of loopback, `host` and `hosts`; if the server does not listen on loopback, any IP
    address too.
    """

    def __init__(self, host: str, hosts: Collection[str] = (), websockets: bool = False) -> None:
        self._websockets = websockets  # whether a WebSocket of Responses is accepted
        own = () if _is_address(host) and ipaddress.ip_address(host).is_unspecified else (host.lower(),)
        self._names = {"localhost", *own, *(name.lower() for name in hosts)}
        self._beyond_loopback = not is_loopback(host)
        self._seen: set[str] = set()  # Host values that passed

    def refusal(self, request: HttpRequest, *, target: str = "", version: str = "1.1") -> Fault | None:
        """Return why the request is refused, or None. `target` is the target of the request line, unchanged."""
        size, headers = 0, {}
        for name, value in request.headers:
            size += len(name) + len(value)
            if name in _READ:
                if name in headers and name in _ONCE:
                    return Fault("invalid", f"the request has the header {name} twice", 400)
                headers[name] = value
        if len(request.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            return TOO_MANY_HEADERS
        return (
            _bad_line(request, target or request.path)
            or (_bad_framing(headers, version) if version != "1.1" or headers.keys() & _FRAMING else None)
            or (self._bad_upgrade(request, headers["upgrade"]) if "upgrade" in headers else None)
            or (self._bad_host(headers.get("host")) if headers.get("host") not in self._seen else None)
            or (self._bad_origin(headers) if headers.keys() & _FROM_PAGES else None)
        )

    def _bad_upgrade(self, request: HttpRequest, upgrade: str) -> Fault | None:
        fault = upgrade_refusal(request, upgrade)
        return None if self._websockets and fault is WEBSOCKET_OFFERED else fault

    def _bad_host(self, host: str | None) -> Fault | None:
        found = _HOST.fullmatch(host) if host else None
        if host is None or found is None:
            return Fault("invalid", "expected one Host header with a name and a port", 400)
        if not self._knows(found[1]):
            message = f"this server is not {found[1]}; add the name to server.hosts in the configuration if it is"
            return Fault("invalid", message, 421)
        if len(self._seen) < _MAX_SEEN_HOSTS:
            self._seen.add(host)
        return None

    def _bad_origin(self, headers: dict[str, str]) -> Fault | None:
        """Refuse a web page of another site, even if it has the key."""
        if headers.get("sec-fetch-site", "").strip().lower() not in _OWN_SITE:
            return _OTHER_SITES
        origin = headers.get("origin")
        if not origin or self._is_own_origin(origin, headers.get("host", "")):
            return None
        return _OTHER_SITES

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """Return whether the origin is this server: one of its names, or the same host and port as the Host header.

        Beyond loopback any IP address passes as a Host, but not as an origin.
        """
        try:
            page = urlsplit(origin)
            own = urlsplit(f"{page.scheme}://{host}")
            default = _DEFAULT_PORTS.get(page.scheme)
            if page.hostname and (page.hostname, page.port or default) == (own.hostname, own.port or default):
                return True
            return self._is_named(page.hostname or "")
        except ValueError:
            return False

    def _knows(self, name: str) -> bool:
        return self._is_named(name) or (self._beyond_loopback and _is_address(_plain(name)))

    def _is_named(self, name: str) -> bool:
        return _plain(name) in self._names or is_loopback(_plain(name))


def _bad_line(request: HttpRequest, target: str) -> Fault | None:
    """Return a fault for CONNECT, TRACE, and a target that is not a path: its host could contradict the Host header."""
    if len(target) > MAX_TARGET_BYTES or len(request.path) + len(request.query) > MAX_TARGET_BYTES:
        return TOO_LONG_TARGET
    if request.method in ("CONNECT", "TRACE"):
        return Fault("invalid", f"the method {request.method} is not supported", 405)
    if not target.startswith("/") or "#" in target or _INVALID_IN_TARGET.search(target):
        return Fault("invalid", "the request's target must be a path: /, then ASCII without spaces and #", 400)
    return None


def _bad_framing(headers: dict[str, str], version: str) -> Fault | None:
    """Return a fault for headers that make the end of the body ambiguous, and for encodings that are not supported."""
    encoding = headers.get("transfer-encoding")
    if encoding is not None:
        if encoding.lower() != "chunked":
            return Fault("invalid", "the only supported transfer encoding is chunked", 400)
        if "content-length" in headers:
            return Fault("invalid", "a request must not have both Content-Length and Transfer-Encoding", 400)
        if version != "1.1":
            return Fault("invalid", f"HTTP/{version} has no transfer encodings", 400)
    if version not in ("1.1", "1.0"):
        return Fault("invalid", f"HTTP/{version} is not supported; use HTTP/1.1", 505)
    if headers.get("content-encoding", "identity").lower() != "identity":
        message = "compressed request bodies are not supported; send the body without Content-Encoding"
        return Fault("invalid", message, 415)
    if headers.get("expect", "100-continue").lower() != "100-continue":
        return Fault("invalid", "the header Expect may only be 100-continue; remove it or correct it", 417)
    return None


def upgrade_refusal(request: HttpRequest, upgrade: str) -> Fault:
    """Return the refusal of an offered upgrade: `WEBSOCKET_OFFERED` for a WebSocket of Responses.

    Codex first offers a WebSocket for Responses. With 426 it uses HTTP at once; with 400 it gives up.
    """
    offered = {each.strip().lower() for each in upgrade.split(",")}
    if request.method == "GET" and request.path.rstrip("/").endswith("/responses") and "websocket" in offered:
        return WEBSOCKET_OFFERED
    return Fault("invalid", "only HTTP/1.1 is supported: send the request without an Upgrade header", 400)


def _plain(name: str) -> str:
    return name.strip("[]").lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class TrustedProxies:
    """The proxies whose X-Forwarded-For header is trusted."""

    def __init__(self, networks: Iterable[str]) -> None:
        self.networks: list[Network] = [ipaddress.ip_network(text, strict=False) for text in networks]

    def trusts(self, address: str) -> bool:
        """Return whether the address belongs to a trusted proxy."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)

    def client_of(self, peer: str, headers: Headers) -> str:
        """Return the address of the client behind this peer: the last hop of X-Forwarded-For that is not trusted."""
        client = peer
        if not self.trusts(peer):
            return client
        forwarded_for = ",".join([value for name, value in headers if name == "x-forwarded-for"])
        for hop in reversed(forwarded_for.split(",")[-_MAX_HOPS:]):
            address = _hop_address(hop.strip())
            if not address:  # A trusted proxy writes valid hops, so it did not write this one or those before it.
                return client
            client = address
            if not self.trusts(address):
                return client
        return client


def _hop_address(hop: str) -> str:
    """Return the address of a hop, which may have a port: `192.0.2.1:80`, `[2001:db8::1]:80`."""
    if hop.startswith("["):
        return normalize_address(hop[1:].partition("]")[0])
    if hop.count(":") == 1:
        return normalize_address(hop.partition(":")[0])
    return normalize_address(hop)
