"""Login with a device code (OIDC): register a client, show a code, poll until the person has said yes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct, structs

from dragoman.errors import TransportError, UpstreamViolation
from dragoman.upstream.credentials import CredentialFault, Fetch, Secret
from dragoman.upstream.kiro.endpoints import BUILDER_ID, DEFAULT_REGION, Endpoints, is_safe_url
from dragoman.upstream.kiro.refresh import JSON, granted, read_answer, read_refusal, seconds
from dragoman.upstream.kiro.token import Document, Token, parse_time, pick
from dragoman.wire import jsonio
from dragoman.wire.http import HttpRequest

SCOPES = tuple(
    f"codewhisperer:{name}" for name in ("completions", "analysis", "conversations", "transformations", "taskassist")
)
_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_SLOWER = 5.0  # seconds that `slow_down` adds, as RFC 8628 says
_LONGEST = 900.0


class Prompt(Struct, frozen=True):
    """What to show: open `url` (it holds the code), or `page` and type `code`."""

    url: str
    page: str
    code: str
    device: Secret
    interval: float
    lives: float


class DeviceLogin:
    """One login. `begin`, show the prompt, `wait`. Raises CredentialFault, TransportError."""

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
            raise CredentialFault(f"{start_url!r} is no start page: it begins with https://.")
        self._fetch = fetch
        self._base = (endpoints or Endpoints()).at("oidc", region)
        self._sleep = sleep
        builder = start_url.rstrip("/#") == BUILDER_ID
        self._login = Token(
            kind="idc",
            access=Secret(),
            region=region,
            start_url=start_url.rstrip("/#"),
            provider="BuilderId" if builder else "Enterprise",
            scopes=SCOPES,
        )

    async def begin(self) -> Prompt:
        """Register and ask for a code."""
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
            client_id=_needed(client, "clientId"),
            client_secret=Secret(_needed(client, "clientSecret")),
            client_expires_at=parse_time(client.get("clientSecretExpiresAt")) or None,
        )
        given = await self._ask("/device_authorization", {**self._client(), "startUrl": self._login.start_url})
        page = _needed(given, "verificationUri")
        url = pick(given, "verificationUriComplete") or page
        if not is_safe_url(page) or not is_safe_url(url):
            raise CredentialFault("the sign-in service named a page that is no https address.")
        return Prompt(
            url,
            page,
            _needed(given, "userCode"),
            Secret(_needed(given, "deviceCode")),
            seconds(given.get("interval"), 5.0),
            min(_LONGEST, seconds(given.get("expiresIn"), 600.0)),
        )

    async def wait(self, prompt: Prompt, now: Callable[[], float]) -> Token:
        """Poll until the person has decided, or the code has ended."""
        interval, waited = prompt.interval, 0.0
        body: Document = {**self._client(), "grantType": _GRANT, "deviceCode": prompt.device.reveal()}
        while waited < prompt.lives:
            await self._sleep(interval)
            waited += interval
            try:
                response = await self._fetch(self._base, _post("/token", body))
            except (TransportError, UpstreamViolation):
                continue  # the person is still busy in the browser; the next poll may get through
            if response.status == 200:
                return granted(response, self._login, now())
            refusal = read_refusal(response, self._login)
            match refusal.code:
                case "authorization_pending":
                    continue
                case "slow_down":
                    interval += _SLOWER
                case "expired_token":
                    break
                case "access_denied":
                    raise CredentialFault("the login was declined in the browser.")
                case _ if refusal.status < 500:
                    raise CredentialFault(f"the sign-in service refused the login: {refusal.words}")
        raise CredentialFault(
            "the code has ended before the login was confirmed. Run `dragoman auth login kiro` again."
        )

    async def _ask(self, path: str, body: Document) -> Document:
        response = await self._fetch(self._base, _post(path, body))
        if response.status != 200:
            refusal = read_refusal(response, self._login)
            raise CredentialFault(
                f"the sign-in service of {self._login.region} refused the login: {refusal.words}."
                " Are --region and --start-url those of your organisation?"
            )
        return read_answer(response)

    def _client(self) -> Document:
        return {"clientId": self._login.client_id, "clientSecret": self._login.client_secret.reveal()}


def _post(path: str, body: Document) -> HttpRequest:
    return HttpRequest("POST", path, headers=JSON, body=jsonio.encode(body))


def _needed(document: Document, name: str) -> str:
    value = pick(document, name)
    if not value:
        raise CredentialFault(f"the sign-in service answered without {name}.", lasting=False)
    return value
