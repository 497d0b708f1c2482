"""Requests to the Kiro service about the account: profiles and quota. Sends them through a `Fetch`."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode
from uuid import uuid4

from msgspec import Struct

from dragoman._version import __version__
from dragoman.upstream.credentials import CredentialFault, Fetch, json_object_of, with_headers
from dragoman.upstream.kiro.token import API_REGIONS, Document, Endpoints, Token, region_of_arn
from dragoman.wire import jsonio
from dragoman.wire.http import Headers, HttpRequest, HttpResponse
from dragoman.wire.jsonio import Json

USER_AGENT = (
    f"dragoman/{__version__}"  # our own name, without a fingerprint of the machine (docs/decisions/kiro.md#d16)
)
_MODELS = "/ListAvailableModels"
_PROFILES = "AmazonCodeWhispererService.ListAvailableProfiles"
_TOKEN_TYPES = {"api_key": "API_KEY", "external_idp": "EXTERNAL_IDP"}
_MAX_PAGES = 10


def token_headers(token: Token) -> Headers:
    """Return the headers of every request with this token, except the id of the request."""
    headers: Headers = (
        ("authorization", f"Bearer {token.access.reveal()}"),
        ("user-agent", USER_AGENT),
        ("x-amz-user-agent", USER_AGENT),
        ("amz-sdk-request", "attempt=1; max=1"),
    )
    return (*headers, ("tokentype", _TOKEN_TYPES[token.kind])) if token.kind in _TOKEN_TYPES else headers


def _signed(request: HttpRequest, token: Token) -> HttpRequest:
    return with_headers(request, (*token_headers(token), ("amz-sdk-invocation-id", str(uuid4()))))


class Profile(Struct, frozen=True):
    """A profile of the account, which some logins must name in requests."""

    arn: str
    name: str


async def list_profiles(fetch: Fetch, endpoints: Endpoints, token: Token) -> list[Profile]:
    """Return the profiles of a login in all regions of the service. Raises CredentialFault if every region refuses."""
    profiles: dict[str, Profile] = {}
    faults: list[CredentialFault] = []
    bases = dict.fromkeys(endpoints.at("api", region) for region in API_REGIONS)
    for base in bases:
        try:
            profiles |= {profile.arn: profile for profile in await _profiles_at(fetch, base, token)}
        except CredentialFault as fault:  # one region refuses the logins of the other
            faults.append(fault)
    if len(faults) == len(bases):
        raise faults[0]
    return [*profiles.values()]


async def _profiles_at(fetch: Fetch, base: str, token: Token) -> list[Profile]:
    profiles: list[Profile] = []
    more: Document = {}
    headers: Headers = (("content-type", "application/x-amz-json-1.0"), ("x-amz-target", _PROFILES))
    for _ in range(_MAX_PAGES):
        body = jsonio.encode({"maxResults": 10, **more})
        request = _signed(HttpRequest("POST", "/", headers=headers, body=body), token)
        page = _parse_response(await fetch(base, request), token)
        profiles += [profile for item in _list(page, "profiles") if (profile := _profile(item))]
        next_token = page.get("nextToken")
        if not isinstance(next_token, str) or not next_token:
            break
        more = {"nextToken": next_token}
    return profiles


def _profile(item: Document) -> Profile | None:
    arn, name = item.get("arn"), item.get("profileName")
    if not isinstance(arn, str) or not region_of_arn(arn):
        return None
    return Profile(arn, name if isinstance(name, str) else "")


class QuotaUsage(Struct, frozen=True):
    """The used part and the limit of the quota of one period, a free trial included."""

    used: float
    limit: float
    plan: str = ""
    resets_at: float | None = None

    @property
    def remaining(self) -> float:
        """The unused part of the quota."""
        return max(0.0, self.limit - self.used)

    def describe(self) -> dict[str, Json]:
        """Return the fields as JSON for `dragoman auth` and `dragoman status`."""
        amounts: dict[str, Json] = {"used": self.used, "limit": self.limit, "remaining": self.remaining}
        return amounts | {"plan": self.plan, "resets_at": self.resets_at}


async def fetch_usage(fetch: Fetch, endpoints: Endpoints, token: Token) -> QuotaUsage:
    """Return how much of the quota is used. Raises CredentialFault."""
    query = {"origin": "AI_EDITOR", "resourceType": "AGENTIC_REQUEST"}
    if token.profile_arn:
        query["profileArn"] = token.profile_arn
    request = HttpRequest("GET", "/getUsageLimits", urlencode(query), (("accept", "application/json"),))
    document = _parse_response(await fetch(endpoints.at("api", token.api_region), _signed(request, token)), token)
    used = limit = 0.0
    for item in _list(document, "usageBreakdownList"):
        trial = item.get("freeTrialInfo")
        active = isinstance(trial, dict) and trial.get("freeTrialStatus") == "ACTIVE"
        for part in (item, trial) if isinstance(trial, dict) and active else (item,):
            used += _number(part, "currentUsageWithPrecision", "currentUsage")
            limit += _number(part, "usageLimitWithPrecision", "usageLimit")
    plan = document.get("subscriptionInfo")
    title = plan.get("subscriptionTitle") if isinstance(plan, dict) else None
    return QuotaUsage(used, limit, title if isinstance(title, str) else "", _number(document, "nextDateReset") or None)


def with_profile(request: HttpRequest, arn: str) -> HttpRequest:
    """Return a request with the profile ARN: in the body of a conversation that has none, or in a query for models."""
    if request.method == "GET" and request.path == _MODELS:
        query = urlencode([*parse_qsl(request.query), ("profileArn", arn)])
        return HttpRequest(request.method, request.path, query, request.headers, request.body)
    if request.method != "POST" or not request.body.startswith(b'{"conversationState"'):
        return request
    if _names_profile(request.body):
        return request
    # Bodies are large, so the ARN is spliced in: one copy, and the body is not decoded.
    body = b"".join((b'{"profileArn":', jsonio.quote(arn), b",", memoryview(request.body)[1:]))
    return HttpRequest(request.method, request.path, request.query, request.headers, body)


def _names_profile(body: bytes) -> bool:
    """Return whether the body has a profile ARN at the top level; other fields are not decoded."""
    try:
        return bool(_read_top(body).profileArn)
    except jsonio.JsonError:
        return True  # the service refuses such a body; it is sent unchanged


class _Top(Struct):
    profileArn: jsonio.Raw = jsonio.Raw()  # noqa: N815  # the name on the wire


_read_top = jsonio.typed_decoder(_Top)


def _parse_response(response: HttpResponse, token: Token) -> Document:
    document = json_object_of(response)
    if response.status == 200 and document:
        return document
    message = document.get("message") or document.get("Message") or f"status {response.status}"
    masked = token.mask_secrets(str(message))[:300]
    raise CredentialFault(f"Kiro refused the login: {masked}", is_permanent=response.status in (400, 401, 403))


def _list(document: Document, name: str) -> list[Document]:
    value = document.get(name)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _number(document: dict[str, Json], *names: str) -> float:
    for name in names:
        value = document.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return 0.0
