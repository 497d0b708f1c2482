"""Shared by `dragoman keys` and `dragoman usage`: open the store that the configuration names, and run a task."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from dragoman.cli.terminal import EXIT_BAD_CONFIG, CommandError
from dragoman.gateway.config import Config, find_file, load_config
from dragoman.gateway.secrets import app_folders
from dragoman.store.interface import Store

T = TypeVar("T")


def add_config_option(parser: ArgumentParser) -> None:
    """Declare `--config`."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the configuration (default: DRAGOMAN_CONFIG, then ~/.config/dragoman/config.toml)",
    )


def load_store_config(arguments: Namespace) -> Config:
    """Return the configuration. Raises CommandError if it has no store."""
    config = load_config(arguments.config, os.environ)
    if config.store is None:
        file, _ = find_file(arguments.config, os.environ)
        raise CommandError(
            f"accounts are off. Add a line with [store] to {file}, and restart the gateway.", EXIT_BAD_CONFIG
        )
    return config


def with_store(config: Config, task: Callable[[Store], Awaitable[T]]) -> T:
    """Open the store, run a task with it, close it, and return the result. Raises StoreUnavailable, StoreUnusable."""
    from dragoman.gateway.accounting import create_store

    async def work() -> T:
        store = create_store(config, app_folders(os.environ).state)
        await store.open()
        try:
            return await task(store)
        finally:
            await store.close()

    return asyncio.run(work())
