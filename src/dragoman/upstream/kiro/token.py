"""A Kiro token as a value, read from and written to the formats of the Kiro IDE, kiro-cli and Dragoman. Pure.

The IDE writes camelCase, kiro-cli snake_case; docs/dialects/kiro.md#hosts-and-logins has Dragoman's format. The hosts
of the sign-in services and of the service itself are here too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.upstream.credentials import CredentialFault, SecretText, mask_secrets
from dragoman.wire.jsonio import Json

# --- hosts. A region from a file becomes part of a host name, so it is checked first


DEFAULT_REGION = "us-east-1"
API_REGIONS = ("us-east-1", "eu-central-1")  # regions of the service itself; a login may sign in to any region
BUILDER_ID = "https://view.awsapps.com/start"

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_ARN = re.compile(r"arn:aws[a-z-]*:(?:codewhisperer|transform):([a-z]{2}(?:-[a-z]+)+-\d):\d{12}:profile/[a-zA-Z0-9]+")
_MAX_REGION, _MAX_ARN = 32, 950


def is_region(text: str) -> bool:
    """Return whether the text has the form of an AWS region."""
    return len(text) <= _MAX_REGION and _REGION.fullmatch(text) is not None


def region_of_arn(arn: str) -> str:
    """Return the region in the ARN of a profile; empty if the text is not such an ARN."""
    found = _ARN.fullmatch(arn) if len(arn) <= _MAX_ARN else None
    return found[1] if found else ""


def is_loopback(url: str) -> bool:
    """Return whether the host of the URL is this machine."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_safe_url(url: str) -> bool:
    """Return whether credentials may be sent to the URL: https without user info, or http to this machine."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return False
    if not parts.hostname or "@" in parts.netloc or not url.isascii() or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))


class Endpoints(Struct, frozen=True):
    """Base URLs of the sign-in services and the service; `{region}` is replaced by the region of the login."""

    social: str = "https://prod.{region}.auth.desktop.kiro.dev"
    oidc: str = "https://oidc.{region}.amazonaws.com"
    api: str = "https://q.{region}.amazonaws.com"

    @classmethod
    def everything_at(cls, url: str) -> Endpoints:
        """Return endpoints that all have one base URL, such as the simulator's. Raises CredentialFault."""
        base = url.rstrip("/")
        if not is_safe_url(base) or "{" in base:
            raise CredentialFault(f"credentials cannot be sent to {url!r}: use https, or http to this machine.")
        return cls(base, base, base)

    def at(self, service: str, region: str) -> str:
        """Return the base URL of `social`, `oidc` or `api`. Raises CredentialFault if the region is not one."""
        if not is_region(region):
            raise CredentialFault(
                f"{region!r} is not an AWS region. Name one with --region, such as {DEFAULT_REGION} or eu-central-1."
            )
        template: str = {"social": self.social, "oidc": self.oidc, "api": self.api}[service]
        return template.replace("{region}", region)


LoginKind: TypeAlias = Literal["social", "idc", "external_idp", "api_key"]
Document: TypeAlias = dict[str, Json]

_NONE: Final = SecretText()
_PRINTABLE = re.compile(r"[\x21-\x7e]+")  # the characters of one word in a header
_KINDS: dict[str, LoginKind] = {
    "social": "social",
    "google": "social",
    "github": "social",
    "idc": "idc",
    "builder-id": "idc",
    "builderid": "idc",
    "external_idp": "external_idp",
    "api_key": "api_key",
}
_MILLISECONDS = 1e11  # an epoch number above this counts milliseconds


class Token(Struct, frozen=True, kw_only=True):
    """One login. `region` is the region of its sign-in service, `api_region` the region of the Kiro service."""

    kind: LoginKind
    access: SecretText
    refresh: SecretText = _NONE
    expires_at: float | None = None
    profile_arn: str = ""
    region: str = DEFAULT_REGION
    provider: str = ""  # Google, Github, BuilderId, Enterprise
    start_url: str = ""
    client_id: str = ""
    client_secret: SecretText = _NONE
    client_expires_at: float | None = None
    token_endpoint: str = ""  # of an external identity provider
    scopes: tuple[str, ...] = ()
    endpoint: str = ""  # the simulator on this machine that issued the token and refreshes it
    slot: str = ""  # the key of its row, in a store with several logins

    @property
    def api_region(self) -> str:
        """The region of the Kiro service for this login."""
        return region_of_arn(self.profile_arn) or DEFAULT_REGION

    @property
    def is_builder_id(self) -> bool:
        """Whether this is a login with an AWS Builder ID."""
        return self.kind == "idc" and (self.provider.lower() == "builderid" or self.start_url == BUILDER_ID)

    def expires_within(self, seconds: float, now: float) -> bool:
        """Return whether the access token expires within this time. One without an expiry time never does."""
        return self.expires_at is not None and self.expires_at - now <= seconds

    def mask_secrets(self, message: str) -> str:
        """Return the message without the secrets of this token, which a service may repeat in an error."""
        return mask_secrets(message, (secret.reveal() for secret in (self.access, self.refresh, self.client_secret)))


# --- reading


def first_text(document: Mapping[str, Json], *names: str) -> str:
    """Return the first of these fields that is a string and not blank; empty if there is none."""
    for name in names:
        value = document.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def parse_token(document: Mapping[str, Json], where: str, kind: LoginKind | None = None, slot: str = "") -> Token:
    """Return the token of a document in any of the formats.

    Raises CredentialFault, whose message names `where` and never quotes the document.
    """
    access = _secret(document, where, "accessToken", "access_token", "apiKey", "api_key")
    refresh = _secret(document, where, "refreshToken", "refresh_token")
    if not access and not refresh:
        raise CredentialFault(f"{where} contains no token. Run `dragoman auth login kiro`.")
    arn, region = (
        first_text(document, "profileArn", "profile_arn"),
        first_text(document, "region", "ssoRegion", "sso_region"),
    )
    endpoint = first_text(document, "endpoint")
    return Token(
        kind=kind or _kind(document),
        access=access,
        refresh=refresh,
        expires_at=parse_time(document.get("expiresAt", document.get("expires_at"))),
        profile_arn=arn if region_of_arn(arn) else "",
        region=region or DEFAULT_REGION,
        provider=first_text(document, "provider"),
        start_url=first_text(document, "startUrl", "start_url").rstrip("/#"),
        client_id=first_text(document, "clientId", "client_id"),
        client_secret=_secret(document, where, "clientSecret", "client_secret"),
        client_expires_at=parse_time(document.get("client_expires_at")),
        token_endpoint=first_text(document, "tokenEndpoint", "token_endpoint"),
        scopes=_words(document.get("scopes")),
        endpoint=endpoint if is_loopback(endpoint) else "",
        slot=slot,
    )


def _kind(document: Mapping[str, Json]) -> LoginKind:
    method = first_text(document, "authMethod", "auth_method").lower()
    if method in _KINDS:
        return _KINDS[method]
    if first_text(document, "tokenEndpoint", "token_endpoint"):
        return "external_idp"
    if first_text(document, "apiKey", "api_key"):
        return "api_key"
    client = first_text(document, "clientId", "client_id", "clientIdHash")
    return "idc" if client else "social"


def _secret(document: Mapping[str, Json], where: str, *names: str) -> SecretText:
    text = first_text(document, *names)
    if text and (not _PRINTABLE.fullmatch(text) or "..." in text):
        raise CredentialFault(f"{where}: {names[0]} is incomplete or contains other text. Copy it again.")
    return SecretText(text)


def _words(value: Json) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    items: Iterable[Json] = value if isinstance(value, list) else ()
    return tuple(item for item in items if isinstance(item, str))


def parse_time(value: Json) -> float | None:
    """Return epoch seconds from ISO 8601 or a number; 0 (expired) for other values, None for no value."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value / 1000 if value > _MILLISECONDS else float(value)
    try:
        moment = datetime.fromisoformat(value if isinstance(value, str) else "")
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


# --- writing


def render_time(moment: float) -> str:
    """Return epoch seconds as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def update_document(document: Document, token: Token) -> Document:
    """Return the document with the new values of the token, in the document's own format; other fields stay."""
    is_camel_case = "accessToken" in document or "refreshToken" in document
    names = (
        ("accessToken", "refreshToken", "expiresAt")
        if is_camel_case
        else ("access_token", "refresh_token", "expires_at")
    )
    updated = {**document, names[0]: token.access.reveal()}
    if token.refresh:
        updated[names[1]] = token.refresh.reveal()
    if token.expires_at is not None:
        updated[names[2]] = _same_form(document.get(names[2]), token.expires_at)
    arn = "profileArn" if is_camel_case else "profile_arn"
    if token.profile_arn and token.kind == "social" and document.get(arn) != token.profile_arn:
        updated[arn] = token.profile_arn
    return updated


def _same_form(old: Json, moment: float) -> Json:
    if isinstance(old, (int, float)) and not isinstance(old, bool):
        return int(moment * 1000) if old > _MILLISECONDS else int(moment)
    return render_time(moment)


def render_token(token: Token) -> Document:
    """Return the token in Dragoman's format, with the fields that a refresh needs; empty fields are left out."""
    document: Document = {
        "type": "kiro",
        "auth_method": token.kind,
        "access_token": token.access.reveal(),
        "refresh_token": token.refresh.reveal(),
        "expires_at": None if token.expires_at is None else render_time(token.expires_at),
        "profile_arn": token.profile_arn,
        "region": token.region,
        "provider": token.provider,
        "start_url": token.start_url,
        "client_id": token.client_id,
        "client_secret": token.client_secret.reveal(),
        "client_expires_at": None if token.client_expires_at is None else render_time(token.client_expires_at),
        "token_endpoint": token.token_endpoint,
        "scopes": [*token.scopes],
        "endpoint": token.endpoint,
    }
    return {name: value for name, value in document.items() if value not in ("", None, [])}
