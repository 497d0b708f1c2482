"""A fault proxy: forwards to a simulator (or any server on loopback) and damages its responses on request.

    proxy = FaultProxy(simulator.url, [Cut(event=3, how="reset")], dialect=registry.get("kiro"))

Faults apply on three levels, in this order: stream frames (the dialect defines where they end), the HTTP head and its
framing, bytes on the wire.

The command line and files name a fault: `cut:event=3,how=reset`, `script:codes=429+503+200`. Tests and `dragoman sim`
start the proxy; it listens on loopback only.
"""

from __future__ import annotations

import re

import msgspec

from dragoman.errors import LocalMisuse
from dragoman.simulator.faults import frames, response
from dragoman.simulator.faults.proxy import FaultProxy
from dragoman.simulator.faults.response import ProxiedResponse, ProxyFault
from dragoman.wire.validation import explain_refusal

__all__ = ["FAULTS", "FaultProxy", "ProxiedResponse", "ProxyFault", "parse_fault"]


# Names of faults in commands and files that differ from those of their classes.
_NAMES: dict[type[ProxyFault], str] = {
    response.InterimResponses: "informed",
    response.SilentlyClosedConnection: "stale",
}


def _name(kind: type[ProxyFault]) -> str:
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__.removesuffix("Fault")).lower()
    return _NAMES.get(kind, words)


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
    """Return the fault that a text such as `cut:event=3,how=reset` names. Raises LocalMisuse."""
    name, _, rest = text.partition(":")
    kind = FAULTS.get(name)
    if kind is None:
        raise LocalMisuse(f"unknown fault {name!r}. Known faults: {', '.join(FAULTS)}.")
    values: dict[str, object] = {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        values[key] = (value.split("+") if key == "codes" else value) if equals else "true"
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise LocalMisuse(f"fault {name}: {explain_refusal(error, kind.__struct_fields__)}") from None
