"""IP addresses of clients, and URLs of upstreams and proxies. Pure."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from dragoman.errors import LocalMisuse


def is_loopback(host: str) -> bool:
    """Return whether a host is `localhost` or a loopback address. Other names are not resolved."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_network(text: str) -> bool:
    """Return whether the text is an IP address, or a network such as 10.0.0.0/8."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


@lru_cache(1024)
def normalize_address(text: str) -> str:
    """Return an IP address in canonical form, without a zone, IPv4-mapped IPv6 as IPv4; "" for other text."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@lru_cache(1024)
def limit_key(address: str) -> str:
    """Return the key that limits count by: the address, or the /64 network of an IPv6 one, which has one owner."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address, 64), strict=False))
    except ValueError:
        return address


# --- URLs of upstreams and proxies


_PORTS = {"http": 80, "https": 443}
# Metadata services of clouds, which give every process on a machine the machine's credentials, besides
# 169.254.169.254: AWS and Google over IPv6, Alibaba, Oracle, Azure.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"))
)
_COMPATIBLE = ipaddress.ip_network("::/96")  # IPv4-compatible IPv6, deprecated
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 behind NAT64


class BaseUrl(Struct, frozen=True):
    """A base URL: the origin, and the prefix of every path and query."""

    scheme: str
    host: str  # ASCII, without brackets
    port: int
    prefix: str = ""
    query: str = ""

    @property
    def authority(self) -> str:
        """The value of the `host` header."""
        return _bracketed(self.host) if self.port == _PORTS[self.scheme] else self.host_and_port

    @property
    def host_and_port(self) -> str:
        """The host and port, with brackets around an IPv6 address."""
        return f"{_bracketed(self.host)}:{self.port}"


class Proxy(Struct, frozen=True):
    """An HTTP proxy; `authorization` is the value of the header Proxy-Authorization, or empty."""

    host: str
    port: int
    authorization: str = ""


def parse_base_url(url: str) -> BaseUrl:
    """Parse a base URL. Raises LocalMisuse; the message never shows the URL, which may contain a password."""
    parts = _split(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise LocalMisuse("a base URL must begin with http:// or https:// and name a host")
    if parts.username is not None or parts.fragment:
        raise LocalMisuse(
            f"the base URL of {parts.hostname} contains a user name or a fragment; remove it, neither is sent"
        )
    port = parts.port or _PORTS[parts.scheme]
    return BaseUrl(parts.scheme, ascii_host(parts.hostname), port, parts.path.rstrip("/"), parts.query)


def parse_proxy(url: str) -> Proxy:
    """Parse a proxy URL; without a scheme it is http. Raises LocalMisuse, without showing the URL."""
    parts = _split(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise LocalMisuse(
            "a proxy URL must begin with http:// and name a host; https and SOCKS proxies are not supported"
        )
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(ascii_host(parts.hostname), parts.port or _PORTS["http"], authorization)


def choose_proxy(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy that the environment sets for this URL; None for a direct connection."""
    variable = proxy_variable(url, environ)
    return environ[variable].strip() if variable else None


def proxy_variable(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the environment variable that sets the proxy for this URL; None for a direct connection.

    The order is HTTPS_PROXY or HTTP_PROXY, then ALL_PROXY, lower case first; NO_PROXY excludes hosts. Loopback never
    uses a proxy. In a CGI program, HTTP_PROXY in upper case is a header of the client and is ignored.
    """
    address = parse_base_url(url)
    names = [f"{address.scheme}_proxy", f"{address.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    variable = _first(environ, [name for name in names if name != "HTTP_PROXY" or "REQUEST_METHOD" not in environ])
    if not variable or _is_loopback(address.host):
        return None
    excluded = environ.get(_first(environ, ("no_proxy", "NO_PROXY")), "").replace(",", " ").lower().split()
    return None if any(_excludes(entry, address) for entry in excluded) else variable


def _excludes(entry: str, address: BaseUrl) -> bool:
    if entry in ("*", address.host):
        return True
    if "/" in entry:
        return _in_network(address.host, entry)
    name, colon, port = entry.rpartition(":")
    if colon and port.isdecimal() and ("]" in name or ":" not in name):  # else it is a bare IPv6 address
        if int(port) != address.port:
            return False
        entry = name
    entry = entry.strip("[]").removeprefix("*").removeprefix(".")
    return bool(entry) and (address.host == entry or address.host.endswith(f".{entry}"))


def _in_network(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    return is_loopback(host) or host.endswith(".localhost")


def address_problem(host: str, address: str) -> str:
    """Return why a connection to this host name must not use this address; "" if it may.

    Private networks are allowed, because only the configuration can name hosts there.
    """
    resolved = _embedded_ipv4(ipaddress.ip_address(address.partition("%")[0]))
    if is_metadata(resolved) or resolved.is_multicast or resolved.is_unspecified:
        return f"the name resolves to {resolved}, which is not the address of a public service"
    if resolved.is_loopback and not _is_loopback(host):
        return f"the name resolves to {resolved}, which is this machine; write localhost if that is intended"
    return ""


def is_metadata(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is link-local or that of a cloud's metadata service."""
    ipv4 = _embedded_ipv4(address)
    return ipv4.is_link_local or ipv4 in _METADATA


def _embedded_ipv4(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the IPv4 address that an IPv6 address embeds; otherwise the address itself."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _COMPATIBLE and int(address) > 0xFFFF:
        return ipaddress.IPv4Address(int(address))
    return address.ipv4_mapped or address.sixtofour or address


def _first(environ: Mapping[str, str], names: Sequence[str]) -> str:
    return next((name for name in names if environ.get(name, "").strip()), "")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # parsed on access; raises ValueError for an invalid port
    except ValueError as error:
        raise LocalMisuse("a URL in the configuration has an invalid host or port") from error
    return parts


def ascii_host(name: str) -> str:
    """Return a host name in ASCII (IDNA). Raises LocalMisuse for an invalid name."""
    try:
        return name.encode("idna").decode().lower()
    except UnicodeError as error:
        raise LocalMisuse(f"{name[:80]!r} is not a valid host name") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
