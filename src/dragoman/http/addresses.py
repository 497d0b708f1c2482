"""IP addresses as limits, logs and the configuration read them. Pure."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


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
def plain_address(text: str) -> str:
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
