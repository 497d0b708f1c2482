"""Cooldowns on disk: a private file in the state folder, rewritten shortly after a change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dragoman.gateway.breaker import CircuitBreaker, SavedCooldown
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import make_private_folder, read_private, write_private
from dragoman.wire import jsonio

COOLDOWN_FILE = "cooldowns.json"
_SAVE_DELAY = 0.2  # seconds; changes within it are saved by one write


class CooldownFile:
    """Saves a breaker's cooldowns. Errors of the file are ignored: without it, the upstream refuses once more."""

    def __init__(self, folder: Path, breaker: CircuitBreaker) -> None:
        self._path = folder / COOLDOWN_FILE
        self._breaker = breaker
        self._written: Sequence[SavedCooldown] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[bool] | None = None

    def load(self) -> None:
        """Restore the saved cooldowns, and save all changes from now on."""
        try:
            saved = msgspec.convert(jsonio.decode(read_private(self._path)), list[SavedCooldown])
        except (OSError, ConfigError, jsonio.JsonError, msgspec.ValidationError):
            saved = []
        self._breaker.restore(saved)
        self._written = saved
        self._breaker.changed = self._schedule

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SAVE_DELAY, self._write)

    def _write(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._schedule()  # One write at a time, so that the last state stays.
            return
        saved = self._breaker.saved_cooldowns()
        if saved != self._written:
            self._written = saved
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._save, saved)

    def _save(self, saved: Sequence[SavedCooldown]) -> bool:
        try:
            make_private_folder(self._path.parent)
            write_private(self._path, jsonio.encode(msgspec.to_builtins(saved)))
        except (OSError, ConfigError):
            return False
        return True

    async def aclose(self) -> None:
        """Save changes that are not saved yet, and stop following the breaker."""
        self._breaker.changed = lambda: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await self._writing
        saved = self._breaker.saved_cooldowns()
        if saved != self._written:
            await asyncio.get_running_loop().run_in_executor(None, self._save, saved)
