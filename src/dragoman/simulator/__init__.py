"""A fake upstream of any dialect, on loopback: scripted, or with a small model. It refuses what the real one refuses.

Used by tests, `dragoman sim`, `dragoman demo` and a gateway without a configuration. It listens on loopback only and
reads script files.
"""

from __future__ import annotations

from dragoman.simulator.kiro.refusals import SimulatorLimits
from dragoman.simulator.script import Script, load_script, parse_script
from dragoman.simulator.server import ReceivedRequest, Simulator, running_simulator

__all__ = [
    "ReceivedRequest",
    "Script",
    "Simulator",
    "SimulatorLimits",
    "load_script",
    "parse_script",
    "running_simulator",
]
