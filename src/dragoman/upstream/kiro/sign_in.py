"""Requests to the sign-in services: refresh a token (social, OIDC, an external provider), log in with a device code.

Sends requests through a `Fetch`; reads and writes no files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlencode, urlsplit

from msgspec import Struct, structs

from dragoman.errors import TransportError, UpstreamViolation
from dragoman.upstream.credentials import CredentialFault, Fetch, SecretText, json_object_of
from dragoman.upstream.kiro.service import USER_AGENT
from dragoman.upstream.kiro.token import (
    BUILDER_ID,
    DEFAULT_REGION,
    Document,
    Endpoints,
    Token,
    first_text,
    is_safe_url,
    parse_time,
    parse_token,
    region_of_arn,
)
from dragoman.wire import jsonio
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

JSON: Headers = (("content-type", "application/json"), ("accept", "application/json"), ("user-agent", USER_AGENT))
_FORM: Headers = (("content-type", "application/x-www-form-urlencoded"), *JSON[1:])
_LOGIN = "Run `dragoman auth login kiro`."
_DEFAULT_LIFETIME = 3600.0


class SignInFailure(Struct, frozen=True):
    """An OAuth error, from either form of error body: a code such as `invalid_grant`, and a message without secrets."""

    status: int
    code: str
    message: str


async def refresh(fetch: Fetch, endpoints: Endpoints, token: Token, now: float) -> Token:
    """Return a new token for the refresh token of the old one. Raises CredentialFault, TransportError."""
    if not token.refresh:
        raise CredentialFault(f"the access token has expired and there is no refresh token. {_LOGIN}")
    if token.endpoint:
        endpoints = Endpoints.everything_at(token.endpoint)
    base, request = _request(endpoints, token)
    response = await fetch(base, request)
    if response.status != 200:
        raise _to_fault(parse_failure(response, token), token)
    return parse_grant(response, token, now)


def _request(endpoints: Endpoints, token: Token) -> tuple[str, HttpRequest]:
    match token.kind:
        case "social":
            request = _post("/refreshToken", {"refreshToken": token.refresh.reveal()})
            return endpoints.at("social", token.region), request
        case "idc":
            if not token.client_id or not token.client_secret:
                raise CredentialFault(f"the login lacks the client registration that a refresh needs. {_LOGIN}")
            body = {**_client(token), "grantType": "refresh_token", "refreshToken": token.refresh.reveal()}
            return endpoints.at("oidc", token.region), _post("/token", body)
        case "external_idp":
            return _external_request(token)
        case "api_key":
            raise CredentialFault("an API key cannot be refreshed.")


def _external_request(token: Token) -> tuple[str, HttpRequest]:
    """Return the refresh request to the identity provider of an enterprise, whose address is part of the login."""
    if not is_safe_url(token.token_endpoint):
        raise CredentialFault("the token endpoint of the login is not an https address, so no request was sent to it.")
    form = {"grant_type": "refresh_token", "refresh_token": token.refresh.reveal(), "client_id": token.client_id}
    if token.scopes:
        form["scope"] = " ".join(token.scopes)
    parts = urlsplit(token.token_endpoint)
    request = HttpRequest("POST", parts.path or "/", parts.query, _FORM, urlencode(form).encode())
    return f"{parts.scheme}://{parts.netloc}", request


def parse_grant(response: HttpResponse, old: Token, now: float) -> Token:
    """Return the token that a response grants; values that it does not contain, such as the refresh token, stay."""
    document = json_object_of(response)
    if not first_text(document, "accessToken", "access_token"):
        raise CredentialFault("the response of the sign-in service contains no access token.", is_permanent=False)
    new = parse_token(document, "the response of the sign-in service", old.kind)
    lifetime = seconds(document.get("expiresIn", document.get("expires_in")), _DEFAULT_LIFETIME)
    arn = first_text(document, "profileArn", "profile_arn")
    return structs.replace(
        old,
        access=new.access,
        refresh=new.refresh or old.refresh,
        expires_at=now + lifetime,
        profile_arn=arn if region_of_arn(arn) else old.profile_arn,
    )


def parse_failure(response: HttpResponse, token: Token) -> SignInFailure:
    """Return the error in a response of a sign-in service."""
    document = json_object_of(response)
    error_type = (
        response.header("x-amzn-errortype").partition(":")[0] or first_text(document, "__type").rpartition("#")[2]
    )
    message = first_text(document, "error_description", "message", "Message") or f"status {response.status}"
    return SignInFailure(
        response.status,
        first_text(document, "error") or _CODES.get(error_type, error_type),
        token.mask_secrets(message)[:300],
    )


_CODES = {
    "InvalidGrantException": "invalid_grant",
    "InvalidRequestException": "invalid_request",
    "InvalidClientException": "invalid_client",
    "UnauthorizedClientException": "unauthorized_client",
    "ExpiredTokenException": "expired_token",
    "AccessDeniedException": "access_denied",
    "AuthorizationPendingException": "authorization_pending",
    "SlowDownException": "slow_down",
}


def _to_fault(refusal: SignInFailure, token: Token) -> CredentialFault:
    """Return the fault with a message for the user. Only failures of the service itself are not permanent."""
    if refusal.status in (408, 429) or refusal.status >= 500:
        return CredentialFault(f"the sign-in service failed: {refusal.message}. Try again later.", is_permanent=False)
    if 300 <= refusal.status < 400:  # the login itself may be valid
        message = f"the sign-in service sent a redirect (status {refusal.status}), which is not followed"
        return CredentialFault(message, is_permanent=False)
    match refusal.code:
        case "invalid_request" if token.kind == "idc":
            return CredentialFault(
                f"the sign-in service of {token.region} does not know this login ({refusal.message}). It was probably"
                " made in another region: run `dragoman auth login kiro --region REGION` with the right one."
            )
        case "invalid_client" | "unauthorized_client":
            return CredentialFault(f"the login's client registration has expired ({refusal.message}). {_LOGIN}")
        case _:
            return CredentialFault(f"the refresh token is no longer valid ({refusal.message}). {_LOGIN}")


def seconds(value: Json, default: float) -> float:
    """Return a duration from a response, or the default if the value is not a positive number."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else default


# --- login with a device code (OIDC, RFC 8628): register a client, show a code, poll until the user confirms it


SCOPES = tuple(
    f"codewhisperer:{name}" for name in ("completions", "analysis", "conversations", "transformations", "taskassist")
)
_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_SLOW_DOWN = 5.0  # seconds that `slow_down` adds to the interval (RFC 8628)
_MAX_LIFETIME = 900.0


class LoginPrompt(Struct, frozen=True):
    """The instructions for the user: open `url`, which contains the code, or open `page` and type `code`."""

    url: str
    page: str
    code: str
    device: SecretText
    interval: float
    lifetime: float


class DeviceLogin:
    """One login: call `begin`, show its prompt, call `wait`. Both raise CredentialFault and TransportError."""

    def __init__(
        self,
        fetch: Fetch,
        *,
        region: str = DEFAULT_REGION,
        start_url: str = BUILDER_ID,
        endpoints: Endpoints | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not is_safe_url(start_url):
            raise CredentialFault(f"{start_url!r} is not a start URL: it must begin with https://.")
        self._fetch = fetch
        self._base = (endpoints or Endpoints()).at("oidc", region)
        self._sleep = sleep
        is_builder_id = start_url.rstrip("/#") == BUILDER_ID
        self._login = Token(
            kind="idc",
            access=SecretText(),
            region=region,
            start_url=start_url.rstrip("/#"),
            provider="BuilderId" if is_builder_id else "Enterprise",
            scopes=SCOPES,
        )

    async def begin(self) -> LoginPrompt:
        """Register a client and request a code."""
        client = await self._ask(
            "/client/register",
            {
                "clientName": "dragoman",
                "clientType": "public",
                "scopes": [*SCOPES],
                "grantTypes": [_GRANT, "refresh_token"],
            },
        )
        self._login = structs.replace(
            self._login,
            client_id=_required(client, "clientId"),
            client_secret=SecretText(_required(client, "clientSecret")),
            client_expires_at=parse_time(client.get("clientSecretExpiresAt")) or None,
        )
        authorization = await self._ask(
            "/device_authorization", {**_client(self._login), "startUrl": self._login.start_url}
        )
        page = _required(authorization, "verificationUri")
        url = first_text(authorization, "verificationUriComplete") or page
        if not is_safe_url(page) or not is_safe_url(url):
            raise CredentialFault("the sign-in service sent a login page that is not an https address.")
        return LoginPrompt(
            url,
            page,
            _required(authorization, "userCode"),
            SecretText(_required(authorization, "deviceCode")),
            seconds(authorization.get("interval"), 5.0),
            min(_MAX_LIFETIME, seconds(authorization.get("expiresIn"), 600.0)),
        )

    async def wait(self, prompt: LoginPrompt, now: Callable[[], float]) -> Token:
        """Poll until the user confirms or declines the login, or the code expires."""
        interval, waited = prompt.interval, 0.0
        body: Document = {**_client(self._login), "grantType": _GRANT, "deviceCode": prompt.device.reveal()}
        while waited < prompt.lifetime:
            await self._sleep(interval)
            waited += interval
            try:
                response = await self._fetch(self._base, _post("/token", body))
            except (TransportError, UpstreamViolation):
                continue  # the user is still in the browser; the next poll may succeed
            if response.status == 200:
                return parse_grant(response, self._login, now())
            refusal = parse_failure(response, self._login)
            match refusal.code:
                case "authorization_pending":
                    continue
                case "slow_down":
                    interval += _SLOW_DOWN
                case "expired_token":
                    break
                case "access_denied":
                    raise CredentialFault("the login was declined in the browser. Run `dragoman auth login kiro`.")
                case _ if refusal.status < 500:
                    raise CredentialFault(f"the sign-in service refused the login: {refusal.message}")
        raise CredentialFault("the code expired before the login was confirmed. Run `dragoman auth login kiro` again.")

    async def _ask(self, path: str, body: Document) -> Document:
        response = await self._fetch(self._base, _post(path, body))
        if response.status != 200:
            refusal = parse_failure(response, self._login)
            raise CredentialFault(
                f"the sign-in service of {self._login.region} refused the login: {refusal.message}."
                " Check that --region and --start-url are those of your organisation."
            )
        return json_object_of(response)


def _client(token: Token) -> Document:
    return {"clientId": token.client_id, "clientSecret": token.client_secret.reveal()}


def _post(path: str, body: Document) -> HttpRequest:
    return HttpRequest("POST", path, headers=JSON, body=jsonio.encode(body))


def _required(document: Document, name: str) -> str:
    value = first_text(document, name)
    if not value:
        raise CredentialFault(f"the response of the sign-in service contains no {name}.", is_permanent=False)
    return value
