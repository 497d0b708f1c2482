"""Cooldowns on disk: a private file in the state folder, written whole a moment after the last change."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dragoman.gateway.breaker import Breaker, Kept
from dragoman.gateway.private import make_private_folder, read_private, write_private
from dragoman.gateway.problems import ConfigError
from dragoman.wire import jsonio

FILE = "cooldowns.json"
_SOON = 0.2  # seconds in which changes gather: a write waits for the disk


class CooldownFile:
    """Keeps a breaker's cooldowns. That it cannot be read or written is nobody's trouble: the times are hints."""

    def __init__(self, folder: Path, breaker: Breaker) -> None:
        self._path = folder / FILE
        self._breaker = breaker
        self._written: Sequence[Kept] = ()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[bool] | None = None

    def load(self) -> None:
        """Take up what is there, and follow the breaker from now on."""
        try:
            kept = msgspec.convert(jsonio.decode(read_private(self._path)), list[Kept])
        except (OSError, ConfigError, jsonio.JsonError, msgspec.ValidationError):
            kept = []
        self._breaker.restore(kept)
        self._written = kept
        self._breaker.changed = self._soon

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SOON, self._write)

    def _write(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._soon()  # one writer at a time, so that the last word stays
            return
        kept = self._breaker.kept()
        if kept != self._written:
            self._written = kept
            self._writing = asyncio.get_running_loop().run_in_executor(None, self._save, kept)

    def _save(self, kept: Sequence[Kept]) -> bool:
        try:
            make_private_folder(self._path.parent)
            write_private(self._path, jsonio.encode(msgspec.to_builtins(kept)))
        except (OSError, ConfigError):
            return False
        return True

    async def aclose(self) -> None:
        """Write what has not been written."""
        self._breaker.changed = lambda: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await self._writing
        kept = self._breaker.kept()
        if kept != self._written:
            await asyncio.get_running_loop().run_in_executor(None, self._save, kept)
