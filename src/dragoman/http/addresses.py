"""Addresses: those of clients, as limits and logs read them, and those of upstreams and proxies. Pure."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from dragoman.errors import LocalMisuse


def is_loopback(host: str) -> bool:
    """Only by its one name or an address: what a resolver makes of other names is not known here."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_network(text: str) -> bool:
    """Whether this is an address, or a network such as 10.0.0.0/8."""
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


@lru_cache(1024)
def normalize_address(text: str) -> str:
    """An address in its one spelling, without a zone or the form of an IPv4 address in IPv6; empty if it is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@lru_cache(1024)
def limit_key(address: str) -> str:
    """What limits count by: the address, or the /64 of an IPv6 one, since its owner has all of that."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address, 64), strict=False))
    except ValueError:
        return address


# --- where a request goes: an upstream's base URL taken apart, and the proxy in between


_PORTS = {"http": 80, "https": 443}
# Where clouds answer anybody on a machine with that machine's credentials, beside 169.254.169.254: AWS and Google over
# IPv6, Alibaba, Oracle, Azure.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "192.0.0.192", "168.63.129.16"))
)
_COMPATIBLE = ipaddress.ip_network("::/96")  # IPv4 as old software wrote it
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 behind NAT64


class BaseUrl(Struct, frozen=True):
    """A base URL: the origin, and what stands before every path and query."""

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
        return f"{_bracketed(self.host)}:{self.port}"


class Proxy(Struct, frozen=True):
    """An HTTP proxy; `authorization` is the whole value of its header, or empty."""

    host: str
    port: int
    authorization: str = ""


def parse_base_url(url: str) -> BaseUrl:
    """Take a base URL apart. Raises LocalMisuse; the message never shows the URL, which may hold a password."""
    parts = _split(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise LocalMisuse("a base URL begins with http:// or https:// and names a host")
    if parts.username is not None or parts.fragment:
        raise LocalMisuse(f"the base URL of {parts.hostname} holds a user name or a fragment: neither is sent")
    port = parts.port or _PORTS[parts.scheme]
    return BaseUrl(parts.scheme, ascii_host(parts.hostname), port, parts.path.rstrip("/"), parts.query)


def parse_proxy(url: str) -> Proxy:
    """Take a proxy's URL apart; without a scheme it is http. Raises LocalMisuse, without showing the URL."""
    parts = _split(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise LocalMisuse("a proxy's URL begins with http:// and names a host; https and SOCKS proxies are not spoken")
    authorization = ""
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = "Basic " + base64.b64encode(pair.encode()).decode()
    return Proxy(ascii_host(parts.hostname), parts.port or _PORTS["http"], authorization)


def choose_proxy(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for this URL; None if it is to be reached directly."""
    variable = proxy_variable(url, environ)
    return environ[variable].strip() if variable else None


def proxy_variable(url: str, environ: Mapping[str, str]) -> str | None:
    """The variable that names it: HTTPS_PROXY or HTTP_PROXY, else ALL_PROXY, in small letters first, unless NO_PROXY.

    Loopback never goes through a proxy. In a CGI, HTTP_PROXY in capitals is a client's header, and is not read.
    """
    address = parse_base_url(url)
    names = [f"{address.scheme}_proxy", f"{address.scheme}_proxy".upper(), "all_proxy", "ALL_PROXY"]
    found = _first(environ, [name for name in names if name != "HTTP_PROXY" or "REQUEST_METHOD" not in environ])
    if not found or _is_loopback(address.host):
        return None
    spared = environ.get(_first(environ, ("no_proxy", "NO_PROXY")), "").replace(",", " ").lower().split()
    return None if any(_spares(entry, address) for entry in spared) else found


def _spares(entry: str, address: BaseUrl) -> bool:
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
    """Say why a connection that was asked for by this name must not go to this address; empty if it may.

    Private networks are no reason: services of one's own have names, too, and only the configuration names them.
    """
    found = _meant(ipaddress.ip_address(address.partition("%")[0]))
    if is_metadata(found) or found.is_multicast or found.is_unspecified:
        return f"it leads to {found}, where no service of others is"
    if found.is_loopback and not _is_loopback(host):
        return f"it leads to {found}, which is this machine: name that localhost if it is meant"
    return ""


def is_metadata(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is link-local, or one where a cloud answers a machine with the machine's credentials."""
    found = _meant(address)
    return found.is_link_local or found in _METADATA


def _meant(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that an IPv6 one stands for, if it does."""
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
        _ = parts.port  # is read, and may be no number, only now
    except ValueError as error:
        raise LocalMisuse("a URL of the configuration cannot be read: its host or port is none") from error
    return parts


def ascii_host(name: str) -> str:
    """Give a host's name as it goes over the wire. Raises LocalMisuse for what no resolver would take."""
    try:
        return name.encode("idna").decode().lower()
    except UnicodeError as error:
        raise LocalMisuse(f"{name[:80]!r} is no host name") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
