"""Sign requests to AWS: SigV4 with botocore's signer and credential chain, or Bedrock's bearer token.

botocore is an extra (`dragoman[bedrock]`), imported only when a request is signed. Its credential chain may read files
and send requests.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from dragoman.errors import LocalMisuse
from dragoman.upstream.credentials import CredentialFault, MissingCredential, SecretText, with_headers
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

BEARER_VARIABLE = "AWS_BEARER_TOKEN_BEDROCK"
SERVICE = "bedrock"
DEFAULT_REGION = "us-east-1"
_SIGNED = ("content-type", "accept")  # headers that are signed; proxies may change others


def bedrock_endpoint(region: str) -> str:
    """Return the base URL of Bedrock's runtime in a region."""
    return f"https://bedrock-runtime.{region}.amazonaws.com"


def bearer_token() -> SecretText:
    """Return the bearer token of the environment, which takes precedence over keys; empty if there is none."""
    return SecretText(os.environ.get(BEARER_VARIABLE, ""))


def sign(request: HttpRequest, url: str, region: str, keys: Any, service: str = SERVICE) -> HttpRequest:
    """Sign a request to `url` with botocore's frozen `keys`. The path is signed and sent unchanged."""
    address = url.rstrip("/") + request.path + (f"?{request.query}" if request.query else "")
    signed = {name: value for name, value in request.headers if name in _SIGNED}
    draft = _botocore("awsrequest").AWSRequest(method=request.method, url=address, data=request.body, headers=signed)
    _botocore("auth").SigV4Auth(keys, service, region).add_auth(draft)
    added = {"host": urlsplit(address).netloc} | {name.lower(): value for name, value in draft.headers.items()}
    return with_headers(request, tuple((name, value) for name, value in added.items() if name not in signed))


def find_region(profile: str = "") -> str:
    """Return the region that the AWS command line uses, or us-east-1. Raises CredentialFault."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        return region
    try:
        session = _botocore("session").Session(profile=profile or None)
    except LocalMisuse:
        return DEFAULT_REGION
    try:
        return session.get_config_variable("region") or DEFAULT_REGION
    except _botocore("exceptions").BotoCoreError as error:
        raise CredentialFault(f"the AWS profile cannot be read: {error}") from None


def _botocore(name: str) -> Any:
    try:
        return importlib.import_module(f"botocore.{name}")
    except ImportError:
        raise LocalMisuse("signing for AWS needs botocore: install dragoman[bedrock]") from None


class AwsCredential:
    """A credential for Bedrock at `url`: the bearer token if there is one, else the keys of the AWS command line.

    botocore finds the keys in the environment, a profile, SSO or a role, and renews them.
    """

    expires_at: float | None = None  # botocore renews what can be renewed

    def __init__(self, name: str, url: str, region: str, profile: str = "") -> None:
        self.name = name
        self._url = url
        self._region = region
        self._profile = profile
        self._used: tuple[SecretText, ...] = ()  # the keys of the last signature
        self._session_credentials: Any = None
        self._lock = Lock()

    def sign_blocking(self, request: HttpRequest) -> HttpRequest:
        """Sign a request; this blocks while the credential chain reads files or sends requests."""
        if token := bearer_token():
            return with_headers(request, (("authorization", f"Bearer {token.reveal()}"),))
        return sign(request, self._url, self._region, self._keys())

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """Sign a request in a thread, as `sign_blocking` does."""
        return await asyncio.to_thread(self.sign_blocking, request)

    async def on_refusal(self, status: int) -> bool:
        """Forget the keys, so that they are looked up again. Return False if a bearer token is used instead."""
        with self._lock:
            self._session_credentials = None  # The next request looks for keys again: the operator may have logged in.
        return not bearer_token()

    def describe(self) -> dict[str, Json]:
        """Return the kind of the credential, its region and its profile."""
        kind = "bearer" if bearer_token() else "sigv4"
        facts: dict[str, Json] = {"name": self.name, "type": kind, "region": self._region}
        return facts | {"profile": self._profile, "expires_at": None}

    def secrets(self) -> list[SecretText]:
        """Return all keys that have signed a request, and the bearer token."""
        return [*self._used, *([token] if (token := bearer_token()) else [])]

    def _keys(self) -> Any:
        """Return the current keys. Raises CredentialFault, whose message says what the operator can do."""
        boto_error = _botocore("exceptions").BotoCoreError
        try:
            with self._lock:
                if self._session_credentials is None:
                    session = _botocore("session").Session(profile=self._profile or None)
                    self._session_credentials = session.get_credentials()
                credentials = self._session_credentials
            if credentials is not None:
                keys = credentials.get_frozen_credentials()
                self._used = tuple(SecretText(each) for each in (keys.access_key, keys.secret_key, keys.token) if each)
                return keys
        except boto_error as error:
            name = type(error).__name__
            advice = ": log in again with `aws sso login`" if "SSO" in name or "Token" in name else ""
            raise CredentialFault(f"AWS credentials are not available: {error}{advice}") from None
        where = f"in the profile {self._profile!r}" if self._profile else "on this machine"
        advice = f"run `aws configure` or `aws sso login`, or set {BEARER_VARIABLE}"
        raise MissingCredential(f"no AWS credentials were found {where}: {advice}")
