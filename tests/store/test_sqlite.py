"""The SQLite engine passes the suite of every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.cluster import SqliteCluster
from tests.store.suite import StoreSuite


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SqliteCluster]:
    cluster = SqliteCluster(tmp_path / "store")
    yield cluster
    asyncio.run(cluster.close())


class TestSqlite(StoreSuite):
    """All tests of the suite."""
