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
from dragoman.simulator.faults import answer, frames
from dragoman.simulator.faults.answer import Answer, Fault
from dragoman.simulator.faults.proxy import FaultProxy

__all__ = ["FAULTS", "Answer", "Fault", "FaultProxy", "parse_fault"]


def _name(kind: type[Fault]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


FAULTS: dict[str, type[Fault]] = {
    _name(kind): kind
    for module in (answer, frames)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Fault) and kind is not Fault and not kind.__name__.startswith("_")
}


def parse_fault(text: str) -> Fault:
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
