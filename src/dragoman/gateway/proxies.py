"""Which proxy the environment wants for a host: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, and NO_PROXY against them. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult


def proxy_variable(url: SplitResult, environ: Mapping[str, str]) -> str | None:
    """The variable that names the proxy for this address; None if it is to be reached directly."""
    if is_loopback(url.hostname or "") or _excepted(url, _first(environ, "no_proxy")[1]):
        return None
    return _first(environ, f"{url.scheme}_proxy")[0] or _first(environ, "all_proxy")[0] or None


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _first(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    for spelling in (name, name.upper()):
        if environ.get(spelling):
            return spelling, environ[spelling]
    return "", ""


def _excepted(url: SplitResult, exceptions: str) -> bool:
    host = (url.hostname or "").lower()
    port = url.port or (443 if url.scheme == "https" else 80)
    return any(_fits(host, port, entry.strip().lower()) for entry in exceptions.split(",") if entry.strip())


def _fits(host: str, port: int, entry: str) -> bool:
    if entry == "*" or _in_network(host, entry):
        return True
    name, colon, wanted = entry.rpartition(":")
    if colon and wanted.isdigit() and ":" not in name:
        return int(wanted) == port and _fits(host, port, name)
    name = entry.removeprefix("*").lstrip(".")
    return bool(name) and (host == name or host.endswith(f".{name}"))


def _in_network(host: str, entry: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
