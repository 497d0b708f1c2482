"""Hypothesis budgets: `default` for `make test`, `long` for `make laws-long`. Failures replay by themselves.

`DRAGOMAN_EXAMPLES` is the number of examples that each property test gets in the profile `long`.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_CALM = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

# The suite tries the same examples every time; `make laws-long` explores. What a law must find is an explicit example.
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


def pytest_collection_finish() -> None:
    """Twenty thousand tests are a million objects: without this, every full collection walks through them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine: on the loop that its fixture `run` says, else on asyncio's."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run: Any = pyfuncitem.funcargs.get("run", asyncio.run)
    run(pyfuncitem.obj(**given))
    return True
