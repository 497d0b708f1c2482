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
