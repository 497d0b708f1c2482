"""Settings of the whole suite: Hypothesis profiles, garbage collection, and tests that are coroutines.

The Hypothesis profile is `default` for `make test` and `long` for `make laws-long`; failures are replayed automatically.

`DRAGOMAN_EXAMPLES` is the number of examples that each property test gets in the profile `long`.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# `make test` runs the same examples every time; `make laws-long` draws random ones. A case that a law must always cover
# is an explicit example.
settings.register_profile(
    "default", max_examples=60, deadline=None, suppress_health_check=_CALM, print_blob=True, derandomize=True
)
settings.register_profile(
    "long",
    max_examples=int(os.environ.get("DRAGOMAN_EXAMPLES") or 10_000),
    deadline=None,
    suppress_health_check=_CALM,
    print_blob=True,
)
settings.load_profile("default")


def pytest_configure() -> None:
    """Let the programs that tests start end by SIGINT, even if a shell started the suite in its background.

    Such a shell ignores SIGINT, and a program inherits that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Freeze the collected tests: otherwise each full garbage collection walks through a million objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine with its fixture `run`, or else with `asyncio.run`."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments: dict[str, Any] = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }
    run: Any = pyfuncitem.funcargs.get("run", asyncio.run)
    run(pyfuncitem.obj(**arguments))
    return True
