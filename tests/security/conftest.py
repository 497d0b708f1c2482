"""One gateway before a parrot, shared by all that only asks it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.gateway.house import House, house, upstream
from tests.security.parrot import Parrot, parrot


@pytest.fixture(scope="module")
def bird() -> Iterator[Parrot]:
    with parrot() as running:
        yield running


@pytest.fixture(scope="module")
def home(bird: Parrot, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    text = upstream("one", "anthropic", bird.url, 'limits.breaker = false\nmodels = ["m"]')
    with house(text, tmp_path_factory.mktemp("state")) as running:
        yield running
