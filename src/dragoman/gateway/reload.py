"""Reload of the configuration: what changed, what was applied, and what needs a restart.

`dragoman reload` and SIGHUP do the same: read the files again, compare, apply, log. An invalid configuration changes
nothing. Settings that a running process cannot change keep their values until it is restarted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

from msgspec import Struct, structs

from dragoman.errors import DragomanError
from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.config import Config, LoadedConfig
from dragoman.gateway.layers import Leaves
from dragoman.gateway.records import LogLevel
from dragoman.gateway.secrets import ConfiguredSecret
from dragoman.gateway.upstream_credentials import credential_problems
from dragoman.wire.toml_lines import KeyPath, dotted_key

FIXED = ("host", "port", "workers", "admin_socket", "admin_port")  # settings of [server] that need a restart
NOT_RELOADABLE = (
    "the configuration of this gateway cannot be reloaded, because `dragoman run` started it. Start the client again."
)


class ReloadResult(Struct, frozen=True, omit_defaults=True):
    """The result of a reload. Settings are named as in the configuration file; values are not shown."""

    changed: tuple[str, ...] = ()  # that were applied
    restart: tuple[str, ...] = ()  # that differ from the running gateway and need a restart
    refused: str = ""  # why nothing was applied
    warnings: tuple[str, ...] = ()  # about the new configuration, such as a key that is missing


class Reloader:
    """Reloads the configuration of one gateway. `read` loads it again; `apply` makes the gateway use it."""

    def __init__(
        self,
        loaded: LoadedConfig,
        read: Callable[[], LoadedConfig],
        apply: Callable[[Config], Awaitable[None]],
        log: AccessLog,
    ) -> None:
        self._started, self._current = loaded.config, loaded
        self._read, self._apply, self._log = read, apply, log
        self._lock = asyncio.Lock()
        self.restart: tuple[str, ...] = ()  # settings of the last reload that need a restart
        self.refused = ""  # why the last reload failed

    async def run(self, *, quiet: bool = False) -> ReloadResult:
        """Reload. Never raises for a bad configuration. With `quiet`, only a refusal is logged: a worker's parent logs.

        Settings that a new configuration sets and that need a restart keep their values.
        """
        async with self._lock:
            try:
                loaded = self._read()
                config = _with_fixed(loaded.config, self._started)
                await self._apply(config)
            except (DragomanError, OSError) as error:
                self.refused = str(error)
                self._log.event("error", "reload_refused", why=str(error))
                return ReloadResult(refused=str(error))
            before, self._current, self.refused = self._current, loaded, ""
            self.restart = tuple(_needing_restart(loaded.config, self._started))
            changed = tuple(dict.fromkeys([*changed_settings(before.leaves, loaded.leaves), *_rotated(before, loaded)]))
            applied = tuple(name for name in changed if not _is_fixed(name))
            result = ReloadResult(applied, self.restart, warnings=_warnings(config))
            self._report(result, quiet=quiet)
            return result

    def _report(self, result: ReloadResult, *, quiet: bool) -> None:
        if result.changed or not result.restart:
            level: LogLevel = "debug" if quiet else "info"
            self._log.event(
                level, "reloaded", message=", ".join(result.changed) or "no setting changed", changed=[*result.changed]
            )
        if result.restart and not quiet:
            message = "; ".join(f"{name}: restart needed" for name in result.restart)
            self._log.event("warning", "restart_needed", message=message, settings=[*result.restart])


def _warnings(config: Config) -> tuple[str, ...]:
    missing = [each for upstream in config.upstreams.values() for each in credential_problems(upstream, os.environ)]
    return (*config.warnings, *missing)


_FIXED_NAMES = frozenset(f"server.{name}" for name in FIXED)


def _is_fixed(name: str) -> bool:
    return name in _FIXED_NAMES or name.partition(".")[0] == "store"


def _needing_restart(new: Config, started: Config) -> Iterator[str]:
    """Yield the settings that differ from those with which the process started, and that it cannot change."""
    values, at_start = structs.asdict(new.server), structs.asdict(started.server)
    yield from (f"server.{name}" for name in FIXED if values[name] != at_start[name])
    if new.store != started.store:
        yield "store"


def _with_fixed(config: Config, started: Config) -> Config:
    """Return the configuration with the settings of the running process that cannot change."""
    fixed = {name: value for name, value in structs.asdict(started.server).items() if name in FIXED}
    return structs.replace(config, server=structs.replace(config.server, **fixed), store=started.store)


def changed_settings(before: Leaves, after: Leaves) -> Iterator[str]:
    """Yield the names of the settings that differ. A new or removed upstream, route or model is one name."""
    old_tables, new_tables = {*map(_table, before)}, {*map(_table, after)}
    keys = [key for key in dict.fromkeys([*after, *before]) if _value(before, key) != _value(after, key)]
    for key in keys:
        table = _table(key)
        if table and table not in old_tables:
            yield f"{dotted_key(table)} (added)"
        elif table and table not in new_tables:
            yield f"{dotted_key(table)} (removed)"
        else:
            yield dotted_key(key)


def _table(key: KeyPath) -> KeyPath:
    """Return the table of an upstream, a model or a route that a setting belongs to; empty for other settings."""
    return key[:2] if key[0] in ("upstreams", "models", "routes") and len(key) > 1 else ()


_MISSING = object()


def _value(leaves: Leaves, key: KeyPath) -> object:
    leaf = leaves.get(key)
    return _MISSING if leaf is None else leaf.value


def _rotated(before: LoadedConfig, after: LoadedConfig) -> Iterator[str]:
    """Yield the settings whose secret has another value under the same reference, as far as both were read."""
    for name, secret in _secrets(after.config):
        for other, old in _secrets(before.config):
            if name == other and secret.shown == old.shown and _has_changed(old, secret):
                yield f"{name} (its secret)"


def _secrets(config: Config) -> Iterator[tuple[str, ConfiguredSecret]]:
    if config.server.key is not None:
        yield "server.key", config.server.key
    for name, upstream in config.upstreams.items():
        yield from ((f"upstreams.{name}.key", secret) for secret in upstream.keys)


def _has_changed(old: ConfiguredSecret, new: ConfiguredSecret) -> bool:
    return old.revealed is not None and new.revealed is not None and old.revealed != new.revealed
