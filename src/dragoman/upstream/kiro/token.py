"""A Kiro token as a value, and its spellings: the IDE's camelCase, kiro-cli's snake_case, our own (document 000)."""

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

# --- the hosts of a login. A region from a file becomes part of a host name, so it is checked first


DEFAULT_REGION = "us-east-1"
API_REGIONS = ("us-east-1", "eu-central-1")  # where the service itself runs; a sign-in region may be any other
BUILDER_ID = "https://view.awsapps.com/start"

_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d")
_ARN = re.compile(r"arn:aws[a-z-]*:(?:codewhisperer|transform):([a-z]{2}(?:-[a-z]+)+-\d):\d{12}:profile/[a-zA-Z0-9]+")
_LONGEST_REGION, _LONGEST_ARN = 32, 950


def is_region(text: str) -> bool:
    return len(text) <= _LONGEST_REGION and _REGION.fullmatch(text) is not None


def region_of_arn(arn: str) -> str:
    """The region inside a profile's ARN; empty if it is none."""
    found = _ARN.fullmatch(arn) if len(arn) <= _LONGEST_ARN else None
    return found[1] if found else ""


def is_loopback(url: str) -> bool:
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_safe_url(url: str) -> bool:
    """https to a named host, without a login in it; plain http only to this machine."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # reading it checks it
    except ValueError:
        return False
    if not parts.hostname or "@" in parts.netloc or not url.isascii() or not url.isprintable() or " " in url:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))


class Endpoints(Struct, frozen=True):
    """Base URLs; `{region}` is filled in. `everything_at` sends all of it to one place, such as the simulator."""

    social: str = "https://prod.{region}.auth.desktop.kiro.dev"
    oidc: str = "https://oidc.{region}.amazonaws.com"
    api: str = "https://q.{region}.amazonaws.com"

    @classmethod
    def everything_at(cls, url: str) -> Endpoints:
        base = url.rstrip("/")
        if not is_safe_url(base) or "{" in base:
            raise CredentialFault(f"{url!r} is no address to send credentials to: use https, or http to this machine.")
        return cls(base, base, base)

    def at(self, service: str, region: str) -> str:
        """The base URL of `social`, `oidc` or `api`. Raises CredentialFault for a region that is none."""
        if not is_region(region):
            raise CredentialFault(
                f"{region!r} is not an AWS region. Name one with --region, such as {DEFAULT_REGION} or eu-central-1."
            )
        template: str = {"social": self.social, "oidc": self.oidc, "api": self.api}[service]
        return template.replace("{region}", region)


Kind: TypeAlias = Literal["social", "idc", "external_idp", "api_key"]
Document: TypeAlias = dict[str, Json]

_NONE: Final = SecretText()
_PRINTABLE = re.compile(r"[\x21-\x7e]+")  # what a header may carry as one word
_KINDS: dict[str, Kind] = {
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
    """One login. `region` is where it signs in, which is not where the service runs: that is `api_region`."""

    kind: Kind
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
    endpoint: str = ""  # a simulator on this machine that gave the token, and so renews it
    slot: str = ""  # the row it came from, in a store that has several

    @property
    def api_region(self) -> str:
        return region_of_arn(self.profile_arn) or DEFAULT_REGION

    @property
    def is_builder_id(self) -> bool:
        return self.kind == "idc" and (self.provider.lower() == "builderid" or self.start_url == BUILDER_ID)

    def expires_within(self, seconds: float, now: float) -> bool:
        return self.expires_at is not None and self.expires_at - now <= seconds

    def mask_secrets(self, words: str) -> str:
        """The words without any secret of this token, should a service ever repeat one."""
        return mask_secrets(words, (each.reveal() for each in (self.access, self.refresh, self.client_secret)))


# --- reading


def first_text(document: Mapping[str, Json], *names: str) -> str:
    """The first of these fields that is a text with something in it; empty if none is."""
    for name in names:
        value = document.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def parse_token(document: Mapping[str, Json], where: str, kind: Kind | None = None, slot: str = "") -> Token:
    """Read a token in any spelling. Raises CredentialFault that names `where`, and never what it holds."""
    access = _secret(document, where, "accessToken", "access_token", "apiKey", "api_key")
    refresh = _secret(document, where, "refreshToken", "refresh_token")
    if not access and not refresh:
        raise CredentialFault(f"{where} holds no token. Run `dragoman auth login kiro`.")
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


def _kind(document: Mapping[str, Json]) -> Kind:
    named = first_text(document, "authMethod", "auth_method").lower()
    if named in _KINDS:
        return _KINDS[named]
    if first_text(document, "tokenEndpoint", "token_endpoint"):
        return "external_idp"
    if first_text(document, "apiKey", "api_key"):
        return "api_key"
    registered = first_text(document, "clientId", "client_id", "clientIdHash")
    return "idc" if registered else "social"


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
    """Seconds of the epoch from ISO 8601 or a number; 0 (long ago) for what is neither, None for nothing."""
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
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def update_document(document: Document, token: Token) -> Document:
    """The document with the token's new values in the document's own spelling; all else stays as it is."""
    camel = "accessToken" in document or "refreshToken" in document
    names = ("accessToken", "refreshToken", "expiresAt") if camel else ("access_token", "refresh_token", "expires_at")
    changed = {**document, names[0]: token.access.reveal()}
    if token.refresh:
        changed[names[1]] = token.refresh.reveal()
    if token.expires_at is not None:
        changed[names[2]] = _same_form(document.get(names[2]), token.expires_at)
    arn = "profileArn" if camel else "profile_arn"
    if token.profile_arn and token.kind == "social" and document.get(arn) != token.profile_arn:
        changed[arn] = token.profile_arn
    return changed


def _same_form(old: Json, moment: float) -> Json:
    if isinstance(old, (int, float)) and not isinstance(old, bool):
        return int(moment * 1000) if old > _MILLISECONDS else int(moment)
    return render_time(moment)


def render_token(token: Token) -> Document:
    """Our own spelling: document 000's type, access token, expiry and profile, and what a refresh needs."""
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
