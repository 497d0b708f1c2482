"""Turn the recording of requests on and off. Nothing of `recording` is imported before it is first turned on.

The level comes from the configuration (`inspector.record`). The inspector may set another one, which holds until the
gateway ends or is reloaded with another setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.inspector_config import InspectorSettings, RecordLevel
from dragoman.gateway.records import Record
from dragoman.wire.jsonio import Json

if TYPE_CHECKING:
    from dragoman.gateway.recording.recorder import Recorder

FOLDER = "recordings"  # in the state folder


class RecordingControl:
    """The recorder of one gateway, if it records."""

    def __init__(
        self, state: Path, settings: InspectorSettings, log: AccessLog, secrets: Callable[[], Iterable[str]]
    ) -> None:
        self.recorder: Recorder | None = None  # that records
        self._idle: Recorder | None = None  # that only keeps the bounds of what was recorded before
        self.folder = state / FOLDER
        self._settings, self._log, self._secrets = settings, log, secrets
        self._level: RecordLevel = "off"
        self._processes = 1  # that share the folder

    def start(self, processes: int) -> None:
        """Begin to record, if the configuration says so."""
        self._processes = processes
        self.set_level(self._settings.record)
        if self.recorder is None and self.folder.is_dir():
            self._idle = self._create()
            self._idle.stop()

    def configure(self, settings: InspectorSettings) -> None:
        """Use other settings; a level that the inspector set stays, unless the setting itself has changed."""
        before, self._settings = self._settings, settings
        if settings.record != before.record:
            self.set_level(settings.record)
        if (recorder := self.recorder or self._idle) is not None:
            recorder.configure(settings, self._processes)

    def set_level(self, level: RecordLevel) -> None:
        """Record at this level from now on."""
        if level == self._level:
            return
        self._level = level
        if level == "off":
            self._idle, self.recorder = self.recorder, None
            if self._idle is not None:
                self._idle.stop()
            self._log.event("info", "recording", message="requests are no longer recorded")
            return
        if self.recorder is None:
            idle, self._idle = self._idle, None
            self.recorder = idle if idle is not None and idle.resume() else self._create()
        self.recorder.level = level
        what = "bodies of requests and responses" if level == "full" else "requests, without bodies,"
        message = f"{what} are recorded in {self.folder} for {self._settings.hours:g} h (inspector.record)"
        self._log.event("warning" if level == "full" else "info", "recording", message=message, level_of=level)

    def _create(self) -> Recorder:
        from dragoman.gateway.recording.recorder import Recorder  # noqa: PLC0415  only if there are recordings

        return Recorder(self.folder, self._settings, self._processes, self._log, self._secrets)

    def purge(self) -> None:
        """Delete all recordings that no other process is writing."""
        recorder = self.recorder or self._idle
        if recorder is not None:
            recorder.purge()

    def finish(self, record: Record, line: bytes) -> None:
        """Record a request that has ended; `line` is its line in the log."""
        if self.recorder is not None:
            self.recorder.finish(record, line)

    def close(self) -> None:
        """Write what is collected, and record no more."""
        recorder, self.recorder, self._idle = self.recorder or self._idle, None, None
        if recorder is not None:
            recorder.close()

    def describe(self) -> dict[str, Json]:
        """Return what is recorded, for the status."""
        recorder, settings = self.recorder, self._settings
        return {
            "level": self._level,
            "configured": settings.record,
            "folder": str(self.folder),
            "most_bytes": settings.bytes,
            "hours": settings.hours,
            "dropped": 0 if recorder is None else recorder.dropped,
        }
