"""A fault proxy: stands before a simulator (or any server on loopback) and spoils its answers, as told.

    proxy = FaultProxy(simulator.url, [Cut(event=3, how="reset")], dialect=registry.get("kiro"))

Three levels, in this order: wire frames (the dialect says where they end), the HTTP head and its framing, bytes.
"""

from __future__ import annotations

from dragoman.simulator.faults.answer import Answer, Fault
from dragoman.simulator.faults.proxy import FaultProxy
from dragoman.simulator.faults.spec import FAULTS, parse_fault

__all__ = ["FAULTS", "Answer", "Fault", "FaultProxy", "parse_fault"]
