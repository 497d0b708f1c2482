"""Admission: which requests are let in, and their bodies. Head, then key, then limits, then body.

The key stands in a header of its own or as a bearer token, or it is the secret of an AWS signature (`signatures`).

A request takes no room of `server.limits` before it has proven that it may ask. One whose proof covers its body waits
in a pool of its own until its body has come.

The HTTP parser lets pass what it should not (two Hosts, a transfer encoding that is not decoded), and a web page may
point its own name at loopback. So `HeadCheck` checks every head, whichever server carries the request.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import TypeAlias
from urllib.parse import urlsplit

from msgspec import structs

from dragoman.errors import ClientFault, Fault, NotAuthorised
from dragoman.gateway.aws_signatures import UNSIGNED, AwsSignature, parse_signature, sign
from dragoman.gateway.config import Server
from dragoman.gateway.limits import MemoryAccount, MemoryBudget, Overloaded, RequestLimits
from dragoman.http.addresses import is_loopback, limit_key, normalize_address
from dragoman.http.exchange import BodyTimeout, Exchange, Owner
from dragoman.http.framing import MAX_HEAD_BYTES, MAX_HEADERS, MAX_TARGET_BYTES
from dragoman.wire.http import Headers, HttpRequest

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_MOST_HOPS = 32  # of X-Forwarded-For that are looked at, from the right
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?", re.ASCII)
_ODD = re.compile(r"[^\x21-\x7e]")  # in a target
_ONCE = ("host", "content-length", "transfer-encoding", "origin", "content-encoding", "expect", "upgrade")
_READ = frozenset({*_ONCE, "sec-fetch-site"})
_FRAMING = frozenset({"transfer-encoding", "content-encoding", "expect"})
_FROM_PAGES = frozenset({"origin", "sec-fetch-site"})
_OWN_SITE = ("", "none", "same-origin")  # of Sec-Fetch-Site: an address typed in, or a page of this server
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MOST_NAMES = 64  # spellings of our own names that are remembered

TOO_MANY_HEADERS = Fault("invalid", "the request has too many or too long headers", 431)
TOO_LONG_TARGET = Fault("invalid", "the request's address is too long", 414)
WEBSOCKET_OFFERED = Fault("invalid", "WebSockets are not offered here: send POST /v1/responses over HTTP/1.1", 426)
_OTHER_SITES = Fault("permission", "requests from web pages of other sites are not served", 403)
SECONDS = 10.0  # for the whole body
MAX_UNPROVEN = 256
MAX_UNPROVEN_BYTES = 64 * 1024 * 1024
_MOST_KNOWN = 1024  # signers that are remembered
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")
WRONG_KEY = (
    "the key of this gateway is missing or wrong: send it as x-api-key or as a bearer token "
    "(`dragoman serve` says what it is)"
)
SKEW = 15 * 60.0  # seconds that a signer's clock may be off
_MESSAGE = "too many requests whose signature cannot be checked yet are arriving at this gateway"


class Admission:
    """Lets requests in, by one configuration; `configure` puts another in force."""

    def __init__(self, settings: Server, key: str) -> None:
        self.memory_budget = MemoryBudget(settings.limits)
        self._unproven = UnprovenRequests(settings.limits)
        self.configure(settings, key)

    def configure(self, settings: Server, key: str) -> None:
        self.memory_budget.resize(settings.limits)
        self._unproven.resize(settings.limits)
        self._guard, self._keys = HeadCheck(settings.host, settings.hosts), KeyCheck(key)
        self.proxies = TrustedProxies(settings.trusted_proxies)
        self._max_body = settings.max_body
        self._pace = BodyTimeout(rate=settings.min_body_rate)
        self._unproven_pace = BodyTimeout(SECONDS, settings.min_body_rate)

    def serves(self, exchange: Exchange[MemoryAccount]) -> bool:
        """Whether a head is one that is served at all, key or not."""
        return self._guard.refusal(exchange.request, target=exchange.target, version=exchange.version) is None

    async def request(self, exchange: Exchange[MemoryAccount]) -> HttpRequest:
        """Return a request that may ask, with its body. Raises ClientFault, Gone."""
        claim, peer = self.judge_head(exchange), limit_key(exchange.client)
        is_proven = claim is None or claim.is_proven
        if claim is None or is_proven:
            exchange.on_admitted()
            exchange.account = self.memory_budget.enter(peer)
        else:
            exchange.account = self._unproven.enter(peer, claim.id, exchange.fail_body)
        body = await exchange.body(self._max_body, self._pace if is_proven else self._unproven_pace)
        if exchange.account.request_bytes != len(body):
            exchange.account.hold("body", len(body))  # exactly, however it was announced
        request = exchange.request
        if body is not request.body:
            request = exchange.request = structs.replace(request, body=body)
        if claim is not None:
            self._keys.check_body(claim, request)
            if not is_proven:
                self._unproven.remember(peer, claim.id)
                self._let_in(exchange, peer, len(body))
        exchange.owner = self._keys.owner
        return request

    def judge_head(self, exchange: Exchange[MemoryAccount]) -> AwsSignature | None:
        """Return None for a head that proves its key, or the Claim that is checked with the body. Raises ClientFault.

        A refused connection closes after its answer: `exchange.last`.
        """
        fault = self._guard.refusal(exchange.request, target=exchange.target, version=exchange.version)
        if fault is not None:
            exchange.last = True
            raise ClientFault(fault.message, fault=fault)
        return None if self._keys.holds_key(exchange.request) else self._keys.claim(exchange.request)

    def _let_in(self, exchange: Exchange[MemoryAccount], peer: str, size: int) -> None:
        """Count a request that has proven itself when its body had come. Raises Overloaded."""
        exchange.on_admitted()
        unproven, exchange.account = exchange.account, self.memory_budget.enter(peer)
        if unproven is not None:
            unproven.leave()
        exchange.account.reserve(size)


class KeyCheck:
    """Checks requests for the key. Every refusal has the same words, so that it reveals nothing."""

    def __init__(self, key: str, *, now: Callable[[], float] = time.time) -> None:
        if not key:
            raise ValueError("a gateway without a key serves nobody")
        self._key = key.encode()  # AWS signatures are made with it
        self._digest = hashlib.sha256(self._key).digest()
        self.owner = Owner(self._digest.hex())  # who has proven the key. There is one key, so there is one owner
        self._now = now

    def claim(self, head: HttpRequest) -> AwsSignature | None:
        """Judge a head without the key by its signature. None if it proves that it may ask; a Claim if the body must
        be checked too. Raises NotAuthorised.
        """
        claim = parse_signature(head)
        if claim is None:
            raise NotAuthorised(WRONG_KEY)
        if not self._recent(claim.date):
            raise NotAuthorised(f"{WRONG_KEY}; or the clock of the signer is off")
        if claim.is_proven:
            self._check_signature(claim, head)
        return None if claim.payload == UNSIGNED else claim

    def check_body(self, claim: AwsSignature, request: HttpRequest) -> None:
        """Check what a head left open, now that the body is there. Raises NotAuthorised."""
        if not claim.is_proven:
            self._check_signature(claim, request)
        elif claim.payload != hashlib.sha256(request.body).hexdigest():
            raise NotAuthorised(WRONG_KEY)

    def holds_key(self, head: HttpRequest) -> bool:
        """Whether a header holds the key. A key of another service may stand beside it.

        Hashes are compared: the time says neither how long our key is nor how much of a wrong one is right.
        """
        right = False
        for name, value in head.headers:
            if name == "authorization":
                scheme, _, given = value.partition(" ")
                if scheme.lower() != "bearer":
                    continue
                given = given.strip()
            elif name in _KEY_HEADERS:
                given = value
            else:
                continue
            digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
            right |= hmac.compare_digest(digest, self._digest)
        return right

    def _check_signature(self, claim: AwsSignature, request: HttpRequest) -> None:
        expected = sign(request, self._key, claim.date, claim.region, claim.service, claim.headers)
        if not hmac.compare_digest(expected, claim.signature):
            raise NotAuthorised(WRONG_KEY)

    def _recent(self, moment: str) -> bool:
        try:
            signed_at = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return False
        return abs(self._now() - signed_at) <= SKEW


class HeadCheck:
    """Checks the head of a request, by the names of this server.

    Without `hosts` only loopback's names are ours; on other addresses any IP address is one too.
    """

    def __init__(self, host: str, hosts: Collection[str] = ()) -> None:
        own = () if _is_address(host) and ipaddress.ip_address(host).is_unspecified else (host.lower(),)
        self._names = {"localhost", *own, *(name.lower() for name in hosts)}
        self._beyond_loopback = not is_loopback(host)
        self._seen: set[str] = set()

    def refusal(self, request: HttpRequest, *, target: str = "", version: str = "1.1") -> Fault | None:
        """Why this request is not served, or None. `target` is what the request line named, as it stood there."""
        size, said = 0, {}
        for name, value in request.headers:
            size += len(name) + len(value)
            if name in _READ:
                if name in said and name in _ONCE:
                    return Fault("invalid", f"the header {name} stands in the request twice", 400)
                said[name] = value
        if len(request.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            return TOO_MANY_HEADERS
        return (
            _bad_line(request, target or request.path)
            or (_bad_framing(said, version) if version != "1.1" or said.keys() & _FRAMING else None)
            or (upgrade_refusal(request, said["upgrade"]) if "upgrade" in said else None)
            or (self._bad_host(said.get("host")) if said.get("host") not in self._seen else None)
            or (self._bad_origin(said) if said.keys() & _FROM_PAGES else None)
        )

    def _bad_host(self, given: str | None) -> Fault | None:
        found = _HOST.fullmatch(given) if given else None
        if given is None or found is None:
            return Fault("invalid", "expected one Host header with a name and a port", 400)
        if not self._knows(found[1]):
            message = f"this server is not {found[1]}; server.hosts in the configuration names further ones"
            return Fault("invalid", message, 421)
        if len(self._seen) < _MOST_NAMES:
            self._seen.add(given)
        return None

    def _bad_origin(self, said: dict[str, str]) -> Fault | None:
        """Refuse a web page of another site, key or not."""
        if said.get("sec-fetch-site", "").strip().lower() not in _OWN_SITE:
            return _OTHER_SITES
        origin = said.get("origin")
        if not origin or self._is_own_origin(origin, said.get("host", "")):
            return None
        return _OTHER_SITES

    def _is_own_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin is ours: one of our names, or exactly the server that the Host names.

        Beyond loopback any address passes as a Host, but a page of any address is not ours.
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
    """A target is a path: with a host in it, it could contradict the Host header; nothing is tunnelled or traced."""
    if len(target) > MAX_TARGET_BYTES or len(request.path) + len(request.query) > MAX_TARGET_BYTES:
        return TOO_LONG_TARGET
    if request.method in ("CONNECT", "TRACE"):
        return Fault("invalid", f"{request.method} is not served", 405)
    if not target.startswith("/") or "#" in target or _ODD.search(target):
        return Fault("invalid", "the request's target must be a path", 400)
    return None


def _bad_framing(said: dict[str, str], version: str) -> Fault | None:
    """What leaves a doubt about where a body ends."""
    encoding = said.get("transfer-encoding")
    if encoding is not None:
        if encoding.lower() != "chunked":
            return Fault("invalid", "the only transfer encoding taken is chunked", 400)
        if "content-length" in said:
            return Fault("invalid", "a content length beside a transfer encoding is not taken", 400)
        if version != "1.1":
            return Fault("invalid", f"HTTP/{version} has no transfer encodings", 400)
    if version not in ("1.1", "1.0"):
        return Fault("invalid", f"HTTP/{version} is not spoken here", 505)
    if said.get("content-encoding", "identity").lower() != "identity":
        return Fault("invalid", "a compressed body is not taken", 415)
    if said.get("expect", "100-continue").lower() != "100-continue":
        return Fault("invalid", "the only expectation met is 100-continue", 417)
    return None


def upgrade_refusal(request: HttpRequest, upgrade: str) -> Fault:
    """Codex offers a WebSocket for Responses first. Only a 426 makes it use HTTP at once: 400 ends it."""
    offered = {each.strip().lower() for each in upgrade.split(",")}
    if request.method == "GET" and request.path.rstrip("/").endswith("/responses") and "websocket" in offered:
        return WEBSOCKET_OFFERED
    return Fault("invalid", "only HTTP/1.1 is spoken here: a client must not offer an upgrade", 400)


def _plain(name: str) -> str:
    return name.strip("[]").lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class TrustedProxies:
    """The proxies whose word about a client's address counts."""

    def __init__(self, networks: Iterable[str]) -> None:
        self.networks: list[Network] = [ipaddress.ip_network(text, strict=False) for text in networks]

    def trusts(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)

    def client_of(self, peer: str, headers: Headers) -> str:
        """The address of the client behind this peer: the last hop of X-Forwarded-For that is no trusted proxy."""
        client = peer
        if not self.trusts(peer):
            return client
        given = ",".join([value for name, value in headers if name == "x-forwarded-for"])
        for hop in reversed(given.split(",")[-_MOST_HOPS:]):
            address = _hop_address(hop.strip())
            if not address:  # what stands further left was not written by a proxy that we trust
                return client
            client = address
            if not self.trusts(address):
                return client
        return client


def _hop_address(hop: str) -> str:
    """The address of a hop, which may have a port: `192.0.2.1:80`, `[2001:db8::1]:80`."""
    if hop.startswith("["):
        return normalize_address(hop[1:].partition("]")[0])
    if hop.count(":") == 1:
        return normalize_address(hop.partition(":")[0])
    return normalize_address(hop)


# --- requests that have not proven yet that they may ask: a small pool that takes no room from others
#
# boto3 signs the hash of a body without stating it, so the body must be read before the signature can be checked. Until
# then the request counts here and not on `server.limits`. Where the pool is full, the peer that holds most of it gives
# way with its oldest request: a client that sends its body at once is let in although others keep theirs back.


class UnprovenAccount(MemoryAccount, eq=False, kw_only=True):
    """The account of one unproven request."""

    pool: UnprovenPool
    sender: str  # the peer, which is not counted in `load`
    refuse: Callable[[Fault], None]

    def reserve(self, size: int) -> None:
        self.pool.make_room(self, size)
        self.hold("body", self.request_bytes + size)

    def leave(self) -> None:
        if self.pool.remove(self):
            super().leave()


class UnprovenPool:
    """Unproven requests, oldest first, limited in number and in bytes."""

    def __init__(self, requests: int, size: int) -> None:
        self.load = MemoryBudget(RequestLimits())
        self.requests, self.size = requests, size
        self._waiting: dict[UnprovenAccount, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, peer: str, refuse: Callable[[Fault], None]) -> UnprovenAccount:
        """Count one more request of this peer; `refuse` ends it if it must give way. Raises Overloaded."""
        newcomer = UnprovenAccount(self.load, pool=self, sender=peer, refuse=refuse)
        self.make_room(newcomer, 0)
        self._waiting[newcomer] = None
        self.load.requests += 1
        return newcomer

    def remove(self, one: UnprovenAccount) -> bool:
        """Forget a request. False if it has been forgotten before."""
        if one not in self._waiting:
            return False
        del self._waiting[one]
        return True

    def make_room(self, newcomer: UnprovenAccount, size: int) -> None:
        """Let requests give way until the newcomer fits with so many bytes more. Raises Overloaded if it cannot."""
        more = 0 if newcomer in self._waiting else 1
        while len(self._waiting) + more > self.requests or self.load.request_bytes + size > self.size:
            victim = self._next_to_go(newcomer, size)
            if victim is None:
                raise Overloaded(_MESSAGE)
            victim.leave()
            victim.refuse(Overloaded(_MESSAGE).fault)

    def _next_to_go(self, newcomer: UnprovenAccount, size: int) -> UnprovenAccount | None:
        """The oldest request of the peer that holds most of what is short; None if that is the newcomer alone.

        Where requests are too many, their bytes do not matter: else one large body would give way to many small ones.
        """
        by_bytes = self.load.request_bytes + size > self.size
        shares = {newcomer.sender: size if by_bytes else 0 if newcomer in self._waiting else 1}
        for each in self._waiting:
            shares[each.sender] = shares.get(each.sender, 0) + (each.request_bytes if by_bytes else 1)
        oldest_first = dict.fromkeys([each.sender for each in self._waiting])
        most = max((*oldest_first, newcomer.sender), key=shares.__getitem__)
        return next((each for each in self._waiting if each.sender == most and each is not newcomer), None)


class UnprovenRequests:
    """The two pools of unproven requests: strangers in one pool, signers that were let in before in another.

    A flood of strangers cannot shut out a boto3 client that has proven itself from the same address.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._strangers = UnprovenPool(MAX_UNPROVEN, MAX_UNPROVEN_BYTES)
        self._returning = UnprovenPool(1, 1)
        self.resize(limits)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def resize(self, limits: RequestLimits) -> None:
        """Give returning signers half of what is in the limits."""
        self._returning.requests = max(limits.streams // 2, 1)
        self._returning.size = limits.in_flight // 2

    def enter(self, peer: str, signer: str, refuse: Callable[[Fault], None]) -> UnprovenAccount:
        """Open the account of an unproven request. Raises Overloaded."""
        pool = self._returning if (peer, signer) in self._known else self._strangers
        return pool.enter(peer, refuse)

    def remember(self, peer: str, signer: str) -> None:
        """A signer has proven itself from this address."""
        self._known[peer, signer] = None
        self._known.move_to_end((peer, signer))
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
