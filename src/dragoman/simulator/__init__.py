"""An upstream in any dialect, on loopback: scripted or with a small model; it refuses what the real one refuses.

Tests, `dragoman sim`, `dragoman demo` and a gateway without a configuration call it. It listens on loopback only, and
reads script files.
"""

from __future__ import annotations

from dragoman.simulator.kiro.verdict import Limits
from dragoman.simulator.script import Script, load, parse
from dragoman.simulator.server import Received, Simulator, running_simulator

__all__ = ["Limits", "Received", "Script", "Simulator", "load", "parse", "running_simulator"]
