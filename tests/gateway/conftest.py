"""Modules that use `engine` are run on both servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway import house


@pytest.fixture(scope="module", params=house.ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    before, house.engine = house.engine, request.param
    yield house.engine
    house.engine = before
