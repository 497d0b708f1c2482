"""Which client a request comes from. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TypeAlias

from dragoman.http.addresses import plain_address
from dragoman.wire.http import Headers

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_MOST_HOPS = 32  # of X-Forwarded-For that are looked at, from the right


class TrustedProxies:
    """The proxies whose word about a client's address counts."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: list[Network] = [ipaddress.ip_network(text, strict=False) for text in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, address: str) -> bool:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)

    def client_of(self, peer: str, headers: Headers) -> str:
        """The address of the client behind this peer: the last hop of X-Forwarded-For that is no trusted proxy."""
        client = peer
        if not self.trusts(peer):
            return client
        given = ",".join([value for name, value in headers if name == "x-forwarded-for"])
        for hop in reversed(given.split(",")[-_MOST_HOPS:]):
            address = _hop_address(hop.strip())
            if not address:  # what stands further left was not written by a proxy that we trust
                return client
            client = address
            if not self.trusts(address):
                return client
        return client


def _hop_address(hop: str) -> str:
    """The address of a hop, which may have a port: `192.0.2.1:80`, `[2001:db8::1]:80`."""
    if hop.startswith("["):
        return plain_address(hop[1:].partition("]")[0])
    if hop.count(":") == 1:
        return plain_address(hop.partition(":")[0])
    return plain_address(hop)
