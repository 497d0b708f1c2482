"""An upstream in any dialect, on loopback: scripted or with a small model; it refuses what the real one refuses.

Tests, `dragoman sim`, `dragoman demo` and a gateway without a configuration call it. It listens on loopback only, and
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
