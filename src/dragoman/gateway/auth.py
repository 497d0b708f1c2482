"""Who may ask: the gateway's key in a header of its own, as a bearer token or as the secret of an AWS signature. Pure.

boto3 sends no bearer token over plain http, so its requests come signed: any access key id, our key as the secret.

A head is judged before a byte of its body is read. A signature covers the hash of the body. Where the head states that
hash (`x-amz-content-sha256`) the signature is checked at once and the hash when the body has come. boto3 does not state
it for Bedrock: such a request is unproven until its body has come.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from posixpath import normpath
from urllib.parse import quote

from msgspec import Struct

from dragoman.errors import NotAuthorised
from dragoman.http.exchange import Owner
from dragoman.wire.http import HttpRequest

SKEW = 15 * 60.0  # seconds that a signer's clock may be off
_SCHEME = "AWS4-HMAC-SHA256"
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<id>[^/,\s]{1,128})/(?P<day>\d{8})/(?P<region>[\w-]{1,64})"
    r"/(?P<service>[\w-]{1,64})/aws4_request"
    r"\s*,\s*SignedHeaders=(?P<headers>[a-z0-9;-]+)\s*,\s*Signature=(?P<signature>[0-9a-f]{64})\s*\Z",
    re.ASCII,
)
_TIME = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}")
_UNSIGNED = "UNSIGNED-PAYLOAD"
_EMPTY = hashlib.sha256(b"").hexdigest()
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")
_WRONG = (
    "the key of this gateway is missing or wrong: send it as x-api-key or as a bearer token "
    "(`dragoman serve` says what it is)"
)


class Claim(Struct, frozen=True):
    """An AWS signature, as far as the head of its request shows."""

    id: str
    moment: str
    region: str
    service: str
    headers: tuple[str, ...]
    signature: str
    payload: str  # the hash that the signature covers; empty if only the body tells

    @property
    def is_proven(self) -> bool:
        """Whether the head is enough to check the signature, so that only the body's hash is left to compare."""
        return bool(self.payload)


class KeyCheck:
    """Checks requests for the key. Every refusal has the same words, so that it reveals nothing."""

    def __init__(self, key: str, *, now: Callable[[], float] = time.time) -> None:
        if not key:
            raise ValueError("a gateway without a key serves nobody")
        self._key = key.encode()  # AWS signatures are made with it
        self._digest = hashlib.sha256(self._key).digest()
        self.owner = Owner(self._digest.hex())  # who has proven the key. There is one key, so there is one owner
        self._now = now

    def check(self, request: HttpRequest) -> None:
        """Check a whole request. Raises NotAuthorised."""
        claim = self.claim(request)
        if claim is not None:
            self.check_body(claim, request)

    def check_key(self, head: HttpRequest) -> None:
        """Check for the key itself in a header. Raises NotAuthorised."""
        if not self._has_key(head):
            raise NotAuthorised(_WRONG)

    def claim(self, head: HttpRequest) -> Claim | None:
        """Judge a request by its head. None if it proves that it may ask; a Claim if the body must be checked too.

        Raises NotAuthorised.
        """
        if self._has_key(head):
            return None
        claim = _claim(head)
        if claim is None:
            raise NotAuthorised(_WRONG)
        if not self._recent(claim.moment):
            raise NotAuthorised(f"{_WRONG}; or the clock of the signer is off")
        if claim.is_proven:
            self._check_signature(claim, head)
        return None if claim.payload == _UNSIGNED else claim

    def check_body(self, claim: Claim, request: HttpRequest) -> None:
        """Check what a head left open, now that the body is there. Raises NotAuthorised."""
        if not claim.is_proven:
            self._check_signature(claim, request)
        elif claim.payload != hashlib.sha256(request.body).hexdigest():
            raise NotAuthorised(_WRONG)

    def _has_key(self, head: HttpRequest) -> bool:
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

    def _check_signature(self, claim: Claim, request: HttpRequest) -> None:
        expected = sign(request, self._key, claim.moment, claim.region, claim.service, claim.headers)
        if not hmac.compare_digest(expected, claim.signature):
            raise NotAuthorised(_WRONG)

    def _recent(self, moment: str) -> bool:
        try:
            signed_at = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        except ValueError:
            return False
        return abs(self._now() - signed_at) <= SKEW


def sign(request: HttpRequest, secret: bytes, moment: str, region: str, service: str, headers: tuple[str, ...]) -> str:
    """The signature, version 4, that these headers of a request must have."""
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    hashed = hashlib.sha256(_canonical(request, headers).encode("utf-8", "surrogatepass")).hexdigest()
    key = b"AWS4" + secret
    for part in (moment[:8], region, service, "aws4_request", f"{_SCHEME}\n{moment}\n{scope}\n{hashed}"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key.hex()


def _canonical(request: HttpRequest, headers: tuple[str, ...]) -> str:
    values: dict[str, list[str]] = {}
    for name, value in request.headers:
        values.setdefault(name, []).append(" ".join(value.split()))
    lines = [f"{name}:{','.join(values.get(name, ()))}\n" for name in headers]
    pairs = sorted(pair.partition("=")[::2] for pair in request.query.split("&") if pair)
    return "\n".join(
        (
            request.method,
            quote(_normal(request.path), safe="/~"),
            "&".join(f"{name}={value}" for name, value in pairs),
            "".join(lines),
            ";".join(headers),
            _payload(request),
        )
    )


def _normal(path: str) -> str:
    """The path without `.`, `..` and doubled slashes, as signers have it; it keeps its last slash."""
    plain = normpath("/" + path.lstrip("/"))
    return f"{plain}/" if path.endswith("/") and plain != "/" else plain


def _payload(request: HttpRequest) -> str:
    """The hash in the signature: the one that the head states, which is compared with the body later, or the body's."""
    stated = _stated_hash(request)
    return hashlib.sha256(request.body).hexdigest() if stated is None else stated


def _stated_hash(head: HttpRequest) -> str | None:
    """The hash of the body as the head states it, the empty body's if it announces none; else None."""
    stated = head.header("x-amz-content-sha256")
    if stated:
        return stated
    announced = head.header("transfer-encoding") or head.header("content-length", "0").strip("0")
    return None if announced or head.body else _EMPTY


def _claim(head: HttpRequest) -> Claim | None:
    """Read the signature of a head. None if it has none, or breaks a rule of signatures."""
    given = [value for name, value in head.headers if name == "authorization"]
    found = _SIGNED.match(given[0]) if len(given) == 1 else None
    if found is None:
        return None
    headers = tuple(found["headers"].split(";"))
    given_names = {name for name, _ in head.headers}
    of_aws = [name for name, _ in head.headers if name.startswith("x-amz-")]
    moment, payload = head.header("x-amz-date"), _stated_hash(head) or ""
    if (
        list(headers) != sorted(set(headers))
        or len(set(of_aws)) != len(of_aws)
        or not {"host", "x-amz-date", *of_aws} <= set(headers) <= given_names
        or not _TIME.fullmatch(moment)
        or moment[:8] != found["day"]
        or (payload and payload != _UNSIGNED and not _HASH.fullmatch(payload))
    ):
        return None
    return Claim(found["id"], moment, found["region"], found["service"], headers, found["signature"], payload)
