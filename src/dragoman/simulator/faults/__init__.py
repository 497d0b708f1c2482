"""A fault proxy: stands before a simulator (or any server on loopback) and spoils its answers, as told.

    proxy = FaultProxy(simulator.url, [Cut(event=3, how="reset")], dialect=registry.get("kiro"))

Three levels, in this order: wire frames (the dialect says where they end), the HTTP head and its framing, bytes.
Faults have names, for the command line and for files: `cut:event=3,how=reset`, `script:codes=429+503+200`. Tests and
`dragoman sim` call it; it listens on loopback only.
"""

from __future__ import annotations

import re

import msgspec

from dragoman.errors import LocalMisuse
from dragoman.simulator.faults import frames, response
from dragoman.simulator.faults.proxy import FaultProxy
from dragoman.simulator.faults.response import ProxiedResponse, ProxyFault

__all__ = ["FAULTS", "FaultProxy", "ProxiedResponse", "ProxyFault", "parse_fault"]


def _name(kind: type[ProxyFault]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removesuffix("Fault")).lower()


FAULTS: dict[str, type[ProxyFault]] = {
    _name(kind): kind
    for module in (response, frames)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, ProxyFault)
    and kind is not ProxyFault
    and not kind.__name__.startswith("_")
}


def parse_fault(text: str) -> ProxyFault:
    """The fault that this names. Raises LocalMisuse."""
    name, _, rest = text.partition(":")
    kind = FAULTS.get(name)
    if kind is None:
        raise LocalMisuse(f"no fault {name!r} (known: {', '.join(FAULTS)})")
    values: dict[str, object] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        values[key] = (value.split("+") if key == "codes" else value) if equals else "true"
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise LocalMisuse(f"fault {name}: {error}") from None
