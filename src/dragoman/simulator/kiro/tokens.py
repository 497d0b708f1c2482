"""The sign-in services of the simulator: access token checks, token refresh and device login.

`KiroService` asks it before all other work. State is in memory; nothing here does I/O. docs/auth.md describes the
logins of the real service.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from urllib.parse import parse_qs

from dragoman.dialects.kit.values import Object, text
from dragoman.simulator.kiro.catalogue import PROFILE_ARN
from dragoman.simulator.kiro.refusals import ErrorResponse
from dragoman.simulator.response import Response, whole_response
from dragoman.simulator.script import TokenSettings
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import Json

_JSON = (("content-type", "application/json"),)
_KNOWN = 10_000  # tokens kept in memory

MISSING = ErrorResponse("Invalid token", None, 401, "UnauthorizedException")
INVALID = ErrorResponse("The bearer token included in the request is invalid.", None, 403, "AccessDeniedException")
EXPIRED = ErrorResponse("The bearer token included in the request is expired.", None, 403, "ExpiredTokenException")


class TokenService:
    """Refreshes tokens (social, OIDC, external), serves device logins, and checks the token of other requests."""

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._number = itertools.count(1)
        self._expiry: dict[str, float] = {}  # of access tokens that this service issued
        self._used: dict[str, int] = {}
        self._refresh = set(settings.refresh or ())
        self._dead: set[str] = set()  # refresh tokens that a rotation replaced
        self._polls: dict[str, int] = {}
        self._endpoints: dict[str, Callable[[HttpRequest], Response]] = {
            "/refreshToken": self._social,
            "/token": self._oidc,
            "/client/register": self._register,
            "/device_authorization": self._authorize,
        }

    def serve(self, request: HttpRequest) -> Response | None:
        """Return the response of a sign-in endpoint, which needs no access token; None for any other path."""
        endpoint = self._endpoints.get(request.path)
        return endpoint(request) if endpoint and request.method == "POST" else None

    def check_access(self, request: HttpRequest) -> ErrorResponse | None:
        """Return the refusal of the request's access token; None if the token is valid."""
        scheme, _, token = request.header("authorization").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return MISSING
        fixed = self._settings.access
        if token not in self._expiry and fixed is not None and token not in fixed:
            return INVALID
        if time.monotonic() >= self._expiry.get(token, float("inf")):
            return EXPIRED
        return EXPIRED if self._is_used_up(token) else None

    def _is_used_up(self, token: str) -> bool:
        if self._settings.uses is None:
            return False
        self._used[token] = self._used.get(token, 0) + 1
        _forget(self._used)
        return self._used[token] > self._settings.uses

    # --- endpoints

    def _social(self, request: HttpRequest) -> Response:
        body = _body(request)
        old = text(body.get("refreshToken"))
        if not self._is_valid(old):
            return _response(401, {"message": "Bad credentials"}, "refresh: unknown token")
        return _response(200, {**self._granted(old), "profileArn": PROFILE_ARN})

    def _oidc(self, request: HttpRequest) -> Response:
        if "form-urlencoded" in request.header("content-type"):
            return self._external(request)
        body = _body(request)
        if not text(body.get("clientId")) or not text(body.get("clientSecret")):
            return _oauth(400, "invalid_client", "Invalid client provided")
        match text(body.get("grantType")):
            case "refresh_token":
                old = text(body.get("refreshToken"))
                return _response(200, self._granted(old)) if self._is_valid(old) else _dead_token()
            case "urn:ietf:params:oauth:grant-type:device_code":
                return self._poll(text(body.get("deviceCode")))
            case unknown:
                return _oauth(400, "unsupported_grant_type", f"No grant type {unknown!r}")

    def _external(self, request: HttpRequest) -> Response:
        """Refresh as an enterprise identity provider does: a form in, snake_case out."""
        form = parse_qs(request.body.decode("utf-8", "replace"))
        old = (form.get("refresh_token") or [""])[0]
        if not self._is_valid(old):
            return _dead_token()
        grant = self._granted(old)
        names = {"accessToken": "access_token", "refreshToken": "refresh_token", "expiresIn": "expires_in"}
        return _response(200, {"token_type": "Bearer", **{names[name]: value for name, value in grant.items()}})

    def _register(self, request: HttpRequest) -> Response:
        if not text(_body(request).get("clientName")):
            return _oauth(400, "invalid_client_metadata", "clientName is missing")
        number = next(self._number)
        return _response(
            200,
            {
                "clientId": f"sim-client-{number}",
                "clientSecret": f"sim-secret-{number}",
                "clientIdIssuedAt": int(time.time()),
                "clientSecretExpiresAt": int(time.time()) + 90 * 24 * 3600,
            },
        )

    def _authorize(self, request: HttpRequest) -> Response:
        body = _body(request)
        if not text(body.get("clientId")) or not text(body.get("clientSecret")) or not text(body.get("startUrl")):
            return _oauth(400, "invalid_request", "clientId, clientSecret and startUrl are needed")
        number = next(self._number)
        code = f"sim-device-{number}"
        self._polls[code] = self._settings.pending
        _forget(self._polls)
        page = f"http://{request.header('host', '127.0.0.1')}/device"
        return _response(
            200,
            {
                "deviceCode": code,
                "userCode": f"SIM-{number:04d}",
                "verificationUri": page,
                "verificationUriComplete": f"{page}?user_code=SIM-{number:04d}",
                "expiresIn": 600,
                "interval": 1,
            },
        )

    def _poll(self, code: str) -> Response:
        left = self._polls.get(code)
        if left is None:
            return _oauth(400, "invalid_grant", "Invalid device code provided")
        if left > 0:
            self._polls[code] = left - 1
            return _oauth(400, "authorization_pending", "")
        del self._polls[code]
        return _response(200, {**self._granted(""), "tokenType": "Bearer"})

    # --- tokens

    def _is_valid(self, refresh: str) -> bool:
        known = self._settings.refresh is None or refresh in self._refresh
        return bool(refresh) and known and refresh not in self._dead

    def _granted(self, old: str) -> Object:
        number = next(self._number)
        access, refresh = f"sim-access-{number}", f"sim-refresh-{number}"
        self._expiry[access] = time.monotonic() + self._settings.lifetime
        _forget(self._expiry)
        grant: Object = {"accessToken": access, "expiresIn": int(self._settings.lifetime)}
        if self._settings.rotate or not old:
            self._refresh.add(refresh)
            if old:
                self._dead.add(old)
            grant["refreshToken"] = refresh
        return grant


def _forget(tokens: dict[str, float] | dict[str, int]) -> None:
    while len(tokens) > _KNOWN:
        del tokens[next(iter(tokens))]


def _body(request: HttpRequest) -> Object:
    return jsonio.decode_object(request.body) or {}


def _response(status: int, body: Json, note: str = "") -> Response:
    return whole_response(status, _JSON, jsonio.encode(body), note)


_TYPES = {"invalid_grant": "InvalidGrantException", "authorization_pending": "AuthorizationPendingException"}


def _oauth(status: int, error: str, description: str) -> Response:
    name = _TYPES.get(error, "InvalidRequestException")
    body = jsonio.encode({"error": error, "error_description": description})
    return whole_response(status, (*_JSON, ("x-amzn-errortype", name)), body, f"{error}: {description}")


def _dead_token() -> Response:
    return _oauth(400, "invalid_grant", "Invalid refresh token provided")
