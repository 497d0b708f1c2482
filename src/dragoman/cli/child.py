"""A program that runs in our place: it owns the terminal, gets our signals, and its end is ours.

The terminal sends ctrl-C to every process in the foreground, so to the child too: only signals that were meant for us
alone are handed on. A child that suspends itself takes us with it, else the shell would wait for a stopped program.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

_HANDED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_TERMINAL = ("SIGINT", "SIGQUIT")


def run_child(command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run it to its end; its exit status, or 128 and the number of the signal that ended it. Raises OSError."""
    waiting: list[int] = []  # signals that came before the child was there
    child: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        if not child:
            waiting.append(number)
        elif child[0].returncode is None:  # its own send_signal might reap it while we wait for it
            os.kill(child[0].pid, number)

    with _handled(hand_on):
        child.append(subprocess.Popen(command, env=env))
        for number in waiting:
            os.kill(child[0].pid, number)
        return _ended(child[0])


@contextmanager
def _handled(hand_on: signal._HANDLER) -> Iterator[None]:
    """Our signals go to the child. What we were told to ignore (nohup, a shell's background job) stays ignored."""
    before: dict[int, signal._HANDLER] = {}
    for name in (*_HANDED_ON, *_FROM_TERMINAL):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            alone = name in _HANDED_ON or not _in_foreground()
            before[number] = signal.signal(number, hand_on if alone else _nothing)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing(number: int, frame: FrameType | None) -> None:
    """The child has it too."""


def _in_foreground() -> bool:
    """Whether a terminal sends its signals to our group, and so to the child."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except (OSError, AttributeError):
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _ended(child: subprocess.Popen[bytes]) -> int:
    if not hasattr(os, "WUNTRACED"):
        return child.wait()
    while True:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        if _in_foreground():
            os.kill(os.getpid(), signal.SIGSTOP)  # until the shell lets us go on
            os.kill(child.pid, signal.SIGCONT)
    code = os.waitstatus_to_exitcode(status)
    child.returncode = code  # so that nobody waits for it again
    return code if code >= 0 else 128 - code
