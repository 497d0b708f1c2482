"""Who may ask: the gateway's key in a header of its own, as a bearer token or as the secret of an AWS signature. Pure.

boto3 sends no bearer token over plain http, so its requests come signed: any access key id, our key as the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from posixpath import normpath
from typing import NewType
from urllib.parse import quote

from msgspec import Struct

from dragoman.errors import NotAuthorised
from dragoman.wire.http import HttpRequest

Owner = NewType("Owner", str)  # who has proven a key: kept answers belong to it

SKEW = 15 * 60.0  # seconds that a signer's clock may be off
_SCHEME = "AWS4-HMAC-SHA256"
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<id>[^/,\s]+)/(?P<day>\d{8})/(?P<region>[\w-]+)/(?P<service>[\w-]+)/aws4_request"
    r"\s*,\s*SignedHeaders=(?P<headers>[\w;-]+)\s*,\s*Signature=(?P<signature>[0-9a-f]{64})\s*\Z",
    re.ASCII,
)
_TIME = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_UNSIGNED = "UNSIGNED-PAYLOAD"
_KEY_HEADERS = ("x-api-key", "x-goog-api-key")
_WRONG = (
    "the key of this gateway is missing or wrong: send it as x-api-key or as a bearer token "
    "(`dragoman serve` says what it is)"
)


class _Claim(Struct, frozen=True):
    """What an authorization header of AWS says."""

    day: str
    region: str
    service: str
    headers: tuple[str, ...]
    signature: str


class Gatekeeper:
    """Knows the key. Every refusal says the same, so that it tells nothing."""

    def __init__(self, key: str, *, now: Callable[[], float] = time.time) -> None:
        if not key:
            raise ValueError("a gateway without a key serves nobody")
        self._key = key.encode()  # AWS signatures are made with it
        self._digest = hashlib.sha256(self._key).digest()
        self._owner = Owner(self._digest.hex())
        self._now = now

    def owner_of(self, _request: HttpRequest) -> Owner:
        """Whose key a request that was let in has proven, however it was sent. Today there is one key."""
        return self._owner

    def needs_body(self, request: HttpRequest) -> bool:
        """Whether the proof covers the body, which then must be read before it is checked."""
        return request.header("authorization").startswith(_SCHEME)

    def check(self, request: HttpRequest) -> None:
        """Raise NotAuthorised unless the request proves that it knows the key."""
        if self.needs_body(request):
            self._check_signature(request)
            return
        right = False
        for name, value in request.headers:  # a stray key of another service may stand beside ours
            if name == "authorization":
                scheme, _, value = value.partition(" ")  # noqa: PLW2901
                if scheme.lower() == "bearer":
                    right |= self._is_ours(value.strip())
            elif name in _KEY_HEADERS:
                right |= self._is_ours(value)
        if not right:
            raise NotAuthorised(_WRONG)

    def _is_ours(self, given: str) -> bool:
        """Compare by hash: the time says neither how long our key is nor how much of it was right."""
        digest = hashlib.sha256(given.encode("utf-8", "surrogatepass")).digest()
        return hmac.compare_digest(digest, self._digest)

    def _check_signature(self, request: HttpRequest) -> None:
        claim = _claim(request)
        moment = request.header("x-amz-date")
        if claim is None or not _TIME.fullmatch(moment) or moment[:8] != claim.day:
            raise NotAuthorised(_WRONG)
        if not {"host", "x-amz-date"} <= set(claim.headers) or not self._recent(moment):
            raise NotAuthorised(f"{_WRONG}; or the clock of the signer is off")
        expected = sign(request, self._key, moment, claim.region, claim.service, claim.headers)
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
    values = [
        ",".join(" ".join(value.split()) for name, value in request.headers if name == wanted) for wanted in headers
    ]
    lines = [f"{name}:{value}\n" for name, value in zip(headers, values, strict=True)]
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
    said = request.header("x-amz-content-sha256")
    # A hash that the signer only claims is not taken: it must be the body's own.
    return _UNSIGNED if said == _UNSIGNED else hashlib.sha256(request.body).hexdigest()


def _claim(request: HttpRequest) -> _Claim | None:
    found = _SIGNED.match(request.header("authorization"))
    if found is None:
        return None
    headers = tuple(found["headers"].lower().split(";"))
    return _Claim(found["day"], found["region"], found["service"], headers, found["signature"])
