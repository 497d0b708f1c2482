"""Every test of the client runs on asyncio's loop and, where it is installed, on uvloop."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from tests.unit.upstream.scripted_server import run_on

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(
    params=[
        "asyncio",
        pytest.param(
            "uvloop", marks=pytest.mark.skipif(importlib.util.find_spec("uvloop") is None, reason="no uvloop")
        ),
    ]
)
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "asyncio":
        return partial(run_on, asyncio.SelectorEventLoop)
    return partial(run_on, pytest.importorskip("uvloop").new_event_loop)
