"""Read what a gateway has recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dragoman.gateway.recording.segments import Entry, RecordedRequest, read_parts, scan, segments
from tests.gateway.harness import wait_until


class Recorded:
    """A recorded request and its parts."""

    def __init__(self, entry: Entry) -> None:
        self.entry, self.parts = entry, read_parts(entry)
        self.request: RecordedRequest = entry.recorded

    @property
    def id(self) -> str:
        return self.request.line.request_id

    @property
    def client_body(self) -> Any:
        return json.loads(self.parts["client_body"])

    def upstream_body(self, attempt: int = 1) -> Any:
        return json.loads(self.parts.get(f"upstream_body.{attempt}", self.parts["client_body"]))

    @property
    def received(self) -> bytes:
        return self.parts.get("received", b"")

    @property
    def written(self) -> bytes:
        return self.parts.get("written", self.received)


def recordings_in(state: Path) -> list[Recorded]:
    """Return all recorded requests, the oldest first."""
    found = [entry for path in segments(state / "recordings") for entries, _ in scan(path) for entry in entries]
    return [Recorded(entry) for entry in sorted(found, key=lambda entry: entry.recorded.line.request_id)]


def wait_for_recordings(state: Path, count: int) -> list[Recorded]:
    """Return all recorded requests; wait for `count` of them, because they are written after the response."""
    wait_until(lambda: len(recordings_in(state)) >= count)
    return recordings_in(state)


def recorded_bytes(state: Path) -> bytes:
    """Return all bytes of all recordings."""
    return b"".join(path.read_bytes() for path in segments(state / "recordings"))
