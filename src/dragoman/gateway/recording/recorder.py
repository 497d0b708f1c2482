"""Write what was collected of requests, in a thread: masked, in batches, within bounds.

On the event loop `begin` returns a capture, and `finish` appends its description to a list. The thread wakes up when
the list was empty, waits a little for more, encodes and masks all of them together, and appends them to a segment. It
yields to the event loop after each portion. If it cannot keep up, or the disk is full, recordings are dropped and
counted; requests are never delayed.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from dragoman.gateway.access_log import AccessLog
from dragoman.gateway.inspector_config import InspectorSettings
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.recording.capture import ALLOWANCE, CaptureLevel, RequestCapture
from dragoman.gateway.recording.encoding import Pending, RecordingEncoder
from dragoman.gateway.recording.masking import Masker
from dragoman.gateway.recording.segments import SegmentWriter
from dragoman.gateway.records import Record
from dragoman.wire.http import HttpRequest
from dragoman.wire.jsonio import JsonError

MAX_CAPTURE_BYTES = 64 * 1024 * 1024  # bytes that all captures of this process hold
_GATHER = 0.1  # seconds in which a batch is gathered
_PORTION = 1024 * 1024  # bytes of captures that are encoded and written at a time, at most
_IDLE = 30.0  # seconds after which old segments are looked for, though nothing is recorded
_CLOSE_SECONDS = 5.0
_REPORT_SECONDS = 60.0  # between two reports of the same trouble


class Recorder:
    """Records the requests of one gateway. `begin`, `finish` and `reserve` are for the event loop."""

    def __init__(
        self,
        folder: Path,
        settings: InspectorSettings,
        processes: int,
        log: AccessLog,
        known_secrets: Callable[[], Iterable[str]],
    ) -> None:
        self.level: CaptureLevel = "meta"
        self.dropped = 0  # recordings that were not written
        self._log, self._known_secrets = log, known_secrets
        self._segments = SegmentWriter(folder, secrets.token_hex(6))
        self._segments.configure(settings.bytes, settings.hours, processes)
        self._items: list[Pending] = []
        self._reserved_bytes = self._released_bytes = 0  # bytes; the second is changed by the thread only
        self._secrets: tuple[str, ...] = ()
        self._encoder = RecordingEncoder(Masker())
        self._wake = threading.Event()
        self._is_closing = self._is_purging = self._is_stopped = self._has_ended = False
        self._lock = threading.Lock()  # of the last two
        self._loop = asyncio.get_running_loop()
        self._reported_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="dragoman-recorder", daemon=True)
        self._thread.start()

    def configure(self, settings: InspectorSettings, processes: int) -> None:
        """Use other bounds."""
        self._segments.configure(settings.bytes, settings.hours, processes)

    # --- on the event loop

    def begin(self, request: HttpRequest, began: float) -> RequestCapture:
        """Return the capture of a request whose body has arrived."""
        body = request.body
        head = "", request.method, request.path, request.query, request.headers, len(body)
        capture = RequestCapture(self.level, began, self, head)
        if body and self.level == "full" and capture.fits(len(body), "client_body"):
            capture.bodies.append(("client_body", body))
        return capture

    def reserve(self, size: int) -> bool:
        """Reserve bytes for a capture; return whether they were free."""
        if self._reserved_bytes - self._released_bytes + size > MAX_CAPTURE_BYTES:
            return False
        self._reserved_bytes += size
        return True

    def finish(self, record: Record, line: bytes) -> None:
        """Write a request that has ended; one that the log only counts is left out."""
        capture, record.capture = record.capture, None
        assert capture is not None  # the caller has looked
        if not line:
            self._reserved_bytes -= capture.reserved_bytes
            return
        capture.line, capture.notes, capture.failures = line, record.notes, record.failures
        capture.began_at = time.time() - record.total
        items = self._items
        items.append(self._encoder.describe(capture))
        if len(items) == 1:
            self._wake.set()

    def stop(self) -> None:
        """Record no more; the thread goes on until the bounds have deleted all recordings."""
        self._is_stopped = True
        self._wake.set()

    def resume(self) -> bool:
        """Record again; return False if the thread has ended."""
        with self._lock:
            self._is_stopped = False
            return not self._has_ended

    def purge(self) -> None:
        """Delete all recordings that no other process is writing."""
        self._is_purging = True
        self._wake.set()

    def close(self) -> None:
        """Write what is left, within some seconds."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(_CLOSE_SECONDS)

    # --- in the thread

    def _run(self) -> None:
        self._trim()
        while not (self._is_closing and not self._items):
            if self._wake.wait(_IDLE):
                self._wake.clear()
                if not self._is_closing:
                    time.sleep(_GATHER)
                items, self._items = self._items, []
                self._write(items)
                if self._is_purging:
                    self._is_purging = False
                    self._segments.purge()
            else:
                self._trim()
            if self._may_end():
                break
        self._segments.close()

    def _may_end(self) -> bool:
        with self._lock:
            self._has_ended = self._is_stopped and not self._items and not self._segments.has_any()
            return self._has_ended

    def _write(self, items: Sequence[Pending]) -> None:
        self._renew_masker()
        portion: list[Pending] = []
        size = 0
        for item in items:
            portion.append(item)
            size += item.reserved_bytes + ALLOWANCE
            if size >= _PORTION or item is items[-1]:
                self._append(portion)
                self._released_bytes += sum([each.reserved_bytes for each in portion])
                portion, size = [], 0
                time.sleep(0)  # The event loop has its turn.

    def _append(self, items: Sequence[Pending]) -> None:
        """Write requests; they are lost if that fails."""
        try:
            self._segments.write(self._encoder.encode(items, self._segments.max_entry))
        except (OSError, ConfigError, JsonError) as error:
            self.dropped += len(items)
            self._segments.close()
            self._report(error)

    def _trim(self) -> None:
        with suppress(OSError):
            self._segments.trim()

    def _renew_masker(self) -> None:
        with suppress(RuntimeError):  # The event loop added one meanwhile: the next batch gets it.
            known = tuple(dict.fromkeys(self._known_secrets()))
            if known != self._secrets:
                self._secrets, self._encoder = known, RecordingEncoder(Masker(known))

    def _report(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_SECONDS:
            self._reported_at = now
            message = f"recordings cannot be written: {error}"
            with suppress(RuntimeError):  # The event loop has ended.
                self._loop.call_soon_threadsafe(partial(self._log.event, "warning", "recording", message=message))
