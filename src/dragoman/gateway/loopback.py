"""Which hosts are this machine, for who must know whether others can listen. Pure."""

from __future__ import annotations

import ipaddress


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
