"""AWS signatures (version 4) of requests, with the gateway's key as their secret. Pure; called by `admission`.

boto3 sends no bearer token over plain HTTP, so its requests are signed: with any access key id, and the gateway's key
as the secret.

A signature covers the hash of the body, and a head is judged before its body is read. If the head contains the hash
(`x-amz-content-sha256`), the signature is checked at once, and the hash when the body has arrived. boto3 does not send
the hash to Bedrock: such a request is unproven until its body has arrived.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from posixpath import normpath
from urllib.parse import quote

from msgspec import Struct

from dragoman.wire.http import HttpRequest

_SCHEME = "AWS4-HMAC-SHA256"
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256\s+Credential=(?P<id>[^/,\s]{1,128})/(?P<day>\d{8})/(?P<region>[\w-]{1,64})"
    r"/(?P<service>[\w-]{1,64})/aws4_request"
    r"\s*,\s*SignedHeaders=(?P<headers>[a-z0-9;-]+)\s*,\s*Signature=(?P<signature>[0-9a-f]{64})\s*\Z",
    re.ASCII,
)
_TIME = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_HASH = re.compile(r"[0-9a-f]{64}")
UNSIGNED = "UNSIGNED-PAYLOAD"
_EMPTY = hashlib.sha256(b"").hexdigest()


class AwsSignature(Struct, frozen=True):
    """An AWS signature, parsed from the head of a request."""

    id: str
    date: str
    region: str
    service: str
    headers: tuple[str, ...]
    signature: str
    payload: str  # the hash of the body from the head; empty if the head has none

    @property
    def is_proven(self) -> bool:
        """Whether the head alone is enough to check the signature; the body's hash is compared later."""
        return bool(self.payload)


def sign(request: HttpRequest, secret: bytes, moment: str, region: str, service: str, headers: tuple[str, ...]) -> str:
    """Return the signature, version 4, of a request over these headers."""
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
    """Return the path without `.`, `..` and doubled slashes, as AWS normalises it; a trailing slash stays."""
    plain = normpath("/" + path.lstrip("/"))
    return f"{plain}/" if path.endswith("/") and plain != "/" else plain


def _payload(request: HttpRequest) -> str:
    """Return the hash to sign: the one in the head, which is compared with the body later, or the body's own."""
    stated = _stated_hash(request)
    return hashlib.sha256(request.body).hexdigest() if stated is None else stated


def _stated_hash(head: HttpRequest) -> str | None:
    """Return the body's hash from the head, or the hash of an empty body if no body is announced; else None."""
    stated = head.header("x-amz-content-sha256")
    if stated:
        return stated
    announced = head.header("transfer-encoding") or head.header("content-length", "0").strip("0")
    return None if announced or head.body else _EMPTY


def parse_signature(head: HttpRequest) -> AwsSignature | None:
    """Parse the AWS signature in the headers of a request. Return None if the signature is missing or invalid."""
    authorizations = [value for name, value in head.headers if name == "authorization"]
    found = _SIGNED.match(authorizations[0]) if len(authorizations) == 1 else None
    if found is None:
        return None
    headers = tuple(found["headers"].split(";"))
    header_names = {name for name, _ in head.headers}
    of_aws = [name for name, _ in head.headers if name.startswith("x-amz-")]
    moment, payload = head.header("x-amz-date"), _stated_hash(head) or ""
    if (
        list(headers) != sorted(set(headers))
        or len(set(of_aws)) != len(of_aws)
        or not {"host", "x-amz-date", *of_aws} <= set(headers) <= header_names
        or not _TIME.fullmatch(moment)
        or moment[:8] != found["day"]
        or (payload and payload != UNSIGNED and not _HASH.fullmatch(payload))
    ):
        return None
    return AwsSignature(found["id"], moment, found["region"], found["service"], headers, found["signature"], payload)
