"""Count the Python instructions that a function executes: the same number on every machine, however busy."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_instructions(work: Callable[[], object]) -> int:
    """Return how many Python instructions the work executes."""
    count = 0

    def local(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return local

    def begin(frame: FrameType, _event: str, _argument: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before, was_enabled = sys.gettrace(), gc.isenabled()
    gc.disable()  # otherwise finalizers and callbacks of other tools would be counted
    sys.settrace(begin)
    try:
        work()
    finally:
        sys.settrace(before)
        if was_enabled:
            gc.enable()
    return count
