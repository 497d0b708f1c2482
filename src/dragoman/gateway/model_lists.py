"""The upstreams' own lists of models: fetched on first need, kept in memory and in private files.

A list is fetched in the background, one fetch at a time for each upstream, and never at start. It counts as fresh for a
day; an older one is used while the next fetch runs. A failed fetch is not repeated for a minute. The file lets a
gateway that starts anew know the lists at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct

from dragoman.dialects.base import ApiRequest, ListedModel
from dragoman.errors import DragomanError, TransportError
from dragoman.gateway.backend import Backend
from dragoman.gateway.layers import ConfigError
from dragoman.gateway.secrets import make_private_folder, read_private, write_private
from dragoman.gateway.targets import NameList
from dragoman.upstream.credentials import with_headers
from dragoman.wire import jsonio

MAX_MODELS = 2000  # of one list
LISTS_FOLDER = "models"  # in the state folder
_MAX_BYTES = 4 * 1024 * 1024  # of one list, all pages together
_MAX_PAGES = 5
_MAX_TIME = 10.0  # seconds for one fetch
_FRESH = 24 * 3600.0  # seconds
_MAX_AGE = 7 * 24 * 3600.0  # seconds; a file that is older is ignored
_PAUSE = 60.0  # seconds after a failure

Report: TypeAlias = Callable[[str, str], None]  # gets the name of an upstream and why its list cannot be fetched


class SavedModelList(Struct, frozen=True):
    """A list as it is saved. `service` identifies the address, so that a changed one gets no list of another."""

    service: str
    at: float  # seconds since the epoch
    models: list[tuple[str, int | None, int | None]]  # name, window, most output tokens


class UpstreamModels:
    """The list of one upstream: `models` is empty while it is not known, `at` is when it was fetched."""

    def __init__(self, backend: Backend, folder: Path | None, changed: Callable[[], None], report: Report) -> None:
        self.models: Sequence[ListedModel] = ()
        self.at = 0.0  # seconds since the epoch
        self.problem = ""  # why the last fetch failed
        self.was_requested = False  # the list was read from the file, or a fetch has ended
        self.task: asyncio.Task[None] | None = None  # reads the file, or fetches the list
        self._backend = backend
        is_kept = folder is not None and backend.upstream.kind == "http"
        self._path = folder / LISTS_FOLDER / f"{backend.name}.json" if folder is not None and is_kept else None
        self._changed, self._report = changed, report
        self._path_to_read = self._path
        self._failed_at = -math.inf  # of the monotonic clock
        self._is_closed = False

    def refresh(self) -> None:
        """Start to get the list in the background, unless that runs, the list is fresh or a fetch has just failed."""
        is_fresh = bool(self.models) and 0 <= time.time() - self.at < _FRESH
        has_failed = time.monotonic() - self._failed_at < _PAUSE
        if self.task or is_fresh or has_failed or self._is_closed or self._backend.dialect.model_list is None:
            return
        self.task = asyncio.get_running_loop().create_task(self._get())
        self.task.add_done_callback(self._done)

    def forget(self) -> None:
        """Drop the list, because the upstream refused a model of it, unless it was fetched within the last minute."""
        if self.models and time.time() - self.at > _PAUSE:
            self.models, self.at, self.was_requested = (), 0.0, False
            self._changed()

    async def aclose(self) -> None:
        """Cancel the fetch that is under way."""
        self._is_closed = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    def _done(self, task: asyncio.Task[None]) -> None:
        self.task, self.was_requested = None, True
        if not task.cancelled() and task.exception() is not None:
            self._fail(repr(task.exception()))
        self.refresh()  # The list of the file may be old.

    async def _get(self) -> None:
        path, self._path_to_read = self._path_to_read, None
        if path is not None:
            await self._read_file(path)
        if path is None or not self.models:
            await self._fetch()

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(_MAX_TIME):
                models = await fetch_models(self._backend)
        except TimeoutError:
            self._fail(f"no response within {_MAX_TIME:g} s")
        except DragomanError as error:
            self._fail(str(error))
        else:
            self.problem = ""
            self._set(models, time.time())
            if self._path is not None:
                await asyncio.to_thread(write_model_list, self._path, self._saved())

    def _set(self, models: Sequence[ListedModel], at: float) -> None:
        self.models, self.at = models, at
        self._changed()

    def _fail(self, why: str) -> None:
        self._failed_at = time.monotonic()
        if not self.problem:  # once, until a fetch succeeds
            self._report(self._backend.name, why)
        self.problem = why

    # --- the file

    @property
    def _service(self) -> str:
        backend = self._backend
        return hashlib.sha256(f"{backend.dialect.name}\0{backend.base_url}".encode()).hexdigest()

    async def _read_file(self, path: Path) -> None:
        saved = await asyncio.to_thread(read_model_list, path)
        if saved is None or saved.service != self._service or not 0 <= time.time() - saved.at < _MAX_AGE:
            return
        if models := [ListedModel(*each) for each in saved.models[:MAX_MODELS]]:
            self._set(models, saved.at)

    def _saved(self) -> SavedModelList:
        models = [(model.name, model.window, model.max_output_tokens) for model in self.models]
        return SavedModelList(self._service, self.at, models)


def read_model_list(path: Path) -> SavedModelList | None:
    """Return the list in a private file; None if there is none."""
    try:
        return msgspec.convert(jsonio.decode(read_private(path)), SavedModelList)
    except (OSError, ConfigError, jsonio.JsonError, msgspec.ValidationError):
        return None


def write_model_list(path: Path, saved: SavedModelList) -> None:
    """Write a list to a private file. An error is ignored: without the file, a new gateway fetches the list again."""
    with suppress(OSError, ConfigError):
        make_private_folder(path.parent.parent)
        make_private_folder(path.parent)
        write_private(path, jsonio.encode(msgspec.to_builtins(saved)))


class ModelLists:
    """The lists of all upstreams of one configuration."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        folder: Path | None = None,
        changed: Callable[[], None] = lambda: None,
        report: Report = lambda upstream, why: None,
    ) -> None:
        self._changed = changed
        self.by_upstream = {
            name: UpstreamModels(each, folder, self._forget_names, report) for name, each in backends.items()
        }
        self._names: dict[str, NameList] | None = None

    @property
    def names(self) -> Mapping[str, NameList]:
        """The lists that are known, by the names of the upstreams."""
        if self._names is None:
            self._names = {
                name: NameList(model.name for model in each.models)
                for name, each in self.by_upstream.items()
                if each.models
            }
        return self._names

    async def fetch(self, upstreams: Iterable[str], seconds: float, *, again: bool = False) -> None:
        """Get the lists that are unknown or old; wait for those never requested, or with `again` are unknown."""
        tasks = []
        for each in map(self.by_upstream.__getitem__, upstreams):
            is_awaited = not each.models if again else not each.was_requested
            each.refresh()
            if is_awaited and each.task is not None:
                tasks.append(each.task)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def aclose(self) -> None:
        """Cancel all fetches."""
        for each in self.by_upstream.values():
            await each.aclose()

    def _forget_names(self) -> None:
        self._names = None
        self._changed()


async def fetch_models(backend: Backend) -> Sequence[ListedModel]:
    """Return an upstream's own list of models. Raises DragomanError."""
    reader, binding = backend.dialect.model_list, backend.dialect.binding
    assert reader is not None
    ready = (each for each in backend.all_credentials if not backend.is_cooling_down(each, ""))
    credential = next(ready, None)
    if credential is None:
        raise TransportError(f"the upstream {backend.name} is in cooldown")
    models: dict[str, ListedModel] = {}
    page, left = "", _MAX_BYTES
    for _ in range(_MAX_PAGES):
        call = ApiRequest("models", "", False, None, {"page": page} if page else {})
        response = await backend.open(with_headers(binding.wrap(call), backend.own_headers()), credential)
        try:
            body = await response.read(left)
        finally:
            response.close()
        left -= len(body)
        listed = reader.parse_page(body)
        for model in listed.models:
            models.setdefault(model.name, model)
        page = listed.next_page
        if not page or len(models) >= MAX_MODELS:
            break
    if not models:
        raise TransportError(f"the list of models of the upstream {backend.name} is empty")
    return tuple(models.values())[:MAX_MODELS]
