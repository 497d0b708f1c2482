"""Read the last requests and events of the gateway, for `dragoman log`, `explain` and `top`.

The access log keeps them (`access_log.RecentEntries`). A reader that knows the cursor of what it has seen gets what is
new, and how many entries it missed. Notes, and lines with their details, are rendered when they are read.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from dragoman.gateway.access_log import AccessLog, RecentEntry
from dragoman.gateway.filter_keys import FilteredRequest
from dragoman.gateway.log_filter import parse_filter
from dragoman.gateway.records import LoggedRequest
from dragoman.model.filter import Note
from dragoman.wire import jsonio

_LONGEST_NOTE = 1000  # characters of a place or a sentence
_MIN_END = 6  # characters
MAX_FOUND = 50  # requests that `dragoman explain` lists because they failed
_MAX_LOSSY = 10  # requests that it lists because they lost content
_PORTION = 20  # entries that are rendered in one turn of the event loop
_REQUEST, _HEAD = b'"event":"request"', 96  # the beginning of a line shows whether it is a request

read_request = jsonio.typed_decoder(LoggedRequest)


class LogQuery(Struct, frozen=True):
    """A query for entries: those after a cursor or, without one, the last ones.

    With `until`, only entries of this time (seconds of the epoch) or earlier. `details` adds notes and failed attempts.
    With a filter (`log_filter`), only requests that match it, and no events.
    """

    cursor: str = ""
    last: int | None = None  # None: all
    until: float | None = None
    details: bool = False
    filter: str = ""


class LogPage(Struct, frozen=True):
    """A part of the recent log: lines of JSON, the cursor to continue from, and how many entries were missed."""

    lines: tuple[bytes, ...]
    cursor: str
    missed: int = 0


class RecentLog:
    """Reads the last requests and events of a log. Secrets are removed from notes when they are read."""

    def __init__(self, log: AccessLog) -> None:
        self.instance = secrets.token_hex(4)  # differs after a restart of the gateway
        self._log, self._recent = log, log.recent_entries

    async def page(self, query: LogQuery) -> LogPage:
        """Return the entries that a reader wants. Requests are served while they are rendered.

        A cursor of another instance begins at the first entry that is kept. Raises FilterError.
        """
        number = _number_of(query.cursor, self.instance)
        entries, end = self._after(number or 0), self._recent.number
        if query.until is not None:
            later = next((at for at, entry in enumerate(entries) if entry.at > query.until), None)
            if later is not None:
                entries, end = entries[:later], entries[later].number - 1
        missed = 0 if number is None else end - number - len(entries)
        if query.filter:
            entries = await self._matching(entries, query.filter)
        if not query.cursor and query.last is not None:
            entries = entries[max(len(entries) - query.last, 0) :]
        lines: list[bytes] = []
        for at in range(0, len(entries), _PORTION):
            lines += [self._render(entry, details=query.details) for entry in entries[at : at + _PORTION]]
            await asyncio.sleep(0)
        return LogPage(tuple(lines), f"{self.instance}:{end}", missed)

    async def _matching(self, entries: Sequence[RecentEntry], text: str) -> list[RecentEntry]:
        wanted = parse_filter(text)
        found: list[RecentEntry] = []
        for at in range(0, len(entries), _PORTION):
            for entry in entries[at : at + _PORTION]:
                if _REQUEST in entry.line[:_HEAD]:
                    request = read_request(entry.line)
                    subject = structs.replace(request, changes=tuple(entry.notes)) if entry.notes else request
                    if wanted.matches(FilteredRequest(subject)):
                        found.append(entry)
            await asyncio.sleep(0)
        return found

    def requests_with_details(self, text: str) -> list[LoggedRequest]:
        """Return the requests whose id begins or ends so, newest first: `last` is the last one.

        For an empty text, return the last requests that failed or were sent again, and some that only lost content.
        """
        entries = self._requests()
        if text == "last":
            found = [(entry, read_request(entry.line)) for entry in entries[-1:]]
        elif text:
            known = ((entry, read_request(entry.line)) for entry in entries)
            found = [pair for pair in known if is_id_of(pair[1].request_id, text)][-MAX_FOUND:]
        else:
            found = _failed_or_lossy(entries)
        return [self._with_details(entry, request) for entry, request in reversed(found)]

    def since(self, at: float) -> tuple[list[RecentEntry], float]:
        """Return the requests that ended after this time, and the time from which on they are all kept."""
        begin = at
        for queue in (self._recent.requests, self._recent.refused):
            if queue.has_dropped and queue.entries:
                begin = max(begin, queue.entries[0].at)
        return [entry for entry in self._requests() if entry.at >= begin], begin

    def _render(self, entry: RecentEntry, *, details: bool) -> bytes:
        if not details or not (entry.notes or entry.failures):
            return entry.line
        return jsonio.encode(self._with_details(entry, read_request(entry.line)))

    def _with_details(self, entry: RecentEntry, request: LoggedRequest) -> LoggedRequest:
        changes = tuple(self._masked(note) for note in entry.notes)
        return structs.replace(request, changes=changes, failures=tuple(entry.failures))

    def _masked(self, note: Note) -> Note:
        mask = self._log.redactor.message  # before the text is cut: half a secret is not found
        return structs.replace(note, at=mask(note.at)[:_LONGEST_NOTE], detail=mask(note.detail)[:_LONGEST_NOTE])

    def _requests(self) -> Sequence[RecentEntry]:
        return _merged(self._recent.requests.entries, self._recent.refused.entries)

    def _after(self, number: int) -> Sequence[RecentEntry]:
        recent_entries = self._recent
        return _merged(
            *(queue.after(number) for queue in (recent_entries.requests, recent_entries.refused, recent_entries.events))
        )


def is_id_of(identity: str, text: str) -> bool:
    """Return whether a text is a request id, its beginning, or its last characters, as `dragoman top` shows them."""
    return identity.startswith(text) or (len(text) >= _MIN_END and identity.endswith(text))


def _failed_or_lossy(entries: Iterable[RecentEntry]) -> list[tuple[RecentEntry, LoggedRequest]]:
    """Return the last requests that failed or were sent again, and fewer that only lost content, oldest first.

    Some upstreams lose a little of every request, such as `max_tokens`.
    """
    failed, lossy = list[tuple[RecentEntry, LoggedRequest]](), list[tuple[RecentEntry, LoggedRequest]]()
    for entry in entries:
        request = read_request(entry.line)
        if request.outcome not in ("ok", "gone") or entry.failures:
            failed.append((entry, request))
        elif any(note.action == "dropped" for note in entry.notes):
            lossy.append((entry, request))
    found = [*failed[-MAX_FOUND:], *lossy[-_MAX_LOSSY:]]
    return sorted(found, key=lambda pair: pair[0].number)


def _merged(*parts: Iterable[RecentEntry]) -> Sequence[RecentEntry]:
    return sorted([entry for part in parts for entry in part], key=lambda entry: entry.number)


# --- cursors: `INSTANCE:NUMBER` of each process that writes entries, joined by commas


_MAX_INSTANCES = 300  # processes in one cursor: there are at most 256 workers


def parse_cursor(cursor: str) -> dict[str, str]:
    """Return the number of each instance in a cursor. What cannot be read is left out."""
    pairs = (part.partition(":") for part in cursor.split(","))
    return {instance: number for instance, _, number in pairs if instance and number.isdecimal() and len(number) < 16}


def join_cursors(before: str, cursors: Iterable[str]) -> str:
    """Return one cursor of several processes. Processes of which there is no new cursor keep the one from before."""
    known = parse_cursor(before)
    for cursor in cursors:
        known.update(parse_cursor(cursor))
    return ",".join(f"{instance}:{number}" for instance, number in list(known.items())[-_MAX_INSTANCES:])


def _number_of(cursor: str, instance: str) -> int | None:
    number = parse_cursor(cursor).get(instance)
    return None if number is None else int(number)
