"""A stub of the gateway for the tests of the admin interface: it counts the changes that were requested."""

from __future__ import annotations

from dragoman.gateway.activity import Activity
from dragoman.gateway.inspector_config import RecordLevel
from dragoman.gateway.recent import LogPage, LogQuery
from dragoman.gateway.records import LoggedRequest
from dragoman.gateway.reload import ReloadResult
from dragoman.wire.jsonio import Json
from tests.gateway.harness import KEY


class RecordingStub:
    """Counts changes of what is recorded."""

    def __init__(self, stub: AdminStub) -> None:
        self._stub = stub

    def set_level(self, level: RecordLevel) -> None:
        self._stub.changes += 1

    def purge(self) -> None:
        self._stub.changes += 1

    def describe(self) -> dict[str, Json]:
        return {"level": "off"}


class AdminStub:
    """A gateway without requests. `changes` counts reloads and cleared cooldowns."""

    key = KEY
    changes = 0

    @property
    def recording(self) -> RecordingStub:
        return RecordingStub(self)

    def status(self) -> dict[str, Json]:
        return {"state": "ready"}

    async def models(self) -> dict[str, Json]:
        return {"models": []}

    def metrics(self) -> bytes:
        return b"a_metric 1\n"

    def cooldowns(self) -> list[Json]:
        return []

    def clear(self, upstream: str) -> dict[str, Json]:
        self.changes += 1
        return {"cleared": 1}

    def identity(self) -> dict[str, Json]:
        return {"instance": "a"}

    async def log_page(self, query: LogQuery) -> LogPage:
        return LogPage((), "a:1")

    async def find_requests(self, prefix: str) -> list[LoggedRequest]:
        return []

    async def activities(self) -> list[Activity]:
        return []

    async def reload_configuration(self, *, quiet: bool = False) -> ReloadResult:
        self.changes += 1
        return ReloadResult()
