"""The hosts of a Kiro login. A region from a file becomes part of a host name, so it is checked before one is built."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from msgspec import Struct

from dragoman.upstream.credentials import CredentialFault

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
